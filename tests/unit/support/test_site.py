"""The documentation site: links to files beside docs/ lead to the repository, and each link leads somewhere."""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.package_metadata import REPOSITORY
from tests.support.repository import REPO
from tests.unit.test_doc_links import links
from tools.site import with_repository_links


@pytest.mark.parametrize(
    ("path", "link", "expected"),
    [
        ("claims.md", "reasons.md#codes", "reasons.md#codes"),
        ("claims.md", "#top", "#top"),
        ("claims.md", "https://example.org/a", "https://example.org/a"),
        ("claims.md", "../examples/", f"{REPOSITORY}/blob/main/examples"),
        ("reference/README.md", "../development/spec/claims.md", "../development/spec/claims.md"),
        ("development/README.md", "../../ARCHITECTURE.md#a", f"{REPOSITORY}/blob/main/ARCHITECTURE.md#a"),
    ],
)
def test_links_stay_on_the_site_if_they_can(
    path: str, link: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DEVALLOC_REPOSITORY", raising=False)
    assert with_repository_links(f"See [this]({link}).", path) == f"See [this]({expected})."


@pytest.mark.parametrize("broken", ["[gone](gone.md)", "[gone](cel.md#no-such-heading)"])
def test_a_link_that_leads_nowhere_is_an_error(broken: str, tmp_path: Path) -> None:
    for name in ("mkdocs.yml", "tools/site.py", "deploy/package_metadata.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(REPO / name, tmp_path / name)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# Home\n\n{broken}\n")
    (tmp_path / "docs" / "cel.md").write_text("# Expressions\n")
    nav = (tmp_path / "mkdocs.yml").read_text().partition("\nnav:")[0] + "\nnav: [index.md, cel.md]\n"
    (tmp_path / "mkdocs.yml").write_text(nav)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "gone" in done.stderr or "no-such-heading" in done.stderr


def _pages() -> dict[str, str]:
    return {
        path.relative_to(REPO / "docs").as_posix(): path.read_text() for path in sorted((REPO / "docs").rglob("*.md"))
    }


def _links(page: str, text: str) -> set[str]:
    targets = {target.partition("#")[0] for _, target in links(text)}
    return {posixpath.normpath(posixpath.join(posixpath.dirname(page), target)) for target in targets if target}


def test_a_reader_gets_to_every_page_by_links() -> None:
    pages, reached, left = _pages(), set[str](), ["index.md"]
    while left:
        page = left.pop()
        if page in pages and page not in reached:
            reached.add(page)
            left += _links(page, pages[page])
    assert pages.keys() - reached == set()


def test_a_page_has_at_most_350_lines_and_begins_with_what_it_is_for() -> None:
    guides = {name: text for name, text in _pages().items() if "/" not in name and not text.startswith("<!-- Gen")}
    assert len(guides) > 30
    assert [name for name, text in guides.items() if text.count("\n") > 350] == []
    begins = {name: text.split("\n\n", 2)[1] for name, text in guides.items()}
    assert [name for name, first in begins.items() if first.startswith(("#", "|", "```", "    ", "!["))] == []


def test_blocks_in_lists_are_indented_as_the_site_nests_them() -> None:
    """Python-Markdown nests by four spaces; GitHub by as many as the item's text."""
    wrong = [
        f"{name}:{number}: {line}"
        for name, text in _pages().items()
        for number, line in _flat_blocks(text.splitlines())
    ]
    assert wrong == []


def _flat_blocks(lines: list[str]) -> Iterator[tuple[int, str]]:
    """(number, line) of each line in a list that begins a block, and that is indented too little for that."""
    in_code = in_list = False
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code:
            in_list = (
                line.startswith("- ") or re.match(r"\d+\. ", line) is not None or (in_list and line[:1] in ("", " "))
            )
            after_blank = number > 1 and lines[number - 2] == ""
            is_short = re.match(r" {1,3}[-*] ", line) or (after_blank and re.match(r" {2,3}\S| {5,7}\S", line))
            if in_list and is_short:
                yield number, line
