"""The satisfied claims of each priority, highest first: as many as can be found, and a bound (S17, goal 1).

A level is decided before the next: what it reached is a floor for all that follows. Counting comes first, then a
linear program with its bound, then dives and repairs, each only as long as there is a gap.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from devalloc_solver.columns.master_problem import EPSILON, ColumnPool, MasterProgram
from devalloc_solver.columns.neighbourhood import OpenPacking, pick_bins, repair
from devalloc_solver.columns.node_geometry import Ints
from devalloc_solver.columns.packing import Packing, PackingChoices, fill_packing, max_copies, state_usefulness
from devalloc_solver.columns.pricing import PathValues, StageGoal
from devalloc_solver.columns.state_network import User
from devalloc_solver.columns.state_space import StateSpace

DECIDED_FIRST = 0.3
"""How much nearer to one a column counts that has claims of priorities that are decided: they must not be lost.
Measured on the 20 batches of 200 claims of the benchmark `batches`, as are the other numbers here: at 0 and at 0.9 a
batch of unlike claims takes five times as long, and at 0 another has a claim less of a high priority."""
ROUNDS = 6
"""Rounds of column generation for what is left each time. With 3 the answers are the same, with 12 one has a pool less;
the time is the same."""
MAX_DIVES = 40


def dive(program: MasterProgram, *, part: int, ends: float | None) -> Packing:
    """A packing near the last solution of a program, which is shrunk to what is left then.

    ``part``: one in so many of the columns that are not whole is rounded up in each round.
    """
    packing = Packing.empty(program.state_space, program.supply)
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
            for priority, claims in program.state_space.kinds[kind].claims.items():
                if priority in floors:
                    floors[priority] -= claims * each * count
        supply[start] -= count
        for state, each in column.child_bins:
            supply[state] += each * count
        return count

    rest: list[tuple[float, int]] = []
    # Columns that open cards first, so that the cards are there for the columns that use them.
    ordered = sorted(program.values, key=lambda value: (not program.pool.columns[value[0]].child_bins, value[0]))
    for number, value in ordered:
        whole = int(value + EPSILON)
        fixed += put(number, whole) if whole else 0
        if value - whole > EPSILON:
            kinds = [program.state_space.kinds[kind] for kind in program.pool.columns[number].kinds()]
            decided = any(priority in floors for kind in kinds for priority in kind.claims)
            rest.append((whole - value - decided * DECIDED_FIRST, number))
    rest.sort()
    for _, number in rest[: max(1, len(rest) // part)]:
        fixed += put(number, 1)
    program.shrink(supply, wanted, floors)
    return fixed


DIVE_FRACTIONS = (10, 4, 20, 7, 14)
"""The dives that are tried while there is a gap: one in so many columns is rounded up in each round."""
REPAIR_SIZE = 8
"""Bins that are repaired together. With 4 two batches have a claim less of a higher priority; with 16 one has a claim
less, and another worse alternatives."""
MAX_REPAIRS, MAX_REPAIRS_WIDE_GAP = 10, 16
"""Repairs of what the best of the dives leaves; and as long as the gap is wider than TOLERANCE."""
MAX_FUTILE_REPAIRS = 4
"""Repairs in a row that win nothing. One without a solution counts as two, since others will end the same way. With 2
and with 8 the answers are the same."""
TOLERANCE = 1
"""Claims."""


@dataclass(slots=True, eq=False)
class LevelSolver:
    """Decides level after level; the best packing so far is always at hand."""

    state_space: StateSpace
    supply: Ints
    """state -> bins in it"""
    wanted: Sequence[int]
    """kind -> units"""
    ends: float | None = None
    """monotonic time after which nothing new is begun"""
    best: Packing = field(init=False)
    bounds: dict[int, int] = field(default_factory=dict)
    """priority -> claims that can be satisfied at the most, those of higher ones being as many as they are"""
    least_ranks: int = 0
    """a lower bound of the sum of chosen alternatives, with as many claims"""
    _pool: ColumnPool = field(init=False)
    _fits: Ints = field(init=False)
    _useful: Ints = field(init=False)
    _choices: PackingChoices = field(init=False)
    _first: list[Packing] = field(init=False)
    _orders: dict[bool, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin with what a best fit finds, large claims first or small ones."""
        self._pool = ColumnPool(self.state_space)
        self._fits = max_copies(self.state_space.network)
        self._useful = state_usefulness(self.state_space, self._fits, self.wanted)
        self._choices = PackingChoices.by_loss(self.state_space, self._useful)
        self._first = [Packing.empty(self.state_space, self.supply) for _ in range(2)]
        for packing, small_first in zip(self._first, (False, True), strict=True):
            fill_packing(packing, self._choices, self._order(small_first), self.wanted)
        self.best = max(self._first, key=_packing_value)

    def decide(self) -> None:
        """Every level in turn."""
        floors: dict[int, int] = {}
        for priority in self.state_space.priorities:
            self.bounds[priority] = self._count(priority)
            if self._has_gap(priority) and not self._is_late():
                self._improve(priority, floors)
            floors[priority] = self.best.satisfied()[priority]
        if self._is_late():
            self._save()
            return
        self._prefer(floors)
        self._draw_together()

    def _save(self) -> None:
        """A last attempt when there is no time for another: what takes the fewest devices leaves room for more."""
        if not any(map(self._has_gap, self.state_space.priorities)):
            return
        packing = Packing.empty(self.state_space, self.supply)
        fill_packing(packing, self._choices, self._order(small_first=True), self.wanted, frugal=True)
        if _packing_value(packing) > _packing_value(self.best):
            self.best = packing
            for priority in self.state_space.priorities[
                1:
            ]:  # what was proven was for as many of higher ones as there were
                self.bounds[priority] = self._count(priority)

    def _prefer(self, floors: Mapping[int, int]) -> None:
        """Better alternatives for as many claims (S17, goal 2): one program for a bound, one dive."""
        if not self.best.ranks() or self._is_late():
            return
        worth = {
            (kind, way): -self.state_space.kinds[kind].ways[way].rank
            for users in self.state_space.network.users
            for kind, way in users
        }
        program = self._program(worth, floors)
        program.solve(enough=-self.best.ranks(), ends=self.ends)
        if program.bound is not None:
            self.least_ranks = max(0, -program.bound)
        if self.least_ranks < self.best.ranks() and not self._is_late():
            packing = self._completed(dive(program, part=DIVE_FRACTIONS[0], ends=self.ends), self._choices)
            self.best = max(self.best, packing, key=_packing_value)

    def _draw_together(self) -> None:
        """The same claims in fewer bins, if it can be had at once (S17, goal 3)."""
        packing = Packing.empty(self.state_space, self.supply)
        kinds = self.state_space.kinds
        large_first = sorted(range(len(kinds)), key=lambda k: (-kinds[k].fewest, k))
        fill_packing(packing, self._choices, large_first, self.best.counts(), compact=True)
        if _packing_value(packing) >= _packing_value(self.best) and packing.gone.sum() < self.best.gone.sum():
            self.best = packing

    def prove(self, satisfied: Mapping[int, int], floors: Mapping[int, int]) -> None:
        """Bounds alone, for solutions with no fewer claims of each priority than its floor.

        ``satisfied``: claims that are in anyway; a bound that is down to them is good enough.
        """
        for priority in self.state_space.priorities:
            enough = satisfied.get(priority, 0)
            self.bounds[priority] = self._count(priority)
            if enough < self.bounds[priority] and not self._is_late():
                higher = {p: max(0, floors.get(p, 0)) for p in self.state_space.priorities if p > priority}
                program = self._program(self._counting(priority), higher)
                program.solve(enough=enough, ends=self.ends)
                self._take_bound(priority, program)

    # -- one level -----------------------------------------------------------------------------------------------------

    def _improve(self, priority: int, floors: Mapping[int, int]) -> None:
        program = self._program(self._counting(priority), floors)
        program.solve(enough=self.best.satisfied()[priority], ends=self.ends)
        self._take_bound(priority, program)
        nearest: tuple[Packing, PathValues] | None = None
        for part in DIVE_FRACTIONS:
            if not self._has_gap(priority) or self._is_late():
                return
            if nearest is not None:
                program.restore()
                program.solve(ends=self.ends)
            valuation = program.valuation
            if valuation is None:
                return  # cut short
            packing = dive(program, part=part, ends=self.ends)
            # What still fits goes where it costs least, by two measures.
            costs = (self._choices, PackingChoices.by_loss(self.state_space, valuation.worth))
            for choices in costs:
                whole = self._completed(packing.copy(), choices)
                self.best = max(self.best, whole, key=_packing_value)
                if nearest is None or self._total(whole, priority) > self._total(nearest[0], priority):
                    nearest = whole, valuation
        if nearest is not None:
            self._mend(*nearest, priority)

    def _completed(self, packing: Packing, choices: PackingChoices) -> Packing:
        fill_packing(packing, choices, self._order(small_first=True), self.wanted)
        return packing

    def _mend(self, packing: Packing, valuation: PathValues, priority: int) -> None:
        """Repair some bins after others, as long as there is a gap."""
        rng = random.Random(1)
        open_packing = OpenPacking.of(packing, self.supply, self.wanted)
        futile = 0
        for turn in range(MAX_REPAIRS_WIDE_GAP):
            gap = self.bounds[priority] - self.best.satisfied()[priority]
            if gap <= (0 if turn < MAX_REPAIRS else TOLERANCE) or futile >= MAX_FUTILE_REPAIRS or self._is_late():
                return
            chosen = pick_bins(open_packing, valuation, REPAIR_SIZE, rng)
            won = repair(open_packing, chosen, priority, self.ends) if chosen else 0
            futile += 1 if won == 0 else 2
            if won > 0:
                futile = 0
                self.best = max(
                    self.best, self._completed(open_packing.pack(self.supply), self._choices), key=_packing_value
                )

    def _counting(self, priority: int) -> dict[User, int]:
        """One for each claim of a priority; units with higher ones take part."""
        kinds = self.state_space.kinds
        return {
            user: kinds[user[0]].claims.get(priority, 0)
            for users in self.state_space.network.users
            for user in users
            if kinds[user[0]].priority >= priority
        }

    def _program(self, worth: Mapping[User, int], floors: Mapping[int, int]) -> MasterProgram:
        """As much worth as possible, and no fewer claims of a priority than its floor."""
        for packing in self._first:
            self._pool.add_all(packing, worth)
        return MasterProgram(self.state_space, self._pool, StageGoal(worth, floors), self.supply, self.wanted)

    def _take_bound(self, priority: int, program: MasterProgram) -> None:
        if program.bound is not None:
            self.bounds[priority] = min(self.bounds[priority], program.bound)

    def _count(self, priority: int) -> int:
        """Claims that fit at the most, were each kind alone."""
        kinds = self.state_space.kinds
        if len(self.state_space.network.unexpanded_states):
            return sum(wanted * kinds[k].claims.get(priority, 0) for k, wanted in enumerate(self.wanted))
        room = [0] * len(kinds)
        alone = self.supply @ self._fits[: self.state_space.network.states]
        # How many cards can be opened is for the program to say.
        opened = self._fits[[*self.state_space.child_bins.values()]].sum(axis=0)
        for label, users in enumerate(self.state_space.network.users):
            for kind, _ in users:
                room[kind] += self.wanted[kind] if opened[label] else int(alone[label])
        return sum(min(room[k], wanted) * kinds[k].claims.get(priority, 0) for k, wanted in enumerate(self.wanted))

    def _total(self, packing: Packing, priority: int) -> tuple[int, object]:
        """How near a packing comes: what it lacks of higher priorities can be mended at a small price."""
        return sum(count for p, count in packing.satisfied().items() if p >= priority), _packing_value(packing)

    # -- small things --------------------------------------------------------------------------------------------------

    def _order(self, small_first: bool) -> list[int]:
        """Kinds, highest priority first."""
        if small_first not in self._orders:
            kinds, sign = self.state_space.kinds, 1 if small_first else -1
            order = sorted(range(len(kinds)), key=lambda k: (-kinds[k].priority, sign * kinds[k].effort, k))
            self._orders[small_first] = order
        return self._orders[small_first]

    def _has_gap(self, priority: int) -> bool:
        return self.best.satisfied()[priority] < self.bounds[priority]

    def _is_late(self) -> bool:
        return self.ends is not None and time.monotonic() > self.ends


def _packing_value(packing: Packing) -> tuple[tuple[int, ...], int]:
    """Satisfied claims, highest priority first; then the alternatives chosen."""
    return tuple(packing.satisfied().values()), -packing.ranks()
