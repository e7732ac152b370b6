"""Leaving out what something else does at least as well."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import ge
from typing import TypeVar

from devalloc_solver.place.steps import Steps

T = TypeVar("T")
_COMPARED = 32
"""Comparisons that cost as much as a step."""


def undominated(things: Iterable[T], rank: Callable[[T], tuple[tuple[int, ...], int]], steps: Steps) -> list[T]:
    """Those of which no other is as good in every number without using up more; best sums first, equal ones once.

    ``rank`` gives (numbers of which more is better, mask of what is used up).
    """
    ranked = sorted(((*rank(thing), thing) for thing in things), key=lambda row: -sum(row[0]))
    kept: list[tuple[tuple[int, ...], int, T]] = []
    for numbers, used, thing in ranked:
        steps.spend(1 + len(kept) // _COMPARED)
        for others, theirs, _ in kept:
            if not theirs & ~used and all(map(ge, others, numbers)):
                break
        else:
            kept.append((numbers, used, thing))
    return [thing for _, _, thing in kept]
