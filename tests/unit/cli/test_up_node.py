"""``devalloc up`` with the node plugin in its process, and without it where that cannot be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from devalloc.cli import upnode
from tests.support.shell import Shell


def test_it_says_why_it_cannot_run(monkeypatch: pytest.MonkeyPatch, devalloc: Shell) -> None:
    monkeypatch.setattr(upnode, "NEEDED", ("click", "no_such_package", "no.such"))
    refused = devalloc("up", "--node")
    assert refused.code == 1
    assert "cannot run here: there is no no_such_package, no.such; pip install 'devalloc[node]'" in refused.err


def test_it_needs_the_inventory(devalloc: Shell) -> None:
    assert devalloc("up", "--node", "--no-inventory").code == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("up", "--node", "--metrics=bogus"), "--metrics: 'bogus' is no address"),
        (("up", "--node", "--resync=0s"), "more than 0"),
        (("node", "--metrics=0.0.0.0:80"), "can be reached from elsewhere"),
    ],
)
def test_wrong_options_are_told_before_anything_begins(
    devalloc: Shell, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    command = [sys.executable, "-m", "devalloc.cli", *words, "--sysfs-root", str(tmp_path)]
    env = {**os.environ, "DEVALLOC_STORE": str(devalloc.store), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "serving" not in done.stdout + done.stderr
