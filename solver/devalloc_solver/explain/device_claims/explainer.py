"""Why a DeviceClaim is not satisfied: a stable code, a sentence with numbers, and the blockers (S19).

The explainer verifies every reason by solving again: the claim fits without the blockers, and does not fit with them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from devalloc.api.problems import closest_match
from devalloc.api.reasons import Reason
from devalloc_solver.cel.budget import OutOfTime
from devalloc_solver.dialects.device_claims.answers import ClaimAnswer
from devalloc_solver.dialects.device_claims.candidates import CandidateFinder
from devalloc_solver.dialects.device_claims.manifests import ProblemInput
from devalloc_solver.explain.blocking_claims import BlockingClaimFinder, BlockingClaims
from devalloc_solver.explain.device_claims.relaxations import DeviceClaimRelaxations, short_reason, without_redundant
from devalloc_solver.explain.device_claims.typos import TypoFinder
from devalloc_solver.explain.explainer import SEARCH_LIMIT_FINDING, Explainer, Finding, join_sentences
from devalloc_solver.explain.feasibility import FeasibilityQuestion, Undecided
from devalloc_solver.explain.funnel import FunnelCounter, FunnelSource, describe_shortage
from devalloc_solver.explain.relaxations import (
    Relaxation,
    RelaxationSet,
    apply_relaxations,
    drop_unneeded,
    unmatched_requests,
)
from devalloc_solver.explain.supply_relaxations import POOL_RESOURCES, relax_shared_limits, withheld_devices
from devalloc_solver.problem.allocations import Key, node_of
from devalloc_solver.problem.demand import Demand, PlacementUnit, Request
from devalloc_solver.problem.snapshot import Device


@dataclass(frozen=True, slots=True)
class FleetTotals:
    """Counts over all devices of a fleet, from a source that need not go through them."""

    funnels: FunnelSource
    typos: TypoFinder
    nodes: Collection[str]
    """names of all nodes that have pools"""


@dataclass(slots=True)
class DeviceClaimExplainer(Explainer):
    """Explains units of DeviceClaims."""

    eligibility: CandidateFinder
    problem_input: ProblemInput
    fleet: FleetTotals | None = None
    """the numbers of the whole fleet, where the snapshot is but a part of it"""
    is_proven: bool = False
    """no unit that was left out fits beside the others: the search has shown that no more can be satisfied"""
    funnels: FunnelSource = field(init=False)
    typos: TypoFinder = field(init=False)
    held_back: Sequence[Device] | None = field(init=False, default=None)
    limits: Relaxation = field(init=False, default_factory=partial(relax_shared_limits, POOL_RESOURCES))
    _left_out: PlacementUnit | None = field(init=False, default=None)
    """the unit that is being explained"""

    def __post_init__(self) -> None:
        Explainer.__post_init__(self)
        self.funnels = self.fleet.funnels if self.fleet else FunnelCounter(self.snapshot, self.in_use)
        self.typos = self.fleet.typos if self.fleet else TypoFinder(self.snapshot, self.eligibility)

    def explain(self, unit: PlacementUnit, warnings: Mapping[Key, tuple[str, ...]]) -> list[ClaimAnswer]:
        """An answer for each claim of the unit."""
        self.finder.begin()
        self._left_out = unit
        if len(unit.demands) > 1:
            try:
                findings = self._find_members(unit)
            except (Undecided, OutOfTime):
                findings = {demand.key: SEARCH_LIMIT_FINDING for demand in unit.demands}
        else:
            key = unit.demands[0].key
            findings = {key: self.find_equal(unit, key)}
        return [self._answer(d, findings[d.key], warnings) for d in unit.demands]

    def _answer(self, demand: Demand, finding: Finding, warnings: Mapping[Key, tuple[str, ...]]) -> ClaimAnswer:
        funnels = {request.label: self.funnels.make(request).to_dict() for request in demand.requests}
        namespace, name = demand.key
        return ClaimAnswer(
            namespace=namespace,
            name=name,
            allocated=False,
            reason=finding.reason,
            message=self.message(finding, [(request, funnels[request.label]) for request in demand.requests]),
            warnings=warnings.get(demand.key, ()),
            funnel=tuple(funnels.values()),
            blockers=tuple(self.blockers(finding)),
        )

    # -- rules ---------------------------------------------------------------------------------------------------------

    def reads(self, request: Request) -> frozenset[str] | None:
        return self.eligibility.attributes_read(request.spec)

    def fits(self, question: FeasibilityQuestion) -> bool:
        if self.is_proven and question.unit is self._left_out and len(question.held) == len(self.in_use):
            return False  # what is held is the first so many of ``in_use``
        return Explainer.fits(self, question)

    def relaxations(self, question: FeasibilityQuestion, key: Key) -> RelaxationSet:
        return self._offers(question.unit).in_order(question, self.finder)

    def shared_limits(self) -> Sequence[Relaxation]:
        return [self.limits]

    def counted_reason(self, unit: PlacementUnit) -> Reason:
        if unmatched_requests(unit):
            return Reason.NO_MATCHING_DEVICES
        loose = self.question(unit, ()).with_requests(lambda _, request: replace(request, match=()))
        loose = loose.with_demands(lambda demand: replace(demand, match=()))
        if self.shortage(unit, is_empty=True) and not self.shortage(loose.unit, is_empty=True):
            return Reason.MATCH_ATTRIBUTES_CONFLICT
        return short_reason(unit)

    def _offers(self, unit: PlacementUnit, member: Key | None = None) -> DeviceClaimRelaxations:
        """What the unit offers to be taken away, or one member of it."""
        demands = tuple(d for d in unit.demands if member in (None, d.key))
        part = replace(unit, demands=demands)
        if self.held_back is None:
            self.held_back = withheld_devices(self.snapshot)
        pinned = [d.key for d in unit.demands if unit.group is not None and d.claim.pinned_node]
        return DeviceClaimRelaxations(part, self.eligibility, self.held_back, self.limits, self._bound_by(unit), pinned)

    def _bound_by(self, unit: PlacementUnit) -> tuple[Key, ...]:
        """The members of a group that are on its node already, and so bind the others."""
        if unit.group is None or unit.pin is None:
            return ()
        namespace = unit.demands[0].key[0]
        fixed = [
            c
            for c in self.problem_input.claims
            if c.group == unit.group and c.namespace == namespace and c.is_allocated
        ]
        refused = [
            r
            for r in self.problem_input.refused
            if (r.key[0], r.group) == (namespace, unit.group) and r.status and r.node
        ]
        return tuple(sorted({c.key for c in fixed if node_of(c, self.snapshot)} | {r.key for r in refused}))

    def blocking_unit(self, unit: PlacementUnit) -> BlockingClaims:
        here = Explainer.blocking_unit(self, unit)
        binding = self._bound_by(unit)
        if not binding or any(d.claim.pinned_node for d in unit.demands) or not self.priorities.keys() >= {*binding}:
            return here
        if here.claims and len(binding) >= len(here.claims):
            return here
        # The members of its group that hold devices bind it to their node for as long as they do.
        stays = tuple(allocation for allocation in self.in_use if allocation.claim not in binding)
        unbound = replace(unit, pin=None)
        anywhere = BlockingClaims((), smallest=True)
        if not self.finder.works(self.question(unbound, stays)):
            anywhere = BlockingClaimFinder(self.snapshot, stays, self.releases.new).find(
                self.question(unbound, ()), self.finder
            )
            if not anywhere.claims:
                return here
        claims = tuple(sorted({*binding, *anywhere.claims}))
        if here.claims and len(claims) >= len(here.claims):
            return here
        return BlockingClaims(claims, anywhere.smallest)

    # -- groups --------------------------------------------------------------------------------------------------------

    def _find_members(self, unit: PlacementUnit) -> dict[Key, Finding]:
        """Reasons in a group, which is all or none: who cannot be helped fails the others, and blockers are common."""
        alone = {d.key: PlacementUnit((d,), unit.group, unit.pin) for d in unit.demands}
        hopeless = [key for key, single in alone.items() if not self.fits(self.question(single, ()))]
        if hopeless:
            return self._hopeless_members(unit, alone, hopeless)
        if not self.fits(self.question(unit, ())):
            return {key: self._apart(unit, key) for key in alone}
        together = self.find_beside_others(unit)
        message = f"group {unit.group} is all-or-nothing and shares a node: {together.text}"
        return dict.fromkeys(alone, replace(together, text=message))

    def _hopeless_members(
        self, unit: PlacementUnit, alone: Mapping[Key, PlacementUnit], hopeless: Sequence[Key]
    ) -> dict[Key, Finding]:
        """Some members fit no node even on their own."""
        reasons: dict[Key, Reason] = {}
        edits: list[Relaxation] = []
        for key in hopeless:
            question = self.question(alone[key], ())
            offers = self._offers(unit, key).in_order(question, self.finder)
            reasons[key], own = self.why_impossible(question, offers)
            edits += own
        whole = self.question(unit, ())
        eased = apply_relaxations(whole, edits)
        if not self.finder.works(eased):
            edits += self.why_impossible(eased, self.relaxations(eased, hopeless[0]))[1]
        # What one member needs, such as another node, may be all that another one needs too.
        self.finder.refill()
        edits = drop_unneeded(whole, without_redundant(edits), self.finder)
        names = ", ".join(f"{namespace}/{name}" for namespace, name in hopeless)
        others = f"group {unit.group} is all-or-nothing, and {names} cannot be satisfied"
        common = self.structural(unit, Reason.GROUP_UNSATISFIABLE, edits, others)
        findings = dict.fromkeys(alone, common)
        for key, reason in reasons.items():
            tail = join_sentences(self.lack(alone[key], reason), self.describe_remedy(common.edits, common.claims))
            findings[key] = replace(common, reason=reason, text=tail)
        return findings

    def _apart(self, unit: PlacementUnit, key: Key) -> Finding:
        """Each member fits some node, and no node has room for all: as the member ``key`` sees it."""
        question = self.question(unit, ())
        relaxations = self._offers(unit)
        reason, edits = self.why_impossible(
            question, relaxations.in_order(question, self.finder, relaxations.members(key))
        )
        message = f"group {unit.group} is all-or-nothing and shares a node: {self.lack(unit, reason)}"
        return self.structural(unit, Reason.GROUP_UNSATISFIABLE, edits, message)

    # -- words ---------------------------------------------------------------------------------------------------------

    def request_shortage(self, unit: PlacementUnit, demand: Demand, request: Request, *, is_empty: bool) -> str:
        held = () if is_empty else self.in_use
        return describe_shortage(self.finder.counting, demand, request, held, pin=unit.pin)

    def disagreement(self, unit: PlacementUnit) -> str:
        named = ((*d.match, *d.shared, *(n for s in d.requests for n in s.match)) for d in unit.demands)
        names = sorted({name for group in named for name in group})
        return f"the devices needed together differ in {' and '.join(f'`{name}`' for name in names)} on every node"

    def typos_of(self, unit: PlacementUnit) -> Sequence[str]:
        return self.typos.of_unit(unit)

    def mark(self, edit: Relaxation, unit: PlacementUnit) -> Relaxation:
        return self.typos.marked(edit, unit)

    def name_node(self, unit: PlacementUnit) -> str:
        nodes = self.fleet.nodes if self.fleet else self.snapshot.nodes
        if unit.pin is None or unit.pin in nodes:
            return ""
        near = closest_match(unit.pin, nodes)
        return f"no node {unit.pin!r} has devices" + (f"; did you mean {near!r}?" if near else "")
