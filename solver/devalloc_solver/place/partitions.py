"""Partitions: the largest device that a pool has left, which packing tries to keep (S17, goal 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from devalloc_solver.holdings import Ledger
from devalloc_solver.snapshot import Pool

Draws = tuple[tuple[str, int], ...]


def partitions(pool: Pool, ledger: Ledger) -> list[tuple[int, Draws]]:
    """(size in thousandths of the pool resources, draws) of the devices that may still be had, large ones first.

    Empty where all are of one size: then none is worth keeping more than another.
    """
    capacity = {name: resource.blocks for name, resource in pool.resources.items()}
    sizes: dict[Draws, int] = {}
    for device in pool.devices:
        if not device.draws or device.draws in sizes or ledger.in_use(device):
            continue
        if device.undefined is None and device.unavailable is None:
            sizes[device.draws] = sum(1000 * blocks // capacity[n] for n, blocks in device.draws if capacity[n])
    if len({*sizes.values()}) < 2:
        return []
    return sorted(((size, draws) for draws, size in sizes.items()), reverse=True)


def largest(shapes: Sequence[tuple[int, Draws]], free: Mapping[str, int]) -> int:
    """The size of the largest that fits into what is free."""
    return next((size for size, draws in shapes if all(blocks <= free[name] for name, blocks in draws)), 0)
