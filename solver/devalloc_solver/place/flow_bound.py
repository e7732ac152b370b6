"""Whether the cells that are left can still give every demand entry devices of its own: a flow decides it.

Where many entries compete for single devices, a search meets more states than it can look at; one that follows the flow
enters none without an answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from devalloc_solver.place.components import MergedGroup, PoolComponents
from devalloc_solver.place.step_budget import FEW_NEEDS, StepBudget

_WORK_OF_STEP = 32
"""Devices and entries looked at that cost as much as a step."""


class FlowBound:
    """Serves needs by devices of the cells from some cell on, and begins with what it last did."""

    def __init__(self, components: Sequence[PoolComponents]) -> None:
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
        missing = list(needs)
        left = list(self.sizes)
        for position in range(first, len(self.sizes)):
            given = self.given[position]
            for need, count in [*given.items()]:
                stays = min(count, missing[need])
                missing[need] -= stays
                left[position] -= stays
                if stays:
                    given[need] = stays
                else:
                    del given[need]
        steps.spend(1 + (len(self.sizes) - first) // _WORK_OF_STEP)
        for need in range(len(missing)):
            while missing[need]:
                moved = self._augment(need, missing[need], first, left, steps)
                if not moved:
                    return False
                missing[need] -= moved
        return True

    def _augment(self, need: int, wanted: int, first: int, left: list[int], steps: StepBudget) -> int:
        """Give up to ``wanted`` devices to a need along one path, moving other needs aside; how many, 0 for none."""
        came: dict[int, tuple[int, int] | None] = {need: None}
        """need -> (the need that it makes room for, the bin that it gives up)"""
        looked: set[int] = set()
        queue = [need]
        work = 0
        for other in queue:
            bins = self.bins.get(other, ())
            work += len(bins)
            for position in bins:
                if position < first or position in looked:
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
        return 0

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


def _need_of(gain: Sequence[int]) -> int:
    return gain.index(1)
