"""Search for claims of one shape: on which classes of nodes they fit, how well, and which node is the best now.

Nothing is computed before it is needed. A class that might be the best is in a heap under the best score that its
kind of node could have; it is judged when it comes to the top, and then stays judged. What changes in the fleet is
read from a log when the shape is next asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from operator import add

from devalloc.api.node_rules import NodeRestriction
from devalloc_solver.bounds.least_load import least_load
from devalloc_solver.bounds.node_counts import min_devices
from devalloc_solver.fleet.equal_devices import EqualDevices
from devalloc_solver.fleet.fast_path import FastPath, has_fast_path
from devalloc_solver.fleet.node_class_plan import (
    ClaimQuery,
    NodeClassPlan,
    pick_of,
    place_exactly,
)
from devalloc_solver.fleet.node_index import NodeIndex
from devalloc_solver.fleet.pool_states import NodeClass, NodeKind, NodeRecord, PoolKind, PoolState
from devalloc_solver.pipeline.strategy import COMPARED_NODES
from devalloc_solver.place import SharesInterfere
from devalloc_solver.problem.demand import AllocationMode, Candidates, Demand, PlacementUnit, Request
from devalloc_solver.problem.loads import PoolScale
from devalloc_solver.problem.placement_score import PlacementScore, alternatives_of
from devalloc_solver.problem.snapshot import Device


@dataclass(slots=True, eq=False)
class CountBounds:
    """Counts for one demand, whose requests have kinds as candidates; keeps what it has counted."""

    demand: Demand
    leasts: tuple[tuple[tuple[int, int], ...], ...] = field(init=False)
    """for each detail (number of a request, devices that it takes at least)"""
    _requests: tuple[Request, ...] = field(init=False)
    _states: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _rooms: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _groups: dict[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    """kind of pool -> for each request the groups of its candidates"""
    _relevant: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        numbers = count()
        self.leasts = tuple(
            tuple((next(numbers), min_devices(request)) for request in each) for each in self.demand.details
        )
        self._requests = tuple(self.demand.requests)

    # -- kinds ---------------------------------------------------------------------------------------------------------

    def relevant(self, kind: NodeKind) -> tuple[int, ...]:
        """The pools of a kind of node that have candidates."""
        cached = self._relevant.get(kind.index)
        if cached is None:
            cached = tuple(number for number, pool in enumerate(kind.pools) if any(self._groups_of(pool)))
            self._relevant[kind.index] = cached
        return cached

    def room(self, pool: PoolKind) -> tuple[int, ...]:
        """For each request the devices that a pool of this kind has for it."""
        if pool.index not in self._rooms:
            self._rooms[pool.index] = tuple(sum(pool.sizes[n] for n in groups) for groups in self._groups_of(pool))
        return self._rooms[pool.index]

    def fewest_pools(self, kind: NodeKind) -> int:
        """Pools that are needed at least: those of each detail where no two want the same pool, else of the largest."""
        rooms = [self.room(kind.pools[number]) for number in self.relevant(kind)]
        needs, wanted = [], 0
        for detail in self.leasts:
            most = [max(room[number] for room in rooms) for number, _ in detail]
            takes = [-(-least // room) for (_, least), room in zip(detail, most, strict=True) if room]
            needs.append(min(takes, default=1))
            wanted += sum(any(room[number] for number, _ in detail) for room in rooms)
        alone = wanted == sum(any(room) for room in rooms)
        return sum(needs) if alone else max(needs)

    def _groups_of(self, pool: PoolKind) -> tuple[tuple[int, ...], ...]:
        if pool.index not in self._groups:
            self._groups[pool.index] = tuple(
                tuple(n for n, kind in enumerate(pool.kinds) if kind.index in request.candidates.accepted)
                for request in self._requests
            )
        return self._groups[pool.index]

    # -- states --------------------------------------------------------------------------------------------------------

    def may_fit(self, node: NodeClass) -> bool:
        """Whether the numbers leave it possible on nodes of a class."""
        relevant = self.relevant(node.kind)
        if not relevant:
            return False
        sums: Iterable[int] = self._left(node.states[relevant[0]])
        for number in relevant[1:]:
            sums = map(add, sums, self._left(node.states[number]))
        return self._is_enough([*sums])

    def may_fit_in(self, state: PoolState) -> bool:
        """The same of a pool alone."""
        return self._is_enough(self._left(state))

    def _is_enough(self, left: Sequence[int]) -> bool:
        for detail in self.leasts:
            for number, least in detail:
                if left[number] >= least:
                    break
            else:
                return False
        return True

    def _left(self, state: PoolState) -> tuple[int, ...]:
        """For each request the devices of a pool that are left to it."""
        cached = self._states.get(state.index)
        if cached is None:
            cached = self._states[state.index] = self._find_left(state)
        return cached

    def _find_left(self, state: PoolState) -> tuple[int, ...]:
        counts = []
        for request, groups in zip(self._requests, self._groups_of(state.kind), strict=True):
            admin = request.mode.is_admin
            sizes = state.kind.sizes if admin else state.free
            number = sum(map(sizes.__getitem__, groups))
            if not admin and (request.mode is AllocationMode.SHARE or request.portions):
                number += state.shareable
            counts.append(number)
        return tuple(counts)


MAX_LOOKS = 16
"""Sets of pools for which a class of nodes keeps what claims look at of them: claims choose the sets."""
SPARE_ENTRIES = 100
"""Entries of a heap that count no more, beside as many as those that do; when there are more, they are dropped."""

_Entry = tuple[PlacementScore, int, int]
"""(score or the best it can be, rank of the first node, class)"""

_Looks = tuple[int, ...]
"""All that a claim of local devices looks at of a class: (kind of node, what the policy looks at of its use, states
of the pools with candidates)"""


@dataclass(slots=True, eq=False)
class ShapeSearch:
    """What is known of one shape. Its requests are those of ``unit``, whose candidates are kinds of devices."""

    index: NodeIndex
    query: ClaimQuery
    unit: PlacementUnit
    demand: Demand = field(init=False)
    wide: bool = field(init=False)
    """whether devices of the network are among the candidates"""
    plain: FastPath | None = field(init=False)
    use: Callable[[NodeClass], int] = field(init=False)
    """what the policy looks at of what is in use"""
    count_bounds: CountBounds = field(init=False)
    seen: int | None = None
    """how much of the log has been read; None when nothing has"""
    network_version: int = 0
    heap: list[_Entry] = field(default_factory=list)
    queued: dict[int, int] = field(default_factory=dict)
    """class -> rank of the one entry in the heap that counts"""
    recipes: dict[int, NodeClassPlan | None] = field(default_factory=dict)
    """class -> the best there, None where it does not fit"""
    best_of: dict[int, NodeClassPlan | None] = field(default_factory=dict)
    """kind of node -> the best when nothing is in use"""
    one_pool: dict[int, bool] = field(default_factory=dict)
    """state of a pool -> whether it might have all that is asked for"""
    unfit: set[int] = field(default_factory=set)
    """classes where it does not fit"""
    nowhere: set[int] = field(default_factory=set)
    """kinds of nodes that have no candidate"""
    solved: dict[_Looks, NodeClassPlan | None] = field(default_factory=dict)
    """the best where all that a claim of local devices looks at is equal"""
    hopes: dict[_Looks, PlacementScore | None] = field(default_factory=dict)
    """the score that cannot be beaten there; None where it cannot fit"""

    met: set[int] = field(default_factory=set)
    """kinds of nodes of which a class has come to the top and was solved"""
    guesses: dict[int, int] = field(default_factory=dict)
    """kind of node -> pools that it takes there at least"""
    least: dict[int, int] = field(default_factory=dict)
    """kind of node -> how much of it comes into use at least"""
    roomy: set[_Looks] = field(default_factory=set)
    """where counting alone leaves it possible"""
    undecided: dict[_Looks, tuple[PlacementScore, set[int]]] = field(default_factory=dict)
    """where only CP-SAT can tell, or could: the score that cannot be beaten, and the classes"""
    first: tuple[int, ...] = field(init=False)
    """the first alternative of each detail that has a choice"""
    shares: int = field(init=False)
    """devices of shares that these take at least"""
    fewest: int = field(init=False)
    """devices that it takes at least"""
    takes_free_only: bool = field(init=False)
    """whether all of its devices are whole, and free before"""

    def __post_init__(self) -> None:
        (self.demand,) = self.unit.demands
        self.use = self.index.policy.use
        firsts = [detail[0] for detail in self.demand.details]
        self.first = alternatives_of(firsts)
        self.shares = sum(request.mode is AllocationMode.SHARE for request in firsts)
        self.count_bounds = CountBounds(self.demand)
        needs = [min(least for _, least in detail) for detail in self.count_bounds.leasts]
        self.takes_free_only = all(request.takes_whole for request in self.demand.requests)
        self.fewest = sum(needs) if self.takes_free_only else max(needs)  # details may have devices in common
        network = {kind.index for kind in self.index.network.kinds} if self.index.network is not None else set()
        self.wide = any(network & request.candidates.accepted.keys() for request in self.demand.requests)
        self.plain = None if self.wide or not has_fast_path(self.demand) else FastPath(self.demand, self.index.policy)

    # -- the best node now ---------------------------------------------------------------------------------------------

    def best(self, restrictions: Sequence[NodeRestriction] = ()) -> tuple[NodeRecord, NodeClassPlan] | None:
        """The first node in natural order among those with the best score, and what to take there."""
        self.read_log()
        heap, queued, index = self.heap, self.queued, self.index
        if restrictions:
            heap, queued = self._allowed(restrictions)
        aside: list[_Entry] = []
        """those that CP-SAT would have to decide, beyond as many as it does"""
        most = COMPARED_NODES
        try:
            while heap or aside:
                if not heap or (aside and aside[0][0][:3] < heap[0][0][:3]):  # one of these may be better
                    most += COMPARED_NODES
                    heap += aside
                    aside.clear()
                    heapify(heap)
                score, rank, number = heap[0]
                if queued.get(number) != rank:
                    heappop(heap)
                    continue
                node = index.classes.by_index.get(number)
                first = None if node is None else rank if restrictions else node.first
                if node is None or first is None:
                    heappop(heap)
                    del queued[number]
                elif first != rank:
                    queued[number] = first
                    heapreplace(heap, (score, first, number))
                else:
                    record = index.by_rank[rank]
                    better = self._better(node, score, record)
                    recipe = None if better is None or better != score else self.recipe(node, record)
                    if better is None or (recipe is None and better == score):
                        self.unfit.add(number)
                        heappop(heap)
                        del queued[number]
                    elif recipe is None or recipe.score != score:
                        heapreplace(heap, (better if recipe is None else recipe.score, rank, number))
                    elif recipe.ways:
                        return record, recipe
                    elif self._has_fewer_before(most, node, score, queued if restrictions else None):
                        self._decide(node, record)
                    else:
                        aside.append(heappop(heap))
        finally:
            for entry in aside:
                heappush(heap, entry)
        return None

    def _has_fewer_before(
        self, most: int, node: NodeClass, score: PlacementScore, firsts: Mapping[int, int] | None
    ) -> bool:
        """Whether fewer than so many kinds of classes that only CP-SAT can decide may be better than one, or come
        before it. ``firsts``: class -> rank of the first node that counts, if not all do."""
        looks = self._looks(node, self.count_bounds.relevant(node.kind))
        self.undecided.setdefault(looks, (score, set()))[1].add(node.index)
        first_of = firsts.get if firsts is not None else self._first_of
        own = score, first_of(node.index)
        before = 0
        for other, (bound, numbers) in self.undecided.items():
            ranks = [rank for number in numbers if (rank := first_of(number)) is not None]
            before += other != looks and bool(ranks) and (bound, min(ranks)) < own
            if before >= most:  # mostly the first ones: all of them for each class would cost the square of a fleet
                return False
        return True

    def _first_of(self, number: int) -> int | None:
        node = self.index.classes.by_index.get(number)
        return None if node is None else node.first

    def _decide(self, node: NodeClass, record: NodeRecord) -> None:
        """Have CP-SAT tell what is the best on nodes of a class."""
        plan = self.recipes[node.index] = self.exactly(record)
        if not self.wide:
            self.solved[self._looks(node, self.count_bounds.relevant(node.kind))] = plan

    def on(self, record: NodeRecord) -> NodeClassPlan | None:
        """What to take on one node."""
        self.read_log()
        assert record.member_of is not None
        plan = self.recipe(record.member_of, record)
        if plan is not None and not plan.ways:
            self._decide(record.member_of, record)
            return self.recipes[record.member_of.index]
        return plan

    def read_log(self) -> None:
        """Catch up with what has changed since the shape was last asked for."""
        log = self.index.log
        if self.wide and self.network_version != self.index.network_version:
            self.seen = None
        if self.seen is None or self.seen < log.start:
            self._start()
        else:
            queued, unfit, nowhere = self.queued, self.unfit, self.nowhere
            for kind, number, rank, node in log.since(self.seen):
                if kind not in nowhere and number not in unfit and queued.get(number, rank + 1) > rank and node.ranks:
                    self._enter(rank, node)
            if len(self.heap) > 2 * len(queued) + SPARE_ENTRIES:
                self.heap = [entry for entry in self.heap if queued.get(entry[2]) == entry[1]]
                heapify(self.heap)
        self.seen = log.end

    def _start(self) -> None:
        """Look at every class that has nodes."""
        index = self.index
        if self.wide and self.network_version != index.network_version:
            self.recipes.clear()
            self.best_of.clear()
            self.unfit.clear()
            self.network_version = index.network_version
        self.heap.clear()
        self.queued.clear()
        for node in index.log.classes(index.classes.by_index):
            score = self._hope(node)
            first = None if score is None else node.first
            if score is not None and first is not None:
                self.heap.append((score, first, node.index))
                self.queued[node.index] = first
        heapify(self.heap)

    def _enter(self, rank: int, node: NodeClass) -> None:
        score = self._hope(node)
        if score is None:
            self.unfit.add(node.index)
        else:
            self.queued[node.index] = rank
            heappush(self.heap, (score, rank, node.index))

    def _allowed(self, restrictions: Sequence[NodeRestriction]) -> tuple[list[_Entry], dict[int, int]]:
        """The same as ``heap`` and ``queued``, of the nodes on which a claim with these rules may be."""
        firsts: dict[int, int] = {}
        classes: dict[int, NodeClass] = {}
        for record in self.index.allowed(restrictions):
            node = record.member_of
            assert node is not None
            firsts[node.index] = min(record.rank, firsts.get(node.index, record.rank))
            classes[node.index] = node
        hopes = ((number, self._hope(node)) for number, node in classes.items() if number not in self.unfit)
        heap = [(score, firsts[number], number) for number, score in hopes if score is not None]
        heapify(heap)
        return heap, firsts

    # -- classes -------------------------------------------------------------------------------------------------------

    def recipe(self, node: NodeClass, record: NodeRecord) -> NodeClassPlan | None:
        """The best on nodes of a class, of which one is given."""
        if node.index not in self.recipes:
            self.recipes[node.index] = self._solve(node, record)
        return self.recipes[node.index]

    def _solve(self, node: NodeClass, record: NodeRecord) -> NodeClassPlan | None:
        if self.wide:
            return self.exactly(record, decide=False)
        looks = self._looks(node, self.count_bounds.relevant(node.kind))
        if self.hopes.get(looks, ()) is None:
            return None
        if looks not in self.solved:
            pools = self.plain.pools_of(node.kind) if self.plain is not None else None
            if self.plain is None or pools is None:
                self.solved[looks] = self.exactly(record, decide=False)
            else:
                plan = self.plain.solve(node, pools)
                if plan is not None and len(plan.ways[0]) > len(self.demand.details):
                    plan = self.exactly(record) if self.plain.is_split(plan, node) else plan
                self.solved[looks] = plan
        return self.solved[looks]

    def _hope(self, node: NodeClass) -> PlacementScore | None:
        """The score that nodes of a class have, or one that they cannot beat; None when it cannot fit there."""
        if node.index in self.recipes:
            recipe = self.recipes[node.index]
            return None if recipe is None else recipe.score
        relevant = self.count_bounds.relevant(node.kind)
        if self.wide:
            return self._find_hope(node, relevant)
        if not relevant:
            self.nowhere.add(node.kind.index)
            return None
        looks = self._looks(node, relevant)
        if looks in self.solved:
            recipe = self.recipes[node.index] = self.solved[looks]
            return None if recipe is None else recipe.score
        if looks not in self.hopes:
            if looks not in self.roomy:
                if not self.count_bounds.may_fit(node):
                    self.hopes[looks] = None
                    return None
                self.roomy.add(looks)
            if node.kind.index not in self.best_of:
                return self._guess(node, relevant)
            self.hopes[looks] = self._find_hope(node, relevant)
        return self.hopes[looks]

    def _better(self, node: NodeClass, score: PlacementScore, record: NodeRecord) -> PlacementScore | None:
        """What is to be hoped of a class that has come to the top, when it and its kind of node are looked at.

        The first class of a kind that might be as good as was guessed is solved itself: mostly that is all it takes.
        """
        if self.wide or node.index in self.recipes:
            return score
        if node.kind.index in self.met:
            self._best_of(node)
        elif score.pools == 1 and not self._may_take_one_pool(node, self.count_bounds.relevant(node.kind)):
            return score._replace(pools=2)
        else:
            self.met.add(node.kind.index)
            self.recipe(node, record)
        return self._hope(node)

    def _looks(self, node: NodeClass, relevant: tuple[int, ...]) -> _Looks:
        looks = node.looks.get(relevant)
        if looks is None:
            if len(node.looks) >= MAX_LOOKS:
                node.looks.clear()
            states = [node.states[number].index for number in relevant]
            looks = node.looks[relevant] = (node.kind.index, self.use(node), *states)
        return looks

    def _guess(self, node: NodeClass, relevant: tuple[int, ...]) -> PlacementScore:
        """A score that no node of this kind can beat, told from the numbers of devices only."""
        kind = node.kind
        if kind.index not in self.guesses:
            self.guesses[kind.index] = self.count_bounds.fewest_pools(kind)
        pools, devices = self.guesses[kind.index], self.fewest
        node_cost = self.index.policy.cost(node, self._least_load(node))
        return PlacementScore(self.first, pools, devices, self.shares, node_cost)

    def _find_hope(self, node: NodeClass, relevant: tuple[int, ...]) -> PlacementScore | None:
        best = self._best_of(node)
        if best is None:
            return None
        score, pools = best.score, best.score.pools
        if pools == 1 and not self._may_take_one_pool(node, relevant):
            pools = 2
        node_cost = self.index.policy.cost(node, self._least_load(node))
        if self.wide:  # perhaps it takes nothing of the node
            node_cost = min(node_cost, score.node_cost)
        return PlacementScore(score.one_of, pools, score.devices, score.shares, node_cost)

    def _least_load(self, node: NodeClass) -> int:
        """How much of a node comes into use at least, where the policy weighs that."""
        if self.wide or not self.index.policy.weighs_loads:
            return 0
        if node.kind.index not in self.least:
            self.least[node.kind.index] = least_load([self.demand], lambda request: _devices_of(request, node.kind))
        return self.least[node.kind.index]

    def _may_take_one_pool(self, node: NodeClass, relevant: tuple[int, ...]) -> bool:
        """Whether a node may have it all in one pool, as far as numbers of devices tell."""
        if self.wide or len(self.demand.details) == 1:
            return True
        for number in relevant:
            state = node.states[number]
            if state.index not in self.one_pool:
                self.one_pool[state.index] = self.count_bounds.may_fit_in(state)
            if self.one_pool[state.index]:
                return True
        return False

    def _best_of(self, node: NodeClass) -> NodeClassPlan | None:
        """What nodes of this kind offer when nothing is in use, which nothing in use makes any better."""
        kind = node.kind
        if kind.index not in self.best_of:
            self.best_of[kind.index] = self._find_best(node)
        return self.best_of[kind.index]

    def _find_best(self, node: NodeClass) -> NodeClassPlan | None:
        first = node.first
        if first is None:
            return None
        empty = self.index.emptied(self.index.by_rank[first])
        assert empty.member_of is not None
        return self._solve(empty.member_of, empty)

    def _unit_on(self, kinds: Sequence[EqualDevices]) -> PlacementUnit:
        details = tuple(
            tuple(_request_on_kinds(request, kinds) for request in detail) for detail in self.demand.details
        )
        return replace(self.unit, demands=(replace(self.demand, details=details),))

    # -- exactly, on one node ------------------------------------------------------------------------------------------

    def exactly(self, record: NodeRecord, *, decide: bool = True) -> NodeClassPlan | None:
        """The best on one node, by search; in a form that holds for all nodes of its class. ``decide``: also where only
        CP-SAT can tell."""
        index = self.index
        network = index.network if self.wide else None
        kinds = record.kinds if network is None else (*network.kinds, *record.kinds)
        unit_on, deadline = (lambda _: self._unit_on(kinds)), index.search_deadline
        try:
            best = place_exactly(record, network, unit_on, index.policy, deadline, decide=decide)
        except SharesInterfere as error:
            return NodeClassPlan(error.bound, (), local=True)
        if best is None:
            return None
        score, taken = best
        requests = {(request.detail, request.alternative): request for request in self.demand.requests}
        picks = [pick_of(requests[one[2].request.detail, one[2].request.alternative], one, network) for one in taken]
        return NodeClassPlan(score, (tuple(picks),), local=any(not pick.network for pick in picks))


def _devices_of(request: Request, kind: NodeKind) -> Iterator[tuple[int, Device, PoolScale]]:
    """The devices of a kind of node that a request may take, one of each kind."""
    for pool in kind.pools:
        for each in pool.kinds:
            if each.index in request.candidates.accepted:
                yield each.index, each.one, pool.scale


def _request_on_kinds(request: Request, kinds: Sequence[EqualDevices]) -> Request:
    """The request in terms of the devices that are of these kinds."""
    accepted, bars = request.candidates.accepted, request.candidates.bars
    if bars and any(kind.index in bars for kind in kinds):
        accepted = {}
    portions = request.portions
    return replace(
        request,
        candidates=Candidates({n: accepted[k.index] for n, k in enumerate(kinds) if k.index in accepted}, ()),
        portions={n: portions[k.index] for n, k in enumerate(kinds) if k.index in portions},
    )
