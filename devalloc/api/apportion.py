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
