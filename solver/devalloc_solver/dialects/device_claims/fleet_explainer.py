"""Why a DeviceClaim gets nothing, from a subset of the fleet: the same answer as from all of it, but faster.

The numbers are those of all devices, counted by kind. The blockers are searched for on a few nodes that stand for all:
one of each kind with the least in use, and those where the fewest claims block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from devalloc.api.findings import Rule
from devalloc_solver.dialects.device_claims.candidates import CandidateFinder
from devalloc_solver.dialects.device_claims.demands import off_barred_nodes
from devalloc_solver.dialects.device_claims.explainer import DeviceClaimExplainer
from devalloc_solver.dialects.device_claims.fleet_rules import DeviceClaimQuery, DeviceClaimRules
from devalloc_solver.dialects.device_claims.manifest_records import ClaimRecord
from devalloc_solver.dialects.device_claims.typos import TypoFinder
from devalloc_solver.explain.explainer import FleetTotals
from devalloc_solver.explain.feasibility import FeasibilityQuestion
from devalloc_solver.explain.relaxations import Relaxation, apply_relaxations
from devalloc_solver.explain.typos import MAX_VALUES
from devalloc_solver.fleet.explainer import MAX_KINDS, FleetExplainer
from devalloc_solver.fleet.explanation_nodes import NodeSelection
from devalloc_solver.fleet.fleet_stats import NETWORK, DevicePosition
from devalloc_solver.fleet.funnels import FleetFunnels, RefinedKinds, RejectedDevices
from devalloc_solver.fleet.node_index import Holders
from devalloc_solver.fleet.place_finder import PlaceFinder
from devalloc_solver.fleet.pool_states import NodeRecord
from devalloc_solver.fleet.shape_search import ShapeSearch
from devalloc_solver.fleet.unique_attribute_search import UniqueAttributeSearch
from devalloc_solver.gc_pause import gc_paused
from devalloc_solver.problem.answer import ClaimAnswer
from devalloc_solver.problem.demand import AllocationMode, PlacementUnit, Request
from devalloc_solver.problem.snapshot import Snapshot, with_index

FEW_NODES, MANY_NODES = 16, 128
"""Nodes with the fewest claims in the way that are looked at, first and where that does not prove the answer."""
MAX_SCREENS = 64
"""Shapes whose view of the nodes is remembered; when there are more, all are forgotten."""
MAX_REFINEMENTS = 4
"""Sets of attributes by whose values the fleet is kept split; each takes time and room for all devices."""


@dataclass(slots=True)
class DeviceClaimFunnels(FleetFunnels):
    """Makes the funnels of DeviceClaims."""

    eligibility: CandidateFinder
    """judges one device of each part"""

    def judge(self, request: Request) -> tuple[set[int], Iterable[RejectedDevices]]:
        accepted, rejected, sizes = set(), [], self.parts.sizes()
        for device in self.eligibility.snapshot.devices:
            if sizes.get(device.index):
                mismatch = self.eligibility.mismatch(request.spec, device, request.candidates.left_out)
                if mismatch is None:
                    accepted.add(device.index)
                else:
                    has_example = bool(mismatch.example)
                    rejected.append(self.step(device.index, mismatch.rule, mismatch.stage, has_example=has_example))
        return accepted, rejected

    def order(self, step: RejectedDevices) -> tuple[object, ...]:
        return step.stage, -step.number, step.rule

    def example(self, request: Request, by: Rule, first: DevicePosition, part: int) -> str | None:
        sample = self.eligibility.snapshot.devices[part]
        one, left_out = with_index(self.device(first), part, sample.pool), request.candidates.left_out
        mismatch = self.eligibility.mismatch(request.spec, one, left_out)
        return None if mismatch is None or not mismatch.example else f"{self.title(first)}: {mismatch.example}"


class DeviceClaimsExplainer(FleetExplainer[DeviceClaimRules, ClaimAnswer, CandidateFinder]):
    """Explains DeviceClaims."""

    def __init__(self, places: PlaceFinder, holders: Holders) -> None:
        super().__init__(places.index, holders)
        self.places = places
        self.invalid_pools: Mapping[str, str] = {}
        """driver -> a pool of it that is left out, and why"""
        self._sample: CandidateFinder | None = None
        self._slips: TypoFinder | None = None
        self._node_selections: dict[object, NodeSelection] = {}
        self._splits: dict[tuple[str, ...], RefinedKinds] = {}

    def explain(self, query: DeviceClaimQuery) -> ClaimAnswer:
        """The answer for a claim without a group that fits nowhere now."""
        claim = query.claim
        self._catch_up(query.rules)
        key = (query.shape, claim.restrictions, claim.pinned_node, claim.priority, tuple(self.invalid_pools.items()))
        answer = self._remembered(key, lambda: self._find(query, claim))
        assert answer is not None
        namespace, name = claim.key
        return replace(answer, namespace=namespace, name=name)

    def _forget(self) -> None:
        """Judges and slips too: they remember each shape that was ever explained."""
        super()._forget()
        self._node_selections.clear()
        self._splits.clear()
        self._sample = self._slips = None

    def _find(self, query: DeviceClaimQuery, claim: ClaimRecord) -> ClaimAnswer:
        shape = None if claim.restrictions else self.places.shape(query)  # other nodes may stand for those
        if isinstance(shape, ShapeSearch) and not shape.wide:
            answer = self._find_in_part(query, claim, shape)
            if answer is not None:
                return answer
        if isinstance(shape, UniqueAttributeSearch) and self.index.network is None:
            answer = self._find_apart(query, claim, shape)
            if answer is not None:
                return answer
        with gc_paused():
            return self._answer(query, claim, [*self.stats.in_order()], None)[0]

    def _find_in_part(self, query: DeviceClaimQuery, claim: ClaimRecord, shape: ShapeSearch) -> ClaimAnswer | None:
        """From a few nodes, and from more where these do not prove it; None where too many nodes differ."""
        node_selection = self._node_selections.get(query.shape)
        if node_selection is None:
            if len(self._node_selections) >= MAX_SCREENS:
                self._node_selections.clear()
            node_selection = self._node_selections[query.shape] = NodeSelection(self.stats, shape.demand)
        choice = node_selection.choose(FEW_NODES)
        if choice is None:
            return None
        pinned = self.index.records.get(claim.pinned_node or "")
        ranks = {*choice.ranks, *self._given_ranks(), *(() if pinned is None else (pinned.rank,))}
        answer, edits = self._answer_from(query, claim, ranks)
        if edits and _claims_to_release(answer):
            # Once these are made, other nodes may be those where the fewest claims are in the way.
            node_selection = self._edited(query, edits)
            choice = node_selection.choose(FEW_NODES)
            assert choice is not None
            if not ranks.issuperset(choice.ranks):
                ranks = ranks.union(choice.ranks)
                answer, _ = self._answer_from(query, claim, ranks)
        if _claims_to_release(answer) <= choice.min_blockers_elsewhere or pinned is not None:
            return answer
        choice = node_selection.choose(MANY_NODES)
        assert choice is not None
        if ranks.issuperset(choice.ranks):
            return answer
        return self._answer_from(query, claim, ranks.union(choice.ranks))[0]

    def _find_apart(
        self, query: DeviceClaimQuery, claim: ClaimRecord, shape: UniqueAttributeSearch
    ) -> ClaimAnswer | None:
        """From the nodes that have what its expressions name, and the emptiest of each kind."""
        split = (
            None
            if any(s.mode is not AllocationMode.WHOLE for s in shape.demand.requests)
            else self._split(query, shape)
        )
        emptiest = self.stats.emptiest()
        if split is None or len(emptiest) > MAX_KINDS:
            return None
        judge = self.rules.on(split.kinds.sample())
        ranks = {*emptiest.values()}
        for request in query.demand(judge).requests:
            devices = split.devices({*request.candidates.accepted})
            wanted = sorted(devices, key=lambda node: (-len(devices[node]), self.index.records[node or ""].rank))
            if len(wanted) > MANY_NODES:
                return None
            ranks.update(self.index.records[node or ""].rank for node in wanted)
        if claim.pinned_node in self.index.records:
            ranks.add(self.index.records[claim.pinned_node].rank)
        identifiers = {name: partial(split.values_on, name) for name in split.read if split.literals is not None}
        slips = TypoFinder(judge.snapshot, judge, split.sizes(), identifiers)
        records = [self.stats.record(rank) for rank in sorted(ranks)]
        counts, names = DeviceClaimFunnels(self.stats, split, judge), self.index.records.keys()
        fleet = FleetTotals(counts, slips, names, invalid_pools=self.invalid_pools)
        return self._answer(query, claim, records, fleet)[0]

    def _split(self, query: DeviceClaimQuery, shape: UniqueAttributeSearch) -> RefinedKinds | None:
        """The fleet by what the claim reads; None when there is no end of it."""
        kinds = self.index.kinds
        read: set[str] = set()
        literals: dict[str, frozenset[object]] = {}
        plain = True
        for request in shape.demand.requests:
            own_reads, comparisons = request.eligible.reads, request.eligible.compared()
            if own_reads is None:
                return None
            read |= own_reads & kinds.varied
            plain = plain and comparisons is not None
            for name, values in (comparisons or {}).items():
                literals[name] = literals.get(name, frozenset()) | values
        many = {name for name in read if len(kinds.places.get(name, ())) > MAX_VALUES}
        if many and not (plain and many == read):
            return None
        names = tuple(sorted(read))
        if many == read:
            nodes = {node for name in names for node in kinds.find(name, literals[name]) or ()}
            return RefinedKinds(self.stats, names, nodes, {name: literals[name] for name in names})
        if names not in self._splits:
            if len(self._splits) >= MAX_REFINEMENTS:
                del self._splits[next(iter(self._splits))]
            self._splits[names] = RefinedKinds(self.stats, names)
        return self._splits[names]

    def _edited(self, query: DeviceClaimQuery, edits: Sequence[Relaxation]) -> NodeSelection:
        """For what the claim asks for once its spec is edited."""
        judge = self._judge_of_kinds()
        question = FeasibilityQuestion(judge.snapshot, PlacementUnit((query.demand(judge),), None, None))
        return NodeSelection(
            self.stats, apply_relaxations(question, [e for e in edits if not e.order]).unit.demands[0], least=0
        )

    def _answer_from(
        self, query: DeviceClaimQuery, claim: ClaimRecord, ranks: set[int]
    ) -> tuple[ClaimAnswer, Sequence[Relaxation]]:
        return self._answer(query, claim, [self.stats.record(rank) for rank in sorted(ranks)], self._fleetwide())

    def _answer(
        self, query: DeviceClaimQuery, claim: ClaimRecord, records: Sequence[NodeRecord], fleet: FleetTotals | None
    ) -> tuple[ClaimAnswer, Sequence[Relaxation]]:
        """The answer, and what would have to change besides what claims hold; ``fleet`` unless these are all nodes."""
        if fleet is not None and self.index.network is not None:
            records = [self.stats.record(NETWORK), *records]
        subset = self._subset(tuple(records))
        allocations, ends = self.holdings(subset), self.index.allowance.until
        totals = fleet or FleetTotals(invalid_pools=self.invalid_pools)
        explainer = DeviceClaimExplainer(subset.snapshot, allocations, (), ends, subset.judge, fleet=totals)
        demand = query.demand(subset.judge)
        if claim.restrictions:
            demand = off_barred_nodes(demand, (*subset.snapshot.nodes, claim.pinned_node), subset.snapshot, {})
        unit = PlacementUnit((demand,), None, claim.pinned_node)
        (answer,) = explainer.explain(unit)
        finding = explainer.by_kind.get(unit.kind)
        return answer, () if finding is None else finding.edits

    def _judge(self, snapshot: Snapshot) -> CandidateFinder:
        return self.rules.on(snapshot)

    def _fleetwide(self) -> FleetTotals:
        if self._slips is None:
            judge, sizes = self._judge_of_kinds(), self.stats.sizes()
            copies = {kind.index: sizes.get(kind.index, 0) for kind in self.index.kinds.kinds}
            self._slips = TypoFinder(judge.snapshot, judge, copies)
        counts = DeviceClaimFunnels(self.stats, self.stats, self._slips.eligibility)
        return FleetTotals(counts, self._slips, self.index.records.keys(), invalid_pools=self.invalid_pools)

    def _judge_of_kinds(self) -> CandidateFinder:
        """Judges one device of each kind."""
        if self._sample is None:
            self._sample = self.rules.on(self.index.kinds.sample())
        return self._sample


def _claims_to_release(answer: ClaimAnswer) -> int:
    """Claims that would have to go."""
    return sum(blocker["kind"] == "claim" for blocker in answer.blockers)
