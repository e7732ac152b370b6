"""Read VirtualMachines as a store has them, for scheduling: what they hold, what they require, which node runs them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from devalloc.api import host_pool_names, meta
from devalloc.api.machine_reservation import parse_nano, required_amounts, reserved_entries, sum_nano
from devalloc.api.quantity import Quantity
from devalloc.api.virtual_machine import VirtualMachine
from devalloc.controller.reconcile.claims import ClaimKey
from devalloc.store import Object

KIND = "VirtualMachine"
SINGLE_NUMA = "single-numa-node"
MachineKey = tuple[str, str]
"""Namespace and name, the namespace never empty."""
TakenAmounts = Mapping[tuple[str, str, str], int]
"""Nano units in use by pool, device and resource."""

_RUNNING_PHASES = ("Starting", "Running", "Stopping", "Unknown")
_NOT_ENDED = ("", "StoppedOnRequest", "NotPlaced")
_AMOUNTS = {host_pool_names.CPU: "cpus", host_pool_names.MEMORY: "memory"}
_AMOUNT_FIELDS = ("permitted", "applied", "observed")


def virtual_machines_in(documents: Iterable[Object]) -> list[Object]:
    """The VirtualMachines, in the order in which they are placed."""
    machines = [doc for doc in documents if doc.get("kind") == KIND and doc.get("apiVersion") == meta.DEVALLOC]
    return sorted(machines, key=lambda doc: (str(doc["metadata"].get("creationTimestamp") or "~"), machine_key(doc)))


def machine_key(machine: Object) -> MachineKey:
    """(namespace, name)"""
    return machine["metadata"].get("namespace") or "default", machine["metadata"]["name"]


def status_of(machine: Object) -> Mapping[str, Any]:
    """Its status; empty where it has none that can be read."""
    status = machine.get("status")
    return status if isinstance(status, dict) else {}


def spec_of(machine: Object) -> Mapping[str, Any]:
    """Its spec; empty where it has none that can be read."""
    spec = machine.get("spec")
    return spec if isinstance(spec, dict) else {}


def holding_node(machine: Object) -> str | None:
    """The node that has something of it; None where none does. Where its name was taken off, that of the spec."""
    metadata = machine["metadata"]
    if meta.NODE_FINALIZER not in metadata.get("finalizers", ()):
        return None
    noted = metadata.get("annotations", {}).get(meta.PREPARED_ON)
    return noted or spec_of(machine).get("nodeName") or status_of(machine).get("nodeName") or ""


def claim_names(machine: Object) -> list[str]:
    """What its spec says, also where the rest of it makes no sense."""
    names = spec_of(machine).get("claims")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def claims_of(machine: Object) -> list[ClaimKey]:
    """Namespace and name of each claim that its spec names."""
    namespace = machine_key(machine)[0]
    return [(namespace, name) for name in claim_names(machine)]


def is_deleting(machine: Object) -> bool:
    """True once its deletion was requested."""
    return machine["metadata"].get("deletionTimestamp") is not None


def is_running(machine: Object) -> bool:
    """Whether its node says that it does, or may; or it is to be adopted, and so runs before its node has it."""
    spec, phase = spec_of(machine), status_of(machine).get("phase")
    if holding_node(machine) is not None and phase in _RUNNING_PHASES:
        return True
    is_adopted = spec.get("adopt") is not None and spec.get("running") is not False
    return is_adopted and phase not in ("Stopped", "Failed") and not is_deleting(machine)


def running_node(machine: Object) -> str:
    """The node that a running machine is on."""
    return holding_node(machine) or str(spec_of(machine).get("nodeName") or status_of(machine).get("nodeName") or "")


def has_ended(machine: VirtualMachine) -> bool:
    """Whether it ended and is not to be started again, so that nothing is kept for it."""
    status = machine.status
    if status is None or machine.spec.restart_policy == "Always":
        return False
    return status.phase == "Stopped" and status.reason not in _NOT_ENDED


def counted_entries(machine: Object) -> list[Any]:
    """The entries that a placed machine counts for: what is kept for it, or what it is permitted or was seen to have
    where that is more (T25)."""
    entries = [{**entry, "allocations": [*entry.get("allocations", ())]} for entry in reserved_entries(machine)]
    reported = [section for name in _AMOUNT_FIELDS if isinstance(section := status_of(machine).get(name), dict)]
    reported += [previous for permit in reported if isinstance(previous := permit.get("kept"), dict)]
    for resource, name in _AMOUNTS.items():
        more = max((parse_nano(amounts.get(name)) for amounts in reported), default=0) - sum_nano(entries, resource)
        for entry in entries if more > 0 else ():
            amounts = entry["allocations"]
            place = next((i for i, amount in enumerate(amounts) if amount.get("name") == resource), None)
            if place is not None:
                total = Quantity(parse_nano(amounts[place].get("allocation")) + more)
                amounts[place] = {"name": resource, "allocation": str(total)}
                break
    return entries


def sum_entries(entries: Iterable[Any]) -> dict[tuple[str, str, str], int]:
    """What entries take, to be added up."""
    usage: dict[tuple[str, str, str], int] = defaultdict(int)
    for entry in entries:
        for amount in entry.get("allocations", ()):
            usage[entry["devicePoolName"], entry["deviceName"], amount["name"]] += parse_nano(amount["allocation"])
    return usage


def entries_of_running(machine: VirtualMachine, pool: Object, taken: TakenAmounts) -> list[Any]:
    """What a machine that runs already counts for, whether it fits or not: no machine is ended for that.

    Devices with the most room come first; what has room nowhere is on the first of them.
    """
    name, devices = pool["metadata"]["name"], pool["spec"].get("devices") or []
    given: dict[str, dict[str, int]] = defaultdict(dict)
    for resource, amount in required_amounts(machine.spec).items():
        rooms = {
            device["name"]: parse_nano(one.get("capacity")) - taken.get((name, device["name"], resource), 0)
            for device in devices
            for one in device.get("resources") or ()
            if one.get("name") == resource
        }
        left = amount.nano
        order = sorted(rooms, key=lambda device: (-rooms[device], device))
        for device in order:
            part = max(0, min(left, rooms[device]))
            if part:
                given[device][resource] = part
                left -= part
        if left and order:
            given[order[0]][resource] = given[order[0]].get(resource, 0) + left
    return _on_devices(name, given)


def moved_entries(pool: Object, taken: TakenAmounts) -> list[Any]:
    """What is counted on devices of a pool beyond what they have, as entries on those that have room.

    A machine counts on one device for what it was told to have beyond what is kept for it, though it may run on all:
    the room that the others seem to have is not there either.
    """
    name, rooms = pool["metadata"]["name"], defaultdict[str, dict[str, int]](dict)
    for device in pool["spec"].get("devices") or ():
        for one in device.get("resources") or ():
            used = taken.get((name, device["name"], one.get("name")), 0)
            rooms[one.get("name")][device["name"]] = parse_nano(one.get("capacity")) - used
    given: dict[str, dict[str, int]] = defaultdict(dict)
    for resource, left in rooms.items():
        over = -sum(min(0, room) for room in left.values())
        for device in sorted(left, key=lambda device: (-left[device], device)):
            if (part := max(0, min(over, left[device]))) > 0:
                given[device][resource] = part
                over -= part
    return _on_devices(name, given)


def _on_devices(pool: str, given: Mapping[str, Mapping[str, int]]) -> list[Any]:
    return [
        {
            "devicePoolName": pool,
            "deviceName": device,
            "allocations": [{"name": one, "allocation": str(Quantity(nano))} for one, nano in amounts.items()],
        }
        for device, amounts in given.items()
    ]


def single_numa(entries: Sequence[Any], pools: Mapping[str, Object]) -> int | None:
    """The one NUMA node that entries are on; None where they are on none, or on several."""
    numbers = set()
    for entry in entries:
        pool = pools.get(entry["devicePoolName"], {"spec": {}})
        for device in pool["spec"].get("devices") or ():
            if device.get("name") == entry["deviceName"]:
                numbers |= {one["intValue"] for one in device.get("attributes", ()) if one.get("name") == "numa"}
    return numbers.pop() if len(numbers) == 1 else None
