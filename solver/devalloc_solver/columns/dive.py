"""Diving: round a fractional solution to an integer one by fixing columns and solving again."""

from __future__ import annotations

import time

from devalloc_solver.columns.master_problem import EPSILON, MasterProgram
from devalloc_solver.columns.packing import Packing

DECIDED_FIRST = 0.3
"""How much nearer to one a column counts that has claims of priorities that are decided: they must not be lost."""
ROUNDS = 6
"""Rounds of column generation for what is left each time."""
MAX_DIVES = 40


def dive(program: MasterProgram, *, part: int, ends: float | None) -> Packing:
    """A packing near the last solution of a program, which is shrunk to what is left then.

    ``part``: one in so many of the columns that are not whole is rounded up in each round.
    """
    packing = Packing.empty(program.board, program.supply)
    for _ in range(MAX_DIVES):
        if not _fix(program, packing, part) or (ends is not None and time.monotonic() > ends):
            break
        program.solve(rounds=ROUNDS, ends=ends)
    return packing


def _fix(program: MasterProgram, packing: Packing, part: int) -> int:
    """Fix some columns; returns how many."""
    supply, wanted, floors = program.supply.copy(), list(program.wanted), dict(program.floors)
    fixed = 0

    def put(number: int, count: int) -> int:
        column = program.pool.columns[number]
        start = column.path[0]
        kinds = column.kinds()
        count = min(count, int(supply[start]), *(wanted[kind] // each for kind, each in kinds.items()))
        if count <= 0:
            return 0
        packing.add(column.path, count)
        for kind, each in kinds.items():
            wanted[kind] -= each * count
            for priority, claims in program.board.kinds[kind].claims.items():
                if priority in floors:
                    floors[priority] -= claims * each * count
        supply[start] -= count
        for state, each in column.opens:
            supply[state] += each * count
        return count

    rest: list[tuple[float, int]] = []
    # Columns that open cards first, so that the cards are there for the columns that use them.
    ordered = sorted(program.values, key=lambda value: (not program.pool.columns[value[0]].opens, value[0]))
    for number, value in ordered:
        whole = int(value + EPSILON)
        fixed += put(number, whole) if whole else 0
        if value - whole > EPSILON:
            kinds = [program.board.kinds[kind] for kind in program.pool.columns[number].kinds()]
            decided = any(priority in floors for kind in kinds for priority in kind.claims)
            rest.append((whole - value - decided * DECIDED_FIRST, number))
    rest.sort()
    for _, number in rest[: max(1, len(rest) // part)]:
        fixed += put(number, 1)
    program.shrink(supply, wanted, floors)
    return fixed
