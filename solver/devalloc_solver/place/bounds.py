"""What cells and pools can do at the most: linear bounds that refute a question before it is searched.

Every weight gives a bound: what the needs weigh must not exceed the most that each cell can carry of that weight. The
weights are single needs, the number of devices, and what devices draw on each family of pool resources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import add, ge, mul

from devalloc_solver.place.cells import Cell, Yard
from devalloc_solver.place.families import families
from devalloc_solver.place.lanes import Kind, Lane, Lanes

Weight = tuple[int, ...]


def make_weights(lanes: Lanes) -> list[Weight]:
    """The weights to bound with, each a number per need."""
    size = len(lanes.needs)
    found: dict[Weight, None] = {tuple(int(i == j) for j in range(size)): None for i in range(size)}
    counted = [lane for lane in lanes.lanes if lane.kind in (Kind.COUNT, Kind.TOTAL)]
    found[_weight(size, {lane.first: 1 for lane in counted})] = None
    for family in families(lanes.stock.site):
        found[_weight(size, {lane.first: _lightest(lanes, lane, family.weights) for lane in counted})] = None
    return [weight for weight in found if any(weight)]


def _weight(size: int, parts: Mapping[int, int]) -> Weight:
    return tuple(parts.get(position, 0) for position in range(size))


def _lightest(lanes: Lanes, lane: Lane, weights: Sequence[int]) -> int:
    """What a device of a lane weighs at the least; any weights give a bound, and these tend to give a sharp one."""
    spots = [lot for lot in lanes.stock.site.lots if lane.spots >> lot.number & 1]
    return min((0 if lot.one.shareable else weights[lot.number] for lot in spots), default=0)


class Bounds:
    """How much is left from each cell on, by weight."""

    def __init__(self, lanes: Lanes, yards: Sequence[Yard]) -> None:
        self.weights = make_weights(lanes)
        carried: dict[int, list[int]] = {}
        self.rest: list[list[list[int]]] = []
        """per yard, per cell: what this cell and those after it in the yard carry, by weight"""
        for yard in yards:
            rows = [[0] * len(self.weights)]
            for cell in reversed(yard.cells):
                if cell.kind not in carried:
                    carried[cell.kind] = _most(cell, self.weights)
                rows.append([a + b for a, b in zip(carried[cell.kind], rows[-1], strict=True)])
            self.rest.append(rows[::-1])
        self.top: list[list[list[int]]] = [self._top(yards, first) for first in range(len(yards) + 1)]
        """per yard, per number of pools that may be opened: what the best of the yards from here on carry"""

    def _top(self, yards: Sequence[Yard], first: int) -> list[list[int]]:
        free = [0] * len(self.weights)
        columns: list[list[int]] = [[] for _ in self.weights]
        for number in range(first, len(yards)):
            for position, amount in enumerate(self.rest[number][0]):
                if yards[number].is_open:
                    free[position] += amount
                else:
                    columns[position].append(amount)
        for column in columns:
            column.sort(reverse=True)
        rows = [free]
        for count in range(max((len(column) for column in columns), default=0)):
            rows.append([row + column[count] for row, column in zip(rows[-1], columns, strict=True)])
        return rows

    def weigh(self, rem: Sequence[int]) -> list[int]:
        """What needs weigh by each weight; the first weights are the needs themselves."""
        return [*rem, *(sum(map(mul, weight, rem)) for weight in self.weights[len(rem) :])]

    def fewest(self, rem: Sequence[int]) -> int | None:
        """No fewer pools than that will do; None when all of them do not."""
        wanted = self.weigh(rem)
        for count, row in enumerate(self.top[0]):
            if all(map(ge, row, wanted)):
                return count
        return None

    def may_do(self, yard: int, cell: int, rem: Sequence[int], pools: int, is_open: bool) -> bool:
        """Whether ``rem`` may be had from a cell on, in this yard if it is open, and in as many ``pools`` besides."""
        wanted = self.weigh(rem)
        tops = self.top[yard + 1]
        last = len(tops) - 1
        if is_open or pools:
            # In a yard that is not open yet, it is one of the pools.
            others = tops[min(pools if is_open else pools - 1, last)]
            if all(map(ge, map(add, self.rest[yard][cell], others), wanted)):
                return True
        return not is_open and all(map(ge, tops[min(pools, last)], wanted))


def _most(cell: Cell, weights: Sequence[Weight]) -> list[int]:
    """The most that a cell carries of each weight; the first weights are the needs themselves."""
    gains = [option.gain for option in cell.options]
    single = [*map(max, *gains)] if len(gains) > 1 else [*gains[0]]
    return [*single, *(max([sum(map(mul, weight, gain)) for gain in gains]) for weight in weights[len(single) :])]
