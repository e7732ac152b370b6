"""Why a claim is not satisfied: a stable code, a sentence with numbers, and what is in the way (S19).

Every reason is verified by solving again: the claim fits once what the reason names is taken away, and not before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from devalloc.api.nearest import nearest
from devalloc_solver import cel
from devalloc_solver.assignment import Placement
from devalloc_solver.blockers.claims import InTheWay, Releases
from devalloc_solver.blockers.details import Offers, members, without_moot
from devalloc_solver.blockers.edits import Edit, applied, needed
from devalloc_solver.blockers.question import Finder, Question, Undecided
from devalloc_solver.blockers.slips import Slips
from devalloc_solver.blockers.structure import short_reason, unmatched_details, why_impossible
from devalloc_solver.blockers.supply import shared_limits, shares_limits, withheld_devices
from devalloc_solver.blockers.words import joined, remedy
from devalloc_solver.budget import OutOfTime
from devalloc_solver.demand import Demand, Slot, Unit
from devalloc_solver.eligibility import Eligibility
from devalloc_solver.funnel import Counts, Funnel, Funnels, shortage
from devalloc_solver.holdings import Holding, Key, node_of
from devalloc_solver.intake import Intake
from devalloc_solver.reasons import NEVER, VERDICTS, Reason
from devalloc_solver.snapshot import Device, Snapshot
from devalloc_solver.solution import ClaimAnswer

_CUT_SHORT = "the time did not suffice to find out what would have to change"


@dataclass(frozen=True, slots=True)
class Finding:
    """The reason of a unit, or of one of its claims."""

    reason: Reason
    tail: str
    """what stands in the way, after the numbers of the funnel"""
    edits: tuple[Edit, ...] = ()
    claims: tuple[Key, ...] = ()
    """whose release makes room once the edits are made"""


_LATE = Finding(Reason.SEARCH_LIMIT, "the search ended before the reason was found")


@dataclass(frozen=True, slots=True)
class Fleetwide:
    """What is counted on all devices of a fleet, by whoever can do so without going through them."""

    funnels: Counts
    slips: Slips
    nodes: Collection[str]
    """names of all nodes that have pools"""


@dataclass(slots=True)
class Explainer:
    """Explains the units that a solution left out."""

    snapshot: Snapshot
    holdings: Sequence[Holding]
    """held before this batch"""
    placements: Sequence[Placement]
    """given in this batch"""
    ends: float | None
    eligibility: Eligibility
    intake: Intake
    fleet: Fleetwide | None = None
    """the numbers of the whole fleet, where the snapshot is but a part of it"""
    is_proven: bool = False
    """no unit that was left out fits beside the others: the search has shown that no more can be satisfied"""
    given: tuple[Holding, ...] = field(init=False)
    before: tuple[Holding, ...] = field(init=False)
    in_use: tuple[Holding, ...] = field(init=False)
    priorities: Mapping[Key, int] = field(init=False)
    known: dict[object, Finding] = field(init=False, default_factory=dict)
    """kind of a unit -> its reason, which is that of all its equals"""
    finder: Finder = field(init=False)
    funnels: Counts = field(init=False)
    releases: Releases = field(init=False)
    slips: Slips = field(init=False)
    held_back: Sequence[Device] | None = field(init=False, default=None)
    limits: Edit = field(init=False, default_factory=shared_limits)
    _left_out: Unit | None = field(init=False, default=None)
    """the unit that is being explained"""

    def __post_init__(self) -> None:
        self.given = tuple(placement.holding() for placement in self.placements)
        self.before, self.in_use = tuple(self.holdings), (*self.holdings, *self.given)
        held = self.in_use
        self.priorities = {h.claim: h.priority for h in held}
        self.finder = Finder(self.snapshot, partial(_reads, self.eligibility), self.ends)
        self.releases = Releases(self.snapshot, held, frozenset(h.claim for h in self.given))
        self.funnels = self.fleet.funnels if self.fleet else Funnels(self.snapshot, held)
        self.slips = self.fleet.slips if self.fleet else Slips(self.snapshot, self.eligibility)

    def explain(self, unit: Unit, warnings: Mapping[Key, tuple[str, ...]]) -> list[ClaimAnswer]:
        """An answer for each claim of the unit."""
        self.finder.begin()
        self._left_out = unit
        try:
            if len(unit.demands) > 1:
                findings = self._find_members(unit)
            else:
                findings = {unit.demands[0].key: self._find_one(unit)}
        except (Undecided, OutOfTime):
            findings = {demand.key: _LATE for demand in unit.demands}
        return [self._answer(d, findings[d.key], warnings) for d in unit.demands]

    # -- one claim ---------------------------------------------------------------------------------------------------

    def _find_one(self, unit: Unit) -> Finding:
        kind = unit.kind
        found = self.known.get(kind) if kind is not None else None
        if found is None:
            try:
                found = self._find(unit)
            except (Undecided, OutOfTime):
                found = _LATE
            self.known[kind] = found
        return found

    def _find(self, unit: Unit) -> Finding:
        if unmatched_details(unit) or self._shortage(unit, ()) or not self._fits(unit, ()):
            return self._impossible(unit)
        if self._fits(unit, self.in_use):
            return Finding(Reason.SEARCH_LIMIT, "it fits, but the search ended before a place was found")
        return self._displaced(unit)

    def _impossible(self, unit: Unit) -> Finding:
        """Why it does not fit even when nothing is in use."""
        offers = self._offers(unit)
        try:
            found = why_impossible(self._question(unit, ()), offers, self.finder)
        except Undecided:
            reason = self._counted_reason(unit)
            return Finding(reason, joined(self._lack(unit, reason), _CUT_SHORT))
        return self._structural(unit, found.reason, found.edits)

    def _counted_reason(self, unit: Unit) -> Reason:
        """As far as counting tells, without any search. It is certain that the unit fits no empty fleet."""
        if unmatched_details(unit):
            return Reason.NO_MATCHING_DEVICES
        loose = self._question(unit, ()).with_slots(lambda _, slot: replace(slot, match=()))
        loose = loose.with_demands(lambda demand: replace(demand, match=()))
        if self._shortage(unit, ()) and not self._shortage(loose.unit, ()):
            return Reason.MATCH_ATTRIBUTES_CONFLICT
        return short_reason(unit)

    def _structural(self, unit: Unit, reason: Reason, edits: Sequence[Edit], but: str = "") -> Finding:
        """The finding for a unit that fits an empty fleet after these edits; claims may be in the way even then."""
        told = tuple(self.slips.marked(edit, unit) for edit in edits)
        try:
            claims, note = self._claims_besides(unit, edits)
        except Undecided:
            claims, note = (), "whether claims are in the way besides was not found out in time"
        fix = remedy(told, claims)
        if self.finder.is_cut_short and not note:
            note = _NOT_PROVEN if fix else _CUT_SHORT
        return Finding(
            reason, joined(but or self._lack(unit, reason), *self.slips.of_unit(unit), fix, note), told, claims
        )

    def _claims_besides(self, unit: Unit, edits: Sequence[Edit]) -> tuple[tuple[Key, ...], str]:
        """Claims in the way of the edited unit, and a word of caution."""
        self.finder.refill()
        question = applied(self._question(unit, self.in_use), edits)
        if not edits or not self.in_use or self.finder.works(question):
            return (), ""
        found = self.releases.find(question, self.finder)
        return found.claims, "" if found.smallest else _NOT_PROVEN

    def _displaced(self, unit: Unit) -> Finding:
        """Who has what it needs. It fits an empty fleet."""
        in_batch = self._fits(unit, self.before)
        reason = Reason.LOST_TO_COMPETITION if in_batch else Reason.DEVICES_IN_USE
        short = self._shortage(unit, self.in_use) or self._exhausted(unit)
        try:
            found = self._in_the_way(unit)
        except Undecided:
            return Finding(reason, joined(short, "the time did not suffice to find the claims in the way"))
        mine = max(d.claim.priority for d in unit.demands)
        if in_batch and any(self.priorities[key] > mine for key in found.claims):
            reason = Reason.LOST_TO_HIGHER_PRIORITY
        note = "" if found.smallest else _NOT_PROVEN
        return Finding(reason, joined(short, remedy((), found.claims), note), (), found.claims)

    def _in_the_way(self, unit: Unit) -> InTheWay:
        """Who must go so that the unit fits. It does not fit beside them."""
        here = self.releases.find(self._question(unit, ()), self.finder)
        binding = self._bound_by(unit)
        if not binding or any(d.claim.pinned_node for d in unit.demands) or not self.priorities.keys() >= {*binding}:
            return here
        if here.claims and len(binding) >= len(here.claims):
            return here
        # The members of its group that hold devices bind it to their node for as long as they do.
        stays = tuple(holding for holding in self.in_use if holding.claim not in binding)
        unbound = replace(unit, pin=None)
        anywhere = InTheWay((), smallest=True)
        if not self.finder.works(self._question(unbound, stays)):
            anywhere = Releases(self.snapshot, stays, self.releases.new).find(self._question(unbound, ()), self.finder)
            if not anywhere.claims:
                return here
        claims = tuple(sorted({*binding, *anywhere.claims}))
        if here.claims and len(claims) >= len(here.claims):
            return here
        return InTheWay(claims, anywhere.smallest)

    def _exhausted(self, unit: Unit) -> str:
        """Devices are free, and yet it does not fit."""
        question = self._question(unit, self.in_use)
        try:
            drawn = shares_limits(question) and self.finder.works(applied(question, [self.limits]))
            return _DRAWN if drawn else _NOT_TOGETHER
        except Undecided:
            return _NOT_TOGETHER

    # -- groups ------------------------------------------------------------------------------------------------------

    def _find_members(self, unit: Unit) -> dict[Key, Finding]:
        """Reasons in a group, which is all or none: who cannot be helped fails the others, and blockers are common."""
        alone = {d.key: Unit((d,), unit.group, unit.pin) for d in unit.demands}
        hopeless = [key for key, single in alone.items() if not self._fits(single, ())]
        if hopeless:
            return self._hopeless_members(unit, alone, hopeless)
        if not self._fits(unit, ()):
            return {key: self._apart(unit, key) for key in alone}
        together = (
            Finding(Reason.SEARCH_LIMIT, "it fits, but the search ended before a place was found")
            if self._fits(unit, self.in_use)
            else self._displaced(unit)
        )
        told = f"group {unit.group} is all or none and shares a node: {together.tail}"
        return dict.fromkeys(alone, replace(together, tail=told))

    def _hopeless_members(self, unit: Unit, alone: Mapping[Key, Unit], hopeless: Sequence[Key]) -> dict[Key, Finding]:
        """Some members fit no node even on their own."""
        reasons: dict[Key, Reason] = {}
        edits: list[Edit] = []
        for key in hopeless:
            found = why_impossible(self._question(alone[key], ()), self._offers(unit, key), self.finder)
            reasons[key], edits = found.reason, [*edits, *found.edits]
        whole = self._question(unit, ())
        eased = applied(whole, edits)
        if not self.finder.works(eased):
            edits += why_impossible(eased, self._offers(eased.unit), self.finder).edits
        # What one member needs, such as another node, may be all that another one needs too.
        self.finder.refill()
        edits = needed(without_moot(edits), lambda chosen: self.finder.works(applied(whole, chosen)))
        names = ", ".join(f"{namespace}/{name}" for namespace, name in hopeless)
        others = f"group {unit.group} is all or none, and {names} cannot be satisfied"
        common = self._structural(unit, Reason.GROUP_UNSATISFIABLE, edits, others)
        findings = dict.fromkeys(alone, common)
        for key, reason in reasons.items():
            tail = joined(self._lack(alone[key], reason), remedy(common.edits, common.claims))
            findings[key] = replace(common, reason=reason, tail=tail)
        return findings

    def _apart(self, unit: Unit, key: Key) -> Finding:
        """Each member fits some node, and no node has room for all: as the member ``key`` sees it."""
        found = why_impossible(self._question(unit, ()), self._offers(unit), self.finder, members(unit, key))
        told = f"group {unit.group} is all or none and shares a node: {self._lack(unit, found.reason)}"
        return self._structural(unit, Reason.GROUP_UNSATISFIABLE, found.edits, told)

    # -- questions ---------------------------------------------------------------------------------------------------

    def _question(self, unit: Unit, held: tuple[Holding, ...]) -> Question:
        return Question(self.snapshot, unit, held)

    def _fits(self, unit: Unit, held: tuple[Holding, ...]) -> bool:
        if self.is_proven and unit is self._left_out and len(held) == len(self.in_use):
            return False  # ``held`` is the first so many of ``in_use``
        return self.finder.fits(self._question(unit, held))

    def _offers(self, unit: Unit, member: Key | None = None) -> Offers:
        """What the unit offers to be taken away, or one member of it."""
        demands = tuple(d for d in unit.demands if member in (None, d.key))
        part = replace(unit, demands=demands)
        if self.held_back is None:
            self.held_back = withheld_devices(self.snapshot)
        pinned = [d.key for d in unit.demands if unit.group is not None and d.claim.pinned_node]
        return Offers(self.eligibility, part, self.held_back, self.limits, self._bound_by(unit), pinned)

    def _bound_by(self, unit: Unit) -> tuple[Key, ...]:
        """The members of a group that are on its node already, and so bind the others."""
        if unit.group is None or unit.pin is None:
            return ()
        namespace = unit.demands[0].key[0]
        mine = [c for c in self.intake.claims if c.group == unit.group and c.namespace == namespace and c.is_allocated]
        kept = [
            r for r in self.intake.refused if (r.key[0], r.group) == (namespace, unit.group) and r.status and r.node
        ]
        return tuple(sorted({c.key for c in mine if node_of(c, self.snapshot)} | {r.key for r in kept}))

    # -- words -------------------------------------------------------------------------------------------------------

    def _lack(self, unit: Unit, reason: Reason) -> str:
        """What a node would need and none has, in an empty fleet."""
        unmatched = unmatched_details(unit)
        if unmatched:
            several = sum(len(d.details) for d in unit.demands) > 1
            return "no device matches" + (f" request {unmatched[0]}" if several else "")
        short = self._shortage(unit, ())
        if reason is Reason.NODE_UNAVAILABLE:
            bound = f"it would fit on another node, but is bound to {unit.pin}"
            return joined(bound, self._no_such_node(unit) or short)
        if short:
            return short
        if reason is Reason.MATCH_ATTRIBUTES_CONFLICT:
            named = ((*d.match, *d.shared, *(n for s in d.slots for n in s.match)) for d in unit.demands)
            names = sorted({name for found in named for name in found})
            return f"the devices needed together differ in {' and '.join(f'`{name}`' for name in names)} on every node"
        if reason is Reason.POOL_RESOURCES_EXHAUSTED:
            return _EXCLUSIVE
        return "no one node has all that is requested together, even when nothing is in use"

    def _no_such_node(self, unit: Unit) -> str:
        """That the node it is bound to does not exist; "" when it does."""
        nodes = self.fleet.nodes if self.fleet else self.snapshot.nodes
        if unit.pin is None or unit.pin in nodes:
            return ""
        near = nearest(unit.pin, nodes)
        return f"there is no node {unit.pin!r} with devices" + (f"; did you mean {near!r}?" if near else "")

    def _shortage(self, unit: Unit, held: tuple[Holding, ...]) -> str:
        free = "free " if held else ""
        counting = self.finder.counting
        for demand in unit.demands:
            for detail in demand.details:
                told = [shortage(counting, demand, slot, held, free=free, pin=unit.pin) for slot in detail]
                if all(told):
                    return told[0]
        return ""

    def _answer(self, demand: Demand, finding: Finding, warnings: Mapping[Key, tuple[str, ...]]) -> ClaimAnswer:
        funnels = [self.funnels.make(slot) for slot in demand.slots]
        namespace, name = demand.key
        return ClaimAnswer(
            namespace=namespace,
            name=name,
            allocated=False,
            reason=finding.reason,
            message=_message(funnels, finding),
            warnings=warnings.get(demand.key, ()),
            funnel=tuple(funnel.to_dict() for funnel in funnels),
            blockers=(*(dict(e.entry) for e in finding.edits), *(self._claim_entry(key) for key in finding.claims)),
        )

    def _claim_entry(self, key: Key) -> dict[str, Any]:
        return {"kind": "claim", "namespace": key[0], "name": key[1], "priority": self.priorities[key]}


_EXCLUSIVE = (
    "the devices exclude each other: together they need more of their pool's resources than it has, "
    "or are of different groups"
)
_DRAWN = "devices that nobody holds need pool resources (or a compatibility group) that devices in use have taken"
_NOT_TOGETHER = "no one node has all that is requested together free"
_NOT_PROVEN = "a smaller set may do, the search for it was cut short"


def _message(funnels: Sequence[Funnel], finding: Finding) -> str:
    """One sentence: how final it is, the numbers of the request that is worst off, and what stands in the way."""
    is_empty = VERDICTS[finding.reason] == NEVER
    worst = min(funnels, key=lambda f: ((f.matching if is_empty else f.free) - f.slot.least, f.slot.detail))
    told = f"request {worst.slot.label}: " if len(funnels) > 1 else ""
    return f"{VERDICTS[finding.reason]}: {told}{joined(worst.sentence(is_empty=is_empty), finding.tail)}"


def _reads(eligibility: Eligibility, slot: Slot) -> frozenset[str] | None:
    """The attributes that the expressions of a slot and its classes read."""
    expressions = [slot.spec.constraints, *(c.spec.constraints for c in eligibility.classes_of(slot.spec) or ())]
    names: set[str] = set()
    for expression in expressions:
        if expression and expression.strip():
            read = cel.compile(expression).attributes
            if read is None:
                return None
            names |= read
    return frozenset(names)
