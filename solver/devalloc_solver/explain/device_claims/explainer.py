"""Why a DeviceClaim is not satisfied: a stable code, a sentence with numbers, and the blockers (S19).

The explainer verifies every reason by solving again: the claim fits without the blockers, and does not fit with them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from devalloc.api.reasons import Reason
from devalloc.api.suggest import closest_match
from devalloc_solver.cel import device_claims as cel
from devalloc_solver.cel.budget import OutOfTime
from devalloc_solver.dialects.device_claims.answers import ClaimAnswer
from devalloc_solver.dialects.device_claims.candidates import CandidateFinder
from devalloc_solver.dialects.device_claims.manifests import ProblemInput
from devalloc_solver.explain.blocking_claims import BlockingClaimFinder, BlockingClaims
from devalloc_solver.explain.device_claims.impossibility import short_reason, why_impossible
from devalloc_solver.explain.device_claims.relaxations import (
    DeviceClaimRelaxations,
    member_relaxations,
    without_redundant,
)
from devalloc_solver.explain.device_claims.typos import TypoFinder
from devalloc_solver.explain.explainer import NOT_PROVEN, Explainer, Finding, unmatched_details
from devalloc_solver.explain.feasibility import Undecided
from devalloc_solver.explain.funnel import Funnel, FunnelCounter, FunnelSource, describe_shortage
from devalloc_solver.explain.messages import describe_remedy, join_sentences
from devalloc_solver.explain.relaxations import Relaxation, apply_relaxations, drop_unneeded
from devalloc_solver.explain.supply_relaxations import (
    POOL_RESOURCES,
    relax_shared_limits,
    shares_limits,
    withheld_devices,
)
from devalloc_solver.problem.allocations import Allocation, Key, node_of
from devalloc_solver.problem.demand import Demand, PlacementUnit, Request
from devalloc_solver.problem.snapshot import Device

_CUT_SHORT = "time ran out before the solver found what would have to change"


_SEARCH_LIMIT_FINDING = Finding(Reason.SEARCH_LIMIT, "the search ended before it found the reason")


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
    intake: ProblemInput
    fleet: FleetTotals | None = None
    """the numbers of the whole fleet, where the snapshot is but a part of it"""
    is_proven: bool = False
    """no unit that was left out fits beside the others: the search has shown that no more can be satisfied"""
    before: tuple[Allocation, ...] = field(init=False)
    funnels: FunnelSource = field(init=False)
    typos: TypoFinder = field(init=False)
    held_back: Sequence[Device] | None = field(init=False, default=None)
    limits: Relaxation = field(init=False, default_factory=partial(relax_shared_limits, POOL_RESOURCES))
    _left_out: PlacementUnit | None = field(init=False, default=None)
    """the unit that is being explained"""

    def __post_init__(self) -> None:
        Explainer.__post_init__(self)
        self.before = tuple(self.holdings)
        self.funnels = self.fleet.funnels if self.fleet else FunnelCounter(self.snapshot, self.in_use)
        self.typos = self.fleet.typos if self.fleet else TypoFinder(self.snapshot, self.eligibility)

    def reads(self, request: Request) -> frozenset[str] | None:
        classes = self.eligibility.classes_of(request.spec) or ()
        names: set[str] = set()
        for expression in (request.spec.constraints, *(one.spec.constraints for one in classes)):
            if expression and expression.strip():
                read = cel.compile(expression).attributes
                if read is None:
                    return None
                names |= read
        return frozenset(names)

    def explain(self, unit: PlacementUnit, warnings: Mapping[Key, tuple[str, ...]]) -> list[ClaimAnswer]:
        """An answer for each claim of the unit."""
        self.finder.begin()
        self._left_out = unit
        try:
            if len(unit.demands) > 1:
                findings = self._find_members(unit)
            else:
                findings = {unit.demands[0].key: self._find_one(unit)}
        except (Undecided, OutOfTime):
            findings = {demand.key: _SEARCH_LIMIT_FINDING for demand in unit.demands}
        return [self._answer(d, findings[d.key], warnings) for d in unit.demands]

    # -- one claim -----------------------------------------------------------------------------------------------------

    def _find_one(self, unit: PlacementUnit) -> Finding:
        kind = unit.kind
        finding = self.by_kind.get(kind) if kind is not None else None
        if finding is None:
            try:
                finding = self._find(unit)
            except (Undecided, OutOfTime):
                finding = _SEARCH_LIMIT_FINDING
            self.by_kind[kind] = finding
        return finding

    def _find(self, unit: PlacementUnit) -> Finding:
        if unmatched_details(unit) or self._shortage(unit, ()) or not self._fits(unit, ()):
            return self._impossible(unit)
        if self._fits(unit, self.in_use):
            return Finding(Reason.SEARCH_LIMIT, "it fits, but the search ended before it found where")
        return self._displaced(unit)

    def _impossible(self, unit: PlacementUnit) -> Finding:
        """Why it does not fit even when nothing is in use."""
        offers = self._offers(unit)
        try:
            reason, edits = why_impossible(self.question(unit, ()), offers, self.finder)
        except Undecided:
            reason = self._counted_reason(unit)
            return Finding(reason, join_sentences(self._lack(unit, reason), _CUT_SHORT))
        return self._structural(unit, reason, edits)

    def _counted_reason(self, unit: PlacementUnit) -> Reason:
        """As far as counting tells, without any search. It is certain that the unit fits no empty fleet."""
        if unmatched_details(unit):
            return Reason.NO_MATCHING_DEVICES
        loose = self.question(unit, ()).with_requests(lambda _, request: replace(request, match=()))
        loose = loose.with_demands(lambda demand: replace(demand, match=()))
        if self._shortage(unit, ()) and not self._shortage(loose.unit, ()):
            return Reason.MATCH_ATTRIBUTES_CONFLICT
        return short_reason(unit)

    def _structural(self, unit: PlacementUnit, reason: Reason, edits: Sequence[Relaxation], but: str = "") -> Finding:
        """The finding for a unit that fits an empty fleet after these edits; claims may be in the way even then."""
        marked = tuple(self.typos.marked(edit, unit) for edit in edits)
        try:
            claims, note = self._claims_besides(unit, edits)
        except Undecided:
            claims, note = (), "time ran out before the solver knew whether other claims block it too"
        fix = describe_remedy(marked, claims)
        if self.finder.is_cut_short and not note:
            note = NOT_PROVEN if fix else _CUT_SHORT
        return Finding(
            reason,
            join_sentences(but or self._lack(unit, reason), *self.typos.of_unit(unit), fix, note),
            marked,
            claims,
        )

    def _claims_besides(self, unit: PlacementUnit, edits: Sequence[Relaxation]) -> tuple[tuple[Key, ...], str]:
        """Claims in the way of the edited unit, and a word of caution."""
        self.finder.refill()
        question = apply_relaxations(self.question(unit, self.in_use), edits)
        if not edits or not self.in_use or self.finder.works(question):
            return (), ""
        blocking = self.releases.find(question, self.finder)
        return blocking.claims, "" if blocking.smallest else NOT_PROVEN

    def _displaced(self, unit: PlacementUnit) -> Finding:
        """Who has what it needs. It fits an empty fleet."""
        in_batch = self._fits(unit, self.before)
        reason = Reason.LOST_TO_COMPETITION if in_batch else Reason.DEVICES_IN_USE
        short = self._shortage(unit, self.in_use) or self._exhausted(unit)
        try:
            blocking = self._in_the_way(unit)
        except Undecided:
            return Finding(
                reason, join_sentences(short, "time ran out before the solver found the claims that block it")
            )
        own_priority = max(d.claim.priority for d in unit.demands)
        if in_batch and any(self.priorities[key] > own_priority for key in blocking.claims):
            reason = Reason.LOST_TO_HIGHER_PRIORITY
        note = "" if blocking.smallest else NOT_PROVEN
        return Finding(reason, join_sentences(short, describe_remedy((), blocking.claims), note), (), blocking.claims)

    def _in_the_way(self, unit: PlacementUnit) -> BlockingClaims:
        """Who must go so that the unit fits. It does not fit beside them."""
        here = self.releases.find(self.question(unit, ()), self.finder)
        binding = self._bound_by(unit)
        if not binding or any(d.claim.pinned_node for d in unit.demands) or not self.priorities.keys() >= {*binding}:
            return here
        if here.claims and len(binding) >= len(here.claims):
            return here
        # The members of its group that hold devices bind it to their node for as long as they do.
        stays = tuple(holding for holding in self.in_use if holding.claim not in binding)
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

    def _exhausted(self, unit: PlacementUnit) -> str:
        """Devices are free, and yet it does not fit."""
        question = self.question(unit, self.in_use)
        try:
            drawn = shares_limits(question) and self.finder.works(apply_relaxations(question, [self.limits]))
            return _DRAWN if drawn else _NOT_TOGETHER
        except Undecided:
            return _NOT_TOGETHER

    # -- groups --------------------------------------------------------------------------------------------------------

    def _find_members(self, unit: PlacementUnit) -> dict[Key, Finding]:
        """Reasons in a group, which is all or none: who cannot be helped fails the others, and blockers are common."""
        alone = {d.key: PlacementUnit((d,), unit.group, unit.pin) for d in unit.demands}
        hopeless = [key for key, single in alone.items() if not self._fits(single, ())]
        if hopeless:
            return self._hopeless_members(unit, alone, hopeless)
        if not self._fits(unit, ()):
            return {key: self._apart(unit, key) for key in alone}
        together = (
            Finding(Reason.SEARCH_LIMIT, "it fits, but the search ended before it found where")
            if self._fits(unit, self.in_use)
            else self._displaced(unit)
        )
        message = f"group {unit.group} is all-or-nothing and shares a node: {together.text}"
        return dict.fromkeys(alone, replace(together, text=message))

    def _hopeless_members(
        self, unit: PlacementUnit, alone: Mapping[Key, PlacementUnit], hopeless: Sequence[Key]
    ) -> dict[Key, Finding]:
        """Some members fit no node even on their own."""
        reasons: dict[Key, Reason] = {}
        edits: list[Relaxation] = []
        for key in hopeless:
            reasons[key], own = why_impossible(self.question(alone[key], ()), self._offers(unit, key), self.finder)
            edits += own
        whole = self.question(unit, ())
        eased = apply_relaxations(whole, edits)
        if not self.finder.works(eased):
            edits += why_impossible(eased, self._offers(eased.unit), self.finder)[1]
        # What one member needs, such as another node, may be all that another one needs too.
        self.finder.refill()
        edits = drop_unneeded(
            without_redundant(edits), lambda chosen: self.finder.works(apply_relaxations(whole, chosen))
        )
        names = ", ".join(f"{namespace}/{name}" for namespace, name in hopeless)
        others = f"group {unit.group} is all-or-nothing, and {names} cannot be satisfied"
        common = self._structural(unit, Reason.GROUP_UNSATISFIABLE, edits, others)
        findings = dict.fromkeys(alone, common)
        for key, reason in reasons.items():
            tail = join_sentences(self._lack(alone[key], reason), describe_remedy(common.edits, common.claims))
            findings[key] = replace(common, reason=reason, text=tail)
        return findings

    def _apart(self, unit: PlacementUnit, key: Key) -> Finding:
        """Each member fits some node, and no node has room for all: as the member ``key`` sees it."""
        reason, edits = why_impossible(
            self.question(unit, ()), self._offers(unit), self.finder, member_relaxations(unit, key)
        )
        message = f"group {unit.group} is all-or-nothing and shares a node: {self._lack(unit, reason)}"
        return self._structural(unit, Reason.GROUP_UNSATISFIABLE, edits, message)

    # -- questions -----------------------------------------------------------------------------------------------------

    def _fits(self, unit: PlacementUnit, held: tuple[Allocation, ...]) -> bool:
        if self.is_proven and unit is self._left_out and len(held) == len(self.in_use):
            return False  # ``held`` is the first so many of ``in_use``
        return self.finder.fits(self.question(unit, held))

    def _offers(self, unit: PlacementUnit, member: Key | None = None) -> DeviceClaimRelaxations:
        """What the unit offers to be taken away, or one member of it."""
        demands = tuple(d for d in unit.demands if member in (None, d.key))
        part = replace(unit, demands=demands)
        if self.held_back is None:
            self.held_back = withheld_devices(self.snapshot)
        pinned = [d.key for d in unit.demands if unit.group is not None and d.claim.pinned_node]
        return DeviceClaimRelaxations(self.eligibility, part, self.held_back, self.limits, self._bound_by(unit), pinned)

    def _bound_by(self, unit: PlacementUnit) -> tuple[Key, ...]:
        """The members of a group that are on its node already, and so bind the others."""
        if unit.group is None or unit.pin is None:
            return ()
        namespace = unit.demands[0].key[0]
        fixed = [c for c in self.intake.claims if c.group == unit.group and c.namespace == namespace and c.is_allocated]
        refused = [
            r for r in self.intake.refused if (r.key[0], r.group) == (namespace, unit.group) and r.status and r.node
        ]
        return tuple(sorted({c.key for c in fixed if node_of(c, self.snapshot)} | {r.key for r in refused}))

    # -- words ---------------------------------------------------------------------------------------------------------

    def _lack(self, unit: PlacementUnit, reason: Reason) -> str:
        """What a node would need and none has, in an empty fleet."""
        unmatched = unmatched_details(unit)
        if unmatched:
            several = sum(len(d.details) for d in unit.demands) > 1
            return "no device matches" + (f" request {unmatched[0]}" if several else "")
        short = self._shortage(unit, ())
        if reason is Reason.NODE_UNAVAILABLE:
            bound = f"it would fit on another node, but is bound to {unit.pin}"
            return join_sentences(bound, self._no_such_node(unit) or short)
        if short:
            return short
        if reason is Reason.MATCH_ATTRIBUTES_CONFLICT:
            named = ((*d.match, *d.shared, *(n for s in d.requests for n in s.match)) for d in unit.demands)
            names = sorted({name for group in named for name in group})
            return f"the devices needed together differ in {' and '.join(f'`{name}`' for name in names)} on every node"
        if reason is Reason.POOL_RESOURCES_EXHAUSTED:
            return _EXCLUSIVE
        return "no single node has everything that is requested together, even when nothing is in use"

    def _no_such_node(self, unit: PlacementUnit) -> str:
        """That the node it is bound to does not exist; "" when it does."""
        nodes = self.fleet.nodes if self.fleet else self.snapshot.nodes
        if unit.pin is None or unit.pin in nodes:
            return ""
        near = closest_match(unit.pin, nodes)
        return f"no node {unit.pin!r} has devices" + (f"; did you mean {near!r}?" if near else "")

    def _shortage(self, unit: PlacementUnit, held: tuple[Allocation, ...]) -> str:
        free = "free " if held else ""
        counting = self.finder.counting
        for demand in unit.demands:
            for detail in demand.details:
                shortages = [
                    describe_shortage(counting, demand, request, held, free=free, pin=unit.pin) for request in detail
                ]
                if all(shortages):
                    return shortages[0]
        return ""

    def _answer(self, demand: Demand, finding: Finding, warnings: Mapping[Key, tuple[str, ...]]) -> ClaimAnswer:
        funnels = [self.funnels.make(request) for request in demand.requests]
        namespace, name = demand.key
        return ClaimAnswer(
            namespace=namespace,
            name=name,
            allocated=False,
            reason=finding.reason,
            message=_message(funnels, finding),
            warnings=warnings.get(demand.key, ()),
            funnel=tuple(funnel.to_dict() for funnel in funnels),
            blockers=tuple(self.blockers(finding)),
        )


_EXCLUSIVE = (
    "the devices exclude each other: together they need more of their pool's resources than it has, "
    "or are of different groups"
)
_DRAWN = "unclaimed devices need pool resources (or a compatibility group) that devices in use have taken"
_NOT_TOGETHER = "no single node has everything free that is requested together"


def _message(funnels: Sequence[Funnel], finding: Finding) -> str:
    """One sentence: how final it is, the numbers of the request that is worst off, and what stands in the way."""
    is_empty = finding.is_impossible
    worst = min(funnels, key=lambda f: ((f.matching if is_empty else f.free) - f.request.least, f.request.detail))
    label = f"request {worst.request.label}: " if len(funnels) > 1 else ""
    return f"{finding.reason.verdict}: {label}{join_sentences(worst.sentence(is_empty=is_empty), finding.text)}"
