"""Large neighbourhood search: a few bins at a time are emptied and packed again exactly by CP-SAT.

A dive leaves gaps where rounding wasted something. At the prices of the linear program every bin has a waste: what its
best path is worth, less what its own path is. Where all waste is nil the packing is optimal, so the bins with most of
it are taken together with some others, and the counts of all patterns in all of them are decided at once.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np

from devalloc_solver.bounds.device_bound import GRID
from devalloc_solver.columns.node_geometry import Ints
from devalloc_solver.columns.packing import Packing, Path, Step
from devalloc_solver.columns.patterns import LocalChoice
from devalloc_solver.columns.pricing import PathValues
from devalloc_solver.columns.state_network import NetworkPart, User
from devalloc_solver.columns.state_space import StateSpace
from devalloc_solver.deadline import limit_in_milliseconds

REPAIR_LIMIT = 0.05
"""CP-SAT's deterministic time (roughly seconds) for one neighbourhood. At 0.1 and 0.2 the batches of 200 claims of the
benchmark `batches` take a twelfth longer, those of 500 a twentieth, and no answer is better."""
REPAIR_PATTERNS = 400
"""Patterns of a neighbourhood of several bins: with more, that time ends before there is any solution. With 200 and
with 800 one of 20 batches of 200 claims has a claim less."""
NEGLIGIBLE = GRID // 1000
"""Waste that is rounding."""
HIGHER_PRIORITY_WEIGHT = 100
"""What a claim of a priority that is decided weighs against one of the priority in question."""


@dataclass(slots=True, eq=False)
class OpenPacking:
    """A packing taken apart: the path of every bin, those that have gone none included."""

    state_space: StateSpace
    paths: list[Path]
    left: list[int]
    """kind -> claims that are not in"""

    @classmethod
    def of(cls, packing: Packing, supply: Ints, wanted: Sequence[int]) -> OpenPacking:
        state_space = packing.state_space
        paths = [*packing.all_paths()]
        gone = Counter(start for start, _ in paths)
        cards = {*state_space.child_bins.values()}
        for state in np.flatnonzero(supply).tolist():
            paths += [(state, ())] * (int(supply[state]) - (0 if state in cards else gone[state]))
        counts = packing.counts()
        return cls(state_space, paths, [want - have for want, have in zip(wanted, counts, strict=True)])

    def pack(self, supply: Ints) -> Packing:
        """The packing that it was, or has become."""
        packing = Packing.empty(self.state_space, supply)
        for path in self.paths:
            if path[1]:
                packing.add(path, 1)
        return packing

    def waste(self, valuation: PathValues) -> list[int]:
        """path -> what the bin could be worth more at these prices"""
        losses = []
        for start, steps in self.paths:
            own, before = 0, start
            for user, target in steps:
                if user is None:
                    own += int(valuation.worth[self.state_space.child_bins[before, target]])
                else:
                    own += valuation.values.get(user, 0)
                before = target
            losses.append(int(valuation.worth[start]) - own)
        return losses


@dataclass(slots=True, eq=False)
class _RepairBin:
    """A bin of a neighbourhood: the row it starts in, and the variables of its patterns."""

    start: int
    part: NetworkPart
    row: Ints
    opened: dict[int, int]
    """state of cards -> how many of them this bin has opened, which stays so"""
    patterns: list[tuple[LocalChoice, Ints, Any]] = field(default_factory=list)
    openings: list[tuple[int, Any]] = field(default_factory=list)
    """(cell, variable)"""


def repair(open_packing: OpenPacking, chosen: Sequence[int], priority: int, ends: float | None = None) -> int:
    """Place anew what is in these bins and what is left. Returns what is won, in claims of the priority; the packing is
    changed where that is not negative. Nothing is won where it takes longer than to ``ends`` (monotonic time).

    If the bins together have more than REPAIR_PATTERNS patterns, only the first ones are repaired."""
    from ortools.linear_solver import pywraplp

    kinds = open_packing.state_space.kinds
    users = [{user[0] for user, _ in open_packing.paths[number][1] if user is not None} for number in chosen]
    wanted = {kind for kind, left in enumerate(open_packing.left) if left > 0}.union(*users)
    open_kinds = {kind for kind in wanted if kinds[kind].priority >= priority}
    sizes = accumulate(count_patterns(open_packing.state_space, open_packing.paths[n][0], open_kinds) for n in chosen)
    few = sum(size <= REPAIR_PATTERNS for size in sizes)
    chosen = chosen[: max(1, few)]
    inside: Counter[int] = Counter(
        user[0] for number in chosen for user, _ in open_packing.paths[number][1] if user is not None
    )
    available = {
        kind: inside[kind] + left
        for kind, left in enumerate(open_packing.left)
        if kinds[kind].priority >= priority and inside[kind] + left > 0
    }

    def weight(kind: int) -> int:
        return sum(
            claims * (1 if own == priority else HIGHER_PRIORITY_WEIGHT)
            for own, claims in kinds[kind].claims.items()
            if own >= priority
        )

    repair_model = _RepairModel(pywraplp.Solver.CreateSolver("SAT"), open_packing, available)
    for number in chosen:
        repair_model.add(open_packing.paths[number])
        if ends is not None and time.monotonic() > ends:
            return -1
    if ends is not None:
        repair_model.solver.SetTimeLimit(limit_in_milliseconds(ends))
    before = sum(count * weight(kind) for kind, count in inside.items() if kind in available)
    return repair_model.solve(chosen, before, weight)


def count_patterns(state_space: StateSpace, start: int, kinds: Container[int]) -> int:
    """How many patterns of these kinds fit into a bin that starts in a state."""
    part = state_space.part_of(start)
    row = part.lattice.rows[start - part.offset]
    return sum(len(patterns) for _, _, patterns in _patterns_of(part, row, kinds))


def _patterns_of(part: NetworkPart, row: Ints, kinds: Container[int]) -> Iterator[tuple[LocalChoice, list[User], Ints]]:
    """(way, its users of these kinds, what each of its patterns takes) of all ways that have any in a row."""
    shape = part.lattice.shape
    for way, counts in shape.patterns.items():
        users = [user for user in part.users.get(way, ()) if user[0] in kinds]
        if users:
            takes = np.concatenate([counts, counts @ shape.draws], axis=1)
            yield way, users, takes[(takes <= row).all(axis=1)]


class _RepairModel:
    """The model of one neighbourhood."""

    def __init__(self, solver: Any, open_packing: OpenPacking, available: dict[int, int]) -> None:
        self.solver, self.open_packing, self.available = solver, open_packing, available
        self.bins: list[_RepairBin] = []
        self.flows: dict[tuple[int, LocalChoice], Any] = {}
        """(part, way) -> row: patterns of the way, less the users they serve"""
        self.served: list[tuple[tuple[int, LocalChoice], User, Any]] = []
        self.kinds = {kind: solver.Constraint(0, count) for kind, count in available.items()}

    def add(self, path: Path) -> None:
        """A bin with the variables of all its patterns."""
        start, steps = path
        part = self.open_packing.state_space.part_of(start)
        opened: Counter[int] = Counter()
        before = start
        for user, target in steps:
            if user is None:
                opened[self.open_packing.state_space.child_bins[before, target]] += 1
            before = target
        one = _RepairBin(start, part, part.lattice.rows[start - part.offset], opened)
        self.bins.append(one)
        capacity = [self.solver.Constraint(0, int(free)) for free in one.row]
        for way, users, patterns in _patterns_of(part, one.row, self.available):
            for pattern in patterns:
                self.add_pattern(one, way, pattern, users, capacity)
        for card, count in opened.items():
            row = self.solver.Constraint(count, count)
            for cell, state in part.opened.items():
                if state == card:
                    variable = self.solver.IntVar(0, count, "")
                    row.SetCoefficient(variable, 1)
                    capacity[cell].SetCoefficient(variable, 1)
                    one.openings.append((cell, variable))

    def add_pattern(
        self, one: _RepairBin, way: LocalChoice, pattern: Ints, users: list[User], capacity: list[Any]
    ) -> None:
        used = np.flatnonzero(pattern).tolist()
        most = min(int(one.row[column] // pattern[column]) for column in used)
        variable = self.solver.IntVar(0, most, "")
        for column in used:
            capacity[column].SetCoefficient(variable, int(pattern[column]))
        one.patterns.append((way, pattern, variable))
        key = (one.part.offset, way)
        if key not in self.flows:
            self.flows[key] = self.solver.Constraint(0, 0)
            for user in users:
                served = self.solver.IntVar(0, self.available[user[0]], "")
                self.flows[key].SetCoefficient(served, -1)
                self.kinds[user[0]].SetCoefficient(served, 1)
                self.served.append((key, user, served))
        self.flows[key].SetCoefficient(variable, 1)

    def solve(self, chosen: Sequence[int], before: int, weight: Any) -> int:
        solver = self.solver
        objective = solver.Objective()
        objective.SetMaximization()
        floor = solver.Constraint(before, solver.infinity())
        for _, (kind, _), variable in self.served:
            objective.SetCoefficient(variable, weight(kind))
            floor.SetCoefficient(variable, weight(kind))
        solver.SetSolverSpecificParametersAsString(
            f"num_workers:1 random_seed:1 max_deterministic_time:{REPAIR_LIMIT} catch_sigint_signal:false"
        )
        status = solver.Solve()
        if status not in (solver.OPTIMAL, solver.FEASIBLE):
            return -1
        serving: dict[tuple[int, LocalChoice], list[User]] = {}
        won = -before
        for key, user, variable in self.served:
            count = round(variable.solution_value())
            serving.setdefault(key, []).extend([user] * count)
            won += weight(user[0]) * count
        paths = [self.path(one, serving) for one in self.bins]
        if won < 0 or any(path is None for path in paths):
            return -1
        for number, path in zip(chosen, paths, strict=True):
            assert path is not None
            for before_user, _ in self.open_packing.paths[number][1]:
                if before_user is not None:
                    self.open_packing.left[before_user[0]] += 1
            for now, _ in path[1]:
                if now is not None:
                    self.open_packing.left[now[0]] -= 1
            self.open_packing.paths[number] = path
        return won

    def path(self, one: _RepairBin, serving: dict[tuple[int, LocalChoice], list[User]]) -> Path | None:
        """The path of a bin as the solution has it."""
        lattice = one.part.lattice
        row = one.row.copy()
        steps: list[Step] = []

        def step(user: User | None) -> bool:
            state = int(lattice.find(row[None])[0])
            steps.append((user, state + one.part.offset))
            return state >= 0

        for cell, variable in one.openings:
            for _ in range(round(variable.solution_value())):
                row[cell] -= 1
                if not step(None):
                    return None
        for way, pattern, variable in one.patterns:
            for _ in range(round(variable.solution_value())):
                row = row - pattern
                if (row < 0).any() or not step(serving[one.part.offset, way].pop()):
                    return None
        return one.start, tuple(steps)


def pick_bins(open_packing: OpenPacking, valuation: PathValues, size: int, rng: random.Random) -> list[int]:
    """Bins for a neighbourhood: some of those that waste most, some with room left, and some at random."""
    state_space = open_packing.state_space
    useful = [number for number, (start, _) in enumerate(open_packing.paths) if not _has_groups(state_space, start)]
    waste = open_packing.waste(valuation)
    wasteful = [number for number in useful if waste[number] > NEGLIGIBLE]
    wasteful.sort(key=lambda number: (-waste[number], number))
    chosen = _random_sample(wasteful[: 2 * size], size // 2, rng)
    roomy = [
        n
        for n in useful
        if n not in chosen and open_packing.paths[n][1] and state_space.network.weight[_end(open_packing.paths[n])] > 0
    ]
    chosen += _random_sample(roomy, (size - len(chosen)) * 2 // 3, rng)
    return chosen + _random_sample([n for n in useful if n not in chosen], size - len(chosen), rng)


def _random_sample(numbers: Sequence[int], most: int, rng: random.Random) -> list[int]:
    return rng.sample(numbers, min(most, len(numbers)))


def _end(path: Path) -> int:
    return path[1][-1][1] if path[1] else path[0]


def _has_groups(state_space: StateSpace, state: int) -> bool:
    return any(cell.group is not None for cell in state_space.part_of(state).lattice.shape.cells)
