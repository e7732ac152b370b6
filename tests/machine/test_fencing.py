"""Must show: a machine of a lost node starts elsewhere once the node is fenced, never before; a node that comes back
ends what it had. With real QEMU, two plugins and a controller, each in a process of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from devalloc_machines.qemu.process import process
from tests.support import waiting
from tests.support.node_fleet import Fleet


@pytest.fixture
def fleet(fleet: Fleet) -> Iterator[Fleet]:
    """QEMUs that a test has stopped go on at its end."""
    yield fleet
    for pid in fleet.qemus("a"):
        os.kill(pid, signal.SIGCONT)


def run_on_a(fleet: Fleet, *, has_disk: bool) -> dict[str, Any]:
    """A machine that runs on node a, while node b could run it; its status."""
    manifest = yaml.safe_load(fleet.manifest())
    if not has_disk:
        del manifest["spec"]["start"]["disks"]
    fleet.start_node("a")
    fleet.start_controller()
    fleet.command("apply", "-f", "-", stdin=yaml.safe_dump(manifest))
    waiting.until(lambda: fleet.status().get("phase") == "Running", "it runs", context=fleet.log)
    fleet.start_node("b")
    assert fleet.status()["nodeName"] == "a"
    return fleet.status()


def ended(fleet: Fleet, pid: int) -> bool:
    there = Path(f"/proc/{pid}/cwd")
    return process(pid) is None or not os.path.lexists(there) or pid not in fleet.qemus("a")


def test_it_starts_elsewhere_only_once_its_node_is_fenced_and_the_old_one_ends_first(fleet: Fleet) -> None:
    before = run_on_a(fleet, has_disk=False)
    fleet.kill("a")
    os.kill(before["pid"], signal.SIGSTOP)
    shown = fleet.command("fence", "node/a", "--dry-run")
    assert "virtualmachine default/drained: will start on node b" in shown.stdout
    assert (fleet.status()["nodeName"], fleet.qemus("b")) == ("a", []), "it may run there, for all that anyone knows"

    fenced = fleet.command("fence", "node/a", "--yes", "--reason", "no power")
    assert fenced.returncode == 0, fenced.stdout + fenced.stderr
    waiting.until(lambda: fleet.status().get("phase") == "Running", "it runs elsewhere", context=fleet.log)
    after = fleet.status()
    assert (after["nodeName"], after["pid"] in fleet.qemus("b")) == ("b", True)
    assert not ended(fleet, before["pid"]), "no one could end it: the admin's word was not true"

    fleet.start_node("a")  # serves only after it has ended what it does not own
    assert ended(fleet, before["pid"]), "it is ended before anything is served"
    waiting.until(lambda: not list((fleet.folder / "a" / "run").iterdir()), "nothing of it is left", context=fleet.log)
    now = fleet.status()
    assert (now["pid"], now["machineID"], now["phase"]) == (after["pid"], after["machineID"], "Running")
    assert fleet.command("unfence", "node/a").stdout == "node a is no longer fenced\n"


def test_a_disk_that_the_old_machine_still_has_open_is_not_opened_twice(fleet: Fleet) -> None:
    """QEMU's locks hold beside the admin's word: on a file system with locks, also of other hosts."""
    before = run_on_a(fleet, has_disk=True)
    fleet.kill("a")  # its QEMU runs on
    assert fleet.command("fence", "node/a", "--yes").returncode == 0
    waiting.until(lambda: fleet.status().get("reason") == "DiskInUse", "it is refused", context=fleet.log)
    assert fleet.status()["nodeName"] == "b"
    fleet.start_node("a")
    assert ended(fleet, before["pid"])
    waiting.until(lambda: fleet.status().get("phase") == "Running", "it runs elsewhere", context=fleet.log)
    assert (fleet.status()["nodeName"], fleet.qemus("a")) == ("b", [])
