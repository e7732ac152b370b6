"""What a claim might have of pools and nodes, by counting devices: quick, and never less than what it can have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from operator import add

from devalloc_solver.demand import Demand, Mode, Slot
from devalloc_solver.index.states import NodeClass, NodeKind, PoolKind, PoolState


@dataclass(slots=True, eq=False)
class Tally:
    """Counts for one demand, whose slots have kinds as candidates; keeps what it has counted."""

    demand: Demand
    leasts: tuple[tuple[tuple[int, int], ...], ...] = field(init=False)
    """for each detail (number of a slot, devices that it takes at least)"""
    _slots: tuple[Slot, ...] = field(init=False)
    _states: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _rooms: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _groups: dict[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    """kind of pool -> for each slot the groups of its candidates"""
    _relevant: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        numbers = count()
        self.leasts = tuple(tuple((next(numbers), _least(slot)) for slot in each) for each in self.demand.details)
        self._slots = tuple(self.demand.slots)

    # -- kinds -------------------------------------------------------------------------------------------------------

    def relevant(self, kind: NodeKind) -> tuple[int, ...]:
        """The pools of a kind of node that have candidates."""
        known = self._relevant.get(kind.index)
        if known is None:
            known = tuple(number for number, pool in enumerate(kind.pools) if any(self._groups_of(pool)))
            self._relevant[kind.index] = known
        return known

    def room(self, pool: PoolKind) -> tuple[int, ...]:
        """For each slot the devices that a pool of this kind has for it."""
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
                tuple(n for n, kind in enumerate(pool.kinds) if kind.index in slot.candidates.accepted)
                for slot in self._slots
            )
        return self._groups[pool.index]

    # -- states ------------------------------------------------------------------------------------------------------

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
        """For each slot the devices of a pool that are left to it."""
        known = self._states.get(state.index)
        if known is None:
            known = self._states[state.index] = self._find_left(state)
        return known

    def _find_left(self, state: PoolState) -> tuple[int, ...]:
        found = []
        for slot, groups in zip(self._slots, self._groups_of(state.kind), strict=True):
            admin = slot.mode.is_admin
            sizes = state.kind.sizes if admin else state.free
            number = sum([sizes[group] for group in groups])
            if not admin and (slot.mode is Mode.SHARE or slot.portions):
                number += state.shareable
            found.append(number)
        return tuple(found)


def _least(slot: Slot) -> int:
    return slot.least if slot.mode in (Mode.WHOLE, Mode.ADMIN_COUNT) and not slot.portions else 1
