"""Whether one pool might have all that a claim asks for: what matches demand is left aside, what devices draw is not.

Where no pool of a node does, the claim needs two at least, and nodes where one does come first (S17, goal 3).
"""

from __future__ import annotations

from devalloc_solver.demand import Demand, Mode, Slot
from devalloc_solver.index.states import PoolState

MAX_STEPS = 2_000
"""Choices tried; beyond, the pool counts as one that might."""


def might_have_all(demand: Demand, state: PoolState) -> bool:
    """False only when it is certain that the pool, as it is, does not have all that the claim asks for."""
    return _Search(state).details(demand.details, 0)


class _Search:
    """Takes devices from a pool, group by group, and puts them back."""

    def __init__(self, state: PoolState) -> None:
        self.state, self.free, self.left = state, list(state.free), dict(state.left)
        self.steps = 0

    def details(self, details: tuple[tuple[Slot, ...], ...], number: int) -> bool:
        if number == len(details):
            return True
        return any(self.slot(slot, details, number) for slot in details[number])

    def slot(self, slot: Slot, details: tuple[tuple[Slot, ...], ...], number: int) -> bool:
        kinds = self.state.kind.kinds
        groups = [group for group, kind in enumerate(kinds) if kind.index in slot.candidates.accepted]
        if slot.mode is not Mode.WHOLE or slot.portions:
            return bool(groups) and self.details(details, number + 1)
        return self.take(slot, groups, slot.least, details, number)

    def take(
        self, slot: Slot, groups: list[int], count: int, details: tuple[tuple[Slot, ...], ...], number: int
    ) -> bool:
        """``count`` devices more, of these groups, in order."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            return True
        if not count:
            return self.details(details, number + 1)
        for position, group in enumerate(groups):
            draws = self.state.kind.kinds[group].one.draws
            if self.free[group] and all(self.left[name] >= blocks for name, blocks in draws):
                self.free[group] -= 1
                for name, blocks in draws:
                    self.left[name] -= blocks
                found = self.take(slot, groups[position:], count - 1, details, number)
                self.free[group] += 1
                for name, blocks in draws:
                    self.left[name] += blocks
                if found:
                    return True
        return False
