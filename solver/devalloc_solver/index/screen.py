"""Which nodes an explanation has to look at: one of each kind, and those where the fewest claims are in the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import nsmallest

from devalloc_solver.blockers.claims import NEVER, fewest
from devalloc_solver.blockers.counting import match_names
from devalloc_solver.demand import Demand, Mode, Slot
from devalloc_solver.index.census import Census, Holds, Sort
from devalloc_solver.index.kinds import ALONE
from devalloc_solver.index.states import NodeClass, NodeKind, PoolKind, PoolState, Sharing

MOST_BOUNDS = 50_000
"""Ways in which nodes are held that are remembered; when there are more, all are forgotten."""
MOST_KINDS = 64
"""Kinds of nodes that are all looked at."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Nodes to look at."""

    ranks: tuple[int, ...]
    """ascending"""
    left: int
    """on every other node at least so many claims are in the way; NEVER when that goes for any number"""


@dataclass(slots=True)
class Screen:
    """Chooses nodes for one demand, whose slots have kinds as candidates.

    Slots are counted in devices, those that take shares in nano units of one resource that they ask for.
    """

    census: Census
    demand: Demand
    least: int = 1
    """claims that are in the way everywhere, for certain"""
    _slots: list[list[tuple[int, Slot, tuple[str, ...], frozenset[int]]]] = field(init=False)
    """per detail: (number, slot, match attributes, kinds)"""
    _wanted: frozenset[int] = field(init=False)
    _relevant: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """kind of node -> its pools with candidates"""
    _best: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)
    """states of the relevant pools -> for each slot the most devices that can be had together"""
    _empty: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """the same for each kind of node when nothing is in use"""
    _groups: dict[tuple[int, int], list[tuple[int, object | None]]] = field(default_factory=dict)
    """(slot, kind of pool) -> see ``_groups_of``"""
    _bounds: dict[tuple[int, tuple[int, ...], tuple[Holds, ...]], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._slots = []
        number = 0
        for detail in self.demand.details:
            mine = []
            for slot in detail:
                kinds = frozenset(slot.candidates.accepted)
                mine.append((number, slot, match_names(self.demand, slot), kinds))
                number += 1
            self._slots.append(mine)
        self._wanted = frozenset().union(*(kinds for detail in self._slots for *_, kinds in detail))

    def choose(self, most: int) -> Choice | None:
        """The ``most`` nodes with the fewest claims in the way, and of each kind the one where the least is in use.

        None when there are too many kinds.
        """
        emptiest = self.census.emptiest()
        if len(emptiest) > MOST_KINDS:
            return None
        ranked: list[tuple[int, int]] = []
        best_now: dict[int, tuple[int, int]] = {}
        for node, first in self.census.classes():
            now = self._now(node)
            if now is None:
                continue
            for number, count in enumerate(now):
                if number not in best_now or (-count, first) < best_now[number]:
                    best_now[number] = -count, first
            if self._fits_empty(node.kind):  # else any number of claims may go in vain
                for sort in self.census.sorts_of(node):
                    bound = self._bound(sort, now)
                    if bound < NEVER:
                        ranked.append((bound, sort.first))
        ranked_first = nsmallest(most + 1, ranked)
        chosen = {*emptiest.values(), *(first for _, first in best_now.values())}
        chosen |= {first for _, first in ranked_first[:most]}
        left = ranked_first[most][0] if len(ranked_first) > most else NEVER
        self._add_enough(chosen)
        return Choice(tuple(sorted(chosen)), left)

    def _add_enough(self, chosen: set[int]) -> None:
        """As many candidates as any slot wants, where the fleet has so many."""
        sizes = self.census.sizes()
        for detail in self._slots:
            for _, slot, _, kinds in detail:
                missing = min(slot.least, sum(sizes.get(kind, 0) for kind in kinds))
                missing -= sum(self._size(self.census.record(rank).pools, kinds) for rank in chosen)
                if missing <= 0:
                    continue
                for record in self.census.in_order():
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

    # -- the bound ---------------------------------------------------------------------------------------------------

    def _bound(self, sort: Sort, now: tuple[int, ...]) -> int:
        """How many claims must go at least, by counting; NEVER where the demand does not fit an empty node."""
        kind = sort.node.kind
        key = kind.index, now, sort.tenants
        if key not in self._bounds:
            if len(self._bounds) >= MOST_BOUNDS:
                self._bounds.clear()
            self._bounds[key] = self._find_bound(kind, now, sort.tenants)
        return self._bounds[key]

    def _fits_empty(self, kind: NodeKind) -> bool:
        """Whether, by counting, the demand may fit a node of this kind where nothing is in use."""
        empty = self._on_empty(kind)
        return all(
            any(
                (empty[number] or slot.mode is Mode.ADMIN_ALL) if slot.mode.is_admin else empty[number] >= _wanted(slot)
                for number, slot, *_ in detail
            )
            for detail in self._slots
        )

    def _find_bound(self, kind: NodeKind, now: tuple[int, ...], tenants: tuple[Holds, ...]) -> int:
        empty = self._on_empty(kind)
        bound = self.least
        for detail in self._slots:
            least = NEVER
            for number, slot, _, kinds in detail:
                wanted = _wanted(slot)
                if slot.mode.is_admin:
                    least = 0 if empty[number] or slot.mode is Mode.ADMIN_ALL else least
                elif empty[number] >= wanted:
                    missing = wanted - now[number]
                    worth = self._worth(slot, kinds) if missing > 0 else {}
                    parts = [sum(n * worth.get(held, 0) for held, n in holds) for holds in tenants] if worth else ()
                    least = min(least, fewest(missing, parts))
            bound = max(bound, least)
        return bound

    def _on_empty(self, kind: NodeKind) -> tuple[int, ...]:
        if kind.index not in self._empty:
            relevant = self._relevant_of(kind)
            self._empty[kind.index] = self._most([(kind.pools[n], kind.pools[n].sizes, ()) for n in relevant])
        return self._empty[kind.index]

    def _now(self, node: NodeClass) -> tuple[int, ...] | None:
        """For each slot the most free devices that go together; None for nodes without any candidate."""
        relevant = self._relevant_of(node.kind)
        if not relevant:
            return None
        states: list[PoolState] = [node.states[n] for n in relevant]
        key = tuple([state.index for state in states])
        found = self._best.get(key)
        if found is None:
            found = self._best[key] = self._most([(state.kind, state.free, state.shared) for state in states])
        return found

    def _relevant_of(self, kind: NodeKind) -> tuple[int, ...]:
        if kind.index not in self._relevant:
            wanted = self._wanted
            self._relevant[kind.index] = tuple(
                n for n, pool in enumerate(kind.pools) if any(each.index in wanted for each in pool.kinds)
            )
        return self._relevant[kind.index]

    def _worth(self, slot: Slot, kinds: frozenset[int]) -> dict[int, int]:
        """What a slot can have of one device of each kind, at most."""
        if slot.mode is not Mode.SHARE:
            return dict.fromkeys(kinds, 1)
        name, known = min(slot.requests), self.census.index.kinds.kinds
        there = (known[kind] for kind in kinds if kind < len(known))  # an edit may add devices that there are not
        return {kind.index: r.nano for kind in there if (r := kind.one.resources.get(name)) is not None}

    def _most(self, pools: Sequence[tuple[PoolKind, Sequence[int], Sequence[tuple[int, Sharing]]]]) -> tuple[int, ...]:
        found = []
        for detail in self._slots:
            for number, slot, _, kinds in detail:
                if slot.mode is Mode.SHARE:
                    found.append(sum(self._amount(slot, kinds, *pool) for pool in pools))
                    continue
                together: dict[object, int] = {}
                alone = 0
                for pool, free, _ in pools:
                    sizes: Sequence[int] = pool.sizes if slot.mode.is_admin else free
                    for group, values in self._groups_of(number, pool):
                        count = sizes[group]
                        if count and values is None:
                            alone = 1
                        elif count:
                            together[values] = together.get(values, 0) + count
                found.append(max(alone, max(together.values(), default=0)))
        return tuple(found)

    def _groups_of(self, number: int, pool: PoolKind) -> Sequence[tuple[int, object | None]]:
        """The groups of a pool that count for a slot, with the values that they must share with others; None where
        each device is alone with its own."""
        key = number, pool.index
        found = self._groups.get(key)
        if found is None:
            _, _, names, kinds = next(each for detail in self._slots for each in detail if each[0] == number)
            found = self._groups[key] = []
            for group, kind in enumerate(pool.kinds):
                values = tuple(kind.value(name) for name in names) if kind.index in kinds else (None,)
                if (ALONE,) in values:
                    found.append((group, None))
                elif None not in values:
                    found.append((group, values))
        return found

    def _amount(
        self,
        slot: Slot,
        kinds: frozenset[int],
        pool: PoolKind,
        free: Sequence[int],
        shared: Sequence[tuple[int, Sharing]],
    ) -> int:
        """What is left of the resource in a pool."""
        worth = self._worth(slot, kinds)
        total = sum(count * worth.get(kind.index, 0) for kind, count in zip(pool.kinds, free, strict=True))
        for group, (whole, amounts) in shared:
            capacity = worth.get(pool.kinds[group].index, 0)
            if not whole:
                total += max(0, capacity - dict(amounts).get(min(slot.requests), 0))
        return total


def _wanted(slot: Slot) -> int:
    return slot.requests[min(slot.requests)] if slot.mode is Mode.SHARE else slot.least
