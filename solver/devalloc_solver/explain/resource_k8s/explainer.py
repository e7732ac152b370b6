"""Why a ResourceClaim of a cluster is not allocated: a code, numbers, blockers, and the funnels (S19).

Blockers are searched for within a number of steps. If these do not suffice, ``blockers`` is empty, and the reason and
its numbers are still true.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from devalloc.api.reasons import Reason
from devalloc_solver.cel.budget import Bound
from devalloc_solver.dialects.resource_k8s.published_devices import PublishedDevice, is_counter
from devalloc_solver.explain.blocking_claims import BlockingClaims
from devalloc_solver.explain.explainer import NOT_TOGETHER, Explainer, Finding
from devalloc_solver.explain.feasibility import FeasibilityQuestion, Undecided
from devalloc_solver.explain.funnel import Users
from devalloc_solver.explain.relaxations import Relaxation, RelaxationSet
from devalloc_solver.explain.resource_k8s.availability import Availability
from devalloc_solver.explain.resource_k8s.relaxations import ResourceClaimRelaxations, relax_counters
from devalloc_solver.explain.resource_k8s.typos import ResourceTypoFinder
from devalloc_solver.place import StepsExhausted, place
from devalloc_solver.problem.allocations import Key
from devalloc_solver.problem.demand import Demand, PlacementUnit, Request

MAX_FINDINGS = 40
"""Different units of one call for which what is in the way is looked for; the reasons of all others have numbers."""
MAX_SEARCHES = 5_000
"""Nodes that are looked at for them, all in all: fewer findings on a large fleet, in the same time."""


@dataclass(slots=True)
class ResourceClaimExplainer(Explainer):
    """Explains units of ResourceClaims."""

    offers: Sequence[PublishedDevice]
    typos: ResourceTypoFinder | None = None
    """of these offers, those that have an owner already"""
    numbers: Availability | None = None
    """of the whole cluster, where the snapshot is but a part of it"""
    _funnels: dict[object, dict[str, Any]] = field(default_factory=dict)
    _numbers: Availability = field(init=False)
    _findings: int = field(init=False, default=0)
    _counters: Sequence[Relaxation] | None = field(init=False, default=None)
    crowded: PlacementUnit | None = field(init=False, default=None)
    """the last unit, after what must change of it, where claims were looked for that are in its way besides"""

    def __post_init__(self) -> None:
        Explainer.__post_init__(self)
        self._numbers = self.numbers or Availability(self.snapshot, self.offers, self.in_use)

    def explain(self, unit: PlacementUnit) -> list[dict[str, Any]]:
        """An answer for each claim of the unit."""
        findings = self.find_all(unit)
        return [self._answer(demand, unit, findings[demand.key]) for demand in unit.demands]

    def begin(self, unit: PlacementUnit) -> None:
        self.is_brief = self._findings >= MAX_FINDINGS or self.finder.searched >= MAX_SEARCHES
        self._findings += not self.is_brief
        self.crowded = None
        Explainer.begin(self, unit)

    def _answer(self, demand: Demand, unit: PlacementUnit, finding: Finding) -> dict[str, Any]:
        errors = self._numbers.errors(demand.requests)
        message = self.message(finding, [(request, self.funnel(request)) for request in demand.requests])
        answer = {
            "namespace": demand.key[0],
            "name": demand.key[1],
            "allocated": False,
            "node": None,
            "allocations": {},
            "oneOf": None,
            "reason": str(finding.reason),
            "message": f"{message}; {errors[0]}" if errors else message,
            "funnel": [self.funnel(request) for request in demand.requests],
            "blockers": [_blocker_of(demand, unit, blocker) for blocker in self.blockers(finding)],
        }
        if finding.reason is Reason.NO_MATCHING_DEVICES and any(
            request.spec.is_exhausting for request in demand.requests
        ):
            answer["exceeded"] = str(Bound.DEVICE)
        return answer | ({"warnings": [*errors]} if errors else {})

    def funnels(self, unit: PlacementUnit) -> list[tuple[Request, dict[str, Any]]]:
        """Each request of a unit, and its funnel."""
        return [(request, self.funnel(request)) for demand in unit.demands for request in demand.requests]

    def funnel(self, request: Request) -> dict[str, Any]:
        key = id(request.spec.verdict), request.spec.subrequest.class_name
        if key not in self._funnels:
            self._funnels[key] = self._numbers.funnel(request)
        return self._funnels[key] | {"request": request.spec.subrequest.name}

    # -- rules ---------------------------------------------------------------------------------------------------------

    def fits(self, question: FeasibilityQuestion) -> bool:
        """Within the steps of one search, and not counted as one for blockers."""
        if self.ends is not None and time.monotonic() > self.ends:
            raise Undecided
        usage = self.finder.usage(question)
        try:
            return place(question.snapshot, usage, question.unit) is not None
        except StepsExhausted:
            raise Undecided from None

    def relaxations(self, question: FeasibilityQuestion, key: Key | None) -> RelaxationSet:
        relaxations = ResourceClaimRelaxations(question.unit, self.explained or question.unit)
        return relaxations.in_order(self.shared_limits(), () if key is None else relaxations.members(key)[::-1])

    def shared_limits(self) -> Sequence[Relaxation]:
        if self._counters is None:
            has_counters = any(is_counter(name) for pool in self.snapshot.pools for name in pool.resources)
            self._counters = [relax_counters()] if has_counters else []
        return self._counters

    def blocking(self, question: FeasibilityQuestion) -> BlockingClaims:
        self.crowded = question.unit
        blocking = Explainer.blocking(self, question)
        if not blocking.claims:
            raise Undecided
        return blocking

    # -- words ---------------------------------------------------------------------------------------------------------

    def request_shortage(self, unit: PlacementUnit, demand: Demand, request: Request, *, is_empty: bool) -> str:
        return self._numbers.shortage(unit, request, is_empty=is_empty)

    def request_name(self, request: Request) -> str:
        return str(request.spec.subrequest.name)

    def disagreement(self, unit: PlacementUnit) -> str:
        return self._numbers.disagreement(unit)

    def exhausted(self, unit: PlacementUnit) -> str:
        return NOT_TOGETHER  # whatever a part of the cluster has

    def users(self, request: Request, funnel: Mapping[str, Any]) -> Users:
        return self._numbers.users(request)

    def typo_finder(self) -> ResourceTypoFinder:
        if self.typos is None:
            self.typos = ResourceTypoFinder(self.offers)
        return self.typos


def _blocker_of(demand: Demand, unit: PlacementUnit, blocker: Mapping[str, Any]) -> dict[str, Any]:
    """What is in the way of a claim; found for an equal one, maybe, and then told of this one."""
    own = {"claim": "/".join(demand.key)} if "claim" in blocker and len(unit.demands) == 1 else {}
    return {**blocker, **own}
