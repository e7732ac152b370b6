"""Resize placed machines whose specs ask for other amounts than what is reserved for them.

What one lacks is asked for on its node like any claim; until it is given, what is kept stays as it was, and so does the
machine. What one does not want any more is free at once, as far as its node does not still tell it to have more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from devalloc.api import host_pool_names
from devalloc.api.apportion import apportion, apportion_memory
from devalloc.api.machine_reservation import (
    FITS,
    missing_amounts,
    required_amounts,
    reserved_entries,
    sum_entries,
    sum_nano,
)
from devalloc.api.quantity import NANO, Quantity
from devalloc.api.views import MachineView
from devalloc.api.virtual_machine import GIB, MEMORY_BLOCK, MachineNumaNode, VirtualMachineSpec
from devalloc.machines.schedule import machines
from devalloc.store import Object

_NUMA_NODES = TypeAdapter(list[MachineNumaNode])
_BLOCKS = {host_pool_names.HUGE_PAGES["1Gi"]: GIB}
"""Bytes of a block of memory, if it is not MEMORY_BLOCK."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineGrowth(machines.MachineRequest):
    """What a placed machine lacks, on its node."""

    spec: VirtualMachineSpec
    entries: Sequence[Any]
    """What it counts for now."""

    def grown_entries(self, more: Iterable[Any]) -> list[Any]:
        """The entries with what it was given."""
        return shrink_entries(self.machine, self.spec, [*self.entries, *more])


def resized_entries(machine: Object, spec: VirtualMachineSpec, counted: Sequence[Any]) -> list[Any] | None:
    """What is to be kept for a machine that lacks nothing; None if that is so."""
    current = reserved_entries(machine)
    target = shrink_entries(machine, spec, counted if missing_amounts(spec, current) else current)
    if sum_entries(target) == sum_entries(current):
        return current if has_shortage_condition(machine) else None
    # Between taking a machine and saying what it begins it with, a node goes by what was kept when it looked.
    applied = MachineView(machine).status.get("applied")
    is_known = isinstance(applied, dict) and applied.keys() >= {"cpus", "memory"}
    return target if MachineView(machine).holder is None or is_known else None


def has_shortage_condition(machine: Object) -> bool:
    """Whether its status says that it lacks something."""
    listed = MachineView(machine).status.get("conditions")
    return isinstance(listed, list) and any(isinstance(one, dict) and one.get("type") == FITS for one in listed)


def shrink_entries(machine: Object, spec: VirtualMachineSpec, entries: Iterable[Any]) -> list[Any]:
    """The entries without what it does not want. The last one goes first.

    A node that has the machine may run it with pages of another size than the spec names by now: these stay its own
    until it is stopped."""
    wanted = required_amounts(spec)
    amounts = sum_entries(entries)
    in_use = set(host_pool_names.MEMORY_RESOURCES) - wanted.keys() if MachineView(machine).holder is not None else set()
    targets = node_targets(machine, spec)
    for resource in {resource for _, _, resource in amounts} - in_use:
        over = sum(nano for place, nano in amounts.items() if place[2] == resource)
        over -= wanted[resource].nano if resource in wanted else 0
        for place in [place for place in amounts if place[2] == resource]:  # first what its guest has elsewhere
            if (target := targets.get((place[1], resource))) is not None:
                less = min(max(0, over), max(0, amounts[place] - target))
                amounts[place], over = amounts[place] - less, over - less
        for place in [place for place in reversed(amounts) if place[2] == resource]:
            less = min(max(0, over), amounts[place])
            amounts[place], over = amounts[place] - less, over - less
    return machines.entries_of(amounts)


def node_targets(machine: Object, spec: VirtualMachineSpec) -> dict[tuple[str, str], int]:
    """Nano units of what the spec requires on each NUMA node, by device and resource, if the guest has several: as its
    node shares them out. Empty for any other machine."""
    if MachineView(machine).holder is None:
        return {}
    try:
        nodes = _NUMA_NODES.validate_python(MachineView(machine).status.get("numaNodes") or [])
    except ValidationError:  # its node will write it again
        return {}
    if len(nodes) < 2:
        return {}
    targets: dict[tuple[str, str], int] = {}
    for resource, amount in required_amounts(spec).items():
        if resource == host_pool_names.CPU:
            milli = NANO // 1000
            parts = [part * milli for part in apportion(-(-amount.nano // milli), [node.cpus.nano for node in nodes])]
        elif resource in host_pool_names.COMPUTE:
            parts = _memory_parts(resource, amount, spec, nodes)
        else:
            continue
        for node, part in zip(nodes, parts, strict=True):
            targets[f"numa{node.host_node}", resource] = part
    return targets


def _memory_parts(
    resource: str, amount: Quantity, spec: VirtualMachineSpec, nodes: Sequence[MachineNumaNode]
) -> list[int]:
    memory, slot = spec.memory, spec.memory.slot_size
    parts = apportion_memory(
        -(-amount.nano // NANO),
        [node.memory.nano for node in nodes],
        block=_BLOCKS.get(resource, MEMORY_BLOCK),
        least=memory.min.nano // NANO,
        dimm=None if slot is None else slot.nano // NANO,
    )
    return [part * NANO for part in parts]


def growth_by_node(machine: Object, spec: VirtualMachineSpec, entries: Sequence[Any]) -> dict[int, dict[str, Quantity]]:
    """What a machine whose guest has several NUMA nodes lacks, by NUMA node of the host and resource."""
    current: dict[tuple[str, str], int] = {}
    for (_, device, resource), nano in sum_entries(entries).items():
        current[device, resource] = current.get((device, resource), 0) + nano
    lacking: dict[int, dict[str, Quantity]] = {}
    for (device, resource), target in node_targets(machine, spec).items():
        if (more := target - current.get((device, resource), 0)) > 0:
            lacking.setdefault(int(device.removeprefix("numa")), {})[resource] = machines.quantity_of(resource, more)
    return lacking


def required_numa(machine: Object, entries: Sequence[Any], pools: Mapping[str, Object]) -> int | None:
    """The NUMA node that whatever else is kept for it must be on, too; None if any will do."""
    spec = MachineView(machine).spec
    start = spec.get("start")
    if isinstance(start, dict) and isinstance(start.get("numaNode"), int):
        return int(start["numaNode"])
    compute = [entry for entry in entries if any(sum_nano([entry], name) for name in host_pool_names.COMPUTE)]
    return machines.single_numa(compute, pools) if spec.get("numaPolicy") == machines.SINGLE_NUMA else None
