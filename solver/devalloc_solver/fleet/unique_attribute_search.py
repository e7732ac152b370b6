"""Search for claims that read attributes unique to a device (uuid, address, firmware): nodes are judged one by one.

The index of values and the kinds of nodes give a bound for each node. Nodes are judged in the order of their bounds,
until the best one is certain. The result for a node is cached until the node changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace

from devalloc.api.node_rules import NodeRestriction
from devalloc_solver.bounds.least_load import least_of
from devalloc_solver.fleet.node_class_plan import ChosenDevice, ClaimQuery, place_exactly
from devalloc_solver.fleet.node_index import NodeIndex
from devalloc_solver.fleet.pool_states import NodeClass, NodeKind, NodeRecord, PoolKind
from devalloc_solver.problem.demand import AllocationMode, Demand, PlacementUnit, Request
from devalloc_solver.problem.placement_score import PlacementScore, alternatives_of
from devalloc_solver.problem.snapshot import Snapshot

MAX_VALUES = 1_000
"""Values of an attribute that an expression is tried on before any node is looked at; identifiers have more."""

NodeBounds = Mapping[str | None, int]
"""node (None: the network) -> at most so many devices there can be had"""
_UNKNOWN = -1
SPARE_ENTRIES = 1_000
"""Entries kept beside a few for each node."""


@dataclass(frozen=True, slots=True)
class BestOnNode:
    """The best on one node as it is."""

    score: PlacementScore
    devices: tuple[ChosenDevice, ...]
    local: bool

    def given(self, record: NodeRecord, network: NodeRecord | None) -> list[ChosenDevice]:
        return list(self.devices)


@dataclass(frozen=True, slots=True)
class _RequestNodes:
    """What a request can have of nodes, as far as that is known before they are looked at."""

    least: int
    """devices"""
    nodes: NodeBounds | None
    """the only ones that count; None for all"""
    drivers: frozenset[str] | None
    shared: bool
    """whether devices in use may do"""

    def reaches(self, pool: PoolKind) -> bool:
        """Whether the pool is of a driver that may do; one without devices is of none."""
        return self.drivers is None or (pool.kinds[0].driver if pool.kinds else None) in self.drivers


@dataclass(slots=True, eq=False)
class UniqueAttributeSearch:
    """One shape of that sort."""

    index: NodeIndex
    query: ClaimQuery
    unit: PlacementUnit
    """of the sample; only what does not depend on devices counts"""
    demand: Demand = field(init=False)
    seen: int = _UNKNOWN
    """how much has been read of what nodes have changed"""
    edition: tuple[int, int] = (_UNKNOWN, _UNKNOWN)
    """of the values of nodes, and of the network, when all nodes were looked at"""
    heap: list[tuple[PlacementScore, int]] = field(default_factory=list)
    """(score or the best it can be, rank of a node)"""
    queued: dict[int, PlacementScore] = field(default_factory=dict)
    """rank of a node -> the one entry in the heap that counts"""
    _best_on: dict[str | None, tuple[int, int, BestOnNode | None]] = field(default_factory=dict)
    """node -> its version and that of the network, and the best there"""
    _sides: list[list[_RequestNodes]] = field(default_factory=list)
    """of each request what is known before any node is looked at"""
    _able: dict[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    """class of nodes -> for each detail the alternatives for which there are enough devices"""
    _bounds: dict[tuple[int, tuple[int, ...]], PlacementScore] = field(default_factory=dict)
    """(class of nodes, alternatives) -> the best score there may be"""
    _least: dict[tuple[int, tuple[int, ...]], int] = field(default_factory=dict)
    """(kind of node, alternatives) -> how much of it comes into use at least"""

    def __post_init__(self) -> None:
        (self.demand,) = self.unit.demands

    @property
    def network(self) -> NodeRecord | None:
        """The network, if the claim may take devices of it."""
        return self.index.network if self.query.takes_network else None

    @property
    def _network_version(self) -> int:
        return self.index.network_version if self.query.takes_network else 0

    def best(self, restrictions: Sequence[NodeRestriction] = ()) -> tuple[NodeRecord, BestOnNode] | None:
        """The first node in natural order among those with the best score, and what to take there."""
        self._catch_up()
        index, heap, queued = self.index, self.heap, self.queued
        if restrictions:
            ranks = (record.rank for record in index.allowed(restrictions))
            heap = [(queued[rank], rank) for rank in ranks if rank in queued]
            heapify(heap)
        while heap:
            bound, rank = heap[0]
            record = index.by_rank.get(rank)
            if record is None or queued.get(rank) != bound:
                heappop(heap)
                continue
            best_there = self.on(record)
            if best_there is None:
                heappop(heap)
                del queued[rank]
            elif best_there.score != bound:
                queued[rank] = best_there.score
                heapreplace(heap, (best_there.score, rank))
                if heap is not self.heap:
                    heappush(self.heap, (best_there.score, rank))
            else:
                return record, best_there
        return None

    def on(self, record: NodeRecord) -> BestOnNode | None:
        """What to take on one node."""
        cached = self._best_on.get(record.name)
        if cached is None or cached[:2] != (record.version, self._network_version):
            cached = record.version, self._network_version, self._solve(record)
            self._best_on[record.name] = cached
        return cached[2]

    # -- the best that a node might have -------------------------------------------------------------------------------

    def _catch_up(self) -> None:
        index = self.index
        edition = index.kinds.edition, self._network_version
        if edition != self.edition or self.seen < index.touched.start:
            self._look()
        else:
            for name in dict.fromkeys(index.touched.since(self.seen)):
                if name in index.records:
                    self._enter(index.records[name])
            if len(self.heap) > 4 * len(self.queued) + SPARE_ENTRIES:
                self._sort()
        self.edition, self.seen = edition, index.touched.end

    def _look(self) -> None:
        """At all nodes that may have what is asked."""
        index = self.index
        self._sides = [[self._side(request) for request in detail] for detail in self.demand.details]
        self._able.clear()
        self._bounds.clear()
        self.queued.clear()
        if len(self._best_on) > 2 * len(index.records) + SPARE_ENTRIES:
            self._best_on.clear()
        for record in self._candidates():
            bound = self._bound(record)
            if bound is not None:
                self.queued[record.rank] = bound
        self._sort()

    def _sort(self) -> None:
        self.heap = [(bound, rank) for rank, bound in self.queued.items()]
        heapify(self.heap)

    def _enter(self, record: NodeRecord) -> None:
        bound = self._bound(record)
        if bound is None:
            self.queued.pop(record.rank, None)
        elif self.queued.get(record.rank) != bound:
            self.queued[record.rank] = bound
            heappush(self.heap, (bound, record.rank))

    def _candidates(self) -> Iterable[NodeRecord]:
        """The nodes of the detail that has the fewest."""
        records = self.index.records
        fewest: set[str | None] | None = None
        for detail in self._sides:
            named: set[str | None] = set()
            for side in detail:
                if side.nodes is None or (None in side.nodes and self.network is not None):
                    break  # the network's devices are reached from every node
                named.update(side.nodes)
            else:
                fewest = named if fewest is None or len(named) < len(fewest) else fewest
        return records.values() if fewest is None else [records[name] for name in fewest if name in records]

    def _bound(self, record: NodeRecord) -> PlacementScore | None:
        """The best score there may be on a node; None where the claim cannot fit."""
        node = record.member_of
        assert node is not None
        if node.index not in self._able:
            if len(self._able) > 4 * len(self.index.records) + SPARE_ENTRIES:
                self._able.clear()
                self._bounds.clear()
            self._able[node.index] = tuple(
                tuple([number for number, side in enumerate(detail) if self._has_devices(side, node)])
                for detail in self._sides
            )
        alternatives = []
        for detail, able in zip(self._sides, self._able[node.index], strict=True):
            for number in able:
                nodes = detail[number].nodes
                if nodes is None or nodes.get(record.name, 0) + nodes.get(None, 0) >= detail[number].least:
                    alternatives.append(number)
                    break
            else:
                return None
        key = node.index, tuple(alternatives)
        if key not in self._bounds:
            self._bounds[key] = self._find_bound(node, key[1])
        return self._bounds[key]

    def _find_bound(self, node: NodeClass, alternatives: tuple[int, ...]) -> PlacementScore:
        requests = [detail[number] for detail, number in zip(self.demand.details, alternatives, strict=True)]
        counted = [request.min_count for request in requests if request.mode is AllocationMode.WHOLE]
        shareable = any(request.portions for request in self.demand.requests) or self.index.kinds.shareable
        devices = max(1, max(counted, default=0) if shareable else sum(counted))
        sides = [detail[number] for detail, number in zip(self._sides, alternatives, strict=True)]
        pools = self._find_fewest(node.kind, sides)
        shares = sum(request.mode is AllocationMode.SHARE for request in requests)
        score = PlacementScore(alternatives_of(requests), pools, devices, shares)
        if self.network is not None:
            return score
        policy = self.index.policy
        if policy.weighs_loads:
            return score._replace(node_cost=policy.cost(node, self._least_load(node.kind, alternatives)))
        used = sum(state.in_use and any(side.reaches(state.kind) for side in sides) for state in node.states)
        loss = 0 if shareable else max((self._find_loss(node, side) for side in sides), default=0)
        more = max(0, pools - used) if policy.prefers_used else 0
        return score._replace(node_cost=policy.cost(node, 0), pool_cost=more, partition_loss=loss)

    def _least_load(self, kind: NodeKind, alternatives: tuple[int, ...]) -> int:
        """How much of a node comes into use at least, told from one device of each kind that may do."""
        key = kind.index, alternatives
        if key not in self._least:
            self._least[key] = 0
            for detail, sides, number in zip(self.demand.details, self._sides, alternatives, strict=True):
                pools = [pool for pool in kind.pools if sides[number].reaches(pool)]
                # The numbers of candidates, by which portions go, are of another snapshot.
                devices = ((-1, each.one, pool.scale) for pool in pools for each in pool.kinds)
                self._least[key] += least_of(detail[number], devices) or 0
        return self._least[key]

    def _find_loss(self, node: NodeClass, side: _RequestNodes) -> int:
        """What it takes off the largest partitions at least, told from one device of each kind that may do."""
        least: int | None = None
        for state in node.states:
            if not side.shared and side.reaches(state.kind):
                loss = state.least_partition_loss
                if loss is not None and (least is None or loss < least):
                    least = loss
        return least or 0

    def _has_devices(self, side: _RequestNodes, node: NodeClass) -> bool:
        """Whether enough devices of its drivers are there, and free where that matters."""
        if self.network is not None:
            return True
        left = side.least
        for state in node.states:
            if side.reaches(state.kind):
                left -= sum(state.kind.sizes if side.shared else state.free)
                if left <= 0:
                    return True
        return False

    def _find_fewest(self, kind: NodeKind, sides: Sequence[_RequestNodes]) -> int:
        if self.network is not None:
            return 1
        needs = []
        for side in sides:
            sizes = [len(pool.group_of) for pool in kind.pools if side.reaches(pool)]
            needs.append(-(-side.least // max(sizes)))
        drivers = [driver for side in sides for driver in (side.drivers or ("",) * 2)]
        if len(drivers) == len({*drivers}):
            return sum(needs)
        fewest = max(needs, default=1)
        return fewest if any(side.shared for side in sides) else max(fewest, self._fewest_for_all(kind, sides))

    def _fewest_for_all(self, kind: NodeKind, sides: Sequence[_RequestNodes]) -> int:
        """How many pools have as many devices as all requests want, each its own, if the largest ones do."""
        reached = (pool for pool in kind.pools if any(side.reaches(pool) for side in sides))
        left = sum(side.least for side in sides)
        for number, size in enumerate(sorted((len(pool.group_of) for pool in reached), reverse=True), 1):
            left -= size
            if left <= 0:
                return number
        return 1

    # -- requests ------------------------------------------------------------------------------------------------------

    def _side(self, request: Request) -> _RequestNodes:
        kinds, eligible = self.index.kinds, request.eligible
        least = request.fewest
        node_counts: list[NodeBounds | None] = [kinds.find(name, values) for name, values in eligible.literals()]
        for name in sorted((eligible.reads or frozenset()) & kinds.varied):
            met = kinds.values(name)
            if len(met) > MAX_VALUES:
                continue
            passing = eligible.passing(name, [value for value in met if not isinstance(value, type)], kinds)
            if passing is not None and kinds.count(name, passing) <= len(self.index.records):
                node_counts.append(kinds.find(name, passing))
        if least > 1 and self.network is None:
            node_counts += [kinds.repeats(name) for name in dict.fromkeys((*self.demand.match, *request.match))]
        nodes: NodeBounds | None = None
        for each in node_counts:
            if each is not None:
                nodes = each if nodes is None else {n: min(each[n], nodes[n]) for n in each.keys() & nodes.keys()}
        shared = not request.takes_whole or kinds.shareable
        return _RequestNodes(least, nodes, eligible.drivers(kinds), shared)

    # -- on one node, exactly ------------------------------------------------------------------------------------------

    def _solve(self, record: NodeRecord) -> BestOnNode | None:
        index = self.index
        best = place_exactly(record, self.network, self._unit_on, index.policy, index.search_deadline)
        if best is None:
            return None
        score, taken = best
        given = [
            ChosenDevice(
                entry.request,
                owner.snapshot.pools[device.pool],
                device,
                entry.request.candidates.accepted[entry.device.index],
                entry.amounts,
            )
            for owner, device, entry in taken
        ]
        return BestOnNode(score, tuple(given), local=any(owner is not self.network for owner, _, _ in taken))

    def _unit_on(self, snapshot: Snapshot) -> PlacementUnit | None:
        unit = self.query.unit_on(snapshot)
        details = unit.demands[0].details
        return unit if all(any(request.candidates.accepted for request in detail) for detail in details) else None
