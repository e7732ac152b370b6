"""How much of devices, pools and nodes is in use, and how unevenly (S17, goal 5)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from devalloc_solver.problem.snapshot import Device, Resource, Snapshot

UNIT = 720_720
"""How much a device is that is in use whole. Divisible by all numbers to 16, so that usual shares are exact."""

Measure = Callable[[int, int], int]
"""How little a policy likes a load, by the load and the capacity; the sum over nodes, or pools, is to be least. It is
convex: each step of a load costs at least as much as the one before (``exact.policy``)."""

Draws = tuple[tuple[str, int], ...]


def unevenness(load: int, capacity: int) -> int:
    """The square of a load by its capacity. Summed over nodes, it is least where equal parts of each are in use."""
    return load * load // max(1, capacity)


def growth(load: int, capacity: int, more: int, measure: Measure) -> int:
    """What a measure grows by when so much more is in use."""
    return measure(load + more, capacity) - measure(load, capacity) if more else 0


def share_load(resources: Mapping[str, Resource], amounts: Mapping[str, int]) -> int:
    """How much of a device amounts (in nano units) are: the average over its resources, at most all of it."""
    parts = [
        min(UNIT, -(-UNIT * amounts.get(name, 0) // resource.nano))
        for name, resource in resources.items()
        if resource.nano
    ]
    return sum(parts) // len(parts) if parts else 0


@dataclass(frozen=True, slots=True)
class PoolScale:
    """How much the devices of a pool are."""

    capacity: int
    """devices; all that draw on the same resources of the pool, such as the partitions of one card, are one"""
    partitions: Mapping[Draws, int]
    """what a device draws on the pool -> how much it is in use whole: the average over these resources"""

    def whole(self, draws: Draws) -> int:
        """How much a device is that is in use whole."""
        return self.partitions[draws] if draws else UNIT

    def load(self, device: Device, amounts: Mapping[str, int] | None) -> int:
        """How much a device is that is in use: whole (None), or these amounts."""
        whole = self.whole(device.draws)
        return whole if amounts is None else whole * share_load(device.resources, amounts) // UNIT


@lru_cache(maxsize=1024)
def _undivided(devices: int) -> PoolScale:
    return PoolScale(devices, {})


def scale_of(draws: Iterable[Draws], resources: Mapping[str, Resource]) -> PoolScale:
    """The scale of a pool, of which each device draws so much."""
    listed = [*draws]
    distinct = [*dict.fromkeys(listed)] if resources else []
    if not any(distinct):
        return _undivided(len(listed))
    cards: list[set[str]] = []
    for each in filter(None, distinct):
        names = {name for name, _ in each}
        joined = [card for card in cards if not card.isdisjoint(names)]
        cards = [card for card in cards if card.isdisjoint(names)] + [names.union(*joined)]
    partitions: dict[Draws, int] = {}
    for each in filter(None, distinct):
        size = next(len(card) for card in cards if each[0][0] in card)
        drawn = sum(UNIT * blocks // resources[name].blocks for name, blocks in each if resources[name].blocks)
        partitions[each] = min(UNIT, drawn // size)
    return PoolScale(sum(not each for each in listed) + len(cards), partitions)


@dataclass(slots=True, eq=False)
class Loads:
    """How much of each pool and node is in use. Devices of the network are of no node."""

    snapshot: Snapshot
    pools: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    nodes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _scales: dict[int, PoolScale] = field(default_factory=dict)
    _capacities: dict[str, int] = field(default_factory=dict)

    def copy(self) -> Loads:
        """The same, to add to."""
        pools, nodes = defaultdict(int, self.pools), defaultdict(int, self.nodes)
        return Loads(self.snapshot, pools, nodes, self._scales, self._capacities)

    def scale(self, pool: int) -> PoolScale:
        """How much the devices of a pool are."""
        scale = self._scales.get(pool)
        if scale is None:
            there = self.snapshot.pools[pool]
            scale = self._scales[pool] = scale_of([device.draws for device in there.devices], there.resources)
        return scale

    def capacity(self, node: str) -> int:
        """Devices of a node's own pools, see ``PoolScale``."""
        if node not in self._capacities:
            pools = self.snapshot.pools_by_node.get(node, ())
            self._capacities[node] = sum(self.scale(pool.index).capacity for pool in pools)
        return self._capacities[node]

    def add(self, pool: int, more: int) -> None:
        """So much more of a pool is in use."""
        self.pools[pool] += more
        if (node := self.snapshot.pools[pool].node) is not None:
            self.nodes[node] += more

    def growth_of_node(self, node: str | None, more: int, measure: Measure) -> int:
        """What the measure of nodes grows by when so much more of one is in use; 0 for the network."""
        return 0 if node is None else growth(self.nodes.get(node, 0), self.capacity(node), more, measure)

    def growth(self, by_pool: Mapping[int, int], measure: Measure) -> tuple[int, int]:
        """What the measure of nodes, and that of pools, grows by when so much more of some pools is in use."""
        by_node: dict[str, int] = defaultdict(int)
        for pool, more in by_pool.items():
            if (node := self.snapshot.pools[pool].node) is not None:
                by_node[node] += more
        nodes = sum(self.growth_of_node(node, more, measure) for node, more in by_node.items())
        pools = sum(growth(self.pools.get(p, 0), self.scale(p).capacity, more, measure) for p, more in by_pool.items())
        return nodes, pools
