"""Must show: machines that one version's plugin has started run on under the other one's, which restarts, stops, starts
and moves them; up from the release before (or another tree), and back."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from devalloc_machines.qemu.process import process
from tests.support import waiting
from tests.support.node_fleet import Fleet
from tests.support.previous import PRESENT, Version, previous

TREE = os.environ.get("DEVALLOC_UPGRADE_TREE", "")
"""A checkout to upgrade from, and go back to, in place of the release before."""


@pytest.fixture
def before() -> Version:
    return Version("the tree before", Path(TREE)) if TREE else previous()


def runs(fleet: Fleet, *, unlike: str = "", node: str = "") -> dict[str, Any]:
    """The status of the machine once it runs, as another run, and on that node."""

    def is_so() -> bool:
        status = fleet.status()
        is_there = status.get("phase") == "Running" and "pid" in status and status["machineID"] != unlike
        return is_there and node in ("", status.get("nodeName"))

    waiting.until(is_so, "it runs", context=lambda: (fleet.status(), fleet.log()[-4000:]))
    status = fleet.status()
    assert fleet.qemus(status["nodeName"]) == [status["pid"]], "there is one"
    return status


def under(fleet: Fleet, version: Version, *nodes: str) -> None:
    """All processes are killed, and those of a version come in their place."""
    for name in list(fleet.processes):
        fleet.kill(name)
    fleet.version = version
    options = ("--migration-address", "127.0.0.1") if moves(version) else ()
    for node in nodes:
        fleet.start_node(node, *options)
    fleet.start_controller()


def moves(version: Version) -> bool:
    """Whether machines of that version move while they run."""
    return version.name != "0.1.0"


def is_handled(fleet: Fleet, version: Version) -> dict[str, Any]:
    """The version that runs now has all that was done with the machine under another one, and does all of it."""
    there = runs(fleet)
    os.kill(there["pid"], signal.SIGKILL)
    again = runs(fleet, unlike=there["machineID"])
    if moves(version):
        to = "b" if again["nodeName"] == "a" else "a"
        waiting.until(
            lambda: fleet.command("migrate", "vm/drained", "--to", to).returncode == 0, "it moves", context=fleet.log
        )
        there = runs(fleet, node=to)
        assert there["machineID"] == again["machineID"], "its run goes on"
        waiting.until(lambda: not fleet.qemus(again["nodeName"]), "nothing of it is left there", context=fleet.log)
    fleet.command("stop", "vm/drained")
    waiting.until(lambda: fleet.status().get("phase") == "Stopped", "it stops", context=fleet.log)
    assert fleet.qemus("a") + fleet.qemus("b") == []
    fleet.command("start", "vm/drained")
    return runs(fleet)


def test_machines_run_on_under_the_other_version_which_does_all_with_them(fleet: Fleet, before: Version) -> None:
    under(fleet, before, "a", "b")
    fleet.command("apply", "-f", "-", stdin=fleet.manifest())
    first = runs(fleet)
    under(fleet, PRESENT, "a", "b")
    up = runs(fleet)
    assert (up["pid"], up["machineID"]) == (first["pid"], first["machineID"]), "it is adopted"
    now = is_handled(fleet, PRESENT)
    under(fleet, before, "a", "b")
    back = runs(fleet)
    assert (back["pid"], back["machineID"]) == (now["pid"], now["machineID"]), "it is adopted again"
    now = is_handled(fleet, before)
    under(fleet, PRESENT, "a", "b")
    assert runs(fleet)["pid"] == now["pid"], "and once more"
    fleet.command("delete", "vm/drained")
    waiting.until(lambda: fleet.qemus("a") + fleet.qemus("b") == [], "it is gone", context=fleet.log)
    assert process(now["pid"]) is None
