"""A subset of the fleet as a problem of its own: some nodes, and what is allocated there."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from devalloc_solver.fleet.device_kinds import with_index
from devalloc_solver.fleet.node_index import HeldItem
from devalloc_solver.fleet.pool_states import NodeRecord
from devalloc_solver.problem.allocations import AllocatedDevice, Allocation, Key
from devalloc_solver.problem.snapshot import Device, Pool, Snapshot


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
        devices: list[Device] = []
        offsets: dict[str | None, int] = {}
        by_node: dict[str | None, tuple[Pool, ...]] = {}
        by_name: dict[str, tuple[Pool, ...]] = {}
        for record in records:
            offsets[record.name] = len(devices)
            first = len(pools)
            for pool in record.snapshot.pools:
                start, number = len(devices), len(pools)
                members = tuple(with_index(d, n, number) for n, d in enumerate(pool.devices, start))
                pools.append(Pool(number, pool.node, pool.name, pool.driver, pool.resources, members))
                devices += members
                by_name[pool.name] = (*by_name.get(pool.name, ()), pools[-1])
            if len(pools) > first:
                by_node[record.name] = tuple(pools[first:])
        nodes = tuple(node for node in by_node if node is not None)
        return cls(Snapshot(tuple(pools), tuple(devices), nodes, by_node, by_name), offsets)

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
