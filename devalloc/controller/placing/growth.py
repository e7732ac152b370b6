"""Placed machines whose specs ask for other amounts than what is kept for them.

What one lacks is asked for on its node like any claim; until it is given, what is kept stays as it was, and so does the
machine. What one does not want any more is free at once, as far as its node does not still tell it to have more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from devalloc.api import hostpool
from devalloc.api.quantity import Format, Quantity
from devalloc.api.reservation import FITS, amount_of, lacking, nano_of, reserved, wants
from devalloc.api.virtualmachine import VirtualMachineSpec
from devalloc.controller.claims import ClaimKey
from devalloc.controller.placing import machines
from devalloc.store import Object

_FORMATS = {hostpool.MEMORY: Format.BINARY_SI, hostpool.DISK: Format.BINARY_SI}


@dataclass(frozen=True, slots=True)
class Growth:
    """A placed machine that is to have more than is kept for it."""

    machine: Object
    spec: VirtualMachineSpec
    part: ClaimKey
    """The claim that stands for what it lacks in the solver's input."""
    entries: Sequence[Any]
    """What it counts for now."""

    def grown(self, more: Iterable[Any]) -> list[Any]:
        """The entries with what it was given."""
        return fitted(self.spec, joined(self.entries, more))


def settled(machine: Object, spec: VirtualMachineSpec, counted: Sequence[Any]) -> list[Any] | None:
    """What is to be kept for a machine that lacks nothing; None where that is so."""
    kept = reserved(machine)
    found = fitted(spec, counted if lacking(spec, kept) else kept)
    if _amounts(found) == _amounts(kept):
        return kept if is_told(machine) else None
    # Between taking a machine and saying what it begins it with, a node goes by what was kept when it looked.
    applied = machines.status_of(machine).get("applied")
    is_known = isinstance(applied, dict) and applied.keys() >= {"cpus", "memory"}
    return found if machines.holder_of(machine) is None or is_known else None


def is_told(machine: Object) -> bool:
    """Whether its status says that it lacks something."""
    listed = machines.status_of(machine).get("conditions")
    return isinstance(listed, list) and any(isinstance(one, dict) and one.get("type") == FITS for one in listed)


def fitted(spec: VirtualMachineSpec, entries: Iterable[Any]) -> list[Any]:
    """The entries without what it does not want. The last one goes first."""
    wanted = wants(spec)
    found = _amounts(entries)
    for resource in {resource for _, _, resource in found}:
        over = sum(nano for place, nano in found.items() if place[2] == resource)
        over -= wanted[resource].nano if resource in wanted else 0
        for place in [place for place in reversed(found) if place[2] == resource]:
            less = min(max(0, over), found[place])
            found[place], over = found[place] - less, over - less
    return _entries(found)


def joined(entries: Iterable[Any], more: Iterable[Any]) -> list[Any]:
    """Both together, an entry for each device."""
    found = _amounts(entries)
    for place, nano in _amounts(more).items():
        found[place] = found.get(place, 0) + nano
    return _entries(found)


def numa_of(machine: Object, entries: Sequence[Any], pools: Mapping[str, Object]) -> int | None:
    """The NUMA node that whatever else is kept for it must be on, too; None where any will do."""
    spec = machines.spec_of(machine)
    start = spec.get("start")
    if isinstance(start, dict) and isinstance(start.get("numaNode"), int):
        return int(start["numaNode"])
    compute = [entry for entry in entries if amount_of([entry], hostpool.CPU) or amount_of([entry], hostpool.MEMORY)]
    return machines.numa_of(compute, pools) if spec.get("numaPolicy") == machines.SINGLE_NUMA else None


def _amounts(entries: Iterable[Any]) -> dict[tuple[str, str, str], int]:
    """Nano units by pool, device and resource."""
    found: dict[tuple[str, str, str], int] = {}
    for entry in entries:
        for amount in entry.get("allocations", ()):
            place = entry["devicePoolName"], entry["deviceName"], amount["name"]
            found[place] = found.get(place, 0) + nano_of(amount["allocation"])
    return found


def _entries(amounts: Mapping[tuple[str, str, str], int]) -> list[Any]:
    found: dict[tuple[str, str], list[Any]] = {}
    for (pool, device, resource), nano in amounts.items():
        if nano:
            text = str(Quantity(nano, _FORMATS.get(resource, Format.DECIMAL_SI)))
            found.setdefault((pool, device), []).append({"name": resource, "allocation": text})
    return [
        {"devicePoolName": pool, "deviceName": device, "allocations": given} for (pool, device), given in found.items()
    ]
