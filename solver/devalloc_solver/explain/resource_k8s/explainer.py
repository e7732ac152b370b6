"""Why a ResourceClaim of a cluster is not allocated: a code, numbers, blockers, and the funnels (S19).

Every reason and every blocker is found by solving a relaxed problem, within a number of steps. If the steps do not
suffice, ``blockers`` is empty, and the reason and its numbers are still true.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from devalloc_solver.cel.budget import Bound, OutOfTime
from devalloc_solver.dialects.resource_k8s.published_devices import PublishedDevice, is_counter
from devalloc_solver.explain.explainer import NOT_PROVEN, Explainer, Finding, first_sufficient, unmatched_details
from devalloc_solver.explain.feasibility import FeasibilityChecker, FeasibilityQuestion, Undecided
from devalloc_solver.explain.funnel import describe_funnel
from devalloc_solver.explain.messages import describe_remedy, join_sentences
from devalloc_solver.explain.relaxations import Relaxation, apply_relaxations, drop_unneeded
from devalloc_solver.explain.resource_k8s.availability import Availability
from devalloc_solver.explain.resource_k8s.relaxations import ResourceClaimRelaxations
from devalloc_solver.explain.resource_k8s.typos import ResourceTypoFinder
from devalloc_solver.place import StepsExhausted, place
from devalloc_solver.problem.allocations import Key, Usage
from devalloc_solver.problem.demand import Demand, PlacementUnit, Request
from devalloc_solver.reasons import IMPOSSIBLE_VERDICT, VERDICTS, Reason

MAX_FINDINGS = 40
"""Different units of one call for which what is in the way is looked for; the reasons of all others have numbers."""
MAX_SEARCHES = 5_000
"""Nodes that are looked at for them, all in all: fewer findings on a large fleet, in the same time."""

_IN_USE_REASONS = (Reason.DEVICES_IN_USE, Reason.LOST_TO_HIGHER_PRIORITY, Reason.LOST_TO_COMPETITION)


class ClusterTotals(Protocol):
    """Counts devices of a whole cluster, for requests of a part of it; see ``Availability``."""

    @property
    def errors(self) -> Sequence[str]:
        """The devices that could not be judged."""

    def funnel(self, request: Request) -> dict[str, Any]: ...
    def users(self, request: Request) -> str: ...
    def shortage(self, unit: PlacementUnit, *, is_empty: bool) -> str: ...
    def disagreement(self, unit: PlacementUnit) -> str: ...


@dataclass(slots=True)
class ResourceClaimExplainer(Explainer):
    """Explains units of ResourceClaims."""

    offers: Sequence[PublishedDevice]
    typos: ResourceTypoFinder | None = None
    """of these offers, those that have an owner already"""
    fleet: ClusterTotals | None = None
    """the numbers of the whole cluster, where the snapshot is but a part of it"""
    _funnels: dict[object, dict[str, Any]] = field(default_factory=dict)
    _numbers: Availability | ClusterTotals = field(init=False)
    _findings: int = field(init=False, default=0)
    crowded: PlacementUnit | None = field(init=False, default=None)
    """the last unit, after what must change of it, where claims were looked for that are in its way besides"""

    def __post_init__(self) -> None:
        Explainer.__post_init__(self)
        self._numbers = self.fleet or Availability(self.snapshot, self.offers, self.in_use)

    def explain(self, unit: PlacementUnit) -> list[dict[str, Any]]:
        """An answer for each claim of the unit."""
        kind = unit.kind
        finding = self.by_kind.get(kind) if kind is not None else None
        if finding is None and len(unit.demands) > 1:
            return [self._answer(demand, unit, one) for demand, one in self._find_members(unit)]
        if finding is None:
            finding = self._find(unit, self._reason(unit), unit.demands[0].key)
            if kind is not None:
                self.by_kind[kind] = finding
        return [self._answer(demand, unit, finding) for demand in unit.demands]

    def _answer(self, demand: Demand, unit: PlacementUnit, finding: Finding) -> dict[str, Any]:
        if self.fleet is None:
            errors = sorted({error for request in demand.requests for error in request.spec.verdict.errors})
        else:
            errors = [*self.fleet.errors]
        answer = {
            "namespace": demand.key[0],
            "name": demand.key[1],
            "allocated": False,
            "node": None,
            "allocations": {},
            "oneOf": None,
            "reason": str(finding.reason),
            "message": f"{VERDICTS[finding.reason]}: {finding.text}" + (f"; {errors[0]}" if errors else ""),
            "funnel": [self._funnel(request) for request in demand.requests],
            "blockers": [_blocker_of(demand, unit, blocker) for blocker in self.blockers(finding)],
        }
        if finding.reason is Reason.NO_MATCHING_DEVICES and any(
            request.spec.is_exhausting for request in demand.requests
        ):
            answer["exceeded"] = str(Bound.DEVICE)
        return answer | ({"warnings": errors} if errors else {})

    def _funnel(self, request: Request) -> dict[str, Any]:
        key = id(request.spec.verdict), request.spec.ask.class_name
        if key not in self._funnels:
            self._funnels[key] = self._numbers.funnel(request)
        return self._funnels[key] | {"request": request.spec.ask.name}

    # -- the reason ----------------------------------------------------------------------------------------------------

    def _find_members(self, unit: PlacementUnit) -> Iterator[tuple[Demand, Finding]]:
        """The reason of a group, for each member: what is in the way of one may be another, and never itself."""
        given = self._reason(unit)
        findings: list[Finding] = []
        for demand in unit.demands:
            finding = next((one for one in findings if not one.is_about(demand.key)), None)
            if finding is None:
                finding = self._find(unit, given, demand.key)
                findings.append(finding)
            yield demand, finding

    def _find(self, unit: PlacementUnit, given: tuple[Reason, str], key: Key) -> Finding:
        """What is in the way of a unit that has this reason, as the claim ``key`` sees it."""
        reason, text = given
        if reason is Reason.SEARCH_LIMIT:
            return Finding(reason, text)
        edits, claims, doubt = self._in_the_way(unit, reason, key)
        if self.typos is None:
            self.typos = ResourceTypoFinder(self.offers)
        slips = self.typos.of_claims((d.claim.claim for d in unit.demands), class_selectors(unit), self.ends)
        message = join_sentences(
            self._counted(unit, is_empty=VERDICTS[reason] == IMPOSSIBLE_VERDICT),
            text,
            *slips,
            describe_remedy(edits, claims),
            doubt,
        )
        return Finding(reason, message, tuple(edits), claims)

    def _reason(self, unit: PlacementUnit) -> tuple[Reason, str]:
        if unmatched_details(unit):
            return Reason.NO_MATCHING_DEVICES, "no device matches"
        anywhere = replace(unit, pin=None)
        tests: list[tuple[PlacementUnit, Callable[[], tuple[Reason, str] | None]]] = [(unit, lambda: self._taken(unit))]
        if unit.pin is not None:
            message = f"node {unit.pin} lacks what other nodes have"
            tests.append((anywhere, lambda: (Reason.NODE_UNAVAILABLE, message)))
        if any(demand.relations for demand in unit.demands):
            tests.append((_without_relations(anywhere), lambda: self._conflict(unit)))
        for tried, verdict in tests:  # on a fleet where nothing is in use
            fits = self._fits(tried, self._empty())
            outcome = verdict() if fits else None
            if fits is None or (fits and outcome is None):
                return Reason.SEARCH_LIMIT, "the search found nothing that blocks it"
            if outcome is not None:
                return outcome
        short = self._numbers.shortage(unit, is_empty=True)
        devices = (self.snapshot.devices[i] for d in unit.demands for s in d.requests for i in s.candidates.accepted)
        if any(is_counter(name) for device in devices for name, _ in device.draws):
            lacking = "no node has that many such devices together with the counters they consume"
            return Reason.POOL_RESOURCES_EXHAUSTED, short or lacking
        return Reason.NOT_ENOUGH_DEVICES, short or "no single node has everything that is requested together"

    def _taken(self, unit: PlacementUnit) -> tuple[Reason, str] | None:
        """Who has the devices of a unit that fits an empty fleet; None when that cannot be told in time."""
        fits = self._fits(unit, self._now())
        if fits is None:
            return None
        return self._lost(unit) if fits else (Reason.DEVICES_IN_USE, self._numbers.shortage(unit, is_empty=False))

    def _lost(self, unit: PlacementUnit) -> tuple[Reason, str]:
        priority = min(demand.claim.priority for demand in unit.demands)
        short = self._numbers.shortage(unit, is_empty=False)
        if any(placement.demand.claim.priority > priority for placement in self.placements):
            return Reason.LOST_TO_HIGHER_PRIORITY, short or "claims of higher priority got the devices"
        return Reason.LOST_TO_COMPETITION, short or "other claims of this batch got the devices"

    def _conflict(self, unit: PlacementUnit) -> tuple[Reason, str]:
        message = self._numbers.disagreement(unit) or "no combination of devices satisfies the constraints"
        return Reason.MATCH_ATTRIBUTES_CONFLICT, message

    def _now(self) -> Usage:
        return Usage.of(self.snapshot, self.holdings)

    def _empty(self) -> Usage:
        return Usage.of(self.snapshot, ())

    def _fits(self, unit: PlacementUnit, ledger: Usage) -> bool | None:
        """Whether a unit fits by itself; None when that cannot be told in time."""
        if self.ends is not None and time.monotonic() > self.ends:
            return None
        try:
            return place(self.snapshot, ledger, unit) is not None
        except StepsExhausted:
            return None

    # -- what is in the way --------------------------------------------------------------------------------------------

    def _in_the_way(
        self, unit: PlacementUnit, reason: Reason, key: Key
    ) -> tuple[Sequence[Relaxation], tuple[Key, ...], str]:
        """(what must change, whose release makes room, what is not certain of it); nothing where it was not found."""
        finder = self.finder
        if self._findings >= MAX_FINDINGS or finder.searched >= MAX_SEARCHES:
            return (), (), ""
        self._findings += 1
        finder.begin()
        self.crowded = None
        try:
            return self._search(FeasibilityQuestion(self.snapshot, unit), reason, finder, key)
        except (Undecided, OutOfTime):
            return (), (), ""

    def _search(
        self, question: FeasibilityQuestion, reason: Reason, finder: FeasibilityChecker, key: Key
    ) -> tuple[Sequence[Relaxation], tuple[Key, ...], str]:
        edits: Sequence[Relaxation] = ()
        if reason not in _IN_USE_REASONS:
            tiers = ((reason, tier) for tier in self._tiers(question, reason, key))
            sufficient = first_sufficient(question, tiers, finder)
            if sufficient is None:
                return (), (), ""
            edits = drop_unneeded(sufficient[1], lambda some: finder.works(apply_relaxations(question, some)))
        eased = apply_relaxations(question, edits)
        claims: tuple[Key, ...] = ()
        is_full = reason is Reason.DEVICES_IN_USE  # it has been placed beside what is in use, and does not fit
        if self.in_use and (is_full or not finder.works(replace(eased, held=self.in_use))):
            finder.refill()
            self.crowded = eased.unit
            claims = self.releases.find(eased, finder).claims
            if not claims:
                return (), (), ""
        return (
            edits,
            claims,
            NOT_PROVEN if finder.is_cut_short else "",
        )

    def _tiers(self, question: FeasibilityQuestion, reason: Reason, key: Key) -> Iterable[Sequence[Relaxation]]:
        """Take constraints away and report the first that suffices. ``why`` tries all, in another order."""
        made = ResourceClaimRelaxations(question.unit)
        pins, constraints = made.pins(), made.constraints()
        has_counters = any(is_counter(name) for pool in question.snapshot.pools for name in pool.resources)
        counters = made.counters() if has_counters else []
        capacities, selectors, classes = made.capacities(), made.selectors(), made.classes()
        members, counts, requests = made.members(key), made.counts(), made.requests()
        requests = requests if len(requests) > 1 else []
        if reason is Reason.NO_MATCHING_DEVICES:
            yield from (capacities, selectors, classes, requests, members)
        else:
            yield from (pins, constraints)
            if made.draws_counters(question):
                yield from (counters, [*constraints, *counters])
            yield from (members, counts, requests, capacities, selectors, classes)
        rules = [*pins, *constraints, *counters, *capacities, *counts, *selectors]
        yield from (rules, [*rules, *classes], [*rules, *classes, *requests])

    # -- words ---------------------------------------------------------------------------------------------------------

    def _counted(self, unit: PlacementUnit, *, is_empty: bool) -> str:
        """The funnel of the request that is worst off, and who has the devices."""
        requests = [request for demand in unit.demands for request in demand.requests]
        worst = min(requests, key=lambda request: self._funnel(request)["matching"] - request.least, default=None)
        if worst is None:
            return ""
        users = "" if is_empty else self._numbers.users(worst)
        return f"request {worst.spec.ask.name}: {describe_funnel(self._funnel(worst), is_empty=is_empty)}" + (
            f", {users}" if users else ""
        )


def _blocker_of(demand: Demand, unit: PlacementUnit, blocker: Mapping[str, Any]) -> dict[str, Any]:
    """What is in the way of a claim; found for an equal one, maybe, and then told of this one."""
    own = {"claim": "/".join(demand.key)} if "claim" in blocker and len(unit.demands) == 1 else {}
    return {**blocker, **own}


def class_selectors(unit: PlacementUnit) -> list[str]:
    """The selectors of all classes that a unit names."""
    named = {s.spec.ask.class_name: s.spec.judge.classes for d in unit.demands for s in d.requests}
    return [text for name, classes in named.items() for text in classes[name].selectors]


def _without_relations(unit: PlacementUnit) -> PlacementUnit:
    return replace(unit, demands=tuple(replace(demand, relations=()) for demand in unit.demands))
