"""The part of a fleet that a few claims compete for: they get there what they would get in all of it, much faster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from copy import deepcopy
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Any

from devalloc.api.claim import DeviceClaim
from devalloc.api.pool import DevicePool
from devalloc_solver.dialects.device_claims.answers import allocated_answer
from devalloc_solver.dialects.device_claims.fleet_state import DeviceFleetState
from devalloc_solver.dialects.device_claims.manifest_records import (
    ClaimRecord,
    ManifestRecord,
    full_name,
    pools_of,
    select_valid,
)
from devalloc_solver.dialects.device_claims.manifests import ProblemInput
from devalloc_solver.dialects.device_claims.status import Holder, read_allocations
from devalloc_solver.fleet.pool_states import NodeRecord
from devalloc_solver.fleet.shape_search import ShapeSearch
from devalloc_solver.pipeline.units import RejectedClaim
from devalloc_solver.problem.allocations import Key
from devalloc_solver.problem.answer import ClaimAnswer, Solution
from devalloc_solver.problem.snapshot import take_snapshot

Answer = dict[str, Any]

MAX_CLAIMS = 32
"""Claims of which it is found out: of more, most of a fleet may matter."""
MAX_NODES = 256


def part_for(state: DeviceFleetState, claims: Sequence[ClaimRecord]) -> ProblemInput | None:
    """The problem of some pending claims on the nodes that matter; None where it is not certain which these are.

    A node without enough devices for any of them does not matter, and of nodes that are equal in all but names no more
    do than there are claims, the first ones. What is wrong with objects is left out.
    """
    nodes = _nodes_for(state, claims)
    if nodes is None or len(nodes) > MAX_NODES:
        return None
    names = {record.name for record in nodes}
    on_network = state.holders.on_nodes([None])
    held: list[DeviceClaim] = []
    for key in sorted(state.holders.on_nodes(names)):
        if key in state.holders.scattered or key in on_network or (holder := state.holder(key)) is None:
            return None
        held.append(holder)
    pools: list[DevicePool] = []
    for record in nodes:
        pools += state.pools[record.name].values()
    every = state.rules.problem_input
    return ProblemInput(
        tuple(pools),
        every.classes,
        every.invalid_classes,
        (*held, *(claim.model for claim in claims)),
        every.configs,
        (),
        (),
        {claim.key: tuple(claim.warnings) for claim in claims if claim.warnings},
    )


def _nodes_for(state: DeviceFleetState, claims: Sequence[ClaimRecord]) -> list[NodeRecord] | None:
    """By rank."""
    index = state.index
    if not 0 < len(claims) <= MAX_CLAIMS:
        return None
    ranks: set[int] = set()
    classes = index.log.classes(index.classes.by_index)
    matter = [False] * len(classes)
    for claim in claims:
        is_plain = claim.group is None and not claim.is_allocated and not claim.excluded_nodes
        query = state.query(claim) if is_plain else None
        shape = None if query is None or isinstance(query, RejectedClaim) else state.places.shape(query)
        if not isinstance(shape, ShapeSearch) or shape.wide:
            return None
        if claim.pinned_node is not None:
            pinned = index.records.get(claim.pinned_node)
            if pinned is None:
                return None
            ranks.add(pinned.rank)
        may_fit = shape.count_bounds.may_fit
        matter = [is_certain or may_fit(each) for is_certain, each in zip(matter, classes, strict=True)]
    for each, matters in zip(classes, matter, strict=True):
        if matters:
            own = (rank for rank in each.ranks if rank in index.by_rank and index.by_rank[rank].member_of is each)
            ranks.update(nsmallest(len(claims), {*own}))
            if len(ranks) > MAX_NODES:
                return None
    return [index.by_rank[rank] for rank in sorted(ranks)]


@dataclass(slots=True, eq=False)
class Echoes:
    """The answers to claims that hold devices, each made once; of a fleet in which nothing is wrong."""

    state: DeviceFleetState
    edition: int | None = None
    """of the state, when nothing was wrong; None if that is not certain"""
    _answers: dict[Key, tuple[object, Answer, bool]] = field(default_factory=dict)
    """claim -> what it has its devices from, its answer, and whether that has only what most have"""

    @property
    def are_all(self) -> bool:
        """Whether still nothing is wrong."""
        return self.edition == self.state.edition

    def note(self, solution: Solution, before: Set[Key]) -> None:
        """Remember those of a solution for all of the fleet. ``before``: the claims that held devices before it."""
        self.edition = None if solution.problems else self.state.edition
        answers = [] if solution.problems else [each for each in solution.claims if each.key in before]
        self._answers = {each.key: _remembered(self.state.source(each.key), each) for each in answers}

    def all_but(self, left_out: Set[Key]) -> list[Answer]:
        """The answers to all claims that hold devices, but for some; the caller may change them."""
        state, cached = self.state, self._answers
        if len(cached) > 2 * len(state.allocations):
            cached = self._answers = {key: cached[key] for key in state.allocations if key in cached}
        shown: list[Answer] = []
        for key in state.allocations:
            source, remembered = state.source(key), cached.get(key)
            if remembered is None or remembered[0] is not source:
                remembered = cached[key] = _remembered(source, settled_answer(state, state.stored(key)))
            if key not in left_out:
                _, answer, is_plain = remembered
                if is_plain:
                    entries = [{**entry} for entry in answer["allocations"]]
                    shown.append({**answer, "allocations": entries, "oneOf": [*answer["oneOf"]]})
                else:
                    shown.append(deepcopy(answer))
        return shown


_PLAIN = frozenset(("namespace", "name", "allocated", "node", "allocations", "oneOf", "reason", "message"))


def _remembered(source: object, answer: ClaimAnswer) -> tuple[object, Answer, bool]:
    shown = answer.to_dict()
    is_plain = (
        shown.keys() <= _PLAIN
        and shown["oneOf"] is not None
        and not any("allocations" in entry for entry in shown["allocations"])
    )
    return source, shown, is_plain


def settled_answer(state: DeviceFleetState, read: ManifestRecord) -> ClaimAnswer:
    """The answer of the stages to a claim that is allocated or invalid.

    Several claims of its name make each other invalid, and the first counts that holds anything.
    """
    problem_input = select_valid(state.of_claim(read))
    if problem_input.refused:
        return min(problem_input.refused, key=lambda refused: refused.status is None).answer()
    (claim,) = problem_input.claims
    snapshot, _ = take_snapshot([*_pools_named(claim, state)])
    _, lost, _ = read_allocations(snapshot, [Holder.of(claim, state.rules.problem_input.classes)])
    return allocated_answer(claim, snapshot, lost.get(claim.key, ()), problem_input.warnings.get(claim.key, ()))


def _pools_named(claim: DeviceClaim, state: DeviceFleetState) -> Iterator[DevicePool]:
    assert claim.status is not None
    for name in dict.fromkeys(entry.device_pool_name for entry in claim.status.allocations):
        yield from pools_of(state.documents.by_name.get(full_name("DevicePool", None, name), ()))
