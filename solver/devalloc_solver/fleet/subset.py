"""Some nodes of a fleet, or all of them, as a problem of its own, and who holds what there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from devalloc_solver.fleet.fleet_stats import FleetStats
from devalloc_solver.fleet.node_index import HeldItem, Holders
from devalloc_solver.fleet.pool_states import NodeRecord
from devalloc_solver.pipeline.strategy import place_unit
from devalloc_solver.problem.allocations import GIVEN_NOW, AllocatedDevice, Holding, Key, Usage
from devalloc_solver.problem.demand import PlacementUnit
from devalloc_solver.problem.placement import Placement
from devalloc_solver.problem.placement_policy import PlacementPolicy
from devalloc_solver.problem.snapshot import Snapshot, join_pools, renumber

JudgeT = TypeVar("JudgeT")
Places = Mapping[str | None, Sequence[int]]
"""node (None: the network) -> the index in a subset of each device of its own snapshot"""


@dataclass(frozen=True, slots=True, eq=False)
class FleetSubset(Generic[JudgeT]):
    """Some nodes as a problem of its own."""

    snapshot: Snapshot
    places: Places
    kinds: Sequence[int]
    """the kind of each device"""
    judge: JudgeT


def make_subset(
    stats: FleetStats,
    records: Sequence[NodeRecord],
    judge: Callable[[Snapshot], JudgeT],
    nodes: Iterable[str] | None = None,
) -> FleetSubset[JudgeT]:
    """Join some nodes, in natural order, after the network where it is one of them.

    Args:
        judge: makes who judges the devices of a snapshot.
        nodes: names of nodes, also of those without devices; None: those of the records.
    """
    pools = [(record, number) for record, number in stats.pools(records) if record.snapshot.pools[number].devices]
    renumbered = renumber(record.snapshot.pools[number] for record, number in pools)
    places = {record.name: [0] * len(record.snapshot.devices) for record in records}
    kinds: list[int] = []
    for record, number in pools:
        own_places = places[record.name]
        for device in record.snapshot.pools[number].devices:
            own_places[device.index] = len(kinds)
            kinds.append(record.kinds[device.index].index)
    names = [record.name for record in records if record.name is not None] if nodes is None else nodes
    snapshot = join_pools(renumbered, names)
    return FleetSubset(snapshot, places, kinds, judge(snapshot))


def holding_on(key: Key, holders: Holders, places: Places, given_now: Set[Key] = frozenset()) -> Holding:
    """What a claim holds of a subset."""
    items = [AllocatedDevice(places[n][d], amounts) for n, d, amounts in holders.index.held[key] if n in places]
    items.sort(key=lambda one: one.device)
    held = holders.by_claim[key]
    return Holding(key, held.priority, tuple(items), GIVEN_NOW if key in given_now else held.leave)


def holdings_on(holders: Holders, places: Places, given_now: Set[Key] = frozenset()) -> list[Holding]:
    """What claims hold of a subset, by name of the claim.

    Args:
        given_now: claims that were given their devices in this batch.
    """
    return [holding_on(key, holders, places, given_now) for key in sorted(holders.on_nodes(places))]


@dataclass(slots=True, eq=False)
class WholeFleet(Generic[JudgeT]):
    """All nodes as one problem, as long as pools are as they were. Who holds what is kept up to date."""

    subset: FleetSubset[JudgeT]
    holders: Holders
    _on_node: dict[str | None, set[Key]] = field(default_factory=dict)
    """node -> the claims whose allocations were read there"""
    _allocations: dict[Key, tuple[Sequence[HeldItem], Holding]] = field(default_factory=dict)
    """claim -> what it holds in the index, and here"""
    _usage: Usage | None = None
    """what the allocations add up to; None once one of them is gone"""
    _read: int = -1
    """how much of what nodes have changed was read"""

    @property
    def snapshot(self) -> Snapshot:
        return self.subset.snapshot

    def holdings(self, given_now: Set[Key]) -> list[Holding]:
        """What claims hold, by name of the claim; see ``holdings_on``."""
        self._catch_up()
        held = [self._allocations[key][1] for key in sorted(self._allocations)]
        return [replace(one, leave=GIVEN_NOW) if one.owner in given_now else one for one in held]

    def usage(self) -> Usage:
        """What is in use: the same object until it changes."""
        self._catch_up()
        if self._usage is None:
            self._usage = Usage.of(self.snapshot, (allocation for _, allocation in self._allocations.values()))
        return self._usage

    def place(self, unit: PlacementUnit, policy: PlacementPolicy, ends: float | None) -> Placement | None:
        """Where a claim of its own goes; see ``place_unit``."""
        usage = self.usage()
        held = [allocation for _, allocation in self._allocations.values()]
        placements = place_unit(self.snapshot, held, unit, usage=usage, policy=policy, ends=ends)
        return None if placements is None else placements[0]

    def with_judge(self, judge: JudgeT) -> WholeFleet[JudgeT]:
        """The same with another judge."""
        return replace(self, subset=replace(self.subset, judge=judge))

    def _catch_up(self) -> None:
        touched, places = self.holders.index.touched, self.subset.places
        if self._read == touched.end:
            return
        nodes = places if self._read < touched.start else dict.fromkeys(touched.since(self._read))
        self._read = touched.end
        held, allocations = self.holders.index.held, self._allocations
        changed: set[Key] = set()
        for node in nodes:
            now, before = self.holders.on_node.get(node, set()), self._on_node.get(node, set())
            changed |= before - now
            changed.update(key for key in now if key not in allocations or allocations[key][0] is not held[key])
            self._on_node[node] = {*now}
        for key in changed:
            had_any = allocations.pop(key, None) is not None
            items = held.get(key)
            if items:
                allocations[key] = items, holding_on(key, self.holders, places)
            if had_any:
                self._usage = None
            elif items and self._usage is not None:
                self._usage.add(allocations[key][1])
