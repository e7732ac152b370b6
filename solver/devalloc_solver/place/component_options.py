"""What a component can do for the requests, without options that another one dominates.

It goes through the groups of a cell in an order that keeps few counters half used at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

from devalloc_solver.place.demand_vector import DemandEntry, DemandVector
from devalloc_solver.place.device_uses import DeviceUse, undominated
from devalloc_solver.place.step_budget import StepBudget


def order_by_counter(touched: Sequence[frozenset[int]]) -> list[int]:
    """Positions of ``touched`` (the counters that each takes from), those that finish a counter together.

    Next is the counter that the fewest are left for, the first of equals, with all that take from it. On a card with
    its memory slices as counters that goes along the card, slice by slice.
    """
    left = dict.fromkeys(range(len(touched)))
    order: list[int] = []
    users: dict[int, dict[int, None]] = {}
    for position, counters in enumerate(touched):
        for counter in counters:
            users.setdefault(counter, {})[position] = None
    while users:
        counter = min(users, key=lambda name: (len(users[name]), name))
        for position in users.pop(counter):
            del left[position]
            order.append(position)
            for other in touched[position] - {counter}:
                if other in users:
                    del users[other][position]
                    if not users[other]:
                        del users[other]
    return [*left, *order]


Partition = tuple[int, tuple[tuple[int, int], ...]]
"""(size, what it draws: counter and blocks), as packing cares for; large ones first"""

Watcher = tuple[DemandEntry, tuple[int, ...], int]
"""(admin demand entry, counters of the distinct values that it uses up, mask of those that other pools have as well)"""


@dataclass(frozen=True, slots=True)
class IndexedGroup:
    """A stack with its counters as positions."""

    size: int
    draws: tuple[tuple[int, int], ...]
    """(counter, blocks) of each device"""
    group: int | None
    seen: bool
    shareable: bool
    watchers: tuple[Watcher, ...]
    uses: tuple[tuple[DeviceUse, tuple[int, ...], int], ...]
    """(use, counters of its distinct values, mask of those that other pools have as well)"""


@dataclass(frozen=True, slots=True)
class ComponentOption:
    """One way to use a cell."""

    gain: tuple[int, ...]
    spend: tuple[int, ...]
    cost: int
    wide: int
    """mask of the distinct values it takes up that other pools have as well"""
    uses: tuple[tuple[int, int, int], ...]
    """(stack, use, devices)"""
    looks: tuple[tuple[int, int, int], ...]
    """(stack, demand entry, devices) of admin demand entries"""
    loss: int = 0
    """what it costs of the largest partition that the cell has left: the difference of the squares of its sizes, so
    that a cell which is broken into already is used up before another is broken into"""
    load: int = 0
    """how much of its pool comes into use, where that matters"""


def component_options(
    demand_vector: DemandVector,
    shapes: Sequence[IndexedGroup],
    counters: Sequence[int],
    partitions: Sequence[Partition],
    steps: StepBudget,
) -> list[ComponentOption]:
    """The options of a cell that no other makes needless, the most first; doing nothing is not among them."""
    if len(shapes) == 1 and len(shapes[0].uses) == 1 and _is_plain(shapes[0]) and not partitions:
        use = shapes[0].uses[0][0]
        most = min(shapes[0].size, max(n for n, g in zip(demand_vector.needs, use.gain, strict=True) if g))
        least = 1 if use.load else most
        gains = [(tuple(gain * count for gain in use.gain), count) for count in range(most, least - 1, -1)]
        return [ComponentOption(g, use.spend, 0, 0, ((0, 0, count),), (), load=count * use.load) for g, count in gains]
    if len(shapes) == 1 and shapes[0].size == 1 and not partitions and all(demand_vector.needs):
        uses = [use for use, _, _ in shapes[0].uses]
        if _is_plain(shapes[0]) and all(sum(use.gain) == 1 for use in uses):
            steps.spend_each(len(uses))
            return [
                ComponentOption(use.gain, use.spend, 0, 0, ((0, position, 1),), (), load=use.load)
                for position, use in enumerate(uses)
            ]
    parts: list[_PartialOption] = []
    whole = _largest(partitions, counters)
    groups = {shape.group for shape in shapes if shape.group is not None}
    choices: list[int | None] = [*sorted(groups)] or [None]
    for group in choices:
        within = [_within_compatibility_group(shape, group) for shape in shapes]
        usable = [number for number, shape in enumerate(within) if shape.uses or shape.watchers]
        for part in _partial_options(demand_vector, within, usable, tuple(counters), partitions, steps):
            if any(part.gain):
                parts.append(part)
    parts.sort(key=_offset)
    options = [
        ComponentOption(p.gain, p.spend, p.cost, p.wide, p.uses, p.looks, whole**2 - p.whole**2, p.load) for p in parts
    ]
    if len(options) == 1:
        return options
    left = undominated(options, lambda o: ((*o.gain, *[-s for s in o.spend], -o.cost, -o.loss, -o.load), o.wide), steps)
    if any(shape.draws for shape in shapes):
        # Of covers that cost the same the first one found counts: of equal cards the one that takes most of the first.
        left.sort(key=lambda option: -sum(option.gain))
    return left


def _within_compatibility_group(shape: IndexedGroup, group: int | None) -> IndexedGroup:
    """The stack where the pool keeps to a compatibility group: of other groups admins may look at devices, no more."""
    return shape if shape.group in (None, group) else replace(shape, uses=(), draws=())


def _largest(partitions: Sequence[Partition], counters: Sequence[int]) -> int:
    """The size of the largest partition that is left."""
    for size, draws in partitions:
        if all(blocks <= counters[counter] for counter, blocks in draws):
            return size
    return 0


class _PartialOption(NamedTuple):
    """One way to use the first stacks of a cell, and what it leaves to the others."""

    gain: tuple[int, ...]
    spend: tuple[int, ...]
    counters: tuple[int, ...]
    cost: int = 0
    wide: int = 0
    uses: tuple[tuple[int, int, int], ...] = ()
    looks: tuple[tuple[int, int, int], ...] = ()
    whole: int = 0
    """size of the partition that is kept whole"""
    load: int = 0
    offset: int = 0
    """how far on the stacks are that it takes of: the natural order prefers the first devices"""


_offset = attrgetter("offset")


def _partial_options(
    demand_vector: DemandVector,
    shapes: Sequence[IndexedGroup],
    usable: Sequence[int],
    counters: tuple[int, ...],
    partitions: Sequence[Partition],
    steps: StepBudget,
) -> list[_PartialOption]:
    """The ways to use a cell, stack by stack; what another does at least as well is left out after each stack.

    To keep a partition whole is a step like taking a stack: it draws what the partition draws. What is left of a
    counter matters only as long as some step to come draws on it, so the steps go counter by counter.
    """
    touched = [_touched(shapes[number]) for number in usable]
    touched += [frozenset(counter for counter, _ in draws) for _, draws in partitions]
    order = order_by_counter(touched)
    parts = [_PartialOption((0,) * len(demand_vector.needs), (0,) * len(demand_vector.budgets), counters)]
    live = frozenset(range(len(counters)))
    for place, position in enumerate(order, 1):
        if position < len(usable):
            number = usable[position]
            make = _add_counted if _is_simple(shapes[number]) else _add_all_ways
            parts = [*make(demand_vector, number, shapes[number], parts, steps, last=place == len(order))]
        else:
            parts += _keep_partition(parts, partitions[position - len(usable)], steps)
        still = frozenset[int]().union(*(touched[later] for later in order[place:]))
        # Comparing pays where a counter is finished; who asked compares what comes last.
        if place < len(order) and still != live:
            live = still
            parts = _undominated_parts(parts, sorted(live), steps)
    return parts


def _touched(shape: IndexedGroup) -> frozenset[int]:
    """The counters that a stack takes from."""
    values = [counter for _, values, _ in (*shape.uses, *shape.watchers) for counter in values]
    return frozenset((*values, *(counter for counter, _ in shape.draws)))


def _undominated_parts(parts: Iterable[_PartialOption], live: Sequence[int], steps: StepBudget) -> list[_PartialOption]:
    """What no other part does at least as well, where only the ``live`` counters are still drawn on."""

    def worth(part: _PartialOption) -> tuple[tuple[int, ...], int]:
        left = [part.counters[counter] for counter in live]
        return (*part.gain, *[-amount for amount in part.spend], *left, -part.cost, part.whole, -part.load), part.wide

    return undominated(sorted(parts, key=_offset), worth, steps)


def _keep_partition(parts: Sequence[_PartialOption], partition: Partition, steps: StepBudget) -> list[_PartialOption]:
    """The parts that can keep the partition and keep no other, keeping it."""
    size, draws = partition
    keeping = []
    for part in parts:
        if part.whole or any(part.counters[counter] < blocks for counter, blocks in draws):
            continue
        steps.spend()
        counters = [*part.counters]
        for counter, blocks in draws:
            counters[counter] -= blocks
        keeping.append(part._replace(counters=tuple(counters), whole=size))
    return keeping


def _is_simple(shape: IndexedGroup) -> bool:
    """Whether its devices have one use, so that their number says all."""
    return len(shape.uses) == 1 and not shape.watchers and not shape.uses[0][1]


def _add_counted(
    demand_vector: DemandVector,
    number: int,
    shape: IndexedGroup,
    parts: Sequence[_PartialOption],
    steps: StepBudget,
    *,
    last: bool,
) -> Iterator[_PartialOption]:
    """A simple stack added to each part, the most first: what ``_add_all_ways`` would do, with less ado."""
    use, _, _ = shape.uses[0]
    gains = [(at, gain, demand_vector.needs[at]) for at, gain in enumerate(use.gain) if gain]
    spends = [(at, each, demand_vector.budgets[at]) for at, each in enumerate(use.spend) if each]
    everything = last and not use.cost and not spends and not use.load
    steps.spend_each(len(parts))
    for part in parts:
        most = min(shape.size, max([-(-(need - part.gain[at]) // gain) for at, gain, need in gains]))
        for counter, blocks in shape.draws:
            most = min(most, part.counters[counter] // blocks)
        for at, each, budget in spends:
            most = min(most, (budget - part.spend[at]) // each)
        for count in range(most, 0, -1):
            counters, gained, spent = [*part.counters], [*part.gain], [*part.spend]
            for counter, blocks in shape.draws:
                counters[counter] -= blocks * count
            for at, gain, _ in gains:
                gained[at] += gain * count
            for at, each, _ in spends:
                spent[at] += each * count
            yield _PartialOption(
                tuple(gained),
                tuple(spent),
                tuple(counters),
                part.cost + use.cost * count,
                part.wide,
                (*part.uses, (number, 0, count)),
                part.looks,
                part.whole,
                part.load + use.load * count,
                part.offset + number * count,
            )
            if everything:
                break
        else:
            yield part


def _add_all_ways(
    demand_vector: DemandVector,
    number: int,
    shape: IndexedGroup,
    parts: Sequence[_PartialOption],
    steps: StepBudget,
    *,
    last: bool,
) -> Iterator[_PartialOption]:
    """All that a stack can add to each part."""
    for part in parts:
        yield from _OptionBuilder(demand_vector, number, shape, part, steps, last=last).make()


class _OptionBuilder:
    """Adds one stack to a part: depth first over its uses, then over the admin demand entries that look at it."""

    def __init__(
        self,
        demand_vector: DemandVector,
        number: int,
        shape: IndexedGroup,
        part: _PartialOption,
        steps: StepBudget,
        *,
        last: bool,
    ) -> None:
        self.demand_vector, self.number, self.shape, self.part, self.steps = demand_vector, number, shape, part, steps
        self.last = last
        self.gain, self.spend, self.counters = [*part.gain], [*part.spend], [*part.counters]
        self.left = shape.size
        self.plain = _is_plain(shape)
        self.later = self._missing_after() if self.plain else ()
        """per use of a plain stack: the devices that those after it want, at the most"""
        self.counts: list[tuple[int, int]] = []
        """(use, devices)"""

    def make(self) -> Iterator[_PartialOption]:
        return self._use(0)

    def _use(self, position: int) -> Iterator[_PartialOption]:
        self.steps.spend()
        uses = self.shape.uses
        if position == len(uses):
            yield from self._look(0, [])
            return
        use, values, _ = uses[position]
        most = self._most(use, values)
        least = 0
        if use.load:
            pass  # fewer leave more of the pool
        elif self.plain:
            least = max(0, min(most, self.left - self.later[position]))
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

    def _missing_after(self) -> list[int]:
        after = [0]
        for use, _, _ in reversed(self.shape.uses[1:]):
            after.append(after[-1] + self._missing(use))
        return after[::-1]

    def _missing(self, use: DeviceUse) -> int:
        """Devices that the demand entries of a use still want, at the most."""
        return max(
            (-(-(n - h) // g) for n, h, g in zip(self.demand_vector.needs, self.gain, use.gain, strict=True) if g > 0)
        )

    def _most(self, use: DeviceUse, values: Sequence[int]) -> int:
        most = min(self.left, max(0, self._missing(use)))
        for budget, spent, each in zip(self.demand_vector.budgets, self.spend, use.spend, strict=True):
            if each:
                most = min(most, (budget - spent) // each)
        for counter, blocks in self.shape.draws:
            most = min(most, self.counters[counter] // blocks)
        for counter in values:
            most = min(most, self.counters[counter])
        return most

    def _take(self, use: DeviceUse, values: Sequence[int], count: int) -> None:
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

    # -- admin demand entries ------------------------------------------------------------------------------------------

    def _look(self, index: int, looks: list[tuple[int, int]]) -> Iterator[_PartialOption]:
        """``looks``: (number of a demand entry, devices)"""
        if index == len(self.shape.watchers):
            yield self._grown(looks)
            return
        entry, values, _ = self.shape.watchers[index]
        most = min(self.shape.size, self.demand_vector.needs[entry.first] - self.gain[entry.first])
        if entry.demand is not None and not self.shape.shareable:
            most = min(most, self.shape.size - self._of_demand(entry.demand, looks))
        for counter in values:
            most = min(most, self.counters[counter])
        for count in range(max(0, most), -1, -1):
            self.steps.spend()
            self.gain[entry.first] += count
            for counter in values:
                self.counters[counter] -= count
            yield from self._look(index + 1, [*looks, (entry.number, count)] if count else looks)
            self.gain[entry.first] -= count
            for counter in values:
                self.counters[counter] += count

    def _of_demand(self, demand: int, looks: Sequence[tuple[int, int]]) -> int:
        """Devices of the stack that one claim has, in which no device may be twice."""
        demand_entries, uses = self.demand_vector.demand_entries, self.shape.uses
        taken = sum(
            count
            for position, count in self.counts
            if any(demand_entries[taker].demand == demand for taker, _ in uses[position][0].takes)
        )
        return taken + sum(count for watcher, count in looks if demand_entries[watcher].demand == demand)

    def _grown(self, looks: Sequence[tuple[int, int]]) -> _PartialOption:
        part, shape = self.part, self.shape
        wide = part.wide
        for position, _ in self.counts:
            wide |= shape.uses[position][2]
        for number, _ in looks:
            wide |= sum(bits for watcher, _, bits in shape.watchers if watcher.number == number)
        return _PartialOption(
            tuple(self.gain),
            tuple(self.spend),
            tuple(self.counters),
            part.cost + self._cost(looks),
            wide,
            part.uses + tuple((self.number, position, count) for position, count in self.counts),
            part.looks + tuple((self.number, watcher, count) for watcher, count in looks),
            part.whole,
            part.load + sum(shape.uses[position][0].load * count for position, count in self.counts),
            part.offset + self.number * sum(count for _, count in self.counts),
        )

    def _cost(self, looks: Sequence[tuple[int, int]]) -> int:
        """Distinct devices. Admins look at devices in use first, unless their claim may have no device twice."""
        shape, demand_entries = self.shape, self.demand_vector.demand_entries
        if not shape.watchers:
            return sum(count * shape.uses[position][0].cost for position, count in self.counts)
        if shape.seen:
            return 0
        most = sum(count for _, count in self.counts)
        for watcher, count in looks:
            demand = demand_entries[watcher].demand
            alone = demand is None or shape.shareable
            most = max(most, count if alone else self._of_demand(demand or 0, looks))
        return most


def _is_plain(shape: IndexedGroup) -> bool:
    """Whether its devices are taken whole and nothing but their number matters."""
    return (
        not shape.draws
        and shape.group is None
        and not shape.watchers
        and all(not use.cost and not any(use.spend) and not values for use, values, _ in shape.uses)
    )
