"""The smallest set of claims whose release makes room."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations

from devalloc_solver.bounds.node_counts import CountByNode, Node, NodeCounts
from devalloc_solver.explain.feasibility import FeasibilityChecker, FeasibilityQuestion
from devalloc_solver.problem.allocations import Allocation, Key, Usage
from devalloc_solver.problem.demand import AllocationMode, Candidates, Demand, Request
from devalloc_solver.problem.snapshot import Snapshot

MAX_TRIES = 60
"""Questions that one search may ask, so that it ends soon, and the same way every time."""

MAX_SINGLES = 400
"""Questions about the release of one claim, which come before those about several."""
SINGLE_STEPS = 100_000
"""Steps of ``place`` that all of them may take together: some tenths of a second."""
MAX_HOLDERS = 20_000
"""Holders, summed over nodes, that are considered for it; those of devices of the network count on each node."""

IMPOSSIBLE = 1 << 30
"""More claims than there can be: their release would not do."""


@dataclass(frozen=True, slots=True)
class BlockingClaims:
    """Claims whose release makes room."""

    claims: tuple[Key, ...]
    """none of them can be left out; empty when none were found"""
    smallest: bool
    """no smaller set does, for certain"""


@dataclass(slots=True)
class BlockingClaimFinder:
    """Finds who is in the way of units on one fleet."""

    snapshot: Snapshot
    held: tuple[Allocation, ...]
    new: frozenset[Key]
    """claims given their devices in this batch: of equal sets, the one with most of them is reported"""
    _by_node: dict[Node, list[Allocation]] = field(init=False)
    """what is held on each node; None: of the network"""
    _near: dict[Node, Sequence[Allocation]] = field(default_factory=dict, init=False)
    _with_new: set[Node] = field(init=False)
    """nodes where a new claim holds anything"""
    _freed: dict[int, _FreedDevices] = field(default_factory=dict, init=False)
    """id of candidates -> what comes free of them: requests of many units have the same ones"""
    _pools: dict[int, tuple[Candidates, frozenset[int]]] = field(default_factory=dict, init=False)
    """id of candidates -> these, and their pools"""

    def __post_init__(self) -> None:
        self._by_node = defaultdict(list)
        self._with_new = set()
        for allocation in self.held:
            for node in {self.snapshot.pools[self.snapshot.devices[i.device].pool].node for i in allocation.items}:
                self._by_node[node].append(allocation)
                if allocation.claim in self.new:
                    self._with_new.add(node)

    def find(self, question: FeasibilityQuestion, finder: FeasibilityChecker) -> BlockingClaims:
        """Who must go so that the unit fits. It does not fit beside them. Raises Undecided.

        ``question.held`` does not count: all that is held here does.
        """
        bounds = self._bounds(question, finder)
        new = {node: not self._with_new.isdisjoint((node, None)) for node in bounds}
        nodes = sorted(bounds, key=lambda n: (bounds[n], not new[n]))
        best: tuple[tuple[int, int], tuple[Key, ...]] = ((IMPOSSIBLE, 0), ())
        single, proven = self._single(question, finder, [node for node in nodes if bounds[node] <= 1])
        if single is not None:
            return BlockingClaims((single,), smallest=True)
        smallest_set = 2 if proven and not finder.is_cut_short else 1
        finder.refill()
        last = finder.searched + MAX_TRIES
        for node in nodes:
            if (bounds[node], not new[node]) >= best[0]:
                continue
            for chosen in self._sets(node, max(smallest_set, bounds[node])):
                cost = (len(chosen), sum(allocation.claim not in self.new for allocation in chosen))
                if cost >= best[0]:
                    break
                if finder.searched >= last:
                    proven = False
                    break
                if self._fits(question, finder, node, chosen):
                    best = cost, tuple(allocation.claim for allocation in chosen)
                    break
            if not proven:
                break
        if not best[1]:
            claims = self._thinned_out(question, finder, nodes)
            return BlockingClaims(tuple(sorted(claims)), proven and not claims)
        smallest = (not finder.is_cut_short and proven) or all(bounds[node] >= best[0][0] for node in nodes)
        return BlockingClaims(tuple(sorted(best[1])), smallest)

    def _single(
        self, question: FeasibilityQuestion, finder: FeasibilityChecker, nodes: Sequence[Node]
    ) -> tuple[Key | None, bool]:
        """A claim whose release alone does, one of this batch if there is one; and whether every claim was tried."""
        devices = self.snapshot.devices
        requests = [request for demand in question.unit.demands for request in demand.requests]
        pools = frozenset[int]().union(*(self._pools_of(request.candidates) for request in requests))

        def is_useful(allocation: Allocation) -> bool:
            return any(devices[item.device].pool in pools for item in allocation.items)

        needs = _WholeNeeds.of(question, finder.counting, self.held, self._freed_of)
        finder.refill(SINGLE_STEPS)
        last = finder.searched + MAX_SINGLES
        considered = 0
        for is_new in (True, False):
            for node in nodes:
                considered += len(self._around(node))
                if considered > MAX_HOLDERS or (finder.ends is not None and time.monotonic() > finder.ends):
                    return None, False
                for allocation in self._holders(node):
                    if (allocation.claim in self.new) != is_new or not is_useful(allocation):
                        continue
                    if not needs.may_be_met(node, allocation):
                        continue
                    if finder.searched >= last or not finder.has_steps:
                        return None, False
                    if self._fits(question, finder, node, (allocation,)):
                        return allocation.claim, True
        return None, True

    def _thinned_out(
        self, question: FeasibilityQuestion, finder: FeasibilityChecker, nodes: Sequence[Node]
    ) -> tuple[Key, ...]:
        """On the first node where it helps, all claims but those that can stay."""
        for node in nodes[:MAX_TRIES]:
            leaving = self._holders(node)
            if not self._fits(question, finder, node, leaving):
                continue
            for allocation in sorted(leaving, key=lambda h: (h.claim in self.new, h.claim)):
                rest = [other for other in leaving if other is not allocation]
                if self._fits(question, finder, node, rest):
                    leaving = rest
            return tuple(allocation.claim for allocation in leaving)
        return ()

    def _fits(
        self, question: FeasibilityQuestion, finder: FeasibilityChecker, node: Node, gone: Sequence[Allocation]
    ) -> bool:
        leaving = {allocation.claim for allocation in gone}
        held = tuple(h for h in self._around(node) if h.claim not in leaving)
        without_gone = replace(question, held=held)
        return finder.works(without_gone if node is None else without_gone.pinned(node))

    def _around(self, node: Node) -> Sequence[Allocation]:
        """Who holds anything that matters on a node, each once."""
        if node not in self._near:
            own, network = self._by_node.get(node, []), self._by_node.get(None, []) if node is not None else []
            self._near[node] = (
                [*{id(allocation): allocation for allocation in (*own, *network)}.values()] if network else own
            )
        return self._near[node]

    def _holders(self, node: Node) -> list[Allocation]:
        """The same in the order in which their release is thought of."""
        return sorted(self._around(node), key=lambda h: (h.claim not in self.new, h.claim))

    def _sets(self, node: Node, least: int) -> Iterator[tuple[Allocation, ...]]:
        """Sets of claims on a node, smaller ones first, then those with more of this batch."""
        holders = self._holders(node)
        new = [allocation for allocation in holders if allocation.claim in self.new]
        old = [allocation for allocation in holders if allocation.claim not in self.new]
        for size in range(max(1, least), len(holders) + 1):
            for count in range(size + 1):
                for some in combinations(old, count):
                    for others in combinations(new, size - count):
                        yield (*others, *some)

    # -- the bound -----------------------------------------------------------------------------------------------------

    def _bounds(self, question: FeasibilityQuestion, finder: FeasibilityChecker) -> dict[Node, int]:
        """How many claims must go from a node at the very least, as counting tells of each detail on its own.

        Nodes that would not do even with everything released are left out; the others are in natural order.
        """
        counting = finder.counting
        bounds = dict.fromkeys(counting.nodes(question.unit, ()), 1)
        for demand in question.unit.demands:
            for detail in demand.details:
                requests = [self._bounds_of(demand, request, counting, bounds) for request in detail]
                for node in bounds:
                    bounds[node] = max(bounds[node], min(by_node.get(node, 0) for by_node in requests))
        return {node: least for node, least in bounds.items() if least < IMPOSSIBLE}

    def _bounds_of(
        self, demand: Demand, request: Request, counting: NodeCounts, nodes: Iterable[Node]
    ) -> dict[Node, int]:
        """The same for one request. Nodes that are not mentioned need no release."""
        if request.mode not in (AllocationMode.WHOLE, AllocationMode.SHARE) or request.portions:
            return {}
        bounds: dict[Node, int] = {}
        if request.mode is AllocationMode.WHOLE:
            free = counting.devices(demand, request, self.held)
            freed = self._freed_of(request.candidates)
            self._add_bounds(bounds, free, request.min_count, nodes, lambda node: freed.on(node, self._around(node)))
        for name, amount in request.requests.items():
            free = counting.amounts(demand, request, name, self.held)
            part = partial(_freed_amount, name=name, request=request, snapshot=self.snapshot)
            self._add_bounds(bounds, free, amount, nodes, partial(self._parts_on, part))
        return bounds

    def _parts_on(self, part: Callable[[Allocation], int], node: Node) -> Sequence[int]:
        return [*map(part, self._around(node))]

    def _freed_of(self, candidates: Candidates) -> _FreedDevices:
        if id(candidates) not in self._freed:
            self._freed[id(candidates)] = _FreedDevices(candidates)
        return self._freed[id(candidates)]

    def _pools_of(self, candidates: Candidates) -> frozenset[int]:
        if id(candidates) not in self._pools:
            devices = self.snapshot.devices
            pools = frozenset(devices[index].pool for index in candidates.accepted)
            self._pools[id(candidates)] = candidates, pools
        return self._pools[id(candidates)][1]

    def _add_bounds(
        self,
        bounds: dict[Node, int],
        free: CountByNode,
        wanted: int,
        nodes: Iterable[Node],
        parts: Callable[[Node], Sequence[int]],
    ) -> None:
        """``parts``: what each holder on a node would free."""
        for node in nodes:
            missing = wanted - free.get(node, free.get(None, 0))
            if missing > 0:
                few = min_parts(missing, parts(node))
                bounds[node] = max(bounds.get(node, 0), few)


@dataclass(slots=True, eq=False)
class _FreedDevices:
    """How many devices of some candidates come free with each allocation, at the most."""

    candidates: Candidates
    _by_allocation: dict[int, int] = field(default_factory=dict)
    _by_node: dict[Node, list[int]] = field(default_factory=dict)

    def by(self, allocation: Allocation) -> int:
        """``allocation``: one that is held as long as this lives."""
        freed = self._by_allocation.get(id(allocation))
        if freed is None:
            accepted = self.candidates.accepted
            freed = self._by_allocation[id(allocation)] = sum(item.device in accepted for item in allocation.items)
        return freed

    def on(self, node: Node, holders: Sequence[Allocation]) -> Sequence[int]:
        """Of the holders on a node, those that free most first."""
        if node not in self._by_node:
            self._by_node[node] = sorted(map(self.by, holders), reverse=True)
        return self._by_node[node]


@dataclass(slots=True, eq=False)
class _WholeNeeds:
    """The whole devices that a unit needs, detail by detail, and how many of them are free."""

    snapshot: Snapshot
    in_use: Usage
    details: list[list[tuple[Request, CountByNode]]]
    """each alternative with the most devices that it may have on each node"""
    wanted: frozenset[int]
    """devices that any of the details may use"""
    freed_of: Callable[[Candidates], _FreedDevices]
    _free: dict[Node, int] = field(default_factory=dict)
    _freed: dict[int, tuple[list[list[int]], int]] = field(default_factory=dict)
    """id of an allocation -> devices that come free for each alternative, and for any"""

    @classmethod
    def of(
        cls,
        question: FeasibilityQuestion,
        counting: NodeCounts,
        held: tuple[Allocation, ...],
        freed_of: Callable[[Candidates], _FreedDevices],
    ) -> _WholeNeeds:
        """Of details that need whole devices by every alternative."""
        details = [
            [(request, counting.devices(demand, request, held)) for request in detail]
            for demand in question.unit.demands
            for detail in demand.details
            if all(request.mode is AllocationMode.WHOLE and not request.portions for request in detail)
        ]
        wanted = frozenset().union(*(request.candidates.accepted for detail in details for request, _ in detail))
        return cls(counting.snapshot, counting.state(held).usage, details, wanted, freed_of)

    def may_be_met(self, node: Node, gone: Allocation) -> bool:
        """Whether there are enough devices on a node without an allocation: for each detail, and for all together."""
        by_detail, in_all = self._freed_by(gone)
        total = 0
        for detail, freed in zip(self.details, by_detail, strict=True):
            enough = [
                request.min_count
                for (request, free), more in zip(detail, freed, strict=True)
                if free.get(node, free.get(None, 0)) + more >= request.min_count
            ]
            if not enough:
                return False
            total += min(enough)
        free = self._free_on(node) + (self._free_on(None) if node is not None else 0)
        return total <= free + in_all

    def _freed_by(self, gone: Allocation) -> tuple[list[list[int]], int]:
        freed = self._freed.get(id(gone))
        if freed is None:
            by_detail = [
                [self.freed_of(request.candidates).by(gone) for request, _ in detail] for detail in self.details
            ]
            in_all = len({item.device for item in gone.items} & self.wanted)
            freed = self._freed[id(gone)] = (by_detail, in_all)
        return freed

    def _free_on(self, node: Node) -> int:
        """Free devices of a node, or of the network, that any of the details may use."""
        if node not in self._free:
            self._free[node] = sum(
                device.index in self.wanted and not self.in_use.in_use(device)
                for pool in self.snapshot.pools_by_node.get(node, ())
                for device in pool.devices
            )
        return self._free[node]


def _freed_amount(allocation: Allocation, name: str, request: Request, snapshot: Snapshot) -> int:
    """At most so much of a resource comes free for the request."""
    total = 0
    for item in allocation.items:
        resource = snapshot.devices[item.device].resources.get(name)
        if item.device in request.candidates.accepted and resource is not None:
            if item.amounts is None or request.mode is AllocationMode.WHOLE:
                total += resource.nano  # whole, once everybody who has a share of it is gone
            else:
                # Rounding down to blocks, a device may gain up to a block more than the share was.
                total += min(resource.nano, dict(item.amounts).get(name, 0) + resource.block)
    return total


def min_parts(missing: int, parts: Sequence[int]) -> int:
    """How many of the parts make up for what is missing; IMPOSSIBLE if all together do not."""
    count = 0
    for part in sorted(parts, reverse=True):
        if missing <= 0:
            return count
        missing -= part
        count += 1
    return count if missing <= 0 else IMPOSSIBLE
