"""Things that can be taken away from a question, and the fewest of them that make the unit fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Any

from devalloc_solver.blockers.question import Finder, Question

TRIES = 64
"""Questions that the search for a smallest set may ask; beyond, the set is irreducible and may not be the smallest."""


@dataclass(frozen=True, slots=True, eq=False)
class Edit:
    """Something to take away. ``entry`` is the blocker's JSON."""

    entry: Mapping[str, Any]
    words: str
    """completes "it fits ...", such as "without the pin to node n2" """
    apply: Callable[[Question], Question]
    order: int = 0
    """edits of a claim's spec (0) come before those of the supply (1), which look at the slots that come out"""
    narrow: Callable[[Question, Finder], Sequence[Edit]] | None = None
    """Of an edit that takes away more than it needs to: given the question with all else applied, what it takes."""

    @property
    def kind(self) -> str:
        return str(self.entry["kind"])


def applied(question: Question, edits: Sequence[Edit]) -> Question:
    """The question once all these are taken away."""
    for edit in sorted(edits, key=lambda e: e.order):
        question = edit.apply(question)
    return question


def fewest(question: Question, edits: Sequence[Edit], finder: Finder) -> list[Edit] | None:
    """The fewest edits that make the unit fit, earlier ones rather than later ones; None when not even all do.

    No edit of the answer can be left out. It is the smallest set wherever ``TRIES`` questions tell. Raises Undecided.
    """

    def works(chosen: Sequence[Edit]) -> bool:
        return finder.fits(applied(question, chosen))

    if not edits or not works(edits):
        return None
    spent = 0
    for size in range(1, len(edits)):
        spent += comb(len(edits), size)
        if spent > TRIES:
            break
        for chosen in combinations(edits, size):
            if works(chosen):
                return narrowed(question, chosen, finder)
    else:
        return narrowed(question, edits, finder)
    return narrowed(question, needed(edits, works), finder)


def needed(edits: Sequence[Edit], works: Callable[[Sequence[Edit]], bool]) -> list[Edit]:
    """What is left of edits that work when each that is not needed is put back, the last ones first."""
    kept = list(edits)
    for edit in reversed(edits):
        rest = [other for other in kept if other is not edit]
        if works(rest):
            kept = rest
    return kept


def narrowed(question: Question, edits: Sequence[Edit], finder: Finder) -> list[Edit]:
    """The same set with each edit that takes away too much replaced by what it needs."""
    exact = [edit for edit in edits if edit.narrow is None]
    vague = [edit for edit in edits if edit.narrow is not None]
    several = len(edits) > 1 and bool(vague)
    while vague:
        edit = vague.pop(0)
        assert edit.narrow is not None
        exact += edit.narrow(applied(question, [*exact, *vague]), finder)
    # What one edit was narrowed to, others that were still too generous had a part in.
    return needed(exact, lambda chosen: finder.fits(applied(question, chosen))) if several else exact
