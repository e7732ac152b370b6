"""The whole cluster as one problem: for claims that the index cannot express, and for their explanations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from devalloc_solver.dialects.resource_k8s.candidates import RequestJudge
from devalloc_solver.dialects.resource_k8s.claims import ResourceClaim
from devalloc_solver.dialects.resource_k8s.cluster_devices import MAX_VERDICTS, ClusterDevices
from devalloc_solver.dialects.resource_k8s.demands import make_claim_demand, pending_claim, single_claim_unit
from devalloc_solver.dialects.resource_k8s.explainer import ResourceClaimExplainer
from devalloc_solver.dialects.resource_k8s.manifests import ClusterInput, Key
from devalloc_solver.dialects.resource_k8s.pools import view_cluster
from devalloc_solver.dialects.resource_k8s.published_devices import DeviceUsage
from devalloc_solver.dialects.resource_k8s.selectors import selector_language
from devalloc_solver.dialects.resource_k8s.typos import ResourceTypoFinder
from devalloc_solver.eligibility.judge import Judge
from devalloc_solver.explain.explainer import FleetTotals
from devalloc_solver.fleet.node_index import HeldDevices
from devalloc_solver.fleet.resource_k8s.state import ClusterState, usage_of
from devalloc_solver.pipeline.strategy import place_unit
from devalloc_solver.pipeline.units import RejectedClaim
from devalloc_solver.problem.allocations import Holding, Usage
from devalloc_solver.problem.answer import ClaimAnswer
from devalloc_solver.problem.demand import PlacementUnit
from devalloc_solver.problem.placement import Placement
from devalloc_solver.problem.placement_policy import PlacementPolicy
from devalloc_solver.problem.snapshot import Snapshot

MAX_EXPLANATIONS = 1_000
"""Answers remembered; when there are more, all are forgotten."""


@dataclass(slots=True, eq=False)
class FullCluster:
    """Told who comes to hold what, as long as slices, classes and nodes are as they were."""

    problem_input: ClusterInput
    devices: ClusterDevices
    policy: PlacementPolicy
    selectors: Judge
    left_out: Mapping[str, str] = field(default_factory=dict)
    """see ``ClusterInput``"""
    is_stale: bool = False
    """slices, classes or nodes have changed: kept until there is another, since it takes long to throw away"""
    allocations: dict[Key, Holding] = field(default_factory=dict)
    snapshot: Snapshot = field(init=False)
    _judge: RequestJudge = field(init=False)
    _slips: ResourceTypoFinder = field(init=False)
    _usage: Usage | None = field(init=False)
    _explanations: dict[object, ClaimAnswer] = field(default_factory=dict)
    """claim and what it asks for -> why it gets nothing, as long as no claim gets or gives back anything"""

    @classmethod
    def of(cls, state: ClusterState, selectors: Judge | None) -> FullCluster:
        """``selectors``: those of the full cluster before, whose verdicts hold as long as devices do."""
        usage = usage_of(*state.allocations.values())
        slices = state.all_slices()
        devices = ClusterDevices.of(slices, view_cluster(slices, state.nodes), usage, state.gates)
        shared_selectors = (
            Judge(selector_language(state.gates), state.index.allowance) if selectors is None else selectors
        )
        full_cluster = cls(state.classes, devices, state.policy, shared_selectors, state.left_out)
        for key, tenant in state.allocations.items():
            full_cluster._add(key, tenant.priority, usage_of(tenant))
        return full_cluster

    def __post_init__(self) -> None:
        self.snapshot = self.devices.snapshot(None)
        self._usage = Usage(self.snapshot)
        self._renew()

    def _renew(self) -> None:
        """Forget what was found out about requests."""
        self.selectors = self.selectors.renewed()
        self._slips = ResourceTypoFinder(self.devices.offers)
        self._judge = self.devices.judge(self.selectors, self.problem_input.classes)

    def hold(self, key: Key, tenant: HeldDevices) -> None:
        """A claim has these devices."""
        if self.is_stale:
            return
        self.free(key)
        usage = usage_of(tenant)
        self.is_stale = self.devices.lack(usage)
        self._explanations.clear()
        self._add(key, tenant.priority, usage)

    def _add(self, key: Key, priority: int, usage: DeviceUsage) -> None:
        self.allocations[key] = Holding(key, priority, self.devices.used.items(usage))
        if self._usage is not None:
            self._usage.add(self.allocations[key])

    def free(self, key: Key) -> None:
        """A claim has nothing any more."""
        held = None if self.is_stale else self.allocations.pop(key, None)
        if held is not None:
            offers, hidden = self.devices.offers, self.devices.hidden
            self.is_stale = any(offers[item.device].id in hidden for item in held.items)
            self._usage = None
            self._explanations.clear()

    def unit(self, claim: ResourceClaim) -> PlacementUnit | RejectedClaim:
        """What a claim asks for, or why it is not solved. Raises OutOfTime."""
        if self._judge.size > MAX_VERDICTS:
            self._renew()
        demand = make_claim_demand(pending_claim(claim, 0), self.problem_input, self._judge)
        return demand if isinstance(demand, RejectedClaim) else single_claim_unit(demand)

    def find(self, unit: PlacementUnit) -> Placement | None:
        """Where a claim goes. Raises OutOfTime."""
        if self._usage is None:
            self._usage = Usage.of(self.snapshot, self.allocations.values())
        allocations, ends = list(self.allocations.values()), self.selectors.allowance.until
        placements = place_unit(self.snapshot, allocations, unit, usage=self._usage, policy=self.policy, ends=ends)
        return None if placements is None else placements[0]

    def explain(self, unit: PlacementUnit) -> ClaimAnswer:
        """The answer for a claim that fits nowhere."""
        cache_key = unit.demands[0].key, unit.kind
        answer = self._explanations.get(cache_key) if unit.kind is not None else None
        if answer is None:
            allocations = [self.allocations[key] for key in sorted(self.allocations)]
            allowance = self.selectors.allowance
            explainer = ResourceClaimExplainer(
                *(self.snapshot, allocations, [], allowance.until),
                offers=self.devices.offers,
                unreached=self.devices.seen.unreached,
                fleet=FleetTotals(typos=self._slips, invalid_pools=self.left_out),
            )
            (answer,) = explainer.explain(unit)
            if unit.kind is not None and not allowance.is_over:
                if len(self._explanations) >= MAX_EXPLANATIONS:
                    self._explanations.clear()
                self._explanations[cache_key] = answer
        return answer
