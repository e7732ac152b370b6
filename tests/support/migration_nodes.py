"""Nodes that take, move and let go of machines as the objects say it, without machines: each side writes what a plugin
writes. With a controller beside them, or for rounds of one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from devalloc.api import meta
from devalloc.api.machine_location import LIVE_MIGRATABLE
from devalloc.api.views import ClaimView, MachineView, MigrationView
from devalloc.controller.cordon import is_node_cordoned
from devalloc.controller.reconcile.loop import AllocatorSettings
from devalloc.store import Conflict, NotFound, Store
from devalloc.store.sqlite import SQLiteStore
from devalloc_solver import solve_manifests
from tests.support.machine_allocator import machine_allocator
from tests.support.waiting import in_threads

Object = dict[str, Any]
KIND = "VirtualMachineMigration"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"
OFFER = {
    "run": "6d3f0a51-0f7c-4c61-b9a2-7b6b4b7f8a10",
    "accel": "tcg",
    "platform": {"machineType": "pc-q35-7.2", "rootPorts": [{}, {"prefetchable": 1 << 30}]},
    "amounts": {"cpuMilli": 1000, "vcpus": 1, "memoryBytes": 1 << 30},
    "certificate": CERTIFICATE,
}


def rounds(store: Store, count: int = 3) -> None:
    """Rounds of a controller."""
    allocator = machine_allocator(store, solve=solve_manifests)
    for _ in range(count):
        allocator.round()


@contextmanager
def controller_at_work(path: Path, nodes: Callable[[Store], None] | None = None) -> Iterator[None]:
    """A controller of an embedded store, and what the plugins of nodes do beside it, again and again."""

    def act(stop: threading.Event) -> None:
        with closing(SQLiteStore(path)) as store:
            while nodes is not None and not stop.wait(0.05):
                nodes(store)

    def allocate(stop: threading.Event) -> None:
        with closing(SQLiteStore(path)) as store:
            machine_allocator(store, solve=solve_manifests, settings=AllocatorSettings(batch=0.0)).run(stop)

    with in_threads(act, allocate):
        yield


def is_cordoned(store: Store, node: str = "node-a") -> bool:
    return is_node_cordoned(store, node, store.list("DevicePool").objects)


def take(store: Store, name: str, node: str, **fields: Any) -> None:
    """A node starts a machine, and says that it runs. ``fields``: what else it says in the status."""
    stored = store.get("VirtualMachine", "default", name)
    stored = store.replace(_held_by(stored, node))
    store.replace_status({**stored, "status": {**stored.get("status", {}), "phase": "Running", **fields}})


def let_go(store: Store, name: str) -> None:
    """A machine has left its node."""
    stored = store.get("VirtualMachine", "default", name)
    left = {key: value for key, value in stored["status"].items() if key not in ("allocations", "numaNode", "phase")}
    stored = store.replace_status({**stored, "status": {**left, "phase": "Pending"}})
    notes = {key: text for key, text in stored["metadata"]["annotations"].items() if key != meta.PREPARED_ON}
    store.replace({**stored, "metadata": {**stored["metadata"], "finalizers": [], "annotations": notes}})


def migration(
    name: str = "move", machine: str = "web", target: str | None = None, namespace: str = "default"
) -> Object:
    """A migration as a user writes it."""
    spec = {"vmName": machine} | ({} if target is None else {"targetNode": target})
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": meta.DEVALLOC, "kind": KIND, "metadata": metadata, "spec": spec}


def migrate(
    store: Store, name: str = "move", machine: str = "web", target: str | None = None, namespace: str = "default"
) -> None:
    """A user asks for a migration, and the controller decides."""
    store.create(migration(name, machine, target, namespace))
    rounds(store)


def migration_status(store: Store, name: str = "move") -> Object:
    """The status of a migration; empty if it has none."""
    content: Object = store.get(KIND, "default", name).get("status", {})
    return content


class ScriptedNodes:
    """The plugins of all nodes, for one machine and its migration. Each method is one write, or one step of a node."""

    def __init__(self, store: Store, machine: str = "web", migration: str = "move") -> None:
        self._store = store
        self._machine = machine
        self._migration = migration

    def take(self, node: str, **fields: Any) -> None:
        """A node starts the machine, and says that it runs."""
        take(self._store, self._machine, node, **fields)

    def offer(self) -> None:
        """The source describes the machine."""
        self._say(phase="PreparingTarget", offer=OFFER)

    def receive(self) -> None:
        """The target waits for it."""
        self._say(phase="TargetReady", destination={"address": "10.0.0.2", "port": 49152, "certificate": CERTIFICATE})

    def send(self, remaining: int = 1 << 20) -> None:
        """The source sends it, and says how much is left."""
        self._say(phase="Running", progress={"transferred": 1 << 30, "remaining": remaining, "total": 1 << 30})

    def hand_over(self) -> None:
        """The one write by which the machine is the target's. Raises Conflict if its object changed meanwhile, and
        LookupError if the migration was withdrawn before."""
        stored = self._store.get("VirtualMachine", "default", self._machine)
        moving = self._store.get(KIND, "default", self._migration)
        if not MigrationView(moving).is_booked_on(MachineView(stored)):
            raise LookupError("the reservation on the target is gone")
        self._store.replace_status(handed_over(stored))

    def follow(self) -> None:
        """The target takes the machine over after that write."""
        update(
            self._store,
            ("VirtualMachine", "default", self._machine),
            lambda now: _held_by(now, now["status"]["nodeName"]),
            self._store.replace,
        )
        self._say(phase="Succeeded", completionTime="2026-11-27T12:00:00Z")

    def fail(self, reason: str = "MigrationFailed", message: str = "the connection was cut") -> None:
        """The source goes on, and gives the migration up."""
        self._say(phase="Failed", reason=reason, message=message, completionTime="2026-11-27T12:00:00Z")

    def _say(self, phase: str, **fields: Any) -> None:
        update(
            self._store,
            (KIND, "default", self._migration),
            lambda now: {**now, "status": {**now["status"], "phase": phase, **fields}},
            self._store.replace_status,
        )


def update(
    store: Store,
    key: tuple[str, str, str],
    change: Callable[[Object], Object],
    write: Callable[[Object], Object],
    tries: int = 20,
) -> None:
    """Write what ``change`` makes of the object, again if the controller wrote to it meanwhile, as plugins do."""
    for left in reversed(range(tries)):
        try:
            write(change(store.get(*key)))
        except Conflict:
            if not left:
                raise
        else:
            return


def play(store: Store, until: str = "Succeeded", reason: str = "MigrationFailed") -> None:
    """One step of all nodes, for each migration that has a target. ``until``: the phase at which they do no more;
    ``Failed``: the source gives up instead of handing over."""
    for content in store.list(KIND).objects:
        view = MigrationView(content)
        if view.machine is None or view.is_over or view.phase == until:
            continue
        nodes = ScriptedNodes(store, view.machine[1], view.key[1])
        with suppress(Conflict, NotFound, LookupError):
            match view.phase:
                case "Scheduled":
                    nodes.offer()
                case "PreparingTarget":
                    nodes.receive()
                case "TargetReady":
                    nodes.send()
                case "Running" if until == "Failed":
                    nodes.fail(reason)
                case "Running":
                    nodes.send(0)
                    nodes.hand_over()
                    nodes.follow()


def settle(store: Store) -> None:
    """One step of all nodes after the handovers: a target takes its machine, and plugs in what waits there for the
    claims; then the node that it left gives up the devices and its mark, and the target marks what has got its own."""
    for vm in store.list("VirtualMachine").objects:
        view, node = MachineView(vm), vm.get("status", {}).get("nodeName")
        with suppress(Conflict, NotFound):
            if view.holder not in (None, node):
                store.replace(_held_by(vm, node))
                continue
            for name in view.claim_names if view.holder is not None else ():
                claim = ClaimView(store.get("DeviceClaim", "default", name))
                if claim.holder not in (None, node):
                    mark(store, name, None)
                elif claim.holder is None and claim.node == node:
                    mark(store, name, node)


def handed_over(machine: Object) -> Object:
    """The machine after the handover."""
    status = dict(machine["status"])
    booking = status.pop("migrationState")
    status |= {"nodeName": booking["targetNode"], "allocations": booking["allocations"]}
    status |= {"movedClaims": claims} if (claims := booking.get("claims")) else {}
    return {**machine, "status": status}


def movable(value: str = "True", message: str = "") -> list[Object]:
    """What a node says of whether QEMU can move a machine."""
    return [
        {"type": LIVE_MIGRATABLE, "status": value, "reason": "Movable" if value == "True" else "DeviceBlocks"}
        | ({"message": message} if message else {})
    ]


def mark(store: Store, claim: str, node: str | None) -> None:
    """A node marks a claim as prepared; None: the one that did removes its mark."""
    stored = store.get("DeviceClaim", "default", claim)
    store.replace(_held_by(stored, node))


def _held_by(obj: Object, node: str | None) -> Object:
    notes = {name: text for name, text in obj["metadata"].get("annotations", {}).items() if name != meta.PREPARED_ON}
    notes |= {} if node is None else {meta.PREPARED_ON: node}
    finalizers = [] if node is None else [meta.NODE_FINALIZER]
    return {**obj, "metadata": {**obj["metadata"], "finalizers": finalizers, "annotations": notes}}
