"""Why a ResourceClaim of a cluster is not allocated: a code, numbers, blockers, and the funnels (S19).

Blockers are searched for within a number of steps. If these do not suffice, ``blockers`` is empty, and the reason and
its numbers are still true.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from devalloc.api import findings
from devalloc.api.findings import Cause, Fact, fact
from devalloc.api.reasons import Reason
from devalloc_solver.cel.budget import Bound
from devalloc_solver.dialects.resource_k8s.answers import unjudged_devices
from devalloc_solver.dialects.resource_k8s.pools import PoolStatus, UnreachedDevices
from devalloc_solver.dialects.resource_k8s.published_devices import is_counter, published_device
from devalloc_solver.dialects.resource_k8s.relaxations import ResourceClaimRelaxations, relax_counters
from devalloc_solver.dialects.resource_k8s.typos import ResourceTypoFinder
from devalloc_solver.explain.explainer import NOT_TOGETHER, Explainer, Explanation
from devalloc_solver.explain.feasibility import FeasibilityQuestion, Undecided
from devalloc_solver.explain.funnel import Funnel, FunnelCounter
from devalloc_solver.explain.leaving import Leaving
from devalloc_solver.explain.relaxations import Relaxation, RelaxationSet
from devalloc_solver.problem.allocations import Key
from devalloc_solver.problem.answer import ClaimAnswer
from devalloc_solver.problem.demand import Demand, PlacementUnit, Request

MAX_FINDINGS = 40
"""Different units of one call for which what is in the way is looked for; the reasons of all others have numbers."""
MAX_SEARCHES = 5_000
"""Nodes that are looked at for them, all in all: fewer findings on a large fleet, in the same time."""


@dataclass(slots=True)
class ResourceClaimExplainer(Explainer):
    """Explains units of ResourceClaims."""

    unreached: UnreachedDevices = field(default=UnreachedDevices())
    funnels: FunnelCounter = field(init=False)
    _findings: int = field(init=False, default=0)
    _counters: Sequence[Relaxation] | None = field(init=False, default=None)
    pools_by: ClassVar[str | None] = "driver"
    names_users: ClassVar[bool] = True
    """whether a funnel names the claims that have its devices"""
    _explained: list[PlacementUnit] = field(init=False, default_factory=list)
    """all so far: what is known of their candidates goes by identity"""

    def begin_call(self, ends: float | None) -> None:
        """Go on with another call, which ends at a time of its own; nothing has changed since the last one."""
        self.ends = self.finder.ends = ends
        self._findings = self.finder.searched = 0

    @property
    def count(self) -> int:
        """How many units were explained."""
        return len(self._explained)

    def find_all(self, unit: PlacementUnit) -> Mapping[Key, Explanation]:
        self._explained.append(unit)
        return Explainer.find_all(self, unit)

    def begin(self, unit: PlacementUnit) -> None:
        self.is_brief = self._findings >= MAX_FINDINGS or self.finder.searched >= MAX_SEARCHES
        self._findings += not self.is_brief
        Explainer.begin(self, unit)

    def answer(self, unit: PlacementUnit, demand: Demand, finding: Explanation) -> ClaimAnswer:
        warnings, answer = self.warnings(demand), Explainer.answer(self, unit, demand, finding)
        is_exhausting = any(request.eligible.is_exhausting for request in demand.requests)
        exceeded = Bound.DEVICE if is_exhausting and finding.reason is Reason.NO_MATCHING_DEVICES else None
        unreached, causes = self._unreached(finding, answer), [*answer.causes]
        if unreached is not None:
            is_cause = not any(funnel["devices"] for funnel in answer.funnel)
            causes = [fact(Cause.UNREACHED, text=unreached.why), *([] if is_cause else causes)]
        causes += [fact(Cause.EXPRESSION_FAILED, text=warnings[0])] if warnings else []
        blockers = [_blocker_of(demand, unit, blocker) for blocker in answer.blockers]
        data = findings.Finding(causes, blockers, answer.alternatives, answer.caveats, "/".join(demand.key))
        return replace(
            answer,
            **findings.as_json(data),
            unreached_devices=0 if unreached is None else unreached.devices,
            exceeded=exceeded,
        )

    def warnings(self, demand: Demand) -> tuple[str, ...]:
        return unjudged_devices(demand) if self.fleet.errors is None else tuple(self.fleet.errors)

    def _unreached(self, finding: Explanation, answer: ClaimAnswer) -> UnreachedDevices | None:
        """Devices that reach no node, if that may be why none matches."""
        if finding.reason is not Reason.NO_MATCHING_DEVICES or not self.unreached.devices:
            return None
        is_likely = not self.unreached.has_nodes or not any(funnel["devices"] for funnel in answer.funnel)
        return self.unreached if is_likely else None

    def funnel_dict(self, funnel: Funnel) -> dict[str, Any]:
        return funnel.to_dict(funnel.request.spec.subrequest.name, with_users=self.names_users)

    # -- rules ---------------------------------------------------------------------------------------------------------

    def list_drivers(self) -> frozenset[str]:
        if self.unreached.devices:
            return frozenset()  # there are others, of drivers that do not count here
        pools = (published_device(device).pool for device in self.snapshot.devices)
        return frozenset(pool.driver for pool in pools if pool.state is PoolStatus.COMPLETE)

    def has_devices(self) -> bool:
        return bool(self.snapshot.devices or self.unreached.devices)

    def describe_invalid_pool(self, driver: str) -> str:
        if driver in self.fleet.invalid_pools:
            return self.fleet.invalid_pools[driver]
        pools = (published_device(device).pool for device in self.snapshot.devices)
        return next((pool.fault for pool in pools if pool.driver == driver), "")

    def relaxations(self, question: FeasibilityQuestion, key: Key | None) -> RelaxationSet:
        relaxations = ResourceClaimRelaxations(question.unit, self.explained or question.unit)
        return relaxations.in_order(self.shared_limits(), () if key is None else relaxations.members(key)[::-1])

    def members(self, unit: PlacementUnit) -> Sequence[Relaxation]:
        return ResourceClaimRelaxations(unit, self.explained or unit).members(None)

    def shared_limits(self) -> Sequence[Relaxation]:
        if self._counters is None:
            has_counters = any(is_counter(name) for pool in self.snapshot.pools for name in pool.resources)
            self._counters = [relax_counters()] if has_counters else []
        return self._counters

    def blocking(self, question: FeasibilityQuestion) -> Leaving:
        blocking = Explainer.blocking(self, question)
        if not blocking.owners:
            raise Undecided
        return blocking

    # -- causes --------------------------------------------------------------------------------------------------------

    def request_shortage(self, unit: PlacementUnit, demand: Demand, request: Request, *, is_empty: bool) -> Fact | None:
        if not request.mode.is_counted:
            return None
        best = self.funnels.most(request, unit.pin, is_empty=is_empty)
        if best >= request.min_count:
            return None
        wanted: dict[str, Any] = {"wanted": request.min_count, "most": str(best), "free": not is_empty}
        return fact(Cause.TOO_FEW, **wanted, node=unit.pin, **self.request_ref(request))

    def is_about(self, edit: Relaxation, request: Request) -> bool:
        return str(edit.entry.get("path", "")).startswith(f"{request.spec.subrequest.path}.")

    def request_ref(self, request: Request) -> Mapping[str, str]:
        return {"request": request.spec.subrequest.name}

    def having(self, request: Request, name: str) -> tuple[int, int]:
        return self.funnels.having(request, name)

    def exhausted(self, unit: PlacementUnit) -> Fact:
        return NOT_TOGETHER  # whatever a part of the cluster has

    def make_typos(self) -> ResourceTypoFinder:
        return ResourceTypoFinder(self.snapshot.devices)


def _blocker_of(demand: Demand, unit: PlacementUnit, blocker: Mapping[str, Any]) -> dict[str, Any]:
    """What is in the way of a claim; found for an equal one, maybe, and then told of this one."""
    own = {"claim": "/".join(demand.key)} if "claim" in blocker and len(unit.demands) == 1 else {}
    return {**blocker, **own}
