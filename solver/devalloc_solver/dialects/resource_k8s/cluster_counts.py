"""What one claim can have of a whole cluster, counted by kind of device and class of nodes.

Devices that a claim selects by a unique attribute (a uuid) are judged one by one. This serves only claims whose
expressions list the values. All other devices of a kind are treated together, because what is true of one is true of
all: they fail the expressions that name others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from devalloc.api.findings import Rule
from devalloc_solver.dialects.resource_k8s.candidates import RequestCandidates
from devalloc_solver.dialects.resource_k8s.device_properties import published_device
from devalloc_solver.dialects.resource_k8s.fleet_rules import ResourceClaimQuery
from devalloc_solver.dialects.resource_k8s.published_devices import (
    PublishedDevice,
)
from devalloc_solver.eligibility.facts import is_of_kinds, places
from devalloc_solver.explain.funnel import Funnel, FunnelCounter
from devalloc_solver.explain.typos import MAX_VALUES
from devalloc_solver.fleet.equal_devices import EqualDevicesIndex
from devalloc_solver.fleet.explanation_nodes import NodeSelection
from devalloc_solver.fleet.fleet_stats import DevicePosition, FleetStats
from devalloc_solver.fleet.funnels import FleetFunnels, RefinedKinds, RejectedDevices
from devalloc_solver.fleet.pool_states import NodeClass, NodeRecord, PoolKind, PoolState
from devalloc_solver.problem.demand import AllocationMode, Candidates, PlacementUnit, Request


def has_binding_conditions(pool: PoolKind) -> bool:
    """Whether pools of a kind have binding conditions: then they come after all others."""
    return any(published_device(kind.one).device.binding_conditions for kind in pool.kinds)


MAX_NODES = 80
"""Nodes that have what a claim names; where more have, the whole cluster is asked."""


@dataclass(frozen=True, slots=True, eq=False)
class NamedDevices:
    """What the expressions of one shape of claim name, for one layout of the cluster."""

    expressions: frozenset[str] = frozenset()
    """those that no device passes which is not on these nodes"""
    labels: frozenset[str] = frozenset()
    """of the requests that have such an expression"""
    records: tuple[NodeRecord, ...] = ()
    """the nodes that have devices with a value that is named"""
    read: frozenset[str] = frozenset()
    """attributes that vary within kinds, and that any expression reads"""

    @classmethod
    def of(cls, query: ResourceClaimQuery) -> NamedDevices | None:
        """None where expressions tell devices of one kind apart in other ways, or name those of many nodes."""
        index, demand = query.rules.index, query.shape_facts.demand
        related = {
            *demand.match,
            *(n for s in demand.requests for n in s.match),
            *(r.attribute for r in demand.relations),
        }
        if not related.isdisjoint(index.kinds.choice.scattered):
            return None
        expressions: set[str] = set()
        labels: set[str] = set()
        nodes: set[str | None] = set()
        read: set[str] = set()
        for request in demand.requests:
            for predicate in request.eligible.predicates:
                only = places(predicate, request.eligible.judge.language, index.kinds)
                if only is None:
                    if is_of_kinds(predicate, index.kinds):
                        continue
                    return None
                if request.mode is not AllocationMode.WHOLE:
                    return None
                expressions.add(predicate.text)
                labels.add(request.label)
                nodes.update(only)
                read |= index.kinds.varied.intersection(predicate.reads or ())
        if len(nodes) > MAX_NODES:
            return None
        records = tuple(index.records[node] for node in nodes if node is not None)
        return cls(frozenset(expressions), frozenset(labels), records, frozenset(read))

    @property
    def ranks(self) -> Collection[int]:
        return {record.rank for record in self.records}

    def has(self, request: Request) -> bool:
        """Whether a request, maybe of an edited claim, may only take devices of these nodes."""
        subrequest, judge = request.spec.subrequest, request.spec.judge
        return not self.expressions.isdisjoint((*judge.classes[subrequest.class_name].selectors, *subrequest.selectors))

    def is_all_there(self, details: Iterable[Iterable[Request]]) -> bool | None:
        """Whether a claim fits on these nodes only; None where an alternative does."""
        present = [[self.has(request) for request in requests] for requests in details]
        if any(map(all, present)):
            return True
        return None if any(map(any, present)) else False


def all_texts(kinds: EqualDevicesIndex, name: str, _: object) -> Collection[object] | None:
    """The texts that a unique attribute has on any device; None when they are too many to look among for a typo."""
    own = (str(v[1]) for v in kinds.values(name) if isinstance(v, tuple) and v[0] == "string")
    texts = dict.fromkeys(islice(own, MAX_VALUES + 1))  # all texts differ: a fleet has one for each device
    return texts if len(texts) <= MAX_VALUES else None


@dataclass(slots=True)
class ResourceClaimFunnels(FleetFunnels):
    """Makes the funnels of claims of one shape."""

    query: ResourceClaimQuery
    choices: Mapping[str, RequestCandidates]
    """label of a request -> what it may take of one device of each part"""

    def judge(self, request: Request) -> tuple[set[int], Iterable[RejectedDevices]]:
        choice, sizes = self.choices[request.label], self.parts.sizes()
        rejected = [
            self.step(part, by, has_example=True)
            for by, some in choice.verdict.rejected.items()
            for part, _ in some
            if sizes.get(part)
        ]
        return {part for part in choice.candidates().accepted if sizes.get(part)}, rejected

    def order(self, step: RejectedDevices) -> tuple[object, ...]:
        return step.firsts, step.rule

    def example(self, request: Request, by: Rule, first: DevicePosition, part: int) -> str | None:
        offer, subrequest = replace(self._offer(first), index=0), self.choices[request.label].subrequest
        ((_, why),) = self.query.rules.judge([offer]).choose(self.query.claim, subrequest).verdict.rejected[by]
        return why

    def title(self, position: DevicePosition) -> str:
        return self._offer(position).title

    def _offer(self, position: DevicePosition) -> PublishedDevice:
        return published_device(self.device(position))


@dataclass(slots=True, eq=False)
class ClusterCounts:
    """Counts for one shape of claim, for one layout of the cluster."""

    stats: FleetStats
    query: ResourceClaimQuery
    layout: int
    """of the cluster"""
    named: NamedDevices
    _requests: Mapping[str, Request] = field(init=False)
    """by label; their candidates are kinds"""
    _funnels: ResourceClaimFunnels = field(init=False)
    _of_named: ResourceClaimFunnels = field(init=False)
    """of requests that name devices"""
    _free: dict[tuple[str, int], int] = field(default_factory=dict)
    """(label, index of a state of a pool) -> devices for a request that are free"""

    def __post_init__(self) -> None:
        self._requests = {request.label: request for request in self.query.shape_facts.demand.requests}
        choices = {label: request.spec for label, request in self._requests.items()}
        self._funnels = self._of_named = ResourceClaimFunnels(self.stats, self.stats, self.query, choices)
        if self.named.labels:
            rules, nodes = self.query.rules, [record.name for record in self.named.records]
            refined = RefinedKinds(self.stats, tuple(sorted(self.named.read)), nodes)
            judge = rules.judge_kinds(refined.parts())
            own = {label: judge.choose(self.query.claim, choices[label].subrequest) for label in self.named.labels}
            self._of_named = ResourceClaimFunnels(self.stats, refined, self.query, own)

    @property
    def errors(self) -> Sequence[str]:
        """The devices that could not be judged. Raises AllocationError."""
        return self.query.rules.warnings(self.query, self.layout)

    @property
    def is_exact(self) -> bool:
        """Whether counting kinds tells all: no device is shared, and requests for all devices can have them."""
        kinds, sizes = self.stats.parts(), self.stats.sizes()
        for label, request in self._requests.items():
            if label in self.named.labels:
                continue  # its devices are looked at one by one
            verdict = request.spec.verdict
            if any(kinds[kind].one.shareable for kind in self._kinds(label)):
                return False
            if any(sizes.get(kind) for kind in verdict.blocked) or any(sizes.get(int(kind)) for kind in verdict.broken):
                return False
        return True

    def funnel(self, request: Request) -> Funnel:
        """Of a request of any part of the cluster."""
        return (self._of_named if request.label in self.named.labels else self._funnels).make(request)

    def most_free(self, label: str, pin: str | None) -> int:
        """The most devices that are free on one node, or on the one it is bound to."""
        record = self.stats.index.records.get(pin or "")
        own_class = None if record is None else record.member_of
        nodes = [node for node, _ in self.stats.classes()] if pin is None else [own_class] if own_class else []
        return max((self._free_on(label, node) for node in nodes), default=0)

    def _free_on(self, label: str, node: NodeClass) -> int:
        return sum(self._free_of(label, state) for state in node.states)

    def _free_of(self, label: str, state: PoolState) -> int:
        total = self._free.get((label, state.index))
        if total is None:
            kinds, by_kind = self._requests[label].candidates.accepted, zip(state.kind.kinds, state.free, strict=True)
            total = self._free[label, state.index] = sum(free for kind, free in by_kind if kind.index in kinds)
        return total

    def having(self, label: str, name: str) -> tuple[int, int]:
        """(devices for a request that have a value of an attribute, all devices for it)"""
        kinds, sizes, own = self.stats.parts(), self.stats.sizes(), self._kinds(label)
        return sum(sizes[kind] for kind in own if kinds[kind].one.values(name)), sum(sizes[kind] for kind in own)

    def _kinds(self, label: str) -> list[int]:
        sizes = self.stats.sizes()
        return [kind for kind in self._requests[label].candidates.accepted if sizes.get(kind)]

    def selection(self, unit: PlacementUnit, kinds: Sequence[int]) -> NodeSelection | None:
        """Selects nodes for what a unit may take of the whole cluster; None if it takes any in shares.

        ``kinds``: of the devices that the unit's requests may take.
        """
        (demand,) = unit.demands
        if any(request.portions for request in demand.requests):
            return None
        details = tuple(tuple(_on_kinds(request, kinds) for request in detail) for detail in demand.details)
        return NodeSelection(self.stats, replace(demand, details=details))


def _on_kinds(request: Request, kinds: Sequence[int]) -> Request:
    """The request in terms of the kinds of its candidates."""
    accepted = dict.fromkeys((kinds[index] for index in request.candidates.accepted), None)
    return replace(request, candidates=Candidates(accepted, ()))


@dataclass(slots=True)
class ClusterFunnels(FunnelCounter):
    """The numbers of a whole cluster, for requests of a part of it that has a node of each kind, and what is named."""

    counts: ClusterCounts

    def make(self, request: Request) -> Funnel:
        return self.counts.funnel(request)

    def most(self, request: Request, pin: str | None, *, is_empty: bool) -> int:
        if is_empty or request.mode.is_admin or request.label in self.counts.named.labels:
            return FunnelCounter.most(self, request, pin, is_empty=is_empty)
        return self.counts.most_free(request.label, pin)

    def having(self, request: Request, name: str) -> tuple[int, int]:
        if request.label in self.counts.named.labels:
            return FunnelCounter.having(self, request, name)
        return self.counts.having(request.label, name)
