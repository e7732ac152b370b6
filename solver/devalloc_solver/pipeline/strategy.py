"""Choose how to search: one unit is placed directly, a batch by the exact model, a large one by column generation."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from devalloc_solver.cel.budget import SEARCH_CUT_SHORT, OutOfTime, SearchCutShort
from devalloc_solver.deadline import GRACE_SECONDS
from devalloc_solver.exact.device_naming import name_devices
from devalloc_solver.exact.goal_search import GoalSearch
from devalloc_solver.exact.goals import optimize_goals
from devalloc_solver.exact.model import build_model, is_solver_loaded, model_size
from devalloc_solver.exact.warm_start import start_search
from devalloc_solver.pipeline.decomposition import Subproblem, join_subproblems, split_by_device, split_by_pool
from devalloc_solver.pipeline.narrowing import in_search_terms, narrowed
from devalloc_solver.pipeline.natural_order import in_natural_order
from devalloc_solver.place import (
    DEFAULT_STEPS,
    SearchDeadline,
    SearchTimeout,
    SharesInterfere,
    StepBudget,
    StepsExhausted,
    UnitPlacement,
    place,
    place_on,
)
from devalloc_solver.place.greedy import place_evenly, place_greedily
from devalloc_solver.place.node_order import batch_nodes, candidate_nodes, least_use
from devalloc_solver.place.node_view import Place
from devalloc_solver.place.search_context import SearchContext, score_of
from devalloc_solver.problem.allocations import Holding, Usage
from devalloc_solver.problem.demand import Candidates, Demand, PlacementUnit, Request
from devalloc_solver.problem.placement import GoalLevel, PlacedDevice, Placement, growth_of
from devalloc_solver.problem.placement_policy import PACK, PlacementPolicy
from devalloc_solver.problem.placement_score import PlacementScore
from devalloc_solver.problem.snapshot import Snapshot, join_pools, renumber

COMPARED_NODES = 8
"""Nodes on which a claim of shares that meet is tried, to leave them even. Each takes CP-SAT 30 to 100 ms."""
EXACT_SIZE = 4_000
"""Variables up to which a batch is solved as one exact model; beyond, it is decomposed into columns. At 1,000, the 40
batches of 30 and 100 claims of the benchmark `batches` take half the time, but nine of them more pools, and in four the
choice of claims is not exact."""

QUICK_SIZE = 1_000
"""Variables up to which an exact model is quickly built and searched."""

COLUMNS_SIZE = 50
"""Variables from which on columns, if they are few, are quicker than an exact model; a quick search then begins with
them."""

QUICK_SHARE = 0.02
"""Seconds that a part of a quick search has at least: many parts with less are all cut short, and none is answered."""


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """What a search came to."""

    placements: list[Placement]
    """of the units that are satisfied"""
    levels: list[GoalLevel]
    """each goal of S17 with its bound"""
    doubtful: list[Subproblem] = field(default_factory=list)
    """the parts of which more claims may be satisfiable than are"""
    unproven: list[Subproblem] = field(default_factory=list)
    """of these the ones whose time was over first, or that a quick search has left"""

    def unsatisfied(
        self, units: Iterable[PlacementUnit], *, is_quick: bool
    ) -> tuple[list[PlacementUnit], list[PlacementUnit]]:
        """(units whose reason is to be found, those that a quick search leaves for later)"""
        placed = {placement.demand.key for placement in self.placements}
        later = {key for part in self.unproven for key in part.keys} if is_quick else set()
        left_out = [unit for unit in units if unit.demands[0].key not in placed]
        return (
            [unit for unit in left_out if unit.demands[0].key not in later],
            [unit for unit in left_out if unit.demands[0].key in later],
        )


def search_parts(
    snapshot: Snapshot,
    allocations: Sequence[Holding],
    units: Sequence[PlacementUnit],
    *,
    policy: PlacementPolicy,
    ends: float | None,
    is_quick: bool = False,
) -> SearchOutcome:
    """Solve the parts of a batch one after the other, the easy ones first.

    Each gets an even share of the time that is left, and what it does not need is there for those after it. Units that
    fit nowhere even by themselves are in no part.

    Args:
        allocations: what is in use already.
        policy: how to choose among answers that are as good in goals 1 to 4 of S17.
        ends: monotonic time of the deadline, None for none.
        is_quick: leave parts that take long to search: they are ``unproven``, and nothing of them is placed. Claims
            that compete with these for pools only, and not for devices, are placed without them.
    """
    priorities = [demand.claim.priority for unit in units for demand in unit.demands]
    units = in_search_terms(snapshot, units)
    if len(units) > 1:
        units = narrowed(snapshot, allocations, units, ends)
    parts = split_by_pool(snapshot, units)
    nearby = _UsageByNode(snapshot, allocations) if len(parts) > 1 or is_quick else None
    outcomes: list[SearchOutcome] = []
    while parts:
        part, left = parts[0], None if ends is None else ends - time.monotonic()
        if left is not None and left <= 0 and len(parts) > 1 and not is_quick:
            part = join_subproblems(
                parts
            )  # one first fit for all that is left, so that they take no longer than one would
            parts = [part]
        until = ends
        if left is not None:
            share = max(0.0, left) / len(parts)
            until = time.monotonic() + (max(share, min(left, QUICK_SHARE)) if is_quick else share)
        if nearby is None:
            outcome = _search_part(snapshot, allocations, part, policy, until)
        elif is_quick:
            is_first = not any(outcome.placements for outcome in outcomes)
            outcome = _search_quickly(snapshot, nearby, part, policy, until, may_be_large=is_first)
        else:
            outcome = _search_part(snapshot, nearby.of(part), part, policy, until)
            nearby.add(outcome.placements)
        outcomes.append(outcome)
        parts = parts[1:]
    outcome = outcomes[0] if len(outcomes) == 1 else _combined_outcome(outcomes)
    placements = outcome.placements
    if policy.weighs_loads and len(units) > 1:
        unproven = {key for part in outcome.unproven for key in part.keys} if is_quick else set()
        tried = [unit for unit in units if unit.demands[0].key not in unproven]
        placements = _most_even(snapshot, allocations, tried, placements, policy, ends)
    if len(placements) > 1:
        placements = in_natural_order(snapshot, allocations, placements)
    return replace(outcome, levels=add_rejected_claims(outcome.levels, priorities), placements=placements)


def _search_quickly(
    snapshot: Snapshot,
    nearby: _UsageByNode,
    part: Subproblem,
    policy: PlacementPolicy,
    ends: float | None,
    *,
    may_be_large: bool,
) -> SearchOutcome:
    """What is soon found for the units of a part; where that is not all of it, for its parts by device."""
    outcome = _quick_outcome(snapshot, nearby, part, policy, ends, may_be_large=may_be_large)
    pieces = split_by_device(snapshot, part.units) if outcome.unproven and len(part.units) > 1 else []
    if len(pieces) > 1:
        outcomes = []
        for number, piece in enumerate(pieces):
            left = None if ends is None else max(0.0, ends - time.monotonic()) / (len(pieces) - number)
            until = None if left is None else time.monotonic() + left
            outcomes.append(_quick_outcome(snapshot, nearby, piece, policy, until, may_be_large=False))
            nearby.add(outcomes[-1].placements)
        return _with_shared_pools(_combined_outcome(outcomes), outcomes)
    nearby.add(outcome.placements)
    return outcome


def _quick_outcome(
    snapshot: Snapshot,
    nearby: _UsageByNode,
    part: Subproblem,
    policy: PlacementPolicy,
    ends: float | None,
    *,
    may_be_large: bool,
) -> SearchOutcome:
    """The answer to a part, if it is likely to be there soon; else one in which all of it is unproven."""
    allocations = nearby.of(part)
    exhausted = None
    if len(part.units) == 1:
        try:
            return _place_single_unit(snapshot, allocations, part, policy, ends, is_quick=True)
        except StepsExhausted as error:
            exhausted = error.node
    size = model_size(snapshot, Usage.of(snapshot, allocations), part.units, enough=EXACT_SIZE)
    if size > EXACT_SIZE and may_be_large:
        return _search_jointly(snapshot, allocations, part, policy, ends, exhausted)
    if COLUMNS_SIZE < size <= EXACT_SIZE and is_solver_loaded() and not _deadline_passed(ends):
        placements, levels = _place_by_columns(snapshot, allocations, part.units, policy, ends, is_quick=True)
        if levels and _is_proven_best(levels):
            return SearchOutcome(placements, levels)
    if size <= QUICK_SIZE and is_solver_loaded() and not _deadline_passed(ends):
        outcome = _search_jointly(snapshot, allocations, part, policy, ends, exhausted)
        if not outcome.unproven:
            return outcome
    return SearchOutcome([], _levels_before_search(part.units), [part], [part])


def _levels_before_search(units: Sequence[PlacementUnit]) -> list[GoalLevel]:
    """Of nothing placed, where all may fit."""
    requested = Counter(demand.claim.priority for unit in units for demand in unit.demands)
    levels = [GoalLevel("satisfied", 0, requested[priority], priority) for priority in sorted(requested, reverse=True)]
    return [*levels, GoalLevel("pools", 0, 0), GoalLevel("devices", 0, 0)]


def _deadline_passed(ends: float | None) -> bool:
    return ends is not None and time.monotonic() > ends


def _with_shared_pools(outcome: SearchOutcome, outcomes: Sequence[SearchOutcome]) -> SearchOutcome:
    """The outcome of parts by device: those of one pool count it once (S17, goal 3)."""
    pools = {entry.device.pool for placed in outcome.placements for entry in placed.entries}
    bound = max(level.bound for each in outcomes for level in each.levels if level.goal == "pools")
    fewest = min(1, len(pools))  # with other pools fewer devices may do
    levels = []
    for level in outcome.levels:
        if level.goal == "pools":
            level = replace(level, value=len(pools), bound=bound)
        elif level.goal == "devices" and len(pools) > bound:
            level = replace(level, bound=fewest)
        levels.append(level)
    return replace(outcome, levels=levels)


def _most_even(
    snapshot: Snapshot,
    allocations: Sequence[Holding],
    units: Sequence[PlacementUnit],
    placements: list[Placement],
    policy: PlacementPolicy,
    ends: float | None,
) -> list[Placement]:
    """Those that the policy likes best of these, those that answer the units one by one, and those that fill pool after
    pool; of the latter two where they are as good in goals 1 to 4 of S17."""
    before = Usage.of(snapshot, allocations)
    best, goals = growth_of(before, placements, policy.measure), _goal_values(placements)
    for fill in (False, True):
        rival = place_evenly(snapshot, allocations, units, policy=policy, ends=ends, fill=fill)
        if _goal_values(rival) == goals and (more := growth_of(before, rival, policy.measure)) < best:
            placements, best = rival, more
    return placements


def _goal_values(placements: Sequence[Placement]) -> object:
    """Goals 1 to 4 of S17: who is satisfied and by which alternatives, how many pools, how many devices."""
    entries = [entry for placed in placements for entry in placed.entries]
    chosen = {
        placed.demand.key: sorted({(e.request.detail, e.request.alternative or 0) for e in placed.entries})
        for placed in placements
    }
    return chosen, len({entry.device.pool for entry in entries}), len({entry.device.index for entry in entries})


def _search_part(
    snapshot: Snapshot, allocations: Sequence[Holding], part: Subproblem, policy: PlacementPolicy, ends: float | None
) -> SearchOutcome:
    if len(part.units) != 1:
        return _search_jointly(snapshot, allocations, part, policy, ends)
    try:
        return _place_single_unit(snapshot, allocations, part, policy, ends)
    except StepsExhausted as error:
        return _search_jointly(snapshot, allocations, part, policy, ends, error.node)


def _search_jointly(
    snapshot: Snapshot,
    allocations: Sequence[Holding],
    part: Subproblem,
    policy: PlacementPolicy,
    ends: float | None,
    exhausted: str | None = None,
) -> SearchOutcome:
    """What the exact model, or columns, come to. ``exhausted``: see ``_as_on_node_alone``."""
    units = part.units
    placements, levels = _place_jointly(snapshot, allocations, units, policy, ends)
    was_cut = ends is not None and time.monotonic() > ends - GRACE_SECONDS  # a search may stop a little before its time
    if _is_proven(levels):
        if len(units) == 1:
            usage = Usage.of(snapshot, allocations)
            placements = _as_on_node_alone(usage, units[0], placements, policy, ends, exhausted)
        return SearchOutcome(placements, levels)
    if not was_cut:
        return SearchOutcome(placements, levels, [part])
    return SearchOutcome(*_at_least_first_fit(snapshot, allocations, units, policy, placements, levels), [part], [part])


def _is_proven(levels: Sequence[GoalLevel]) -> bool:
    return all(level.is_proven for level in levels if level.priority is not None)


def _combined_outcome(outcomes: Sequence[SearchOutcome]) -> SearchOutcome:
    """Parts that share no pool: their counts, pools and devices add up, and so do the bounds."""
    sums: dict[tuple[str, int | None], GoalLevel] = {}
    for level in (level for outcome in outcomes for level in outcome.levels):
        before = sums.get((level.goal, level.priority))
        if before is not None:
            choice = before.choice and level.choice
            level = replace(level, value=before.value + level.value, bound=before.bound + level.bound, choice=choice)
        sums[level.goal, level.priority] = level
    counts = sorted((level for level in sums.values() if level.priority is not None), key=lambda one: -_priority(one))
    certain = True
    levels: list[GoalLevel] = []
    for level in counts:  # of claims below a level that is uncertain nothing is certain
        certain = certain and level.choice
        levels.append(replace(level, choice=certain))
    levels += [sums[goal, None] for goal in ("oneOf", "pools", "devices") if (goal, None) in sums]
    placements = [placed for outcome in outcomes for placed in outcome.placements]
    doubtful = [part for outcome in outcomes for part in outcome.doubtful]
    return SearchOutcome(placements, levels, doubtful, [part for outcome in outcomes for part in outcome.unproven])


def _priority(level: GoalLevel) -> int:
    return level.priority or 0


class _UsageByNode:
    """What is in use, by node: a part need not look at what is held elsewhere."""

    def __init__(self, snapshot: Snapshot, allocations: Iterable[Holding]) -> None:
        self._snapshot = snapshot
        self._all: list[Holding] = []
        self._by_node: dict[str | None, list[Holding]] = defaultdict(list)
        for allocation in allocations:
            self._add(allocation)

    def add(self, placements: Iterable[Placement]) -> None:
        for placed in placements:
            self._add(placed.holding())

    def _add(self, allocation: Holding) -> None:
        self._all.append(allocation)
        pools, devices = self._snapshot.pools, self._snapshot.devices
        for node in {pools[devices[item.device].pool].node for item in allocation.items}:
            self._by_node[node].append(allocation)

    def of(self, part: Subproblem) -> Sequence[Holding]:
        """Of all nodes where a unit of the part may be: anywhere, where the network has devices for it."""
        nodes = {self._snapshot.pools[pool].node for pool in part.pools}
        if None in nodes or not nodes:
            return self._all
        if len(nodes) == 1:
            return self._by_node[nodes.pop()]
        return [*{id(allocation): allocation for node in nodes for allocation in self._by_node[node]}.values()]


def _at_least_first_fit(
    snapshot: Snapshot,
    allocations: Sequence[Holding],
    units: Sequence[PlacementUnit],
    policy: PlacementPolicy,
    placements: list[Placement],
    levels: list[GoalLevel],
) -> tuple[list[Placement], list[GoalLevel]]:
    """What a search that was cut short came to, and what has room besides; or a first fit, where that is better."""
    placed = {placed.demand.key for placed in placements}
    left = [unit for unit in units if unit.demands[0].key not in placed]
    held = [*allocations, *(placed.holding() for placed in placements)]
    ends = time.monotonic() + GRACE_SECONDS
    more = place_greedily(snapshot, held, left, policy=policy, ends=ends)
    best = [*placements, *more]
    if placements:
        first = place_greedily(snapshot, allocations, units, policy=policy, ends=ends)
        best = max(best, first, key=lambda rival: _counts(rival, levels))
    return (placements, levels) if best == placements else (best, _levels_of(best, levels, units))


def _place_jointly(
    snapshot: Snapshot,
    allocations: Sequence[Holding],
    units: Sequence[PlacementUnit],
    policy: PlacementPolicy,
    ends: float | None,
) -> tuple[list[Placement], list[GoalLevel]]:
    usage = Usage.of(snapshot, allocations)
    if len(units) > 1 and model_size(snapshot, usage, units, enough=EXACT_SIZE) > EXACT_SIZE:
        return _place_by_columns(snapshot, allocations, units, policy, ends)
    try:
        model = build_model(snapshot, allocations, units, policy=policy, ends=ends)
    except SearchTimeout:
        return [], _levels_before_search(units)
    search = GoalSearch(model, ends)
    start_search(search, allocations, policy=policy)
    _, levels = optimize_goals(model, policy=policy, ends=ends, search=search)
    return name_devices(search), levels


def _is_proven_best(levels: Sequence[GoalLevel]) -> bool:
    """Whether no answer is better in goals 1 to 4 of S17, for certain: also in which claims are satisfied, and by which
    alternatives, of which a level has only the sum."""
    return all(
        level.is_proven and (level.choice or level.priority is None) and (level.value == 0 or level.goal != "oneOf")
        for level in levels
    )


def _place_by_columns(
    snapshot: Snapshot,
    allocations: Sequence[Holding],
    units: Sequence[PlacementUnit],
    policy: PlacementPolicy,
    ends: float | None,
    *,
    is_quick: bool = False,
) -> tuple[list[Placement], list[GoalLevel]]:
    from devalloc_solver.columns import allocate_batch  # brings numpy: for large batches only

    return allocate_batch(snapshot, allocations, units, policy=policy, ends=ends, is_quick=is_quick)


def add_rejected_claims(levels: Sequence[GoalLevel], priorities: Iterable[int]) -> list[GoalLevel]:
    """The levels of S17 for all pending claims, those included that were refused before there was anything to search.

    ``priorities``: of all pending claims. One of which no claim can be satisfied has a level like any other, of 0.
    """
    counts = {level.priority: level for level in levels if level.priority is not None}
    for priority in {*priorities} - {*counts}:
        counts[priority] = GoalLevel("satisfied", 0, 0, priority, choice=True)
    others = [level for level in levels if level.priority is None]
    if counts and not others:
        others = [GoalLevel("pools", 0, 0), GoalLevel("devices", 0, 0)]
    return [*(counts[priority] for priority in sorted(counts, reverse=True)), *others]


def _counts(placements: Sequence[Placement], levels: Sequence[GoalLevel]) -> list[int]:
    """Claims of each priority, highest first."""
    counts = Counter(placed.demand.claim.priority for placed in placements)
    return [counts[level.priority] for level in levels if level.priority is not None]


def _levels_of(
    placements: Sequence[Placement], levels: Sequence[GoalLevel], units: Sequence[PlacementUnit]
) -> list[GoalLevel]:
    """The levels of another answer than the one that ``levels`` are of, with the bounds of these as far as they hold.

    A bound is one for as many claims of each higher priority as there were.
    """
    requested = Counter(demand.claim.priority for unit in units for demand in unit.demands)
    before = [level for level in levels if level.priority is not None]
    new_levels: list[GoalLevel] = []
    holds = True
    for level, count in zip(before, _counts(placements, levels), strict=True):
        bound = level.bound if holds or level.priority is None else requested[level.priority]
        new_levels.append(replace(level, value=count, bound=bound, choice=False))
        holds &= count >= level.value
    chosen = {(p.demand.key, e.request.detail): e.request.alternative for p in placements for e in p.entries}
    indexes = [alternative for alternative in chosen.values() if alternative is not None]
    if indexes:
        new_levels.append(GoalLevel("oneOf", sum(indexes), 0))
    entries = [entry for placed in placements for entry in placed.entries]
    new_levels.append(GoalLevel("pools", len({entry.device.pool for entry in entries}), min(1, len(entries))))
    return [*new_levels, GoalLevel("devices", len({entry.device.index for entry in entries}), min(1, len(entries)))]


def _place_by_any_search(
    usage: Usage, unit: PlacementUnit, policy: PlacementPolicy, steps: StepBudget
) -> UnitPlacement | None:
    """The best placement, where CP-SAT searches the nodes on which shares meet: those that may be the best,
    ``COMPARED_NODES`` at most.

    Raises StepsExhausted where others may be better in goals 2 to 4 of S17, and SearchTimeout as ``place``.
    """
    undecided: list[tuple[PlacementScore, Place]] = []
    best = place(usage.snapshot, usage, unit, policy=policy, steps=steps, undecided=undecided)
    context, ends = SearchContext(usage.snapshot, usage, policy), steps.deadline.ends if steps.deadline else None
    ordered = sorted([(bound, context.rank(node), node or "") for bound, node in undecided])
    for number, (bound, rank, name) in enumerate(ordered):
        if best is not None and (not best.is_proven or (best.score[:-1], best.score.order[0]) <= (bound[:-1], rank)):
            break
        if number == COMPARED_NODES:
            if best is None or best.score[:3] > bound[:3]:
                raise StepsExhausted("many nodes where shares meet may be better")
            break
        placements = _on_node_alone(usage, unit, name or None, policy, ends, is_hard=True)
        if not placements and _deadline_passed(ends):
            if best is None:
                raise SearchTimeout("the search is out of time")
            return replace(best, is_proven=False)
        if placements:
            rival = UnitPlacement(tuple(placements), score_of(context, placements, placements[0].node))
            best = rival if best is None or rival.score < best.score else best
    return best


def _place_single_unit(
    snapshot: Snapshot,
    allocations: Sequence[Holding],
    part: Subproblem,
    policy: PlacementPolicy,
    ends: float | None,
    *,
    is_quick: bool = False,
) -> SearchOutcome:
    """A single unit needs no general solver, and is proven in all goals.

    After the deadline, what was found until then, or a first fit. Raises StepsExhausted if the question is too hard.
    """
    (unit,) = part.units
    steps = StepBudget(DEFAULT_STEPS, SearchDeadline(ends))
    members = Counter(demand.claim.priority for demand in unit.demands)
    open_levels = [GoalLevel("satisfied", 0, members[p], p) for p in sorted(members, reverse=True)]
    usage = Usage.of(snapshot, allocations)
    try:
        placed = (
            place(snapshot, usage, unit, policy=policy, steps=steps)
            if is_quick
            else _place_by_any_search(usage, unit, policy, steps)
        )
    except SearchTimeout:
        first = _at_least_first_fit(snapshot, allocations, [unit], policy, [], open_levels)
        return SearchOutcome(*first, [part], [part])
    if placed is not None and not placed.is_proven:
        return SearchOutcome([*placed.placements], _levels_of(placed.placements, open_levels, [unit]))
    counts = {priority: members[priority] if placed else 0 for priority in sorted(members, reverse=True)}
    levels = [GoalLevel("satisfied", count, count, priority, choice=True) for priority, count in counts.items()]
    if placed is None:
        return SearchOutcome([], [*levels, GoalLevel("pools", 0, 0), GoalLevel("devices", 0, 0)])
    score = placed.score
    if score.one_of:
        levels.append(GoalLevel("oneOf", sum(score.one_of), sum(score.one_of)))
    levels += [GoalLevel("pools", score.pools, score.pools), GoalLevel("devices", score.devices, score.devices)]
    return SearchOutcome([*placed.placements], levels)


def solve_unit(
    snapshot: Snapshot,
    allocations: Sequence[Holding],
    unit: PlacementUnit,
    policy: PlacementPolicy,
    ends: float | None,
) -> list[Placement]:
    """The best placement of a unit that is too hard to be placed step by step; empty when it is proven not to fit.

    Raises SearchCutShort if neither is certain at the monotonic time ``ends``.
    """
    if _deadline_passed(ends):
        raise SearchCutShort(SEARCH_CUT_SHORT)  # not the expressions took the time: they are evaluated by now
    placements, levels = _place_jointly(snapshot, allocations, [unit], policy, ends)
    if not placements and not all(level.is_proven for level in levels if level.goal == "satisfied"):
        raise SearchCutShort(SEARCH_CUT_SHORT)
    return placements


def place_on_node(
    usage: Usage,
    unit: PlacementUnit,
    node: str | None,
    policy: PlacementPolicy,
    deadline: SearchDeadline,
    *,
    decide: bool = True,
) -> list[Placement]:
    """The best placement of a unit on the only node of a snapshot; empty when it is proven not to fit.

    ``node``: None for network devices only. Raises OutOfTime if nothing is known in time, and SharesInterfere where
    only CP-SAT can tell and it is not to ``decide``.
    """
    try:
        steps = StepBudget(DEFAULT_STEPS, deadline)
        answer = place_on(usage.snapshot, usage, unit, node, policy=policy, steps=steps)
        return [] if answer is None else [*answer.placements]
    except StepsExhausted as error:
        if isinstance(error, SharesInterfere) and not decide:
            raise
        return solve_unit(usage.snapshot, [usage.as_holding()], unit, policy, deadline.ends)


def _as_on_node_alone(
    usage: Usage,
    unit: PlacementUnit,
    placements: list[Placement],
    policy: PlacementPolicy,
    ends: float | None,
    exhausted: str | None,
) -> list[Placement]:
    """The same in goals 1 to 4 of S17, with devices that do not depend on which nodes were searched beside its own.

    Where the policy weighs loads, on the one of the first nodes that it likes best: the model of all rounds them.

    Args:
        exhausted: a node of which it is known that it takes too many steps to be searched by itself.
    """
    node = placements[0].node if placements else None
    if node is None or (node == exhausted and _nodes_of_candidates(usage.snapshot, unit) == {node}):
        return placements
    best = _on_node_alone(usage, unit, node, policy, ends, is_hard=node == exhausted) or placements
    context = SearchContext(usage.snapshot, usage, policy)
    score, least = score_of(context, best, node), least_use(context, unit).load
    others = candidate_nodes(context, unit, batch_nodes(context, [unit]), least) if policy.weighs_loads else []
    for other in others[:COMPARED_NODES]:
        if context.cost_of_node(other, least) > score.node_cost:
            break
        there = [] if other == node else _on_node_alone(usage, unit, other, policy, ends, is_hard=other == exhausted)
        if there and score[:3] == (rival := score_of(context, there, other))[:3] and rival < score:
            best, score = there, rival
    return best


def _on_node_alone(
    usage: Usage, unit: PlacementUnit, node: Place, policy: PlacementPolicy, ends: float | None, *, is_hard: bool
) -> list[Placement]:
    """The best placement of a unit on a node of many; empty if there is none, or none is known in time.

    ``is_hard``: the exact model decides at once.
    """
    pools = [pool for pool in usage.snapshot.pools if pool.node is None or pool.node == node]
    devices = [device for pool in pools for device in pool.devices]
    position = {device.index: number for number, device in enumerate(devices)}
    held = usage.as_holding()
    items = [replace(item, device=position[item.device]) for item in held.items if item.device in position]
    own = Usage.of(join_pools(renumber(pools), () if node is None else (node,)), [replace(held, items=tuple(items))])

    def limited(_: Demand, request: Request) -> Request:
        accepted, portions = request.candidates.accepted, request.portions
        return replace(
            request,
            candidates=Candidates({n: accepted[d.index] for n, d in enumerate(devices) if d.index in accepted}, ()),
            portions={n: portions[d.index] for n, d in enumerate(devices) if d.index in portions},
        )

    there = replace(unit.with_requests(limited), pin=None)
    try:
        if is_hard:
            placements = solve_unit(own.snapshot, [own.as_holding()], there, policy, ends)
        else:
            placements = place_on_node(own, there, node, policy, SearchDeadline(ends))
    except OutOfTime:
        return []
    requests = {(d.claim.key, r.label): r for d in unit.demands for r in d.requests}

    def in_fleet(demand: Demand, entry: PlacedDevice) -> PlacedDevice:
        return PlacedDevice(requests[demand.claim.key, entry.request.label], devices[entry.device.index], entry.amounts)

    return [
        Placement(
            demand, placed.node if unit.is_free else node, tuple(in_fleet(demand, entry) for entry in placed.entries)
        )
        for demand, placed in zip(unit.demands, placements, strict=bool(placements))
    ]


def _nodes_of_candidates(snapshot: Snapshot, unit: PlacementUnit) -> set[str | None]:
    accepted = {index for request in unit.requests for index in request.candidates.accepted}
    return {snapshot.pools[snapshot.devices[index].pool].node for index in accepted}


def place_unit(
    snapshot: Snapshot,
    allocations: Sequence[Holding],
    unit: PlacementUnit,
    *,
    usage: Usage | None = None,
    policy: PlacementPolicy = PACK,
    ends: float | None = None,
) -> list[Placement] | None:
    """The best placement of every demand of the unit by S17; None if it is proven that there is none.

    ``usage``: what the allocations add up to, if the caller knows it. After the monotonic time ``ends``, the best
    placement until then. Raises OutOfTime if there is none yet.
    """
    usage = usage or Usage.of(snapshot, allocations)
    (unit,) = in_search_terms(snapshot, [unit])
    try:
        steps = StepBudget(DEFAULT_STEPS, SearchDeadline(ends))
        placed = _place_by_any_search(usage, unit, policy, steps)
        return None if placed is None else list(placed.placements)
    except StepsExhausted as error:
        placements = solve_unit(snapshot, allocations, unit, policy, ends)
        return _as_on_node_alone(usage, unit, placements, policy, ends, error.node) or None
