"""The counts and words of a fleet's explainer, for ResourceClaims; all nodes decide what the index has no words for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from devalloc.api.findings import Rule
from devalloc_solver.dialects.resource_k8s.candidates import RequestJudge, place_of
from devalloc_solver.dialects.resource_k8s.claims import ResourceClaim
from devalloc_solver.dialects.resource_k8s.demands import make_claim_demand, pending_claim, single_claim_unit
from devalloc_solver.dialects.resource_k8s.explainer import ResourceClaimExplainer
from devalloc_solver.dialects.resource_k8s.fleet_rules import ResourceClaimQuery
from devalloc_solver.dialects.resource_k8s.fleet_state import ClusterState
from devalloc_solver.dialects.resource_k8s.pools import UnreachedDevices
from devalloc_solver.dialects.resource_k8s.published_devices import published_device
from devalloc_solver.dialects.resource_k8s.selectors import selector_language
from devalloc_solver.dialects.resource_k8s.typos import ResourceTypoFinder
from devalloc_solver.eligibility.judge import Judge
from devalloc_solver.explain.explainer import FleetTotals
from devalloc_solver.explain.funnel import Funnel, FunnelCounter, FunnelSource
from devalloc_solver.explain.typos import MAX_VALUES
from devalloc_solver.fleet.equal_devices import EqualDevicesIndex
from devalloc_solver.fleet.explainer import FleetExplainer
from devalloc_solver.fleet.fleet_stats import DevicePosition
from devalloc_solver.fleet.funnels import FleetFunnels, FleetParts, RejectedDevices
from devalloc_solver.fleet.pool_states import PoolKind, PoolState
from devalloc_solver.fleet.subset import FleetSubset, WholeFleet, make_subset
from devalloc_solver.pipeline.units import RejectedClaim
from devalloc_solver.problem.allocations import Holding
from devalloc_solver.problem.answer import ClaimAnswer
from devalloc_solver.problem.demand import Demand, PlacementUnit, Request
from devalloc_solver.problem.snapshot import Snapshot

MAX_EXPLAINED = 256
"""Claims that one explainer of all nodes explains, which keeps what it learned of each."""
MAX_VERDICTS = 64
"""Requests of which a part remembers what they may take; when there are more, it is made anew."""


def has_binding_conditions(pool: PoolKind) -> bool:
    """Whether pools of a kind have binding conditions: then they come after all others."""
    return any(published_device(kind.one).device.binding_conditions for kind in pool.kinds)


def all_texts(kinds: EqualDevicesIndex, name: str, _: object) -> Collection[object] | None:
    """The texts that a unique attribute has on any device; None when they are too many to look among for a typo."""
    own = (str(v[1]) for v in kinds.values(name) if isinstance(v, tuple) and v[0] == "string")
    texts = dict.fromkeys(islice(own, MAX_VALUES + 1))  # all texts differ: a fleet has one for each device
    return texts if len(texts) <= MAX_VALUES else None


@dataclass(slots=True)
class ResourceClaimFunnels(FleetFunnels):
    """Makes the funnels of a claim."""

    query: ResourceClaimQuery
    requests: Mapping[str, Request]
    """by label; their candidates are parts"""
    _free: dict[tuple[str, int], int] = field(default_factory=dict)
    """(label, index of a state of a pool) -> devices for a request that are free"""

    def judge(self, request: Request) -> tuple[set[int], Iterable[RejectedDevices]]:
        choice, sizes = self.requests[request.label].spec, self.parts.sizes()
        rejected = [
            self.step(part, by, has_example=True)
            for by, some in choice.verdict.rejected.items()
            for part, _ in some
            if sizes.get(part)
        ]
        return {part for part in choice.candidates().accepted if sizes.get(part)}, rejected

    def order(self, step: RejectedDevices) -> tuple[object, ...]:
        return place_of(step.rule), step.firsts, step.rule

    def example(self, request: Request, by: Rule, first: DevicePosition, part: int) -> str | None:
        subrequest = self.requests[request.label].spec.subrequest
        chosen = self.query.rules.judge([self.device(first)]).choose(self.query.claim, subrequest)
        ((_, why),) = chosen.verdict.rejected[by]
        return why

    def title(self, position: DevicePosition) -> str:
        return published_device(self.device(position)).title

    @property
    def is_exact(self) -> bool:
        """Whether counting tells all: no device is shared, and requests for all devices can have them."""
        sizes = self.parts.sizes()
        return not any(
            any(self.parts.kinds.kinds[part].one.shareable for part in self._of(label))
            or any(map(sizes.get, request.spec.verdict.blocked))
            or any(sizes.get(int(part)) for part in request.spec.verdict.broken)
            for label, request in self.requests.items()
        )

    def most_free(self, label: str, pin: str | None) -> int:
        """The most devices of kinds that are free on one node, or on the one it is bound to."""
        record = self.stats.index.records.get(pin or "")
        own_class = None if record is None else record.member_of
        nodes = [node for node, _ in self.stats.classes()] if pin is None else [own_class] if own_class else []
        return max((sum(self._free_of(label, state) for state in node.states) for node in nodes), default=0)

    def _free_of(self, label: str, state: PoolState) -> int:
        total = self._free.get((label, state.index))
        if total is None:
            kinds, by_kind = self.requests[label].candidates.accepted, zip(state.kind.kinds, state.free, strict=True)
            total = self._free[label, state.index] = sum(free for kind, free in by_kind if kind.index in kinds)
        return total

    def having(self, label: str, name: str) -> tuple[int, int]:
        """(devices for a request that have a value of an attribute, all devices for it)"""
        kinds, sizes, own = self.parts.kinds.kinds, self.parts.sizes(), self._of(label)
        return sum(sizes[part] for part in own if kinds[part].one.values(name)), sum(sizes[part] for part in own)

    def _of(self, label: str) -> list[int]:
        sizes = self.parts.sizes()
        return [part for part in self.requests[label].candidates.accepted if sizes.get(part)]


@dataclass(slots=True)
class ClusterFunnels(FunnelCounter):
    """The numbers of a whole cluster, for requests of a part of it that has a node of each kind, and what is named."""

    of_all: ResourceClaimFunnels

    def make(self, request: Request) -> Funnel:
        return self.of_all.make(request)

    def most(self, request: Request, pin: str | None, *, is_empty: bool) -> int:
        if is_empty or request.mode.is_admin or self.of_all.parts is not self.of_all.stats:
            return FunnelCounter.most(self, request, pin, is_empty=is_empty)
        return self.of_all.most_free(request.label, pin)

    def having(self, request: Request, name: str) -> tuple[int, int]:
        return self.of_all.having(request.label, name)


class ClusterExplainer(FleetExplainer[ResourceClaimQuery, RequestJudge]):
    """Explains ResourceClaims."""

    def __init__(self, state: ClusterState) -> None:
        super().__init__(state.places, state.holders, has_binding_conditions)
        self.state = state
        self._typos: ResourceTypoFinder | None = None
        self._whole: WholeFleet[RequestJudge] | None = None
        self._whole_began: tuple[object, ...] = ()
        """of what it is: it is another one once these are others"""
        self._whole_selectors: Judge | None = None
        self._whole_typos: ResourceTypoFinder | None = None
        self._explaining: tuple[object, ResourceClaimExplainer] | None = None
        """what all nodes are as, and who explains claims on them"""

    def explain(self, query: ResourceClaimQuery) -> ClaimAnswer | None:
        """The answer for a claim that fits nowhere now; None where a part of the cluster does not tell."""
        state, claim = self.state, query.claim
        if state.holders.scattered or query.is_strange or not query.rules.is_beside_network(claim):
            return None
        self._catch_up(query.rules)

        def find() -> ClaimAnswer | None:
            answer = self._find(query)
            return None if answer is None or query.is_strange or self._may_need_network(answer) else answer

        return self._remembered((*claim.key, query.shape, claim.pinned_node, state.layout), find)

    def _forget(self) -> None:
        super()._forget()
        self._typos = self._explaining = None

    def _explainer(
        self, query: ResourceClaimQuery, subset: FleetSubset[RequestJudge], parts: FleetParts, demand: Demand
    ) -> ResourceClaimExplainer | None:
        of_all = ResourceClaimFunnels(self.stats, parts, query, {request.label: request for request in demand.requests})
        if not of_all.is_exact:
            return None
        held, errors = self.holdings(subset), query.rules.warnings(query, self.state.layout)
        funnels = ClusterFunnels(subset.snapshot, held, of_all)
        return self._explainer_of(subset, held, self._totals(funnels, self._get_typos(), errors))

    def _may_need_network(self, answer: ClaimAnswer) -> bool:
        """Whether what is in the way may depend on which nodes reach which devices of the network."""
        if self.index.network is None:
            return False
        kinds = {str(blocker["kind"]) for blocker in answer.blockers}
        # Without its class a request may take them. What is tried after that is other requests, and edits of all sorts.
        edits = kinds - {"claim"}
        mixed = len(edits) > 1 and not edits <= {"constraint", "counter"}
        return not kinds or mixed or not edits.isdisjoint(("class", "request"))

    def _explainer_of(
        self, part: FleetSubset[RequestJudge], held: Sequence[Holding], totals: FleetTotals
    ) -> ResourceClaimExplainer:
        seen, ends = self.state.seen, self.index.allowance.until
        unreached = UnreachedDevices() if seen is None else seen.unreached
        return ResourceClaimExplainer(*(part.snapshot, held, [], ends), unreached=unreached, fleet=totals)

    # -- all nodes -----------------------------------------------------------------------------------------------------

    def whole(self) -> WholeFleet[RequestJudge]:
        """All nodes as one problem, which says of which device what is wrong."""
        state = self.state
        self._catch_up(state.rules)
        began = state.rules, self.stats.layout, state.layout
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
            (answer,) = self._whole_explainer(whole).explain(unit)
            if self.index.allowance.is_over:
                self._explaining = None  # it may have found less than there is to know
            return answer

        if unit.kind is None:
            return find()
        answer = self._remembered((unit.demands[0].key, unit.kind, self.state.layout), find)
        assert answer is not None
        return answer

    def _whole_explainer(self, whole: WholeFleet[RequestJudge]) -> ResourceClaimExplainer:
        """One for all claims that are explained before anything changes: equal ones have one finding."""
        began = self.stats.stamp, self.given_now, whole
        if self._explaining is None or self._explaining[0] != began or self._explaining[1].count >= MAX_EXPLAINED:
            totals = self._totals(None, self._whole_typos, None)
            self._explaining = began, self._explainer_of(whole.subset, whole.holdings(self.given_now), totals)
        explainer = self._explaining[1]
        explainer.begin_call(self.index.allowance.until)
        return explainer

    # -- judges --------------------------------------------------------------------------------------------------------

    def _judge_whole(self, snapshot: Snapshot) -> RequestJudge:
        """Verdicts of expressions hold as long as there are these, whatever devices there are."""
        if self._whole_selectors is None:
            self._whole_selectors = Judge(selector_language(self.state.gates), self.index.allowance)
        self._whole_selectors.forget_exhausting()
        judge = self.state.rules.on(snapshot, self._whole_selectors)
        self._whole_typos = ResourceTypoFinder(judge.devices)
        return judge

    def _is_spent(self, judge: RequestJudge) -> bool:
        return judge.size > MAX_VERDICTS

    def _totals(
        self, funnels: FunnelSource | None, typos: ResourceTypoFinder | None, errors: Sequence[str] | None
    ) -> FleetTotals:
        return FleetTotals(funnels, typos, errors=errors, invalid_pools=self.state.faults)

    def _get_typos(self) -> ResourceTypoFinder:
        if self._typos is None:
            sizes, all_kinds = self.stats.sizes(), self.index.kinds
            kinds = [kind for kind in all_kinds.kinds if sizes.get(kind.index)]
            devices, copies = [kind.one for kind in kinds], [sizes[kind.index] for kind in kinds]
            unique = {name: partial(all_texts, all_kinds, name) for name in all_kinds.varied}
            self._typos = ResourceTypoFinder(devices, copies, unique)
        return self._typos
