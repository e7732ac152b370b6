"""Fast path for what most claims ask: whole devices by count, each request from its own pools.

It computes everything from counts of free devices, pool state by pool state, and caches it for each state. A claim that
is not simple on some kind of node goes to the exact search there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice, product

from devalloc_solver.bounds.largest_partition import Losses
from devalloc_solver.fleet.equal_devices import UNSHARED, EqualDevices
from devalloc_solver.fleet.node_class_plan import NodeClassPlan, PlanPart
from devalloc_solver.fleet.pool_states import NodeClass, NodeKind, PartState, PoolKind, PoolState
from devalloc_solver.place.match_values import MAX_EQUAL
from devalloc_solver.problem.demand import Demand, Request
from devalloc_solver.problem.placement_policy import PlacementPolicy
from devalloc_solver.problem.placement_score import PlacementScore, alternatives_of

MAX_COMBINATIONS = 64
"""Choices of alternatives that are tried one after the other. With 8, 60 new shapes on 200 nodes get the same devices
in the same time."""

Values = tuple[object, ...]
NO_LOSSES: Losses = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class PoolOption:
    """What a pool has for a request at one choice of match values."""

    count: int
    """devices that can be had together, up to the largest request"""
    groups: tuple[int, ...]
    loss: int
    """what is lost of the largest devices (S17, goal 5)"""


@dataclass(frozen=True, slots=True)
class RequestOption:
    """The best that one request can have at one choice of the claim's match values."""

    score: PlacementScore
    """of this request alone, and of its pools, which are its ``order``"""
    ways: tuple[tuple[PlanPart, ...], ...]
    """equally good ones, of the same pools"""


def has_fast_path(demand: Demand) -> bool:
    """Whether the claim's own form is plain; what it meets must be, too (``FastPath.pools_of``)."""
    combinations = 1
    for detail in demand.details:
        combinations *= len(detail)
    return (
        combinations <= MAX_COMBINATIONS
        and not demand.relations
        and all(request.takes_whole and not request.requests and not request.limits for request in demand.requests)
        and (demand.most is None or sum(max(s.min_count for s in detail) for detail in demand.details) <= demand.most)
    )


@dataclass(slots=True)
class FastPath:
    """One plain shape; keeps what it finds out about kinds and states of pools."""

    demand: Demand
    policy: PlacementPolicy
    combinations: list[tuple[Request, ...]] = field(init=False)
    several: bool = field(init=False)
    _groups: dict[tuple[int, int], list[tuple[int, Values, Values]] | None] = field(default_factory=dict)
    _offers: dict[tuple[int, int], dict[Values, dict[Values, PoolOption]]] = field(default_factory=dict)
    _choices: dict[tuple[int, ...], dict[Values, RequestOption]] = field(default_factory=dict)
    """request, kind of node and states of the pools with candidates -> what the request can have there"""
    _pools: dict[int, dict[int, tuple[int, ...]] | None] = field(default_factory=dict)
    _parts: dict[tuple[int, PartState], dict[tuple[Values, Values], tuple[Losses, list[int], list[int]]]] = field(
        default_factory=dict
    )
    """request and part of a pool -> what one device of it costs"""
    _loads: dict[tuple[int, int], int] = field(default_factory=dict)
    """request and kind of node -> how much each of its devices there is, where the policy weighs it"""

    def __post_init__(self) -> None:
        self.combinations = list(product(*self.demand.details))
        self.several = len(self.demand.details) > 1

    # -- kinds of nodes ------------------------------------------------------------------------------------------------

    def pools_of(self, kind: NodeKind) -> dict[int, tuple[int, ...]] | None:
        """id of a request -> pools that have candidates; None where nodes of this kind are not plain for the claim."""
        if kind.index not in self._pools:
            self._pools[kind.index] = self._find_pools(kind)
        return self._pools[kind.index]

    def _find_pools(self, kind: NodeKind) -> dict[int, tuple[int, ...]] | None:
        pools: dict[int, tuple[int, ...]] = {}
        for request in self.demand.requests:
            numbers = []
            for number, pool in enumerate(kind.pools):
                groups = self._groups_of(request, pool)
                if groups is None:
                    return None
                if groups:
                    numbers.append(number)
            pools[id(request)] = tuple(numbers)
            if self.policy.weighs_loads:
                loads = {
                    kind.pools[number].scale.whole(kind.pools[number].kinds[group].one.draws)
                    for number in numbers
                    for group, _, _ in self._groups_of(request, kind.pools[number]) or ()
                }
                if len(loads) > 1:
                    return None  # which device it is decides how much of the node comes into use
                self._loads[id(request), kind.index] = loads.pop() if loads else 0
        for position, detail in enumerate(self.demand.details):
            others = {
                number
                for other in self.demand.details[position + 1 :]
                for request in other
                for number in pools[id(request)]
            }
            if any(number in others for request in detail for number in pools[id(request)]):
                return None
        return pools

    def _groups_of(self, request: Request, pool: PoolKind) -> list[tuple[int, Values, Values]] | None:
        """(group, values of the claim's match attributes, values of the request's); None when the pool is not plain."""
        key = (id(request), pool.index)
        if key not in self._groups:
            self._groups[key] = self._find_groups(request, pool)
        return self._groups[key]

    def _find_groups(self, request: Request, pool: PoolKind) -> list[tuple[int, Values, Values]] | None:
        valued: list[tuple[int, Values, Values]] = []
        draws = set()
        for group, kind in enumerate(pool.kinds):
            if kind.index not in request.candidates.accepted:
                continue
            one = kind.one
            if (
                one.compatibility is not None
                or one.shareable
                or any(isinstance(one.attributes.get(name), frozenset) for name in self._names(request))
            ):
                return None
            common = _values(kind, self.demand.match, comparable=self.several or request.min_count > 1)
            own = _values(kind, request.match, comparable=request.min_count > 1)
            draws.add(one.draws)
            if common is not None and own is not None:
                valued.append((group, common, own))
        return None if len(draws) > 1 and request.min_count > 1 else valued

    def _names(self, request: Request) -> Iterable[str]:
        return (*self.demand.match, *request.match)

    # -- classes of nodes ----------------------------------------------------------------------------------------------

    def solve(self, node: NodeClass, pools: dict[int, tuple[int, ...]]) -> NodeClassPlan | None:
        """The best recipe for nodes of a class; None when the claim does not fit there."""
        for combination in self.combinations:
            choices = self._choose(combination, node, pools)
            if choices:
                return self._recipe(combination, choices, node)
        return None

    def is_split(self, plan: NodeClassPlan, node: NodeClass) -> bool:
        """Whether a request takes of several pools what only a search tells how to split: partitions, any devices where
        the policy weighs loads, and else where a pool has more."""
        for way in plan.ways:
            by_request: dict[int, list[PlanPart]] = {}
            for part in way:
                if isinstance(part, PlanPart):
                    by_request.setdefault(id(part.request), []).append(part)
            if any(len(own) > 1 and any(self._has_choice(part, node) for part in own) for own in by_request.values()):
                return True
        return False

    def _has_choice(self, part: PlanPart, node: NodeClass) -> bool:
        kinds, free = node.kind.pools[part.pool].kinds, node.states[part.pool].free
        return (
            self.policy.weighs_loads
            or any(kinds[group].one.draws for group in part.groups)
            or part.count < sum([free[group] for group in part.groups])
        )

    def _choose(
        self, requests: Sequence[Request], node: NodeClass, pools: dict[int, tuple[int, ...]]
    ) -> Sequence[tuple[RequestOption, ...]]:
        """The best options of the requests at each choice of match values that is as good as any."""
        by_request: list[dict[Values, RequestOption]] = []
        for request in requests:
            own_pools = pools[id(request)]
            key = (id(request), node.kind.index, *[node.states[number].index for number in own_pools])
            options = self._choices.get(key)
            if options is None:
                options = self._choices[key] = self._options(request, node, own_pools)
            if not options:
                return ()
            by_request.append(options)
        rivals = [
            tuple([options[values] for options in by_request])
            for values in by_request[0]
            if all(values in options for options in by_request[1:])
        ]
        if len(rivals) < 2:
            return rivals
        scores = [*map(_common_score, rivals)]
        best = min(scores)
        equal = [rival for rival, score in zip(rivals, scores, strict=True) if score == best]
        return sorted(equal, key=lambda rival: sorted([_first_groups(option.ways[0]) for option in rival]))

    def _load(self, request: Request, node: NodeClass) -> int:
        """How much each device is that a request takes there; 0 where the policy does not weigh it."""
        return self._loads.get((id(request), node.kind.index), 0)

    def _options(self, request: Request, node: NodeClass, pools: tuple[int, ...]) -> dict[Values, RequestOption]:
        """What the request can have at each value of the claim's match attributes."""
        states, load = node.states, self._load(request, node)
        gathered: dict[Values, dict[Values, list[tuple[int, PoolOption]]]] = {}
        for number in pools:
            for common, of_own in self.offers(request, states[number]).items():
                by_value = gathered.setdefault(common, {})
                for own, offer in of_own.items():
                    by_value.setdefault(own, []).append((number, offer))
        options = {}
        for common, by_own in gathered.items():
            choices = [
                c for offers in by_own.values() if (c := self._choice(request, states, offers, load)) is not None
            ]
            if choices:
                best = min([choice.score for choice in choices])
                ways = [way for choice in choices if choice.score == best for way in choice.ways]
                options[common] = RequestOption(best, tuple(sorted(ways, key=_first_groups)))
        return options

    def _choice(
        self, request: Request, states: Sequence[PoolState], offers: list[tuple[int, PoolOption]], load: int
    ) -> RequestOption | None:
        need = request.min_count
        enough = [
            (self.policy.cost(states[number], need * load), offer.loss, number, offer)
            for number, offer in offers
            if offer.count >= need
        ]
        if enough:
            cost, loss, number, offer = min(enough, key=lambda each: each[:3])
            score = PlacementScore((), 1, need, 0, 0, cost, loss, (number,))
            return RequestOption(score, ((PlanPart(request, number, offer.groups, need),),))
        return self._from_several(request, states, offers, load)

    def _from_several(
        self, request: Request, states: Sequence[PoolState], offers: list[tuple[int, PoolOption]], load: int
    ) -> RequestOption | None:
        """The largest offers first, which needs the fewest pools; the last pool is any that has the rest."""
        need = request.min_count
        if sum(offer.count for _, offer in offers) < need:
            return None
        left = sorted(offers, key=lambda e: (-e[1].count, self.policy.cost(states[e[0]], load), e[1].loss, e[0]))
        taken: list[tuple[int, PoolOption, int]] = []
        while need:
            fitting = [each for each in left if each[1].count >= need]
            number, offer = (
                min(fitting, key=lambda e: (self.policy.cost(states[e[0]], load), e[1].loss, e[0]))
                if fitting
                else left[0]
            )
            left.remove((number, offer))
            taken.append((number, offer, min(need, offer.count)))
            need -= taken[-1][2]
        taken.sort(key=lambda each: each[0])
        score = PlacementScore(
            (),
            len(taken),
            request.min_count,
            pool_cost=sum(self.policy.cost(states[number], count * load) for number, _, count in taken),
            partition_loss=sum(offer.loss for _, offer, _ in taken),
            order=tuple(number for number, _, _ in taken),
        )
        parts = tuple(PlanPart(request, number, offer.groups, count) for number, offer, count in taken)
        return RequestOption(score, (parts,))

    def _recipe(
        self, requests: Sequence[Request], choices: Sequence[tuple[RequestOption, ...]], node: NodeClass
    ) -> NodeClassPlan:
        load = sum(self._load(request, node) * request.min_count for request in requests)
        score = _common_score(choices[0])._replace(
            one_of=alternatives_of(requests), node_cost=self.policy.cost(node, load), order=()
        )
        ways = (way for options in choices for way in product(*[option.ways for option in options]))
        return NodeClassPlan(score, tuple([sum(way, ()) for way in islice(ways, MAX_EQUAL)]), local=True)

    # -- states of pools -----------------------------------------------------------------------------------------------

    def offers(self, request: Request, state: PoolState) -> dict[Values, dict[Values, PoolOption]]:
        key = (id(request), state.index)
        offers = self._offers.get(key)
        if offers is None:
            offers = self._offers[key] = self._find_offers(request, state)
        return offers

    def _find_offers(self, request: Request, state: PoolState) -> dict[Values, dict[Values, PoolOption]]:
        by_value: dict[Values, dict[Values, PoolOption]] = {}
        if request.min_count == 1 and state.kind.blocks:
            for (common, own), ((loss, *_), one_of) in self._cheapest(request, state).items():
                by_value.setdefault(common, {})[own] = PoolOption(1, tuple(sorted(one_of)), loss)
            return by_value
        gathered: dict[tuple[Values, Values], list[int]] = {}
        for group, common, own in self._groups_of(request, state.kind) or ():
            if state.free[group]:
                gathered.setdefault((common, own), []).append(group)
        for (common, own), groups in gathered.items():
            count, loss = sum([state.free[group] for group in groups]), 0
            if draws := state.kind.kinds[groups[0]].one.draws:  # all groups draw alike
                count = min(count, *(state.left[name] // blocks for name, blocks in draws))
                most = min(count, request.min_count)
                loss = state.partition_loss(groups[0], most) if self.policy.keeps_partitions else 0
            if count:
                by_value.setdefault(common, {})[own] = PoolOption(count, tuple(groups), loss)
        return by_value

    def _cheapest(self, request: Request, state: PoolState) -> dict[tuple[Values, Values], tuple[Losses, list[int]]]:
        """At each choice of values what one device costs at least, and the groups whose devices cost that."""
        best: dict[tuple[Values, Values], tuple[Losses, list[int]]] = {}
        sizes_differ = state.sizes_differ
        for number, part in enumerate(state.parts):
            options = self._parts.get((id(request), part))
            if options is None:
                options = self._options_of_part(request, state.kind, number, part)
                self._parts[id(request), part] = options
            for values, (least, cheapest, fitting) in options.items():
                loss, groups = (least, cheapest) if sizes_differ else (NO_LOSSES, fitting)
                before = best.get(values)
                if before is None or loss < before[0]:
                    best[values] = loss, [*groups]
                elif loss == before[0]:
                    before[1].extend(groups)
        return best

    def _options_of_part(
        self, request: Request, kind: PoolKind, number: int, state: PartState
    ) -> dict[tuple[Values, Values], tuple[Losses, list[int], list[int]]]:
        """At each choice of values (least loss, the groups of that loss, all groups) of which a device can be had."""
        gathered: dict[tuple[Values, Values], list[tuple[Losses, int]]] = {}
        free = dict(zip(state.part.groups, state.free, strict=True))
        for group, common, own in self._groups_of(request, kind) or ():
            if kind.part_of[group] == number and free[group]:
                draws = kind.kinds[group].one.draws
                if all(state.left[name] >= blocks for name, blocks in draws):
                    lost = NO_LOSSES
                    if draws and self.policy.keeps_partitions:
                        lost = state.losses(group)
                        if self.several:  # the search, which they share with others, looks at the largest only
                            lost = (lost[0], 0, 0)
                    gathered.setdefault((common, own), []).append((lost, group))
        options = {}
        for values, costs in gathered.items():
            least = min(costs)[0]
            options[values] = least, [g for loss, g in costs if loss == least], [g for _, g in costs]
        return options


def _first_groups(way: Sequence[PlanPart]) -> list[tuple[int, int]]:
    """Where its first devices are, more or less: of very many equal ways, only the first ones are compared."""
    return [(part.pool, part.groups[0]) for part in way]


def _common_score(choices: Sequence[RequestOption]) -> PlacementScore:
    """The score of requests that have no pool in common."""
    pools = devices = cost = loss = 0
    for choice in choices:
        score = choice.score
        pools += score.pools
        devices += score.devices
        cost += score.pool_cost
        loss += score.partition_loss
    order = sorted([pool for choice in choices for pool in choice.score.order])
    return PlacementScore((), pools, devices, 0, 0, cost, loss, tuple(order))


def _values(kind: EqualDevices, names: Iterable[str], *, comparable: bool) -> Values | None:
    """The values of match attributes; None where one is missing, or can equal no other although it must.

    Where a device is compared with none, only that it has them counts.
    """
    values = []
    for name in names:
        value = kind.value(name)
        if value is None or (comparable and value == (UNSHARED,)):
            return None
        values.append(value)
    return tuple(values) if comparable else ()
