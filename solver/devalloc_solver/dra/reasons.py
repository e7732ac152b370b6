"""Why a claim of a cluster is not allocated: a code, numbers, what is in the way, and the funnels (S19).

Every reason is found by solving again under better circumstances, and so is what is in the way, within a number of
steps: where that is too little, ``blockers`` is empty and the reason and its numbers stand all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from devalloc_solver.assignment import Placement
from devalloc_solver.blockers.claims import Releases
from devalloc_solver.blockers.edits import Edit, applied, fewest, needed
from devalloc_solver.blockers.question import Finder, Question, Undecided
from devalloc_solver.blockers.words import joined, remedy
from devalloc_solver.budget import Bound, OutOfTime
from devalloc_solver.demand import Demand, Slot, Unit
from devalloc_solver.dra.candidates import Judge
from devalloc_solver.dra.funnel import funnel, sentence
from devalloc_solver.dra.inventory import Offer
from devalloc_solver.dra.numbers import Numbers
from devalloc_solver.dra.relief import ANY, Reliefs
from devalloc_solver.dra.slips import Slips
from devalloc_solver.dra.twins import is_counter
from devalloc_solver.holdings import Holding, Key, Ledger
from devalloc_solver.place import OutOfSteps, place
from devalloc_solver.reasons import NEVER, VERDICTS, Reason
from devalloc_solver.snapshot import Snapshot

MOST_FINDINGS = 40
"""Different units of one call for which what is in the way is looked for; the reasons of all others have numbers."""
MOST_LOOKS = 5_000
"""Nodes that are looked at for them, all in all: fewer findings on a large fleet, in the same time."""

_TAKEN = (Reason.DEVICES_IN_USE, Reason.LOST_TO_HIGHER_PRIORITY, Reason.LOST_TO_COMPETITION)


@dataclass(frozen=True, slots=True)
class Finding:
    """What is found out about a unit, and holds for its equals."""

    reason: Reason
    told: str
    blockers: tuple[dict[str, Any], ...] = ()

    def is_about(self, key: Key) -> bool:
        """Whether a member of the group is in the way, and it is this one."""
        return any(b["kind"] == "member" and (b["namespace"], b["name"]) == key for b in self.blockers)


class Fleetwide(Protocol):
    """Counts devices of a whole cluster, for slots of a part of it; see ``Numbers`` and ``funnel``."""

    @property
    def errors(self) -> Sequence[str]:
        """The devices that could not be judged."""

    def funnel(self, slot: Slot) -> dict[str, Any]: ...
    def users(self, slot: Slot) -> str: ...
    def shortage(self, unit: Unit, *, is_empty: bool) -> str: ...
    def disagreement(self, unit: Unit) -> str: ...


@dataclass(slots=True)
class Explainer:
    """Explains units that got nothing, each by solving it again under better circumstances."""

    snapshot: Snapshot
    offers: Sequence[Offer]
    holdings: Sequence[Holding]
    """held before"""
    placements: Sequence[Placement]
    """given in this batch"""
    ends: float | None
    """monotonic time after which nothing is solved any more"""
    slips: Slips | None = None
    """of these offers, where somebody has them already"""
    fleet: Fleetwide | None = None
    """the numbers of the whole cluster, where the snapshot is but a part of it"""
    _known: dict[object, Finding] = field(default_factory=dict)
    _funnels: dict[object, dict[str, Any]] = field(default_factory=dict)
    _given: tuple[Holding, ...] = field(init=False)
    _in_use: tuple[Holding, ...] = field(init=False)
    _priorities: dict[Key, int] = field(init=False)
    _numbers: Numbers | Fleetwide = field(init=False)
    _held: Ledger = field(init=False)
    """all that is held now"""
    _finder: Finder | None = field(init=False, default=None)
    _releases: Releases | None = field(init=False, default=None)
    _judge: Judge | None = field(init=False, default=None)
    _findings: int = field(init=False, default=0)
    crowded: Unit | None = field(init=False, default=None)
    """the last unit, after what must change of it, where claims were looked for that are in its way besides"""

    def __post_init__(self) -> None:
        self._given = tuple(placement.holding() for placement in self.placements)
        self._in_use = (*self.holdings, *self._given)
        self._priorities = {holding.claim: holding.priority for holding in self._in_use}
        self._numbers = self.fleet or Numbers(self.snapshot, self.offers, self._in_use)
        self._held = Ledger.of(self.snapshot, self._in_use)

    def explain(self, unit: Unit) -> list[dict[str, Any]]:
        """An answer for each claim of the unit."""
        kind = unit.kind
        found = self._known.get(kind) if kind is not None else None
        if found is None and len(unit.demands) > 1:
            return [self._answer(demand, unit, one) for demand, one in self._find_members(unit)]
        if found is None:
            found = self._find(unit, self._reason(unit), unit.demands[0].key)
            if kind is not None:
                self._known[kind] = found
        return [self._answer(demand, unit, found) for demand in unit.demands]

    def _answer(self, demand: Demand, unit: Unit, found: Finding) -> dict[str, Any]:
        if self.fleet is None:
            errors = sorted({error for slot in demand.slots for error in slot.spec.verdict.errors})
        else:
            errors = [*self.fleet.errors]
        answer = {
            "namespace": demand.key[0],
            "name": demand.key[1],
            "allocated": False,
            "node": None,
            "allocations": {},
            "oneOf": None,
            "reason": str(found.reason),
            "message": f"{VERDICTS[found.reason]}: {found.told}" + (f"; {errors[0]}" if errors else ""),
            "funnel": [self._funnel(slot) for slot in demand.slots],
            "blockers": [_of(demand, unit, blocker) for blocker in found.blockers],
        }
        if found.reason is Reason.NO_MATCHING_DEVICES and any(slot.spec.is_exhausting for slot in demand.slots):
            answer["exceeded"] = str(Bound.DEVICE)
        return answer | ({"warnings": errors} if errors else {})

    def _funnel(self, slot: Slot) -> dict[str, Any]:
        key = id(slot.spec.verdict), slot.spec.ask.class_name
        if key not in self._funnels and self.fleet is not None:
            self._funnels[key] = self.fleet.funnel(slot)
        elif key not in self._funnels:
            self._funnels[key] = funnel(slot, self.offers, self.snapshot, self._held)
        return self._funnels[key] | {"request": slot.spec.ask.name}

    # -- the reason --------------------------------------------------------------------------------------------------

    def _find_members(self, unit: Unit) -> Iterator[tuple[Demand, Finding]]:
        """The reason of a group, for each member: what is in the way of one may be another, and never itself."""
        given = self._reason(unit)
        findings: list[Finding] = []
        for demand in unit.demands:
            found = next((one for one in findings if not one.is_about(demand.key)), None)
            if found is None:
                found = self._find(unit, given, demand.key)
                findings.append(found)
            yield demand, found

    def _find(self, unit: Unit, given: tuple[Reason, str], key: Key) -> Finding:
        """What is in the way of a unit that has this reason, as the claim ``key`` sees it."""
        reason, told = given
        if reason is Reason.SEARCH_LIMIT:
            return Finding(reason, told)
        edits, claims, doubt = self._in_the_way(unit, reason, key)
        blockers = [*(dict(edit.entry) for edit in edits), *(self._claim_entry(key) for key in claims)]
        if self.slips is None:
            self.slips = Slips(self.offers)
        slips = self.slips.of_claims((d.claim.claim for d in unit.demands), class_selectors(unit), self.ends)
        said = joined(
            self._counted(unit, is_empty=VERDICTS[reason] == NEVER), told, *slips, remedy(edits, claims), doubt
        )
        return Finding(reason, said, tuple(blockers))

    def _reason(self, unit: Unit) -> tuple[Reason, str]:
        for demand in unit.demands:
            for slots in demand.details:
                if not any(slot.candidates.accepted for slot in slots):
                    return Reason.NO_MATCHING_DEVICES, "no device matches"
        anywhere = replace(unit, pin=None)
        tests: list[tuple[Unit, Callable[[], tuple[Reason, str] | None]]] = [(unit, lambda: self._taken(unit))]
        if unit.pin is not None:
            told = f"the node {unit.pin} does not have what other nodes do"
            tests.append((anywhere, lambda: (Reason.NODE_UNAVAILABLE, told)))
        if any(demand.relations for demand in unit.demands):
            tests.append((_without_relations(anywhere), lambda: self._conflict(unit)))
        for tried, verdict in tests:  # on a fleet where nothing is in use
            fits = self._fits(tried, self._empty())
            found = verdict() if fits else None
            if fits is None or (fits and found is None):
                return Reason.SEARCH_LIMIT, "nothing is known to stand in the way"
            if found is not None:
                return found
        short = self._numbers.shortage(unit, is_empty=True)
        devices = (self.snapshot.devices[i] for d in unit.demands for s in d.slots for i in s.candidates.accepted)
        if any(is_counter(name) for device in devices for name, _ in device.draws):
            lacking = "no node has that many such devices with the counters they consume"
            return Reason.POOL_RESOURCES_EXHAUSTED, short or lacking
        return Reason.NOT_ENOUGH_DEVICES, short or "no one node has all that is requested together"

    def _taken(self, unit: Unit) -> tuple[Reason, str] | None:
        """Who has the devices of a unit that fits an empty fleet; None when that cannot be told in time."""
        fits = self._fits(unit, self._now())
        if fits is None:
            return None
        return self._lost(unit) if fits else (Reason.DEVICES_IN_USE, self._numbers.shortage(unit, is_empty=False))

    def _lost(self, unit: Unit) -> tuple[Reason, str]:
        priority = min(demand.claim.priority for demand in unit.demands)
        short = self._numbers.shortage(unit, is_empty=False)
        if any(placement.demand.claim.priority > priority for placement in self.placements):
            return Reason.LOST_TO_HIGHER_PRIORITY, short or "claims of higher priority got the devices"
        return Reason.LOST_TO_COMPETITION, short or "other claims of this batch got the devices"

    def _conflict(self, unit: Unit) -> tuple[Reason, str]:
        told = self._numbers.disagreement(unit) or "the constraints leave no devices that go together"
        return Reason.MATCH_ATTRIBUTES_CONFLICT, told

    def _now(self) -> Ledger:
        return Ledger.of(self.snapshot, self.holdings)

    def _empty(self) -> Ledger:
        return Ledger.of(self.snapshot, ())

    def _fits(self, unit: Unit, ledger: Ledger) -> bool | None:
        """Whether a unit fits by itself; None when that cannot be told in time."""
        if self.ends is not None and time.monotonic() > self.ends:
            return None
        try:
            return place(self.snapshot, ledger, unit) is not None
        except OutOfSteps:
            return None

    # -- what is in the way ------------------------------------------------------------------------------------------

    def _in_the_way(self, unit: Unit, reason: Reason, key: Key) -> tuple[Sequence[Edit], tuple[Key, ...], str]:
        """(what must change, whose release makes room, what is not certain of it); nothing where it was not found."""
        finder = self._get_finder()
        if self._findings >= MOST_FINDINGS or finder.asked >= MOST_LOOKS:
            return (), (), ""
        self._findings += 1
        finder.begin()
        self.crowded = None
        try:
            return self._search(Question(self.snapshot, unit), reason, finder, key)
        except (Undecided, OutOfTime):
            return (), (), ""

    def _search(
        self, question: Question, reason: Reason, finder: Finder, key: Key
    ) -> tuple[Sequence[Edit], tuple[Key, ...], str]:
        edits: Sequence[Edit] = ()
        if reason not in _TAKEN:
            tiers = self._tiers(question, reason, key)
            found = next((f for tier in tiers if (f := fewest(question, tier, finder))), None)
            if found is None:
                return (), (), ""
            edits = needed(found, lambda some: finder.works(applied(question, some)))
        eased = applied(question, edits)
        claims: tuple[Key, ...] = ()
        is_full = reason is Reason.DEVICES_IN_USE  # it has been placed beside what is in use, and does not fit
        if self._in_use and (is_full or not finder.works(replace(eased, held=self._in_use))):
            finder.refill()
            self.crowded = eased.unit
            claims = self._get_releases().find(eased, finder).claims
            if not claims:
                return (), (), ""
        return edits, claims, "a smaller set may do, the search for it was cut short" if finder.is_cut_short else ""

    def _tiers(self, question: Question, reason: Reason, key: Key) -> Iterable[Sequence[Edit]]:
        """What is taken away, the first that suffices is told; of another order than in ``why``, where all is asked."""
        made = Reliefs(question.unit, self._get_judge(question.unit))
        pins, constraints, counters = made.pins(), made.constraints(), made.counters(question)
        capacities, selectors, classes = made.capacities(), made.selectors(), made.classes()
        members, counts, requests = made.members(key), made.counts(), made.requests()
        if reason is Reason.NO_MATCHING_DEVICES:
            yield from (capacities, selectors, classes, requests, members)
        else:
            yield from (pins, constraints)
            if made.draws_counters(question):
                yield from (counters, [*constraints, *counters])
            yield from (members, counts, requests, capacities, selectors, classes)
        rules = [*pins, *constraints, *counters, *capacities, *counts, *selectors]
        yield from (rules, [*rules, *classes], [*rules, *classes, *requests])

    def _get_judge(self, unit: Unit) -> Judge:
        """The judge of the claims, and knows a class that every device belongs to besides."""
        if self._judge is None:
            judge: Judge = next(slot for demand in unit.demands for slot in demand.slots).spec.judge
            self._judge = judge.with_class(ANY)
        return self._judge

    def _get_finder(self) -> Finder:
        if self._finder is None:
            self._finder = Finder(self.snapshot, lambda slot: None, self.ends)
        return self._finder

    def _get_releases(self) -> Releases:
        if self._releases is None:
            self._releases = Releases(self.snapshot, self._in_use, frozenset(h.claim for h in self._given))
        return self._releases

    def _claim_entry(self, key: Key) -> dict[str, Any]:
        return {"kind": "claim", "namespace": key[0], "name": key[1], "priority": self._priorities[key]}

    # -- words -------------------------------------------------------------------------------------------------------

    def _counted(self, unit: Unit, *, is_empty: bool) -> str:
        """The funnel of the slot that is worst off, and who has the devices."""
        slots = [slot for demand in unit.demands for slot in demand.slots]
        worst = min(slots, key=lambda slot: self._funnel(slot)["matching"] - slot.least, default=None)
        if worst is None:
            return ""
        users = "" if is_empty else self._numbers.users(worst)
        return f"request {worst.spec.ask.name}: {sentence(self._funnel(worst), is_empty=is_empty)}" + (
            f", {users}" if users else ""
        )


def _of(demand: Demand, unit: Unit, blocker: Mapping[str, Any]) -> dict[str, Any]:
    """What is in the way of a claim; found for an equal one, maybe, and then told of this one."""
    own = {"claim": "/".join(demand.key)} if "claim" in blocker and len(unit.demands) == 1 else {}
    return {**blocker, **own}


def class_selectors(unit: Unit) -> list[str]:
    """The selectors of all classes that a unit names."""
    named = {s.spec.ask.class_name: s.spec.judge.classes for d in unit.demands for s in d.slots}
    return [text for name, classes in named.items() for text in classes[name].selectors]


def _without_relations(unit: Unit) -> Unit:
    return replace(unit, demands=tuple(replace(demand, relations=()) for demand in unit.demands))
