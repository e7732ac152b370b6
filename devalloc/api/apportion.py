"""Share whole units out by weights, so that no share shrinks when there is one unit more (D'Hondt's method).

The allocator and the nodes share a machine's CPUs and memory out to its NUMA nodes alike.
"""

from __future__ import annotations

from collections.abc import Sequence


def apportion(units: int, weights: Sequence[int]) -> list[int]:
    """So many whole units for each weight; they sum up to ``units``, if any weight is more than zero."""
    total = sum(weights)
    if total <= 0 or units <= 0:
        return [0] * len(weights)
    # Each gets at least its share rounded down; the few units that are left go where they change least.
    shares = [units * weight // total for weight in weights]
    for _ in range(units - sum(shares)):
        best = max(
            (place for place, weight in enumerate(weights) if weight > 0),
            key=lambda place: (weights[place] / (shares[place] + 1), -place),
        )
        shares[best] += 1
    return shares


def apportion_memory(size: int, weights: Sequence[int], *, block: int, least: int, dimm: int | None) -> list[int]:
    """How many of ``size`` bytes of memory each NUMA node of a guest has.

    ``block``: the unit, in bytes; part of a block counts as one. ``dimm``: the size of the DIMMs in which the memory
    above ``least`` comes and goes; None if it does so in blocks.
    """
    if dimm is None:
        return [count * block for count in apportion(-(-size // block), weights)]
    built_in = apportion(-(-min(size, least) // block), weights)
    dimms = apportion(max(0, size - least) // dimm, weights)
    return [base * block + count * dimm for base, count in zip(built_in, dimms, strict=True)]
