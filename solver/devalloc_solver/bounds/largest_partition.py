"""The largest partition that a pool can still provide, which packing tries to keep, and after it the others (S17, goal
5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from devalloc_solver.problem.allocations import Usage
from devalloc_solver.problem.snapshot import Pool

Draws = tuple[tuple[str, int], ...]
Shapes = Sequence[tuple[int, Draws]]
"""(size in thousandths of the pool resources, draws), large ones first"""
Parts = Sequence[tuple[frozenset[str], Shapes]]
"""(what is drawn on, shapes) of each part of a pool that is drawn on apart from the others"""
Losses = tuple[int, int, int]
"""What the squares of the sizes of the largest devices of the parts fall by, added up; of how many sizes a part can no
longer give any; of how many shapes. Compared in this order."""


def partition_shapes(pool: Pool, usage: Usage) -> list[tuple[int, Draws]]:
    """The shapes of the devices that may still be had; see ``shapes_of_draws``."""
    there = (d for d in pool.devices if d.draws and not usage.in_use(d))
    capacity = {name: resource.blocks for name, resource in pool.resources.items()}
    return shapes_of_draws((d.draws for d in there if d.undefined is None and d.unavailable is None), capacity)


def shapes_of_draws(draws: Iterable[Draws], capacity: Mapping[str, int]) -> list[tuple[int, Draws]]:
    """The shapes of some devices of a pool, large ones first.

    Empty where all are of one size: then none is worth keeping more than another.
    """
    sizes: dict[Draws, int] = {}
    for each in draws:
        if each and each not in sizes:
            sizes[each] = size_of(each, capacity)
    if len({*sizes.values()}) < 2:
        return []
    return sorted(((size, each) for each, size in sizes.items()), reverse=True)


def size_of(draws: Draws, capacity: Mapping[str, int]) -> int:
    """In thousandths of the pool's resources, added up."""
    return sum(1000 * blocks // capacity[name] for name, blocks in draws if capacity[name])


def partition_loss(shapes: Shapes, free: Mapping[str, int], taken: Sequence[Draws]) -> int:
    """What a pool loses of its largest devices by giving away devices that draw so much; see ``losses``."""
    drawn = {name for draws in taken for name, _ in draws}
    near = [part for part in _split(tuple(shapes)) if not part[0].isdisjoint(drawn)]
    return losses(_fitting(near, free), free, taken)[0]


def fitting_parts(shapes: Shapes, free: Mapping[str, int]) -> Parts:
    """What fits into what is free, in each part of a pool that is drawn on apart from the others, such as one card."""
    return _fitting(_split(tuple(shapes)), free)


def losses(fitting: Parts, free: Mapping[str, int], taken: Iterable[Draws]) -> Losses:
    """What a pool loses by giving away devices that draw so much: a pool of two cards loses something when one of them
    is broken up.

    ``fitting`` is what ``fitting_parts`` finds with the same blocks free.
    """
    left: dict[str, int] = {}
    for draws in taken:
        for name, blocks in draws:
            left[name] = left.get(name, free[name]) - blocks
    loss = sizes = total = 0
    for names, before in fitting:
        if names.isdisjoint(left):
            continue
        after = _fit(before, left)
        if len(after) < len(before):
            loss += before[0][0] ** 2 - (after[0][0] ** 2 if after else 0)
            sizes += len({size for size, _ in before} - {size for size, _ in after})
            total += len(before) - len(after)
    return loss, sizes, total


def _fitting(parts: Parts, free: Mapping[str, int]) -> Parts:
    return [(names, _fit(near, free)) for names, near in parts]


def _fit(shapes: Shapes, free: Mapping[str, int]) -> Shapes:
    """Those that fit, as far as it is said what is free."""
    fitting = []
    for shape in shapes:
        for name, blocks in shape[1]:
            if name in free and free[name] < blocks:
                break
        else:
            fitting.append(shape)
    return fitting


@lru_cache(maxsize=4096)
def _split(shapes: tuple[tuple[int, Draws], ...]) -> Parts:
    """The shapes in parts of which none draws on what another one draws on, with what each draws on."""
    parts: list[tuple[frozenset[str], list[tuple[int, Draws]]]] = []
    for shape in shapes:
        names, near = frozenset([name for name, _ in shape[1]]), [shape]
        apart = []
        for part in parts:
            if names.isdisjoint(part[0]):
                apart.append(part)
            else:
                names, near = names | part[0], [*part[1], *near]
        parts = [*apart, (names, near)]
    return [(names, sorted(near, reverse=True)) for names, near in parts]
