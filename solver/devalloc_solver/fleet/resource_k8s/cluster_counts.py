"""What one claim can have of a whole cluster, counted by kind of device and class of nodes.

It also lists the first devices of each kind, in the order in which a cluster numbers its devices.

Devices that a claim selects by a unique attribute (a uuid) are judged one by one. This serves only claims whose
expressions list the values. All other devices of a kind are treated together, because what is true of one is true of
all: they fail the expressions that name others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from typing import NamedTuple

from devalloc_solver.dialects.resource_k8s.candidates import RequestJudge
from devalloc_solver.dialects.resource_k8s.published_devices import (
    DevicesInUse,
    PublishedDevice,
    find_attribute,
    make_snapshot,
)
from devalloc_solver.explain.funnel import SHOWN, Funnel, FunnelCounter, Step
from devalloc_solver.explain.typos import MAX_VALUES
from devalloc_solver.fleet.equal_devices import EqualDevicesIndex
from devalloc_solver.fleet.explanation_nodes import NodeSelection
from devalloc_solver.fleet.fleet_stats import FleetStats
from devalloc_solver.fleet.pool_states import NodeClass, NodeKind, NodeRecord, PoolKind, PoolState
from devalloc_solver.fleet.resource_k8s.device_properties import published_device
from devalloc_solver.fleet.resource_k8s.rules import ResourceClaimQuery, ResourceClaimRules, is_broken
from devalloc_solver.fleet.resource_k8s.state import ClusterState, usage_of
from devalloc_solver.problem.allocations import AllocatedDevice, Allocation, Key
from devalloc_solver.problem.demand import AllocationMode, Candidates, Demand, PlacementUnit, Request
from devalloc_solver.problem.snapshot import Snapshot, join_pools, renumber

PoolOrder = tuple[bool, str, str]
"""The place of a pool among those of a cluster: (whether it has binding conditions, driver, driver and name)"""


def has_binding_conditions(pool: PoolKind) -> bool:
    """Whether pools of a kind have binding conditions."""
    return any(published_device(kind.one).device.binding_conditions for kind in pool.kinds)


@dataclass(frozen=True, slots=True, eq=False)
class ClusterSubset:
    """Nodes that have pools of their own, for one layout of the cluster and one set of classes."""

    snapshot: Snapshot
    offers: Sequence[PublishedDevice]
    judge: RequestJudge
    places: Mapping[str | None, Sequence[int]]
    """node -> the index here of each device of its own snapshot"""
    kinds: Sequence[int]
    """the kind of each device; -1 of the commons, which are the last ones"""
    shared_devices: DevicesInUse

    @classmethod
    def of(cls, records: Sequence[NodeRecord], rules: ResourceClaimRules) -> ClusterSubset:
        """``records`` are in natural order of their names."""
        places = {record.name: [0] * len(record.snapshot.devices) for record in records}
        numbered = [
            ((has_binding_conditions(kind), pool.driver, pool.name), n, pool)
            for n, record in enumerate(records)
            for pool, kind in zip(record.snapshot.pools, record.pools, strict=True)
            if pool.devices
        ]
        numbered.sort(key=lambda one: one[:2])
        pools = renumber(pool for _, _, pool in numbered)
        offers: list[PublishedDevice] = []
        kinds: list[int] = []
        for _, number, pool in numbered:
            own_places, own_kinds = places[records[number].name], records[number].kinds
            for device in pool.devices:
                offer = published_device(device)
                own_places[device.index] = len(offers)
                kinds.append(own_kinds[device.index].index)
                offers.append(
                    PublishedDevice(len(offers), offer.pool, offer.slice, offer.device, offer.is_shareable, offer.nodes)
                )
        first = len(offers)
        offers += [replace(offer, index=first + n) for n, offer in enumerate(rules.shared_devices.offers)]
        for pool in make_snapshot(offers[first:], (), None, rules.gates).pools:
            here = tuple(replace(device, pool=len(pools)) for device in pool.devices)
            pools.append(replace(pool, index=len(pools), devices=here))
        kinds += [-1] * (len(offers) - first)
        snapshot = join_pools(pools, [str(record.name) for record in records])
        broken = {str(record.name) for record in records if any(is_broken(d.traits) for d in record.snapshot.devices)}
        return cls(
            snapshot, offers, rules.judge(offers, frozenset(broken)), places, kinds, DevicesInUse(offers[first:])
        )

    def allocations(self, state: ClusterState) -> list[Allocation]:
        """What claims hold here, by name of the claim. None of them holds devices of several nodes."""
        by_claim: dict[Key, list[AllocatedDevice]] = {
            key: [*self.shared_devices.items(usage_of(state.allocations[key]))] for key in state.common_holders
        }
        for node, places in self.places.items():
            for key in state.holders.on_node.get(node, ()):
                local = [AllocatedDevice(places[device], amounts) for _, device, amounts in state.index.held[key]]
                by_claim.setdefault(key, []).extend(local)
        return [
            Allocation(key, state.allocations[key].priority, tuple(sorted(items, key=lambda held: held.device)))
            for key, items in sorted(by_claim.items())
        ]


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
    """the nodes that have devices with a value that is named, in natural order"""

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
        for request in demand.requests:
            for program in query.rules.programs(request.spec.subrequest):
                places = query.rules.places(program)
                if places is None:
                    if query.rules.is_of_kinds(program):
                        continue
                    return None
                if request.mode is not AllocationMode.WHOLE:
                    return None
                expressions.add(program.text)
                labels.add(request.label)
                nodes.update(places)
        if len(nodes) > MAX_NODES:
            return None
        records = sorted((index.records[node] for node in nodes if node is not None), key=lambda one: one.rank)
        return cls(frozenset(expressions), frozenset(labels), tuple(records))

    @property
    def ranks(self) -> Collection[int]:
        return {record.rank for record in self.records}

    def sizes(self) -> Mapping[int, int]:
        """kind -> devices on these nodes"""
        return Counter(kind.index for record in self.records for kind in record.kinds)

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


def all_texts(
    kinds: EqualDevicesIndex, shared_devices: Sequence[PublishedDevice], name: str, _: object
) -> Collection[object] | None:
    """The texts that a unique attribute has on any device; None when they are too many to look among for a typo."""
    texts = dict.fromkeys(str(v[1]) for v in kinds.values(name) if isinstance(v, tuple) and v[0] == "string")
    for attribute in (find_attribute(offer, name) for offer in shared_devices):
        if attribute is not None and attribute.kind == "string":
            texts |= dict.fromkeys(map(str, attribute.values))
    return texts if len(texts) <= MAX_VALUES else None


class FirstDevice(NamedTuple):
    """One device; smaller is earlier."""

    order: PoolOrder
    rank: int
    """of its node; among the commons its number"""
    device: int
    """its index in the snapshot of its node"""
    common: PublishedDevice | None = None
    """the device itself where it is one of the commons"""


def first_of_shared(number: int, offer: PublishedDevice) -> FirstDevice:
    """One of the commons, which are in order among themselves."""
    pool = offer.pool
    return FirstDevice((pool.has_binding_conditions, pool.driver, pool.title), number, 0, offer)


def devices_of(record: NodeRecord) -> Iterator[FirstDevice]:
    """The devices of a node that are in pools of its own."""
    for pool, own in zip(record.pools, record.snapshot.pools, strict=True):
        order = has_binding_conditions(pool), own.driver, own.name
        for device in own.devices:
            yield FirstDevice(order, record.rank, device.index)


@dataclass(slots=True, eq=False)
class FirstDevices:
    """Finds them anew when pools have changed."""

    _first: Mapping[int, Sequence[FirstDevice]] = field(default_factory=dict)
    _records: Mapping[int, NodeRecord] = field(default_factory=dict)
    _pools: Mapping[PoolKind, Sequence[tuple[str, str, int, int]]] = field(default_factory=dict)
    """(driver, name, rank of the node, index of the first device)"""

    def update(self, records: Mapping[int, NodeRecord]) -> None:
        """``records``: all nodes by rank."""
        self._records = records
        pools: dict[PoolKind, list[tuple[str, str, int, int]]] = defaultdict(list)
        for rank, record in records.items():
            for pool, start, own in zip(record.pools, record.starts, record.snapshot.pools, strict=True):
                pools[pool].append((own.driver, own.name, rank, start))
        self._pools = pools
        by_kind: dict[int, list[FirstDevice]] = defaultdict(list)
        for pool, places in pools.items():
            for first, kind in _first_of_each_kind(pool, nsmallest(SHOWN, places)):
                by_kind[kind].append(first)
        self._first = {kind: nsmallest(SHOWN, firsts) for kind, firsts in by_kind.items()}

    def of(self, kinds: Iterable[int]) -> Sequence[FirstDevice]:
        """The first SHOWN devices of these kinds."""
        return nsmallest(SHOWN, (first for kind in kinds for first in self._first.get(kind, ())))

    def elsewhere(self, kind: int, ranks: Collection[int]) -> Sequence[FirstDevice]:
        """The first SHOWN devices of a kind that are not on these nodes."""
        nearest = self._first.get(kind, ())
        if all(first.rank not in ranks for first in nearest):
            return nearest
        firsts: list[FirstDevice] = []
        for pool, places in self._pools.items():
            if any(one.index == kind for one in pool.kinds):
                others = nsmallest(SHOWN, (place for place in places if place[2] not in ranks))
                firsts += [first for first, index in _first_of_each_kind(pool, others) if index == kind]
        return nsmallest(SHOWN, firsts)

    def offer(self, first: FirstDevice) -> PublishedDevice:
        if first.common is not None:
            return first.common
        return published_device(self._records[first.rank].snapshot.devices[first.device])


def _first_of_each_kind(
    pool: PoolKind, places: Iterable[tuple[str, str, int, int]]
) -> Iterator[tuple[FirstDevice, int]]:
    """(device, its kind): the first SHOWN of each kind in pools of one kind."""
    last = has_binding_conditions(pool)
    for driver, name, rank, start in places:
        for kind, group in zip(pool.kinds, pool.groups, strict=True):
            for number in group[:SHOWN]:
                yield FirstDevice((last, driver, name), rank, start + number), kind.index


@dataclass(slots=True, eq=False)
class _RequestKinds:
    """The kinds that a request may take, none of which is taken in shares."""

    request: Request
    kinds: frozenset[int]
    _free: dict[int, int] = field(default_factory=dict)
    """state of a pool -> devices that are free"""

    def free(self, node: NodeClass) -> int:
        return sum(map(self._free_of, node.states))

    def _free_of(self, state: PoolState) -> int:
        total = self._free.get(state.index)
        if total is None:
            by_kind = zip(state.kind.kinds, state.free, strict=True)
            total = self._free[state.index] = sum(free for kind, free in by_kind if kind.index in self.kinds)
        return total

    def size(self, node: NodeKind) -> int:
        """Devices, in use or not."""
        pairs = ((kind, size) for pool in node.pools for kind, size in zip(pool.kinds, pool.sizes, strict=True))
        return sum(size for kind, size in pairs if kind.index in self.kinds)


@dataclass(slots=True, eq=False)
class ClusterCounts:
    """Counts for one shape of claim, for one layout of the cluster."""

    stats: FleetStats
    firsts: FirstDevices
    query: ResourceClaimQuery
    layout: int
    """of the cluster"""
    named: NamedDevices
    _request_kinds: Mapping[str, _RequestKinds] = field(init=False)
    _steps: dict[str, tuple[Step, ...]] = field(default_factory=dict)
    """request -> the steps of its funnel"""

    def __post_init__(self) -> None:
        demand: Demand = self.query.shape_facts.demand
        there = {kind for kind, size in self.stats.sizes().items() if size}
        self._request_kinds = {
            s.label: _RequestKinds(s, frozenset(there.intersection(s.candidates.accepted))) for s in demand.requests
        }

    @property
    def errors(self) -> Sequence[str]:
        """The devices that could not be judged. Raises AllocationError."""
        return self.query.rules.warnings(self.query, self.layout)

    @property
    def is_exact(self) -> bool:
        """Whether counting kinds tells all: no device is shared, and requests for all devices can have them."""
        kinds, sizes = self.stats.index.kinds.kinds, self.stats.sizes()
        for label, request_kinds in self._request_kinds.items():
            if label in self.named.labels:
                continue  # its devices are looked at one by one
            verdict = request_kinds.request.spec.verdict
            if any(kinds[kind].one.shareable for kind in request_kinds.kinds):
                return False
            if any(sizes.get(kind) for kind in verdict.blocked) or any(sizes.get(int(kind)) for kind in verdict.broken):
                return False
        return True

    def matching(self, label: str) -> int:
        sizes = self.stats.sizes()
        return sum(sizes[kind] for kind in self._request_kinds[label].kinds)

    def most(self, label: str, pin: str | None, *, is_empty: bool) -> int:
        """The most devices of one node, or of the one it is bound to."""
        request_kinds = self._request_kinds[label]
        nodes = [node for node, _ in self.stats.classes()] if pin is None else [*self._class_of(pin)]
        if is_empty:
            return max(map(request_kinds.size, {node.kind for node in nodes}), default=0)
        return max(map(request_kinds.free, nodes), default=0)

    def having(self, label: str, name: str) -> int:
        """Devices that have a value of an attribute."""
        kinds, sizes = self.stats.index.kinds.kinds, self.stats.sizes()
        return sum(sizes[kind] for kind in self._request_kinds[label].kinds if kinds[kind].one.values(name))

    def _class_of(self, node: str) -> Iterator[NodeClass]:
        """None for a node without devices."""
        record = self.stats.index.records.get(node)
        if record is not None and record.member_of is not None:
            yield record.member_of

    # -- the funnel ----------------------------------------------------------------------------------------------------

    def funnel(self, request: Request, part: Funnel | None) -> Funnel:
        """The funnel of a request. ``part``: that of the nodes that have all its devices, if these are known."""
        label = request.label
        if label not in self._steps:
            self._steps[label] = (*self._steps_of(self._request_kinds[label].request),)
        total = sum(self.stats.sizes().values()) + len(self.query.rules.shared_devices.offers)
        if part is not None:
            return replace(part, total=total, steps=self._steps[label])
        matching, kinds = self.matching(label), self._request_kinds[label].kinds
        used, excluded = (0, 0) if request.mode.is_admin else (self.stats.used(kinds), self.stats.excluded(kinds))
        first, users = self.stats.holders_of(kinds, SHOWN) if used else ([], 0)
        holders = (*first, *((("", ""), 0),) * (users - len(first)))
        free = matching - used - excluded
        return Funnel(request, total, self._steps[label], matching, holders, used, excluded, free)

    def _steps_of(self, request: Request) -> Iterator[Step]:
        """In the order of the first device of each."""
        firsts: dict[str, list[FirstDevice]] = defaultdict(list)
        counts: Counter[str] = Counter()
        for what, some, count in self._rejected(request):
            firsts[what] += some
            counts[what] += count
        rules = self.query.rules
        numbers = {offer.index: number for number, offer in enumerate(rules.shared_devices.offers)}
        for what, rejected in rules.judge_shared_devices(self.query.claim, request.spec.subrequest).rejected.items():
            there = ((numbers[index], rules.shared_devices.offers[numbers[index]]) for index, _ in rejected[:SHOWN])
            firsts[what] += [first_of_shared(number, offer) for number, offer in there]
            counts[what] += len(rejected)
        ordered = sorted((nsmallest(SHOWN, some), what, counts[what]) for what, some in firsts.items())
        for first, what, count in ordered:
            names = tuple(self.firsts.offer(one).title for one in first)
            yield what, count, names, self._why(request, what, first[0]) or None

    def _rejected(self, request: Request) -> Iterator[tuple[str, Sequence[FirstDevice], int]]:
        """(step, first devices, how many): some that it rejects, which are of the index."""
        sizes = self.stats.sizes()
        if request.label not in self.named.labels:
            for what, rejected in request.spec.verdict.rejected.items():
                kinds = [kind for kind, _ in rejected if sizes.get(kind)]
                if kinds:
                    yield what, self.firsts.of(kinds), sum(sizes[kind] for kind in kinds)
            return
        ranks, near = self.named.ranks, self.named.sizes()
        left = {kind: size - near.get(kind, 0) for kind, size in sizes.items()}
        samples = [(self.firsts.elsewhere(kind, ranks), count) for kind, count in left.items() if count]
        samples += [((first,), 1) for record in self.named.records for first in devices_of(record)]
        offers = [replace(self.firsts.offer(first[0]), index=number) for number, (first, _) in enumerate(samples)]
        verdict = self.query.rules.judge(offers).choose(self.query.claim, request.spec.subrequest).verdict
        for what, rejected in verdict.rejected.items():
            for number, _ in rejected:
                yield what, *samples[number]

    def _why(self, request: Request, what: str, first: FirstDevice) -> str:
        """What there is to say of a device, in its own words."""
        offer = replace(self.firsts.offer(first), index=0)
        verdict = self.query.rules.judge([offer]).choose(self.query.claim, request.spec.subrequest).verdict
        ((_, why),) = verdict.rejected[what]
        return why

    # -- claims in the way ---------------------------------------------------------------------------------------------

    def selection(self, unit: PlacementUnit, part: ClusterSubset) -> NodeSelection | None:
        """Selects nodes for what a unit on a part may take of the whole cluster; None if it takes any in shares."""
        (demand,) = unit.demands
        if any(request.portions for request in demand.requests):
            return None
        details = tuple(tuple(_on_kinds(request, part.kinds) for request in detail) for detail in demand.details)
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
        return self.counts.funnel(request, FunnelCounter.make(self, request) if self._is_named(request) else None)

    def most(self, request: Request, pin: str | None, *, is_empty: bool) -> int:
        if self._is_named(request):
            return FunnelCounter.most(self, request, pin, is_empty=is_empty)
        return self.counts.most(request.label, pin, is_empty=is_empty or request.mode.is_admin)

    def having(self, request: Request, name: str) -> tuple[int, int]:
        if self._is_named(request):
            return FunnelCounter.having(self, request, name)
        return self.counts.having(request.label, name), self.counts.matching(request.label)

    def _is_named(self, request: Request) -> bool:
        """Whether all of its devices are in the part."""
        return request.label in self.counts.named.labels
