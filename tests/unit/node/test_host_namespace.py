"""What runs in a network namespace of the host runs there, in a thread of its own, and says what went wrong."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from pyroute2 import netns

from devalloc_node.host.network_namespace import inside


def test_a_function_runs_in_the_namespace_of_the_file_and_in_no_other_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[tuple[int, int]] = []

    def setns(descriptor: int, **_: Any) -> None:
        entered.append((os.fstat(descriptor).st_ino, threading.get_ident()))

    monkeypatch.setattr(netns, "setns", setns)
    name = tmp_path / "blue"
    name.touch()
    assert inside(name, lambda: (name.stat().st_ino, threading.get_ident())) == entered[0]
    assert len(entered) == 1
    assert entered[0][1] != threading.get_ident()


def test_nothing_runs_where_there_is_no_namespace(tmp_path: Path) -> None:
    ran: list[bool] = []
    with pytest.raises(FileNotFoundError):
        inside(tmp_path / "none", lambda: ran.append(True))
    assert ran == []
