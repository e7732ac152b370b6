"""Claims that are placed together, from the nodes that matter to them, and the answers to all others beside theirs."""

from __future__ import annotations

import marshal
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence, Set
from copy import deepcopy
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Any

from devalloc.api.node_rules import NodeRestriction, is_barred
from devalloc_solver.fleet.node_class_plan import ChosenDevice, ChosenPlace
from devalloc_solver.fleet.node_index import NodeIndex
from devalloc_solver.fleet.pool_states import NodeRecord
from devalloc_solver.fleet.shape_search import ShapeSearch
from devalloc_solver.fleet.state import FleetState
from devalloc_solver.fleet.subset import FleetSubset
from devalloc_solver.problem.allocations import Key
from devalloc_solver.problem.answer import ClaimAnswer, Solution
from devalloc_solver.problem.placement import Placement

Restrictions = tuple[NodeRestriction, ...]
MAX_NODES = 256


def nodes_that_matter(
    index: NodeIndex, searches: Iterable[tuple[ShapeSearch, Restrictions]], pins: Iterable[str], claims: int
) -> list[NodeRecord] | None:
    """List the nodes that matter to claims of some shapes and rules for nodes, by rank; None where they are too
    many.

    A node without enough devices for any of them does not matter, and of nodes that are equal in all but names, and in
    what the rules say of them, no more do than there are claims, the first ones.

    Args:
        pins: nodes to which claims are bound; they matter, too.
        claims: how many there are.
    """
    ranks = {index.records[pin].rank for pin in pins}
    by_shape: dict[int, tuple[ShapeSearch, dict[Restrictions, None]]] = {}
    every: dict[Restrictions, None] = {}
    for shape, restrictions in searches:
        by_shape.setdefault(id(shape), (shape, {}))[1][restrictions] = every[restrictions] = None
    for each in index.log.classes(index.classes.by_index):
        if fitting := {
            one: None for shape, rules in by_shape.values() if shape.count_bounds.may_fit(each) for one in rules
        }:
            for alike in _by_rules(index, each.ranks, every, fitting) if any(every) else [each.ranks]:
                ranks.update(nsmallest(claims, alike))
                if len(ranks) > MAX_NODES:
                    return None
    return [index.by_rank[rank] for rank in sorted(ranks)]


def _by_rules(
    index: NodeIndex, ranks: Iterable[int], every: Iterable[Restrictions], fitting: Iterable[Restrictions]
) -> Iterable[Sequence[int]]:
    """The ranks of nodes of which all rules say the same, as far as some of ``fitting`` allow them."""
    alike: dict[tuple[Restrictions, ...], list[int]] = defaultdict(list)
    for rank in ranks:
        alike[tuple([rules for rules in every if not is_barred(rules, index.by_rank[rank].name)])].append(rank)
    return [own for allowed, own in alike.items() if any(rules in allowed for rules in fitting)]


def place_in_fleet(placement: Placement, subset: FleetSubset[Any], records: Sequence[NodeRecord]) -> ChosenPlace:
    """The place in the fleet of a placement on some of its nodes."""
    record = next(record for record in records if record.name == placement.node)
    own = {number: index for index, number in enumerate(subset.places[record.name])}
    given = []
    for entry in sorted(placement.entries, key=lambda e: (e.request.detail, e.device.index)):
        device = record.snapshot.devices[own[entry.device.index]]
        accepted = entry.request.candidates.accepted[entry.device.index]
        given.append(ChosenDevice(entry.request, record.snapshot.pools[device.pool], device, accepted, entry.amounts))
    return ChosenPlace(record.name, given)


@dataclass(slots=True, eq=False)
class Echoes:
    """The answers to claims that hold devices, each made once; of a fleet in which nothing is wrong."""

    state: FleetState
    settled: Callable[[Key], ClaimAnswer]
    """answers a claim that holds devices"""
    write: Callable[[ClaimAnswer], dict[str, Any]]
    edition: Hashable = None
    """of the state, when nothing was wrong; None if that is not certain"""
    _answers: dict[Key, tuple[object, bytes | dict[str, Any]]] = field(default_factory=dict)
    """claim -> what it has its devices from, and its answer, if possible in a form that is quickly copied"""

    def note(self, solution: Solution, before: Set[Key]) -> None:
        """Remember those of a solution for all of the fleet. ``before``: the claims that held devices before it."""
        self.edition = None if solution.problems else self.state.edition
        answers = [] if solution.problems else [each for each in solution.claims if each.key in before]
        self._answers = {each.key: self._remembered(self.state.source(each.key), each) for each in answers}

    def all_but(self, left_out: Set[Key]) -> list[dict[str, Any]]:
        """The answers to all claims that hold devices, but for some; the caller may change them."""
        state, cached = self.state, self._answers
        if len(cached) > 2 * len(state.allocations):
            cached = self._answers = {key: cached[key] for key in state.allocations if key in cached}
        shown: list[dict[str, Any]] = []
        for key in state.allocations:
            source, remembered = state.source(key), cached.get(key)
            if remembered is None or remembered[0] is not source:
                remembered = cached[key] = self._remembered(source, self.settled(key))
            if key not in left_out:
                answer = remembered[1]
                shown.append(marshal.loads(answer) if isinstance(answer, bytes) else deepcopy(answer))
        return shown

    def _remembered(self, source: object, answer: ClaimAnswer) -> tuple[object, bytes | dict[str, Any]]:
        shown = self.write(answer)
        try:
            return source, marshal.dumps(shown)
        except ValueError:  # numbers that know their digits
            return source, shown
