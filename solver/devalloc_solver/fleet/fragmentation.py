"""Fragmentation: how much smaller the largest available partition of a pool becomes (S17, goal 5).

A pool may have many independent parts, such as cards: a result for one part holds in every state of the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from devalloc_solver.bounds.largest_partition import Draws, partition_loss, size_of
from devalloc_solver.fleet.pool_states import PoolKind, PoolState

_Part = tuple[int, int, tuple[bool, ...], tuple[int, ...]]
"""(kind of pool, its part, which groups have a free device, free blocks of each resource)"""


@dataclass(frozen=True, slots=True, eq=False)
class _PoolLayout:
    """What stays of pools of one kind."""

    sizes: tuple[int | None, ...]
    """group -> size of its devices; None where they draw on nothing or cannot be had"""
    part_of: Mapping[int, int]
    """group -> its part, for groups that draw on anything"""
    groups: Sequence[Sequence[int]]
    """of each part"""
    names: Sequence[Sequence[str]]
    """resources of each part"""


@dataclass(slots=True, eq=False)
class PartitionLosses:
    """Keeps what it finds out of parts of pools."""

    _layouts: dict[int, _PoolLayout] = field(default_factory=dict)
    _by_state: dict[_Part, dict[tuple[int, int], int]] = field(default_factory=dict)
    """part in a state -> (group, devices taken) -> loss"""
    _least: dict[int, int | None] = field(default_factory=dict)
    _state: tuple[PoolState | None, bool, dict[int, dict[tuple[int, int], int]]] = (None, False, {})
    """the state last asked for, whether anything can be lost there, and what is known of its parts"""

    def of(self, state: PoolState, group: int, count: int) -> int:
        """Of so many free devices of a group."""
        layout = self._layout(state.kind)
        part = layout.part_of.get(group)
        if part is None:
            return 0
        last, differ, parts = self._state
        if last is not state:
            sizes = {size for size, free in zip(layout.sizes, state.free, strict=True) if free and size is not None}
            last, differ, parts = self._state = state, len(sizes) > 1, {}
        if not differ:
            return 0
        by_take = parts.get(part)
        if by_take is None:
            free = tuple([state.free[each] > 0 for each in layout.groups[part]])
            left = tuple([state.left[name] for name in layout.names[part]])
            by_take = parts[part] = self._by_state.setdefault((state.kind.index, part, free, left), {})
        loss = by_take.get((group, count))
        if loss is None:
            loss = by_take[group, count] = _loss(layout, state, part, [state.kind.kinds[group].one.draws] * count)
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

    def _layout(self, kind: PoolKind) -> _PoolLayout:
        if kind.index not in self._layouts:
            self._layouts[kind.index] = _layout_of(kind)
        return self._layouts[kind.index]


def _loss(layout: _PoolLayout, state: PoolState, part: int, taken: Sequence[Draws]) -> int:
    sizes = {
        state.kind.kinds[group].one.draws: size
        for group in layout.groups[part]
        if state.free[group] and (size := layout.sizes[group]) is not None
    }
    shapes = sorted(((size, draws) for draws, size in sizes.items()), reverse=True)
    return partition_loss(shapes, {name: state.left[name] for name in layout.names[part]}, taken)


def _layout_of(kind: PoolKind) -> _PoolLayout:
    capacity = {name: resource.blocks for name, resource in kind.resources.items()}
    drawing = {group: each.one for group, each in enumerate(kind.kinds) if each.one.draws}
    sizes = [
        size_of(one.draws, capacity) if one.undefined is None and one.unavailable is None else None
        for one in drawing.values()
    ]
    by_group = dict(zip(drawing, sizes, strict=True))
    parts: list[tuple[set[str], list[int]]] = []
    for group, one in drawing.items():
        names = {name for name, _ in one.draws}
        joined = [part for part in parts if not names.isdisjoint(part[0])]
        parts = [part for part in parts if names.isdisjoint(part[0])]
        parts.append((names.union(*(part[0] for part in joined)), [*(g for part in joined for g in part[1]), group]))
    return _PoolLayout(
        tuple(by_group.get(group) for group in range(len(kind.kinds))),
        {group: number for number, (_, groups) in enumerate(parts) for group in groups},
        [groups for _, groups in parts],
        [sorted(names) for names, _ in parts],
    )
