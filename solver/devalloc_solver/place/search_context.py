"""The context of a search: the fleet, what is in use of it, and the placement policy; how good a placement is there.

Scores are goals 2 to 5 of S17 in order, as a tuple to compare.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from devalloc_solver.bounds.largest_partition import Shapes, partition_loss, partition_shapes
from devalloc_solver.problem.allocations import Usage
from devalloc_solver.problem.demand import AllocationMode
from devalloc_solver.problem.placement import PlacedDevice, Placement, growth_of
from devalloc_solver.problem.snapshot import Device, Pool, Snapshot


@dataclass(slots=True, eq=False)
class SearchContext:
    """Looks at no more of the fleet than it is asked about: a question about one node must not cost a fleet."""

    snapshot: Snapshot
    usage: Usage
    placement: str
    """``pack`` or ``spread``"""
    _busy: dict[int, bool] = field(default_factory=dict)
    _partitions: dict[int, Shapes] = field(default_factory=dict)

    @property
    def packs(self) -> bool:
        return self.placement == "pack"

    def partitions(self, pool: Pool) -> Shapes:
        """The shapes of the devices that may still be had of a pool."""
        if pool.index not in self._partitions:
            self._partitions[pool.index] = partition_shapes(pool, self.usage)
        return self._partitions[pool.index]

    def is_busy(self, pool: int) -> bool:
        """Whether some device of a pool is in use."""
        busy = self._busy.get(pool)
        if busy is None:
            usage = self.usage
            devices = self.snapshot.pools[pool].devices
            in_use = bool(usage.whole or usage.shared) and any(map(usage.in_use, devices))
            busy = self._busy[pool] = in_use
        return busy

    def is_busy_node(self, node: str | None) -> bool:
        """Whether some device of a node's own pools is in use."""
        return any(self.is_busy(pool.index) for pool in self.snapshot.pools_by_node.get(node, ())) if node else True

    def rank(self, node: str | None) -> int:
        """In the natural order of nodes; before all where there are no pools."""
        pools = self.snapshot.pools_by_node.get(node, ()) if node is not None else ()
        return pools[0].index if pools else -1

    def use(self, pool: int) -> object:
        """All that the policy looks at of a pool's use."""
        return self.is_busy(pool) if self.packs else self.usage.loads.pools.get(pool, 0)

    def use_of_node(self, node: str | None) -> object:
        """The same of a node, beside that of its pools with candidates."""
        if self.packs or node is None:
            return None
        return self.usage.loads.nodes.get(node, 0), self.usage.loads.capacity(node)

    def cost_of_pool(self, pool: int, load: int) -> int:
        """How little the policy likes that so much more of a pool is in use (see ``Loads``): to pack, 1 for a pool that
        was not in use; to spread, what the unevenness of pools grows by (S17, goal 5)."""
        return int(not self.is_busy(pool)) if self.packs else self.usage.loads.growth_of_pool(pool, load)

    def cost_of_node(self, node: str | None, load: int) -> int:
        """The same for a node: to pack it counts whatever comes into use there."""
        if self.packs:
            return int(node is not None and not self.is_busy_node(node))
        return self.usage.loads.growth_of_node(node, load)

    def costs_of(self, placements: Sequence[Placement], node: str | None) -> tuple[int, int]:
        """How little the policy likes what placements bring into use: of the node, and of the pools."""
        if not self.packs:
            return growth_of(self.usage, placements)
        pools = {entry.device.pool for placed in placements for entry in placed.entries}
        return self.cost_of_node(node, 0), sum(self.cost_of_pool(pool, 0) for pool in pools)


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
    policy = (
        sum(entry.request.mode is AllocationMode.SHARE for entry in entries),
        *context.costs_of(placements, node),
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
