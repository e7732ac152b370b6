"""The pictures of docs/see.md anew, of a fleet of examples: ``make screenshots``."""

from __future__ import annotations

import io
import re
import sys
import tempfile
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from devalloc.api.manifests import load
from devalloc.cli.fleet import picture
from devalloc.controller.allocate import Allocator
from devalloc.controller.cordon import Target, cordon
from devalloc.controller.overview import overview
from devalloc.controller.sight import Seen
from devalloc.store import Key
from devalloc.store.sqlite import SQLiteStore
from tests.support.browser import Page, running
from tests.support.chromium import chromium
from tests.support.go_build import Unavailable
from tests.support.page import TOKEN, served

EXAMPLES = ("mig-partitions", "unsatisfiable", "placed-machines")
DOCS = Path(__file__).parents[2] / "docs"
RUNNING = {
    "phase": "Running",
    "wanted": {"cpus": "6", "memory": "24Gi"},
    "permitted": {"cpus": "6", "memory": "24Gi"},
    "applied": {"cpus": "6", "memory": "24Gi"},
    "observed": {"cpus": "6", "memory": "22Gi"},
}
"""What a node would say of a machine."""


def fill(store: SQLiteStore) -> None:
    """Examples, answered, of which one machine runs and one node is cordoned."""
    found = [document.content for name in EXAMPLES for document in load([f"examples/{name}"]).documents]
    for obj in {Key.of(obj): obj for obj in found}.values():
        store.create(obj)
    Allocator(store).round()
    for machine in store.list("VirtualMachine").objects:
        if machine["metadata"]["name"] == "trainer":
            store.replace_status({**machine, "status": {**machine["status"], **RUNNING}})
    cordon(store, Target(pool="node-b-t4", devices=(None,)), "ada: new firmware")
    Allocator(store).round()


def draw(store: SQLiteStore) -> str:
    """`devalloc top` as an SVG."""
    console = Console(width=118, height=34, record=True, file=io.StringIO(), force_terminal=True)
    seen = Seen("", overview(store.list().objects), datetime.now(UTC))
    console.print(picture(seen, 34))
    svg = console.export_svg(title="devalloc top", unique_id="top")
    return re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.DOTALL)  # they would be asked of somebody else's server


def opened(page: Page, *rows: str) -> None:
    """Rows of the tree, one below the other."""
    for row in rows:
        found = f"document.getElementById({row!r})"
        page.wait(found)
        page.evaluate(f"{found}.click()")
        page.wait(f"{found}.nextElementSibling.ariaLevel > {found}.ariaLevel")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, closing(SQLiteStore(Path(folder) / "devalloc.db")) as store:
        fill(store)
        (DOCS / "top.svg").write_text(draw(store))
        with (
            served(store) as url,
            running(chromium(lambda line: print(line, file=sys.stderr)), Path(folder)) as browser,
        ):
            page = browser.page()
            page.size(1280, 1440)
            page.go(url)
            page.wait("document.activeElement.id === 'token'")
            page.type(TOKEN)
            page.press("Enter")
            page.wait("document.querySelector('.live.on')")
            opened(page, "node:dgx-a", "card:dgx-a-0000-07-00")
            page.evaluate("scrollTo(0, 0)")
            for scheme in ("light", "dark"):
                page.colours(scheme)
                (DOCS / f"page-{scheme}.png").write_bytes(page.picture())
            page.close()


if __name__ == "__main__":
    try:
        main()
    except Unavailable as reason:
        sys.exit(f"no screenshots: {reason}")
