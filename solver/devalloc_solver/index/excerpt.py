"""A part of the fleet, as the stages see a whole one: a snapshot of some nodes, and what is held there."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from devalloc_solver.holdings import Held, Holding, Key
from devalloc_solver.index.kinds import renumbered
from devalloc_solver.index.nodes import Item
from devalloc_solver.index.states import NodeRecord
from devalloc_solver.snapshot import Device, Pool, Snapshot


@dataclass(frozen=True, slots=True, eq=False)
class Excerpt:
    """Some nodes, in natural order, after the network where there is any."""

    snapshot: Snapshot
    offsets: Mapping[str | None, int]
    """node -> index of its first device"""

    @classmethod
    def of(cls, records: Iterable[NodeRecord]) -> Excerpt:
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
                members = tuple(renumbered(d, n, number) for n, d in enumerate(pool.devices, start))
                pools.append(Pool(number, pool.node, pool.name, pool.driver, pool.resources, members))
                devices += members
                by_name[pool.name] = (*by_name.get(pool.name, ()), pools[-1])
            if len(pools) > first:
                by_node[record.name] = tuple(pools[first:])
        nodes = tuple(node for node in by_node if node is not None)
        return cls(Snapshot(tuple(pools), tuple(devices), nodes, by_node, by_name), offsets)

    def holdings(
        self, held: Mapping[Hashable, Sequence[Item]], keys: Iterable[Key], priority: Callable[[Key], int]
    ) -> tuple[Holding, ...]:
        """What these claims hold here, by name of the claim; of other nodes nothing is said."""
        offsets = self.offsets
        found = []
        for key in sorted(keys):
            items = tuple(
                Held(offsets[node] + device, amounts) for node, device, amounts in held[key] if node in offsets
            )
            found.append(Holding(key, priority(key), items))
        return tuple(found)
