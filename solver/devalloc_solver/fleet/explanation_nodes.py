"""Which nodes represent the fleet in an explanation: one of each kind, and those with the fewest claims in the way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import chain
from typing import NamedTuple

from devalloc_solver.bounds.node_counts import match_attributes
from devalloc_solver.explain.leaving import IMPOSSIBLE, min_parts
from devalloc_solver.fleet.equal_devices import UNSHARED
from devalloc_solver.fleet.fleet_stats import FleetStats, HeldKinds, UsageClass
from devalloc_solver.fleet.pool_states import NodeClass, NodeKind, PoolKind, PoolState, ShareState
from devalloc_solver.problem.demand import AllocationMode, Demand, Request

MAX_BOUNDS = 50_000
"""Ways in which nodes are held that are remembered; when there are more, all are forgotten."""


class NearestNodes(NamedTuple):
    """The nodes with the fewest claims in the way."""

    ranks: frozenset[int]
    min_blockers_elsewhere: int
    """on every other node at least so many are in the way; IMPOSSIBLE when that goes for any number"""


@dataclass(slots=True)
class NodeSelection:
    """Chooses nodes for one demand, whose requests have kinds as candidates.

    Requests are counted in devices, those that take shares in nano units of one resource that they ask for.
    """

    stats: FleetStats
    demand: Demand
    fits_nowhere: bool = True
    """whether claims are in the way everywhere, for certain"""
    _requests: list[list[tuple[int, Request, tuple[str, ...], frozenset[int]]]] = field(init=False)
    """per detail: (number, request, match attributes, kinds)"""
    _wanted: frozenset[int] = field(init=False)
    _relevant: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """kind of node -> its pools with candidates"""
    _best: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)
    """states of the relevant pools -> for each request the most devices that can be had together"""
    _empty: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """the same for each kind of node when nothing is in use"""
    _groups: dict[tuple[int, int], list[tuple[int, object | None]]] = field(default_factory=dict)
    """(request, kind of pool) -> see ``_groups_of``"""
    _bounds: dict[tuple[int, tuple[int, ...], tuple[HeldKinds, ...]], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._requests = []
        number = 0
        for detail in self.demand.details:
            alternatives = []
            for request in detail:
                kinds = frozenset(request.candidates.accepted)
                alternatives.append((number, request, match_attributes(self.demand, request), kinds))
                number += 1
            self._requests.append(alternatives)
        self._wanted = frozenset().union(*(kinds for detail in self._requests for *_, kinds in detail))

    def add_to(self, ranks: set[int], most: int) -> NearestNodes:
        """Add the ``most`` nodes with the fewest claims in the way, in the order in which ``leaving`` asks nodes, those
        where most is free, and as many candidates as are wanted."""
        best_now: dict[int, tuple[int, int]] = {}
        roomy: list[int] = []
        for node, first in self.stats.classes():
            now = self._now(node)
            if now is None:
                continue
            for number, count in enumerate(now):
                if number not in best_now or (-count, first) < best_now[number]:
                    best_now[number] = -count, first
            if not self.fits_nowhere and self._is_enough(now):
                roomy.append(first)
        by_bound: dict[int, list[set[int]]] = defaultdict(list)
        for bound, sort in self._bounded():
            by_bound[bound].append(sort.ranks)
        nearest: list[int] = []
        elsewhere = IMPOSSIBLE
        for bound in sorted(by_bound):
            nearest += nsmallest(most + 1 - len(nearest), chain.from_iterable(by_bound[bound]))
            if len(nearest) > most:
                elsewhere = bound
                break
        near = frozenset(nearest[:most])
        ranks |= near.union((first for _, first in best_now.values()), nsmallest(most, roomy))
        self._add_enough(ranks)
        return NearestNodes(near, elsewhere if len(roomy) <= most else 0)

    def _bounded(self) -> Iterator[tuple[int, UsageClass]]:
        """How many claims are in the way at least, and nodes of which that is true; without those that never do."""
        for node, _ in self.stats.classes():
            now = self._now(node)
            if now is not None and self._is_enough(self._on_empty(node.kind)):
                bounds = ((self._bound(sort, now), sort) for sort in self.stats.sorts_of(node))
                yield from ((bound, sort) for bound, sort in bounds if bound < IMPOSSIBLE)

    def _add_enough(self, chosen: set[int]) -> None:
        """As many candidates as any request wants, where the fleet has so many."""
        sizes = self.stats.sizes()
        for detail in self._requests:
            for _, request, _, kinds in detail:
                missing = min(request.min_count, sum(sizes.get(kind, 0) for kind in kinds))
                missing -= sum(self._size(self.stats.record(rank).pools, kinds) for rank in chosen)
                if missing <= 0:
                    continue
                for record in self.stats.in_order():
                    if missing <= 0:
                        break
                    if record.name is not None and record.rank not in chosen:
                        size = self._size(record.pools, kinds)
                        if size:
                            chosen.add(record.rank)
                            missing -= size

    def _size(self, pools: Sequence[PoolKind], kinds: frozenset[int]) -> int:
        return sum(
            size for pool in pools for kind, size in zip(pool.kinds, pool.sizes, strict=True) if kind.index in kinds
        )

    # -- the bound -----------------------------------------------------------------------------------------------------

    def _bound(self, sort: UsageClass, now: tuple[int, ...]) -> int:
        """How many claims must go at least, by counting; IMPOSSIBLE where the demand does not fit an empty node."""
        kind = sort.node.kind
        key = kind.index, now, sort.tenants
        if key not in self._bounds:
            if len(self._bounds) >= MAX_BOUNDS:
                self._bounds.clear()
            self._bounds[key] = self._find_bound(kind, now, sort.tenants)
        return self._bounds[key]

    def _is_enough(self, counts: Sequence[int]) -> bool:
        """Whether, by counting, the demand may fit where each request can have so much."""
        return all(
            any(counts[number] >= _requested_count(request) for number, request, *_ in detail)
            for detail in self._requests
        )

    def _find_bound(self, kind: NodeKind, now: tuple[int, ...], tenants: tuple[HeldKinds, ...]) -> int:
        empty = self._on_empty(kind)
        bound = 1
        for detail in self._requests:
            least = IMPOSSIBLE
            for number, request, _, kinds in detail:
                wanted = _requested_count(request)
                if request.mode not in (AllocationMode.WHOLE, AllocationMode.SHARE):
                    least = 0  # what others hold of it does not matter, or cannot be told by counting
                elif empty[number] >= wanted:
                    missing = wanted - now[number]
                    worth = self._worth(request, kinds) if missing > 0 else {}
                    parts = [sum(n * worth.get(held, 0) for held, n in holds) for holds in tenants] if worth else ()
                    least = min(least, min_parts(missing, parts))
            bound = max(bound, least)
        return bound

    def _on_empty(self, kind: NodeKind) -> tuple[int, ...]:
        if kind.index not in self._empty:
            relevant = self._relevant_of(kind)
            self._empty[kind.index] = self._most([(kind.pools[n], kind.pools[n].sizes, ()) for n in relevant])
        return self._empty[kind.index]

    def _now(self, node: NodeClass) -> tuple[int, ...] | None:
        """For each request the most free devices that go together; None for nodes without any candidate."""
        relevant = self._relevant_of(node.kind)
        if not relevant:
            return None
        states: list[PoolState] = [node.states[n] for n in relevant]
        key = tuple([state.index for state in states])
        most = self._best.get(key)
        if most is None:
            most = self._best[key] = self._most([(state.kind, state.free, state.shared) for state in states])
        return most

    def _relevant_of(self, kind: NodeKind) -> tuple[int, ...]:
        if kind.index not in self._relevant:
            wanted = self._wanted
            self._relevant[kind.index] = tuple(
                n for n, pool in enumerate(kind.pools) if any(each.index in wanted for each in pool.kinds)
            )
        return self._relevant[kind.index]

    def _worth(self, request: Request, kinds: frozenset[int]) -> dict[int, int]:
        """What a request can have of one device of each kind, at most."""
        if request.mode is not AllocationMode.SHARE:
            return dict.fromkeys(kinds, 1)
        name, table = min(request.requests), self.stats.index.kinds.kinds
        there = (table[kind] for kind in kinds if kind < len(table))  # an edit may add devices that there are not
        return {kind.index: r.nano for kind in there if (r := kind.one.resources.get(name)) is not None}

    def _most(
        self, pools: Sequence[tuple[PoolKind, Sequence[int], Sequence[tuple[int, ShareState]]]]
    ) -> tuple[int, ...]:
        most = []
        for detail in self._requests:
            for number, request, _, kinds in detail:
                if request.mode is AllocationMode.SHARE:
                    most.append(sum(self._amount(request, kinds, *pool) for pool in pools))
                    continue
                together: dict[object, int] = {}
                alone = 0
                for pool, free, _ in pools:
                    sizes: Sequence[int] = pool.sizes if request.mode.is_admin else free
                    for group, values in self._groups_of(number, pool):
                        count = sizes[group]
                        if count and values is None:
                            alone = 1
                        elif count:
                            together[values] = together.get(values, 0) + count
                most.append(max(alone, max(together.values(), default=0)))
        return tuple(most)

    def _groups_of(self, number: int, pool: PoolKind) -> Sequence[tuple[int, object | None]]:
        """The groups of a pool that count for a request, with the values that they must share with others; None where
        each device is alone with its own."""
        key = number, pool.index
        groups = self._groups.get(key)
        if groups is None:
            _, _, names, kinds = next(each for detail in self._requests for each in detail if each[0] == number)
            groups = self._groups[key] = []
            for group, kind in enumerate(pool.kinds):
                values = tuple(kind.value(name) for name in names) if kind.index in kinds else (None,)
                if (UNSHARED,) in values:
                    groups.append((group, None))
                elif None not in values:
                    groups.append((group, values))
        return groups

    def _amount(
        self,
        request: Request,
        kinds: frozenset[int],
        pool: PoolKind,
        free: Sequence[int],
        shared: Sequence[tuple[int, ShareState]],
    ) -> int:
        """What is left of the resource in a pool."""
        worth = self._worth(request, kinds)
        total = sum(count * worth.get(kind.index, 0) for kind, count in zip(pool.kinds, free, strict=True))
        for group, (whole, amounts) in shared:
            capacity = worth.get(pool.kinds[group].index, 0)
            if not whole:
                total += max(0, capacity - dict(amounts).get(min(request.requests), 0))
        return total


def _requested_count(request: Request) -> int:
    """Devices, or nano units of a share, without which a node will not do."""
    if request.mode is AllocationMode.SHARE:
        return request.requests[min(request.requests)]
    return request.fewest
