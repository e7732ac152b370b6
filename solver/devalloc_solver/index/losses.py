"""What taking devices of a partitioned pool takes off the largest device that can still be had (S17, goal 5)."""

from __future__ import annotations

from dataclasses import dataclass, field

from devalloc_solver.index.states import PoolState
from devalloc_solver.place.partitions import Shapes, loss_of, shapes_of


@dataclass(slots=True, eq=False)
class Losses:
    """Keeps what it finds out of states of pools, by their numbers."""

    _shapes: dict[int, Shapes] = field(default_factory=dict)
    _least: dict[int, int | None] = field(default_factory=dict)

    def of(self, state: PoolState, group: int, count: int) -> int:
        """Of so many free devices of a group."""
        shapes = self._shapes_of(state)
        return loss_of(shapes, state.left, [state.kind.kinds[group].one.draws] * count) if shapes else 0

    def least(self, state: PoolState) -> int | None:
        """Of whichever free device takes the least; None when none is free."""
        if state.index not in self._least:
            kinds = zip(state.kind.kinds, state.free, strict=True)
            usable = [
                group
                for group, (kind, free) in enumerate(kinds)
                if free and kind.one.undefined is None and kind.one.unavailable is None
            ]
            self._least[state.index] = min((self.of(state, group, 1) for group in usable), default=None)
        return self._least[state.index]

    def _shapes_of(self, state: PoolState) -> Shapes:
        if state.index not in self._shapes:
            there = (kind.one for kind, free in zip(state.kind.kinds, state.free, strict=True) if free)
            draws = (one.draws for one in there if one.undefined is None and one.unavailable is None)
            self._shapes[state.index] = shapes_of(draws, {name: r.blocks for name, r in state.kind.resources.items()})
        return self._shapes[state.index]
