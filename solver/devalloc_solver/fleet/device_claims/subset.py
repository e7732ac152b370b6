"""A subset of the fleet as a problem of its own: some nodes, and what is allocated there."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from devalloc_solver.fleet.node_index import HeldItem
from devalloc_solver.fleet.pool_states import NodeRecord
from devalloc_solver.problem.allocations import AllocatedDevice, Allocation, Key
from devalloc_solver.problem.snapshot import Pool, Snapshot, join_pools, renumber


@dataclass(frozen=True, slots=True, eq=False)
class FleetSubset:
    """Some nodes, in natural order, after the network where there is any."""

    snapshot: Snapshot
    offsets: Mapping[str | None, int]
    """node -> index of its first device"""

    @classmethod
    def of(cls, records: Iterable[NodeRecord]) -> FleetSubset:
        """``records`` come in the order of a snapshot: the network's first, then by rank."""
        pools: list[Pool] = []
        offsets: dict[str | None, int] = {}
        first = 0
        for record in records:
            offsets[record.name] = first
            pools += record.snapshot.pools
            first += len(record.snapshot.devices)
        return cls(join_pools(renumber(pools)), offsets)

    def holdings(
        self, held: Mapping[Hashable, Sequence[HeldItem]], keys: Iterable[Key], priority: Callable[[Key], int]
    ) -> tuple[Allocation, ...]:
        """What these claims hold here, by name of the claim; of other nodes nothing is said."""
        offsets = self.offsets
        holdings = []
        for key in sorted(keys):
            items = tuple(
                AllocatedDevice(offsets[node] + device, amounts)
                for node, device, amounts in held[key]
                if node in offsets
            )
            holdings.append(Allocation(key, priority(key), items))
        return tuple(holdings)
