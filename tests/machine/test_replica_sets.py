"""Must show: a replica set with real QEMU, by the project's own command lines: machines with overlays of one image run,
one that dies or whose guest has finished is replaced, those that report are counted as ready when they say so, and all
goes with the set."""

from __future__ import annotations

import hashlib
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from devalloc_machines.qemu.spec import machine_id
from tests.support.guest import Guest, GuestGone
from tests.support.node_fleet import Fleet
from tests.support.qemu import MICRO_APPEND
from tests.support.store_file import machine_statuses, statuses
from tests.support.waiting import until


def a_set(fleet: Fleet, replicas: int, **more: Any) -> str:
    machine = {
        "nodeName": "a",
        "cpu": {"min": 1, "max": 1},
        "memory": {"min": "64Mi", "max": "64Mi"},
        "disk": "4Mi",
        "start": {
            "kernel": str(fleet.image.folder / "tiny"),
            "disks": [{"path": str(fleet.disks / "drained.raw"), "format": "raw", "clone": "overlay"}],
        },
        "restartPolicy": "Never",
        "powerdownSeconds": 0,
        **more,
    }
    body = {"apiVersion": "devalloc.io/v1alpha1", "kind": "VirtualMachineReplicaSet", "metadata": {"name": "web"}}
    return yaml.safe_dump({**body, "spec": {"replicas": replicas, "template": {"spec": machine}}})


def running(fleet: Fleet) -> dict[str, Any]:
    statuses = machine_statuses(fleet.folder / "store.db")
    return {name: status["pid"] for name, status in statuses.items() if status.get("phase") == "Running"}


def counted(fleet: Fleet) -> tuple[int, int]:
    """Machines of the set that are there, and that are ready."""
    status = statuses(fleet.folder / "store.db", "VirtualMachineReplicaSet").get("web", {})
    return status.get("replicas", 0), status.get("readyReplicas", 0)


def overlays(fleet: Fleet) -> list[Path]:
    return sorted((fleet.folder / "a").glob("**/*.overlay"))


def test_replicas_run_are_replaced_when_they_die_and_go_with_their_set(fleet: Fleet) -> None:
    image = fleet.disks / "drained.raw"
    before = hashlib.sha256(image.read_bytes()).digest()
    fleet.start_controller()
    fleet.start_node("a")
    done = fleet.command("apply", "-f", "-", stdin=a_set(fleet, 2))
    assert done.returncode == 0, done.stderr
    until(lambda: sorted(running(fleet)) == ["web-1", "web-2"], "both run", context=fleet.log)
    assert len(overlays(fleet)) == 2
    pids = running(fleet)
    os.kill(pids["web-1"], signal.SIGKILL)
    until(lambda: sorted(running(fleet)) == ["web-2", "web-3"], "the dead one is replaced", context=fleet.log)
    assert running(fleet)["web-2"] == pids["web-2"]
    until(lambda: len(overlays(fleet)) == 2, "its disk went with it", context=fleet.log)
    until(
        lambda: fleet.command("get", "vmrs").stdout.splitlines()[1].split()[:4] == ["web", "2", "2", "2"],
        "the set says so",
        context=fleet.log,
    )
    fleet.command("delete", "vmrs/web")
    until(lambda: not machine_statuses(fleet.folder / "store.db"), "all went with the set", context=fleet.log)
    assert (overlays(fleet), fleet.qemus("a")) == ([], [])
    assert hashlib.sha256(image.read_bytes()).digest() == before


def test_guests_that_report_are_counted_when_they_are_ready_and_replaced_when_they_have_finished(fleet: Fleet) -> None:
    image = {
        "kernel": str(fleet.image.kernel),
        "initrd": str(fleet.image.initrd),
        "append": f"{MICRO_APPEND} shell=ttyS0",
    }
    disks = [{"path": str(fleet.disks / "drained.raw"), "format": "raw", "clone": "overlay"}]
    of_guest = {"memory": {"min": "256Mi", "max": "256Mi"}, "start": {**image, "disks": disks}, "guestReports": True}

    def say(line: str) -> None:
        guest.check(f"echo '{line}' > /dev/ttyS1")

    fleet.start_controller()
    fleet.start_node("a")
    done = fleet.command("apply", "-f", "-", stdin=a_set(fleet, 2, **of_guest))
    assert done.returncode == 0, done.stderr
    until(lambda: sorted(running(fleet)) == ["web-1", "web-2"], "both run", context=fleet.log)
    until(lambda: counted(fleet) == (2, 0), "neither is ready", context=fleet.log)
    guest = Guest(fleet.folder / "a" / "run" / machine_id("default/web-1") / "console")
    guest.check("stty -F /dev/ttyS1 raw -echo")
    say('{"status": "ready"}')
    until(lambda: counted(fleet) == (2, 1), "one is ready", context=fleet.log)
    say('{"status": "not-ready"}')
    until(lambda: counted(fleet) == (2, 0), "it is not ready any more", context=fleet.log)
    pids = running(fleet)
    with suppress(GuestGone):  # it may be ended before it answers
        say('{"status": "finished", "message": "42 pages"}')
    guest.close()
    until(lambda: sorted(running(fleet)) == ["web-2", "web-3"], "it is replaced", context=fleet.log)
    assert running(fleet)["web-2"] == pids["web-2"]
    until(lambda: len(overlays(fleet)) == 2, "its disk went with it", context=fleet.log)
    until(lambda: counted(fleet) == (2, 0), "the new one has said nothing yet", context=fleet.log)
    assert '"message":"42 pages"' in (fleet.folder / "a" / "state" / "audit.log").read_text(), "that ended it"
    fleet.command("delete", "vmrs/web")
    until(lambda: not machine_statuses(fleet.folder / "store.db"), "all went with the set", context=fleet.log)
    assert (overlays(fleet), fleet.qemus("a")) == ([], [])
