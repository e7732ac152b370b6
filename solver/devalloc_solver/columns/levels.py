"""The levels of S17 one after the other: satisfied claims per priority, each with a bound, then the alternatives."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from devalloc_solver.columns.board import Board
from devalloc_solver.columns.dive import dive
from devalloc_solver.columns.geometry import Ints
from devalloc_solver.columns.master import Pool, Program
from devalloc_solver.columns.packing import Choices, Packing, copies, fill, usefulness
from devalloc_solver.columns.pricing import Goal


@dataclass(slots=True, eq=False)
class Decider:
    """Decides level after level; the best packing so far is always at hand."""

    board: Board
    supply: Ints
    wanted: list[int]
    """kind -> claims"""
    ends: float | None
    best: Packing = field(init=False)
    bounds: dict[int, int] = field(default_factory=dict)
    """priority -> claims that can be satisfied at the most, those of higher ones being as they are"""
    least_ranks: int = 0
    """a lower bound of the sum of chosen alternatives"""
    pool: Pool = field(init=False)

    def __post_init__(self) -> None:
        self.pool = Pool(self.board)
        self.fits = copies(self.board.network)
        useful = usefulness(self.board, self.fits, self.wanted)
        choices = Choices.by_loss(self.board, useful)
        found = []
        for sign in (-1, 1):
            packing = Packing.empty(self.board, self.supply)
            fill(packing, choices, self.order(sign), self.wanted)
            found.append(packing)
        self.best = max(found, key=self.merit)
        self.useful = useful
        self.greedy = found

    fits: Ints = field(init=False)
    useful: Ints = field(init=False)
    greedy: list[Packing] = field(init=False)

    def order(self, sign: int) -> list[int]:
        """Kinds, highest priority first; within one the small (1) or the large (-1) ones first."""
        kinds = self.board.kinds
        return sorted(range(len(kinds)), key=lambda k: (-kinds[k].priority, sign * kinds[k].fewest, k))

    def merit(self, packing: Packing) -> tuple[tuple[int, ...], int]:
        return tuple(packing.satisfied().values()), -packing.ranks()

    def out_of_time(self) -> bool:
        return self.ends is not None and time.monotonic() > self.ends

    def decide(self) -> None:
        floors: dict[int, int] = {}
        for priority in self.board.priorities:
            self.bounds[priority] = self.count_bound(priority)
            if self.best.satisfied()[priority] < self.bounds[priority] and not self.out_of_time():
                self.improve(priority, floors)
            floors[priority] = self.best.satisfied()[priority]

    def count_bound(self, priority: int) -> int:
        """Claims of kinds that fit anywhere, as many of each as would if it were alone."""
        network, kinds = self.board.network, self.board.kinds
        room = [0] * len(kinds)
        # A card may come to be by being opened, anywhere: how often is left to the program.
        alone = self.supply @ self.fits[: network.states]
        opened = self.fits[[*self.board.opens.values()]].sum(axis=0)
        for label, users in enumerate(network.users):
            for kind, _ in users:
                room[kind] += self.wanted[kind] if opened[label] else int(alone[label])
        return sum(min(room[k], wanted) for k, wanted in enumerate(self.wanted) if kinds[k].priority == priority)

    def improve(self, priority: int, floors: dict[int, int]) -> None:
        program = self.program(priority, floors)
        program.solve(enough=self.best.satisfied()[priority], ends=self.ends)
        if program.bound is not None:
            self.bounds[priority] = min(self.bounds[priority], program.bound)
        if self.best.satisfied()[priority] >= self.bounds[priority] or self.out_of_time():
            return
        valuation = program.valuation
        packing = dive(program, ends=self.ends)
        for worths in (self.useful, *(() if valuation is None else (valuation.worth,))):
            full = packing.copy()
            fill(full, Choices.by_loss(self.board, worths), self.order(1), self.wanted)
            if self.merit(full) > self.merit(self.best):
                self.best = full

    def program(self, priority: int, floors: dict[int, int]) -> Program:
        """Satisfy as many of a priority as possible, and those of higher ones as before."""
        kinds = self.board.kinds
        worth = {
            user: int(kinds[user[0]].priority == priority)
            for users in self.board.network.users
            for user in users
            if kinds[user[0]].priority >= priority
        }
        for packing in self.greedy:
            self.seed(packing, worth)
        return Program(self.board, self.pool, Goal(worth, floors), self.supply, self.wanted)

    def seed(self, packing: Packing, worth: dict[tuple[int, int], int]) -> None:
        """The paths of a packing, as far as they serve this goal."""
        for start, steps in packing.all_paths():
            length = next(
                (n for n, (user, _) in enumerate(steps) if user is not None and user not in worth), len(steps)
            )
            while length and steps[length - 1][0] is None:
                length -= 1
            self.pool.add((start, steps[:length]))


def prove(board: Board, satisfied: Mapping[int, int], floors: Mapping[int, int], ends: float | None) -> dict[int, int]:
    """Upper bounds alone: priority -> claims of the board's kinds, those of higher ones being as many as the floors."""
    decider = Decider(board, board.supply(), [len(kind.units) for kind in board.kinds], ends)
    bounds: dict[int, int] = {}
    for priority in board.priorities:
        bounds[priority] = decider.count_bound(priority)
        if satisfied.get(priority, 0) < bounds[priority] and not decider.out_of_time():
            program = decider.program(priority, {p: max(0, floors[p]) for p in board.priorities if p > priority})
            program.solve(enough=satisfied.get(priority, 0), ends=ends)
            if program.bound is not None:
                bounds[priority] = min(bounds[priority], program.bound)
    return bounds
