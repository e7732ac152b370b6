"""The largest partition that a pool can still provide, which packing tries to keep, and after it the others (S17, goal
5)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from devalloc_solver.problem.allocations import Usage
from devalloc_solver.problem.snapshot import Pool

Draws = tuple[tuple[str, int], ...]
Shapes = Sequence[tuple[int, Draws]]
"""(size in thousandths of the pool resources, draws), large ones first"""


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


def largest_free(shapes: Shapes, free: Mapping[str, int]) -> int:
    """The size of the largest that fits into what is free."""
    return next((size for size, draws in shapes if _fits(draws, free)), 0)


def partition_loss(shapes: Shapes, free: Mapping[str, int], taken: Iterable[Draws]) -> int:
    """What a pool loses by giving away devices that draw so much.

    Of each part of the pool that is drawn on apart from the others, such as one card, it is what the square of the
    size of its largest device falls by: a pool of two cards loses something when one of them is broken up.
    """
    parts = _parts_of(shapes, free, taken)
    return sum(largest_free(near, free) ** 2 - largest_free(near, left) ** 2 for near, left in parts)


def ruled_out(shapes: Shapes, free: Mapping[str, int], taken: Iterable[Draws]) -> tuple[int, int]:
    """How much devices that draw so much rule out, in the same parts: sizes of which none can be had there any more,
    and shapes."""
    sizes = total = 0
    for near, left in _parts_of(shapes, free, taken):
        before, after = ([shape for shape in near if _fits(shape[1], room)] for room in (free, left))
        sizes += len({size for size, _ in before} - {size for size, _ in after})
        total += len(before) - len(after)
    return sizes, total


def _parts_of(
    shapes: Shapes, free: Mapping[str, int], taken: Iterable[Draws]
) -> Iterator[tuple[Shapes, Mapping[str, int]]]:
    """The shapes of each part of a pool that devices are taken of, and what is left then."""
    left = dict(free)
    drawn: set[str] = set()
    for draws in taken:
        for name, blocks in draws:
            left[name] -= blocks
            drawn.add(name)
    for names, near in _split(tuple(shapes)):
        if not names.isdisjoint(drawn):
            yield near, left


@lru_cache(maxsize=4096)
def _split(shapes: tuple[tuple[int, Draws], ...]) -> list[tuple[frozenset[str], Shapes]]:
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


def _fits(draws: Draws, free: Mapping[str, int]) -> bool:
    return all(blocks <= free[name] for name, blocks in draws)
