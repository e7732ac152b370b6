"""Run in a test host with ``mtty``: two plugins and one store; a machine with a mediated device moves between them.

The script is the controller: it allocates, books, and gives the claim its new device. What it has seen it prints as one
line of JSON.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from devalloc.api import meta
from devalloc.api.views import MachineView, MigrationView
from devalloc.programs.node_parts import store_source
from devalloc.store import StoreError
from devalloc.store.sqlite import SQLiteStore
from devalloc.store.watcher import Listed
from devalloc_machines.part import MachineSettings, machines_of
from devalloc_machines.qemu.settings import AllowedFolder, MachineConfig, MigrationSettings
from devalloc_machines.qemu.spec import machine_id
from devalloc_machines.vms import LoopExecution, LoopSettings, MigrationLoop, VirtualMachineLoop
from devalloc_node.binding.binding import BindingConfig
from devalloc_node.deadline import Deadline
from devalloc_node.errors import NodeError
from devalloc_node.host.files import Files
from devalloc_node.host.linux import LinuxHost
from devalloc_node.node import open_node
from devalloc_node.operations.change_feed import ChangeNotifier

BASE, IMAGE, KEY = Path("/run/moving"), Path("/run/images/tiny"), "default/m"
PORT = 0xC000
"""Where firmware puts the first serial port of the device: the first free address for devices."""
SCRATCH = PORT + 7
"""Its scratch register, which keeps what is written into it, once firmware has opened the device to the guest."""
DATA = b"moved"


class PluginOfNode:
    """The loops of one plugin, driven by hand."""

    def __init__(self, name: str, store: SQLiteStore, stack: ExitStack) -> None:
        self.name = name
        self.machines = MachineConfig(
            state=BASE / name / "machines",
            run=BASE / name / "run",
            folders=(AllowedFolder(IMAGE.parent, "any"),),
            accel="tcg",
            start_seconds=120.0,
            command_seconds=120.0,
        )
        for folder in (self.machines.state, self.machines.run):
            folder.mkdir(parents=True)
        settings = MachineSettings(
            name,
            BindingConfig(name, frozenset(["mdev"])),
            state=BASE / name / "state",
            cdi=BASE / name / "cdi",
            machines=self.machines,
        )
        host = LinuxHost(Files(settings.written))
        self.node = stack.enter_context(open_node(settings, host, store_source(store, name)))
        part = machines_of(self.node)
        stack.callback(part.machines.close)
        moves = MigrationSettings("127.0.0.1", timeout=600)
        self.migrations = MigrationLoop(store, part.operations, part.machines, ChangeNotifier(), moves)
        self.objects = VirtualMachineLoop(
            store,
            machines_of(self.node).operations,
            ChangeNotifier(),
            settings=LoopSettings(resync=0),
            execution=LoopExecution(spawn=lambda work: work()),
        )

    def turn(self) -> None:
        with suppress(NodeError, StoreError):
            for key in self.migrations.concerned():
                with suppress(NodeError, StoreError):
                    self.migrations.step(key)
        with suppress(NodeError, StoreError):
            self.objects.worker.tell(Listed())
            self.objects.worker.round()

    def monitor(self, command: str) -> str:
        """What QEMU's monitor for people answers."""
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(60)
            line.connect(str(self.machines.folder(machine_id(KEY)) / "qmp"))
            file = line.makefile("rw")
            file.readline()
            for execute in ({"execute": "qmp_capabilities"}, _for_people(command)):
                file.write(json.dumps(execute))
                file.flush()
                while "return" not in (answer := json.loads(file.readline())):
                    assert "error" not in answer, answer
        return str(answer["return"])

    def prepared(self) -> list[str]:
        return [held.record.ref.name for held in machines_of(self.node).operations.claims.held()]


def _for_people(command: str) -> dict[str, Any]:
    return {"execute": "human-monitor-command", "arguments": {"command-line": command}}


def _keeps(plugin: PluginOfNode, byte: int) -> bool:
    """Whether the serial port's scratch register reads as what was written into it."""
    plugin.monitor(f"o /b {SCRATCH:#x} {byte:#x}")
    return int(plugin.monitor(f"i /b {SCRATCH:#x}").split()[-1], 16) == byte


def until(what: str, true: Callable[[], object], *plugins: PluginOfNode) -> None:
    due = time.monotonic() + 240
    while not true():
        assert time.monotonic() < due, what
        for plugin in plugins:
            plugin.turn()
        time.sleep(0.05)


def main() -> None:
    store = SQLiteStore(BASE / "store.db")
    with ExitStack() as stack:
        first, second = (PluginOfNode(name, store, stack) for name in ("a", "b"))
        print(json.dumps(move(store, first, second)))


def move(store: SQLiteStore, first: PluginOfNode, second: PluginOfNode) -> dict[str, Any]:
    def machine() -> MachineView:
        return MachineView(store.get("VirtualMachine", "default", "m"))

    def claim() -> dict[str, Any]:
        return dict(store.get("DeviceClaim", "default", "serial"))

    def devices_on(name: str) -> list[dict[str, str]]:
        return [{"devicePoolName": f"{name}-mdev-mtty", "deviceName": "mtty-mtty-2"}]

    made = store.create(
        {
            "apiVersion": meta.DEVMGMT,
            "kind": "DeviceClaim",
            "metadata": {"namespace": "default", "name": "serial", "annotations": {meta.ALLOCATED_NODE: "a"}},
            "spec": {"claims": [{"deviceClass": "serial"}]},
        }
    )
    uid = made["metadata"]["uid"]
    store.replace_status({**made, "status": {"allocations": devices_on("a")}})
    spec = {
        "cpu": {"min": 1, "max": 1},
        "memory": {"min": "64Mi", "max": "64Mi"},
        "start": {"kernel": str(IMAGE)},
        "claims": ["serial"],
    }
    vm = {"apiVersion": meta.DEVALLOC, "kind": "VirtualMachine", "spec": spec}
    vm = store.create({**vm, "metadata": {"namespace": "default", "name": "m"}})
    store.replace_status({**vm, "status": {"nodeName": "a"}})
    until("it runs", lambda: machine().status.get("phase") == "Running", first)
    until("it is said whether it can move", lambda: machine().condition("LiveMigratable"), first)
    seen: dict[str, Any] = {"condition": dict(machine().condition("LiveMigratable"))}
    seen["run"], seen["address"] = machine().status["machineID"], machine().status["devices"][0].get("address")
    # A machine runs before its firmware has given the device its ports: what is written until then is lost.
    until("firmware has opened the serial port", lambda: _keeps(first, 0x5A) and _keeps(first, 0xA5), first)
    for byte in DATA:
        first.monitor(f"o /b {PORT:#x} {byte:#x}")

    moving = store.create(
        {
            "apiVersion": meta.DEVALLOC,
            "kind": "VirtualMachineMigration",
            "metadata": {"namespace": "default", "name": "move"},
            "spec": {"vmName": "m"},
        }
    )
    moved = [{"name": "serial", "uid": uid, "allocations": devices_on("b")}]
    state = {"migrationName": "move", "migrationUID": moving["metadata"]["uid"], "sourceNode": "a", "targetNode": "b"}
    now = store.get("VirtualMachine", "default", "m")
    store.replace_status({**now, "status": {**now["status"], "migrationState": {**state, "claims": moved}}})
    store.replace_status({**moving, "status": {"phase": "Scheduled", "sourceNode": "a", "targetNode": "b"}})

    def migration() -> MigrationView:
        return MigrationView(store.get("VirtualMachineMigration", "default", "move"))

    until("the migration is over", lambda: migration().is_over, first, second)
    seen["migration"] = {name: migration().status.get(name) for name in ("phase", "reason", "message")}
    seen["offered"] = migration().status.get("offer", {}).get("devices")
    if migration().phase != "Succeeded":
        until("nothing waits on the target", lambda: not second.prepared(), first, second)
        return seen
    until("its source has let go", lambda: not first.prepared(), first, second)
    seen["moved"] = machine().status.get("movedClaims") == moved
    seen["mark"] = claim()["metadata"].get("annotations", {}).get(meta.PREPARED_ON)

    given = claim()  # as the controller does then
    given["metadata"]["annotations"] = {**given["metadata"].get("annotations", {}), meta.ALLOCATED_NODE: "b"}
    given = store.replace(given)
    store.replace_status({**given, "status": {**given["status"], "allocations": devices_on("b")}})
    until("its target has marked it", lambda: claim()["metadata"]["annotations"].get(meta.PREPARED_ON), second)
    now = store.get("VirtualMachine", "default", "m")
    rest = {name: part for name, part in now["status"].items() if name != "movedClaims"}
    store.replace_status({**now, "status": rest})
    for _ in range(3):
        second.turn()
    status = machine().status
    seen["read"] = [second.monitor(f"i /b {PORT:#x}").split()[-1] for _ in DATA]
    seen["after"] = {
        "run": status["machineID"],
        "node": status["nodeName"],
        "phase": status["phase"],
        "reason": status.get("reason", ""),
        "address": status["devices"][0].get("address"),
        "mark": claim()["metadata"]["annotations"][meta.PREPARED_ON],
        "prepared": [first.prepared(), second.prepared()],
    }
    uid_of_machine = store.get("VirtualMachine", "default", "m")["metadata"]["uid"]
    machines_of(second.node).operations.delete(KEY, 0.0, Deadline.after(120.0), owner=uid_of_machine, force=True)
    seen["left"] = second.prepared()
    return seen


if __name__ == "__main__":
    main()
