"""Upper bounds by counting: what a claim can have of pools and nodes at most."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from operator import add

from devalloc_solver.fleet.pool_states import NodeClass, NodeKind, PoolKind, PoolState
from devalloc_solver.problem.demand import AllocationMode, Demand, Request


@dataclass(slots=True, eq=False)
class CountBounds:
    """Counts for one demand, whose requests have kinds as candidates; keeps what it has counted."""

    demand: Demand
    leasts: tuple[tuple[tuple[int, int], ...], ...] = field(init=False)
    """for each detail (number of a request, devices that it takes at least)"""
    _requests: tuple[Request, ...] = field(init=False)
    _states: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _rooms: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _groups: dict[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    """kind of pool -> for each request the groups of its candidates"""
    _relevant: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        numbers = count()
        self.leasts = tuple(
            tuple((next(numbers), _min_devices(request)) for request in each) for each in self.demand.details
        )
        self._requests = tuple(self.demand.requests)

    # -- kinds ---------------------------------------------------------------------------------------------------------

    def relevant(self, kind: NodeKind) -> tuple[int, ...]:
        """The pools of a kind of node that have candidates."""
        cached = self._relevant.get(kind.index)
        if cached is None:
            cached = tuple(number for number, pool in enumerate(kind.pools) if any(self._groups_of(pool)))
            self._relevant[kind.index] = cached
        return cached

    def room(self, pool: PoolKind) -> tuple[int, ...]:
        """For each request the devices that a pool of this kind has for it."""
        if pool.index not in self._rooms:
            self._rooms[pool.index] = tuple(sum(pool.sizes[n] for n in groups) for groups in self._groups_of(pool))
        return self._rooms[pool.index]

    def fewest_pools(self, kind: NodeKind) -> int:
        """Pools that are needed at least: those of each detail where no two want the same pool, else of the largest."""
        rooms = [self.room(kind.pools[number]) for number in self.relevant(kind)]
        needs, wanted = [], 0
        for detail in self.leasts:
            most = [max(room[number] for room in rooms) for number, _ in detail]
            takes = [-(-least // room) for (_, least), room in zip(detail, most, strict=True) if room]
            needs.append(min(takes, default=1))
            wanted += sum(any(room[number] for number, _ in detail) for room in rooms)
        alone = wanted == sum(any(room) for room in rooms)
        return sum(needs) if alone else max(needs)

    def _groups_of(self, pool: PoolKind) -> tuple[tuple[int, ...], ...]:
        if pool.index not in self._groups:
            self._groups[pool.index] = tuple(
                tuple(n for n, kind in enumerate(pool.kinds) if kind.index in request.candidates.accepted)
                for request in self._requests
            )
        return self._groups[pool.index]

    # -- states --------------------------------------------------------------------------------------------------------

    def may_fit(self, node: NodeClass) -> bool:
        """Whether the numbers leave it possible on nodes of a class."""
        relevant = self.relevant(node.kind)
        if not relevant:
            return False
        sums: Iterable[int] = self._left(node.states[relevant[0]])
        for number in relevant[1:]:
            sums = map(add, sums, self._left(node.states[number]))
        return self._is_enough([*sums])

    def may_fit_in(self, state: PoolState) -> bool:
        """The same of a pool alone."""
        return self._is_enough(self._left(state))

    def _is_enough(self, left: Sequence[int]) -> bool:
        return all(any(left[number] >= least for number, least in detail) for detail in self.leasts)

    def _left(self, state: PoolState) -> tuple[int, ...]:
        """For each request the devices of a pool that are left to it."""
        cached = self._states.get(state.index)
        if cached is None:
            cached = self._states[state.index] = self._find_left(state)
        return cached

    def _find_left(self, state: PoolState) -> tuple[int, ...]:
        counts = []
        for request, groups in zip(self._requests, self._groups_of(state.kind), strict=True):
            admin = request.mode.is_admin
            sizes = state.kind.sizes if admin else state.free
            number = sum([sizes[group] for group in groups])
            if not admin and (request.mode is AllocationMode.SHARE or request.portions):
                number += state.shareable
            counts.append(number)
        return tuple(counts)


def _min_devices(request: Request) -> int:
    return (
        request.least
        if request.mode in (AllocationMode.WHOLE, AllocationMode.ADMIN_COUNT) and not request.portions
        else 1
    )
