"""The quick way for what most claims ask: whole devices by count, each request from pools of its own.

Everything is worked out from counts of free devices, pool state by pool state, and remembered for each of these. What
is not plain on some kind of node goes to the exact search there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product

from devalloc_solver.demand import Demand, Mode, Slot
from devalloc_solver.index.kinds import ALONE, Kind
from devalloc_solver.index.losses import Losses
from devalloc_solver.index.recipe import Part, Recipe
from devalloc_solver.index.states import NodeClass, NodeKind, PoolKind, PoolState
from devalloc_solver.loads import added

MAX_COMBINATIONS = 64
"""Choices of alternatives that are tried one after the other."""

Values = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Offer:
    """What a pool has for a slot at one choice of match values."""

    count: int
    """devices that can be had together, as far as anybody needs"""
    groups: tuple[int, ...]
    loss: int
    """what is lost of the largest devices (S17, goal 5); see ``loss_of``"""


@dataclass(frozen=True, slots=True)
class Choice:
    """The best that one slot can have at one choice of the claim's match values; compared in this order."""

    pools: int
    idle: int
    loss: int
    places: tuple[tuple[int, int], ...]
    parts: tuple[Part, ...]


def is_plain(demand: Demand) -> bool:
    """Whether the claim's own form is plain; what it meets must be, too (``Plain.pools_of``)."""
    combinations = 1
    for detail in demand.details:
        combinations *= len(detail)
    return (
        combinations <= MAX_COMBINATIONS
        and not demand.relations
        and all(
            slot.mode is Mode.WHOLE and not slot.requests and not slot.limits and not slot.portions
            for slot in demand.slots
        )
        and (demand.most is None or sum(max(s.least for s in detail) for detail in demand.details) <= demand.most)
    )


@dataclass(slots=True)
class Plain:
    """One plain shape; keeps what it finds out about kinds and states of pools."""

    demand: Demand
    spread: bool
    combinations: list[tuple[Slot, ...]] = field(init=False)
    several: bool = field(init=False)
    _groups: dict[tuple[int, int], list[tuple[int, Values, Values]] | None] = field(default_factory=dict)
    _offers: dict[tuple[int, int], dict[Values, dict[Values, Offer]]] = field(default_factory=dict)
    _choices: dict[tuple[int, ...], dict[Values, Choice]] = field(default_factory=dict)
    """slot, kind of node and states of the pools with candidates -> what the slot can have there"""
    _pools: dict[int, dict[int, tuple[int, ...]] | None] = field(default_factory=dict)
    _losses: Losses = field(default_factory=Losses)

    def __post_init__(self) -> None:
        self.combinations = list(product(*self.demand.details))
        self.several = len(self.demand.details) > 1

    # -- kinds of nodes ----------------------------------------------------------------------------------------------

    def pools_of(self, kind: NodeKind) -> dict[int, tuple[int, ...]] | None:
        """id of a slot -> pools that have candidates; None where nodes of this kind are not plain for the claim."""
        if kind.index not in self._pools:
            self._pools[kind.index] = self._find_pools(kind)
        return self._pools[kind.index]

    def _find_pools(self, kind: NodeKind) -> dict[int, tuple[int, ...]] | None:
        found: dict[int, tuple[int, ...]] = {}
        for slot in self.demand.slots:
            mine = []
            for number, pool in enumerate(kind.pools):
                groups = self._groups_of(slot, pool)
                if groups is None:
                    return None
                if groups:
                    mine.append(number)
            found[id(slot)] = tuple(mine)
        for position, detail in enumerate(self.demand.details):
            others = {
                number for other in self.demand.details[position + 1 :] for slot in other for number in found[id(slot)]
            }
            if any(number in others for slot in detail for number in found[id(slot)]):
                return None
        return found

    def _groups_of(self, slot: Slot, pool: PoolKind) -> list[tuple[int, Values, Values]] | None:
        """(group, values of the claim's match attributes, values of the slot's); None when the pool is not plain."""
        key = (id(slot), pool.index)
        if key not in self._groups:
            self._groups[key] = self._find_groups(slot, pool)
        return self._groups[key]

    def _find_groups(self, slot: Slot, pool: PoolKind) -> list[tuple[int, Values, Values]] | None:
        found: list[tuple[int, Values, Values]] = []
        draws = set()
        for group, kind in enumerate(pool.kinds):
            if kind.index not in slot.candidates.accepted:
                continue
            one = kind.one
            if one.compatibility is not None or one.shareable or any(_is_list(kind, n) for n in self._names(slot)):
                return None
            common = _values(kind, self.demand.match, comparable=self.several or slot.least > 1)
            own = _values(kind, slot.match, comparable=slot.least > 1)
            draws.add(one.draws)
            if common is not None and own is not None:
                found.append((group, common, own))
        return None if len(draws) > 1 and slot.least > 1 else found

    def _names(self, slot: Slot) -> Iterable[str]:
        return (*self.demand.match, *slot.match)

    # -- classes of nodes --------------------------------------------------------------------------------------------

    def solve(self, node: NodeClass, pools: dict[int, tuple[int, ...]]) -> Recipe | None:
        """The best recipe for nodes of a class; None when the claim does not fit there."""
        for combination in self.combinations:
            choices = self._choose(combination, node, pools)
            if choices is not None:
                return self._recipe(combination, choices, node)
        return None

    def _choose(
        self, slots: Sequence[Slot], node: NodeClass, pools: dict[int, tuple[int, ...]]
    ) -> tuple[Choice, ...] | None:
        by_slot: list[dict[Values, Choice]] = []
        for slot in slots:
            mine = pools[id(slot)]
            key = (id(slot), node.kind.index, *[node.states[number].index for number in mine])
            options = self._choices.get(key)
            if options is None:
                options = self._choices[key] = self._options(slot, node.states, mine)
            if not options:
                return None
            by_slot.append(options)
        if len(by_slot) == 1:
            return (min(by_slot[0].values(), key=_rank),)
        rivals = [
            tuple([options[values] for options in by_slot])
            for values in by_slot[0]
            if all(values in options for options in by_slot[1:])
        ]
        return min(rivals, key=_rank_of_all, default=None)

    def _options(self, slot: Slot, states: Sequence[PoolState], pools: tuple[int, ...]) -> dict[Values, Choice]:
        """What the slot can have at each value of the claim's match attributes."""
        gathered: dict[Values, dict[Values, list[tuple[int, Offer]]]] = {}
        for number in pools:
            for common, of_own in self.offers(slot, states[number]).items():
                mine = gathered.setdefault(common, {})
                for own, offer in of_own.items():
                    mine.setdefault(own, []).append((number, offer))
        options = {}
        for common, by_own in gathered.items():
            choices = [c for offers in by_own.values() if (c := self._choice(slot, states, offers)) is not None]
            if choices:
                options[common] = choices[0] if len(choices) == 1 else min(choices, key=_rank)
        return options

    def _choice(self, slot: Slot, states: Sequence[PoolState], offers: list[tuple[int, Offer]]) -> Choice | None:
        need = slot.least
        enough = [
            (self._cost(states[number], need), offer.loss, number, offer)
            for number, offer in offers
            if offer.count >= need
        ]
        if enough:
            idle, loss, number, offer = min(enough, key=lambda each: each[:3])
            return Choice(1, idle, loss, ((number, offer.groups[0]),), (Part(slot, number, offer.groups, need),))
        return self._from_several(slot, states, offers)

    def _from_several(self, slot: Slot, states: Sequence[PoolState], offers: list[tuple[int, Offer]]) -> Choice | None:
        """The largest offers first, which needs the fewest pools; the last pool is any that has the rest."""
        need = slot.least
        if sum(offer.count for _, offer in offers) < need:
            return None
        left = sorted(offers, key=lambda e: (-e[1].count, self._cost(states[e[0]], 1), e[1].loss, e[0]))
        taken: list[tuple[int, Offer, int]] = []
        while need:
            fitting = [each for each in left if each[1].count >= need]
            number, offer = (
                min(fitting, key=lambda e: (self._cost(states[e[0]], 1), e[1].loss, e[0])) if fitting else left[0]
            )
            left.remove((number, offer))
            taken.append((number, offer, min(need, offer.count)))
            need -= taken[-1][2]
        taken.sort(key=lambda each: each[0])
        return Choice(
            len(taken),
            sum(self._cost(states[number], count) for number, _, count in taken),
            sum(offer.loss for _, offer, _ in taken),
            tuple((number, offer.groups[0]) for number, offer, _ in taken),
            tuple(Part(slot, number, offer.groups, count) for number, offer, count in taken),
        )

    def _recipe(self, slots: Sequence[Slot], choices: Sequence[Choice], node: NodeClass) -> Recipe:
        devices = sum(slot.least for slot in slots)
        score = (
            tuple(slot.alternative or 0 for slot in slots),
            sum(c.pools for c in choices),
            devices,
            devices,
            added(node.load, devices) if self.spread else int(not node.in_use),
            sum(c.idle for c in choices),
            sum(c.loss for c in choices),
        )
        return Recipe(score, tuple(part for choice in choices for part in choice.parts), local=True)

    # -- states of pools ---------------------------------------------------------------------------------------------

    def offers(self, slot: Slot, state: PoolState) -> dict[Values, dict[Values, Offer]]:
        key = (id(slot), state.index)
        found = self._offers.get(key)
        if found is None:
            found = self._offers[key] = self._find_offers(slot, state)
        return found

    def _find_offers(self, slot: Slot, state: PoolState) -> dict[Values, dict[Values, Offer]]:
        gathered: dict[tuple[Values, Values], list[int]] = {}
        for group, common, own in self._groups_of(slot, state.kind) or ():
            if state.free[group]:
                gathered.setdefault((common, own), []).append(group)
        found: dict[Values, dict[Values, Offer]] = {}
        for (common, own), groups in gathered.items():
            offer = self._offer(slot, state, groups)
            if offer is not None:
                found.setdefault(common, {})[own] = offer
        return found

    def _offer(self, slot: Slot, state: PoolState, groups: Sequence[int]) -> Offer | None:
        kinds = state.kind.kinds
        if not any(kinds[group].one.draws for group in groups):
            return Offer(sum(state.free[group] for group in groups), tuple(groups), 0)
        if slot.least > 1:  # all groups draw alike
            most = min(state.left[name] // blocks for name, blocks in kinds[groups[0]].one.draws)
            count = min(most, sum(state.free[group] for group in groups))
            return Offer(count, tuple(groups), self._loss(state, groups[0], min(count, slot.least))) if count else None
        fitting = [(self._loss(state, group, 1), group) for group in groups if _fits(state, kinds[group])]
        least = min((loss for loss, _ in fitting), default=0)
        return Offer(1, tuple(group for loss, group in fitting if loss == least), least) if fitting else None

    def _cost(self, state: PoolState, more: int) -> int:
        """How little the policy likes that so many more devices of a pool are in use; see ``Ground.cost_of_pool``."""
        return added(state.load, more) if self.spread else int(not state.in_use)

    def _loss(self, state: PoolState, group: int, count: int) -> int:
        return 0 if self.spread else self._losses.of(state, group, count)


def _rank(choice: Choice) -> tuple[object, ...]:
    return choice.pools, choice.idle, choice.loss, choice.places


def _rank_of_all(choices: tuple[Choice, ...]) -> tuple[object, ...]:
    pools = idle = loss = 0
    for choice in choices:
        pools += choice.pools
        idle += choice.idle
        loss += choice.loss
    return pools, idle, loss, [choice.places for choice in choices]


def _fits(state: PoolState, kind: Kind) -> bool:
    return all(blocks <= state.left[name] for name, blocks in kind.one.draws)


def _is_list(kind: Kind, name: str) -> bool:
    return isinstance(kind.one.attributes.get(name), frozenset)


def _values(kind: Kind, names: Iterable[str], *, comparable: bool) -> Values | None:
    """The values of match attributes; None where one is missing, or can equal no other although it must.

    Where a device is compared with none, only that it has them counts.
    """
    values = []
    for name in names:
        value = kind.value(name)
        if value is None or (comparable and value == (ALONE,)):
            return None
        values.append(value)
    return tuple(values) if comparable else ()
