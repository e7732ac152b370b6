"""Fragments of the changelog are well formed, and become bullets of its first chapter."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.repository import REPO
from tools import changelog
from tools.changelog import Invalid, fragments, main, with_fragments

CHANGELOG = """# Changes

## 0.3.0 (unreleased)

### Added

- old

### Changed

### Fixed

## 0.2.0

### Added

- older
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "changes").mkdir()
    (tmp_path / "changes" / "README.md").write_text("what a fragment is")
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    return tmp_path


def test_the_repository_has_well_formed_fragments_and_a_chapter_for_them() -> None:
    with_fragments((REPO / "CHANGELOG.md").read_text(), fragments(REPO / "changes"))


def test_fragments_become_bullets_of_the_first_chapter_and_are_removed(root: Path) -> None:
    (root / "changes" / "console.added.md").write_text("A machine has a console,\nand logs.\n")
    (root / "changes" / "exit-codes.changed.md").write_text("word " * 40)
    assert main(["collect"], root) == 0
    text = (root / "CHANGELOG.md").read_text()
    assert "### Added\n\n- A machine has a console, and logs.\n- old\n" in text
    assert "### Changed\n\n- word word" in text
    assert max(map(len, text.splitlines())) <= 125
    assert text.endswith("## 0.2.0\n\n### Added\n\n- older\n")
    assert [path.name for path in (root / "changes").iterdir()] == ["README.md"]


def test_they_can_be_read_before(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "changes" / "a.fixed.md").write_text("It works.")
    assert main([], root) == 0
    assert capsys.readouterr().out == "Fixed: It works.\n"
    assert (root / "CHANGELOG.md").read_text() == CHANGELOG


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("console.md", "text", "console.md: name it WHAT.KIND.md, with KIND one of added, changed, fixed"),
        ("console.new.md", "text", "console.new.md: name it"),
        ("console.added.md", " \n", "console.added.md: has 0 characters; write 1 to 400"),
        ("console.added.md", "x" * (changelog.MOST + 1), "has 401 characters"),
    ],
)
def test_what_is_no_fragment_is_refused(root: Path, name: str, text: str, problem: str) -> None:
    (root / "changes" / name).write_text(text)
    with pytest.raises(Invalid, match=problem):
        fragments(root / "changes")


def test_a_chapter_without_its_headings_is_refused(root: Path) -> None:
    (root / "CHANGELOG.md").write_text("# Changes\n\n## 0.3.0\n\n- old\n\n## 0.2.0\n\n### Added\n")
    (root / "changes" / "a.added.md").write_text("text")
    assert main(["collect"], root) == 1
    assert (root / "changes" / "a.added.md").exists()
