"""Feasibility: whether a unit fits a fleet next to what is allocated, asked repeatedly with something relaxed."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from devalloc.api.meta import ONLY_CLASS
from devalloc_solver.bounds.node_counts import NodeCounts
from devalloc_solver.exact.device_naming import name_devices
from devalloc_solver.place import (
    DEFAULT_STEPS,
    SearchDeadline,
    SearchTimeout,
    StepBudget,
    StepsExhausted,
    UnitReader,
    fits_on,
    place_on,
)
from devalloc_solver.problem.allocations import Holding, Key, Usage
from devalloc_solver.problem.demand import Demand, PlacementUnit, Request
from devalloc_solver.problem.placement import Placement
from devalloc_solver.problem.snapshot import Device, Pool, Snapshot

Node = str | None


@dataclass(slots=True)
class EqualNodes:
    """Compares the nodes of one fleet, by the attributes that matter."""

    snapshot: Snapshot
    _static: list[int] | None = None
    """device -> a number for all but its attributes"""
    _signatures: dict[frozenset[str], dict[Node, object]] = field(default_factory=dict)

    def one_of_each(self, nodes: Iterable[Node], names: frozenset[str], touched: frozenset[Node]) -> list[Node]:
        """The nodes without those that look like an earlier one.

        ``names`` are the attributes that anything reads; ``touched`` nodes are not what the fleet says they are.
        """
        signatures = self._signatures_by(names)
        seen: set[object] = set()
        distinct = []
        for node in nodes:
            signature = node if node in touched else signatures.get(node)
            if signature not in seen:
                seen.add(signature)
                distinct.append(node)
        return distinct

    def _signatures_by(self, names: frozenset[str]) -> dict[Node, object]:
        if names not in self._signatures:
            static = self._static_numbers()
            order = sorted({*names, ONLY_CLASS})
            numbers: dict[object, int] = {}

            def number(device: Device) -> int:
                values = tuple((type(v), v) if v is not None else None for v in map(device.attributes.get, order))
                key = (static[device.index], values, device.unavailable, device.compatibility)
                return numbers.setdefault(key, len(numbers))

            def pool_signature(pool: Pool) -> object:
                limits = tuple((name, r.block, r.blocks) for name, r in sorted(pool.resources.items()))
                return pool.driver, limits, tuple(sorted(map(number, pool.devices)))

            by_node = self.snapshot.pools_by_node
            self._signatures[names] = {
                node: tuple(map(pool_signature, pools)) for node, pools in by_node.items() if node is not None
            }
        return self._signatures[names]

    def _static_numbers(self) -> list[int]:
        if self._static is None:
            numbers: dict[object, int] = defaultdict(lambda: len(numbers))
            self._static = [
                numbers[
                    device.draws,
                    device.undefined,
                    device.shareable,
                    tuple((name, r.block, r.blocks) for name, r in sorted(device.resources.items())),
                ]
                for device in self.snapshot.devices
            ]
        return self._static


FEW_NODES = 4
"""Nodes that are searched rather than compared."""
PROBE_STEPS = 2_000
"""Steps of ``place`` that a probe may take; a step is a few microseconds."""
FINDING_STEPS = 3_500
"""The same for all probes of a finding."""
HARD_STEPS, HARD_QUESTIONS = 10_000, 4
"""Steps that one question may take that a finding hangs on, and how many such questions a checker answers."""
HARD_LIMIT = 0.5
"""CP-SAT's deterministic time (roughly seconds) for such a question."""


class Undecided(Exception):
    """The deadline or the search limit came before it was known whether a unit fits."""


@dataclass(frozen=True, slots=True, eq=False)
class FeasibilityQuestion:
    """Does the unit fit? Devices keep their indexes in whatever an edit makes of the snapshot."""

    snapshot: Snapshot
    unit: PlacementUnit
    held: tuple[Holding, ...] = ()
    touched: frozenset[str | None] = frozenset()
    """nodes with a pool that was edited on its own; edits of all pools alike leave alike what was"""
    source: ProblemSource | None = None
    """what all this was decoded from, if relaxations may change that"""
    is_decoded: bool = True
    """False: the source is wrong, so nothing fits"""

    def with_requests(
        self, change: Callable[[Demand, Request], Request | None], only: Key | None = None
    ) -> FeasibilityQuestion:
        """The same with other requests: see ``PlacementUnit.with_requests``."""
        return replace(self, unit=self.unit.with_requests(change, only))

    def with_demands(self, change: Callable[[Demand], Demand | None]) -> FeasibilityQuestion:
        """The same with every demand changed; one that becomes None goes."""
        demands = tuple(new for demand in self.unit.demands if (new := change(demand)) is not None)
        return replace(self, unit=replace(self.unit, demands=demands))

    def without_members(self, keys: Set[Key]) -> FeasibilityQuestion:
        """The same once claims have left the group."""
        return replace(self, unit=self.unit.without(keys))

    def touching(self, pool: Pool) -> FeasibilityQuestion:
        """The same, knowing that an edit was about this pool only."""
        return replace(self, touched=self.touched | {pool.node})

    def with_pools(self, change: Callable[[Pool], Pool]) -> FeasibilityQuestion:
        """The same with every pool changed, and the devices that are in it then."""
        old = self.snapshot
        pools = tuple(change(pool) for pool in old.pools)
        devices = list(old.devices)
        for pool, before in zip(pools, old.pools, strict=True):
            if pool.devices is not before.devices:
                for device in pool.devices:
                    devices[device.index] = device
        by_node = {node: tuple(pools[p.index] for p in some) for node, some in old.pools_by_node.items()}
        by_name = {name: tuple(pools[p.index] for p in some) for name, some in old.pools_by_name.items()}
        snapshot = replace(old, pools=pools, devices=tuple(devices), pools_by_node=by_node, pools_by_name=by_name)
        return replace(self, snapshot=snapshot)

    def with_devices(self, changed: Mapping[int, Device]) -> FeasibilityQuestion:
        """The same with these devices in the place of those of the same index."""
        touched = {device.pool for device in changed.values()}

        def change(pool: Pool) -> Pool:
            if pool.index not in touched:
                return pool
            return replace(pool, devices=tuple(changed.get(d.index, d) for d in pool.devices))

        return self.with_pools(change)

    def pinned(self, node: str | None) -> FeasibilityQuestion:
        return replace(self, unit=replace(self.unit, pin=node))

    def without(self, claims: frozenset[Key]) -> FeasibilityQuestion:
        """The same once these claims are released."""
        return replace(self, held=tuple(allocation for allocation in self.held if allocation.owner not in claims))


class ProblemSource(Protocol):
    """What a problem is decoded from, and what relaxations change of it."""

    def decode(self, question: FeasibilityQuestion) -> FeasibilityQuestion:
        """The question about the problem that this is, with the same claims released."""

    def judge_beside_held(self, question: FeasibilityQuestion) -> FeasibilityQuestion:
        """The question without the candidates that what is held rules out, and ``Usage`` does not know of."""


@dataclass(slots=True)
class FeasibilityChecker:
    """Answers questions about one fleet and what edits make of it, for certain or not at all."""

    snapshot: Snapshot
    reads: Callable[[Request], frozenset[str] | None]
    """the attributes that the expressions of a request read; None: any"""
    ends: float | None = None
    """monotonic time of the deadline"""
    is_bounded: bool = True
    """probes may take so much work only; otherwise they search until they know. For fleets of one node"""
    counting: NodeCounts = field(init=False)
    alike: EqualNodes = field(init=False)
    searched: int = field(default=0, init=False)
    """nodes that were searched, so that a caller can bound its work the same way every time"""
    is_cut_short: bool = field(default=False, init=False)
    """a probe of this finding was too hard to be answered"""
    is_late: bool = field(default=False, init=False)
    """a question of this finding had no time: that is known before the time is over"""
    _left: int = field(default=0, init=False)
    _hard_left: int = field(default=HARD_QUESTIONS, init=False)
    _reader: UnitReader = field(default_factory=UnitReader, init=False)

    def __post_init__(self) -> None:
        self.counting, self.alike = NodeCounts(self.snapshot), EqualNodes(self.snapshot)

    def fits(self, question: FeasibilityQuestion) -> bool:
        """Whether the unit fits, for certain; not counted as searched. Raises Undecided."""
        searched = self.searched
        fitting, hard = self._look(question, None, self._fits_on)
        self.searched = searched
        return fitting is not None or any(self._search(question, node) is not None for node in hard)

    def works(self, question: FeasibilityQuestion) -> bool:
        """The same with little work: False may also mean that it is not known, and then ``is_cut_short`` is set."""
        return self._probe(question, self._fits_on) is not None

    def works_if_searched(self, question: FeasibilityQuestion) -> bool:
        """The same as ``works`` with much more work, for the few questions that a finding hangs on."""
        if self._hard_left <= 0:
            return False
        fitting, hard = self._look(question, self._budget(HARD_STEPS), self._fits_on)
        if fitting is None and hard:
            self._hard_left -= 1
            try:
                return self._search(question, hard[0], HARD_LIMIT) is not None
            except Undecided:
                return False
        return fitting is not None

    def probe(self, question: FeasibilityQuestion, *, any_will_do: bool = False) -> Sequence[Placement] | None:
        """Where the unit goes best on some node, or just somehow, with little work; None as with ``works``."""
        placements: Sequence[Placement] | None = self._probe(question, partial(self._place_on, any_will_do=any_will_do))
        return placements

    def begin(self) -> None:
        """Begin with the next finding: its probes have a budget of their own."""
        self._left, self.is_cut_short, self.is_late = FINDING_STEPS, False, False

    def refill(self, steps: int = FINDING_STEPS) -> None:
        """Begin with another part of the same finding, which may take so many steps."""
        self._left = steps

    @property
    def has_steps(self) -> bool:
        """Whether probes may still be asked in this part of the finding."""
        return self._left > 0

    def _probe(self, question: FeasibilityQuestion, search_function: SearchFunction) -> Any:
        if not self.is_bounded:
            answer, hard = self._look(question, None, search_function)
            return self._search_all(question, hard) if answer is None else answer
        if self._left <= 0:
            self.is_cut_short = True
            return None
        budget = self._budget(min(PROBE_STEPS, self._left))
        given = budget.left
        answer, hard = self._look(question, budget, search_function)
        self._left -= given - max(0, budget.left)
        if answer is None and hard and budget.left >= 0:  # not too hard: ``place`` does not know such units
            return self._search_all(question, hard)
        self.is_cut_short |= answer is None and bool(hard)
        return answer

    def _search_all(self, question: FeasibilityQuestion, hard: Sequence[str | None]) -> Sequence[Placement] | None:
        return next((there for node in hard if (there := self._search(question, node)) is not None), None)

    def _look(
        self, question: FeasibilityQuestion, budget: StepBudget | None, search_function: SearchFunction
    ) -> tuple[Any, list[str | None]]:
        """The answer of a node where the unit fits, or None, and the nodes where the steps ran out.

        ``budget`` is for all nodes together; without it each has one of its own.
        """
        if not question.is_decoded:
            return None, []
        if question.source is not None and question.held:
            question = question.source.judge_beside_held(question)
        details = [detail for demand in question.unit.demands for detail in demand.details]
        if not details:
            return (), []
        if any(not any(request.candidates.accepted for request in detail) for detail in details):
            return None, []
        usage = self.usage(question)
        hard: list[str | None] = []
        for node in self._nodes(question):
            if self.ends is not None and time.monotonic() > self.ends:
                raise self._too_late()
            self.searched += 1
            try:
                answer = search_function(question, usage, node, budget or self._budget(DEFAULT_STEPS))
            except SearchTimeout:
                raise self._too_late() from None
            except StepsExhausted:
                hard.append(node)
                if budget is not None and budget.left <= 0:
                    break
                continue
            if answer is not None:
                return answer, []
        return None, hard

    def _budget(self, steps: int) -> StepBudget:
        """So many steps, and no longer than until the deadline."""
        return StepBudget(steps, SearchDeadline(self.ends, grace=0))

    def _nodes(self, question: FeasibilityQuestion) -> Sequence[str | None]:
        """Nodes that are worth a search."""
        if question.unit.pin is not None:
            return [question.unit.pin]
        nodes = self.counting.nodes(question.unit, question.held)
        if question.held or len(nodes) < FEW_NODES:
            return nodes
        names = set()
        for demand in question.unit.demands:
            names |= {*demand.match, *demand.shared}
            names |= {relation.attribute for relation in demand.relations}
            for request in demand.requests:
                read = self.reads(request)
                if read is None:
                    return nodes
                names |= read | {*request.match}
        return self.alike.one_of_each(nodes, frozenset(names), question.touched)

    def usage(self, question: FeasibilityQuestion) -> Usage:
        """What is in use; that of all allocations is kept, and its parts are small."""
        pinned = question.unit.pin is not None
        if question.snapshot is self.snapshot and not pinned:
            return self.counting.state(question.held).usage
        return Usage.of(question.snapshot, question.held)

    def _fits_on(self, question: FeasibilityQuestion, usage: Usage, node: str | None, steps: StepBudget) -> bool | None:
        return fits_on(question.snapshot, usage, question.unit, node, steps=steps, reader=self._reader) or None

    def _place_on(
        self, question: FeasibilityQuestion, usage: Usage, node: str | None, steps: StepBudget, *, any_will_do: bool
    ) -> Sequence[Placement] | None:
        snapshot, unit = question.snapshot, question.unit
        placed = place_on(snapshot, usage, unit, node, steps=steps, any_will_do=any_will_do, reader=self._reader)
        return None if placed is None else placed.placements

    def _search(
        self, question: FeasibilityQuestion, node: str | None, limit: float | None = None
    ) -> Sequence[Placement] | None:
        """The same for a node that ``place`` does not settle within its budget. Raises Undecided."""
        from devalloc_solver.exact.goal_search import STEP_LIMIT, GoalSearch
        from devalloc_solver.exact.model import build_model

        pinned = question if node is None else question.pinned(node)
        try:
            model = build_model(pinned.snapshot, pinned.held, [pinned.unit], ends=self.ends)
        except SearchTimeout:
            raise self._too_late() from None
        search = GoalSearch(model, self.ends)
        value, bound = search.maximize([(1, search.model.satisfied[0])], best=1, limit=limit or STEP_LIMIT)
        if value:
            return name_devices(search)
        if bound > 0:
            raise self._too_late() if search.is_cut_by_time else Undecided
        return None

    def _too_late(self) -> Undecided:
        self.is_late = True
        return Undecided()


SearchFunction = Callable[[FeasibilityQuestion, Usage, "str | None", StepBudget], Any]
"""Asks one node, within so many steps: something when the unit fits, None when it does not. Raises StepsExhausted."""
