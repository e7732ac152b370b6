"""All that a cell can do for the lanes, less what something else does at least as well."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from devalloc_solver.place.lanes import Lane, Lanes
from devalloc_solver.place.pareto import undominated
from devalloc_solver.place.steps import Steps
from devalloc_solver.place.uses import Use

Partition = tuple[int, tuple[tuple[int, int], ...]]
"""(size, what it draws: counter and blocks), as packing cares for; large ones first"""


Watcher = tuple[Lane, tuple[int, ...], int]
"""(admin lane, counters of the distinct values that it uses up, mask of those that other pools have as well)"""


@dataclass(frozen=True, slots=True)
class Shape:
    """A stack with its counters as positions."""

    size: int
    draws: tuple[tuple[int, int], ...]
    """(counter, blocks) of each device"""
    group: int | None
    seen: bool
    shareable: bool
    watchers: tuple[Watcher, ...]
    uses: tuple[tuple[Use, tuple[int, ...], int], ...]
    """(use, counters of its distinct values, mask of those that other pools have as well)"""


@dataclass(frozen=True, slots=True)
class Option:
    """One way to use a cell."""

    gain: tuple[int, ...]
    spend: tuple[int, ...]
    cost: int
    wide: int
    """mask of the distinct values it takes up that other pools have as well"""
    uses: tuple[tuple[int, int, int], ...]
    """(stack, use, devices)"""
    looks: tuple[tuple[int, int, int], ...]
    """(stack, lane, devices) of admin lanes"""
    loss: int = 0
    """what it costs of the largest partition that the cell has left: the difference of the squares of its sizes, so
    that a cell which is broken into already is used up before another is broken into"""


def options_of(
    lanes: Lanes, shapes: Sequence[Shape], counters: Sequence[int], partitions: Sequence[Partition], steps: Steps
) -> list[Option]:
    """The options of a cell that no other makes needless, the most first; doing nothing is not among them."""
    if len(shapes) == 1 and len(shapes[0].uses) == 1 and _is_plain(shapes[0]) and not partitions:
        use = shapes[0].uses[0][0]
        count = min(shapes[0].size, max(n for n, g in zip(lanes.needs, use.gain, strict=True) if g))
        return [Option(tuple(g * count for g in use.gain), use.spend, 0, 0, ((0, 0, count),), ())]
    found: list[Option] = []
    whole = _largest(partitions, counters)
    groups = {shape.group for shape in shapes if shape.group is not None}
    choices: list[int | None] = [*sorted(groups)] or [None]
    for group in choices:
        usable = [number for number, shape in enumerate(shapes) if shape.group is None or shape.group == group]
        for part in _parts(lanes, shapes, usable, tuple(counters), steps, exact=bool(partitions)):
            if any(part.gain):
                loss = whole**2 - _largest(partitions, part.counters) ** 2
                found.append(Option(part.gain, part.spend, part.cost, part.wide, part.uses, part.looks, loss))
    if len(found) == 1:
        return found
    return undominated(found, lambda o: ((*o.gain, *(-s for s in o.spend), -o.cost, -o.loss), o.wide), steps)


def _largest(partitions: Sequence[Partition], counters: Sequence[int]) -> int:
    """The size of the largest partition that is left."""
    for size, draws in partitions:
        if all(blocks <= counters[counter] for counter, blocks in draws):
            return size
    return 0


@dataclass(frozen=True, slots=True)
class _Part:
    """One way to use the first stacks of a cell, and what it leaves to the others."""

    gain: tuple[int, ...]
    spend: tuple[int, ...]
    counters: tuple[int, ...]
    cost: int = 0
    wide: int = 0
    uses: tuple[tuple[int, int, int], ...] = ()
    looks: tuple[tuple[int, int, int], ...] = ()


def _parts(
    lanes: Lanes,
    shapes: Sequence[Shape],
    usable: Sequence[int],
    counters: tuple[int, ...],
    steps: Steps,
    *,
    exact: bool,
) -> list[_Part]:
    """The ways to use a cell, stack by stack; what another does at least as well is left out after each stack."""
    parts = [_Part((0,) * len(lanes.needs), (0,) * len(lanes.budgets), counters)]
    for number in usable:
        last = number == usable[-1] and not exact
        grown = [new for part in parts for new in _Maker(lanes, number, shapes[number], part, steps, last=last).make()]
        parts = grown
        if len(usable) > 1 and len(grown) > 1:
            parts = undominated(
                grown, lambda p: ((*p.gain, *(-s for s in p.spend), *p.counters, -p.cost), p.wide), steps
            )
    return parts


class _Maker:
    """Adds one stack to a part: depth first over its uses, then over the admin lanes that look at it."""

    def __init__(self, lanes: Lanes, number: int, shape: Shape, part: _Part, steps: Steps, *, last: bool) -> None:
        self.lanes, self.number, self.shape, self.part, self.steps = lanes, number, shape, part, steps
        self.last = last
        self.gain, self.spend, self.counters = [*part.gain], [*part.spend], [*part.counters]
        self.left = shape.size
        self.plain = _is_plain(shape)
        self.counts: list[tuple[int, int]] = []
        """(use, devices)"""

    def make(self) -> Iterator[_Part]:
        return self._use(0)

    def _use(self, position: int) -> Iterator[_Part]:
        self.steps.spend()
        uses = self.shape.uses
        if position == len(uses):
            yield from self._look(0, [])
            return
        use, values, _ = uses[position]
        most = self._most(use, values)
        least = 0
        if self.plain:
            later = sum(self._missing(other) for other, _, _ in uses[position + 1 :])
            least = max(0, min(most, self.left - later))
        elif self.last and position + 1 == len(uses) and not (self.shape.watchers or values or use.cost):
            least = 0 if any(use.spend) else most
        for count in range(most, least - 1, -1):
            self._take(use, values, count)
            if count:
                self.counts.append((position, count))
            yield from self._use(position + 1)
            if count:
                self.counts.pop()
            self._take(use, values, -count)

    def _missing(self, use: Use) -> int:
        """Devices that the lanes of a use still want, at the most."""
        return max((-(-(n - h) // g) for n, h, g in zip(self.lanes.needs, self.gain, use.gain, strict=True) if g > 0))

    def _most(self, use: Use, values: Sequence[int]) -> int:
        most = min(self.left, max(0, self._missing(use)))
        for budget, spent, each in zip(self.lanes.budgets, self.spend, use.spend, strict=True):
            if each:
                most = min(most, (budget - spent) // each)
        for counter, blocks in self.shape.draws:
            most = min(most, self.counters[counter] // blocks)
        for counter in values:
            most = min(most, self.counters[counter])
        return most

    def _take(self, use: Use, values: Sequence[int], count: int) -> None:
        if not count:
            return
        self.left -= count
        for position, gain in enumerate(use.gain):
            self.gain[position] += gain * count
        for position, spent in enumerate(use.spend):
            self.spend[position] += spent * count
        for counter, blocks in self.shape.draws:
            self.counters[counter] -= blocks * count
        for counter in values:
            self.counters[counter] -= count

    # -- admin lanes -------------------------------------------------------------------------------------------------

    def _look(self, index: int, looks: list[tuple[int, int]]) -> Iterator[_Part]:
        """``looks``: (lane, devices)"""
        if index == len(self.shape.watchers):
            yield self._grown(looks)
            return
        lane, values, _ = self.shape.watchers[index]
        most = min(self.shape.size, self.lanes.needs[lane.first] - self.gain[lane.first])
        if lane.demand is not None and not self.shape.shareable:
            most = min(most, self.shape.size - self._of_demand(lane.demand, looks))
        for counter in values:
            most = min(most, self.counters[counter])
        for count in range(max(0, most), -1, -1):
            self.steps.spend()
            self.gain[lane.first] += count
            for counter in values:
                self.counters[counter] -= count
            yield from self._look(index + 1, [*looks, (lane.number, count)] if count else looks)
            self.gain[lane.first] -= count
            for counter in values:
                self.counters[counter] += count

    def _of_demand(self, demand: int, looks: Sequence[tuple[int, int]]) -> int:
        """Devices of the stack that one claim has, in which no device may be twice."""
        lanes, uses = self.lanes.lanes, self.shape.uses
        taken = sum(
            count
            for position, count in self.counts
            if any(lanes[lane].demand == demand for lane, _ in uses[position][0].takes)
        )
        return taken + sum(count for lane, count in looks if lanes[lane].demand == demand)

    def _grown(self, looks: Sequence[tuple[int, int]]) -> _Part:
        part, shape = self.part, self.shape
        wide = part.wide
        for position, _ in self.counts:
            wide |= shape.uses[position][2]
        for lane, _ in looks:
            wide |= sum(bits for watcher, _, bits in shape.watchers if watcher.number == lane)
        return _Part(
            tuple(self.gain),
            tuple(self.spend),
            tuple(self.counters),
            part.cost + self._cost(looks),
            wide,
            part.uses + tuple((self.number, position, count) for position, count in self.counts),
            part.looks + tuple((self.number, lane, count) for lane, count in looks),
        )

    def _cost(self, looks: Sequence[tuple[int, int]]) -> int:
        """Distinct devices. Admins look at devices in use first, unless their claim may have no device twice."""
        shape, lanes = self.shape, self.lanes.lanes
        if not shape.watchers:
            return sum(count * shape.uses[position][0].cost for position, count in self.counts)
        if shape.seen:
            return 0
        most = sum(count for _, count in self.counts)
        for lane, count in looks:
            demand = lanes[lane].demand
            alone = demand is None or shape.shareable
            most = max(most, count if alone else self._of_demand(demand or 0, looks))
        return most


def _is_plain(shape: Shape) -> bool:
    """Whether its devices are taken whole and nothing but their number matters."""
    return (
        not shape.draws
        and shape.group is None
        and not shape.watchers
        and all(not use.cost and not any(use.spend) and not values for use, values, _ in shape.uses)
    )
