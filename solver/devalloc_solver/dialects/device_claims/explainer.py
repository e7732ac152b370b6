"""Why a DeviceClaim is not satisfied: a stable code, a sentence with numbers, and the blockers (S19).

The explainer verifies every reason by solving again: the claim fits without the blockers, and does not fit with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from devalloc.api.findings import Cause, Fact, RuleCode, fact
from devalloc.api.problems import closest_match
from devalloc.api.reasons import Reason
from devalloc_solver.dialects.device_claims.candidates import CandidateFinder
from devalloc_solver.dialects.device_claims.parts import expression_for
from devalloc_solver.dialects.device_claims.relaxations import DeviceClaimRelaxations, short_reason
from devalloc_solver.dialects.device_claims.typos import TypoFinder
from devalloc_solver.explain.explainer import NOTHING_LEFT, Explainer, Explanation
from devalloc_solver.explain.feasibility import FeasibilityQuestion
from devalloc_solver.explain.funnel import Funnel, main_step, shortage
from devalloc_solver.explain.relaxations import Relaxation, RelaxationSet, unmatched_requests
from devalloc_solver.explain.supply_relaxations import POOL_RESOURCES, relax_shared_limits, withheld_devices
from devalloc_solver.problem.allocations import Key
from devalloc_solver.problem.demand import Demand, PlacementUnit, Request
from devalloc_solver.problem.snapshot import Device


@dataclass(slots=True)
class DeviceClaimExplainer(Explainer):
    """Explains units of DeviceClaims."""

    eligibility: CandidateFinder
    held_back: Sequence[Device] | None = field(init=False, default=None)
    limits: Relaxation = field(init=False, default_factory=partial(relax_shared_limits, POOL_RESOURCES))

    def find_all(self, unit: PlacementUnit) -> Mapping[Key, Explanation]:
        return {key: self._of_empty_fleet(finding) for key, finding in Explainer.find_all(self, unit).items()}

    def find(self, unit: PlacementUnit, key: Key) -> Explanation:
        return self._of_empty_fleet(Explainer.find(self, unit, key))

    def _of_empty_fleet(self, finding: Explanation) -> Explanation:
        """Where no host has published anything, other causes would mislead."""
        is_empty = not (self.snapshot.pools or self.fleet.nodes or finding.invalid_pools)
        return replace(finding, causes=(fact(Cause.NO_POOLS),), caveats=(NOTHING_LEFT,)) if is_empty else finding

    # -- rules ---------------------------------------------------------------------------------------------------------

    def reads(self, request: Request) -> frozenset[str] | None:
        return request.eligible.reads

    def list_drivers(self) -> frozenset[str]:
        return frozenset(pool.driver for pool in self.snapshot.pools if pool.devices)

    def relaxations(self, question: FeasibilityQuestion, key: Key | None) -> RelaxationSet:
        offers = self._offers(question.unit)
        return offers.in_order(question, self.finder, () if key is None else offers.members(key))

    def members(self, unit: PlacementUnit) -> Sequence[Relaxation]:
        return self._offers(unit).members(None)

    def schedulability_edits(self, unit: PlacementUnit) -> Sequence[Relaxation]:
        return [*self._offers(unit).schedulability_edits(self.snapshot).values()]

    def _offers(self, unit: PlacementUnit) -> DeviceClaimRelaxations:
        if self.held_back is None:
            self.held_back = withheld_devices(self.snapshot)
        drivers = {
            (demand.key, request.label): request.eligible.class_drivers or None
            for demand in unit.demands
            for request in demand.requests
        }
        named, held_back = [each for each in drivers.values() if each is not None], self.held_back
        if len(named) == len(drivers):
            of_any = frozenset[str]().union(*named)
            held_back = [one for one in held_back if self.snapshot.pools[one.pool].driver in of_any]
        return DeviceClaimRelaxations(unit, self.explained or unit, self.eligibility, held_back, self.limits, drivers)

    def shared_limits(self) -> Sequence[Relaxation]:
        return [self.limits]

    def counted_reason(self, unit: PlacementUnit) -> Reason:
        """Count devices, with and without values that they must share."""
        if unmatched_requests(unit):
            return Reason.NO_MATCHING_DEVICES
        loose = self.question(unit, ()).with_requests(lambda _, request: replace(request, match=()))
        loose = loose.with_demands(lambda demand: replace(demand, match=()))
        if self.shortage(unit, is_empty=True) and not self.shortage(loose.unit, is_empty=True):
            return Reason.MATCH_ATTRIBUTES_CONFLICT
        return short_reason(unit)

    # -- words ---------------------------------------------------------------------------------------------------------

    def request_shortage(self, unit: PlacementUnit, demand: Demand, request: Request, *, is_empty: bool) -> Fact | None:
        held = () if is_empty else self.in_use
        return shortage(self.finder.counting, demand, request, held, pin=unit.pin)

    def left_out(self, unit: PlacementUnit) -> Sequence[Fact]:
        for request in (request for demand in unit.demands for request in demand.requests):
            step = next((each for each in request.candidates.funnel if each.rule.code is RuleCode.PART), None)
            if step is not None and (whole := main_step(self.funnels.make(request), {RuleCode.PART})) is not None:
                say = expression_for(self.snapshot.devices[next(iter(step.devices))])
                return [fact(Cause.PARTS, count=whole["count"], say=say)]
        return ()

    def make_typos(self) -> TypoFinder:
        return TypoFinder(self.snapshot, self.eligibility)

    def funnel_dict(self, funnel: Funnel) -> dict[str, Any]:
        return funnel.to_dict(funnel.request.label, with_users=True)

    def unknown_node(self, unit: PlacementUnit) -> Fact | None:
        nodes = self.snapshot.nodes if self.fleet.nodes is None else self.fleet.nodes
        if unit.pin is None or unit.pin in nodes:
            return None
        return fact(Cause.NODE_UNKNOWN, node=unit.pin, near=closest_match(unit.pin, nodes))
