"""Units as a joint search sees them: those that fit somewhere by themselves, on nodes where any of them does.

What others get only takes room away, so nothing is lost: the best answers are the same. Where fleets differ in nodes
and claims that do not matter, the same is left, and claims get the same devices: a warm fleet leaves these out from the
start. It does not so with groups, so batches with groups stay as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache

from devalloc_solver.bounds.node_counts import NodeCounts
from devalloc_solver.exact.claim_groups import request_key
from devalloc_solver.exact.goals import may_fit
from devalloc_solver.place import SearchDeadline, StepBudget, StepsExhausted, UnitReader, fits_on
from devalloc_solver.place.step_budget import SharesInterfere
from devalloc_solver.problem.allocations import Holding
from devalloc_solver.problem.demand import AllocationMode, Candidates, Demand, PlacementUnit, Request, in_plain_terms
from devalloc_solver.problem.device_groups import node_signatures
from devalloc_solver.problem.snapshot import Snapshot

MAX_QUESTIONS = 300
"""Whether a unit fits on a node is asked no more often for a batch; one that needs more is searched as it is. Each
question takes about 0.1 ms."""
MAX_STEPS = 5_000
"""Of the search for each unit, 30 ms. One that needs more may fit: it would take the time of all."""
MAX_HARD_QUESTIONS = 30
"""How many of these the exact model answers; those beyond count as yes. Each takes about 5 ms."""

Node = str | None


def in_search_terms(snapshot: Snapshot, units: Sequence[PlacementUnit]) -> list[PlacementUnit]:
    """The units with constraints in the form that is quickest to search."""

    @cache
    def is_listed(attribute: str) -> bool:
        return any(isinstance(device.attributes.get(attribute), frozenset) for device in snapshot.devices)

    def plain(unit: PlacementUnit) -> PlacementUnit:
        if not any(demand.relations for demand in unit.demands):
            return unit
        return replace(unit, demands=tuple([in_plain_terms(demand, is_listed) for demand in unit.demands]))

    return [plain(unit) for unit in units]


def narrowed(
    snapshot: Snapshot, allocations: Sequence[Holding], units: Sequence[PlacementUnit], ends: float | None
) -> Sequence[PlacementUnit]:
    """The units that may fit, with the candidates that any of them may get."""
    if any(unit.group is not None for unit in units):
        return units
    kinds = {_kind(unit): unit for unit in units}
    mattering = _what_matters(snapshot, tuple(allocations), kinds, SearchDeadline(ends))
    if mattering is None:
        return units
    fitting, nodes = mattering
    candidates: dict[int, Candidates] = {}

    def narrow(request: Request) -> Request:
        of = request.candidates
        if id(of) not in candidates:
            candidates[id(of)] = _on_nodes(snapshot, of, nodes)
        return request if candidates[id(of)] is of else replace(request, candidates=candidates[id(of)])

    return [_with_requests(unit, narrow) for unit in units if _kind(unit) in fitting]


def _kind(unit: PlacementUnit) -> object:
    """Equal for units that ask for the same."""
    return request_key(unit) or id(unit)


def _what_matters(
    snapshot: Snapshot, held: tuple[Holding, ...], kinds: Mapping[object, PlacementUnit], deadline: SearchDeadline
) -> tuple[set[object], frozenset[Node]] | None:
    """The kinds of units that fit somewhere, or may, and the nodes where any does; None where too much is to be asked.

    ``kinds``: a unit of each.
    """
    counting, reader = NodeCounts(snapshot), UnitReader()
    usage = counting.state(held).usage
    looks = node_signatures(snapshot, usage, [*kinds.values()], lambda pool: None)
    numbers: dict[object, int] = defaultdict(lambda: len(numbers))  # signatures are large, and hashed anew each time
    numbered: Mapping[Node, int] = {node: numbers[looks.get(node)] for node in snapshot.nodes}
    all_by_look = _by_look(numbered, snapshot.nodes)
    fitting: set[object] = set()
    nodes: dict[int | None, set[Node]] = {}
    questions = hard = 0
    for kind, unit in kinds.items():
        there = counting.nodes(unit, held)
        by_look = all_by_look if len(there) == len(numbered) else _by_look(numbered, there)
        steps, fits = StepBudget(MAX_STEPS, deadline), False
        for look, alike in by_look.items():
            if fits and nodes.get(look, set()).issuperset(alike):
                continue
            questions += 1
            if questions > MAX_QUESTIONS:
                return None
            try:
                does_fit = fits_on(snapshot, usage, unit, alike[0], steps=steps, reader=reader)
            except SharesInterfere:  # a warm fleet, too, leaves out what the exact model proves not to fit
                hard += 1
                pinned = replace(unit, pin=alike[0])
                does_fit = hard > MAX_HARD_QUESTIONS or may_fit(snapshot, held, pinned, deadline.ends)
            except StepsExhausted:
                does_fit = True
            if does_fit:
                fits = True
                nodes.setdefault(look, set()).update(alike)
        if fits:
            fitting.add(kind)
    return fitting, frozenset(node for alike in nodes.values() for node in alike)


def _by_look(numbered: Mapping[Node, int], nodes: Iterable[Node]) -> Mapping[int | None, Sequence[Node]]:
    by_look: dict[int | None, list[Node]] = defaultdict(list)
    for node in nodes:
        by_look[numbered.get(node)].append(node)
    return by_look


def _on_nodes(snapshot: Snapshot, candidates: Candidates, nodes: frozenset[Node]) -> Candidates:
    """Those candidates that are on these nodes, or the network's."""
    devices, pools = snapshot.devices, snapshot.pools
    accepted = {
        index: named
        for index, named in candidates.accepted.items()
        if (node := pools[devices[index].pool].node) is None or node in nodes
    }
    return candidates if len(accepted) == len(candidates.accepted) else replace(candidates, accepted=accepted)


def _with_requests(unit: PlacementUnit, change: Callable[[Request], Request]) -> PlacementUnit:
    requests = [request for demand in unit.demands for request in demand.requests]
    if any(request.mode is AllocationMode.EVERY for request in requests):
        return unit  # without a node's own candidates, those of the network would be all there
    if all(change(request) is request for request in requests):
        return unit

    def changed(demand: Demand) -> Demand:
        return replace(demand, details=tuple(tuple(map(change, detail)) for detail in demand.details))

    return replace(unit, demands=tuple(map(changed, unit.demands)))
