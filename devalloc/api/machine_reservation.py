"""What a node reserves for a machine: the entries of the machine's status, and what its spec requires."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from devalloc.api import host_pool_names
from devalloc.api.claim import DeviceAllocation
from devalloc.api.quantity import Quantity, QuantityError
from devalloc.api.virtual_machine import VirtualMachineSpec

STARTABLE = "Startable"
"""Condition of a machine that its node cannot start and for which it therefore reserves nothing: False, with the node's
code. It is not there otherwise."""
FITS = "Fits"
"""Condition of a placed machine: whether its node reserves what its spec now asks for. Present only if it is False."""


def required_amounts(spec: VirtualMachineSpec) -> dict[str, Quantity]:
    """What a node must reserve for the machine, by resource: what it starts with, or its maximum (T25)."""
    wanted = {
        host_pool_names.CPU: spec.cpu.max if spec.reserve_max else spec.cpu.wanted,
        spec.memory.resource: spec.memory.max if spec.reserve_max else spec.memory.wanted,
        host_pool_names.NETWORK: spec.network,
        host_pool_names.DISK_IO: spec.disk_io,
        host_pool_names.DISK: spec.disk,
    }
    return {name: amount for name, amount in wanted.items() if amount is not None}


def reserved_entries(machine: Mapping[str, Any]) -> list[Any]:
    """The reservations of a manifest's machine; empty if it is not placed, or is stopped. Unreadable entries reserve
    nothing: neither a node nor the allocator wrote them."""
    status = machine.get("status")
    entries, node = (status.get("allocations"), status.get("nodeName")) if isinstance(status, dict) else (None, None)
    if not isinstance(entries, list) or not isinstance(node, str) or not node:
        return []
    return readable_entries(entries)


def start_refusal(machine: Mapping[str, Any]) -> Mapping[str, Any]:
    """The condition ``Startable`` of a manifest's machine that cannot start by its present spec; empty for others."""
    status, metadata = machine.get("status"), machine.get("metadata")
    conditions = status.get("conditions") if isinstance(status, dict) else None
    for one in conditions if isinstance(conditions, list) else ():
        if isinstance(one, dict) and (one.get("type"), one.get("status")) == (STARTABLE, "False"):
            generation = metadata.get("generation") if isinstance(metadata, dict) else None
            return one if one.get("observedGeneration") in (None, generation) else {}
    return {}


def booked_entries(machine: Mapping[str, Any]) -> list[Any]:
    """What a migration reserves for a manifest's machine on the node to which it is moving; empty without one."""
    status = machine.get("status")
    state = status.get("migrationState") if isinstance(status, dict) else None
    entries, node = (state.get("allocations"), state.get("targetNode")) if isinstance(state, dict) else (None, None)
    if not isinstance(entries, list) or not isinstance(node, str) or not node:
        return []
    return readable_entries(entries)


def sum_entries(entries: Iterable[Any]) -> dict[tuple[str, str, str], int]:
    """What entries take, to be added up."""
    usage: dict[tuple[str, str, str], int] = defaultdict(int)
    for entry in entries:
        for amount in entry.get("allocations", ()):
            usage[entry["devicePoolName"], entry["deviceName"], amount["name"]] += parse_nano(amount["allocation"])
    return usage


def readable_entries(entries: Iterable[Any]) -> list[Any]:
    """Those of a list that are as entries of allocations are."""
    return [entry for entry in entries if DeviceAllocation.accepts(entry)]


def sum_nano(entries: Iterable[Any], resource: str) -> int:
    """Nano units of a resource over all entries."""
    amounts = (amount for entry in entries for amount in entry.get("allocations", ()))
    return sum(parse_nano(amount.get("allocation")) for amount in amounts if amount.get("name") == resource)


def sum_memory_nano(entries: Iterable[Any]) -> int:
    """Nano bytes of memory over all entries, in pages of any size."""
    reservations = [*entries]
    return sum(sum_nano(reservations, resource) for resource in host_pool_names.MEMORY_RESOURCES)


def missing_amounts(spec: VirtualMachineSpec, entries: Iterable[Any]) -> dict[str, Quantity]:
    """What must be reserved in addition to these entries, by resource."""
    reservations = [*entries]
    short = {name: amount.nano - sum_nano(reservations, name) for name, amount in required_amounts(spec).items()}
    return {name: Quantity(nano) for name, nano in short.items() if nano > 0}


def parse_nano(text: object) -> int:
    """The amount in nano units; 0 if it is invalid, because another program wrote it."""
    try:
        return Quantity.parse(text).nano
    except QuantityError:
        return 0
