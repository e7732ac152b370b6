"""Why a DeviceClaim is not satisfied: a stable code, a sentence with numbers, and the blockers (S19).

The explainer verifies every reason by solving again: the claim fits without the blockers, and does not fit with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from devalloc.api.problems import closest_match
from devalloc.api.reasons import Reason
from devalloc_solver.dialects.device_claims.answers import ClaimAnswer
from devalloc_solver.dialects.device_claims.candidates import CandidateFinder
from devalloc_solver.explain.device_claims.relaxations import DeviceClaimRelaxations, short_reason
from devalloc_solver.explain.device_claims.typos import TypoFinder
from devalloc_solver.explain.explainer import Explainer, Finding
from devalloc_solver.explain.feasibility import FeasibilityQuestion
from devalloc_solver.explain.funnel import Funnel, describe_shortage
from devalloc_solver.explain.relaxations import Relaxation, RelaxationSet, unmatched_requests
from devalloc_solver.explain.supply_relaxations import POOL_RESOURCES, relax_shared_limits, withheld_devices
from devalloc_solver.problem.allocations import Key
from devalloc_solver.problem.demand import ARE_OF_ANOTHER_DRIVER, Demand, PlacementUnit, Request
from devalloc_solver.problem.snapshot import Device

_NO_POOLS = "no valid DevicePool exists"
"""Where no host has published anything, other words about the claim would mislead."""


@dataclass(slots=True)
class DeviceClaimExplainer(Explainer):
    """Explains units of DeviceClaims."""

    eligibility: CandidateFinder
    is_proven: bool = False
    """no unit that was left out fits beside the others: the search has shown that no more can be satisfied"""
    held_back: Sequence[Device] | None = field(init=False, default=None)
    limits: Relaxation = field(init=False, default_factory=partial(relax_shared_limits, POOL_RESOURCES))

    def explain(self, unit: PlacementUnit, warnings: Mapping[Key, tuple[str, ...]]) -> list[ClaimAnswer]:
        """An answer for each claim of the unit."""
        findings = self.find_all(unit)
        return [self._answer(d, findings[d.key], warnings) for d in unit.demands]

    def _answer(self, demand: Demand, finding: Finding, warnings: Mapping[Key, tuple[str, ...]]) -> ClaimAnswer:
        funnels = [self.funnels.make(request) for request in demand.requests]
        namespace, name = demand.key
        return ClaimAnswer(
            namespace=namespace,
            name=name,
            allocated=False,
            reason=finding.reason,
            message=self.message(finding, funnels),
            warnings=warnings.get(demand.key, ()),
            funnel=tuple(map(self.funnel_dict, funnels)),
            blockers=tuple(self.blockers(finding)),
        )

    def find_all(self, unit: PlacementUnit) -> Mapping[Key, Finding]:
        if len(unit.demands) > 1 and (finding := self._missing_drivers(unit)) is not None:
            hopeless = sorted({str(each["claim"]) for each in finding.missing})
            names = ", ".join(hopeless)
            text = f"group {unit.group} is all-or-nothing, and {names} cannot be satisfied: {finding.text}"
            other = replace(finding, reason=Reason.GROUP_UNSATISFIABLE, text=text)
            return {d.key: finding if "/".join(d.key) in hopeless else other for d in unit.demands}
        return {key: self._worded(finding) for key, finding in Explainer.find_all(self, unit).items()}

    def find(self, unit: PlacementUnit, key: Key) -> Finding:
        return self._missing_drivers(unit) or self._worded(Explainer.find(self, unit, key))

    def _missing_drivers(self, unit: PlacementUnit) -> Finding | None:
        """The finding for a unit with requests for which the fleet has no device of the right driver. What else is in
        the way does not matter: no edit but another class helps."""
        missing: dict[str, Mapping[str, Any]] = {}
        for demand in unit.demands:
            owner = {"claim": "/".join(demand.key)} if len(unit.demands) > 1 else {}
            for detail in demand.details:
                drivers = [self._missing_driver(request) for request in detail]
                for request, driver in zip(detail, drivers, strict=True) if all(drivers) else ():
                    path = f"spec.claims[{request.detail}]"
                    path += "" if request.alternative is None else f".oneOf[{request.alternative}]"
                    field = "deviceClass" if request.spec.device_class else "deviceType"
                    entry = {"kind": "driver", "path": f"{path}.{field}", "request": request.label, "driver": driver}
                    missing[f"{demand.key} {request.label}"] = {**entry, **owner}
        if not missing:
            return None
        names = " or ".join(dict.fromkeys(str(each["driver"]) for each in missing.values()))
        text = f"no device of driver {names} is in the fleet"
        return Finding(Reason.NO_MATCHING_DEVICES, text, missing=tuple(missing.values()))

    def _missing_driver(self, request: Request) -> str:
        """The driver that the classes of a request name, if no device of the fleet has it; "" if one has."""
        funnel = self.funnels.make(request)
        if not funnel.total or [step[0] for step in funnel.steps] != [ARE_OF_ANOTHER_DRIVER]:
            return ""
        classes = self.eligibility.classes_of(request.spec) or ()
        return " or ".join(sorted({each.spec.driver for each in classes})) if funnel.matching == 0 else ""

    def _worded(self, finding: Finding) -> Finding:
        return finding if self.snapshot.pools or self.fleet.nodes else replace(finding, text=_NO_POOLS)

    # -- rules ---------------------------------------------------------------------------------------------------------

    def reads(self, request: Request) -> frozenset[str] | None:
        return self.eligibility.attributes_read(request.spec)

    def fits(self, question: FeasibilityQuestion) -> bool:
        if self.is_proven and question.unit is self.explained and len(question.held) == len(self.in_use):
            return False  # what is held is the first so many of ``in_use``
        return Explainer.fits(self, question)

    def relaxations(self, question: FeasibilityQuestion, key: Key | None) -> RelaxationSet:
        offers = self._offers(question.unit)
        return offers.in_order(question, self.finder, () if key is None else offers.members(key))

    def schedulability_edits(self, unit: PlacementUnit) -> Sequence[Relaxation]:
        return [*self._offers(unit).schedulability_edits(self.snapshot).values()]

    def _offers(self, unit: PlacementUnit) -> DeviceClaimRelaxations:
        if self.held_back is None:
            self.held_back = withheld_devices(self.snapshot)
        return DeviceClaimRelaxations(unit, self.explained or unit, self.eligibility, self.held_back, self.limits)

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

    # -- words ---------------------------------------------------------------------------------------------------------

    def request_shortage(self, unit: PlacementUnit, demand: Demand, request: Request, *, is_empty: bool) -> str:
        held = () if is_empty else self.in_use
        return describe_shortage(self.finder.counting, demand, request, held, pin=unit.pin)

    def disagreement(self, unit: PlacementUnit) -> str:
        named = ((*d.match, *d.shared, *(n for s in d.requests for n in s.match)) for d in unit.demands)
        names = sorted({name for group in named for name in group})
        return f"the devices needed together differ in {' and '.join(f'`{name}`' for name in names)} on every node"

    def make_typos(self) -> TypoFinder:
        return TypoFinder(self.snapshot, self.eligibility)

    def funnel_dict(self, funnel: Funnel) -> dict[str, Any]:
        return funnel.to_dict(funnel.request.label, with_users=True)

    def name_node(self, unit: PlacementUnit) -> str:
        nodes = self.snapshot.nodes if self.fleet.nodes is None else self.fleet.nodes
        if unit.pin is None or unit.pin in nodes:
            return ""
        near = closest_match(unit.pin, nodes)
        return f"no node {unit.pin!r} has devices" + (f"; did you mean {near!r}?" if near else "")
