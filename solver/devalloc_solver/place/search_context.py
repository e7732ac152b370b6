"""The context of a search: the fleet, what is in use of it, and the placement policy."""

from __future__ import annotations

from dataclasses import dataclass, field

from devalloc_solver.bounds.largest_partition import Shapes, partition_shapes
from devalloc_solver.problem.allocations import Usage
from devalloc_solver.problem.placement_policy import square_growth
from devalloc_solver.problem.snapshot import Pool, Snapshot


@dataclass(slots=True, eq=False)
class SearchContext:
    """Looks at no more of the fleet than it is asked about: a question about one node must not cost a fleet."""

    snapshot: Snapshot
    usage: Usage
    placement: str
    """``pack`` or ``spread``"""
    _busy: dict[int, bool] = field(default_factory=dict)
    _loads: dict[int, int] = field(default_factory=dict)
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

    def load(self, pool: int) -> int:
        """How many devices of a pool are in use."""
        if pool not in self._loads:
            devices = self.snapshot.pools[pool].devices
            self._loads[pool] = sum(map(self.usage.in_use, devices)) if self.is_busy(pool) else 0
        return self._loads[pool]

    def node_load(self, node: str | None) -> int:
        """How many devices of a node's own pools are in use."""
        return sum(self.load(pool.index) for pool in self.snapshot.pools_by_node.get(node, ())) if node else 0

    def use(self, pool: int) -> object:
        """All that the policy looks at of a pool's use."""
        return self.is_busy(pool) if self.packs else self.load(pool)

    def cost_of_pool(self, pool: int, more: int) -> int:
        """How little the policy likes that so many more devices of a pool are in use: to pack, 1 for a pool that was
        not in use; to spread, what the square of its load grows by (S17, goal 5)."""
        return int(not self.is_busy(pool)) if self.packs else square_growth(self.load(pool), more)

    def cost_of_node(self, node: str | None, more: int) -> int:
        """The same for a node: to pack it counts whatever comes into use there."""
        if self.packs:
            return int(node is not None and not self.is_busy_node(node))
        return square_growth(self.node_load(node), more) if more else 0
