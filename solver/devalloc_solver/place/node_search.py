"""Place a unit: node by node, preferred ones first, one of each group of equal nodes.

Among covers of as few pools and devices, the one that the policy prefers (S17, goals 5 and 6).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any

from devalloc_solver.bounds.least_load import least_of
from devalloc_solver.place.components import PoolComponents, make_components
from devalloc_solver.place.counting_bounds import CountingBounds
from devalloc_solver.place.cover_dp import Cover, PolicyCost, cover, improve_cover, split_evenly
from devalloc_solver.place.demand_vector import DemandVector
from devalloc_solver.place.device_assignment import assign_devices
from devalloc_solver.place.match_values import MatchedCover, MatchValueSearch
from devalloc_solver.place.matching import can_match
from devalloc_solver.place.node_order import BatchNodes, LeastUse, NodeKeys, candidate_nodes, least_use, min_pools
from devalloc_solver.place.node_view import NodeView, Place, UnitReader
from devalloc_solver.place.search_context import SearchContext, score_of
from devalloc_solver.place.single_request import place_single_request, single_request_alternatives
from devalloc_solver.place.step_budget import (
    DEFAULT_STEPS,
    POLICY_STEPS,
    SearchTimeout,
    SharesInterfere,
    StepBudget,
    StepsExhausted,
)
from devalloc_solver.problem.allocations import Usage
from devalloc_solver.problem.demand import AllocationMode, PlacementUnit
from devalloc_solver.problem.loads import UNIT
from devalloc_solver.problem.placement import Placement
from devalloc_solver.problem.placement_policy import PACK, PlacementPolicy
from devalloc_solver.problem.placement_score import PlacementScore, alternatives_of
from devalloc_solver.problem.snapshot import Snapshot

MAX_OPEN_DETAILS = 800
"""Details with alternatives for which it is searched what to choose: the stack of Python bears about 950."""
Vector = tuple[int, ...]
"""The chosen index of each oneOf, in the order of claims and details."""


@dataclass(slots=True)
class AlternativeSearch:
    """Chooses on one node."""

    counting_bounds: CountingBounds
    steps: StepBudget

    def best(self, limit: Vector | None, *, any_will_do: bool = False) -> Sequence[MatchedCover]:
        """How the first choice that is no worse than ``limit`` is served: the best ways, or just one; none if there is
        no such choice."""
        allowed = self.counting_bounds.viable()
        details = self.counting_bounds.node_view.unit_requests.details
        if not all(mask & allowed for mask in details) or not self.counting_bounds.may_choose(allowed):
            return ()
        if sum(mask & (mask - 1) != 0 for mask in details) > MAX_OPEN_DETAILS:
            raise StepsExhausted("too many details with alternatives")
        for chosen in self._choices(0, 0, allowed, limit):
            try:
                settled = MatchValueSearch(self.counting_bounds, self.steps).settle(chosen, any_will_do=any_will_do)
            except SharesInterfere as error:
                error.chosen = chosen
                raise
            if settled:
                return settled
        return ()

    def vector(self, chosen: int) -> Vector:
        """Only of details that have a choice."""
        unit_requests = self.counting_bounds.node_view.unit_requests
        return tuple(a for indexed in unit_requests.of(chosen) if (a := indexed.request.alternative) is not None)

    def _choices(self, detail: int, chosen: int, allowed: int, limit: Vector | None) -> Iterator[int]:
        """Complete choices that the bounds let pass, best first. ``allowed``: what open details may still choose."""
        unit_requests = self.counting_bounds.node_view.unit_requests
        details = unit_requests.details
        # A detail with one alternative leaves no choice. A group may have thousands: calls for all would nest too deep.
        while detail < len(details) and details[detail] & (details[detail] - 1) == 0:
            self.steps.spend(1)
            chosen |= details[detail] & allowed
            if not details[detail] & allowed or self._is_worse(chosen, limit):
                return
            detail += 1
        if detail == len(details):
            yield chosen
            return
        tried: set[int] = set()
        for indexed in unit_requests.of(details[detail] & allowed):
            if indexed.kind in tried:
                continue
            tried.add(indexed.kind)
            self.steps.spend(len(details))
            picked = chosen | indexed.bit
            if self._is_worse(picked, limit):
                return
            left = allowed & ~details[detail] | indexed.bit
            if not self.counting_bounds.may_choose(left):
                continue
            yield from self._choices(detail + 1, picked, left, limit)

    def _is_worse(self, chosen: int, limit: Vector | None) -> bool:
        """Whether what is chosen so far is worse than ``limit`` allows."""
        return limit is not None and (vector := self.vector(chosen)) > limit[: len(vector)]


_RANK_WEIGHT, _LOSS_WEIGHT, _BUSY_WEIGHT, _NODE_WEIGHT, _DEVICE_WEIGHT = 1, 1 << 32, 1 << 64, 1 << 160, 1 << 224
"""Weights of which one always outweighs all that come before."""


def improve_for_policy(context: SearchContext, settled: MatchedCover, own: StepBudget) -> Cover:
    """The cover that the policy prefers, or the one at hand where that takes too long."""
    demand_vector, initial = settled.demand_vector, settled.cover
    node_view, policy = demand_vector.stock.node_view, context.policy
    if not initial.parts or (
        initial.components == initial.pools
        and not (policy.weighs_loads and (initial.pools > 1 or demand_vector.takes_portions))
        and not any(candidate_group.draws for candidate_group in node_view.candidate_groups)
    ):
        return initial
    try:
        components = make_components(
            demand_vector,
            own,
            context.partitions if policy.keeps_partitions else None,
            context.load_of if policy.weighs_loads else None,
        )
        if _prefers_network(context, demand_vector):
            network = [component for component in components if node_view.pools[component.pool].node is None]
            alone = cover(demand_vector, network, own, most=initial.pools)
            if alone is not None and (alone.pools, alone.cost) == (initial.pools, initial.cost):
                components, initial = network, alone
        cost = _policy_cost(context, node_view, components)
        even = split_evenly(demand_vector, components, initial, cost)
        if even is not None and len(components) == initial.pools:
            return even
        initial = even or initial
        return improve_cover(demand_vector, components, initial, cost, own)
    except StepsExhausted:
        return initial


def _policy_cost(context: SearchContext, node_view: NodeView, components: Sequence[PoolComponents]) -> PolicyCost:
    """What the policy weighs on a node: whether pools come into use, or how much of them, as far as the options say."""
    pools, policy = node_view.pools, context.policy
    weighed = {each.pool for each in components if any(option.load for cell in each.cells for option in cell.options)}

    def use(number: int, load: int) -> int:
        own = load if pools[number].node is not None else 0
        return _NODE_WEIGHT * own + _BUSY_WEIGHT * context.cost_of_pool(pools[number].index, load)

    opening = tuple(
        _RANK_WEIGHT * rank + (0 if rank in weighed else _BUSY_WEIGHT * context.cost_of_pool(pool.index, UNIT))
        for rank, pool in enumerate(pools)
    )
    loss = _LOSS_WEIGHT if policy.keeps_partitions else 0
    if not policy.weighs_loads:
        return PolicyCost(opening, _DEVICE_WEIGHT, loss)
    return PolicyCost(opening, _DEVICE_WEIGHT, loss, use, tuple([context.use(pool.index) for pool in pools]))


def _prefers_network(context: SearchContext, demand_vector: DemandVector) -> bool:
    """Whether network devices alone may bring less of the node into use: a group's own counts whatever it has."""
    node_view = demand_vector.stock.node_view
    bound = None if node_view.unit_requests.unit.group is None else node_view.node
    return context.cost_of_node(bound, 0) < context.cost_of_node(node_view.node, UNIT) and all(
        node_view.pools[number].node is None for number in demand_vector.stock.opened
    )


POLICY_SAMPLE = 64
"""Nodes to look at for the sake of the policy alone, once nothing else can be better. With 8 and with 512, 60 new
shapes on 200 nodes get the same devices in as many steps."""


@dataclass(frozen=True, slots=True)
class UnitPlacement:
    """Where a unit goes."""

    placements: tuple[Placement, ...]
    score: PlacementScore
    is_proven: bool = True
    """No other is better. False if the deadline passed before that was certain."""


def place(
    snapshot: Snapshot,
    usage: Usage,
    unit: PlacementUnit,
    *,
    policy: PlacementPolicy = PACK,
    steps: int | StepBudget = DEFAULT_STEPS,
    batch: BatchNodes | None = None,
    undecided: list[tuple[PlacementScore, Place]] | None = None,
) -> UnitPlacement | None:
    """The best placement of a unit on what is free: proven for goals 2 to 4 of S17. None: it fits nowhere, proven.

    After a deadline, the best that was found until then.

    Args:
        snapshot: the fleet.
        usage: what is in use.
        unit: claims that share a node and are placed all or none.
        policy: how to choose where goals 2 to 4 are reached (goal 5).
        steps: the budget, with a deadline if it has one.
        batch: the nodes of a batch, of which units were placed before this one.
        undecided: gets the nodes where shares meet, with a score that cannot be beaten there; they are left out.

    Raises:
        SearchTimeout: the deadline has passed, and nothing was found until then.
        StepsExhausted: the budget is spent, or the unit has something that this search does not handle.
    """
    context = SearchContext(snapshot, usage, policy)
    seek = _NodeSearch(context, unit, _budget(steps))
    if batch is not None:
        seek.cache = batch.cache
    is_proven = True
    least = least_use(context, unit)
    nodes = candidate_nodes(context, unit, batch, least.load)
    node, budget = None, seek.steps.left
    left = budget
    try:
        for node, after in zip_longest(nodes, nodes[1:]):
            left = seek.steps.left
            try:
                seek.look(node)
            except SharesInterfere as error:
                if undecided is None:
                    raise
                undecided.append((error.bound, node))
            if seek.is_over(after, least):
                break
    except SearchTimeout:
        if seek.best is None:
            raise
        is_proven = False
    except StepsExhausted as error:
        error.node = node if left == budget else None
        raise
    if batch is not None:
        batch.note_full(unit, seek.without_room)
    return seek.best if is_proven or seek.best is None else replace(seek.best, is_proven=False)


def place_on(
    snapshot: Snapshot,
    usage: Usage,
    unit: PlacementUnit,
    node: Place,
    *,
    policy: PlacementPolicy = PACK,
    steps: int | StepBudget = DEFAULT_STEPS,
    any_will_do: bool = False,
    reader: UnitReader | None = None,
) -> UnitPlacement | None:
    """The same on one node (None: network devices only), whatever node the unit is pinned to.

    ``steps`` may be a budget that several questions share. ``any_will_do``: some placement, and not the best.
    ``reader``: shared by callers that ask several questions about the same claims.
    """
    context = SearchContext(snapshot, usage, policy)
    seek = _NodeSearch(context, unit, _budget(steps), any_will_do=any_will_do, reader=reader)
    seek.look(node)
    return seek.best


def fits(
    snapshot: Snapshot,
    usage: Usage,
    unit: PlacementUnit,
    *,
    steps: int | StepBudget = DEFAULT_STEPS,
    reader: UnitReader | None = None,
) -> bool:
    """Whether the unit fits anywhere it may go; less work than to say where best. Raises StepsExhausted.

    ``steps`` may be a budget that several questions share; for ``reader`` see ``place_on``.
    """
    context = SearchContext(snapshot, usage, PACK)
    seek = _NodeSearch(context, unit, _budget(steps), reader=reader)
    return any(seek.may_go(node) for node in candidate_nodes(context, unit))


def fits_on(
    snapshot: Snapshot, usage: Usage, unit: PlacementUnit, node: Place, *, steps: StepBudget, reader: UnitReader
) -> bool:
    """The same for one node (None: wherever it may go)."""
    if node is None:
        return fits(snapshot, usage, unit, steps=steps, reader=reader)
    pinned = replace(unit, pin=node)
    matches = can_match(snapshot, usage, pinned, node)
    return fits(snapshot, usage, pinned, steps=steps, reader=reader) if matches is None else matches


def _budget(steps: int | StepBudget) -> StepBudget:
    return steps if isinstance(steps, StepBudget) else StepBudget(steps)


def _preference(rival: UnitPlacement) -> tuple[Any, ...]:
    """Goals 2 to 5 of S17, then the natural order of pools, and of the devices of each claim."""
    pools = sorted({entry.device.pool for placed in rival.placements for entry in placed.entries})
    devices = [sorted([entry.device.index for entry in placed.entries]) for placed in rival.placements]
    return rival.score[:-1], pools, devices


class _NodeSearch:
    """Goes from node to node and keeps the best."""

    def __init__(
        self,
        context: SearchContext,
        unit: PlacementUnit,
        steps: StepBudget,
        *,
        any_will_do: bool = False,
        reader: UnitReader | None = None,
    ) -> None:
        self.context, self.unit, self.steps, self.any_will_do = context, unit, steps, any_will_do
        self.reader = reader or UnitReader()
        self.requests = single_request_alternatives(unit, weighs_loads=context.policy.weighs_loads)
        self.best: UnitPlacement | None = None
        self.cache: dict[object, Any] = {}
        self.without_room: list[Place] = []
        """nodes where it is certain that there is none"""
        self.policy_sampled = 0
        """nodes looked at since goals 2 to 4 were reached"""
        self._floor: tuple[int, int] | None = None
        """(pools, devices) below which no node can be"""
        self._first: NodeView | None = None
        """the first node, which is compared once there is a second one"""
        self._keys = NodeKeys(context)
        network = sum(len(pool.devices) for pool in context.snapshot.pools_by_node.get(None, ()))
        self._network_groups = 1 + network // 256
        """what it costs to pass over the network devices for a node, in candidate groups"""
        self._seen: set[object] = set()

    def look(self, node: Place) -> None:
        """Place the unit on a node, if that may be better than what was found so far."""
        self.steps.look_at(self._network_groups)
        answer = place_single_request(self.context, self.unit, self.requests, node) if self.requests else True
        placed: UnitPlacement | None = None
        if not isinstance(answer, bool):
            placed = UnitPlacement((answer[0],), answer[1])
        elif answer:
            placed = self._search(node)
        if placed is None and self.best is None:
            self.without_room.append(node)
        if placed is not None and (self.best is None or placed.score < self.best.score):
            self.best = placed

    def may_go(self, node: Place) -> bool:
        """Whether the unit fits on a node; not asked again of one like it."""
        self.steps.look_at(self._network_groups)
        answer = place_single_request(self.context, self.unit, self.requests, node) if self.requests else True
        if not isinstance(answer, bool):
            return True
        if not answer or (chooser := self._chooser(node)) is None:
            return False
        return bool(chooser.best(None, any_will_do=True))

    def is_over(self, after: Place, least: LeastUse) -> bool:
        """Whether no node after the last one can be better, or only in a preference that was sought for long enough.

        Nodes come in the order of the policy, so those to come, the first of which is ``after``, are no better than the
        best in that, unless devices of the network alone are; to spread, no better than ``least`` would be there.
        """
        if self.best is None or not self._is_optimal(self.best.score):
            return False
        score = self.best.score
        self.policy_sampled += 1
        if self.context.policy.weighs_loads:
            growth = self.context.cost_of_node(after, least.load)
            if score.node_cost < growth:
                return True
            liked = score.node_cost == growth and score.pools == 1 and score.pool_cost <= least.one_pool
        else:
            liked = not self._may_be_on_network_alone if score.node_cost else not score.pool_cost
        return bool(liked and not score.partition_loss) or self.policy_sampled > POLICY_SAMPLE

    def _is_optimal(self, score: PlacementScore) -> bool:
        """Whether goals 2 to 4 are as good as on any node could be."""
        if self._floor is None:
            requests = [detail[0] for demand in self.unit.demands for detail in demand.details]
            whole = sum(request.min_count for request in requests if request.takes_whole)
            self._floor = min_pools(self.context.snapshot, self.unit, self.cache), max(1, whole)
        return not any(score.one_of) and (score.pools, score.devices) == self._floor

    @cached_property
    def _may_be_on_network_alone(self) -> bool:
        """Whether every detail has candidates of the network, so that perhaps no node comes into use."""
        if not self.unit.is_free:
            return False
        network = [device for pool in self.context.snapshot.pools_by_node.get(None, ()) for device in pool.devices]
        details = (detail for demand in self.unit.demands for detail in demand.details)
        return bool(network) and all(
            any(device.index in request.candidates.accepted for request in detail for device in network)
            for detail in details
        )

    def _search(self, node: Place) -> UnitPlacement | None:
        if (chooser := self._chooser(node)) is None:
            return None
        limit = None if self.best is None else self.best.score.one_of
        rivals: list[UnitPlacement] = []
        most = min(POLICY_STEPS, self.steps.left)
        own = StepBudget(most, self.steps.deadline)
        try:
            ways = chooser.best(limit, any_will_do=self.any_will_do)
        except SharesInterfere as error:
            error.bound = self._bound(chooser.counting_bounds.node_view, error)
            raise
        for settled in ways:
            liked = settled.cover if self.any_will_do else improve_for_policy(self.context, settled, own)
            placements = assign_devices(settled.demand_vector, liked, settled.chosen)
            where = placements[0].node  # none where all devices are of the network
            rivals.append(UnitPlacement(placements, score_of(self.context, placements, where)))
        self.steps.left -= most - max(0, own.left)
        return min(rivals, key=_preference) if len(rivals) > 1 else rivals[0] if rivals else None

    def _bound(self, node_view: NodeView, error: SharesInterfere) -> PlacementScore:
        """A score that cannot be beaten on a node where shares meet."""
        chosen = [*node_view.unit_requests.of(error.chosen)]
        requests = [indexed.request for indexed in chosen]
        shares = sum(request.mode is AllocationMode.SHARE for request in requests)
        cost = load = 0
        if not node_view.network.candidate_groups:
            if self.context.policy.weighs_loads:
                scale = self.context.usage.loads.scale
                for indexed in chosen:
                    groups = [group for group in node_view.candidate_groups if group.accepted & indexed.bit]
                    devices = [(group.number, group.one, scale(group.one.pool)) for group in groups]
                    load += least_of(indexed.request, devices) or 0
            cost = self.context.cost_of_node(node_view.node, load)
        return PlacementScore(alternatives_of(requests), *error.least, shares, cost)

    def _chooser(self, node: Place) -> AlternativeSearch | None:
        """None for a node like one that was looked at."""
        node_view = self.reader.view(self.unit, self.context.snapshot, self.context.usage, node)
        if self._first is None:
            self._first = node_view
        else:
            self._seen = self._seen or {self._keys.key(self._first)}
            kind = self._keys.key(node_view)
            if kind in self._seen:
                return None
            self._seen.add(kind)
        self.steps.look_at(len(node_view.candidate_groups))
        return AlternativeSearch(CountingBounds(node_view), self.steps)
