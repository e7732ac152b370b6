"""All that a cell can do for the lanes, less what something else does at least as well."""

from __future__ import annotations

from collections import defaultdict
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
    groups = {shape.group for shape in shapes if shape.group is not None}
    choices: list[int | None] = [*sorted(groups)] or [None]
    for group in choices:
        usable = [shape.group is None or shape.group == group for shape in shapes]
        maker = _Maker(lanes, shapes, usable, list(counters), partitions, steps)
        found += [option for option in maker.make() if any(option.gain)]
    if len(found) == 1:
        return found
    return undominated(found, lambda o: ((*o.gain, *(-s for s in o.spend), -o.cost, -o.loss), o.wide))


class _Maker:
    """Depth first over (stack, use), then over the admin lanes of each stack."""

    def __init__(
        self,
        lanes: Lanes,
        shapes: Sequence[Shape],
        usable: Sequence[bool],
        counters: list[int],
        partitions: Sequence[Partition],
        steps: Steps,
    ) -> None:
        self.lanes, self.shapes, self.counters, self.steps = lanes, shapes, counters, steps
        self.partitions = partitions
        self.whole = self._largest()
        self.entries = [
            (number, position)
            for number, shape in enumerate(shapes)
            if usable[number]
            for position in range(len(shape.uses))
        ]
        self.looks = [(number, watcher) for number, shape in enumerate(shapes) for watcher in shape.watchers]
        self.left = [shape.size for shape in shapes]
        self.gain = [0] * len(lanes.needs)
        self.spend = [0] * len(lanes.budgets)
        self.plain = [_is_plain(shape) for shape in shapes]
        self.counts: list[tuple[int, int, int]] = []

    def make(self) -> Iterator[Option]:
        return self._use(0)

    def _use(self, index: int) -> Iterator[Option]:
        self.steps.spend()
        if index == len(self.entries):
            yield from self._look(0, [])
            return
        number, position = self.entries[index]
        shape = self.shapes[number]
        use, values, _ = shape.uses[position]
        most = self._most(shape, use, values, self.left[number])
        least = 0
        if self.plain[number]:
            later = sum(self._missing(shape.uses[p][0]) for p in range(position + 1, len(shape.uses)))
            least = max(0, min(most, self.left[number] - later))
        elif index + 1 == len(self.entries) and not (
            self.looks or self.partitions or values or use.cost or any(use.spend)
        ):
            least = most
        for count in range(most, least - 1, -1):
            self._take(number, use, values, count)
            if count:
                self.counts.append((number, position, count))
            yield from self._use(index + 1)
            if count:
                self.counts.pop()
            self._take(number, use, values, -count)

    def _missing(self, use: Use) -> int:
        """Devices that the lanes of a use still want, at the most."""
        return max((-(-(n - h) // g) for n, h, g in zip(self.lanes.needs, self.gain, use.gain, strict=True) if g > 0))

    def _most(self, shape: Shape, use: Use, values: Sequence[int], left: int) -> int:
        most = min(left, max(0, self._missing(use)))
        for budget, spent, each in zip(self.lanes.budgets, self.spend, use.spend, strict=True):
            if each:
                most = min(most, (budget - spent) // each)
        for counter, blocks in shape.draws:
            most = min(most, self.counters[counter] // blocks)
        for counter in values:
            most = min(most, self.counters[counter])
        return most

    def _take(self, number: int, use: Use, values: Sequence[int], count: int) -> None:
        if not count:
            return
        self.left[number] -= count
        for position, gain in enumerate(use.gain):
            self.gain[position] += gain * count
        for position, spent in enumerate(use.spend):
            self.spend[position] += spent * count
        for counter, blocks in self.shapes[number].draws:
            self.counters[counter] -= blocks * count
        for counter in values:
            self.counters[counter] -= count

    # -- admin lanes -------------------------------------------------------------------------------------------------

    def _look(self, index: int, counts: list[tuple[int, int, int]]) -> Iterator[Option]:
        if index == len(self.looks):
            yield self._option(counts)
            return
        number, (lane, values, _) = self.looks[index]
        most = min(self.shapes[number].size, self.lanes.needs[lane.first] - self.gain[lane.first])
        if lane.demand is not None and not self.shapes[number].shareable:
            most = min(most, self.shapes[number].size - self._of_demand(number, lane.demand, counts))
        for counter in values:
            most = min(most, self.counters[counter])
        for count in range(max(0, most), -1, -1):
            self.steps.spend()
            self.gain[lane.first] += count
            for counter in values:
                self.counters[counter] -= count
            yield from self._look(index + 1, [*counts, (number, lane.number, count)] if count else counts)
            self.gain[lane.first] -= count
            for counter in values:
                self.counters[counter] += count

    def _of_demand(self, number: int, demand: int, looks: Sequence[tuple[int, int, int]]) -> int:
        """Devices of a stack that one claim has, in which no device may be twice."""
        lanes = self.lanes.lanes
        uses = self.shapes[number].uses
        taken = sum(
            count
            for stack, position, count in self.counts
            if stack == number and any(lanes[lane].demand == demand for lane, _ in uses[position][0].takes)
        )
        return taken + sum(count for stack, lane, count in looks if stack == number and lanes[lane].demand == demand)

    def _option(self, looks: Sequence[tuple[int, int, int]]) -> Option:
        wide = cost = 0
        for number, position, _ in self.counts:
            wide |= self.shapes[number].uses[position][2]
        for number, lane, _ in looks:
            wide |= sum(bits for watcher, _, bits in self.shapes[number].watchers if watcher.number == lane)
        for number, shape in enumerate(self.shapes):
            if not shape.watchers:
                cost += sum(c * shape.uses[p][0].cost for stack, p, c in self.counts if stack == number)
            elif not shape.seen:
                cost += self._distinct(number, looks)
        loss = self.whole**2 - self._largest() ** 2
        return Option(tuple(self.gain), tuple(self.spend), cost, wide, tuple(self.counts), tuple(looks), loss)

    def _largest(self) -> int:
        """The size of the largest partition that is left."""
        for size, draws in self.partitions:
            if all(blocks <= self.counters[counter] for counter, blocks in draws):
                return size
        return 0

    def _distinct(self, number: int, looks: Sequence[tuple[int, int, int]]) -> int:
        """Admin asks look at devices in use first, but for those of a claim that may have no device twice."""
        own: dict[int, int] = defaultdict(int)
        most = sum(count for stack, _, count in self.counts if stack == number)
        for stack, number_of_lane, count in looks:
            if stack == number:
                demand = self.lanes.lanes[number_of_lane].demand
                if demand is None or self.shapes[number].shareable:
                    most = max(most, count)
                else:
                    own[demand] += count
        for demand in own:
            most = max(most, self._of_demand(number, demand, looks))
        return most


def _is_plain(shape: Shape) -> bool:
    """Whether its devices are taken whole and nothing but their number matters."""
    return (
        not shape.draws
        and shape.group is None
        and not shape.watchers
        and all(not use.cost and not any(use.spend) and not values for use, values, _ in shape.uses)
    )
