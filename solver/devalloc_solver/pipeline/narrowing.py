"""Units as a joint search sees them: those that fit somewhere by themselves, on nodes with enough for any of them.

What others get only takes room away, so nothing is lost: the best answers are the same. Where fleets differ in nodes
and claims that do not matter, the same is left, and claims get the same devices: a warm fleet leaves these out from the
start. It does not so with groups, nor with more claims, so such batches stay as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from devalloc_solver.bounds.node_counts import NodeCounts
from devalloc_solver.exact.claim_groups import request_key
from devalloc_solver.exact.goals import may_fit
from devalloc_solver.place import DEFAULT_STEPS, SearchDeadline, StepBudget, StepsExhausted, UnitReader, fits_on
from devalloc_solver.place.step_budget import SharesInterfere
from devalloc_solver.problem.allocations import Holding
from devalloc_solver.problem.demand import AllocationMode, Candidates, Demand, PlacementUnit, Request, in_plain_terms
from devalloc_solver.problem.device_groups import node_signatures
from devalloc_solver.problem.snapshot import Snapshot

MAX_CLAIMS = 256
"""Claims for which a warm fleet finds out which of its nodes matter: to more, most of a fleet may."""
UNIT_STEPS = 10_000
"""Steps of the questions whether one unit fits: 60 ms. One that needs more may fit. Those of a batch have
DEFAULT_STEPS together; units for which nothing is left may fit, too."""
QUESTION_STEPS = 20
"""What a question about one node counts, besides the steps of its search."""
MODEL_STEPS, MODEL_LIMIT = 2_000, 0.02
"""What a question to the exact model counts, and CP-SAT's deterministic time for it (roughly seconds)."""

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
    """The units that may fit, with the candidates on nodes that have enough for any of them."""
    if len(units) > MAX_CLAIMS or any(unit.group is not None for unit in units):
        return units
    kinds = {_kind(unit): unit for unit in units}
    questions = _FitQuestions(snapshot, tuple(allocations), [*kinds.values()], SearchDeadline(ends))
    there = {kind: some for kind, unit in kinds.items() if (some := questions.nodes(unit))}
    if len(there) < len(kinds):
        units = [unit for unit in units if _kind(unit) in there]
    nodes = frozenset(node for alike in there.values() for node in alike)
    if nodes.issuperset(snapshot.nodes):
        return units
    candidates: dict[int, Candidates] = {}

    def narrow(_: Demand, request: Request) -> Request:
        of = request.candidates
        if id(of) not in candidates:
            candidates[id(of)] = _on_nodes(snapshot, of, nodes)
        return request if candidates[id(of)] is of else replace(request, candidates=candidates[id(of)])

    # of a request for every device, without those of a node those of the network would be all there
    return [
        unit if any(request.mode is AllocationMode.EVERY for request in unit.requests) else unit.with_requests(narrow)
        for unit in units
    ]


def _kind(unit: PlacementUnit) -> object:
    """Equal for units that ask for the same."""
    return request_key(unit) or id(unit)


@dataclass(slots=True, eq=False)
class _FitQuestions:
    """Whether units fit next to what is held, each by itself."""

    snapshot: Snapshot
    held: tuple[Holding, ...]
    units: Sequence[PlacementUnit]
    """all that are asked about: nodes where they fare alike are asked about once"""
    deadline: SearchDeadline
    left: int = DEFAULT_STEPS
    _counts: NodeCounts = field(init=False)
    _reader: UnitReader = field(default_factory=UnitReader)
    _looks: Mapping[Node, int] | None = None

    def __post_init__(self) -> None:
        self._counts = NodeCounts(self.snapshot)

    def nodes(self, unit: PlacementUnit) -> Sequence[Node]:
        """The nodes with enough for a unit; none if it fits nowhere."""
        nodes = self._counts.nodes(unit, self.held)
        given = min(UNIT_STEPS, self.left)
        steps = StepBudget(given, self.deadline)
        try:
            fits = any(self._fits_on(unit, node, steps) for node in self._one_of_each(nodes))
        except StepsExhausted:
            fits = True
        self.left -= given - max(0, steps.left)
        return nodes if fits else []

    def _fits_on(self, unit: PlacementUnit, node: Node, steps: StepBudget) -> bool:
        steps.spend(QUESTION_STEPS)
        try:
            usage = self._counts.state(self.held).usage
            return fits_on(self.snapshot, usage, unit, node, steps=steps, reader=self._reader)
        except SharesInterfere:  # a warm fleet, too, leaves out what the exact model proves not to fit
            steps.spend(MODEL_STEPS)
            return may_fit(self.snapshot, self.held, replace(unit, pin=node), self.deadline.ends, limit=MODEL_LIMIT)

    def _one_of_each(self, nodes: Sequence[Node]) -> Iterator[Node]:
        """The nodes without those that look like an earlier one. Most units fit on the first."""
        yield from nodes[:1]
        seen = {self._look(node) for node in nodes[:1]} if len(nodes) > 1 else set()
        for node in nodes[1:]:
            if (look := self._look(node)) not in seen:
                seen.add(look)
                yield node

    def _look(self, node: Node) -> int | None:
        if self._looks is None:
            numbers: dict[object, int] = defaultdict(lambda: len(numbers))  # signatures are large, and slow to hash
            usage = self._counts.state(self.held).usage
            looks = node_signatures(self.snapshot, usage, self.units, lambda pool: None)
            self._looks = {other: numbers[look] for other, look in looks.items()}
        return self._looks.get(node)


def _on_nodes(snapshot: Snapshot, candidates: Candidates, nodes: frozenset[Node]) -> Candidates:
    """Those candidates that are on these nodes, or the network's."""
    devices, pools = snapshot.devices, snapshot.pools
    accepted = {
        index: named
        for index, named in candidates.accepted.items()
        if (node := pools[devices[index].pool].node) is None or node in nodes
    }
    return candidates if len(accepted) == len(candidates.accepted) else replace(candidates, accepted=accepted)
