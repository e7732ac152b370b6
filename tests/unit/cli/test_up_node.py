"""``devalloc up`` with the node plugin in its process, and without it where that cannot be."""

from __future__ import annotations

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
