"""End what was taken away from this node, which was fenced, before the node publishes or prepares anything (T34).

The controller notes on an object that it took the object away from this node (``devalloc.io/fenced-from``). The note
stays until this node has ended the object's QEMU and unprepared its claims. The node kills QEMU and does not ask the
guest: another node may write to the same disks. While the fence statement stands, the node also ends machines whose
objects are gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from devalloc.api import meta
from devalloc.api.fencing import fenced_from, fenced_from_note
from devalloc.api.views import MachineView
from devalloc.store import OBJECT_FAILURES, Key, Object, Store, StoreError, Unavailable
from devalloc.store.metadata_rules import with_annotations
from devalloc_machines.service.operations import MachineOperations
from devalloc_machines.vms import objects
from devalloc_node.claims.store_grants import KIND as CLAIM
from devalloc_node.claims.store_grants import claim_ref
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Failed, NodeError, raise_first
from devalloc_node.model.grant import ClaimRef

log = logging.getLogger(__name__)

CALLER = "fencing"
WORK_SECONDS = 30.0


class NotConfirmed(Failed):
    """What was taken away has ended on this node, but the store refuses the write that confirms it."""


class _NoAnswer(Failed):
    """The store does not answer, so it is not asked for the next object either: each time takes half a minute."""


def settle(store: Store, operations: MachineOperations, statement: Callable[[], str | None]) -> None:
    """End all that was taken away from this node. ``statement``: who states that this node is off, as
    ``fence_statement`` of the store.

    Raises NodeError if the store or a QEMU does not answer: something that was taken away may still run, so call it
    again. Before it raises, it ends all others, unless it cannot read the fence statement or the store ceases to
    answer. If the store refuses a confirmation, that is logged: the loops of machines and claims confirm it later.
    """
    with _reading():
        is_fenced = statement() is not None
    _end_all(store, operations, operations.node_name, is_fenced=is_fenced, confirms=True)


def settle_previous_name(store: Store, operations: MachineOperations, previous: str) -> None:
    """End all that was taken away from this node when it had another name. Nothing confirms that: a node of a cluster
    may not write for another node. Raises NodeError as ``settle``."""
    _end_all(store, operations, previous)


def _end_all(
    store: Store, operations: MachineOperations, node: str, *, is_fenced: bool = False, confirms: bool = False
) -> None:
    """End what the journal has and was taken away from the node of this name; if it is fenced, also machines whose
    objects are gone, or that it does not hold. An error of one does not keep the others from their turn, unless the
    store does not answer. Raises the first NodeError at the end; logs the others, and a refused confirmation."""
    failures: list[NodeError] = []
    try:
        for kind, key, uid, end in _journaled(operations):
            try:
                with _reading():
                    obj = objects.read_again(store, kind, key, uid)
                is_ours = kind == CLAIM or (obj is not None and objects.holder_of(obj) == node)
                if (obj is not None and objects.was_taken_away(obj, node)) or (is_fenced and not is_ours):
                    end()
                    if confirms and obj is not None:
                        _confirm(store, operations, obj)
            except NotConfirmed as error:
                log.error("%s", error)
            except _NoAnswer:
                raise
            except NodeError as error:
                failures.append(error)
    except NodeError as error:
        failures.append(error)
    raise_first(failures)


def _journaled(operations: MachineOperations) -> Iterator[tuple[str, str, str, Callable[[], None]]]:
    """Each machine of the journal that was made for an object, then each DeviceClaim that is left then: its kind, key
    and UID, and what ends it here."""
    for key, uid in dict(operations.machines.owners()).items():
        if uid:
            yield objects.KIND, key, uid, partial(end_at_once, operations, key, uid)
    for held in operations.claims.held():
        ref = held.record.ref
        if held.record.kind == CLAIM:
            yield CLAIM, str(ref), ref.uid, partial(_unprepare, operations, ref)


def has_machine(store: Store, operations: MachineOperations, key: str, uid: str, node_name: str) -> bool:
    """Whether a machine of the journal still belongs to the node with this name, by its object. One that was taken away
    does not. Raises Failed."""
    with _reading():
        obj = objects.read_again(store, objects.KIND, key, uid)
        if obj is None:  # another store does not show whether the object is gone
            return operations.claims.journal.setting(objects.IDENTITY) != store.identity()
    if objects.was_taken_away(obj, node_name):
        return False
    view = MachineView(obj)
    return view.is_on(node_name) or view.arrives_on(node_name) or objects.must_leave(obj, node_name)


@contextmanager
def _reading() -> Iterator[None]:
    """Inside, an error of the store is raised as Failed."""
    try:
        yield
    except StoreError as error:
        failed = _NoAnswer if isinstance(error, Unavailable) else Failed
        raise failed("StoreUnavailable", f"cannot read what was taken away from this node: {error}") from error


def settle_machine(store: Store, operations: MachineOperations, obj: Object) -> None:
    """End what this node still has of a machine that was taken away, then confirm that. Raises NodeError."""
    end_at_once(operations, objects.key_of(obj), obj["metadata"]["uid"])
    _confirm(store, operations, obj)


def settle_claim(store: Store, operations: MachineOperations, claim: Object) -> None:
    """Unprepare a claim that was taken away, then confirm that. Raises NodeError."""
    if not objects.was_taken_away(claim, operations.node_name):
        return
    _unprepare(operations, claim_ref(claim))
    _confirm(store, operations, claim)


def _unprepare(operations: MachineOperations, ref: ClaimRef) -> None:
    operations.claims.unprepare(ref, Deadline.after(WORK_SECONDS), force=True, caller=CALLER)
    log.warning("unprepared claim %s: it was taken away from this node, which was fenced", ref)


def end_at_once(operations: MachineOperations, key: str, uid: str) -> None:
    """End the QEMU of a machine without asking its guest, and unprepare its claims. Raises NodeError."""
    machine = operations.machines.get(key)
    if machine is None or machine.uid != uid or machine.adopted:  # an adopted one does not go to other nodes
        return
    due = Deadline.after(WORK_SECONDS)
    if machine.is_moving:  # its guest stands still, or goes on here: nothing else ends it
        operations.end_moving(key, due, owner=uid, caller=CALLER)
        log.warning("ended machine %s, which was moving: it was taken away from this node, which was fenced", key)
        return
    if machine.runs:
        operations.stop(key, 0.0, due, owner=uid, force=True, caller=CALLER)
        log.warning("ended machine %s: it was taken away from this node, which was fenced", key)
    operations.give_back(key, due, owner=uid, caller=CALLER)


def _confirm(store: Store, operations: MachineOperations, obj: Object) -> None:
    """Remove this node from the note. Raises NotConfirmed if the store refuses it, and Failed if it does not answer."""

    def write(now: Object) -> Object:
        try:
            return store.replace(now)
        except OBJECT_FAILURES as error:
            raise NotConfirmed(
                "StoreUnavailable", f"cannot confirm that {Key.of(obj)} has ended on this node: {error}"
            ) from error

    objects.update_with_retry(store, obj, lambda now: _confirmed(now, operations.node_name), write)


def _confirmed(now: Object, node_name: str) -> Object:
    left = fenced_from(now) - {node_name}
    return with_annotations(now, {meta.FENCED_FROM: fenced_from_note(left)})
