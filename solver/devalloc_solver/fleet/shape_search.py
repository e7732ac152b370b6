"""Search for claims of one shape: on which classes of nodes they fit, how well, and which node is the best now.

Nothing is computed before it is needed. A class that might be the best is in a heap under the best score that its
kind of node could have; it is judged when it comes to the top, and then stays judged. What changes in the fleet is
read from a log when the shape is next asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING

from devalloc_solver.fleet.count_bounds import CountBounds
from devalloc_solver.fleet.device_kinds import DeviceKind, reachable_snapshot
from devalloc_solver.fleet.exact_placement import place_exactly
from devalloc_solver.fleet.fast_path import FastPath, has_fast_path
from devalloc_solver.fleet.interfaces import ClaimQuery
from devalloc_solver.fleet.node_class_plan import NodeClassPlan, PlanPick, Score, pick_of, plan_score
from devalloc_solver.fleet.pool_states import NodeClass, NodeRecord
from devalloc_solver.fleet.single_pool_bound import may_fit_one_pool
from devalloc_solver.problem.balance import square_growth
from devalloc_solver.problem.demand import AllocationMode, Candidates, Demand, PlacementUnit, Request

if TYPE_CHECKING:
    from devalloc_solver.fleet.node_index import NodeIndex

_Entry = tuple[Score, int, int]
"""(score or the best it can be, rank of the first node, class)"""

_Looks = tuple[int, ...]
"""All that a claim of local devices looks at of a class: (kind of node, whether it is in use, or, to spread, how many
devices are; states of the pools with candidates)"""


@dataclass(slots=True, eq=False)
class ShapeSearch:
    """What is known of one shape. Its requests are those of ``unit``, whose candidates are kinds of devices."""

    index: NodeIndex
    ask: ClaimQuery
    unit: PlacementUnit
    demand: Demand = field(init=False)
    wide: bool = field(init=False)
    """whether devices of the network are among the candidates"""
    plain: FastPath | None = field(init=False)
    tally: CountBounds = field(init=False)
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
    hopes: dict[_Looks, Score | None] = field(default_factory=dict)
    """the score that cannot be beaten there; None where it cannot fit"""

    met: set[int] = field(default_factory=set)
    """kinds of nodes of which a class has come to the top and was solved"""
    guesses: dict[int, int] = field(default_factory=dict)
    """kind of node -> pools that it takes there at least"""
    roomy: set[_Looks] = field(default_factory=set)
    """where counting alone leaves it possible"""
    first: tuple[int, ...] = field(init=False)
    """the first alternative of each detail"""
    exclusive: bool = field(init=False)
    """whether it takes devices whole, each for itself"""
    fewest: int = field(init=False)
    """devices that it takes at least"""

    def __post_init__(self) -> None:
        (self.demand,) = self.unit.demands
        self.first = (0,) * len(self.demand.details)
        self.tally = CountBounds(self.demand)
        needs = [min(least for _, least in detail) for detail in self.tally.leasts]
        plain = all(request.mode is AllocationMode.WHOLE and not request.portions for request in self.demand.requests)
        self.exclusive = plain
        self.fewest = sum(needs) if plain else max(needs)  # details may have devices in common
        network = {kind.index for kind in self.index.network.kinds} if self.index.network is not None else set()
        self.wide = any(network & request.candidates.accepted.keys() for request in self.demand.requests)
        self.plain = None if self.wide or not has_fast_path(self.demand) else FastPath(self.demand, self.index.spread)

    # -- the best node now ---------------------------------------------------------------------------------------------

    def best(self) -> tuple[NodeRecord, NodeClassPlan] | None:
        """The first node in natural order among those with the best score, and what to take there."""
        self.read_log()
        heap, queued, index = self.heap, self.queued, self.index
        while heap:
            score, rank, number = heap[0]
            if queued.get(number) != rank:
                heappop(heap)
                continue
            node = index.classes.by_index.get(number)
            first = None if node is None else index.classes.first(node, index.by_rank)
            if node is None or first is None:
                heappop(heap)
                del queued[number]
            elif first != rank:
                queued[number] = first
                heapreplace(heap, (score, first, number))
            else:
                better = self._better(node, score, index.by_rank[rank])
                recipe = None if better is None or better != score else self.recipe(node, index.by_rank[rank])
                if better is None or (recipe is None and better == score):
                    self.unfit.add(number)
                    heappop(heap)
                    del queued[number]
                elif recipe is None or recipe.score != score:
                    heapreplace(heap, (better if recipe is None else recipe.score, rank, number))
                else:
                    return index.by_rank[rank], recipe
        return None

    def on(self, record: NodeRecord) -> NodeClassPlan | None:
        """What to take on one node."""
        self.read_log()
        assert record.member_of is not None
        return self.recipe(record.member_of, record)

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
                if kind not in nowhere and number not in unfit and queued.get(number, rank + 1) > rank and node.count:
                    self._enter(rank, node)
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
            first = None if score is None else index.classes.first(node, index.by_rank)
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

    # -- classes -------------------------------------------------------------------------------------------------------

    def recipe(self, node: NodeClass, record: NodeRecord) -> NodeClassPlan | None:
        """The best on nodes of a class, of which one is given."""
        if node.index not in self.recipes:
            self.recipes[node.index] = self._solve(node, record)
        return self.recipes[node.index]

    def _solve(self, node: NodeClass, record: NodeRecord) -> NodeClassPlan | None:
        if self.wide:
            return self.exactly(record)
        looks = self._looks(node, self.tally.relevant(node.kind))
        if self.hopes.get(looks, ()) is None:
            return None
        if looks not in self.solved:
            pools = self.plain.pools_of(node.kind) if self.plain is not None else None
            self.solved[looks] = (
                self.exactly(record) if self.plain is None or pools is None else self.plain.solve(node, pools)
            )
        return self.solved[looks]

    def _hope(self, node: NodeClass) -> Score | None:
        """The score that nodes of a class have, or one that they cannot beat; None when it cannot fit there."""
        if node.index in self.recipes:
            recipe = self.recipes[node.index]
            return None if recipe is None else recipe.score
        relevant = self.tally.relevant(node.kind)
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
                if not self.tally.may_fit(node):
                    self.hopes[looks] = None
                    return None
                self.roomy.add(looks)
            if node.kind.index not in self.best_of:
                return self._guess(node, relevant)
            self.hopes[looks] = self._find_hope(node, relevant)
        return self.hopes[looks]

    def _better(self, node: NodeClass, score: Score, record: NodeRecord) -> Score | None:
        """What is to be hoped of a class that has come to the top, when it and its kind of node are looked at.

        The first class of a kind that might be as good as was guessed is solved itself: mostly that is all it takes.
        """
        if self.wide or node.index in self.recipes:
            return score
        if node.kind.index in self.met:
            self._best_of(node)
        elif score[1] == 1 and not self._may_take_one_pool(node, self.tally.relevant(node.kind)):
            return score[0], 2, *score[2:]
        else:
            self.met.add(node.kind.index)
            self.recipe(node, record)
        return self._hope(node)

    def _looks(self, node: NodeClass, relevant: tuple[int, ...]) -> _Looks:
        states, use = node.states, node.load if self.index.spread else node.in_use
        return (node.kind.index, use, *[states[number].index for number in relevant])

    def _guess(self, node: NodeClass, relevant: tuple[int, ...]) -> Score:
        """A score that no node of this kind can beat, told from the numbers of devices only."""
        kind = node.kind
        if kind.index not in self.guesses:
            self.guesses[kind.index] = self.tally.fewest_pools(kind)
        pools, devices = self.guesses[kind.index], self.fewest
        if self.index.spread:
            return self.first, pools, devices, devices, *self._least_growth(node, devices), 0
        return self.first, pools, devices, devices, 0 if node.in_use else 1, 0, 0

    def _find_hope(self, node: NodeClass, relevant: tuple[int, ...]) -> Score | None:
        best = self._best_of(node)
        if best is None:
            return None
        alternatives, pools, devices, entries, idle_nodes, idle_pools, _ = best.score
        if pools == 1 and not self._may_take_one_pool(node, relevant):
            pools = 2
        if self.index.spread:
            idle_nodes, idle_pools = self._least_growth(node, devices)
        else:
            idle_nodes, idle_pools = (0 if node.in_use else idle_nodes), 0
        return alternatives, pools, devices, entries, idle_nodes, idle_pools, 0

    def _least_growth(self, node: NodeClass, devices: int) -> tuple[int, int]:
        """What the squares of the loads of nodes and pools grow by at least, for so many devices or more."""
        new = devices if self.exclusive and not self.wide else 0
        return square_growth(node.load, new), new

    def _may_take_one_pool(self, node: NodeClass, relevant: tuple[int, ...]) -> bool:
        """Whether a node may have it all in one pool; see ``onepool``."""
        if self.wide or len(self.demand.details) == 1:
            return True
        for number in relevant:
            state = node.states[number]
            if state.index not in self.one_pool:
                self.one_pool[state.index] = self.tally.may_fit_in(state) and may_fit_one_pool(self.demand, state)
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
        rank = self.index.classes.first(node, self.index.by_rank)
        if rank is None:
            return None
        empty = self.index.emptied(self.index.by_rank[rank])
        assert empty.member_of is not None
        return self._solve(empty.member_of, empty)

    def _unit_on(self, kinds: Sequence[DeviceKind]) -> PlacementUnit:
        details = tuple(
            tuple(_request_on_kinds(request, kinds) for request in detail) for detail in self.demand.details
        )
        return replace(self.unit, demands=(replace(self.demand, details=details),))

    # -- exactly, on one node ------------------------------------------------------------------------------------------

    def exactly(self, record: NodeRecord) -> NodeClassPlan | None:
        """The best on one node, by search; in a form that holds for all nodes of its class."""
        index = self.index
        network = index.network if self.wide else None
        offset = len(network.snapshot.devices) if network is not None else 0
        if network is None:
            snapshot, ledger = record.snapshot, record.ledger()
        else:
            snapshot = reachable_snapshot(record.snapshot, network.snapshot, record.name)
            ledger = record.ledger(snapshot, offset)
            network.fill(ledger, 0)
        kinds = record.kinds if network is None else (*network.kinds, *record.kinds)
        placements, loss = place_exactly(
            snapshot, ledger, self._unit_on(kinds), record.name, index.placement, index.allowance.until
        )
        if not placements:
            return None
        (placement,) = placements
        requests = {(request.detail, request.alternative): request for request in self.demand.requests}
        picks: list[PlanPick] = []
        used: list[tuple[NodeRecord, int, int, Request]] = []
        chosen: dict[int, int] = {}
        for entry in placement.entries:
            own = entry.device.index >= offset
            owner = record if own or network is None else network
            device = owner.snapshot.devices[entry.device.index - (offset if own else 0)]
            used.append((owner, device.pool, device.index, entry.request))
            request = requests[entry.request.detail, entry.request.alternative]
            chosen[request.detail] = request.alternative or 0
            position = device.index - owner.starts[device.pool]
            picks.append(pick_of(request, owner, device.pool, position, entry.amounts, network=owner is network))
        alternatives = tuple(chosen.get(position, 0) for position in range(len(self.demand.details)))
        score = plan_score(alternatives, used, len(picks), loss, spread=index.spread)
        return NodeClassPlan(score, tuple(picks), local=any(not pick.network for pick in picks))


def _request_on_kinds(request: Request, kinds: Sequence[DeviceKind]) -> Request:
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
