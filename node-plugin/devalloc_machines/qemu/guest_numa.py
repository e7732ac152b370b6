"""NUMA nodes of a guest, one for each NUMA node of the host that its CPUs and memory come from.

Each guest node has vCPUs and memory, bound to the node of the host that it stands for. All amounts are shared out by
what the allocator has reserved on each: those at the start, and those that come and go. A guest with several nodes sees
each vCPU as a socket: parts of one socket cannot be on several nodes, and an emulated machine (QEMU 7.2) loses
interrupts to vCPUs that come after a gap, which a socket for each node would have.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from math import isqrt
from pathlib import Path

from devalloc.api.apportion import apportion, apportion_memory
from devalloc.api.virtual_machine import MEMORY_BLOCK
from devalloc_machines.qemu.spec import MachineSpec, NumaCell, whole_cpus

_LOCAL, _LEAST, _MOST = 10, 11, 254
"""Distances of nodes: of a node to itself, and of others."""
_NODE = re.compile(r"node([0-9]{1,4})", re.ASCII)


def cells_of_vcpus(spec: MachineSpec) -> list[int]:
    """The guest node of each vCPU that the machine can have, in the order in which they come."""
    weights = [cell.cpus for cell in spec.numa_cells]
    shares = [apportion(vcpus, weights) for vcpus in range(whole_cpus(spec.cpus.most) + 1)]
    return [_grown(before, after) for before, after in pairwise(shares)]


def _grown(before: Sequence[int], after: Sequence[int]) -> int:
    """The place whose share grows."""
    return next(place for place, count in enumerate(after) if count > before[place])


def guest_node(spec: MachineSpec, host_node: object) -> int | None:
    """The guest node that stands for a NUMA node of the host; None if none does. ``host_node``: as a device has it
    among its attributes, if it has any."""
    nodes = [cell.host_node for cell in spec.numa_cells]
    return nodes.index(host_node) if isinstance(host_node, int) and host_node in nodes else None


def memory_by_cell(spec: MachineSpec, size: int) -> list[int]:
    """How many of so many bytes each guest node has: what is built in, and above that what comes and goes."""
    weights = [cell.memory for cell in spec.numa_cells]
    block = spec.huge_page_bytes or MEMORY_BLOCK
    return apportion_memory(size, weights, block=block, least=spec.memory.least, dimm=spec.dimm_bytes)


def cell_of_dimm(spec: MachineSpec, number: int) -> int:
    """The guest node of a DIMM by its number, from 0 on: each one more is where its node's share grows."""
    weights = [cell.memory for cell in spec.numa_cells]
    return _grown(apportion(number, weights), apportion(number + 1, weights))


def cpu_places(
    spec: MachineSpec, cpus: Sequence[int], usable: Mapping[int, Collection[int]]
) -> dict[tuple[int, int], Collection[int]]:
    """CPUs of the host for each vCPU by its socket and core; a vCPU that may run on any is left out.

    ``cpus``: those that were chosen for the machine alone, one for each vCPU. ``usable``: by NUMA node of the host, for
    a machine that has none of its own.
    """
    if not spec.numa_cells:
        return {(0, core): [cpu] for core, cpu in enumerate(cpus)}
    nodes = [spec.numa_cells[cell].host_node for cell in cells_of_vcpus(spec)]
    here: Sequence[Collection[int]] = [usable.get(node) or () for node in nodes]
    places = [[cpu] for cpu in cpus] if cpus else here
    return {(socket, 0): chosen for socket, chosen in enumerate(places) if chosen}


def read_distances(cells: Sequence[NumaCell], nodes: Path) -> list[list[int]]:
    """The host's distances between the nodes that the guest's stand for; empty if it tells none that QEMU takes.

    ``nodes``: the folder with one for each NUMA node of the host.
    """
    with suppress(OSError, ValueError, IndexError):
        numbers = sorted(int(match[1]) for path in nodes.iterdir() if (match := _NODE.fullmatch(path.name)))
        places = [numbers.index(cell.host_node) for cell in cells]
        rows = []
        for cell in cells:
            listed = (nodes / f"node{cell.host_node}" / "distance").read_text().split()
            rows.append([int(listed[place]) for place in places])
        if all(
            value == _LOCAL if source == target else _LEAST <= value <= _MOST
            for source, row in enumerate(rows)
            for target, value in enumerate(row)
        ):
            return rows
    return []


def rows_of(distances: Sequence[int]) -> list[list[int]]:
    """The rows of a square table that is written one row after the other."""
    size = isqrt(len(distances))
    return [list(distances[at : at + size]) for at in range(0, len(distances), size or 1)]
