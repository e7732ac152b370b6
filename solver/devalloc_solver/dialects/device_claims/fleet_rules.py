"""DeviceClaims for the index: what classes and claims accept of the kinds of devices."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from devalloc.api.node_rules import NodeRestriction
from devalloc_solver.cel.budget import Allowance
from devalloc_solver.dialects.device_claims.candidates import CandidateFinder
from devalloc_solver.dialects.device_claims.demands import find_refusal, make_demand, off_barred_nodes
from devalloc_solver.dialects.device_claims.expressions import LANGUAGE
from devalloc_solver.dialects.device_claims.manifest_records import ClaimRecord
from devalloc_solver.dialects.device_claims.manifests import ProblemInput
from devalloc_solver.dialects.device_claims.parts import WholeDevices
from devalloc_solver.eligibility.judge import Judge
from devalloc_solver.fleet.equal_devices import EqualDevicesIndex
from devalloc_solver.pipeline.units import RejectedClaim
from devalloc_solver.problem.demand import Demand, PlacementUnit
from devalloc_solver.problem.snapshot import Snapshot

MAX_SHAPES = 4_096
MAX_VERDICTS = 200_000
"""Shapes of claims of which it is remembered whether they are valid, and what is known of their expressions; when
there are more of either, all are forgotten."""


@dataclass(slots=True, eq=False)
class DeviceClaimRules:
    """Classes and configuration objects, and the verdicts of expressions, which outlive both."""

    kinds: EqualDevicesIndex
    problem_input: ProblemInput
    """only its classes and configuration objects count"""
    allowance: Allowance = field(default_factory=Allowance)
    """of the call that goes on"""
    wholes: WholeDevices = field(default_factory=WholeDevices)
    """of the fleet"""
    shared: CandidateFinder = field(init=False)
    """judges one device of each kind there was when it was made"""
    _refusals: dict[tuple[object, str], RejectedClaim | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        problem_input = self.problem_input
        self.shared = CandidateFinder(
            self.kinds.sample(),
            problem_input.classes,
            problem_input.invalid_classes,
            Judge(LANGUAGE, self.allowance, is_charging=False),
            wholes=self.wholes,
        )

    def on(self, snapshot: Snapshot) -> CandidateFinder:
        """The judge of the devices of a snapshot; verdicts and errors are common to all."""
        return self.shared.for_others(snapshot, self.problem_input.classes, self.problem_input.invalid_classes)

    def renewed(self, problem_input: ProblemInput) -> DeviceClaimRules:
        """The same after classes have changed."""
        fresh = DeviceClaimRules(self.kinds, problem_input, self.allowance, self.wholes)
        fresh.shared = self.shared.for_others(
            fresh.shared.snapshot, problem_input.classes, problem_input.invalid_classes
        )
        return fresh

    def configs_changed(self) -> None:
        """There are other configuration objects than before: claims name those, and verdicts do not depend on them."""
        self._refusals.clear()

    def after_failure(self, *, begin: bool) -> DeviceClaimRules:
        """The same once an expression that was valid for one device of each kind has spent its budget on others (S6).

        ``begin``: with fresh budgets, as they may have gone to devices that are there no more. Without, its error
        stands: it refuses the claims that have it, and the classes.
        """
        return (
            DeviceClaimRules(self.kinds, self.problem_input, self.allowance, self.wholes)
            if begin
            else self.renewed(self.problem_input)
        )

    def shape(self, claim: ClaimRecord) -> object:
        """Equal for claims that ask for the same, of which those of one node may mean whole devices (S6b)."""
        shape: object = claim.shape
        if claim.pinned_node is None:
            return shape
        drivers = self.wholes.drivers_with_parts
        if not drivers:
            return shape
        details = (detail for entry in claim.spec.claims for detail in entry.alternatives)
        return shape, *(self.shared.left_out(detail, claim.pinned_node, drivers) for detail in details)

    def refusal(self, claim: ClaimRecord) -> RejectedClaim | None:
        """Why a claim is not solved, whatever is free (S5, S6, S16). Raises OutOfTime."""
        if claim.is_deleting:
            return find_refusal(claim.model, self.problem_input, self.shared)
        key = (claim.shape, claim.namespace)
        try:
            refusal = self._refusals[key]
        except KeyError:
            if len(self._refusals) >= MAX_SHAPES or self.shared.remembered > MAX_VERDICTS:
                self._refusals.clear()
                self._begin()
            refusal = self._refusals[key] = find_refusal(claim.model, self.problem_input, self.shared)
        return None if refusal is None else replace(refusal, key=claim.key, group=claim.group)


@dataclass(slots=True, eq=False)  # not frozen, nor a tuple: either takes twice as long to make
class DeviceClaimQuery:
    """What one claim wants to know of the index; see ``node_class_plan.ClaimQuery``."""

    claim: ClaimRecord
    shape: object
    rules: DeviceClaimRules

    @property
    def takes_network(self) -> bool:
        return True

    @property
    def is_monotone(self) -> bool:
        return True

    @property
    def is_strange(self) -> bool:
        return False

    def unit_on(self, snapshot: Snapshot) -> PlacementUnit:
        return PlacementUnit((self.demand(self.rules.on(snapshot)),), None, None)

    @property
    def restrictions(self) -> tuple[NodeRestriction, ...]:
        return self.claim.restrictions

    @property
    def pinned_node(self) -> str | None:
        return self.claim.pinned_node

    def demand(self, eligibility: CandidateFinder) -> Demand:
        """In terms of the snapshot of a judge."""
        return make_demand(self.claim.model, eligibility)

    def demand_of(self, kinds: EqualDevicesIndex) -> Demand:
        return self.demand(self.rules.on(kinds.sample()))

    def explained_unit(self, judge: CandidateFinder) -> PlacementUnit:
        demand, pin = self.demand(judge), self.claim.pinned_node
        if self.claim.restrictions:
            demand = off_barred_nodes(demand, (*judge.snapshot.nodes, pin), judge.snapshot, {})
        return PlacementUnit((demand,), None, pin)
