"""Take away what fenced nodes hold (T34).

In a running controller, only this code removes a node's mark from objects without that node. It asks the same of them
as a drain (``devalloc.io/evict``, ``devalloc.io/release``); what follows is the same code: a round releases the claims,
frees the machine in one commit with them, and places it anew where its disks are.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable

from devalloc.api import meta
from devalloc.api.cordon import pool_node
from devalloc.api.fencing import fenced_from, fenced_from_note, fenced_nodes, without_holder
from devalloc.api.machine_location import NODE_CONDITIONS
from devalloc.api.moved_claims import MovedDevices, moved_devices
from devalloc.api.owner_names import MACHINE
from devalloc.api.reasons import Reason
from devalloc.api.views import ClaimKey, ClaimView, MachineView, ObjectView
from devalloc.controller.reconcile.write_backoff import WriteBackoff, unit_of
from devalloc.store import OBJECT_FAILURES, REFUSALS, Conflict, Key, NotFound, Object, Store, StoreError
from devalloc.store.metadata_rules import with_annotations
from devalloc.store.nodes import node_object, pools_of

log = logging.getLogger(__name__)

_ENDED = ("Stopped", "Failed")
_PRESERVED = ("conditions", "nodeName", "numaNode", "allocations", "runnerPod")
"""Parts of a machine's status that stay when it is taken away."""
_OF_TARGET = ("allocations", "numaNode", "movedClaims")
"""Parts of it that are about the node to which it was handed over."""


def is_fenced(store: Store, node: str) -> bool:
    """Whether the node is fenced at this moment. Raises StoreError."""
    return node in fenced_nodes([*node_object(store, node), *pools_of(store, node)])


def held_objects(store: Store, node: str) -> list[Object]:
    """The machines that are on a node or move to it, and the claims that have devices of it or that it holds, by kind,
    namespace and name. Raises StoreError."""
    return [one for one in store.list((MACHINE, "DeviceClaim")).objects if _belongs(one, node)]


def take_away(
    store: Store, objects: Collection[Object], node: str, why: str, may_write: Callable[[], bool] = lambda: True
) -> list[Key]:
    """Take all machines and claims away from a node that is off; those that were changed. ``objects``: all of them, as
    they were read; what changed since then is left to the next call. ``may_write``: called before each write.

    Raises StoreError; if the store refuses some of the writes, after all others.
    """
    writer = _Writer(store, may_write)
    _take_away(writer, [one for one in objects if _belongs(one, node)], _moved(objects), node, why)
    for error in writer.failed.values():
        raise error
    return writer.changed


def _take_away(writer: _Writer, objects: Iterable[Object], moved: Iterable[MovedDevices], node: str, why: str) -> None:
    """A machine goes first, then its claims: so both are placed together. ``objects``: those of the node. ``moved``:
    what waits for claims of machines that have moved; they get this instead of what they have. Raises StoreError."""
    held = sorted(objects, key=lambda one: ObjectView(one).key)
    machines = [one for one in held if one["kind"] == MACHINE]
    staying: set[ClaimKey] = set()
    for machine in machines:
        if not writer.write(machine, _taken_machine(machine, node, why)):
            staying.update(MachineView(machine).claims)
    moving = {claim for one in machines if _moves(one, node) for claim in MachineView(one).claims}
    moving |= {devices.claim for devices in moved if devices.node != node}
    for claim in (one for one in held if one["kind"] != MACHINE):
        key = ClaimView(claim).key
        if key not in staying:
            writer.write(claim, _taken_claim(claim, node, with_machine=key in moving))


def _moved(objects: Iterable[Object]) -> list[MovedDevices]:
    """What waits for claims of machines that have moved."""
    return [devices for one in objects if one.get("kind") == MACHINE for devices in moved_devices(one)]


def take_from_fenced(
    store: Store, objects: Collection[Object], backoff: WriteBackoff, may_write: Callable[[], bool] = lambda: True
) -> list[Key]:
    """Take everything away from the nodes that are fenced according to ``objects``, and still are in the store. Never
    raises for one node what another one has nothing to do with: it logs errors. ``backoff``: for objects whose writes
    fail."""
    changed: list[Key] = []
    nodes = fenced_nodes(objects)
    held = _held_by_node(objects, nodes)
    backoff.look({Key.of(one): one for some in held.values() for one in some}.values())
    moved = _moved(objects) if held else []
    for node, some in sorted(held.items()):
        writer = _Writer(store, may_write, backoff)
        try:
            if is_fenced(store, node):
                _take_away(writer, some, moved, node, nodes[node])
        except StoreError as error:
            log.error("cannot take machines and claims away from fenced node %s: %s", node, error)
        for key in writer.changed:
            log.warning("took %s away from node %s, which is fenced (%s)", key, node, nodes[node])
        changed += writer.changed
    return changed


def _held_by_node(objects: Iterable[Object], nodes: Collection[str]) -> dict[str, list[Object]]:
    """The objects to take away from each of these nodes; without the nodes that hold nothing."""
    held: dict[str, list[Object]] = defaultdict(list)
    for one in objects if nodes else ():
        for node in _named_nodes(one):
            if node in nodes and _belongs(one, node):
                held[node].append(one)
    return dict(held)


class _Writer:
    """Writes objects of one node, each by itself."""

    def __init__(self, store: Store, may_write: Callable[[], bool], backoff: WriteBackoff | None = None) -> None:
        self._store, self._may_write, self._backoff = store, may_write, backoff
        self.changed: list[Key] = []
        """Objects that are now as wanted."""
        self.failed: dict[Key, StoreError] = {}
        """Objects of which the store refused a write."""

    def write(self, before: Object, wanted: Object) -> bool:
        """Whether the object is as wanted. Raises StoreError if the store does not answer."""
        if wanted == before:
            return True
        if self._backoff is not None and self._backoff.is_backed_off(unit_of(before)):
            return False
        try:
            return self._write(before, wanted)
        except OBJECT_FAILURES as error:
            self._note(before, error)
            if not isinstance(error, REFUSALS):  # no answer: the next ones may take as long
                raise
            return False

    def _note(self, before: Object, error: StoreError) -> None:
        """What the store refused of an object: the first refusal counts."""
        if Key.of(before) in self.failed:
            return
        self.failed[Key.of(before)] = error
        if self._backoff is not None:
            self._backoff.note(unit_of(before), str(error))

    def _write(self, before: Object, wanted: Object) -> bool:
        """Write the status first: as soon as the mark is gone, another node may take the object. If the store refuses
        the second write, the first is taken back: the node still has it. Whether the object is as wanted."""
        current = before
        try:
            if wanted.get("status") != before.get("status"):
                if not self._may_write():
                    return False
                current = self._store.replace_status({**before, "status": wanted["status"]})
                version = current["metadata"]["resourceVersion"]
                wanted = {**wanted, "metadata": {**wanted["metadata"], "resourceVersion": version}}
            if not self._may_write():
                return False
            try:
                self._store.replace(wanted)
            except REFUSALS as error:
                self._note(before, error)  # now: to take the status back may fail, too
                if current is not before and self._may_write():
                    self._store.replace_status({**current, "status": before.get("status", {})})
                return False
            self.changed.append(Key.of(before))
        except NotFound:
            return True
        except Conflict:
            return False  # the next call reads it again
        return True


def _taken_machine(machine: Object, node: str, why: str) -> Object:
    """A machine after it was taken away: no node holds it, and the controller frees it and places it anew."""
    view = MachineView(machine)
    if not view.is_on(node):
        return _taken_back_machine(machine, node)
    notes: dict[str, str | None] = {}
    if _moves(machine, node):
        notes[meta.EVICT] = node
    if view.holder != node:
        return with_annotations(machine, {k: v for k, v in notes.items() if view.annotation(k) != v})
    if view.spec.get("adopt") is None:
        notes[meta.LAST_NODE] = node  # it may have begun there: its disks are where they are
    notes[meta.FENCED_FROM] = fenced_from_note(fenced_from(machine) | {node})
    taken = without_holder(with_annotations(machine, notes))
    return {**taken, "status": _status_taken(view, node, why)}


def _taken_back_machine(machine: Object, node: str) -> Object:
    """A machine that was on its way to a node by a migration: it is that of its source again, which has it still. What
    the source reserved is gone if it was handed over; it counts as any machine that runs does then."""
    view = MachineView(machine)
    status = {name: value for name, value in view.status.items() if name != "migrationState"}
    if status.get("nodeName") == node:
        status = {name: value for name, value in status.items() if name not in _OF_TARGET}
        status["nodeName"] = view.holder
    return {**machine, "status": status}


def _status_taken(view: MachineView, node: str, why: str) -> Object:
    """Without what only its node knew: nothing of it runs any more."""
    stays = _PRESERVED if view.status.get("nodeName") == node else (*_PRESERVED, "movedClaims")
    status = {name: value for name, value in view.status.items() if name in stays}
    if isinstance(status.get("conditions"), list):
        of_run = [view.condition(name) for name in NODE_CONDITIONS]
        status["conditions"] = [one for one in status["conditions"] if one not in of_run]
    if view.status.get("phase") in _ENDED:
        return status | {name: view.status[name] for name in ("phase", "reason", "message") if name in view.status}
    message = f"node {node}, on which it was, is fenced ({why}); it waits for a node that has its disks"
    return status | {"phase": "Pending", "reason": Reason.NODE_FENCED.value, "message": message[:4096]}


def _taken_claim(claim: Object, node: str, *, with_machine: bool) -> Object:
    """A claim after it was taken away. One of a machine is released together with it; others are released at once."""
    view = ClaimView(claim)
    notes: dict[str, str | None] = {}
    is_observer = view.has_admin_access and not view.is_held  # it would get the same again
    if view.entries and not (view.wants_release or with_machine or view.is_deleting or is_observer):
        notes[meta.RELEASE] = "forced"
    if view.holder != node or not view.is_held:
        return with_annotations(claim, notes) if notes else claim
    notes[meta.FENCED_FROM] = fenced_from_note(fenced_from(claim) | {node})
    return without_holder(with_annotations(claim, notes))


def holding_nodes(obj: Object) -> frozenset[str]:
    """The nodes that fencing would take a machine or claim away from; empty for objects of other kinds."""
    return frozenset(name for name in _named_nodes(obj) if _belongs(obj, name))


def _named_nodes(obj: Object) -> set[str]:
    """The nodes that a machine or claim names as those that may have it."""
    if obj.get("kind") not in (MACHINE, "DeviceClaim"):
        return set()
    view = MachineView(obj)
    names = (view.holder, view.node, view.migration_target, view.status.get("nodeName"), ClaimView(obj).node)
    return {name for name in names if isinstance(name, str) and name}


def existing_nodes(objects: Iterable[Object]) -> set[str]:
    """The nodes that exist for devalloc: those with pools, machines or claims among the objects."""
    nodes: set[str] = set()
    for obj in objects:
        pool = pool_node(obj) if obj.get("kind") == "DevicePool" else None
        nodes |= holding_nodes(obj) if pool is None else {pool}
    return nodes


def _belongs(obj: Object, node: str) -> bool:
    """Whether it is a claim that has devices of the node, or that the node holds; or a machine that is on the node or
    moves to it."""
    if obj.get("kind") == MACHINE and obj.get("apiVersion") == meta.DEVALLOC:
        return MachineView(obj).is_on(node) or MachineView(obj).arrives_on(node)
    if obj.get("kind") != "DeviceClaim" or obj.get("apiVersion") != meta.DEVMGMT:
        return False
    return ClaimView(obj).is_on(node)


def _moves(machine: Object, node: str) -> bool:
    """Whether the controller frees the machine together with its claims, as one that was evicted."""
    view = MachineView(machine)
    is_here = view.spec.get("nodeName") in (None, "", node) and view.status.get("nodeName") == node
    return is_here and view.spec.get("adopt") is None and not view.is_deleting
