"""A bound: whether one pool might provide everything that a claim asks for.

If no single pool of a node suffices, the claim needs at least two; nodes where one suffices come first (S17, goal 3).
"""

from __future__ import annotations

from devalloc_solver.fleet.pool_states import PoolState
from devalloc_solver.problem.demand import AllocationMode, Demand, Request

MAX_STEPS = 2_000
"""Choices tried; beyond, the pool counts as one that might."""


def may_fit_one_pool(demand: Demand, state: PoolState) -> bool:
    """False only when it is certain that the pool, as it is, does not have all that the claim asks for."""
    return _PoolSearch(state).details(demand.details, 0)


class _PoolSearch:
    """Takes devices from a pool, group by group, and puts them back."""

    def __init__(self, state: PoolState) -> None:
        self.state, self.free, self.left = state, list(state.free), dict(state.left)
        self.steps = 0

    def details(self, details: tuple[tuple[Request, ...], ...], number: int) -> bool:
        if number == len(details):
            return True
        return any(self.request(request, details, number) for request in details[number])

    def request(self, request: Request, details: tuple[tuple[Request, ...], ...], number: int) -> bool:
        kinds = self.state.kind.kinds
        groups = [group for group, kind in enumerate(kinds) if kind.index in request.candidates.accepted]
        if request.mode is not AllocationMode.WHOLE or request.portions:
            return bool(groups) and self.details(details, number + 1)
        return self.take(request, groups, request.least, details, number)

    def take(
        self, request: Request, groups: list[int], count: int, details: tuple[tuple[Request, ...], ...], number: int
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
                picked = self.take(request, groups[position:], count - 1, details, number)
                self.free[group] += 1
                for name, blocks in draws:
                    self.left[name] += blocks
                if picked:
                    return True
        return False
