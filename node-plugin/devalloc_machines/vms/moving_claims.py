"""The claims of machines that move: what is offered of their devices, and those that wait on the target.

The target prepares a claim by what the machine's object has booked for it there (``migrationState.claims``, after the
handover ``movedClaims``): the claim itself still has the devices of the source, and the source's mark. The target marks
it when the controller has given it its new devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from devalloc.api.views import MachineView
from devalloc.api.virtual_machine_migration import MigrationDevice
from devalloc.store import Object
from devalloc_machines.qemu import pci
from devalloc_machines.qemu.migration_offer import check_same, identify
from devalloc_machines.service.operations import MachineOperations
from devalloc_machines.vms import objects
from devalloc_machines.vms.machine_claims import CALLER, WORK_SECONDS
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied
from devalloc_node.model.grant import ClaimRef
from devalloc_node.model.step import ROOT_PORT, Prepared
from devalloc_node.operations.claim_registry import HeldClaim


def leaving(operations: MachineOperations, key: str, sys: Path) -> dict[str, dict[str, Any]]:
    """What is offered of the devices of claims in a machine but for their ports, by their ids in QEMU."""
    devices = {}
    for held in _claims_in(operations, key):
        if (prepared := held.prepared) is not None:
            for index, device in enumerate(prepared.devices):
                name = pci.device_id(prepared.ref.uid, device.pool, device.device, device.share)
                devices[name] = {"claim": prepared.ref.uid, "index": index, "functions": identify(device, sys)}
    return devices


def booked_refs(machine: Object) -> list[ClaimRef]:
    """The claims for which devices are booked on the target."""
    namespace = objects.namespace_of(machine)
    return [ClaimRef(namespace, str(one["name"]), str(one["uid"])) for one in MachineView(machine).booked_claims]


def _prepared(
    operations: MachineOperations, machine: Object, offered: Sequence[MigrationDevice], sys: Path, due: Deadline
) -> list[Prepared]:
    """Make ready what is booked here, and see that it is what the guest has."""
    key = objects.key_of(machine)
    there = {(one.claim, one.index): one for one in offered}
    ready = []
    for ref in booked_refs(machine):
        prepared = operations.claims.prepare(ref, due, caller=CALLER).prepared
        for index, device in enumerate(() if prepared is None else prepared.devices):
            if (one := there.pop((ref.uid, index), None)) is None:
                raise Denied("OfferInvalid", f"machine {key}: its node offers no device {index} of claim {ref}")
            check_same(key, one, identify(device, sys))
        if prepared is not None:
            ready.append(prepared)
    if there:
        what = ", ".join(f"{index} of claim {uid}" for uid, index in sorted(there))
        raise Denied("OfferInvalid", f"machine {key}: nothing is reserved here for its devices {what}")
    return ready


def plug(
    operations: MachineOperations, machine: Object, offered: Sequence[MigrationDevice], sys: Path, due: Deadline
) -> None:
    """Put what is booked here into the QEMU that waits, on the ports that it has on the source. Raises Denied
    (``DeviceDiffers``, ``OfferInvalid``), NodeError."""
    ports = {(one.claim, one.index): one.port for one in offered}
    for one in _prepared(operations, machine, offered, sys, due):
        devices = tuple(
            replace(device, attributes={**device.attributes, ROOT_PORT: ports[one.ref.uid, index]})
            for index, device in enumerate(one.devices)
        )
        operations.attached.plug(replace(one, devices=devices), objects.key_of(machine), due, CALLER)


def give_back(operations: MachineOperations, key: str, names: Iterable[str]) -> None:
    """Unprepare the claims of these names that are in this machine, which has ended here, or in none. Raises
    NodeError."""
    namespace, _, _ = key.partition("/")
    wanted = {(namespace, name) for name in names}
    for held in operations.claims.held():
        ref, inside = held.record.ref, {plug.machine for plug in held.plugs}
        if key in inside or (not inside and (ref.namespace, ref.name) in wanted):
            operations.claims.unprepare(ref, Deadline.after(WORK_SECONDS), caller=CALLER)


def _claims_in(operations: MachineOperations, key: str) -> list[HeldClaim]:
    return [held for held in operations.claims.held() if any(plug.machine == key for plug in held.plugs)]
