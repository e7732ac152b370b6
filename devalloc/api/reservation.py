"""What a node keeps for a machine: the entries of the machine's status, and what its spec says that they are to be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from devalloc.api import hostpool
from devalloc.api.claim import DeviceAllocation
from devalloc.api.quantity import Quantity, QuantityError
from devalloc.api.virtualmachine import VirtualMachineSpec

FITS = "Fits"
"""Condition of a placed machine: whether its node keeps what its spec asks for now. There only where it is False."""


def wants(spec: VirtualMachineSpec) -> dict[str, Quantity]:
    """What a node is to keep for the machine, by resource: what it starts with, or its whole ceiling (T25)."""
    asked = {
        hostpool.CPU: spec.cpu.max if spec.reserve_max else spec.cpu.wanted,
        hostpool.MEMORY: spec.memory.max if spec.reserve_max else spec.memory.wanted,
        hostpool.NETWORK: spec.network,
        hostpool.DISK_IO: spec.disk_io,
        hostpool.DISK: spec.disk,
    }
    return {name: amount for name, amount in asked.items() if amount is not None}


def reserved(machine: Mapping[str, Any]) -> list[Any]:
    """The entries of what its node keeps for a manifest's machine; empty where it is not placed, or stopped. What
    cannot be read keeps nothing: neither a node nor the allocator wrote it."""
    status = machine.get("status")
    found, node = (status.get("allocations"), status.get("nodeName")) if isinstance(status, dict) else (None, None)
    if not isinstance(found, list) or not isinstance(node, str) or not node:
        return []
    return [entry for entry in found if _is_readable(entry)]


def amount_of(entries: Iterable[Any], resource: str) -> int:
    """Nano units of a resource over all entries."""
    amounts = (amount for entry in entries for amount in entry.get("allocations", ()))
    return sum(nano_of(amount.get("allocation")) for amount in amounts if amount.get("name") == resource)


def lacking(spec: VirtualMachineSpec, entries: Iterable[Any]) -> dict[str, Quantity]:
    """What is to be kept beyond these entries, by resource."""
    kept = [*entries]
    short = {name: amount.nano - amount_of(kept, name) for name, amount in wants(spec).items()}
    return {name: Quantity(nano) for name, nano in short.items() if nano > 0}


def nano_of(text: object) -> int:
    """0 for what is no amount: somebody else wrote there."""
    try:
        return Quantity.parse(text).nano
    except QuantityError:
        return 0


def _is_readable(entry: object) -> bool:
    try:
        DeviceAllocation.model_validate(entry, by_alias=True, by_name=False)
    except ValidationError:
        return False
    return True
