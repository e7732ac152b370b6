"""Drop options that another one dominates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from devalloc_solver.place.step_budget import StepBudget

T = TypeVar("T")
_COMPARED = 128
"""Comparisons that cost as much as a step."""


def undominated(things: Iterable[T], rank: Callable[[T], tuple[tuple[int, ...], int]], steps: StepBudget) -> list[T]:
    """Those of which no other is as good in every number without using up more; best sums first, equal ones once.

    ``rank`` gives (numbers of which more is better, mask of what is used up).
    """
    first: dict[tuple[tuple[int, ...], int], T] = {}
    for thing in things:
        first.setdefault(rank(thing), thing)
    # What is as good in every number has no smaller sum; with the same sum, it comes first if it uses up less.
    ranked = sorted(first.items(), key=lambda row: (-sum(row[0][0]), row[0][1].bit_count()))
    packed, guards = _pack_rows([numbers for (numbers, _), _ in ranked])
    survivors: list[T] = []
    # A guard survives where the number beside it is no less than the one subtracted.
    if not any(used for _, used in first):
        rows: list[int] = []
        best = 0
        """the row that was as good as the one before: often it is as good as the next one, too"""
        for (_, thing), numbers in zip(ranked, packed, strict=True):
            steps.spend(1 + len(rows) // _COMPARED)
            if rows and (best - numbers) & guards == guards:
                continue
            for others in rows:
                if (others - numbers) & guards == guards:
                    best = others
                    break
            else:
                best = numbers | guards
                rows.append(best)
                survivors.append(thing)
        return survivors
    ranks: list[tuple[int, int]] = []
    """(numbers with their guards, what is used up)"""
    for ((_, used), thing), numbers in zip(ranked, packed, strict=True):
        steps.spend(1 + len(ranks) // _COMPARED)
        for others, theirs in ranks:
            if not theirs & ~used and (others - numbers) & guards == guards:
                break
        else:
            ranks.append((numbers | guards, used))
            survivors.append(thing)
    return survivors


def _pack_rows(rows: Sequence[tuple[int, ...]]) -> tuple[list[int], int]:
    """Each row as one integer, and the guard bits above its numbers: rows compare in all numbers at once."""
    packed, guards, shift = [0] * len(rows), 0, 0
    for column in zip(*rows, strict=True):
        least, most = min(column), max(column)
        if least == most:
            continue
        packed = [row | (number - least) << shift for row, number in zip(packed, column, strict=True)]
        shift += (most - least).bit_length()
        guards |= 1 << shift
        shift += 1
    return packed, guards
