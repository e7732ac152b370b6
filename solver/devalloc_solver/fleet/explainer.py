"""Why a claim gets nothing, from a few nodes of a fleet: the same answer as from all of it, but faster.

The numbers are those of all devices, counted by kind. What is in the way is searched for on nodes that stand for all:
of each kind the first one and the one with the least in use, those with the devices that a claim names, and those
where the fewest claims are in the way. A dialect says who explains, with its counts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Sequence, Set
from dataclasses import replace
from itertools import chain
from typing import Any, Generic, Protocol, TypeVar

from devalloc_solver.eligibility.facts import is_of_kinds, places
from devalloc_solver.explain.explainer import Explainer
from devalloc_solver.explain.typos import MAX_VALUES
from devalloc_solver.fleet.equal_devices import EqualDevicesIndex
from devalloc_solver.fleet.explanation_nodes import NearestNodes, NodeSelection
from devalloc_solver.fleet.fleet_stats import FleetStats, PoolOrder
from devalloc_solver.fleet.funnels import FleetParts, RefinedKinds
from devalloc_solver.fleet.node_class_plan import ClaimQuery
from devalloc_solver.fleet.node_index import Holders
from devalloc_solver.fleet.place_finder import PlaceFinder
from devalloc_solver.fleet.pool_states import NodeRecord
from devalloc_solver.fleet.shape_search import ShapeSearch
from devalloc_solver.fleet.subset import FleetSubset, JudgeT, holdings_on, make_subset
from devalloc_solver.problem.allocations import Holding, Key
from devalloc_solver.problem.answer import ClaimAnswer
from devalloc_solver.problem.demand import Candidates, Demand, PlacementUnit, Request
from devalloc_solver.problem.snapshot import Snapshot

MAX_ANSWERS = 1_000
"""Answers remembered; when there are more, all is forgotten that was found out for them."""
MAX_SUBSETS = 16
"""Parts of the fleet that are kept; the one not asked for longest is forgotten first."""
MAX_KINDS = 64
"""Kinds of nodes that are all looked at."""
FEW_NODES, MANY_NODES = 16, 128
"""Nodes with the fewest claims in the way that are looked at, first and where that does not prove the answer."""
MAX_SELECTIONS = 64
"""Shapes whose view of the nodes is remembered; when there are more, all are forgotten."""
MAX_REFINEMENTS = 4
"""Sets of attributes by whose values the fleet is kept split; each takes time and room for all devices."""


JudgeT_co = TypeVar("JudgeT_co", covariant=True)


class RefusedQuery(ClaimQuery, Protocol):
    """What a claim that is explained requests."""

    @property
    def pinned_node(self) -> str | None: ...

    def demand_of(self, kinds: EqualDevicesIndex) -> Demand:
        """What it demands in terms of kinds."""

    def explained_unit(self, judge: Any) -> PlacementUnit | None:
        """The unit in terms of the snapshot of a judge; None where it is refused."""


class Rules(Protocol[JudgeT_co]):
    """What classes say now."""

    def on(self, snapshot: Snapshot) -> JudgeT_co:
        """Make a judge of the devices of a snapshot."""


QueryT = TypeVar("QueryT", bound=RefusedQuery)


class FleetExplainer(ABC, Generic[QueryT, JudgeT]):
    """Explains claims that the index finds no place for.

    Answers hold until anything changes; all else holds until the rules or the pools change.
    """

    def __init__(self, places: PlaceFinder, holders: Holders, is_last: PoolOrder | None = None) -> None:
        """``is_last``: see ``FleetStats``."""
        self.places, self.index, self.holders = places, places.index, holders
        self.stats = FleetStats(self.index, holders.on_node, is_last)
        self._rules: Rules[JudgeT] | None = None
        """those of the claim that is explained"""
        self._layout = -1
        """of ``stats``, when what is kept here began"""
        self._answers: dict[Hashable, tuple[int, ClaimAnswer]] = {}
        """what was asked -> (stamp of ``stats``, answer)"""
        self.given_now: Set[Key] = frozenset()
        """claims that were given their devices together with the one that is explained"""
        self._subsets: dict[tuple[NodeRecord, ...], FleetSubset[JudgeT]] = {}
        self._selections: dict[Hashable, NodeSelection] = {}
        self._splits: dict[tuple[str, ...], RefinedKinds] = {}

    def _catch_up(self, rules: Rules[JudgeT]) -> None:
        """Take note of all changes."""
        self.stats.update()
        if rules is not self._rules or self.stats.layout != self._layout:
            self._rules, self._layout = rules, self.stats.layout
            self._forget()

    def _forget(self) -> None:
        """Whatever is kept here."""
        self._answers.clear()
        self._subsets.clear()
        self._selections.clear()
        self._splits.clear()

    def _remembered(self, key: Hashable, find: Callable[[], ClaimAnswer | None]) -> ClaimAnswer | None:
        """The answer that was given to the same, or the one that is found now, if any."""
        key = key, self.given_now
        cached = self._answers.get(key)
        if cached is not None and cached[0] == self.stats.stamp:
            return cached[1]
        if len(self._answers) >= MAX_ANSWERS:
            self._forget()
        answer = find()
        if answer is not None and not self.index.allowance.is_over:
            self._answers[key] = self.stats.stamp, answer
        return answer

    # -- a few nodes ---------------------------------------------------------------------------------------------------

    def _find(self, query: QueryT) -> ClaimAnswer | None:
        """The answer from a few nodes, and from more where these do not prove it; None where they cannot stand for all:
        too many differ, or counting does not tell all."""
        kinds = self.stats.examples()
        if query.restrictions or len(kinds) > MAX_KINDS:
            return None
        ranks = {*chain.from_iterable(kinds.values()), *self._given_ranks()}
        if query.pinned_node in self.index.records:
            ranks.add(self.index.records[query.pinned_node].rank)
        shape = self.places.shape(query)
        if not isinstance(shape, ShapeSearch):
            return self._find_named(query, shape.demand, ranks)
        if shape.wide:
            return None
        selection = self._selections.get(query.shape)
        if selection is None:
            if len(self._selections) >= MAX_SELECTIONS:
                self._selections.clear()
            selection = self._selections[query.shape] = NodeSelection(self.stats, shape.demand)
        return self._find_near(query, self.stats, shape.demand, ranks, selection)

    def _find_named(self, query: QueryT, demand: Demand, ranks: set[int]) -> ClaimAnswer | None:
        """Of a claim that tells devices of one kind apart: from all nodes that have what its expressions name."""
        parts = self._split(demand)
        if parts is None or (query.takes_network and self.index.network is not None):
            return None
        own = query.demand_of(parts.kinds)
        for request in own.requests:
            nodes = {*parts.devices({*request.candidates.accepted})}
            for name, values in request.eligible.literals():
                nodes |= {*(self.index.kinds.find(name, values) or ())}
            if len(nodes) > MANY_NODES:
                return None
            ranks |= {self.index.records[node].rank for node in nodes if node is not None}
        return self._find_near(query, parts, own, ranks)

    def _split(self, demand: Demand) -> RefinedKinds | None:
        """The fleet by what a claim reads; None when there is no end of it."""
        kinds = self.index.kinds
        read: set[str] = set()
        for request in demand.requests:
            own_reads = request.eligible.reads
            if own_reads is None or not request.takes_whole:
                return None
            read |= own_reads & kinds.varied
        names = tuple(sorted(read))
        if any(len(kinds.places.get(name, ())) > MAX_VALUES for name in names):
            named = self._named_nodes(demand)
            return None if named is None or len(named) > MANY_NODES else RefinedKinds(self.stats, names, named)
        if names not in self._splits:
            if len(self._splits) >= MAX_REFINEMENTS:
                del self._splits[next(iter(self._splits))]
            self._splits[names] = RefinedKinds(self.stats, names)
        return self._splits[names]

    def _named_nodes(self, demand: Demand) -> Collection[str | None] | None:
        """The only nodes with devices that an expression accepts by what varies within kinds; None where they cannot be
        told."""
        nodes: set[str | None] = set()
        for request in demand.requests:
            for predicate in request.eligible.predicates:
                only = places(predicate, request.eligible.judge.language, self.index.kinds)
                if only is None and not is_of_kinds(predicate, self.index.kinds):
                    return None
                nodes.update(only or ())
        return nodes

    def _find_near(
        self,
        query: QueryT,
        parts: FleetParts,
        demand: Demand,
        ranks: set[int],
        selection: NodeSelection | None = None,
    ) -> ClaimAnswer | None:
        """From these nodes, and those where the fewest claims are in the way.

        Args:
            demand: in terms of the parts.
            selection: selects such nodes; None where all that could do are among the ranks.
        """
        near = None if selection is None else selection.add_to(ranks, FEW_NODES)
        answer, crowded, claims = self._look(query, ranks, parts, demand)
        if answer is None or crowded is None or crowded.pin is not None:
            return answer
        if crowded.demands[0] is not demand:  # other nodes may be those where the fewest are in the way of that
            if any(request.portions for request in crowded.demands[0].requests):
                return None
            selection = NodeSelection(self.stats, crowded.demands[0], fits_nowhere=False)
            size, near = len(ranks), selection.add_to(ranks, FEW_NODES)
            if len(ranks) > size:
                answer, _, claims = self._look(query, ranks, parts, demand)
        if selection is None or near is None or answer is None or self._is_proven(claims, near):
            return answer
        size, _ = len(ranks), selection.add_to(ranks, MANY_NODES)
        return answer if len(ranks) == size else self._look(query, ranks, parts, demand)[0]

    def _look(
        self, query: QueryT, ranks: Collection[int], parts: FleetParts, demand: Demand
    ) -> tuple[ClaimAnswer | None, PlacementUnit | None, Sequence[Key]]:
        """(the answer as these nodes tell it; what claims are in the way of, None without claims; these claims)

        The second is the demand, or what must become of it, in terms of kinds, where other nodes may have it.
        """
        network = [] if self.index.network is None else [self.index.network]
        subset = self._subset((*network, *(self.index.by_rank[rank] for rank in sorted(ranks))))
        unit = query.explained_unit(subset.judge)
        explainer = None if unit is None else self._explainer(query, subset, parts, demand)
        if unit is None or explainer is None:
            return None, None, ()
        (answer,), crowded, claims = explainer.explain(unit), explainer.crowded, explainer.in_the_way
        if crowded is None:
            return answer, None, claims
        (edited,), (before,) = crowded.demands, unit.demands
        is_same = edited is before or (parts is not self.stats and _candidates(edited) <= _candidates(before))
        return answer, replace(crowded, demands=(demand if is_same else _by_kind(edited, subset.kinds),)), claims

    def _is_proven(self, claims: Collection[Key], near: NearestNodes) -> bool:
        """Whether the claims to be released are those that all nodes would tell."""
        nodes = {node for key in claims for node, *_ in self.index.held[key] if node is not None}
        are_near = all(self.index.records[node].rank in near.ranks for node in nodes)
        return are_near and len(claims) <= near.min_blockers_elsewhere

    def _given_ranks(self) -> set[int]:
        """Ranks of the nodes where claims were given devices now: where these leave, less is lost."""
        items = (item for key in self.given_now for item in self.index.held.get(key, ()))
        return {self.index.records[node].rank for node, *_ in items if node is not None}

    # -- subsets -------------------------------------------------------------------------------------------------------

    def holdings(self, subset: FleetSubset[JudgeT]) -> list[Holding]:
        """What claims hold of a subset, by name of the claim."""
        return holdings_on(self.holders, subset.places, self.given_now)

    def subset(self, rules: Rules[JudgeT], records: Sequence[NodeRecord]) -> FleetSubset[JudgeT]:
        """Some nodes, in natural order, as a problem of its own."""
        self._catch_up(rules)
        return self._subset(tuple(records))

    def _subset(self, records: tuple[NodeRecord, ...]) -> FleetSubset[JudgeT]:
        """Some nodes, in natural order, after the network where it is one of them."""
        subset = self._subsets.pop(records, None)
        if subset is None or self._is_spent(subset.judge):
            if len(self._subsets) >= MAX_SUBSETS:
                del self._subsets[next(iter(self._subsets))]
            assert self._rules is not None
            subset = make_subset(self.stats, records, self._rules.on)
        self._subsets[records] = subset
        return subset

    # -- what a dialect gives ------------------------------------------------------------------------------------------

    @abstractmethod
    def explain(self, query: QueryT) -> ClaimAnswer | None:
        """The answer for a claim that fits nowhere; None where the index does not tell."""

    def _is_spent(self, judge: JudgeT) -> bool:
        """Whether a judge remembers too much, and another is to be made."""
        return False

    @abstractmethod
    def _explainer(
        self, query: QueryT, subset: FleetSubset[JudgeT], parts: FleetParts, demand: Demand
    ) -> Explainer | None:
        """Who explains a claim on a subset, with the numbers of all parts of the fleet, by which the demand goes; None
        where these do not tell all."""


def _candidates(demand: Demand) -> set[int]:
    return {index for request in demand.requests for index in request.candidates.accepted}


def _by_kind(demand: Demand, kinds: Sequence[int]) -> Demand:
    """A demand in terms of the kinds of its candidates; ``kinds``: of the devices."""

    def by_kind(request: Request) -> Request:
        accepted = dict.fromkeys((kinds[index] for index in request.candidates.accepted), None)
        return replace(request, candidates=Candidates(accepted, ()))

    return replace(demand, details=tuple(tuple(map(by_kind, detail)) for detail in demand.details))
