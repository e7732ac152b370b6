"""The pictures of docs/see.md anew: ``make screenshots``. As long as nothing changes they are the same bytes."""

from __future__ import annotations

import io
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import Page
from rich.console import Console

from devalloc.api.manifests import load
from devalloc.cli.render.top_screen import TopScreen
from devalloc.controller.cordon import CordonTarget, set_cordon
from devalloc.store import Key
from devalloc.store.sqlite import SQLiteStore
from devalloc.usage.overview import build_overview
from devalloc.usage.overview.cache import CachedOverview
from devalloc.usage.overview.refusal_cache import NO_REFUSALS
from tests.support.browser import new_page, running, wait_until
from tests.support.chromium import chromium
from tests.support.go_build import Unavailable
from tests.support.machine_allocator import machine_allocator
from tests.support.resource_manifests import counters, device, resource_claim, resource_quota, slice_of, warning
from tests.support.served_page import TOKEN, FixedStore, served

Object = dict[str, Any]
EXAMPLES = ("mig-partitions", "unsatisfiable", "placed-machines")
DOCS = Path(__file__).parents[1] / "docs"
NOON = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
AGE = timedelta(minutes=6)
RUNNING = {
    "phase": "Running",
    "wanted": {"cpus": "6", "memory": "24Gi"},
    "permitted": {"cpus": "6", "memory": "24Gi"},
    "applied": {"cpus": "6", "memory": "24Gi"},
    "observed": {"cpus": "6", "memory": "22Gi"},
}
"""What a node would say of a machine."""
STILL = f"""
const Real = Date, at = {int(NOON.timestamp() * 1000)};
Date = class extends Real {{
  constructor(...of) {{ of.length ? super(...of) : super(at); }}
  static now() {{ return at; }}
}};
"""
"""For whom it is noon for ever."""


def objects() -> list[Object]:
    """Examples, answered, of which one machine runs and one card is cordoned; and a node that publishes slices."""
    with tempfile.TemporaryDirectory() as folder, closing(SQLiteStore(Path(folder) / "devalloc.db")) as store:
        documents = [document.content for name in EXAMPLES for document in load([f"examples/{name}"]).documents]
        for obj in [*{Key.of(obj): obj for obj in documents}.values(), resource_quota("team", gpu="6", vf="4")]:
            store.create(obj)
        machine_allocator(store).round()
        for machine in store.list("VirtualMachine").objects:
            if machine["metadata"]["name"] == "trainer":
                store.replace_status({**machine, "status": {**machine["status"], **RUNNING}})
        set_cordon(store, CordonTarget(pool="small-b-t4", devices=(None,)), "ada: new firmware")
        machine_allocator(store).round()
        return [*store.list().objects, *_for_pods()]


def _for_pods() -> Iterator[Object]:
    """What Kubernetes' own claims are given: a card that is cut into partitions, and one that is broken."""
    profiles = [("whole", "7", "40Gi"), *((f"mig-3g.20gb-{i}", "3", "20Gi") for i in (0, 4))]
    profiles += [(f"mig-1g.5gb-{i}", "1", "5Gi") for i in range(4)]
    parts = [
        device(
            name.replace(".", "-"),
            draws={"slices": slices, "memory": memory},
            model="A100-SXM4-40GB",
            numa=0,
            function="whole" if name == "whole" else "mdev",
            **({"profile": name.split("-")[1]} if name != "whole" else {}),
        )
        for name, slices, memory in profiles
    ]
    taint = {"key": "devalloc.io/unavailable", "effect": "NoSchedule"}
    broken_attributes: dict[str, Any] = {
        "model": "A2",
        "function": "whole",
        "devalloc.io__unavailable": "fell off the bus",
    }
    broken = device(
        "0000-3b-00-0",
        taint,
        **broken_attributes,
    )
    card, other = "pod-a-0000-07-00", "pod-a-0000-3b-00"
    supply = [counters(slices="7", memory="40Gi")]
    yield slice_of(card, "pod-a", of=2, name="sets", sharedCounters=supply)
    yield slice_of(card, "pod-a", parts, of=2)
    yield slice_of(other, "pod-a", [broken])
    yield resource_claim("notebook", f"{card}/mig-3g-20gb-0", namespace="team-a", node="pod-a", pods=("notebook-0",))
    waiting = resource_claim("batch", namespace="team-a", count=9, ours=True)
    yield waiting
    yield warning(waiting, "NotEnoughDevices", "no node has 9 devices that are free (at most 3)")


def aged(documents: list[Object], now: datetime) -> list[Object]:
    created = f"{now - AGE:%Y-%m-%dT%H:%M:%SZ}"
    return [{**obj, "metadata": {**obj["metadata"], "creationTimestamp": created}} for obj in documents]


def draw(documents: list[Object]) -> str:
    """`devalloc top` as an SVG."""
    console = Console(width=128, height=40, record=True, file=io.StringIO(), force_terminal=True)
    seen = CachedOverview("", build_overview(aged(documents, datetime.now(UTC))), NOON)
    console.print(TopScreen().content(seen, lambda seen: NO_REFUSALS, 40, 128))
    svg = console.export_svg(title="devalloc top", unique_id="top")
    return re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.DOTALL)  # they would be requested from another server


def opened(page: Page, *rows: str) -> None:
    """Rows of the tree, one below the other."""
    for row in rows:
        element = f"document.getElementById({row!r})"
        wait_until(page, element)
        page.evaluate(f"{element}.click()")
        wait_until(page, f"{element}.nextElementSibling.ariaLevel > {element}.ariaLevel")


def main() -> None:
    os.environ["TZ"] = "UTC"
    time.tzset()
    documents = objects()
    (DOCS / "top.svg").write_text(draw(documents))
    with (
        tempfile.TemporaryDirectory() as folder,
        served(FixedStore(aged(documents, NOON))) as url,
        running(chromium(lambda line: print(line, file=sys.stderr)), Path(folder)) as browser,
    ):
        page = new_page(browser.new_context(timezone_id="UTC"), 1280, 1440)
        page.add_init_script(STILL)
        page.goto(url)
        wait_until(page, "document.activeElement.id === 'token'")
        page.keyboard.insert_text(TOKEN)
        page.keyboard.press("Enter")
        wait_until(page, "document.querySelector('.live.on')")
        opened(page, "node:pod-a", "card:slices:pod-a-0000-07-00")
        page.evaluate("document.querySelector('[id=\"claim:default/pair\"] .toggle').click()")
        wait_until(page, "document.querySelector('.refusal ol')")
        page.evaluate("scrollTo(0, 0)")
        schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
        for scheme in schemes:
            page.emulate_media(color_scheme=scheme)
            page.screenshot(path=DOCS / f"page-{scheme}.png", full_page=True)


if __name__ == "__main__":
    try:
        main()
    except Unavailable as reason:
        sys.exit(f"no screenshots: {reason}")
