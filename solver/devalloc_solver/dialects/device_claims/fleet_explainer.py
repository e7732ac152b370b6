"""The counts and words of a fleet's explainer, for DeviceClaims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from devalloc.api.findings import Rule
from devalloc_solver.dialects.device_claims.candidates import CandidateFinder
from devalloc_solver.dialects.device_claims.explainer import DeviceClaimExplainer
from devalloc_solver.dialects.device_claims.fleet_rules import DeviceClaimQuery, DeviceClaimRules
from devalloc_solver.dialects.device_claims.typos import TypoFinder
from devalloc_solver.explain.explainer import FleetTotals
from devalloc_solver.fleet.explainer import FleetExplainer
from devalloc_solver.fleet.fleet_stats import DevicePosition
from devalloc_solver.fleet.funnels import FleetFunnels, FleetParts, RefinedKinds, RejectedDevices
from devalloc_solver.fleet.node_index import Holders
from devalloc_solver.fleet.place_finder import PlaceFinder
from devalloc_solver.fleet.subset import FleetSubset
from devalloc_solver.gc_pause import gc_paused
from devalloc_solver.problem.answer import ClaimAnswer
from devalloc_solver.problem.demand import Demand, Request
from devalloc_solver.problem.snapshot import with_index


@dataclass(slots=True)
class DeviceClaimFunnels(FleetFunnels):
    """Makes the funnels of DeviceClaims."""

    eligibility: CandidateFinder
    """judges one device of each part"""

    def judge(self, request: Request) -> tuple[set[int], Iterable[RejectedDevices]]:
        accepted, rejected, sizes = set(), [], self.parts.sizes()
        for device in self.eligibility.snapshot.devices:
            if sizes.get(device.index):
                mismatch = self.eligibility.mismatch(request.spec, device, request.candidates.left_out)
                if mismatch is None:
                    accepted.add(device.index)
                else:
                    has_example = bool(mismatch.example)
                    rejected.append(self.step(device.index, mismatch.rule, mismatch.stage, has_example=has_example))
        return accepted, rejected

    def order(self, step: RejectedDevices) -> tuple[object, ...]:
        return step.stage, -step.number, step.rule

    def example(self, request: Request, by: Rule, first: DevicePosition, part: int) -> str | None:
        sample = self.eligibility.snapshot.devices[part]
        one, left_out = with_index(self.device(first), part, sample.pool), request.candidates.left_out
        mismatch = self.eligibility.mismatch(request.spec, one, left_out)
        return None if mismatch is None or not mismatch.example else f"{self.title(first)}: {mismatch.example}"


class DeviceClaimsExplainer(FleetExplainer[DeviceClaimQuery, CandidateFinder]):
    """Explains DeviceClaims."""

    def __init__(self, places: PlaceFinder, holders: Holders) -> None:
        super().__init__(places, holders)
        self.invalid_pools: Mapping[str, str] = {}
        """driver -> a pool of it that is left out, and why"""
        self._typos: TypoFinder | None = None
        """among all devices by kind"""

    def explain(self, query: DeviceClaimQuery) -> ClaimAnswer:
        """The answer for a claim without a group that fits nowhere now."""
        claim = query.claim
        self._catch_up(query.rules)
        key = (query.shape, claim.restrictions, claim.pinned_node, claim.priority, tuple(self.invalid_pools.items()))
        answer = self._remembered(key, lambda: self._find(query) or self._find_in_all(query))
        assert answer is not None
        namespace, name = claim.key
        return replace(answer, namespace=namespace, name=name)

    def _forget(self) -> None:
        """Judges and typos too: they remember each shape that was ever explained."""
        super()._forget()
        self._typos = None

    @gc_paused()
    def _find_in_all(self, query: DeviceClaimQuery) -> ClaimAnswer:
        subset = self._subset((*self.stats.in_order(),))
        explainer = self._explainer_of(subset, FleetTotals(invalid_pools=self.invalid_pools))
        (answer,) = explainer.explain(query.explained_unit(subset.judge))
        return answer

    def _explainer(
        self, query: DeviceClaimQuery, subset: FleetSubset[CandidateFinder], parts: FleetParts, demand: Demand
    ) -> DeviceClaimExplainer:
        typos = self._typos_among(parts, query.rules)
        counts, names = DeviceClaimFunnels(self.stats, parts, typos.eligibility), self.index.records.keys()
        return self._explainer_of(subset, FleetTotals(counts, typos, names, invalid_pools=self.invalid_pools))

    def _explainer_of(self, subset: FleetSubset[CandidateFinder], totals: FleetTotals) -> DeviceClaimExplainer:
        held, ends = self.holdings(subset), self.index.allowance.until
        return DeviceClaimExplainer(subset.snapshot, held, (), ends, subset.judge, fleet=totals)

    def _typos_among(self, parts: FleetParts, rules: DeviceClaimRules) -> TypoFinder:
        if parts is self.stats and self._typos is not None:
            return self._typos
        judge, sizes = rules.on(parts.kinds.sample()), parts.sizes()
        copies = {kind.index: sizes.get(kind.index, 0) for kind in parts.kinds.kinds}
        typos = TypoFinder(judge.snapshot, judge, copies, parts.identifiers if isinstance(parts, RefinedKinds) else {})
        if parts is self.stats:
            self._typos = typos
        return typos
