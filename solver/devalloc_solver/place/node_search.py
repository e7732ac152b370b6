"""Place a unit: node by node, preferred ones first, one of each group of equal nodes.

The policy: among covers of as few pools and devices, the one that packs or spreads best (S17, goals 5 and 6).
"""

from __future__ import annotations

from dataclasses import dataclass

from devalloc_solver.place.alternatives import AlternativeSearch
from devalloc_solver.place.components import make_components
from devalloc_solver.place.counting_bounds import CountingBounds
from devalloc_solver.place.cover_dp import Cover, PolicyCost, improve_cover
from devalloc_solver.place.device_assignment import assign_devices
from devalloc_solver.place.match_values import MatchedCover
from devalloc_solver.place.node_order import candidate_nodes, min_pools, node_key
from devalloc_solver.place.node_view import NodeView, Place, view_node
from devalloc_solver.place.requests import UnitReader, UnitRequests
from devalloc_solver.place.score import PlacementScore, score_of
from devalloc_solver.place.search_context import SearchContext
from devalloc_solver.place.single_request import place_single_request, single_request_alternatives
from devalloc_solver.place.step_budget import DEFAULT_STEPS, StepBudget, StepsExhausted
from devalloc_solver.problem.allocations import Usage
from devalloc_solver.problem.balance import sum_of_squares
from devalloc_solver.problem.demand import AllocationMode, PlacementUnit
from devalloc_solver.problem.placement import Placement
from devalloc_solver.problem.snapshot import Snapshot

_POLICY_STEPS = 2_000
"""The policy is a preference: it may cost so much and no more."""
_RANK_WEIGHT, _LOSS_WEIGHT, _BUSY_WEIGHT, _DEVICE_WEIGHT = 1, 1 << 32, 1 << 64, 1 << 96
"""Weights of which one always outweighs all that come before."""


def improve_for_policy(ground: SearchContext, settled: MatchedCover, steps: StepBudget) -> Cover:
    """The cover to the taste of a policy, or the one at hand where that takes too long."""
    lanes, cover = settled.lanes, settled.cover
    pools = lanes.stock.site.pools
    if not cover.parts or (cover.components == cover.pools and not any(lot.draws for lot in lanes.stock.site.lots)):
        return cover
    own = StepBudget(min(_POLICY_STEPS, steps.left))
    try:
        components = make_components(lanes, own, ground.partitions if ground.packs else None)
        opening = tuple(
            _RANK_WEIGHT * rank + _BUSY_WEIGHT * ground.cost_of_pool(pool.index, 1) for rank, pool in enumerate(pools)
        )
        return improve_cover(
            lanes, components, cover, PolicyCost(opening, _DEVICE_WEIGHT, _LOSS_WEIGHT if ground.packs else 0), own
        )
    except StepsExhausted:
        return cover
    finally:
        steps.left -= min(_POLICY_STEPS, steps.left) - own.left


POLICY_SAMPLE = 64
"""Nodes to look at for the sake of the policy alone, once nothing else can be better."""


@dataclass(frozen=True, slots=True)
class UnitPlacement:
    """Where a unit goes."""

    placements: tuple[Placement, ...]
    score: PlacementScore


def place(
    snapshot: Snapshot, ledger: Usage, unit: PlacementUnit, *, placement: str = "pack", steps: int = DEFAULT_STEPS
) -> UnitPlacement | None:
    """The best placement of a unit on what is free: proven for goals 2 to 4 of S17. None: it fits nowhere, proven.

    Args:
        snapshot: the fleet.
        ledger: what is in use.
        unit: claims that share a node and are placed all or none.
        placement: ``pack`` or ``spread`` (goal 5).
        steps: the budget.

    Raises:
        OutOfSteps: the budget is spent, or the unit has something that this search does not handle.
    """
    ground = SearchContext(snapshot, ledger, placement)
    seek = _NodeSearch(ground, unit, StepBudget(steps))
    for node in candidate_nodes(ground, unit):
        seek.look(node)
        if seek.is_over():
            break
    return seek.best


def place_on(
    snapshot: Snapshot,
    ledger: Usage,
    unit: PlacementUnit,
    node: Place,
    *,
    placement: str = "pack",
    steps: int | StepBudget = DEFAULT_STEPS,
    any_will_do: bool = False,
    reader: UnitReader | None = None,
) -> UnitPlacement | None:
    """The same on one node (None: network devices only), whatever node the unit is pinned to.

    ``steps`` may be a budget that several questions share. ``any_will_do``: some placement, and not the best.
    ``reader``: shared by callers that ask several questions about the same claims.
    """
    ground = SearchContext(snapshot, ledger, placement)
    budget = steps if isinstance(steps, StepBudget) else StepBudget(steps)
    seek = _NodeSearch(ground, unit, budget, any_will_do=any_will_do, reader=reader)
    seek.look(node)
    return seek.best


def fits(
    snapshot: Snapshot,
    ledger: Usage,
    unit: PlacementUnit,
    *,
    steps: int | StepBudget = DEFAULT_STEPS,
    reader: UnitReader | None = None,
) -> bool:
    """Whether the unit fits anywhere it may go; less work than to say where best. Raises OutOfSteps.

    ``steps`` may be a budget that several questions share; for ``reader`` see ``place_on``.
    """
    ground = SearchContext(snapshot, ledger, "pack")
    seek = _NodeSearch(ground, unit, steps if isinstance(steps, StepBudget) else StepBudget(steps), reader=reader)
    return any(seek.may_go(node) for node in candidate_nodes(ground, unit))


def _min_square_growth(devices: int, pools: int) -> int:
    """The least that the squares of loads grow by when devices come into use in so many pools."""
    each, more = divmod(devices, pools) if pools else (0, 0)
    return sum_of_squares([each + 1] * more + [each] * (pools - more))


class _NodeSearch:
    """Goes from node to node and keeps the best."""

    def __init__(
        self,
        ground: SearchContext,
        unit: PlacementUnit,
        steps: StepBudget,
        *,
        any_will_do: bool = False,
        reader: UnitReader | None = None,
    ) -> None:
        self.ground, self.unit, self.steps, self.any_will_do = ground, unit, steps, any_will_do
        self.reader = reader or UnitReader()
        self.requests = single_request_alternatives(unit)
        self.best: UnitPlacement | None = None
        self.policy_sampled = 0
        """nodes looked at since goals 2 to 4 were reached"""
        self._floor: tuple[int, int] | None = None
        """(pools, devices) below which no node can be"""
        self._asks: UnitRequests | None = None
        self._first: NodeView | None = None
        """the first node, which is compared once there is a second one"""
        self._seen: set[object] = set()

    def look(self, node: Place) -> None:
        """Place the unit on a node, if that may be better than what was found so far."""
        answer = place_single_request(self.ground, self.unit, self.requests, node) if self.requests else True
        placed: UnitPlacement | None = None
        if not isinstance(answer, bool):
            placed = UnitPlacement((answer[0],), answer[1])
        elif answer:
            placed = self._search(node)
        if placed is not None and (self.best is None or placed.score < self.best.score):
            self.best = placed

    def may_go(self, node: Place) -> bool:
        """Whether the unit fits on a node; not asked again of one like it."""
        answer = place_single_request(self.ground, self.unit, self.requests, node) if self.requests else True
        if not isinstance(answer, bool):
            return True
        if not answer or (chooser := self._chooser(node)) is None:
            return False
        return chooser.best(None, any_will_do=True) is not None

    def is_over(self) -> bool:
        """Whether no node after the last one can be better, or only in a preference that was sought for long enough.

        Nodes come in the order of the policy, so those to come are no better than the best in that.
        """
        if self.best is None or not self._is_optimal(self.best.score):
            return False
        self.policy_sampled += 1
        score = self.best.score
        _, node, pools, loss, *_ = score.policy
        liked = not pools or node if self.ground.packs else pools <= _min_square_growth(score.devices, score.pools)
        return bool(liked and not loss) or self.policy_sampled > POLICY_SAMPLE

    def _is_optimal(self, score: PlacementScore) -> bool:
        """Whether goals 2 to 4 are as good as on any node could be."""
        if self._floor is None:
            requests = [detail[0] for demand in self.unit.demands for detail in demand.details]
            plain = all(s.mode is AllocationMode.WHOLE and not (s.requests or s.limits or s.portions) for s in requests)
            devices = sum(request.least for request in requests) if plain else 0
            self._floor = min_pools(self.ground.snapshot, self.unit), devices
        return not any(score.one_of) and (score.pools, score.devices) == self._floor

    def _search(self, node: Place) -> UnitPlacement | None:
        if (chooser := self._chooser(node)) is None:
            return None
        limit = None if self.best is None else self.best.score.one_of
        best = chooser.best(limit, any_will_do=self.any_will_do)
        if best is None:
            return None
        _, settled = best
        cover = settled.cover if self.any_will_do else improve_for_policy(self.ground, settled, self.steps)
        placements = assign_devices(settled.lanes, cover, settled.chosen)
        return UnitPlacement(placements, score_of(self.ground, placements, node))

    def _chooser(self, node: Place) -> AlternativeSearch | None:
        """None for a node like one that was looked at."""
        if self._asks is None:
            self._asks = self.reader.read(self.unit)
        site = view_node(self._asks, self.ground.snapshot, self.ground.ledger, node)
        if self._first is None:
            self._first = site
        else:
            self._seen = self._seen or {node_key(self.ground, self._first)}
            kind = node_key(self.ground, site)
            if kind in self._seen:
                return None
            self._seen.add(kind)
        return AlternativeSearch(CountingBounds(site), self.steps)
