"""The master problem: which paths, how often; as a linear program whose columns are generated as they are needed.

Rows: no more paths from a state than bins in it (an opened card is one more), no more claims of a kind than there are,
and no fewer of a priority than are decided already.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from devalloc_solver.bounds.device_bound import GRID, MISSED_FLOOR_COST
from devalloc_solver.columns.node_geometry import Ints
from devalloc_solver.columns.packing import Packing, Path
from devalloc_solver.columns.pricing import PathPricer, PathValues, Prices, StageGoal
from devalloc_solver.columns.state_network import User
from devalloc_solver.columns.state_space import StateSpace
from devalloc_solver.deadline import limit_in_milliseconds

MAX_ROUNDS = 60
"""Rounds of column generation."""
EPSILON = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """A path as the master problem sees it."""

    path: Path
    users: tuple[tuple[User, int], ...]
    child_bins: tuple[tuple[int, int], ...]
    """(state of a card, how many)"""

    def kinds(self) -> dict[int, int]:
        counts: Counter[int] = Counter()
        for (kind, _), count in self.users:
            counts[kind] += count
        return counts


@dataclass(slots=True, eq=False)
class ColumnPool:
    """All columns found so far, for all stages."""

    state_space: StateSpace
    columns: list[Column] = field(default_factory=list)
    _seen: set[object] = field(default_factory=set)

    def add(self, path: Path) -> bool:
        """Whether it is new."""
        start, steps = path
        users = Counter(user for user, _ in steps if user is not None)
        child_bins: Counter[int] = Counter()
        before = start
        for user, target in steps:
            if user is None:
                child_bins[self.state_space.child_bins[before, target]] += 1
            before = target
        column = Column(path, tuple(sorted(users.items())), tuple(sorted(child_bins.items())))
        key = (start, column.users, column.child_bins)
        if not steps or key in self._seen:
            return False
        self._seen.add(key)
        self.columns.append(column)
        return True

    def add_all(self, packing: Packing, users: Container[User]) -> None:
        """The paths of a packing, each as far as it takes in such users only."""
        for start, steps in packing.all_paths():
            length = next(
                (n for n, (user, _) in enumerate(steps) if user is not None and user not in users), len(steps)
            )
            while length and steps[length - 1][0] is None:
                length -= 1
            self.add((start, steps[:length]))


class MasterProgram:
    """The linear program of one stage. Its right-hand sides shrink as ``dive`` fixes columns."""

    def __init__(
        self, state_space: StateSpace, pool: ColumnPool, goal: StageGoal, supply: Ints, wanted: Sequence[int]
    ) -> None:
        from ortools.linear_solver import pywraplp

        self.state_space, self.pool, self.goal = state_space, pool, goal
        self.appraiser = PathPricer(state_space, goal)
        part = {kind for kind, _ in goal.worth}
        self.supply = supply.copy()
        self.wanted = [count if kind in part else 0 for kind, count in enumerate(wanted)]
        self.floors = dict(goal.floors)
        self._first = self.supply.copy(), list(self.wanted)
        self.bound: int | None = None
        """the best proven for the right-hand sides as they were at first"""
        self.values: list[tuple[int, float]] = []
        """(column, how often), where that is not zero"""
        self.reached = 0.0
        self.valuation: PathValues | None = None
        self._shrunk = False
        self._synced = 0
        self._numbers: list[int] = []
        """of the columns that are variables, in their order"""
        lp = self._lp = pywraplp.Solver.CreateSolver("GLOP")
        infinity = lp.infinity()
        states = {*np.flatnonzero(supply).tolist(), *state_space.child_bins.values()}
        self._bins = {state: lp.Constraint(-infinity, float(supply[state])) for state in sorted(states)}
        self._kinds = {kind: lp.Constraint(-infinity, float(self.wanted[kind])) for kind in sorted(part)}
        self._floors = {priority: lp.Constraint(float(floor), infinity) for priority, floor in goal.floors.items()}
        self._objective = lp.Objective()
        self._objective.SetMaximization()
        for row in self._floors.values():
            missed = lp.NumVar(0, infinity, "")
            row.SetCoefficient(missed, 1)
            self._objective.SetCoefficient(missed, -MISSED_FLOOR_COST)

    def solve(self, *, rounds: int = MAX_ROUNDS, enough: int | None = None, ends: float | None = None) -> None:
        """Generate columns until none is worth it, the bound cannot get better, or it is down to ``enough``."""
        for _ in range(rounds):
            self._sync()
            if not self._is_solved(ends):
                return
            # Everything is read before columns are added: that makes the solution invalid.
            bins, prices = self._read_solution()
            self.valuation = self.appraiser.value(prices)
            if not self._shrunk:
                bound = self.appraiser.bound(prices, self.valuation, self.supply, self.wanted)
                self.bound = bound if self.bound is None else min(bound, self.bound)
                if self.bound <= self.reached + EPSILON or (enough is not None and self.bound <= enough):
                    return
            if (ends is not None and time.monotonic() > ends) or not self._generate(bins, self.valuation):
                return
        self._sync()

    def _is_solved(self, ends: float | None) -> bool:
        """Solve with the columns there are. False where that was cut short, and what was found is worth nothing."""
        if ends is not None:
            if time.monotonic() > ends:
                return False
            self._lp.SetTimeLimit(limit_in_milliseconds(ends))
        return bool(self._lp.Solve() == self._lp.OPTIMAL)

    def _read_solution(self) -> tuple[dict[int, float], Prices]:
        """Keep the value of the solution and of its columns; returns the prices of bins, and the other ones."""
        from ortools.linear_solver import linear_solver_pb2

        solution = linear_solver_pb2.MPSolutionResponse()  # all numbers at once: to ask for each takes 60 times as long
        self._lp.FillSolutionResponseProto(solution)
        self.reached = solution.objective_value
        values = [*solution.variable_value][len(self._floors) :]
        self.values = [(n, x) for n, x in zip(self._numbers, values, strict=True) if x > EPSILON]
        duals = iter(solution.dual_value)  # in the order in which the rows were made
        bins = dict(zip(self._bins, duals, strict=False))
        kinds = dict(zip(self._kinds, duals, strict=False))
        return bins, Prices.rounded(kinds, {priority: -next(duals) for priority in self._floors})

    def shrink(self, supply: Ints, wanted: Sequence[int], floors: Mapping[int, int]) -> None:
        """Go on with what is left after some columns were fixed."""
        self._shrunk = True
        for state, row in self._bins.items():
            if supply[state] != self.supply[state]:
                row.SetUb(float(supply[state]))
        for kind, row in self._kinds.items():
            if wanted[kind] != self.wanted[kind]:
                row.SetUb(float(wanted[kind]))
        for priority, row in self._floors.items():
            row.SetLb(float(floors[priority]))
        self.supply, self.wanted, self.floors = supply.copy(), list(wanted), dict(floors)

    def restore(self) -> None:
        """All that there was at first."""
        supply, wanted = self._first
        self.shrink(supply, wanted, self.goal.floors)
        self._shrunk = False

    def _generate(self, bins: Mapping[int, float], valuation: PathValues) -> int:
        """Add the best path of every state whose worth exceeds the price of a bin in it; returns how many are new."""
        cards = {*self.state_space.child_bins.values()}
        return sum(
            self.pool.add((state, valuation.walk(state)))
            for state, price in bins.items()
            if (self.supply[state] > 0 or state in cards) and valuation.worth[state] > (price + EPSILON) * GRID
        )

    def _sync(self) -> None:
        """Make variables of the columns that are new in the pool and take part."""
        infinity, worth, kinds = self._lp.infinity(), self.goal.worth, self.state_space.kinds
        for number in range(self._synced, len(self.pool.columns)):
            column = self.pool.columns[number]
            if column.path[0] not in self._bins or any(user not in worth for user, _ in column.users):
                continue
            variable = self._lp.NumVar(0, infinity, "")
            self._numbers.append(number)
            self._bins[column.path[0]].SetCoefficient(variable, 1)
            for state, count in column.child_bins:
                self._bins[state].SetCoefficient(variable, -count)
            levels: Counter[int] = Counter()
            for kind, count in column.kinds().items():
                self._kinds[kind].SetCoefficient(variable, count)
                for priority, claims in kinds[kind].claims.items():
                    levels[priority] += claims * count
            for priority, row in self._floors.items():
                if levels[priority]:
                    row.SetCoefficient(variable, levels[priority])
            self._objective.SetCoefficient(variable, sum(worth[user] * count for user, count in column.users))
        self._synced = len(self.pool.columns)
