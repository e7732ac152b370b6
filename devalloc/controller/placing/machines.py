"""Reading VirtualMachines as the store has them, for placing: what they hold, what they want, who runs them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from devalloc.api import hostpool, meta
from devalloc.api.quantity import Quantity
from devalloc.api.reservation import amount_of, nano_of, reserved, wants
from devalloc.api.virtualmachine import VirtualMachine
from devalloc.controller.claims import ClaimKey
from devalloc.store import Object

KIND = "VirtualMachine"
SINGLE_NUMA = "single-numa-node"
MachineKey = tuple[str, str]
"""Namespace and name, the namespace never empty."""
Taken = Mapping[tuple[str, str, str], int]
"""Nano units in use by pool, device and resource."""

_RUNS = ("Starting", "Running", "Stopping", "Unknown")
_NOT_ENDED = ("", "StoppedOnRequest", "NotPlaced")
_AMOUNTS = {hostpool.CPU: "cpus", hostpool.MEMORY: "memory"}
_TOLD = ("permitted", "applied", "observed")


def machines_among(documents: Iterable[Object]) -> list[Object]:
    """The VirtualMachines, in the order in which they are placed."""
    found = [doc for doc in documents if doc.get("kind") == KIND and doc.get("apiVersion") == meta.DEVALLOC]
    return sorted(found, key=lambda doc: (str(doc["metadata"].get("creationTimestamp") or "~"), machine_key(doc)))


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


def holder_of(machine: Object) -> str | None:
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
    """True once somebody asked for its deletion."""
    return machine["metadata"].get("deletionTimestamp") is not None


def runs(machine: Object) -> bool:
    """Whether its node says that it does, or may; or it is to be adopted, and so runs before its node has it."""
    spec, phase = spec_of(machine), status_of(machine).get("phase")
    if holder_of(machine) is not None and phase in _RUNS:
        return True
    is_adopted = spec.get("adopt") is not None and spec.get("running") is not False
    return is_adopted and phase not in ("Stopped", "Failed") and not is_deleting(machine)


def running_on(machine: Object) -> str:
    """The node that a running machine is on."""
    return holder_of(machine) or str(spec_of(machine).get("nodeName") or status_of(machine).get("nodeName") or "")


def has_ended(machine: VirtualMachine) -> bool:
    """Whether it ended and is not to be started again, so that nothing is kept for it."""
    status = machine.status
    if status is None or machine.spec.restart_policy == "Always":
        return False
    return status.phase == "Stopped" and status.reason not in _NOT_ENDED


def counted(machine: Object) -> list[Any]:
    """The entries that a placed machine counts for: what is kept for it, or what it is permitted or was seen to have
    where that is more (T25)."""
    entries = [{**entry, "allocations": [*entry.get("allocations", ())]} for entry in reserved(machine)]
    told = [found for name in _TOLD if isinstance(found := status_of(machine).get(name), dict)]
    told += [kept for permit in told if isinstance(kept := permit.get("kept"), dict)]
    for resource, name in _AMOUNTS.items():
        more = max((nano_of(amounts.get(name)) for amounts in told), default=0) - amount_of(entries, resource)
        for entry in entries if more > 0 else ():
            amounts = entry["allocations"]
            place = next((i for i, amount in enumerate(amounts) if amount.get("name") == resource), None)
            if place is not None:
                total = Quantity(nano_of(amounts[place].get("allocation")) + more)
                amounts[place] = {"name": resource, "allocation": str(total)}
                break
    return entries


def taken_by(entries: Iterable[Any]) -> dict[tuple[str, str, str], int]:
    """What entries take, to be added up."""
    found: dict[tuple[str, str, str], int] = defaultdict(int)
    for entry in entries:
        for amount in entry.get("allocations", ()):
            found[entry["devicePoolName"], entry["deviceName"], amount["name"]] += nano_of(amount["allocation"])
    return found


def entries_of_running(machine: VirtualMachine, pool: Object, taken: Taken) -> list[Any]:
    """What a machine that runs already counts for, whether there is room or not: nobody is ended for that.

    Devices with the most room come first; what has room nowhere is on the first of them.
    """
    name, devices = pool["metadata"]["name"], pool["spec"].get("devices") or []
    given: dict[str, dict[str, int]] = defaultdict(dict)
    for resource, amount in wants(machine.spec).items():
        rooms = {
            device["name"]: nano_of(one.get("capacity")) - taken.get((name, device["name"], resource), 0)
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


def elsewhere(pool: Object, taken: Taken) -> list[Any]:
    """What is counted on devices of a pool beyond what they have, as entries on those that have room.

    A machine counts on one device for what it was told to have beyond what is kept for it, though it may run on all:
    the room that the others seem to have is not there either.
    """
    name, rooms = pool["metadata"]["name"], defaultdict[str, dict[str, int]](dict)
    for device in pool["spec"].get("devices") or ():
        for one in device.get("resources") or ():
            used = taken.get((name, device["name"], one.get("name")), 0)
            rooms[one.get("name")][device["name"]] = nano_of(one.get("capacity")) - used
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


def numa_of(entries: Sequence[Any], pools: Mapping[str, Object]) -> int | None:
    """The one NUMA node that entries are on; None where they are on none, or on several."""
    found = set()
    for entry in entries:
        pool = pools.get(entry["devicePoolName"], {"spec": {}})
        for device in pool["spec"].get("devices") or ():
            if device.get("name") == entry["deviceName"]:
                found |= {one["intValue"] for one in device.get("attributes", ()) if one.get("name") == "numa"}
    return found.pop() if len(found) == 1 else None
