"""The joint allocation of a large batch: every level of S17 with its value and a bound."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from devalloc_solver.bounds.device_bound import make_device_bound
from devalloc_solver.bounds.minimum_use import MinimumUse, satisfied_counts
from devalloc_solver.bounds.shared_amounts import make_shared_amount_bound
from devalloc_solver.columns.claim_kinds import ClaimKind, group_units
from devalloc_solver.columns.device_naming import name_devices
from devalloc_solver.columns.priority_levels import TOLERANCE, LevelSolver
from devalloc_solver.columns.remaining_units import RemainingUnits
from devalloc_solver.columns.state_space import Cache, StateSpace, build_state_space
from devalloc_solver.deadline import GRACE_SECONDS
from devalloc_solver.place.greedy import candidate_orders, place_greedily
from devalloc_solver.problem.allocations import Holding, Usage
from devalloc_solver.problem.demand import PlacementUnit
from devalloc_solver.problem.placement import GoalLevel, Placement
from devalloc_solver.problem.placement_policy import PlacementPolicy
from devalloc_solver.problem.snapshot import Snapshot


def allocate_batch(
    snapshot: Snapshot,
    allocations: Sequence[Holding],
    units: Sequence[PlacementUnit],
    *,
    policy: PlacementPolicy,
    ends: float | None,
    is_quick: bool = False,
) -> tuple[list[Placement], list[GoalLevel]]:
    """Place the units that can be satisfied; with the levels of S17 in their order.

    Args:
        snapshot: the fleet.
        allocations: what is in use and stays so.
        units: in the order in which they are to be satisfied.
        policy: how to choose among answers that are as good in goals 1 to 4 of S17.
        ends: monotonic time at which to answer with the best found so far; None for as long as it takes.
        is_quick: give up in milliseconds, without levels, if units are no column's, or columns take long to find.
    """
    batch = _ColumnSolve(snapshot, allocations, units, policy, ends, is_quick)
    return (batch.placements, batch.levels()) if batch.run() else ([], [])


@dataclass(slots=True, eq=False)
class _ColumnSolve:
    snapshot: Snapshot
    allocations: Sequence[Holding]
    units: Sequence[PlacementUnit]
    policy: PlacementPolicy
    ends: float | None
    is_quick: bool = False
    """whether to give up on units that are no column's, and columns that take long to find"""
    placements: list[Placement] = field(default_factory=list)
    bounds: dict[int, int] = field(default_factory=dict)
    """priority -> claims that can be satisfied at the most"""
    cache: Cache = field(default_factory=dict)
    least_ranks: int = 0
    """a lower bound of the sum of chosen alternatives, where columns are all there is"""
    is_greedy: bool = False
    """whether a first fit was better"""
    singles: RemainingUnits = field(init=False)

    def run(self) -> bool:
        """Level after level. Where a level has units that are no column's, they are placed before its columns.

        Whether there is an answer: always, but for a quick one.
        """
        usage = Usage.of(self.snapshot, self.allocations)
        self.singles = RemainingUnits(self.snapshot, self.allocations, self.units, usage, self.policy, self.ends)
        kinds, others = group_units(self.snapshot, self.units)
        if self.is_quick and others:
            return False
        state_space, refused = self.set_up(usage, kinds)
        if self.is_quick and (refused or len(state_space.network.unexpanded_states)):
            return False
        alone: dict[int, list[PlacementUnit]] = {}
        turn = {id(unit): position for position, unit in enumerate(self.units)}
        others += [unit for kind in refused for unit in kind.units]
        for unit in sorted(others, key=lambda unit: turn[id(unit)]):
            alone.setdefault(unit.demands[0].claim.priority, []).append(unit)
        waiting: list[ClaimKind] = []
        for priority in sorted({*state_space.priorities, *alone}, reverse=True):
            if priority in alone:
                self.columns(waiting, None)
                waiting = []
                self.place_alone(alone[priority])
            waiting += [kind for kind in state_space.kinds if kind.priority == priority]
        self.columns(waiting, None if alone else state_space)
        if not self.placements and self.is_late():
            self.place_in_haste(self.units, time.monotonic() + GRACE_SECONDS)
            self.is_greedy = True
        is_partial = bool(alone) or len(state_space.network.unexpanded_states) > 0
        if is_partial:
            self.prove(state_space if alone else None)
        if self.falls_short(0 if is_partial else TOLERANCE) and self.compare():
            self.prove(state_space)  # of a level that lost, what was found holds no more for those below
        return True

    def place_alone(self, units: Sequence[PlacementUnit]) -> None:
        """Each unit where it is best, for half of the time that is left; then those that are left, where there is room.

        A first fit places many in the time in which a few are placed best.
        """
        self.singles.ends = self.half_time()
        left: list[PlacementUnit] = []
        for unit in units:
            placed = self.singles.place(unit)
            self.placements += placed
            if not placed:
                left.append(unit)
        if left and self.ends is not None and time.monotonic() > (self.singles.ends or self.ends):
            self.place_in_haste(left, self.ends)
        self.singles.ends = self.ends

    def place_in_haste(self, units: Sequence[PlacementUnit], ends: float) -> None:
        held = [*self.allocations, *self.singles.new]
        first = place_greedily(self.snapshot, held, units, policy=self.policy, ends=ends, in_haste=True)
        self.placements += first
        self.singles.hold(first)

    def half_time(self) -> float | None:
        """When half of the time that is left is over."""
        now = time.monotonic()
        return None if self.ends is None else now + max(0.0, self.ends - now) / 2

    def set_up(self, usage: Usage, kinds: Sequence[ClaimKind]) -> tuple[StateSpace, list[ClaimKind]]:
        ends = self.half_time()
        if ends is not None and not self.is_quick:
            # The first packing of a state space is better than a first fit; if it is not soon there, there has to be
            # time for that. A quick search may have a model instead.
            ends = max(ends, time.monotonic() + GRACE_SECONDS)
        return build_state_space(self.snapshot, usage, kinds, self.cache, ends=ends, is_quick=self.is_quick)

    def falls_short(self, tolerance: int) -> bool:
        """Whether more than so many claims of some priority may be missing; of the highest one, any at all."""
        reached = dict(zip(self.priorities, self.counts(self.placements), strict=True))
        gaps = [self.bounds.get(priority, 0) - count for priority, count in reached.items()]
        return any(gaps[:1]) or any(gap > tolerance for gap in gaps)

    def compare(self) -> bool:
        """A first fit may do better where not all was proven: never answer less than that. Whether it does."""
        sharing = make_shared_amount_bound(self.snapshot, Usage.of(self.snapshot, self.allocations), self.units)
        for units in candidate_orders(self.units, sharing.parts() if sharing.resources else ()):
            if self.is_late():
                break
            rival = [*zip(self.priorities, self.counts(self.placements), strict=True)]
            greedy = place_greedily(
                self.snapshot, self.allocations, units, policy=self.policy, ends=self.ends, rival=rival
            )
            if self.counts(greedy) > self.counts(self.placements):
                self.placements, self.is_greedy = greedy, True
        return self.is_greedy

    def prove(self, state_space: StateSpace | None) -> None:
        """Bounds for as many claims of higher priorities as there are now.

        ``state_space``: of all that was free at first. The other units may have as many claims as they could at most.
        None where there are no others: then what was found on it holds.
        """
        reached, possible = dict(zip(self.priorities, self.counts(self.placements), strict=True)), self.singles.possible
        if state_space is not None:
            decider = LevelSolver(
                state_space, state_space.supply(), [len(kind.units) for kind in state_space.kinds], self.ends
            )
            needed = {priority: count - possible.get(priority, 0) for priority, count in reached.items()}
            decider.prove(needed, needed)
            self.bounds = decider.bounds
        counting = sharing = None
        if not self.is_late():
            usage = Usage.of(self.snapshot, self.allocations)
            counting = make_device_bound(self.snapshot, usage, self.units)
            sharing = make_shared_amount_bound(self.snapshot, usage, self.units)
        for priority in self.priorities:
            bound = self.bounds.get(priority, 0) + possible.get(priority, 0)
            if reached[priority] < bound and counting is not None and not self.is_late():
                higher = {p: count for p, count in reached.items() if p > priority}
                bound = min(bound, counting.bound(priority, higher, self.ends))
                bound = min(bound, bound if sharing is None else sharing.bound(priority, higher))
            self.bounds[priority] = bound

    def is_late(self) -> bool:
        return self.ends is not None and time.monotonic() > self.ends

    @property
    def priorities(self) -> list[int]:
        """Of all claims, highest first."""
        return sorted({demand.claim.priority for unit in self.units for demand in unit.demands}, reverse=True)

    def counts(self, placements: Sequence[Placement]) -> list[int]:
        """Claims of each priority."""
        by_priority = Counter(placed.demand.claim.priority for placed in placements)
        return [by_priority[priority] for priority in self.priorities]

    def columns(self, kinds: list[ClaimKind], state_space: StateSpace | None) -> None:
        """Satisfy these kinds on what is free by now. ``state_space``: if it is of what was free at first."""
        if not kinds:
            return
        refused: list[ClaimKind] = []
        if state_space is None:
            state_space, refused = self.set_up(self.singles.usage, kinds)
        decider = LevelSolver(
            state_space, state_space.supply(), [len(kind.units) for kind in state_space.kinds], self.ends
        )
        decider.decide()
        placements = name_devices(self.snapshot, state_space, decider.best, self.singles.usage, self.policy)
        self.bounds |= decider.bounds
        self.least_ranks = decider.least_ranks
        self.placements += placements
        self.singles.hold(placements)
        if len(state_space.network.unexpanded_states):
            refused = kinds
        self.fill_up(refused, placements)

    def fill_up(self, kinds: Sequence[ClaimKind], placements: Sequence[Placement]) -> None:
        """One by one what columns cannot tell of, or where not all states were looked at: more may fit."""
        placed = {placement.demand.key for placement in placements}
        for kind in sorted(kinds, key=lambda kind: -kind.priority):
            for unit in kind.units:
                if unit.demands[0].key not in placed:
                    more = self.singles.find(unit)
                    if not more:
                        break
                    self.placements += more

    # -- levels --------------------------------------------------------------------------------------------------------

    def levels(self) -> list[GoalLevel]:
        requested = Counter(demand.claim.priority for unit in self.units for demand in unit.demands)
        levels: list[GoalLevel] = []
        for priority, value in zip(self.priorities, self.counts(self.placements), strict=True):
            bound = self.bounds.get(priority, 0)
            # Which ones of several kinds are left out is best effort; all or none of them is no choice.
            certain = (value == requested[priority] or bound == 0) and all(level.choice for level in levels)
            levels.append(GoalLevel("satisfied", value, bound, priority, choice=certain))
        chosen = {(p.demand.key, e.request.detail): e.request.alternative for p in self.placements for e in p.entries}
        indexes = [alternative for alternative in chosen.values() if alternative is not None]
        if indexes:
            levels.append(
                GoalLevel("oneOf", sum(indexes), 0 if self.is_greedy or self.singles.satisfied else self.least_ranks)
            )
        pools = {e.device.pool for p in self.placements for e in p.entries}
        devices = {e.device.index for p in self.placements for e in p.entries}
        reached = {level.priority: level.value for level in levels if level.priority is not None}
        before = Usage.of(self.snapshot, self.allocations)
        least = MinimumUse(self.snapshot, before, self.units, satisfied_counts(self.units, reached))
        levels.append(GoalLevel("pools", len(pools), least.pools()))
        levels.append(GoalLevel("devices", len(devices), least.devices()))
        return levels
