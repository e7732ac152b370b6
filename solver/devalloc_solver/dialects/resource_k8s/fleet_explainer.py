"""Why a ResourceClaim gets nothing, from a subset of the cluster: the same answer as from all of it, but faster.

It searches for blockers on the first node of each kind (which stands for all of the kind if nothing is in use), on the
emptiest node of each kind, on nodes with devices that the claim names, and on those where the fewest claims block.
All nodes decide what these do not prove, and what the index has no words for.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from devalloc_solver.dialects.resource_k8s.candidates import RequestJudge
from devalloc_solver.dialects.resource_k8s.claims import ResourceClaim
from devalloc_solver.dialects.resource_k8s.cluster_counts import (
    ClusterCounts,
    ClusterFunnels,
    NamedDevices,
    all_texts,
    has_binding_conditions,
)
from devalloc_solver.dialects.resource_k8s.demands import make_claim_demand, pending_claim, single_claim_unit
from devalloc_solver.dialects.resource_k8s.device_properties import published_device
from devalloc_solver.dialects.resource_k8s.explainer import ResourceClaimExplainer
from devalloc_solver.dialects.resource_k8s.fleet_rules import ResourceClaimQuery, ResourceClaimRules, is_broken
from devalloc_solver.dialects.resource_k8s.fleet_state import ClusterState
from devalloc_solver.dialects.resource_k8s.pools import UnreachedDevices
from devalloc_solver.dialects.resource_k8s.published_devices import PublishedDevice
from devalloc_solver.dialects.resource_k8s.selectors import selector_language
from devalloc_solver.dialects.resource_k8s.typos import ResourceTypoFinder
from devalloc_solver.eligibility.judge import Judge
from devalloc_solver.explain.explainer import FleetTotals
from devalloc_solver.explain.funnel import FunnelSource
from devalloc_solver.explain.leaving import MAX_TRIES
from devalloc_solver.fleet.explainer import MAX_KINDS, FleetExplainer
from devalloc_solver.fleet.shape_search import ShapeSearch
from devalloc_solver.fleet.subset import FleetSubset, WholeFleet, make_subset
from devalloc_solver.pipeline.units import RejectedClaim
from devalloc_solver.place import StepsExhausted, fits
from devalloc_solver.problem.allocations import Holding, Usage
from devalloc_solver.problem.answer import ClaimAnswer
from devalloc_solver.problem.demand import PlacementUnit
from devalloc_solver.problem.snapshot import Snapshot

FEW_NODES, MANY_NODES = 8, 80
"""Nodes with the fewest claims in the way, first and where that does not prove the answer; no search asks so many."""
MAX_COUNTS = 1_000
"""Shapes of which counts are kept; when there are more, all are forgotten."""
MAX_VERDICTS = 64
"""Requests of which a part remembers what they may take; when there are more, it is made anew."""


class ClusterExplainer(FleetExplainer[ResourceClaimRules, ClaimAnswer, RequestJudge]):
    """Explains ResourceClaims."""

    def __init__(self, state: ClusterState) -> None:
        super().__init__(state.index, state.holders, has_binding_conditions)
        self.state = state
        self._counts: dict[Hashable, ClusterCounts] = {}
        self._slips: ResourceTypoFinder | None = None
        self._ranks: tuple[int, ...] = ()
        """of the first node of each kind"""
        self._whole: WholeFleet[RequestJudge] | None = None
        self._whole_began: tuple[object, ...] = ()
        """of what it is: it is another one once these are others"""
        self._whole_selectors: Judge | None = None
        self._whole_slips: ResourceTypoFinder | None = None

    def explain(self, query: ResourceClaimQuery) -> ClaimAnswer | None:
        """The answer for a claim that fits nowhere now; None where a part of the cluster does not tell."""
        state, claim = self.state, query.claim
        pin = claim.pinned_node
        if state.holders.scattered or query.is_strange or claim.restrictions:
            return None
        if not query.rules.is_beside_network(claim):
            return None
        self._catch_up(query.rules)
        if not 0 < len(self._ranks) <= MAX_KINDS:
            return None
        counts = self._counts_for(query)
        if counts is None:
            return None
        counts.layout = state.layout
        if not counts.is_exact:
            return None

        def find() -> ClaimAnswer | None:
            answer = self._find(claim, counts, pin)
            return None if answer is None or query.is_strange or self._may_need_network(answer) else answer

        return self._remembered((*claim.key, query.shape, pin, state.layout), find)

    def _catch_up(self, rules: ResourceClaimRules) -> bool:
        is_other_layout = super()._catch_up(rules)
        if is_other_layout:
            first: dict[int, int] = {}
            for node, rank in self.stats.classes():
                first[node.kind.index] = min(rank, first.get(node.kind.index, rank))
            self._ranks = tuple(first.values())
        return is_other_layout

    def _forget(self) -> None:
        super()._forget()
        self._counts.clear()
        self._slips = None

    def _counts_for(self, query: ResourceClaimQuery) -> ClusterCounts | None:
        counts = self._counts.get(query.shape)
        if counts is None or counts.query.shape_facts is not query.shape_facts:
            if len(self._counts) >= MAX_COUNTS:
                self._counts.clear()
            shape = self.state.places.shape(query)
            named = NamedDevices() if isinstance(shape, ShapeSearch) else NamedDevices.of(query)
            if named is None:
                return None
            counts = self._counts[query.shape] = ClusterCounts(self.stats, query, self.state.layout, named)
        return counts

    def _find(self, claim: ResourceClaim, counts: ClusterCounts, pin: str | None) -> ClaimAnswer | None:
        """None where a few nodes do not tell what the whole cluster would."""
        index, rules = self.state.index, counts.query.rules
        ranks = {*self._ranks, *self.stats.emptiest().values(), *counts.named.ranks, *self._given_ranks()}
        if pin in index.records:
            ranks.add(index.records[pin].rank)
        part = self._part(ranks)
        crowded = _unit(claim, part, rules)
        try:
            is_full = pin is None and crowded is not None and fits(part.snapshot, Usage(part.snapshot), crowded)
        except StepsExhausted:
            return None
        answer = None
        if not is_full:
            answer, crowded = self._explain(claim, part, counts)
            if crowded is None or crowded.pin is not None:
                return answer
        if crowded is not None and counts.named.labels:
            is_here = counts.named.is_all_there(crowded.demands[0].details)
            if is_here is None:
                return None
            if is_here:  # no other node would do, whatever is in use there
                return self._explain(claim, part, counts)[0] if answer is None else answer
        selection = None if crowded is None else counts.selection(crowded, part.kinds)
        if selection is None:
            return None
        for most in (FEW_NODES, MANY_NODES):
            near, left = selection.nearest(most)
            ranks.update(near, () if is_full else selection.roomy(most))
            answer, crowded = self._explain(claim, self._part(ranks), counts)
            if answer is None or crowded is None or self._is_proven(answer, near, left):
                return answer
        return None

    def _may_need_network(self, answer: ClaimAnswer) -> bool:
        """Whether what is in the way may depend on which nodes reach which devices of the network."""
        if self.index.network is None:
            return False
        kinds = {str(blocker["kind"]) for blocker in answer.blockers}
        # Without its class a request may take them. What is tried after that is other requests, and edits of all sorts.
        edits = kinds - {"claim"}
        mixed = len(edits) > 1 and not edits <= {"constraint", "counter"}
        return not kinds or mixed or not edits.isdisjoint(("class", "request"))

    def _is_proven(self, answer: ClaimAnswer, near: Collection[int], left: int) -> bool:
        """Whether these are the claims that the whole cluster would tell, which asks nodes in the order of ``near``."""
        index = self.index
        claims = [(b["namespace"], b["name"]) for b in answer.blockers if b["kind"] == "claim"]
        nodes = {node for key in claims for node, *_ in index.held[key]}
        if not nodes or not all(node is not None and index.records[node].rank in near for node in nodes):
            return False
        searched = sum(bool(self.holders.on_node.get(index.by_rank[rank].name)) for rank in near)
        return len(claims) <= left or searched >= MAX_TRIES

    def _explain(
        self, claim: ResourceClaim, part: FleetSubset[RequestJudge], counts: ClusterCounts
    ) -> tuple[ClaimAnswer | None, PlacementUnit | None]:
        """(the answer as these nodes tell it, the claim as it must be changed where others are in its way then)"""
        unit = _unit(claim, part, counts.query.rules)
        if unit is None:
            return None, None
        held = self.holdings(part)
        totals = self._totals(ClusterFunnels(part.snapshot, held, counts), self._get_slips(), counts.errors)
        explainer = self._explainer(part, held, totals)
        (answer,) = explainer.explain(unit)
        return answer, explainer.crowded

    def _explainer(
        self, part: FleetSubset[RequestJudge], held: Sequence[Holding], totals: FleetTotals
    ) -> ResourceClaimExplainer:
        seen, ends = self.state.seen, self.index.allowance.until
        unreached = UnreachedDevices() if seen is None else seen.unreached
        return ResourceClaimExplainer(
            *(part.snapshot, held, [], ends), offers=part.judge.offers, unreached=unreached, fleet=totals
        )

    def _part(self, ranks: Iterable[int]) -> FleetSubset[RequestJudge]:
        network = [] if self.index.network is None else [self.index.network]
        return self._subset((*network, *(self.index.by_rank[rank] for rank in sorted(ranks))))

    # -- all nodes -----------------------------------------------------------------------------------------------------

    def whole(self) -> WholeFleet[RequestJudge]:
        """All nodes as one problem, which says of which device what is wrong."""
        state = self.state
        self._catch_up(state.rules)
        began = self.rules, self.stats.layout, state.layout
        if self._whole is None or self._whole_began != began:
            self._whole = None  # there is no room for two
            subset = make_subset(self.stats, [*self.stats.in_order()], self._judge_whole, state.all_nodes())
            self._whole, self._whole_began = WholeFleet(subset, self.holders), began
        elif self._whole.subset.judge.size > MAX_VERDICTS:
            self._whole = self._whole.with_judge(self._judge_whole(self._whole.snapshot))
        return self._whole

    def whole_unit(self, claim: ResourceClaim) -> PlacementUnit | RejectedClaim:
        """What a claim asks for of all nodes, or why it is not solved. Raises OutOfTime."""
        demand = make_claim_demand(pending_claim(claim, 0), self.state.classes, self.whole().subset.judge)
        return demand if isinstance(demand, RejectedClaim) else single_claim_unit(demand)

    def explain_on_whole(self, unit: PlacementUnit) -> ClaimAnswer:
        """The answer for a claim that fits nowhere."""
        whole = self.whole()

        def find() -> ClaimAnswer:
            totals = self._totals(None, self._whole_slips, None)
            (answer,) = self._explainer(whole.subset, whole.holdings(self.given_now), totals).explain(unit)
            return answer

        if unit.kind is None:
            return find()
        answer = self._remembered((unit.demands[0].key, unit.kind, self.state.layout), find)
        assert answer is not None
        return answer

    # -- judges --------------------------------------------------------------------------------------------------------

    def _judge(self, snapshot: Snapshot) -> RequestJudge:
        return self.rules.judge(_offers(snapshot), self._broken_in(snapshot))

    def _judge_whole(self, snapshot: Snapshot) -> RequestJudge:
        """Verdicts of expressions hold as long as there are these, whatever devices there are."""
        if self._whole_selectors is None:
            self._whole_selectors = Judge(selector_language(self.state.gates), self.index.allowance)
        self._whole_selectors.forget_exhausting()
        offers = _offers(snapshot)
        self._whole_slips = ResourceTypoFinder(offers)
        return self.rules.judge(offers, self._broken_in(snapshot), self._whole_selectors)

    def _broken_in(self, snapshot: Snapshot) -> frozenset[str]:
        """The nodes that have a pool that is incomplete or invalid."""
        broken = (pool.node for pool in snapshot.pools if any(is_broken(device.traits) for device in pool.devices))
        return self.rules.broken.union(node for node in broken if node is not None)

    def _is_spent(self, judge: RequestJudge) -> bool:
        return judge.size > MAX_VERDICTS

    def _totals(
        self, funnels: FunnelSource | None, slips: ResourceTypoFinder | None, errors: Sequence[str] | None
    ) -> FleetTotals:
        return FleetTotals(funnels, slips, errors=errors, invalid_pools=self.state.left_out)

    def _get_slips(self) -> ResourceTypoFinder:
        if self._slips is None:
            sizes, all_kinds = self.stats.sizes(), self.index.kinds
            kinds = [kind for kind in all_kinds.kinds if sizes.get(kind.index)]
            offers, copies = [published_device(kind.one) for kind in kinds], [sizes[kind.index] for kind in kinds]
            unique = {name: partial(all_texts, all_kinds, name) for name in all_kinds.varied}
            self._slips = ResourceTypoFinder(offers, copies, unique)
        return self._slips


def _offers(snapshot: Snapshot) -> list[PublishedDevice]:
    return [replace(published_device(device), index=device.index) for device in snapshot.devices]


def _unit(claim: ResourceClaim, part: FleetSubset[RequestJudge], rules: ResourceClaimRules) -> PlacementUnit | None:
    demand = make_claim_demand(pending_claim(claim, 0), rules.problem_input, part.judge)
    return None if isinstance(demand, RejectedClaim) else single_claim_unit(demand)
