"""Whether the cells that are left can still give every demand entry devices of its own: a flow decides it.

Where many entries compete for single devices, a search meets more states than it can look at; one that follows the flow
enters none without an answer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from heapq import nlargest
from itertools import pairwise
from typing import NamedTuple

from devalloc_solver.place.components import Component, MergedGroup, PoolComponents
from devalloc_solver.place.step_budget import FEW_NEEDS, StepBudget

_CLOSED = -1
"""Devices of a bin that does not count."""
_WORK_OF_STEP = 32
"""Devices and entries looked at that cost as much as a step."""


class _Shortage(NamedTuple):
    """Needs for which some pools have too few devices."""

    missing: int
    """devices for them that open pools have too few of"""
    rooms: Sequence[int]
    """per component, the devices that it has for them"""

    def may_end(self, chosen: Sequence[int], others: Sequence[int], count: int) -> bool:
        """Whether so many of the others could have what is missing beside the chosen components."""
        more = nlargest(count, (self.rooms[number] for number in others))
        return sum(self.rooms[number] for number in chosen) + sum(more) >= self.missing


class FlowBound:
    """Serves needs by devices of the cells from some cell on, or of some pools, and begins with what it last did."""

    def __init__(self, components: Sequence[PoolComponents]) -> None:
        self.components = components
        self.is_exact = all(_is_plain(cell) for component in components for cell in component.cells)
        """whether what the flow serves can be served: nothing but the devices may run out"""
        self.starts: list[list[int]] = []
        """per component, per cell: its first bin"""
        self.sizes: list[int] = []
        """per bin (a group of equal devices): its devices"""
        self.given: list[dict[int, int]] = []
        """per bin: need -> the devices that it has of it"""
        self.bins: dict[int, list[int]] = {}
        """need -> the bins that can serve it"""
        for component in components:
            starts = []
            for cell in component.cells:
                starts.append(len(self.sizes))
                for group in cell.groups:
                    for need in {_need_of(use.gain) for use in group.uses}:
                        self.bins.setdefault(need, []).append(len(self.sizes))
                    self.sizes.append(group.size)
                    self.given.append({})
            self.starts.append(starts)

    def may_serve(self, component: int, cell: int, needs: Sequence[int], steps: StepBudget) -> bool:
        """Whether the cells from this one on have devices for all needs; draws and numbers of pools are left aside."""
        first = self.starts[component][cell]
        return self._find_shortage([_CLOSED] * first + self.sizes[first:], needs, steps) is None

    def choose_pools(self, needs: Sequence[int], count: int, steps: StepBudget) -> list[int] | None:
        """The first components that have devices for all needs, so many at most that are not open yet; None where there
        are none."""
        is_open = [number for number, component in enumerate(self.components) if component.is_open]
        closed = [number for number, component in enumerate(self.components) if not component.is_open]
        shortages: list[_Shortage] = []

        def choose(chosen: list[int], others: list[int]) -> list[int] | None:
            steps.spend(1 + len(shortages) * len(others) // _WORK_OF_STEP)
            count_left = count - len(chosen)
            if not all(shortage.may_end(chosen, others, count_left) for shortage in shortages):
                return None
            if not others or not count_left:
                served = sorted([*is_open, *chosen])
                short = self._find_shortage(self._rooms_of(served), needs, steps)
                if short is not None:
                    shortages.append(self._note_shortage(short, needs, is_open))
                return served if short is None else None
            first, *rest = others
            if (with_first := choose([*chosen, first], rest)) is not None:
                return with_first
            kind = self.components[first].kind
            return choose(chosen, [number for number in rest if self.components[number].kind != kind])

        return choose([], closed)

    def _rooms_of(self, components: Sequence[int]) -> list[int]:
        """Per bin its devices, if it is of these components."""
        rooms = [_CLOSED] * len(self.sizes)
        ends = [*(starts[0] for starts in self.starts), len(self.sizes)]
        for number in components:
            rooms[ends[number] : ends[number + 1]] = self.sizes[ends[number] : ends[number + 1]]
        return rooms

    def _note_shortage(self, short: Collection[int], needs: Sequence[int], is_open: Sequence[int]) -> _Shortage:
        bins = {position for need in short for position in self.bins.get(need, ())}
        ends = [*(starts[0] for starts in self.starts), len(self.sizes)]
        rooms = [
            sum(self.sizes[position] for position in range(start, end) if position in bins)
            for start, end in pairwise(ends)
        ]
        return _Shortage(sum(needs[need] for need in short) - sum(rooms[number] for number in is_open), rooms)

    def _find_shortage(self, left: list[int], needs: Sequence[int], steps: StepBudget) -> Collection[int] | None:
        """Needs for which the bins have too few devices; None where all can be served. ``left``: per bin its devices,
        or _CLOSED, which is changed."""
        missing = list(needs)
        for position, room in enumerate(left):
            if room == _CLOSED:
                continue
            given = self.given[position]
            for need, count in [*given.items()]:
                stays = min(count, missing[need])
                missing[need] -= stays
                left[position] -= stays
                if stays:
                    given[need] = stays
                else:
                    del given[need]
        steps.spend(1 + len(left) // _WORK_OF_STEP)
        for need in range(len(missing)):
            while missing[need]:
                moved = self._augment(need, missing[need], left, steps)
                if not isinstance(moved, int):
                    return moved
                missing[need] -= moved
        return None

    def _augment(self, need: int, wanted: int, left: list[int], steps: StepBudget) -> int | Collection[int]:
        """Give up to ``wanted`` devices to a need along one augmenting path. Returns how many it got or, without such a
        path, the needs that together hold every device that any of them can use."""
        came: dict[int, tuple[int, int] | None] = {need: None}
        """need -> (the need that it makes room for, the bin that it gives up)"""
        looked: set[int] = set()
        queue = [need]
        work = 0
        for other in queue:
            bins = self.bins.get(other, ())
            work += len(bins)
            for position in bins:
                if left[position] == _CLOSED or position in looked:
                    continue
                looked.add(position)
                if left[position]:
                    steps.spend(work // _WORK_OF_STEP)
                    return self._move(came, other, position, wanted, left)
                for holder in self.given[position]:
                    if holder not in came:
                        came[holder] = (other, position)
                        queue.append(holder)
        steps.spend(work // _WORK_OF_STEP)
        return came.keys()

    def _move(
        self, came: dict[int, tuple[int, int] | None], need: int, position: int, wanted: int, left: list[int]
    ) -> int:
        """Move devices along the path that ends at a bin with room."""
        path: list[tuple[int, int, int | None]] = []
        """(need, the bin that it takes of, the bin that it gives up)"""
        count, at, takes = min(wanted, left[position]), need, position
        while True:
            before = came[at]
            path.append((at, takes, None if before is None else before[1]))
            if before is None:
                break
            count = min(count, self.given[before[1]][at])
            at, takes = before
        left[position] -= count
        for at, takes, gives in path:
            self.given[takes][at] = self.given[takes].get(at, 0) + count
            if gives is not None:
                self.given[gives][at] -= count
                if not self.given[gives][at]:
                    del self.given[gives][at]
        return count


def make_flow_bound(needs: int, components: Sequence[PoolComponents]) -> FlowBound | None:
    """None where there are few needs, or a device may serve several, or more than one unit of one."""
    groups = [group for component in components for cell in component.cells for group in cell.groups]
    return FlowBound(components) if needs > FEW_NEEDS and all(map(_serves_one_each, groups)) else None


def _serves_one_each(group: MergedGroup) -> bool:
    return not group.watchers and all(
        len(use.takes) == 1 and use.takes[0][1] == 1 and sum(use.gain) == 1 for use in group.uses
    )


def _is_plain(cell: Component) -> bool:
    """Whether the devices of a cell draw on nothing and rule nothing out, and all cost the same."""
    groups = all(not group.draws and group.group is None for group in cell.groups)
    return groups and not any(option.cost or option.wide or any(option.spend) for option in cell.options)


def _need_of(gain: Sequence[int]) -> int:
    return gain.index(1)
