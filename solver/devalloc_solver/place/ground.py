"""What a search stands on: the fleet, what is in use of it, and the policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from devalloc_solver.holdings import Ledger
from devalloc_solver.place.partitions import Shapes, partitions
from devalloc_solver.snapshot import Pool, Snapshot


@dataclass(slots=True, eq=False)
class Ground:
    """Looks at no more of the fleet than it is asked about: a question about one node must not cost a fleet."""

    snapshot: Snapshot
    ledger: Ledger
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
            self._partitions[pool.index] = partitions(pool, self.ledger)
        return self._partitions[pool.index]

    def is_busy(self, pool: int) -> bool:
        """Whether some device of a pool is in use."""
        known = self._busy.get(pool)
        if known is None:
            ledger = self.ledger
            devices = self.snapshot.pools[pool].devices
            in_use = bool(ledger.whole or ledger.shared) and any(map(ledger.in_use, devices))
            known = self._busy[pool] = in_use
        return known

    def is_busy_node(self, node: str | None) -> bool:
        """Whether some device of a node's own pools is in use."""
        return any(self.is_busy(pool.index) for pool in self.snapshot.pools_by_node.get(node, ())) if node else True

    def rank(self, node: str | None) -> int:
        """In the natural order of nodes; before all where there are no pools."""
        pools = self.snapshot.pools_by_node.get(node, ()) if node is not None else ()
        return pools[0].index if pools else -1

    def avoids(self, pools: Sequence[int]) -> int:
        """How many of these pools the policy would rather not use."""
        return sum(self.is_busy(pool) is not self.packs for pool in pools)

    def avoids_node(self, node: str | None) -> int:
        """1 for a node that the policy would rather not use."""
        return int(node is not None and self.is_busy_node(node) is not self.packs)
