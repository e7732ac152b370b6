"""Linear bounds on what components and pools can serve: they refute a question before it is searched.

Every weight gives a bound: what the needs weigh must not exceed the most that each cell can carry of that weight. The
weights are single needs, the number of devices, and what devices draw on each family of pool resources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import add, ge, mul

from devalloc_solver.place.components import Component, PoolComponents
from devalloc_solver.place.demand_vector import DemandEntry, DemandVector, TakeKind
from devalloc_solver.place.resource_families import resource_families

Weight = tuple[int, ...]


def make_weights(lanes: DemandVector) -> list[Weight]:
    """The weights to bound with, each a number per need."""
    size = len(lanes.needs)
    weights: dict[Weight, None] = {tuple(int(i == j) for j in range(size)): None for i in range(size)}
    counted = [lane for lane in lanes.lanes if lane.kind in (TakeKind.COUNT, TakeKind.TOTAL)]
    weights[_weight(size, {lane.first: 1 for lane in counted})] = None
    for family in resource_families(lanes.stock.site):
        weights[_weight(size, {lane.first: _min_weight(lanes, lane, family.weights) for lane in counted})] = None
    return [weight for weight in weights if any(weight)]


def _weight(size: int, parts: Mapping[int, int]) -> Weight:
    return tuple(parts.get(position, 0) for position in range(size))


def _min_weight(lanes: DemandVector, lane: DemandEntry, weights: Sequence[int]) -> int:
    """What a device of a lane weighs at the least; any weights give a bound, and these tend to give a sharp one."""
    spots = [lot for lot in lanes.stock.site.lots if lane.spots >> lot.number & 1]
    return min((0 if lot.one.shareable else weights[lot.number] for lot in spots), default=0)


class LinearBounds:
    """How much is left from each cell on, by weight."""

    def __init__(self, lanes: DemandVector, components: Sequence[PoolComponents]) -> None:
        self.weights = make_weights(lanes)
        carried: dict[int, list[int]] = {}
        self.rest: list[list[list[int]]] = []
        """per component, per cell: what this cell and those after it in the component carry, by weight"""
        for component in components:
            rows = [[0] * len(self.weights)]
            for cell in reversed(component.cells):
                if cell.kind not in carried:
                    carried[cell.kind] = _max_weights(cell, self.weights)
                rows.append([a + b for a, b in zip(carried[cell.kind], rows[-1], strict=True)])
            self.rest.append(rows[::-1])
        self.top: list[list[list[int]]] = [self._top(components, first) for first in range(len(components) + 1)]
        """per component, per number of pools that may be opened: what the best of the components from here on carry"""

    def _top(self, components: Sequence[PoolComponents], first: int) -> list[list[int]]:
        free = [0] * len(self.weights)
        columns: list[list[int]] = [[] for _ in self.weights]
        for number in range(first, len(components)):
            for position, amount in enumerate(self.rest[number][0]):
                if components[number].is_open:
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

    def may_do(self, component: int, cell: int, rem: Sequence[int], pools: int, is_open: bool) -> bool:
        """Whether cells from this one on, in this component if it is open, and ``pools`` more may cover ``rem``."""
        wanted = self.weigh(rem)
        tops = self.top[component + 1]
        last = len(tops) - 1
        if is_open or pools:
            # In a component that is not open yet, it is one of the pools.
            others = tops[min(pools if is_open else pools - 1, last)]
            if all(map(ge, map(add, self.rest[component][cell], others), wanted)):
                return True
        return not is_open and all(map(ge, tops[min(pools, last)], wanted))


def _max_weights(cell: Component, weights: Sequence[Weight]) -> list[int]:
    """The most that a cell carries of each weight; the first weights are the needs themselves."""
    gains = [option.gain for option in cell.options]
    single = [*map(max, *gains)] if len(gains) > 1 else [*gains[0]]
    return [*single, *(max([sum(map(mul, weight, gain)) for gain in gains]) for weight in weights[len(single) :])]
