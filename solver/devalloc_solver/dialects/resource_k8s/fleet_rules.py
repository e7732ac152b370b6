"""ResourceClaims for the index: what classes and claims accept of the kinds of devices.

What holds for one device of a kind holds for all, because a kind has everything that a claim can ask for. If an
expression reads an attribute that differs within a kind (a uuid), nodes are judged one by one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from devalloc.api.node_rules import NodeRestriction
from devalloc_solver.dialects.resource_k8s.candidates import SELECTOR_FAILED, RequestJudge, RequestVerdict
from devalloc_solver.dialects.resource_k8s.claims import ResourceClaim, SubRequest
from devalloc_solver.dialects.resource_k8s.demands import (
    make_claim_demand,
    make_demand,
    pending_claim,
    single_claim_unit,
)
from devalloc_solver.dialects.resource_k8s.device_properties import DeviceProperties
from devalloc_solver.dialects.resource_k8s.fields import AllocationError
from devalloc_solver.dialects.resource_k8s.manifests import ClusterInput
from devalloc_solver.dialects.resource_k8s.published_devices import DeviceUsage, published_device
from devalloc_solver.dialects.resource_k8s.selectors import has_type, selector_language
from devalloc_solver.eligibility.judge import Judge
from devalloc_solver.eligibility.predicate import Predicate
from devalloc_solver.fleet.equal_devices import EqualDevices, EqualDevicesIndex
from devalloc_solver.fleet.node_index import NodeIndex
from devalloc_solver.fleet.pool_states import NodeRecord
from devalloc_solver.pipeline.units import RejectedClaim
from devalloc_solver.problem.demand import Demand, PlacementUnit, in_plain_terms
from devalloc_solver.problem.snapshot import Device, Snapshot

MAX_SHAPES = 1_000
"""Shapes remembered; when there are more, all are forgotten."""
MAX_EXPRESSIONS = 4_000
"""Expressions remembered; they outlive shapes, which are forgotten when kinds of devices come."""
MAX_FAILURES = 200_000
"""Nodes remembered for all shapes, with their devices that expressions fail on; when there are more, all are forgotten.
"""
MAX_TEXT = 100
"""Characters of an attribute that are compared with a literal at no cost to speak of."""


@dataclass(slots=True, eq=False)
class _ShapeFacts:
    """What is known of a shape, as long as kinds and rules are the same."""

    demand: Demand
    """its candidates are kinds"""
    warned: tuple[int, tuple[str, ...]] = (-1, ())
    """(layout of the fleet, devices that could not be judged)"""


@dataclass(slots=True, eq=False)
class ResourceClaimRules:
    """Classes, and what they and claims accept of an index."""

    gates: frozenset[str]
    index: NodeIndex
    problem_input: ClusterInput
    """only its classes count"""
    broken: frozenset[str] = frozenset()
    """nodes with a pool of the network that is incomplete or invalid"""
    _selectors: Judge = field(init=False)
    _shape_facts: dict[Hashable, _ShapeFacts | None] = field(default_factory=dict)
    _failed: dict[tuple[_ShapeFacts, int, str], tuple[NodeRecord, tuple[str, ...]]] = field(default_factory=dict)
    """(shape, number of a request, node) -> devices of the node, as it was then, that could not be judged"""
    _seen: tuple[object, int, object] | None = None
    """what the facts of shapes are of: kinds, and the network"""
    _of_kinds: RequestJudge = field(init=False)
    _of_network: RequestJudge = field(init=False)

    def __post_init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._selectors = Judge(selector_language(self.gates), self.index.allowance)
        self._seen = None
        self._catch_up()

    def _catch_up(self) -> None:
        """Judge other devices once there are others."""
        kinds, network = self.index.kinds, self.index.network
        seen = kinds, len(kinds.kinds), network
        if self._seen != seen:
            self._seen = seen
            self._of_network = self.judge(() if network is None else network.snapshot.devices, self.broken)
            self._of_kinds = self.judge_kinds(kinds)
            self._forget_shape_facts()

    def _forget_shape_facts(self) -> None:
        self._shape_facts.clear()
        self._failed.clear()

    def has_met(self, shape: Hashable | None) -> bool:
        """Whether claims of a shape were solved under these rules: then their classes exist, and they are not too
        large."""
        return shape in self._shape_facts

    def query(self, claim: ResourceClaim, shape: Hashable) -> ResourceClaimQuery | None:
        """What a claim wants to know of the index; None for what the index has no words for."""
        self._catch_up()
        if shape not in self._shape_facts:
            if len(self._shape_facts) >= MAX_SHAPES or len(self._selectors.expressions) > MAX_EXPRESSIONS:
                self._forget()
            self._shape_facts[shape] = self._look(claim)
        shape_facts = self._shape_facts[shape]
        return None if shape_facts is None else ResourceClaimQuery(claim, shape, self, shape_facts)

    def _look(self, claim: ResourceClaim) -> _ShapeFacts | None:
        if not claim.requests:
            return None
        try:
            demand = self.demand(claim, self._of_kinds)
            if self._reaches_network(claim):
                return None
        except AllocationError:
            return None
        return None if self.is_strange(demand) else _ShapeFacts(demand)

    def cost_of(self, expression: str) -> int:
        """The steps that an expression has cost beyond what is free."""
        return self._selectors.costs.of(expression)

    @property
    def is_spent(self) -> bool:
        """Whether any expression is too expensive on some device."""
        return self._selectors.is_spent

    def is_strange(self, demand: Demand) -> bool:
        """Whether an expression is too expensive on some device."""
        return any(request.eligible.is_exhausting for request in demand.requests)

    def _reaches_network(self, claim: ResourceClaim) -> bool:
        """Whether a claim may have to do with devices that are not of one node."""
        for subrequest in claim.subrequests if self.index.network is not None or self.broken else ():
            verdict = self._on_network(claim, subrequest)
            is_open = verdict.accepted or verdict.blocked or verdict.errors
            if is_open or (subrequest.is_all and self.broken):
                return True
        return False

    def _on_network(self, claim: ResourceClaim, subrequest: SubRequest) -> RequestVerdict:
        """What a request may take of the network. Raises AllocationError."""
        return self._of_network.choose(claim, subrequest).verdict

    def is_beside_network(self, claim: ResourceClaim) -> bool:
        """Whether no class that a claim names has any device of the network."""
        if self.index.network is None:
            return True
        subrequests = (replace(subrequest, selectors=(), capacity={}) for subrequest in claim.subrequests)
        try:
            verdicts = [self._on_network(claim, subrequest) for subrequest in subrequests]
        except AllocationError:
            return False
        return not any(verdict.accepted or verdict.blocked or verdict.errors for verdict in verdicts)

    # -- judges --------------------------------------------------------------------------------------------------------

    def judge(
        self,
        devices: Sequence[Device],
        broken: frozenset[str] = frozenset(),
        selectors: Judge | None = None,
    ) -> RequestJudge:
        """Judges these devices; ``broken`` are nodes on which it is unknown what ``All`` is. ``selectors``: None for
        those of the index."""
        classes = self.problem_input.classes
        return RequestJudge(self.gates, devices, DeviceUsage(), selectors or self._selectors, classes, broken)

    def on(self, snapshot: Snapshot, selectors: Judge | None = None) -> RequestJudge:
        """Judges the devices of a snapshot."""
        broken = (pool.node for pool in snapshot.pools if any(is_broken(device.traits) for device in pool.devices))
        return self.judge(snapshot.devices, self.broken.union(node for node in broken if node is not None), selectors)

    def judge_kinds(self, kinds: EqualDevicesIndex) -> RequestJudge:
        """Judges one device of each kind, as if it were alone on its node."""
        devices = kinds.sample().devices
        alone = [frozenset((str(device.index),)) for device in devices]
        broken = frozenset(str(device.index) for device in devices if is_broken(device.traits))
        return replace(self.judge(devices, broken), reached=alone)

    def judge_node(self, snapshot: Snapshot) -> RequestJudge:
        """Judges the devices of one node."""
        broken = snapshot.nodes if any(is_broken(device.traits) for device in snapshot.devices) else ()
        return self.judge(snapshot.devices, frozenset(broken))

    def demand(self, claim: ResourceClaim, judge: RequestJudge) -> Demand:
        """The demand of a claim in terms of a judge. Raises AllocationError."""
        choices = [
            [judge.choose(claim, subrequest) for subrequest in request.subrequests] for request in claim.requests
        ]
        return in_plain_terms(make_demand(pending_claim(claim, 0), choices), self._is_listed)

    def _is_listed(self, attribute: str) -> bool:
        """Whether some device has a list of values under a name."""
        return any(isinstance(kind.one.attributes.get(attribute), frozenset) for kind in self.index.kinds.kinds)

    # -- devices that cannot be judged ---------------------------------------------------------------------------------

    def warnings(self, query: ResourceClaimQuery, layout: int) -> tuple[str, ...]:
        """The devices of the fleet that expressions of a claim fail on, told as sentences; ``layout`` numbers states of
        the fleet.

        Raises AllocationError.
        """
        shape_facts = query.shape_facts
        if shape_facts.warned[0] != layout:
            subrequests = {id(request.spec.verdict): request.spec.subrequest for request in shape_facts.demand.requests}
            failures = (
                self._failures(query.claim, one, shape_facts, number) for number, one in enumerate(subrequests.values())
            )
            shape_facts.warned = layout, tuple(sorted({error for errors in failures for error in errors}))
        return shape_facts.warned[1]

    def _failures(
        self, claim: ResourceClaim, subrequest: SubRequest, shape_facts: _ShapeFacts, number: int
    ) -> list[str]:
        kinds, nodes = self._suspects(claim, subrequest)
        records = self.index.records
        failures: list[str] = []
        for name in records if kinds else sorted(nodes & records.keys()):
            record = records[name]
            cached = self._failed.get((shape_facts, number, name))
            if cached is None or cached[0] is not record:
                devices = [
                    device
                    for device, kind in zip(record.snapshot.devices, record.kinds, strict=True)
                    if name in nodes or kind.index in kinds
                ]
                errors = self.judge(devices).choose(claim, subrequest).verdict.errors if devices else ()
                if len(self._failed) >= MAX_FAILURES:
                    self._failed.clear()
                cached = self._failed[shape_facts, number, name] = record, tuple(errors)
            failures += cached[1]
        return failures

    def _suspects(self, claim: ResourceClaim, subrequest: SubRequest) -> tuple[set[int], set[str]]:
        """(kinds whose devices may fail, nodes on which any may fail)"""
        failed = {
            index for index, _ in self._of_kinds.choose(claim, subrequest).verdict.rejected.get(SELECTOR_FAILED, ())
        }
        kinds: set[int] = set()
        nodes: set[str] = set()
        predicates = self._of_kinds.eligible(subrequest).predicates
        for kind in self.index.kinds.kinds:
            if self.index.kinds.varied.isdisjoint(kind.one.attributes):
                kinds |= failed & {kind.index}
            elif self._may_fail(predicates, kind, nodes):
                kinds.add(kind.index)
        return kinds, nodes

    def _may_fail(self, predicates: Iterable[Predicate], kind: EqualDevices, nodes: set[str]) -> bool:
        """Whether devices of a kind may fail; ``nodes`` are filled in where only few of them may."""
        varied = self.index.kinds.varied.intersection(kind.one.attributes)
        for predicate in predicates:
            open_operands = []
            for operand in predicate.operands:
                if operand.reads is None or not varied.isdisjoint(operand.reads):
                    open_operands.append(operand)
                    continue
                verdict = self._selectors.operand_verdict(predicate.text, operand, kind.one)
                if verdict is not True:
                    return verdict is not False
            for name, values in predicate.find_literals() if open_operands else ():
                places = self.index.kinds.find(name, values) if name in varied else None
                if places is not None and has_type(kind.one, name, values):
                    # A device with another value is not selected, whatever the rest of the expression would say.
                    nodes.update(node for node in places if node is not None)
                    return False
            if any(one.safe_texts is None or not self._are_texts(kind, one.safe_texts) for one in open_operands):
                return True
        return False

    def _are_texts(self, kind: EqualDevices, names: Iterable[str]) -> bool:
        """Whether each device of a kind has these attributes, as one short string each, and all others are readable."""
        if published_device(kind.one).device.has_fault:
            return False
        for name in names:
            value = kind.one.attributes.get(name)
            if not isinstance(value, tuple) or value[0] != "string":
                return False
            longest = self.index.kinds.longest(name) if name in self.index.kinds.varied else len(value[1])
            if longest > MAX_TEXT:
                return False
        return True


@dataclass(frozen=True, slots=True, eq=False)
class ResourceClaimQuery:
    """What one claim wants to know of the index; see ``node_class_plan.ClaimQuery``."""

    takes_network: ClassVar[bool] = False
    claim: ResourceClaim
    shape: Hashable
    rules: ResourceClaimRules
    shape_facts: _ShapeFacts

    @property
    def restrictions(self) -> tuple[NodeRestriction, ...]:
        return self.claim.restrictions

    def unit_on(self, snapshot: Snapshot) -> PlacementUnit:
        """Raises AllocationError."""
        if snapshot.nodes == ("",):  # one device of each kind
            return PlacementUnit((self.shape_facts.demand,), None, None)
        return PlacementUnit((self.rules.demand(self.claim, self.rules.judge_node(snapshot)),), None, None)

    @property
    def pinned_node(self) -> str | None:
        return self.claim.pinned_node

    def demand_of(self, kinds: EqualDevicesIndex) -> Demand:
        return self.rules.demand(self.claim, self.rules.judge_kinds(kinds))

    def explained_unit(self, judge: RequestJudge) -> PlacementUnit | None:
        demand = make_claim_demand(pending_claim(self.claim, 0), self.rules.problem_input, judge)
        return None if isinstance(demand, RejectedClaim) else single_claim_unit(demand)

    @property
    def is_monotone(self) -> bool:
        """Whether it never fits better if there are fewer devices: all of them may be wanted."""
        return not any(request.spec.subrequest.is_all for request in self.shape_facts.demand.requests)

    @property
    def is_strange(self) -> bool:
        """Whether an expression turned out too expensive."""
        return self.rules.is_spent and self.rules.is_strange(self.shape_facts.demand)


def is_broken(traits: Hashable) -> bool:
    return isinstance(traits, DeviceProperties) and traits.is_broken
