"""How good a placement is: goals 2 to 5 of S17 in order, as a tuple to compare."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from devalloc_solver.bounds.largest_partition import partition_loss
from devalloc_solver.place.search_context import SearchContext
from devalloc_solver.problem.allocations import Usage
from devalloc_solver.problem.demand import AllocationMode
from devalloc_solver.problem.placement import PlacedDevice, Placement
from devalloc_solver.problem.snapshot import Device, Snapshot


@dataclass(frozen=True, slots=True, order=True)
class PlacementScore:
    """Smaller is better. The first three are proven; the policy is a preference."""

    one_of: tuple[int, ...]
    """chosen alternatives, claims in order"""
    pools: int
    """distinct pools, those of admin details too"""
    devices: int
    """distinct devices, likewise"""
    policy: tuple[int, ...]
    """entries of shares; how little it likes the node and the pools; what is lost of large partitions; rank of the
    node; natural order of pools and devices there"""


def score_of(context: SearchContext, placements: Sequence[Placement], node: str | None) -> PlacementScore:
    """The score of a unit's placements on a node."""
    entries = [entry for placed in placements for entry in placed.entries]
    pools = sorted({entry.device.pool for entry in entries})
    devices = {entry.device.index: entry.device for entry in entries}
    offsets = sum(index - context.snapshot.pools[device.pool].devices[0].index for index, device in devices.items())
    given = {entry.device.index for entry in entries if not entry.request.mode.is_admin}
    more = dict.fromkeys(pools, 0)
    for device in devices.values():
        more[device.pool] += device.index in given and not context.usage.in_use(device)
    policy = (
        sum(entry.request.mode is AllocationMode.SHARE for entry in entries),
        context.cost_of_node(node, sum(more[pool] for pool in pools if context.snapshot.pools[pool].node is not None)),
        sum(context.cost_of_pool(pool, more[pool]) for pool in pools),
        _partition_loss_of(context, entries) if context.packs else 0,
        context.rank(node),
        sum(pools),
        offsets,
    )
    return PlacementScore(_one_of(placements), len(pools), len(devices), policy)


def _one_of(placements: Iterable[Placement]) -> tuple[int, ...]:
    chosen = {
        (number, entry.request.detail): entry.request.alternative
        for number, placed in enumerate(placements)
        for entry in placed.entries
    }
    return tuple(alternative for _, alternative in sorted(chosen.items()) if alternative is not None)


def largest_partition_loss(snapshot: Snapshot, usage: Usage, entries: Iterable[PlacedDevice]) -> int:
    """What the pools lose of their largest devices; see ``partition_loss``."""
    return _partition_loss_of(SearchContext(snapshot, usage, "pack"), entries)


def _partition_loss_of(context: SearchContext, entries: Iterable[PlacedDevice]) -> int:
    snapshot, usage = context.snapshot, context.usage
    taken: dict[int, dict[int, Device]] = defaultdict(dict)
    for entry in entries:
        if entry.device.draws and not entry.request.mode.is_admin and not usage.in_use(entry.device):
            taken[entry.device.pool][entry.device.index] = entry.device
    total = 0
    for index, devices in taken.items():
        shapes = context.partitions(snapshot.pools[index])
        if not shapes:
            continue
        free = {name: usage.free_pool_blocks(index, name) for name in snapshot.pools[index].resources}
        total += partition_loss(shapes, free, [device.draws for device in devices.values()])
    return total
