"""Read and write what a live migration leaves in the store: the VirtualMachineMigration, and the machine's status.

One write of one object decides which node has a machine: ``hand_over_object`` makes the target its node, and
``withdraw`` makes that impossible. Each is based on the object as it was read, so only one of them can take effect.
Before its CPUs run on the target, the target takes the object (``take_moved_object``).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from devalloc.api import meta
from devalloc.api.conditions import with_migration_conditions
from devalloc.api.views import MachineView, MigrationView, as_mapping
from devalloc.api.virtual_machine_migration import MigrationDestination, MigrationOffer
from devalloc.printable import printable
from devalloc.store import Object, Store
from devalloc_machines.qemu.migration import Progress
from devalloc_machines.vms import objects
from devalloc_node.errors import Denied

KIND = "VirtualMachineMigration"
_MAX_MESSAGE, _MAX_REASON = 4096, 253


def has_booking(machine: Object, uid: str) -> bool:
    """Whether a machine can still move by the migration with this UID."""
    return bool(uid) and MachineView(machine).migration_state.get("migrationUID") == uid


def hand_over_object(store: Store, machine: Object) -> Object:
    """Make the target the machine's node, with what was reserved there, by one write that is based on ``machine``.

    Raises StoreError: Conflict if it has changed meanwhile; after any other error it may be done, so read it again.
    """
    status = with_target_reservation(machine)["status"]
    state = as_mapping(status.pop("migrationState"))
    if state.get("claims"):
        status["movedClaims"] = state["claims"]
    if isinstance(status.get("conditions"), list):
        status["conditions"] = [_placed_on(state["targetNode"], one) for one in status["conditions"]]
    for name in ("pid", "numaNodes"):  # of the process on its source; the target writes its own
        status.pop(name, None)
    return store.replace_status({**machine, "status": status})


def _placed_on(node: str, condition: Any) -> Any:
    """The controller's condition, in its words, for another node."""
    is_placed = as_mapping(condition).get("type") == "Placed" and condition.get("status") == "True"
    return {**condition, "message": f"on node {node}"} if is_placed else condition


def withdraw(store: Store, machine: Object, uid: str) -> Object | None:
    """See to it that the machine does not move by this migration any more; the object by then, in which it may have
    moved before. None if the object is gone. Raises Failed."""

    def without(now: Object) -> Object:
        if not has_booking(now, uid):
            return now
        return {**now, "status": {name: part for name, part in now["status"].items() if name != "migrationState"}}

    return objects.update_with_retry(store, machine, without, store.replace_status)


def take_moved_object(store: Store, machine: Object, uid: str, node_name: str) -> bool:
    """Make the object of a machine that was handed over to this node its own; whether it is. Raises Failed."""
    is_own = False

    def taken(now: Object) -> Object | None:
        nonlocal is_own
        view = MachineView(now)
        is_own = view.status.get("nodeName") == node_name and not has_booking(now, uid) and view.is_held
        if not is_own:
            return None
        annotations = now["metadata"].get("annotations", {})
        if annotations.get(meta.PREPARED_ON) == node_name:
            return now
        return {**now, "metadata": {**now["metadata"], "annotations": {**annotations, meta.PREPARED_ON: node_name}}}

    objects.update_with_retry(store, machine, taken, store.replace)
    return is_own


def write_migration(store: Store, migration: Object | None, phase: str | None, **fields: Any) -> None:
    """Write how far a migration is, unless it is over. ``phase``: None leaves it as it is. ``fields``: of its status;
    None removes one. Raises Failed."""
    if migration is None:
        return

    def changed(now: Object) -> Object | None:
        if MigrationView(now).is_over:
            return None
        before = now.get("status") or {}
        parts = {**before, **({} if phase is None else {"phase": phase}), **fields}
        after = {name: part for name, part in parts.items() if part is not None}
        after = with_migration_conditions(after, _now(), now["metadata"].get("generation"))
        return now if after == before else {**now, "status": after}

    objects.update_with_retry(store, migration, changed, store.replace_status)


def write_failed(store: Store, migration: Object | None, reason: str, message: str) -> None:
    """Say that the machine stays where it is, and why. Raises Failed."""
    write_migration(
        store, migration, "Failed", reason=reason[:_MAX_REASON], message=message[:_MAX_MESSAGE], completionTime=_now()
    )


def write_succeeded(store: Store, migration: Object | None) -> None:
    """Say that the machine is its target's. Raises Failed."""
    write_migration(store, migration, "Succeeded", reason=None, message=None, completionTime=_now())


def offer_of(migration: Object) -> MigrationOffer:
    """What the source says in ``status.offer``: another node wrote it. Raises Denied (``OfferInvalid``)."""
    try:
        return MigrationOffer.model_validate(as_mapping(migration.get("status")).get("offer"))
    except ValidationError as error:
        raise Denied("OfferInvalid", f"what the source offers cannot be read: {_first_fault(error)}") from None


def is_firmware_stored(migration: Object | None) -> bool:
    """Whether the target says that it has stored the UEFI variables and the TPM of the machine that waits there."""
    status = as_mapping((migration or {}).get("status"))
    return as_mapping(status.get("destination")).get("firmwareStored") is True


def write_firmware_stored(store: Store, migration: Object) -> None:
    """Say so. Raises Failed."""
    status = as_mapping(migration.get("status"))
    destination = {**as_mapping(status.get("destination")), "firmwareStored": True}
    write_migration(store, migration, None, destination=destination)


def destination_of(migration: Object) -> MigrationDestination:
    """Where the target waits, by ``status.destination``: another node wrote it. Raises Denied (``OfferInvalid``)."""
    try:
        return MigrationDestination.model_validate(as_mapping(migration.get("status")).get("destination"))
    except ValidationError as error:
        raise Denied("OfferInvalid", f"where the target waits cannot be read: {_first_fault(error)}") from None


def progress_status(now: Progress) -> dict[str, Any]:
    """``status.progress``"""
    downtime = now.downtime_seconds
    return {
        "transferred": now.sent,
        "remaining": now.remaining,
        "total": now.total,
        **({} if downtime is None else {"downtimeSeconds": f"{round(downtime * 1000)}m"}),
    }


def with_target_reservation(machine: Object) -> Object:
    """The object as it is when the machine has moved."""
    state: Mapping[str, Any] = MachineView(machine).migration_state
    own = {name: part for name, part in machine["status"].items() if name not in ("allocations", "numaNode")}
    booked = {name: state[name] for name in ("allocations", "numaNode") if name in state}
    return {**machine, "status": {**own, **booked, "nodeName": state.get("targetNode")}}


def _first_fault(error: ValidationError) -> str:
    fault = error.errors(include_url=False, include_input=False)[0]
    what = ": ".join(filter(None, (".".join(map(str, fault["loc"])), fault["msg"])))
    return printable(what[:_MAX_REASON])[:_MAX_REASON]


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
