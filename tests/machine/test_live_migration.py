"""Must show: a loaded machine moves between the plugins of two nodes while it runs, each a process of its own, one of
which is killed on the way; its writes, its run, its reservation and what its guest reports move with it. A machine that
is scaled leaves a node that is too full; its permit and its address move with it."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from devalloc.api import meta
from devalloc.machines.migrations import begin_migration
from devalloc.scaling.resources import LABEL_MIGRATION
from devalloc.store import Object
from devalloc.store.sqlite import SQLiteStore
from devalloc_machines.qemu.process import process
from devalloc_machines.qemu.spec import machine_id
from tests.machine.test_migration import BLOCKS, DIRTIER, WRITER
from tests.support import waiting
from tests.support.guest import Guest, moved_guest
from tests.support.node_fleet import Fleet
from tests.support.private_network import NETWORK, PREFIX, add_bridge, node_network, private_network
from tests.support.qemu import MICRO_APPEND
from tests.support.store_file import statuses
from tests.support.tap_guest import host_pings

KEY = "default/moving"
SIZE = {"cpus": "2", "memory": "512Mi"}
"""Of the machine that is scaled: its maximum."""
GUEST, NODE_A, NODE_B = "192.0.2.2", "192.0.2.11", "192.0.2.12"


def manifest(fleet: Fleet) -> str:
    append = f"{MICRO_APPEND} shell=ttyS0"
    start = {"kernel": str(fleet.image.kernel), "initrd": str(fleet.image.initrd), "append": append}
    disks = [{"path": str(fleet.disks / "drained.raw"), "format": "raw"}]
    spec = {
        "cpu": {"min": 1, "max": 2},
        "memory": {"min": "256Mi", "max": "512Mi"},
        "start": {**start, "disks": disks},
        "nics": [{}],
        "guestReports": True,
    }
    metadata = {"name": "moving", "namespace": "default"}
    return yaml.safe_dump({"apiVersion": meta.DEVALLOC, "kind": "VirtualMachine", "metadata": metadata, "spec": spec})


def scaled(fleet: Fleet) -> str:
    """That machine on a TAP interface, and scaled: it starts with more than its minimum."""
    machine = yaml.safe_load(manifest(fleet))
    machine["metadata"]["labels"] = {LABEL_MIGRATION: "true"}
    spec = machine["spec"]
    spec["cpu"]["use"], spec["memory"]["use"] = int(SIZE["cpus"]), SIZE["memory"]
    spec["nics"], spec["scaling"] = [{"backend": "tap", "interface": "tap0"}], {"address": GUEST}
    return yaml.safe_dump(machine)


def neighbour(fleet: Fleet) -> str:
    """A machine that stays on node a."""
    machine = yaml.safe_load(fleet.manifest())
    machine["metadata"]["name"] = "neighbour"
    machine["spec"] |= {"nodeName": "a", "cpu": {"min": 3, "max": 3}}
    del machine["spec"]["start"]["disks"]
    return yaml.safe_dump(machine)


def read(fleet: Fleet, kind: str, name: str) -> Object:
    with closing(SQLiteStore(fleet.folder / "store.db")) as store:
        return store.get(kind, "default", name)


def guest_on(fleet: Fleet, node: str, *, is_new: bool = False) -> Guest:
    """The shell of the machine. What is typed as it moves may be lost, as with a cable that is changed."""
    socket = fleet.folder / node / "run" / machine_id(KEY) / "console"
    if is_new:
        return Guest(socket)
    return moved_guest(socket)


def status(fleet: Fleet) -> dict[str, Any]:
    return dict(read(fleet, "VirtualMachine", "moving").get("status") or {})


def ready(fleet: Fleet) -> dict[str, Any]:
    return condition(fleet, "Ready")


def condition(fleet: Fleet, kind: str) -> dict[str, Any]:
    return next((one for one in status(fleet).get("conditions", ()) if one["type"] == kind), {})


def permitted(status: dict[str, Any]) -> dict[str, Any]:
    """The amounts of its permit; empty without one."""
    return {name: amount for name, amount in status.get("permitted", {}).items() if name in SIZE}


@contextmanager
def watched(fleet: Fleet) -> Iterator[list[dict[str, Any]]]:
    """The statuses of the machine that are written meanwhile."""
    written: list[dict[str, Any]] = []
    stop = threading.Event()

    def watch() -> None:
        with closing(SQLiteStore(fleet.folder / "store.db")) as store:
            for event in store.watch("VirtualMachine", stop=stop):
                if event.object["metadata"]["name"] == "moving":
                    written.append(event.object["status"])

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield written
    finally:
        stop.set()
        thread.join()


def test_a_loaded_machine_moves_between_two_plugins_and_loses_nothing(fleet: Fleet) -> None:
    options = ("--migration-address", "127.0.0.1")
    for node in ("a", "b"):
        fleet.start_node(node, *options)
    fleet.start_controller()
    fleet.command("apply", "-f", "-", stdin=manifest(fleet))
    waiting.until(lambda: status(fleet).get("phase") == "Running", "it runs", context=fleet.log)
    before = status(fleet)
    source = before["nodeName"]
    target = "b" if source == "a" else "a"
    guest = guest_on(fleet, source, is_new=True)
    guest.check(f"({WRITER}) >/dev/null 2>&1 </dev/null & ({DIRTIER}) >/dev/null 2>&1 </dev/null &")
    guest.until("[ -e /tmp/written ]")
    assert ready(fleet)["reason"] == "GuestNotReported"
    guest.check('stty -F /dev/ttyS1 raw -echo; echo \'{"status": "ready", "message": "up"}\' > /dev/ttyS1')
    waiting.until(lambda: ready(fleet)["status"] == "True", "it is ready", context=fleet.log)
    before = {**status(fleet), "ready": ready(fleet)}

    requested = fleet.command("migrate", "vm/moving", "--to", target, "--no-wait")
    assert requested.returncode == 0, requested.stdout + requested.stderr
    waiting.until(
        lambda: migration(fleet).get("phase") not in (None, "Pending", "Scheduled"), "it begins", context=fleet.log
    )
    fleet.kill(target)  # and comes back with nothing but its journal
    fleet.start_node(target, *options)
    waiting.until(lambda: migration(fleet).get("phase") in ("Succeeded", "Failed"), "it ends", context=fleet.log)
    waiting.until(lambda: status(fleet).get("pid") not in (None, before["pid"]), "it is seen there", context=fleet.log)
    moved, after = migration(fleet), status(fleet)
    assert (moved["phase"], after["nodeName"], after["machineID"]) == ("Succeeded", target, before["machineID"]), moved
    waiting.until(lambda: process(before["pid"]) is None, "its source has ended it", context=fleet.log)
    assert fleet.qemus(source) == []
    assert after["pid"] in fleet.qemus(target)
    assert "migrationState" not in after
    assert [entry["devicePoolName"] for entry in after["allocations"]] == [f"{target}-host"] * len(
        before["allocations"]
    )
    assert ready(fleet) == before["ready"], "the guest does not say it again"
    guest.close()
    guest = guest_on(fleet, target)
    guest.check('echo \'{"status": "not-ready", "message": "full"}\' > /dev/ttyS1')
    waiting.until(lambda: ready(fleet)["reason"] == "GuestUnready", "the target reads its port", context=fleet.log)
    there = int(guest.check("cat /tmp/written"))
    guest.until(f"[ $(cat /tmp/written) -gt {there + 3} ]")
    guest.check("touch /tmp/enough")
    guest.until("[ -e /tmp/stopped ]")
    last = int(guest.check("cat /tmp/written"))
    guest.close()
    on_disk = (fleet.disks / "drained.raw").read_bytes()
    blocks = {number % BLOCKS: number for number in range(max(1, last - BLOCKS + 1), last + 1)}
    assert {place: int(on_disk[512 * place : 512 * (place + 1)]) for place in blocks} == blocks, "no write is lost"
    fleet.command("delete", "vm/moving")
    waiting.until(lambda: not fleet.qemus(target), "it is gone", context=fleet.log)


def test_a_restart_that_is_asked_for_before_the_target_has_received_the_machine_is_done_there(fleet: Fleet) -> None:
    """The source leaves the machine alone from its offer on; the target reads its object after that."""
    options = ("--migration-address", "127.0.0.1")
    for node in ("a", "b"):
        fleet.start_node(node, *options)
    fleet.start_controller()
    fleet.command("apply", "-f", "-", stdin=manifest(fleet))
    waiting.until(lambda: status(fleet).get("phase") == "Running", "it runs", context=fleet.log)
    before = status(fleet)
    target = "b" if before["nodeName"] == "a" else "a"
    fleet.kill(target)
    with closing(SQLiteStore(fleet.folder / "store.db")) as store:
        begin_migration(store, ("default", "moving"), target)
        waiting.until(lambda: migration(fleet).get("phase") == "PreparingTarget", "it is offered", context=fleet.log)
        machine = store.get("VirtualMachine", "default", "moving")
        notes = {**machine["metadata"].get("annotations", {}), meta.RESTART: "now"}
        store.replace({**machine, "metadata": {**machine["metadata"], "annotations": notes}})
    fleet.start_node(target, *options)
    waiting.until(lambda: migration(fleet).get("phase") == "Succeeded", "it moves", context=fleet.log)
    waiting.until(
        lambda: status(fleet).get("phase") == "Running" and status(fleet)["machineID"] != before["machineID"],
        "it is started again",
        context=fleet.log,
    )
    assert status(fleet)["nodeName"] == target
    fleet.command("delete", "vm/moving")
    waiting.until(lambda: not fleet.qemus(target), "it is gone", context=fleet.log)


@pytest.mark.skipif(os.geteuid() != 0, reason="networks of their own are made by root only")
def test_a_scaled_machine_leaves_a_node_that_is_too_full_with_its_permit_and_its_address(fleet: Fleet) -> None:
    """Each node has a network of its own, with a permit server and a TAP interface; a switch is between them."""
    cpus = 100 * len(os.sched_getaffinity(0))
    watermark = ("--permits-watermark", f"{4.5 / cpus},0.9")  # room for this machine, and not for a neighbour beside it
    options = ("--scaling", "--guest-network", NETWORK, "--tap", "tap0", "--compute-unit", "1,256Mi")
    with private_network():
        add_bridge("switch")
        with node_network("to-a", "switch", "tap0", NODE_A):
            fleet.start_node("a", *options, *watermark, "--migration-address", NODE_A)
        fleet.start_controller()
        fleet.command("apply", "-f", "-", stdin=scaled(fleet))
        waiting.until(lambda: status(fleet).get("observed") == SIZE, "it has its memory", context=fleet.log)
        waiting.until(lambda: permitted(status(fleet)) == SIZE, "it has a permit", context=fleet.log)
        with guest_on(fleet, "a", is_new=True) as guest:
            guest.check(f"ip addr add {GUEST}/{PREFIX} dev eth0 && ip link set eth0 up")
        assert host_pings(GUEST)
        with node_network("to-b", "switch", "tap0", NODE_B):
            fleet.start_node("b", *options, "--migration-address", NODE_B)
        store = fleet.folder / "store.db"
        waiting.until(lambda: "b-host" in statuses(store, "DevicePool"), "b can receive it", context=fleet.log)

        assert migration(fleet) == {}
        with watched(fleet) as written:
            fleet.command("apply", "-f", "-", stdin=neighbour(fleet))
            waiting.until(
                lambda: migration(fleet).get("phase") in ("Succeeded", "Failed"), "it ends", context=fleet.log
            )
            assert migration(fleet)["phase"] == "Succeeded", migration(fleet)
            assert host_pings(GUEST), "it answers at its address"
            waiting.until(
                lambda: condition(fleet, "Migrating").get("reason") == "Migrated", "it says so", context=fleet.log
            )
        assert "default/moving is about to be migrated" in fleet.log(), "the server answered the agent"
        assert [one for one in written if permitted(one) != SIZE] == [], "it had its permit all the time"
        of_agent = waiting.until(
            lambda: fleet.shown("b", "agent")["default/moving"]["report"]["permitted"], "b has it", context=fleet.log
        )
        assert of_agent == {"cpus": 2, "memory": SIZE["memory"]}
        ledgers = {node: fleet.shown(node, "permits")["nodes"][node] for node in "ab"}
        assert {node: [*ledger["machines"]] for node, ledger in ledgers.items()} == {
            "a": ["default/neighbour"],
            "b": ["default/moving"],
        }
        assert not ledgers["a"]["tooFull"]
        assert (status(fleet)["nodeName"], status(fleet)["observed"]) == ("b", SIZE)


def migration(fleet: Fleet) -> dict[str, Any]:
    """The status of the only migration."""
    path = Path(fleet.folder / "store.db")
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as connection:
        rows = connection.execute("SELECT name FROM objects WHERE kind = 'VirtualMachineMigration'").fetchall()
    return dict(read(fleet, "VirtualMachineMigration", rows[0][0]).get("status") or {}) if rows else {}
