"""`.ci/run` tests the last commit, in a clone with nothing beside it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.repository import REPO

MAKEFILE = """
setup lint test-all test-lowest:
	@echo $@
test:
	@echo CI=$(CI) files: *; echo beside: ../*; git log --oneline | wc -l; $(DO)
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository of two commits, with a neighbour."""
    (tmp_path / "shared").mkdir()
    root = tmp_path / "checkout"
    (root / ".ci").mkdir(parents=True)
    shutil.copy(REPO / ".ci" / "run", root / ".ci" / "run")
    (root / "Makefile").write_text(MAKEFILE)
    git(root, "init", "--quiet")
    git(root, "add", ".")
    for number in (1, 2):
        git(root, "commit", "--quiet", "--allow-empty", "--message", str(number))
    return root


def git(root: Path, *words: str) -> None:
    identity = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.com", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(root), *identity, *words], check=True)


def run(root: Path, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir()
    others = ("GIT_", "MAKE", "MFLAGS", "KEEP")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    return subprocess.run(
        [str(root / ".ci" / "run")],
        env={**environment, "TMPDIR": str(folder), **more},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_last_commit_is_tested_with_nothing_beside_it(checkout: Path, tmp_path: Path) -> None:
    (checkout / "not committed").touch()
    done = run(checkout, tmp_path / "clones", GIT_DIR=str(checkout / ".git"))
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "CI=true files: Makefile" in lines
    assert "beside: ../devalloc" in lines
    assert [line for line in lines if line.isdigit()] == ["1"]
    assert [line for line in lines if "1 uncommitted change" in line]
    assert lines[-1].startswith("-- all passed")
    assert [*(tmp_path / "clones").iterdir()] == []


def test_what_fails_ends_it(checkout: Path, tmp_path: Path) -> None:
    done = run(checkout, tmp_path / "clones", DO="false")
    assert done.returncode != 0
    assert "all passed" not in done.stdout
    assert "test-lowest" not in done.stdout
    assert [*(tmp_path / "clones").iterdir()] == []


def test_a_clone_that_failed_can_be_left(checkout: Path, tmp_path: Path) -> None:
    done = run(checkout, tmp_path / "clones", DO="false", KEEP="1")
    (folder,) = (tmp_path / "clones").iterdir()
    assert f"-- the clone is {folder}/devalloc" in done.stdout
    assert (folder / "devalloc" / "Makefile").is_file()
