"""Fragmentation: how much smaller the largest available partition of a pool becomes (S17, goal 5).

A pool may have many independent parts, such as cards: a result for one part holds in every state of the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from devalloc_solver.bounds.largest_partition import partition_loss
from devalloc_solver.fleet.pool_states import PartState, PoolState


@dataclass(slots=True, eq=False)
class PartitionLosses:
    """Keeps what it finds out of parts of pools."""

    _by_part: dict[tuple[PartState, int, int], int] = field(default_factory=dict)
    """(part, group, devices taken) -> loss"""
    _least: dict[int, int | None] = field(default_factory=dict)

    def of(self, state: PoolState, group: int, count: int) -> int:
        """Of so many free devices of a group."""
        return self.of_part(state.parts[state.kind.part_of[group]], group, count) if state.sizes_differ else 0

    def of_part(self, part: PartState, group: int, count: int) -> int:
        """The same, if free devices of the pool are of several sizes."""
        loss = self._by_part.get((part, group, count))
        if loss is None:
            loss = self._by_part[part, group, count] = _loss(part, group, count)
        return loss

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


def _loss(state: PartState, group: int, count: int) -> int:
    part = state.part
    groups = zip(part.draws, part.sizes, state.free, strict=True)
    sizes = {draws: size for draws, size, free in groups if free and size is not None}
    shapes = sorted(((size, draws) for draws, size in sizes.items()), reverse=True)
    return partition_loss(shapes, state.left, [part.draws[part.groups.index(group)]] * count)
