"""Who must leave so that a unit fits: of the owners that may leave for it, those that cost least."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from heapq import heappop, heappush
from itertools import accumulate
from operator import add, itemgetter
from typing import NamedTuple

from devalloc_solver.bounds.node_counts import CountByNode, Node, NodeCounts
from devalloc_solver.explain.feasibility import FeasibilityChecker, FeasibilityQuestion
from devalloc_solver.problem.allocations import Holding, Key, Usage
from devalloc_solver.problem.demand import AllocationMode, Candidates, Demand, PlacementUnit, Request
from devalloc_solver.problem.snapshot import Snapshot

MAX_TRIES = 60
"""Questions that one search may ask, so that it ends soon, and the same way every time."""

MAX_SINGLES = 400
"""Questions about the release of one claim, which come before those about several."""
SINGLE_STEPS = 100_000
"""Steps of ``place`` that all of them may take together: some tenths of a second."""
MAX_HOLDERS = 20_000
"""Holders, summed over nodes, that are considered for it; those of devices of the network count on each node."""
MAX_LOOKS, MIN_LOOKS = 800_000, 20_000
"""Holders that the questions about all units of a round may look at. Each question looks at all that stay, so that many
holders of one device would cost their square. A search may take half of what is left, and always the least."""

IMPOSSIBLE = 1 << 30
"""More claims than there can be: their release would not do."""


Cost = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Leaving:
    """Owners that make room when they leave."""

    owners: tuple[Key, ...]
    """none of them can be left out; empty when none were found"""
    is_least: bool
    """no others cost less, for certain"""


@dataclass(frozen=True, slots=True)
class _Ranked:
    """Who may leave a node, those that cost least first, then by name."""

    holdings: Sequence[Holding]
    costs: Sequence[Cost]
    least: Sequence[Cost]
    """the least that 1, 2, 3, ... of them cost"""

    @classmethod
    def of(cls, holdings: Iterable[Holding]) -> _Ranked:
        listed = sorted(holdings, key=lambda holding: (_cost(holding), holding.owner))
        costs = [*map(_cost, listed)]
        return cls(listed, costs, [*accumulate(costs, _add)])


class _NodeHolders(NamedTuple):
    """Who may leave a node for a unit."""

    node: Node
    fewest: int
    """so many must leave at the least, by counting"""
    ranked: _Ranked

    @property
    def least(self) -> Cost:
        """What it costs at the least."""
        return self.ranked.least[self.fewest - 1]


@dataclass(slots=True)
class LeavingSearch:
    """Searches for those who must leave so that a unit fits, and who cost least, on one fleet."""

    snapshot: Snapshot
    held: tuple[Holding, ...]
    _by_node: dict[Node, list[Holding]] = field(init=False)
    """what is held on each node; None: of the network"""
    _near: dict[Node, Sequence[Holding]] = field(default_factory=dict, init=False)
    _ranked: dict[Node, _Ranked] = field(default_factory=dict, init=False)
    _freed: dict[int, _FreedDevices] = field(default_factory=dict, init=False)
    """id of candidates -> what comes free of them: requests of many units have the same ones"""
    _pools: dict[int, tuple[Candidates, frozenset[int]]] = field(default_factory=dict, init=False)
    """id of candidates -> these, and their pools"""
    _looks: int = field(default=0, init=False)
    """holders that questions have looked at"""
    _last_look: int = field(default=0, init=False)
    """of what is searched for now"""

    def __post_init__(self) -> None:
        self._by_node = defaultdict(list)
        for holding in self.held:
            for node in {self.snapshot.pools[self.snapshot.devices[i.device].pool].node for i in holding.items}:
                self._by_node[node].append(holding)

    def find(self, question: FeasibilityQuestion, finder: FeasibilityChecker) -> Leaving:
        """Who must leave so that the unit fits. It does not fit beside them. Raises Undecided.

        ``question.held`` does not count: all that is held here does.
        """
        nodes = self._holders(question.unit, self._bounds(question, finder))
        looks = max(MIN_LOOKS, (MAX_LOOKS - self._looks) // 2)
        self._last_look = self._looks + looks // 2
        single, proven = self._single(question, finder, nodes)
        best = None if single is None else (_cost(single), (single.owner,))
        if best is not None and proven and all(best[0] <= two for each in nodes for two in each.ranked.least[1:2]):
            return Leaving(best[1], is_least=True)
        smallest_set = 2 if proven and not finder.is_cut_short else 1
        finder.refill()
        self._last_look = self._looks + looks // 2
        return self._cheapest(question, finder, nodes, smallest=smallest_set, best=best, proven=proven)

    def find_uncounted(self, question: FeasibilityQuestion, finder: FeasibilityChecker) -> Leaving:
        """The same on the node that the unit is bound to, where counting may rule out too much."""
        self._last_look = self._looks + MIN_LOOKS
        return self._cheapest(question, finder, self._holders(question.unit, {question.unit.pin: 1}))

    def _holders(self, unit: PlacementUnit, bounds: Mapping[Node, int]) -> list[_NodeHolders]:
        """Who may leave for a unit, on each node where so many can; nodes of the least cost first."""
        holders = [_NodeHolders(node, fewest, self._who_may_leave(node, unit)) for node, fewest in bounds.items()]
        return sorted((each for each in holders if len(each.ranked.costs) >= each.fewest), key=lambda one: one.least)

    def _who_may_leave(self, node: Node, unit: PlacementUnit) -> _Ranked:
        if node not in self._ranked:
            self._ranked[node] = _Ranked.of(holding for holding in self._around(node) if holding.leave is not None)
        ranked = self._ranked[node]
        return ranked if unit.takes is None else _Ranked.of(filter(unit.may_take, ranked.holdings))

    def _cheapest(
        self,
        question: FeasibilityQuestion,
        finder: FeasibilityChecker,
        nodes: Sequence[_NodeHolders],
        *,
        smallest: int = 1,
        best: tuple[Cost, tuple[Key, ...]] | None = None,
        proven: bool = True,
    ) -> Leaving:
        """The set of the least cost.

        Args:
            smallest: smaller sets need not be asked for.
            best: what has been found, and its cost.
            proven: whether nothing has been left out so far.
        """
        last, last_look = finder.searched + MAX_TRIES, (self._looks + self._last_look) // 2
        for there in nodes:
            if best is not None and there.least >= best[0]:
                continue
            for cost, numbers in cheapest_sets(there.ranked.costs, max(smallest, there.fewest)):
                if best is not None and cost >= best[0]:
                    break
                if finder.searched >= last or self._looks > last_look:
                    proven = False
                    break
                chosen = [there.ranked.holdings[number] for number in numbers]
                if self._fits(question, finder, there.node, chosen):
                    best = cost, tuple(holding.owner for holding in chosen)
                    break
            if not proven:
                break
        if best is None:
            owners = self._thinned_out(question, finder, nodes)
            return Leaving(tuple(sorted(owners)), proven and not owners)
        is_least = (proven and not finder.is_cut_short) or all(each.least >= best[0] for each in nodes)
        return Leaving(tuple(sorted(best[1])), is_least)

    def _single(
        self, question: FeasibilityQuestion, finder: FeasibilityChecker, nodes: Sequence[_NodeHolders]
    ) -> tuple[Holding | None, bool]:
        """Whose leaving alone does, of those the one that costs least; and whether all of them were tried."""
        devices = self.snapshot.devices
        requests = [request for demand in question.unit.demands for request in demand.requests]
        pools = frozenset[int]().union(*(self._pools_of(request.candidates) for request in requests))
        singles: list[tuple[Cost, Node, Holding]] = []
        considered = 0
        for node, fewest, ranked in nodes:
            if fewest > 1:
                continue
            considered += len(self._around(node))
            if considered > MAX_HOLDERS:
                break
            singles += [
                (cost, node, holding)
                for cost, holding in zip(ranked.costs, ranked.holdings, strict=True)
                if any(devices[item.device].pool in pools for item in holding.items)
            ]
        needs = _WholeNeeds.of(question, finder.counting, self.held, self._freed_of)
        finder.refill(SINGLE_STEPS)
        last = finder.searched + MAX_SINGLES
        for _, node, holding in sorted(singles, key=itemgetter(0)):
            if finder.ends is not None and time.monotonic() > finder.ends:
                return None, False
            if not needs.may_be_met(node, holding):
                continue
            if finder.searched >= last or not finder.has_steps or self._looks > self._last_look:
                return None, False
            if self._fits(question, finder, node, [holding]):
                return holding, considered <= MAX_HOLDERS
        return None, considered <= MAX_HOLDERS

    def _thinned_out(
        self, question: FeasibilityQuestion, finder: FeasibilityChecker, nodes: Sequence[_NodeHolders]
    ) -> tuple[Key, ...]:
        """On the first node where it helps, all but those that can stay, which cost most; of very many not all that
        can. Many are asked about together, fewer where not all of them can stay."""
        for node, fewest, ranked in nodes[:MAX_TRIES]:
            leaving = sorted(sorted(ranked.holdings, key=lambda holding: holding.owner), key=_cost, reverse=True)
            if not self._fits(question, finder, node, leaving):
                continue
            at, size = 0, len(leaving) - fewest
            while at < len(leaving) > fewest and size and self._looks <= self._last_look:
                rest = [*leaving[:at], *leaving[at + size :]]
                if len(rest) >= fewest and self._fits(question, finder, node, rest):
                    leaving = rest
                elif size > 1:
                    size = -(-size // 2)
                else:
                    at += 1
            return tuple(holding.owner for holding in leaving)
        return ()

    def _fits(
        self, question: FeasibilityQuestion, finder: FeasibilityChecker, node: Node, gone: Sequence[Holding]
    ) -> bool:
        leaving = {holding.owner for holding in gone}
        self._looks += len(self._around(node))
        held = tuple(holding for holding in self._around(node) if holding.owner not in leaving)
        without_gone = replace(question, held=held)
        return finder.works(without_gone if node is None else without_gone.pinned(node))

    def _around(self, node: Node) -> Sequence[Holding]:
        """What is held that matters on a node, each once."""
        if node not in self._near:
            own, network = self._by_node.get(node, []), self._by_node.get(None, []) if node is not None else []
            self._near[node] = [*{id(holding): holding for holding in (*own, *network)}.values()] if network else own
        return self._near[node]

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

    def _parts_on(self, part: Callable[[Holding], int], node: Node) -> Sequence[int]:
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
    """How many devices of some candidates come free with each holding, at the most."""

    candidates: Candidates
    _by_holding: dict[int, int] = field(default_factory=dict)
    _by_node: dict[Node, list[int]] = field(default_factory=dict)

    def by(self, holding: Holding) -> int:
        """``holding``: one that is held as long as this lives."""
        freed = self._by_holding.get(id(holding))
        if freed is None:
            accepted = self.candidates.accepted
            freed = self._by_holding[id(holding)] = sum(item.device in accepted for item in holding.items)
        return freed

    def on(self, node: Node, holders: Sequence[Holding]) -> Sequence[int]:
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
    """id of an holding -> devices that come free for each alternative, and for any"""

    @classmethod
    def of(
        cls,
        question: FeasibilityQuestion,
        counting: NodeCounts,
        held: tuple[Holding, ...],
        freed_of: Callable[[Candidates], _FreedDevices],
    ) -> _WholeNeeds:
        """Of details that need whole devices by every alternative."""
        details = [
            [(request, counting.devices(demand, request, held)) for request in detail]
            for demand in question.unit.demands
            for detail in demand.details
            if all(request.takes_whole for request in detail)
        ]
        wanted = frozenset().union(*(request.candidates.accepted for detail in details for request, _ in detail))
        return cls(counting.snapshot, counting.state(held).usage, details, wanted, freed_of)

    def may_be_met(self, node: Node, gone: Holding) -> bool:
        """Whether there are enough devices on a node without an holding: for each detail, and for all together."""
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

    def _freed_by(self, gone: Holding) -> tuple[list[list[int]], int]:
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


def _freed_amount(holding: Holding, name: str, request: Request, snapshot: Snapshot) -> int:
    """At most so much of a resource comes free for the request."""
    total = 0
    for item in holding.items:
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


def cheapest_sets(costs: Sequence[Cost], smallest: int) -> Iterator[tuple[Cost, tuple[int, ...]]]:
    """All sets of at least so many numbers, those of the least cost first, then smaller ones, then by number.

    ``costs``: of the numbers from 0 on, ascending. A set follows from the one in which its first number that is not as
    low as can be is lower by one: so each comes once, after all that cost less.
    """
    waiting: list[tuple[Cost, int, tuple[int, ...]]] = []

    def push(numbers: tuple[int, ...]) -> None:
        heappush(waiting, (reduce(_add, [costs[number] for number in numbers]), len(numbers), numbers))

    if smallest <= len(costs):
        push((*range(smallest),))
    while waiting:
        cost, size, numbers = heappop(waiting)
        yield cost, numbers
        first = next((place for place, number in enumerate(numbers) if number != place), size)
        if first == size < len(costs):
            push((*range(size + 1),))  # costs no less than the cheapest set that is smaller
        for place in {max(0, first - 1), min(first, size - 1)}:
            after = numbers[place] + 1
            if after < (numbers[place + 1] if place + 1 < size else len(costs)):
                push((*numbers[:place], after, *numbers[place + 1 :]))


def _cost(holding: Holding) -> Cost:
    """What it costs that its owner leaves."""
    return () if holding.leave is None else holding.leave.cost


def _add(one: Cost, other: Cost) -> Cost:
    return tuple(map(add, one, other))
