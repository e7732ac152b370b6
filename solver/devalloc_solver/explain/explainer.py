"""Why a unit is not placed: which reason, in which order, verified by which relaxation (S19). For every dialect.

1. If nothing matches, or the unit does not fit an empty fleet, the reason is the first tier of relaxations with which
   it would. Claims may be in the way even then.
2. If it fits beside what is in use, the search ended too early.
3. Otherwise claims are in the way: those of this batch, or those that held their devices before.

A dialect gives the tiers (``RelaxationSet``) and field paths. Everything is data here: ``devalloc.api.findings`` makes
the sentence.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product
from typing import Any, ClassVar

from devalloc.api import findings
from devalloc.api.cordon import is_cordon_or_unschedulable
from devalloc.api.findings import Cause, Fact, claim_ref, fact, first_of, group_ref
from devalloc.api.problems import closest_match
from devalloc.api.reasons import IMPOSSIBLE_NOW_VERDICT, Reason
from devalloc_solver.cel.budget import OutOfTime
from devalloc_solver.deadline import GRACE_SECONDS
from devalloc_solver.explain.feasibility import FeasibilityChecker, FeasibilityQuestion, Undecided
from devalloc_solver.explain.funnel import SHOWN, Funnel, FunnelCounter, FunnelSource, main_step
from devalloc_solver.explain.joint_counts import amounts_together, best_on_node, competition, excess
from devalloc_solver.explain.leaving import Leaving, LeavingSearch
from devalloc_solver.explain.relaxations import (
    Relaxation,
    RelaxationSet,
    apply_relaxations,
    ask_for_the_same,
    drop_unneeded,
    unmatched_requests,
    without_redundant,
)
from devalloc_solver.explain.supply_relaxations import MAX_NODES, shares_limits
from devalloc_solver.explain.typos import UnitTypos
from devalloc_solver.problem.allocations import Holding, Key, LeaveMode
from devalloc_solver.problem.answer import ClaimAnswer
from devalloc_solver.problem.demand import Constraint, Demand, PlacementUnit, Request
from devalloc_solver.problem.ordering import natural_key
from devalloc_solver.problem.placement import Placement
from devalloc_solver.problem.snapshot import Snapshot

MAX_MEMBERS_NAMED = 100_000
"""Members to leave out that the answers to all members of a group name together: each may name all others."""
NOT_SMALLEST, NOT_ENOUGH = "notSmallest", "notEnough"
OTHERS_UNKNOWN, NOTHING_LEFT = "othersUnknown", "nothingLeft"
"""Caveats (``findings.CAVEATS``)."""
NOT_TOGETHER = fact(Cause.APART, free=True)
_COMMON_TO_MEMBERS = frozenset(
    ("node", "matchAttribute", "constraint", "poolResource", "compatibilityGroup", "counter")
)
"""Kinds of edits of ``RelaxationSet.special_tiers``, which do not depend on the member that gets the message."""
_WHOLE = frozenset(("request", "member", "matchAttribute", "constraint"))
"""Kinds of edits that leave a rule out, and not only reduce an amount: nothing is less than one of them."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is found out about a unit, or about one of its claims; it holds for their equals."""

    reason: Reason
    causes: tuple[Fact, ...]
    """what stands in the way, the most telling first"""
    edits: tuple[Relaxation, ...] = ()
    """none can be left out"""
    claims: tuple[Key, ...] = ()
    """whose release makes room once the edits are made"""
    missing_drivers: frozenset[str] = frozenset()
    """those of which the class takes devices, if no device of them exists: then that alone is the reason"""
    invalid_pools: tuple[str, ...] = ()
    """pools and slices that are left out, and why: of the missing drivers, or all if there are no devices"""
    alternatives: tuple[Relaxation, ...] = ()
    """edits of which each would do as well"""
    caveats: tuple[str, ...] = ()
    """what is not certain of edits and claims"""

    @property
    def verdict(self) -> str:
        """How final it is. What is cordoned is there, and needs no other claim or fleet."""
        return IMPOSSIBLE_NOW_VERDICT if are_about_schedulability(self.edits) else self.reason.verdict


@dataclass(frozen=True, slots=True)
class FleetTotals:
    """What is said of a whole fleet, if the snapshot is only a part of it; None: the snapshot has it."""

    funnels: FunnelSource | None = None
    typos: UnitTypos | None = None
    nodes: Collection[str] | None = None
    """names of all nodes that have pools"""
    errors: Sequence[str] | None = None
    """the devices that could not be judged"""
    invalid_pools: Mapping[str, str] = field(default_factory=dict)
    """driver -> a pool of it that is left out, and why"""


@dataclass(slots=True)
class Explainer(ABC):
    """Explains the units that a solution left out, each by solving it again under better circumstances."""

    snapshot: Snapshot
    allocations: Sequence[Holding]
    """held before this batch"""
    placements: Sequence[Placement]
    """given in this batch"""
    ends: float | None
    """monotonic time after which nothing is solved any more"""
    fleet: FleetTotals = field(default=FleetTotals(), kw_only=True)
    funnels: FunnelSource = field(init=False)
    before: tuple[Holding, ...] = field(init=False)
    in_use: tuple[Holding, ...] = field(init=False)
    """all that is held now: ``allocations``, then what was given"""
    by_kind: dict[object, Explanation] = field(init=False, default_factory=dict)
    """kind of a unit -> what is found out about it, which holds for all its equals"""
    holding_of: Mapping[Key, Holding] = field(init=False)
    """what each claim holds that holds anything"""
    explained: PlacementUnit | None = field(init=False, default=None)
    """what is being explained"""
    crowded: PlacementUnit | None = field(init=False, default=None)
    """the last unit, after what must change of it, where claims were looked for that are in its way besides"""
    in_the_way: tuple[Key, ...] = field(init=False, default=())
    """those claims, in the last answer"""
    is_proven: bool = field(init=False, default=False)
    """no unit that was left out fits beside the others: the search has shown that no more can be satisfied"""
    is_brief: bool = field(init=False, default=False)
    """find the reason only, and not what is in the way"""
    pools_by: ClassVar[str | None] = None
    """who makes pools; None: users"""
    _finder: FeasibilityChecker | None = field(init=False, default=None)
    _releases: LeavingSearch | None = field(init=False, default=None)
    _typos: UnitTypos | None = field(init=False, default=None)
    _drivers: frozenset[str] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.before = tuple(self.allocations)
        self.in_use = (*self.allocations, *(placement.holding() for placement in self.placements))
        self.holding_of = {holding.owner: holding for holding in self.in_use}
        self.funnels = self.fleet.funnels or FunnelCounter(self.snapshot, self.in_use)

    @property
    def finder(self) -> FeasibilityChecker:
        if self._finder is None:
            self._finder = self.make_finder()
        return self._finder

    @property
    def releases(self) -> LeavingSearch:
        if self._releases is None:
            self._releases = LeavingSearch(self.snapshot, self.in_use)
        return self._releases

    @property
    def drivers(self) -> frozenset[str]:
        if self._drivers is None:
            self._drivers = self.list_drivers()
        return self._drivers

    @property
    def typos(self) -> UnitTypos:
        if self._typos is None:
            self._typos = self.fleet.typos or self.make_typos()
        return self._typos

    def explain(self, unit: PlacementUnit) -> list[ClaimAnswer]:
        """Answer each claim of the unit."""
        findings = self.find_all(unit)
        return [self.answer(unit, demand, findings[demand.key]) for demand in unit.demands]

    def answer(self, unit: PlacementUnit, demand: Demand, finding: Explanation) -> ClaimAnswer:
        """Answer a claim of a unit with what is found."""
        self.in_the_way = finding.claims
        funnels = [self.funnels.make(request) for request in demand.requests]
        return ClaimAnswer(
            *demand.key,
            allocated=False,
            **self.as_data(finding, demand.key),
            warnings=self.warnings(demand),
            funnel=tuple(map(self.funnel_dict, funnels)),
            missing_drivers=tuple(sorted(finding.missing_drivers)),
            invalid_pools=finding.invalid_pools,
        )

    # -- what a dialect gives ------------------------------------------------------------------------------------------

    def make_finder(self) -> FeasibilityChecker:
        return FeasibilityChecker(self.snapshot, self.reads, self.ends)

    def reads(self, request: Request) -> frozenset[str] | None:
        """The attributes that the expressions of a request read; None: any."""
        return None

    def question(self, unit: PlacementUnit, held: tuple[Holding, ...]) -> FeasibilityQuestion:
        return FeasibilityQuestion(self.snapshot, unit, held)

    @abstractmethod
    def relaxations(self, question: FeasibilityQuestion, key: Key | None) -> RelaxationSet:
        """Of a unit that does not fit an empty fleet.

        Members of its group but ``key``, the claim that gets the message, may be left out; None: none may.
        """

    @abstractmethod
    def members(self, unit: PlacementUnit) -> Sequence[Relaxation]:
        """Leaving out each claim of a unit, in the order of its claims."""

    @abstractmethod
    def list_drivers(self) -> frozenset[str]:
        """The drivers that have devices; none if that is not certain."""

    def counted_reason(self, unit: PlacementUnit) -> Reason:
        """Find the reason by counting alone, where the search was cut short."""
        if unmatched_requests(unit):
            return Reason.NO_MATCHING_DEVICES
        if self.shortage(unit, is_empty=True):
            return Reason.NOT_ENOUGH_DEVICES
        return Reason.INSUFFICIENT_CAPACITY if amounts_together(self.snapshot, unit) else Reason.SEARCH_LIMIT

    @abstractmethod
    def shared_limits(self) -> Sequence[Relaxation]:
        """What the devices of a pool share."""

    def schedulability_edits(self, unit: PlacementUnit) -> Sequence[Relaxation]:
        """Each makes a node schedulable that gets nothing new."""
        return ()

    @abstractmethod
    def request_shortage(self, unit: PlacementUnit, demand: Demand, request: Request, *, is_empty: bool) -> Fact | None:
        """What the best node lacks; None if counting does not show it. ``is_empty``: if nothing is in use."""

    def having(self, request: Request, name: str) -> tuple[int, int] | None:
        """Count the devices for a request that have an attribute, and all for it; None where no count is shown."""
        return None

    def left_out(self, unit: PlacementUnit) -> Sequence[Fact]:
        """Devices that a request does not get because it does not say that it means such ones."""
        return ()

    @abstractmethod
    def make_typos(self) -> UnitTypos:
        """Finds what was most likely mistyped."""

    @abstractmethod
    def funnel_dict(self, funnel: Funnel) -> dict[str, Any]:
        """As JSON."""

    def warnings(self, demand: Demand) -> tuple[str, ...]:
        """List what an answer to a claim warns of, besides what it repeats of the claim."""
        return ()

    def request_ref(self, request: Request) -> Mapping[str, str]:
        """Which request a cause is about: its name, and its path if the name is only a number."""
        return {"request": str(request.detail), "path": f"spec.claims[{request.detail}]"}

    def is_about(self, edit: Relaxation, request: Request) -> bool:
        """Whether an edit changes this alternative of a request."""
        return edit.entry.get("request") == request.label

    def unknown_node(self, unit: PlacementUnit) -> Fact | None:
        """That the node it is bound to does not exist; None if it does."""
        return None

    # -- the reason ----------------------------------------------------------------------------------------------------

    def begin(self, unit: PlacementUnit) -> None:
        """Begin with another unit."""
        self.explained, self.crowded = unit, None
        self.finder.begin()

    def find_all(self, unit: PlacementUnit) -> Mapping[Key, Explanation]:
        """Why a unit is not placed, for each of its claims."""
        missing = {demand.key: self._missing_drivers(demand) for demand in unit.demands}
        if not any(missing.values()):
            return self._with_left_out(unit, self._search_reasons(unit))
        findings = self._search_reasons(unit)
        guilty, drivers = next((key, names) for key, names in missing.items() if names)
        common = fact(Cause.MEMBERS, **group_ref(unit.group), members=[claim_ref(guilty)])
        return {
            key: replace(
                finding,
                causes=(self._missing(missing[key]),) if missing[key] else (common, self._missing(drivers)),
                caveats=(NOTHING_LEFT,),
                missing_drivers=missing[key] or drivers,
                invalid_pools=self._invalid_pools(missing[key] or drivers),
            )
            for key, finding in findings.items()
        }

    def _with_left_out(self, unit: PlacementUnit, by_claim: Mapping[Key, Explanation]) -> Mapping[Key, Explanation]:
        """The same with what was left out of the drivers that the unit may have devices of: if there are no devices at
        all, that alone is the reason, and else one cause more."""
        named = [request.eligible.class_drivers for demand in unit.demands for request in demand.requests]
        drivers = self.fleet.invalid_pools.keys() if None in named else frozenset[str]().union(*filter(None, named))
        left_out = self._left_out_of(drivers if self.has_devices() else self.fleet.invalid_pools)
        if not left_out:
            return by_claim
        if self.has_devices():
            cause = fact(Cause.INVALID_POOL, why=left_out[0], by=self.pools_by, hasOthers=True)
            return {key: replace(each, causes=(*each.causes, cause)) for key, each in by_claim.items()}
        causes = (fact(Cause.INVALID_POOL, why=left_out[0], by=self.pools_by),)
        return {key: replace(each, causes=causes, invalid_pools=left_out) for key, each in by_claim.items()}

    def _left_out_of(self, drivers: Collection[str]) -> tuple[str, ...]:
        """What was left out of these drivers, and why."""
        return tuple(why for driver, why in sorted(self.fleet.invalid_pools.items()) if driver in drivers)

    def _missing_drivers(self, demand: Demand) -> frozenset[str]:
        """The drivers of the classes of a request, if no device of any of them exists."""
        present = self.drivers
        for detail in demand.details if present else ():
            needed = [request.eligible.class_drivers for request in detail]
            if all(drivers and present.isdisjoint(drivers) for drivers in needed):
                return frozenset[str]().union(*(drivers for drivers in needed if drivers))
        return frozenset()

    def has_devices(self) -> bool:
        """Whether any device is published that can be read."""
        return bool(self.drivers)

    def _no_devices(self) -> Fact:
        """That there are none; how many pools there are all the same."""
        there = len(self.snapshot.pools)
        return fact(Cause.NO_DEVICES, **({"pools": there} if there else {}))

    def describe_invalid_pool(self, driver: str) -> str:
        """A pool of a driver that does not count, and why; "" if there is none."""
        return self.fleet.invalid_pools.get(driver, "")

    def _invalid_pools(self, drivers: Collection[str]) -> tuple[str, ...]:
        return tuple(why for driver in sorted(drivers) if (why := self.describe_invalid_pool(driver)))

    def _missing(self, drivers: Collection[str]) -> Fact:
        if invalid := self._invalid_pools(drivers):
            return fact(Cause.INVALID_POOL, drivers=sorted(drivers), why=invalid[0], by=self.pools_by)
        present = sorted(self.drivers)
        near = next((near for one in sorted(drivers) if (near := closest_match(one, present, alike=0.9))), None)
        return fact(Cause.NO_DRIVER, drivers=sorted(drivers), there=present[: SHOWN + 1], near=near)

    def _search_reasons(self, unit: PlacementUnit) -> Mapping[Key, Explanation]:
        """Search for the reasons, of a group for all members at once; SearchLimit if that ends early."""
        if len(unit.demands) == 1:
            key = unit.demands[0].key
            return {key: self.find_equal(unit, key)}
        try:
            self.begin(unit)
            return self._find_members(unit)
        except (Undecided, OutOfTime):
            unknown = Explanation(Reason.SEARCH_LIMIT, (self._cut_short("reason"),))
            return {demand.key: unknown for demand in unit.demands}

    def find(self, unit: PlacementUnit, key: Key) -> Explanation:
        """Why a unit is not placed; ``key``: of its claim that gets the message."""
        self.begin(unit)
        try:
            empty = self.question(unit, ())
            if unmatched_requests(empty.unit) or amounts_together(self.snapshot, empty.unit) or not self.fits(empty):
                return self._impossible(unit, key)
            return self.find_beside_others(unit)
        except (Undecided, OutOfTime):
            return Explanation(Reason.SEARCH_LIMIT, (self._cut_short("reason"),))

    def find_equal(self, unit: PlacementUnit, key: Key) -> Explanation:
        """The same, once for equal units."""
        kind = unit.kind
        finding = self.by_kind.get(kind) if kind is not None else None
        if finding is None:
            finding = self.by_kind[kind] = self.find(unit, key)
        return finding

    def fits(self, question: FeasibilityQuestion) -> bool:
        """Whether the unit fits, for certain. Raises Undecided."""
        if self.is_proven and question.unit is self.explained and len(question.held) == len(self.in_use):
            return False  # what is held is the first so many of ``in_use``
        return self.finder.fits(question)

    def _impossible(self, unit: PlacementUnit, key: Key) -> Explanation:
        """Why it does not fit even when nothing is in use."""
        try:
            reason, edits = self._why_impossible(unit, key)
        except Undecided:
            reason = self.counted_reason(unit)
            return Explanation(reason, (*self.lack(unit, reason), self._cut_short("edits")))
        return self.structural(unit, reason, edits)

    def _why_impossible(
        self, unit: PlacementUnit, key: Key | None, eased: Sequence[Relaxation] = ()
    ) -> tuple[Reason, list[Relaxation]]:
        """Ask ``RelaxationSet.why_impossible``, after these edits. ``key``: see ``relaxations``. Raises Undecided."""
        question = apply_relaxations(self.question(unit, ()), eased)
        offered = self.relaxations(question, key)
        lacks_amounts = offered.short is Reason.NOT_ENOUGH_DEVICES and self._lacks_amounts(unit)
        return offered.why_impossible(question, self.finder, is_brief=self.is_brief, lacks_amounts=lacks_amounts)

    def structural(
        self, unit: PlacementUnit, reason: Reason, edits: Sequence[Relaxation], lack: tuple[Fact, ...] = ()
    ) -> Explanation:
        """The finding for a unit that fits an empty fleet after these edits; claims may be in the way even then."""
        marked = tuple(self.typos.marked(edit, unit) for edit in edits)
        claims: tuple[Key, ...] = ()
        lack = lack or self.lack(unit, reason, edits)
        try:
            blocking = self._blocking_edited(unit, edits)
            claims, caveat = blocking.owners, "" if blocking.is_least else NOT_SMALLEST
        except Undecided:
            caveat = OTHERS_UNKNOWN
        is_smallest = len(marked) == 1 and marked[0].kind in _WHOLE and not claims
        unknown: tuple[Fact, ...] = ()
        if self.finder.is_cut_short and not caveat and not is_smallest:
            caveat = NOT_SMALLEST if marked or claims else ""
            unknown = () if caveat else (self._cut_short("edits"),)
        if caveat == NOT_SMALLEST and edits and not self._suffice(unit, edits):
            caveat = NOT_ENOUGH
        typos = self.typos.of_unit(unit, self.ends)
        caveats = [NOTHING_LEFT] if _leave_no_request(marked, unit) else []
        return Explanation(
            reason,
            (*self.ghosts_of(claims), *lack[:1], *typos, *self.left_out(unit), *lack[1:], *unknown),
            self._with_other_nodes(unit, marked, claims),
            claims,
            caveats=(*caveats, *filter(None, [caveat])),
        )

    def _suffice(self, unit: PlacementUnit, edits: Sequence[Relaxation]) -> bool:
        """Whether a unit is known to fit an empty fleet after these edits."""
        question = apply_relaxations(self.question(unit, ()), edits)
        self.finder.refill()
        return self.finder.works(question) or self.finder.works_if_searched(question)

    def _with_other_nodes(
        self, unit: PlacementUnit, edits: tuple[Relaxation, ...], claims: Sequence[Key]
    ) -> tuple[Relaxation, ...]:
        """The edits, with the other nodes that do as well if one node must become schedulable. A part of a fleet
        does not have them all."""
        if len(edits) != 1 or not edits[0].instead or self.fleet.nodes is not None:
            return edits
        (edit,) = edits
        question = self.question(unit, self.in_use).without(frozenset(claims))
        self.finder.refill()
        try:
            working = [
                str(other.entry["node"])
                for other in edit.instead[:MAX_NODES]
                if self.finder.works(apply_relaxations(question, [other]))
            ]
        except Undecided:
            return edits
        return (replace(edit, entry={**edit.entry, "otherNodes": working}),) if working else edits

    def _blocking_edited(self, unit: PlacementUnit, edits: Sequence[Relaxation]) -> Leaving:
        """Claims in the way of the edited unit."""
        self.finder.refill()
        question = apply_relaxations(self.question(unit, self.in_use), edits)
        if not edits or not self.in_use or self.finder.works(question):
            return Leaving((), is_least=True)
        return self.blocking(question)

    def find_beside_others(self, unit: PlacementUnit) -> Explanation:
        """Who has what a unit needs that is certain to fit an empty fleet. Raises Undecided."""
        if self.fits(self.question(unit, self.in_use)):
            return Explanation(Reason.SEARCH_LIMIT, (self._cut_short("place"),))
        in_batch = bool(self.placements) and (not self.before or self.fits(self.question(unit, self.before)))
        reason = Reason.LOST_TO_COMPETITION if in_batch else Reason.DEVICES_IN_USE
        lack = filter(None, [self.shortage(unit, is_empty=False) or self.exhausted(unit)])
        try:
            blocking = Leaving((), is_least=True) if self.is_brief else self.blocking_unit(unit)
        except Undecided:
            return Explanation(reason, (*lack, self._cut_short("holders")))
        own_priority = max(d.claim.priority for d in unit.demands)
        holders = blocking.owners if in_batch else ()
        highest = max((self.holding_of[key].priority for key in holders), default=own_priority)
        order: list[Fact] = []
        if highest > own_priority:
            reason = Reason.LOST_TO_HIGHER_PRIORITY
            order.append(fact(Cause.OUTRANKED, priority=own_priority, by=highest))
        return Explanation(
            reason,
            (*self.ghosts_of(blocking.owners), *lack, *self.left_out(unit), *order),
            (),
            blocking.owners,
            alternatives=() if self.is_brief else self._other_node(unit),
            caveats=() if blocking.is_least else (NOT_SMALLEST,),
        )

    def _other_node(self, unit: PlacementUnit) -> tuple[Relaxation, ...]:
        """A node that would do if it became schedulable; none if no such node is known."""
        question = self.question(unit, self.in_use)
        self.finder.refill()
        try:
            for edit in self.schedulability_edits(unit)[:MAX_NODES]:
                if self.finder.works(apply_relaxations(question, [edit])):
                    return (edit,)
        except Undecided:
            pass
        return ()

    def blocking_unit(self, unit: PlacementUnit) -> Leaving:
        """Who must go so that the unit fits. It does not fit beside them."""
        here = self.blocking(self.question(unit, self.in_use))
        binding = unit.bound_by
        if not binding or len(unit.pinned_by) > len(binding) or not self.holding_of.keys() >= {*binding}:
            return here
        if here.owners and len(binding) >= len(here.owners):
            return here
        # The members of its group that hold devices bind it to their node for as long as they do.
        stays = tuple(allocation for allocation in self.in_use if allocation.owner not in binding)
        unbound = replace(unit, pin=None)
        anywhere = Leaving((), is_least=True)
        self.finder.refill()
        if not self.finder.works(self.question(unbound, stays)):
            anywhere = LeavingSearch(self.snapshot, stays).find(self.question(unbound, ()), self.finder)
            if not anywhere.owners:
                return here
        claims = tuple(sorted({*binding, *anywhere.owners}))
        if here.owners and len(claims) >= len(here.owners):
            return here
        return Leaving(claims, here.is_least and anywhere.is_least)

    def blocking(self, question: FeasibilityQuestion) -> Leaving:
        """The same for a question about all that is in use."""
        self.crowded = question.unit
        return self.releases.find(question, self.finder)

    # -- groups --------------------------------------------------------------------------------------------------------

    def _find_members(self, unit: PlacementUnit) -> dict[Key, Explanation]:
        """Reasons in a group, which is all or none: who cannot be helped fails the others, and blockers are common."""
        alone = {demand.key: replace(unit, demands=(demand,)) for demand in unit.demands}
        fits_together = self._fits_together(unit)
        if not fits_together:
            hopeless = [key for key, single in alone.items() if not self.fits(self.question(single, ()))]
            if hopeless:
                return self._hopeless_members(unit, alone, hopeless)
            if fits_together is None:
                raise Undecided
            return self._all_apart(unit, [*alone])
        together = self.find_beside_others(unit)
        causes = (fact(Cause.GROUP, **group_ref(unit.group)), *together.causes)
        return dict.fromkeys(alone, replace(together, causes=causes))

    def _fits_together(self, unit: PlacementUnit) -> bool | None:
        """Whether a group fits an empty fleet; then so does each of its members. None: the search is undecided."""
        try:
            return self.fits(self.question(unit, ()))
        except Undecided:
            return None

    def _hopeless_members(
        self, unit: PlacementUnit, alone: Mapping[Key, PlacementUnit], hopeless: Sequence[Key]
    ) -> dict[Key, Explanation]:
        """Some members fit no node even on their own."""
        reasons: dict[Key, Reason] = {}
        edits: list[Relaxation] = []
        for key in hopeless:
            reasons[key], own = self._why_impossible(alone[key], None)
            edits += own
        whole = self.question(unit, ())
        if not self.finder.works(apply_relaxations(whole, edits)):
            edits += self._why_impossible(unit, None, edits)[1]
        # What one member needs, such as another node, may be all that another one needs too.
        self.finder.refill()
        edits = drop_unneeded(whole, without_redundant(edits), self.finder)
        others = fact(Cause.MEMBERS, **group_ref(unit.group), **first_of("members", [*map(claim_ref, hopeless)]))
        first = hopeless[0]
        lack = (others, *self.lack(alone[first], reasons[first], edits))
        common = self.structural(unit, Reason.GROUP_UNSATISFIABLE, edits, lack)
        by_claim = dict.fromkeys(alone, common)
        for key, reason in reasons.items():
            by_claim[key] = replace(common, reason=reason, causes=self.lack(alone[key], reason, edits))
        return by_claim

    def _all_apart(self, unit: PlacementUnit, keys: Sequence[Key]) -> dict[Key, Explanation]:
        """The same for all members: rules that come before leaving out members are the same for each of them. If all
        ask for the same, each is to leave out as many as the first one, at the same places among its others."""
        first, *others = keys
        reason, edits = self._why_impossible(unit, first)
        by_claim = {first: self._apart(unit, reason, edits)}
        named = by_claim[first].edits
        if named and all(edit.kind in _COMMON_TO_MEMBERS for edit in named):
            return dict.fromkeys(keys, by_claim[first])
        if ask_for_the_same(unit) and all(edit.kind == "member" for edit in edits):
            most, common = max(1, MAX_MEMBERS_NAMED // len(keys)), by_claim[first]
            if len(edits) > most:
                edits, common = edits[:most], replace(common, caveats=(*common.caveats, NOT_ENOUGH))
            offers = [*self.members(unit)]
            number_of = {edit.member: number for number, edit in enumerate(offers)}
            own = number_of[first]
            places = [(number := number_of[edit.member]) - (number > own) for edit in edits]
            for key in keys:
                around = [offers[place + (place >= number_of[key])] for place in places]
                by_claim[key] = replace(common, edits=tuple(around))
            return by_claim
        return by_claim | {key: self._apart(unit, *self._why_impossible(unit, key)) for key in others}

    def _apart(self, unit: PlacementUnit, reason: Reason, edits: Sequence[Relaxation]) -> Explanation:
        """The finding that a member reports of that."""
        causes = (fact(Cause.GROUP, **group_ref(unit.group)), *self.lack(unit, reason, edits))
        return self.structural(unit, Reason.GROUP_UNSATISFIABLE, edits, causes)

    # -- causes --------------------------------------------------------------------------------------------------------

    def lack(self, unit: PlacementUnit, reason: Reason, edits: Sequence[Relaxation] = ()) -> tuple[Fact, ...]:
        """What a node would need and none has, in an empty fleet; nothing if ``edits`` only uncordon what has it."""
        if edits and all(edit.why for edit in edits):
            return edits[0].why
        if edits and all(edit.kind == "nodeRule" for edit in edits):
            return (fact(Cause.NODE_BARRED),)  # what the other nodes lack, these have
        unmatched = unmatched_requests(self.question(unit, ()).unit)
        is_there = are_about_schedulability(edits)
        if is_there and (unmatched or reason is not Reason.NODE_UNAVAILABLE):
            return ()
        if unmatched and not self.has_devices() and not edits:
            return (self._no_devices(),)
        if unmatched:
            several = sum(len(d.details) for d in unit.demands) > 1
            edited = (request for edit in edits for request in unmatched if self.is_about(edit, request))
            about = next(edited, unmatched[0])
            none = fact(Cause.NO_MATCH, **(self.request_ref(about) if several else {}))
            funnel = self.funnels.make(about)
            if not funnel.total and not self.has_devices() and not any(edit.kind == "node" for edit in edits):
                return (self._no_devices(),)
            step = main_step(
                funnel,
                edits={
                    each.kind
                    for each in edits
                    if each.entry.keys().isdisjoint(("request", "path")) or self.is_about(each, about)
                },
            )
            return (none,) if step is None else (none, step)
        if reason is Reason.NODE_UNAVAILABLE and unit.pin is None:
            return (fact(Cause.NODE_BARRED),)
        short = None if is_there else self.shortage(unit, is_empty=True)
        if reason is Reason.NODE_UNAVAILABLE:
            bound = self.unknown_node(unit) or fact(Cause.BOUND, node=unit.pin)
            return (bound,) if short is None or bound["code"] == Cause.NODE_UNKNOWN else (bound, short)
        if short := short or self.joint_shortage(unit):
            return (short,)
        if reason is Reason.MATCH_ATTRIBUTES_CONFLICT:
            return (self.disagreement(unit),)
        if reason is not Reason.POOL_RESOURCES_EXHAUSTED:
            return (fact(Cause.APART),)
        are_mixed = [edit.kind == "compatibilityGroup" for edit in edits]
        return (fact(Cause.EXCLUSIVE, of=None if not edits else "groups" if all(are_mixed) else "limits"),)

    def _cut_short(self, of: str) -> Fact:
        """That the search ended first: by its time, or by its steps, of which more time gives no more."""
        is_late = self.ends is not None and time.monotonic() > self.ends - GRACE_SECONDS
        is_late |= self._finder is not None and self._finder.is_late
        return fact(Cause.CUT_SHORT, of=of, by=None if is_late else "steps")

    def shortage(self, unit: PlacementUnit, *, is_empty: bool) -> Fact | None:
        """The same for a unit: of the first request all of whose alternatives are short; None if there is none."""
        for demand in unit.demands:
            for detail in demand.details:
                shortages = [self.request_shortage(unit, demand, request, is_empty=is_empty) for request in detail]
                if all(shortages):
                    return shortages[0]
        return None

    def disagreement(self, unit: PlacementUnit) -> Fact:
        """On which attributes devices do not agree, or differ: the first for which counting shows it, or all."""
        for demand in unit.demands:
            alone = [detail[0] for detail in demand.details if len(detail) == 1 and detail[0].mode.is_counted]
            for relation, request in product(demand.relations, alone):
                if request.label in relation.labels and (few := self._too_few_agree(unit, relation, request)):
                    return few
        if names := dict.fromkeys(relation.attribute for demand in unit.demands for relation in demand.relations):
            return fact(Cause.CONSTRAINTS, attributes=(*names,))
        named = ((*d.match, *d.shared, *(n for s in d.requests for n in s.match)) for d in unit.demands)
        return fact(Cause.DIFFER, attributes=sorted({*chain.from_iterable(named)}))

    def _too_few_agree(self, unit: PlacementUnit, relation: Constraint, request: Request) -> Fact | None:
        """How many devices agree, or differ, in an attribute; None if counting does not show that they are too few."""
        accepted = request.candidates.accepted
        values = {i: own for i in accepted if (own := self.snapshot.devices[i].values(relation.attribute))}

        def count(some: Sequence[int]) -> int:
            by_value = Counter(value for index in some for value in values[index])
            return len(by_value) if relation.distinct else max(by_value.values(), default=0)

        best = best_on_node(self.snapshot, values, unit.pin, count) or 0
        if best >= request.min_count:
            return None
        there, total = self.having(request, relation.attribute) or (0, 0)
        return fact(
            Cause.TOO_FEW_AGREE,
            attribute=relation.attribute,
            distinct=relation.distinct,
            wanted=request.min_count,
            most=str(best),
            node=unit.pin,
            **self.request_ref(request),
            without=total - there or None,
            total=total or None,
        )

    def joint_shortage(self, unit: PlacementUnit) -> Fact | None:
        """What requests lack together in an empty fleet; None if counting does not show it."""
        snapshot = self.snapshot
        return (
            excess(snapshot, unit) or competition(snapshot, unit, self.request_ref) or amounts_together(snapshot, unit)
        )

    def _lacks_amounts(self, unit: PlacementUnit) -> bool:
        """Whether ``lack`` is about amounts: counting shows no devices that are too few."""
        if not amounts_together(self.snapshot, unit) or self.shortage(unit, is_empty=True):
            return False
        short = self.joint_shortage(unit)
        return short is not None and short["code"] == Cause.AMOUNTS

    def exhausted(self, unit: PlacementUnit) -> Fact:
        """Devices are free, and yet it does not fit."""
        question = self.question(unit, self.in_use)
        try:
            if shares_limits(question):
                shared = apply_relaxations(question, self.shared_limits())
                return fact(Cause.PARTS_TAKEN) if self.finder.works(shared) else NOT_TOGETHER
        except Undecided:
            pass
        return NOT_TOGETHER

    def as_data(self, finding: Explanation, key: Key) -> dict[str, Any]:
        """What an answer to a claim says of a finding, as JSON, and the sentence for who may see all of it."""
        alternatives = [findings.of_owner(edit.entry) for edit in finding.alternatives]
        blockers = [*map(findings.of_owner, self.blockers(finding))]
        data = findings.Finding(finding.causes, blockers, alternatives, finding.caveats, "/".join(key))
        return {"reason": finding.reason, "verdict": finding.verdict, **findings.as_json(data)}

    def ghosts_of(self, claims: Collection[Key]) -> tuple[Fact, ...]:
        """A device that one of the claims has and that is not published as it was: why they hold more than is seen."""
        devices, pools = self.snapshot.devices, self.snapshot.pools
        held = [
            (allocation.owner, device, pools[device.pool])
            for allocation in self.in_use
            if allocation.owner in claims
            for device in (devices[item.device] for item in allocation.items)
            if device.ghost is not None
        ]
        if not held:
            return ()
        claim, device, pool = min(held, key=lambda one: (one[0], natural_key(one[2].name), natural_key(one[1].name)))
        less = any(other.name == device.name and other.ghost is None for other in pool.devices)
        holder, more = self.holder(claim), len(held) - 1 or None
        return (fact(Cause.UNPUBLISHED, holder=holder, pool=pool.name, device=device.name, less=less, more=more),)

    def holder(self, claim: Key) -> Mapping[str, Any]:
        """Who holds what a claim of the problem holds."""
        return claim_ref(claim)

    def blockers(self, finding: Explanation) -> list[dict[str, Any]]:
        """What is in the way, as JSON."""
        # A node of two members is one edit for each, and a machine may hold by several parts.
        entries = [dict(edit.entry) for edit in finding.edits if not edit.why]
        entries += [_claim_entry(self.holding_of[key]) for key in finding.claims]
        return [*{json.dumps(each, sort_keys=True, default=str): each for each in entries}.values()]


def _claim_entry(holding: Holding) -> dict[str, Any]:
    """A claim or machine in the way, as JSON."""
    leaves = {"leaving": True} if holding.leave is not None and holding.leave.mode is LeaveMode.LEAVING else {}
    return {**claim_ref(holding.owner), "priority": holding.priority, **leaves}


def _leave_no_request(edits: Sequence[Relaxation], unit: PlacementUnit) -> bool:
    """Whether the edits leave out all requests: nothing fits always."""
    requests = sum(len(demand.details) for demand in unit.demands)
    return sum(edit.kind == "request" for edit in edits) == requests


def are_about_schedulability(edits: Sequence[Relaxation]) -> bool:
    """Whether it is enough to uncordon devices and make nodes schedulable."""
    return bool(edits) and all(is_cordon_or_unschedulable(edit.entry) for edit in edits)
