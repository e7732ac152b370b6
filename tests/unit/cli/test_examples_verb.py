"""``devalloc examples``."""

from __future__ import annotations

import errno
import re
import shutil
import tomllib
from pathlib import Path

import pytest

from devalloc import packaged_files
from devalloc.api.manifests import load, load_text
from devalloc.cli import example_files, node_codes
from devalloc.cli.main import VERBS
from devalloc.packaged_files import packaged_path
from tests.support.cli_shell import Shell, devalloc
from tests.support.repository import REPO

__all__ = ["devalloc"]
NAMES = [folder.name for folder in example_files.example_folders()]


def test_each_example_is_listed_with_what_it_shows(devalloc: Shell) -> None:
    lines = devalloc("examples").out.splitlines()
    listed = {line.split()[0]: line.split()[1:] for line in lines[1 : 1 + len(NAMES)]}
    assert [*listed] == NAMES
    assert all(listed.values())


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_printed_as_it_is_in_its_files(devalloc: Shell, name: str) -> None:
    printed = [document.content for document in load_text(devalloc("examples", name).out).documents]
    assert printed == [document.content for document in load([REPO / "examples" / name]).documents]


def test_an_example_goes_on_into_another_command(devalloc: Shell) -> None:
    manifests = devalloc("examples", "whole-gpu").out
    piped, named = devalloc("solve", "-f", "-", stdin=manifests), devalloc("solve", "-f", REPO / "examples/whole-gpu")
    assert piped.out == named.out


def test_examples_are_written_to_files_to_edit_and_never_over_yours(devalloc: Shell, tmp_path: Path) -> None:
    assert devalloc("examples", "whole-gpu", "-d", tmp_path / "x").code == 0
    claims = tmp_path / "x" / "whole-gpu" / "claims.yaml"
    assert claims.read_bytes() == (REPO / "examples/whole-gpu/claims.yaml").read_bytes()
    assert devalloc("examples", "-d", tmp_path / "x").code == 0, "the same file may be there"
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == NAMES
    claims.write_text("yours")
    again = devalloc("examples", "-d", tmp_path / "x")
    assert (again.code, claims.read_text()) == (1, "yours")
    assert f"{claims} exists and differs" in again.err


def test_a_full_disk_is_reported_with_the_file_that_is_not_written(
    devalloc: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(source), None, str(target))

    monkeypatch.setattr(shutil, "copyfile", copy)
    output = devalloc("examples", "whole-gpu", "-d", tmp_path)
    assert (output.code, output.err.startswith(f"error: {tmp_path}/whole-gpu/")) == (1, True), output.err


def test_a_misspelled_example_is_named(devalloc: Shell) -> None:
    output = devalloc("examples", "hole-gpu")
    assert (output.code, output.err) == (2, "error: there is no example 'hole-gpu'; did you mean whole-gpu?\n")


def test_the_path_of_the_documents_leads_on_where_it_is_not_there(
    devalloc: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after `pip install`, in any folder."""
    monkeypatch.chdir(tmp_path)
    for path in ("examples/whole-gpu", "examples/whole-gpu/claims.yaml"):
        assert "devalloc examples whole-gpu | devalloc solve -f -" in devalloc("solve", "-f", path).err
    assert "devalloc examples" not in devalloc("solve", "-f", "whole-gpu/claims.yaml").err


@pytest.mark.parametrize(
    ("origin", "place"), [("examples", example_files.PACKAGED), ("docs/node-codes.md", node_codes.PACKAGED)]
)
def test_the_wheel_has_them(origin: str, place: str) -> None:
    """Examples, and codes of nodes, in the folder of the installed package."""
    project = tomllib.loads((REPO / "pyproject.toml").read_text())
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included[origin] == f"devalloc/{place}"


def test_a_file_of_the_repository_is_read_from_the_package_where_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packaged_files, "PACKAGE", tmp_path)
    assert packaged_path("data/README.md", "README.md") == REPO / "README.md"
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "README.md").write_text("")
    assert packaged_path("data/README.md", "README.md") == tmp_path / "data" / "README.md"


def test_the_last_lines_of_the_demo_name_what_everyone_has(devalloc: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example_files, "REPOSITORY", REPO / "elsewhere")
    steps = devalloc("demo").out.partition("What to try next:")[2]
    assert "make" not in steps
    verbs = re.findall(r"devalloc ([a-z]+)", steps)
    assert {*verbs} <= {name for section in VERBS.values() for name in section}
    assert "examples" in verbs
