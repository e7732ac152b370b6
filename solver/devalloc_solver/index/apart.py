"""Claims that read what tells devices of one kind apart (by uuid, by address, by firmware): judged node by node.

Nodes are looked at in the order of the best that they might have, as the index of values and the kinds of nodes say,
and no more of them than it takes to know the best one. What is known of a node stays until the node changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING

from devalloc_solver.demand import Demand, Mode, Slot, Unit
from devalloc_solver.index.exact import place
from devalloc_solver.index.kinds import joined
from devalloc_solver.index.losses import Losses
from devalloc_solver.index.recipe import Score, score_of
from devalloc_solver.index.seams import Ask, Given
from devalloc_solver.index.states import NodeClass, NodeKind, NodeRecord, PoolKind
from devalloc_solver.loads import added

if TYPE_CHECKING:
    from devalloc_solver.index.nodes import NodeIndex

MOST_VALUES = 1_000
"""Values of an attribute that an expression is tried on before any node is looked at; identifiers have more."""

Nodes = Mapping[str | None, int]
"""node (None: the network) -> at most so many devices there can be had"""
_UNKNOWN = -1
SPARE = 1_000
"""Entries kept beside a few for each node."""


@dataclass(frozen=True, slots=True)
class Found:
    """The best on one node as it is."""

    score: Score
    devices: tuple[Given, ...]
    local: bool

    def given(self, record: NodeRecord, network: NodeRecord | None) -> list[Given]:
        return list(self.devices)


@dataclass(frozen=True, slots=True)
class _Side:
    """What a slot can have of nodes, as far as that is known before they are looked at."""

    least: int
    """devices"""
    nodes: Nodes | None
    """the only ones that count; None for all"""
    drivers: frozenset[str] | None
    shared: bool
    """whether devices in use may do"""

    def reaches(self, pool: PoolKind) -> bool:
        """Whether the pool is of a driver that may do; one without devices is of none."""
        return self.drivers is None or (pool.kinds[0].driver if pool.kinds else None) in self.drivers


@dataclass(slots=True, eq=False)
class Apart:
    """One shape of that sort."""

    index: NodeIndex
    ask: Ask
    unit: Unit
    """of the sample; only what does not depend on devices counts"""
    demand: Demand = field(init=False)
    seen: int = _UNKNOWN
    """how much has been read of what nodes have changed"""
    edition: tuple[int, int] = (_UNKNOWN, _UNKNOWN)
    """of the values of nodes, and of the network, when all nodes were looked at"""
    heap: list[tuple[Score, int]] = field(default_factory=list)
    """(score or the best it can be, rank of a node)"""
    queued: dict[int, Score] = field(default_factory=dict)
    """rank of a node -> the one entry in the heap that counts"""
    _known: dict[str | None, tuple[int, int, Found | None]] = field(default_factory=dict)
    """node -> its version and that of the network, and the best there"""
    _sides: list[list[_Side]] = field(default_factory=list)
    """of each slot what is known before any node is looked at"""
    _able: dict[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    """class of nodes -> for each detail the alternatives for which there are enough devices"""
    _bounds: dict[tuple[int, tuple[int, ...]], Score] = field(default_factory=dict)
    """(class of nodes, alternatives) -> the best score there may be"""
    _losses: Losses = field(default_factory=Losses)

    def __post_init__(self) -> None:
        (self.demand,) = self.unit.demands

    def best(self) -> tuple[NodeRecord, Found] | None:
        """The first node in natural order among those with the best score, and what to take there."""
        self._catch_up()
        index, heap, queued = self.index, self.heap, self.queued
        while heap:
            bound, rank = heap[0]
            record = index.by_rank.get(rank)
            if record is None or queued.get(rank) != bound:
                heappop(heap)
                continue
            found = self.on(record)
            if found is None:
                heappop(heap)
                del queued[rank]
            elif found.score != bound:
                queued[rank] = found.score
                heapreplace(heap, (found.score, rank))
            else:
                return record, found
        return None

    def on(self, record: NodeRecord) -> Found | None:
        """What to take on one node."""
        known = self._known.get(record.name)
        if known is None or known[:2] != (record.version, self.index.network_version):
            known = record.version, self.index.network_version, self._solve(record)
            self._known[record.name] = known
        return known[2]

    # -- the best that a node might have ------------------------------------------------------------------------------

    def _catch_up(self) -> None:
        index = self.index
        edition = index.kinds.edition, index.network_version
        if edition != self.edition or self.seen < index.touched.start:
            self._look()
        else:
            for name in dict.fromkeys(index.touched.since(self.seen)):
                if name in index.records:
                    self._enter(index.records[name])
            if len(self.heap) > 4 * len(self.queued) + SPARE:
                self._sort()
        self.edition, self.seen = edition, index.touched.end

    def _look(self) -> None:
        """At all nodes that may have what is asked."""
        index = self.index
        self._sides = [[self._side(slot) for slot in detail] for detail in self.demand.details]
        self._able.clear()
        self._bounds.clear()
        self.queued.clear()
        if len(self._known) > 2 * len(index.records) + SPARE:
            self._known.clear()
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
                if side.nodes is None or None in side.nodes:
                    break  # the network's devices are reached from every node
                named.update(side.nodes)
            else:
                fewest = named if fewest is None or len(named) < len(fewest) else fewest
        return records.values() if fewest is None else [records[name] for name in fewest if name in records]

    def _bound(self, record: NodeRecord) -> Score | None:
        """The best score there may be on a node; None where the claim cannot fit."""
        node = record.member_of
        assert node is not None
        if node.index not in self._able:
            if len(self._able) > 4 * len(self.index.records) + SPARE:
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

    def _find_bound(self, node: NodeClass, alternatives: tuple[int, ...]) -> Score:
        slots = [detail[number] for detail, number in zip(self.demand.details, alternatives, strict=True)]
        counted = [slot.least for slot in slots if slot.mode is Mode.WHOLE]
        shareable = any(slot.portions for slot in self.demand.slots) or self.index.kinds.shareable
        devices = max(1, max(counted, default=0) if shareable else sum(counted))
        entries = sum(_counted(slot) for slot in slots)
        sides = [detail[number] for detail, number in zip(self._sides, alternatives, strict=True)]
        pools = self._find_fewest(node.kind, sides)
        if self.index.spread:
            new = 0 if shareable or self.index.network is not None else sum(counted)
            return alternatives, pools, devices, entries, added(node.load, new), new, 0
        if self.index.network is not None:
            return alternatives, pools, devices, entries, 0, 0, 0
        used = sum(state.in_use and any(side.reaches(state.kind) for side in sides) for state in node.states)
        loss = 0 if shareable else max((self._find_loss(node, side) for side in sides), default=0)
        return alternatives, pools, devices, entries, 0 if node.in_use else 1, max(0, pools - used), loss

    def _find_loss(self, node: NodeClass, side: _Side) -> int:
        """What it takes off the largest partitions at least, told from one device of each kind that may do."""
        least: int | None = None
        for state in node.states:
            if not side.shared and side.reaches(state.kind):
                loss = self._losses.least(state)
                if loss is not None and (least is None or loss < least):
                    least = loss
        return least or 0

    def _has_devices(self, side: _Side, node: NodeClass) -> bool:
        """Whether enough devices of its drivers are there, and free where that matters."""
        if self.index.network is not None:
            return True
        left = side.least
        for state in node.states:
            if side.reaches(state.kind):
                left -= sum(state.kind.sizes if side.shared else state.free)
                if left <= 0:
                    return True
        return False

    def _find_fewest(self, kind: NodeKind, sides: Sequence[_Side]) -> int:
        if self.index.network is not None:
            return 1
        needs = []
        for side in sides:
            sizes = [len(pool.group_of) for pool in kind.pools if side.reaches(pool)]
            needs.append(-(-side.least // max(sizes)))
        drivers = [driver for side in sides for driver in (side.drivers or ("",) * 2)]
        return sum(needs) if len(drivers) == len({*drivers}) else max(needs, default=1)

    # -- slots -------------------------------------------------------------------------------------------------------

    def _side(self, slot: Slot) -> _Side:
        kinds = self.index.kinds
        least = _counted(slot)
        found: list[Nodes | None] = [kinds.find(name, values) for name, values in self.ask.literals(slot)]
        for name in sorted((self.ask.reads(slot) or frozenset()) & kinds.varied):
            met = kinds.values(name)
            if len(met) > MOST_VALUES:
                continue
            passing = self.ask.passing(slot, name, [value for value in met if not isinstance(value, type)])
            if passing is not None and kinds.count(name, passing) <= len(self.index.records):
                found.append(kinds.find(name, passing))
        if least > 1 and self.index.network is None:
            found += [kinds.repeats(name) for name in dict.fromkeys((*self.demand.match, *slot.match))]
        nodes: Nodes | None = None
        for each in found:
            if each is not None:
                nodes = each if nodes is None else {n: min(each[n], nodes[n]) for n in each.keys() & nodes.keys()}
        shared = slot.mode is not Mode.WHOLE or bool(slot.portions) or kinds.shareable
        return _Side(least, nodes, self.ask.drivers(slot), shared)

    # -- on one node, exactly ------------------------------------------------------------------------------------------

    def _solve(self, record: NodeRecord) -> Found | None:
        index, network = self.index, self.index.network
        offset = len(network.snapshot.devices) if network is not None else 0
        if network is None:
            snapshot, ledger = record.snapshot, record.ledger()
        else:
            snapshot = joined(record.snapshot, network.snapshot, record.name)
            ledger = record.ledger(snapshot, offset)
            network.fill(ledger, 0)
        unit = self.ask.unit_on(snapshot)
        (demand,) = unit.demands
        if not all(any(slot.candidates.accepted for slot in detail) for detail in demand.details):
            return None
        placements, loss = place(snapshot, ledger, unit, record.name, index.placement, index.allowance.until)
        if not placements:
            return None
        given, used, chosen = [], [], {}
        for entry in placements[0].entries:
            own = entry.device.index >= offset
            owner = record if own or network is None else network
            device = owner.snapshot.devices[entry.device.index - (offset if own else 0)]
            accepted = entry.slot.candidates.accepted[entry.device.index]
            given.append(Given(entry.slot, owner.snapshot.pools[device.pool], device, accepted, entry.amounts))
            used.append((owner, device.pool, device.index, entry.slot))
            chosen[entry.slot.detail] = entry.slot.alternative or 0
        alternatives = tuple(chosen.get(position, 0) for position in range(len(demand.details)))
        score = score_of(alternatives, used, len(given), loss, spread=index.spread)
        return Found(score, tuple(given), local=any(owner is not network for owner, _, _, _ in used))


def _counted(slot: Slot) -> int:
    return slot.least if slot.mode in (Mode.WHOLE, Mode.ADMIN_COUNT) else 1
