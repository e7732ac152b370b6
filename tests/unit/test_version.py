"""Which version this is: one place says it, and the changes, the package and the command say the same."""

from __future__ import annotations

import re
import runpy
import sys
import threading
import tomllib
from pathlib import Path

import pytest

from devalloc.cli.main import main
from devalloc.version import VERSION

ROOT = Path(__file__).parents[2]


def test_the_package_has_it_from_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["hatch"]["version"]["path"] == "devalloc/version.py"


def test_the_first_chapter_of_the_changes_is_its() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"^## (\S+) \((?:unreleased|\d{4}-\d\d-\d\d)\)$", changes, re.MULTILINE)[0] == VERSION


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread of another test: beside a daemon thread the command ends the process at once."""
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.main_thread()])


@pytest.mark.usefixtures("alone")
def test_the_command_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"devalloc {VERSION}\n"


@pytest.mark.usefixtures("alone")
def test_the_package_is_run_as_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """``python -m devalloc``"""
    monkeypatch.setattr(sys, "argv", ["devalloc", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("devalloc", run_name="__main__")
    assert (ended.value.code or 0, capsys.readouterr().out) == (0, f"devalloc {VERSION}\n")
