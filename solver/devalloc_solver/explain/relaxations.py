"""Relaxations: rules that can be dropped from a question, and the fewest of them that make the unit fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, TypeVar

from devalloc_solver.explain.feasibility import FeasibilityChecker, FeasibilityQuestion

MAX_TRIES = 64
"""Questions that the search for a smallest set may ask; beyond, the set is irreducible and may not be the smallest."""


@dataclass(frozen=True, slots=True, eq=False)
class Relaxation:
    """Something to take away. ``entry`` is the blocker's JSON."""

    entry: Mapping[str, Any]
    words: str
    """completes "it fits ...", such as "without the pin to node n2" """
    apply: Callable[[FeasibilityQuestion], FeasibilityQuestion]
    order: int = 0
    """edits of the source (-1) come first, since the problem is decoded anew; edits of a claim's spec (0) come before
    those of the supply (1), which look at the requests that come out"""
    narrow: Callable[[FeasibilityQuestion, FeasibilityChecker], Sequence[Relaxation]] | None = None
    """Of an edit that takes away more than it needs to: given the question with all else applied, what it takes."""

    alike: object | None = None
    """equal for edits of which one is as good as the other; None: like no other"""

    @property
    def kind(self) -> str:
        return str(self.entry["kind"])


def apply_relaxations(question: FeasibilityQuestion, edits: Sequence[Relaxation]) -> FeasibilityQuestion:
    """The question once all these are taken away."""
    before = question.source
    for edit in sorted(edits, key=lambda e: e.order):
        if edit.order >= 0 and question.source is not before:
            assert question.source is not None
            before, question = question.source, question.source.decode(question)
        question = edit.apply(question)
    if question.source is not None and question.source is not before:
        question = question.source.decode(question)
    return question


def fewest_relaxations(
    question: FeasibilityQuestion, edits: Sequence[Relaxation], finder: FeasibilityChecker
) -> list[Relaxation] | None:
    """The fewest edits that make the unit fit, earlier ones rather than later ones; None when not even all do.

    No edit of the answer can be left out, unless the finder says that it was cut short. It is the smallest set wherever
    ``MAX_TRIES`` questions tell.
    """

    def works(chosen: Sequence[Relaxation]) -> bool:
        return finder.works(apply_relaxations(question, chosen))

    if not edits or not works(edits):
        return None
    for chosen in islice(relaxation_sets(edits), MAX_TRIES):
        if len(chosen) == len(edits) or works(chosen):
            return narrow_relaxations(question, chosen, finder)
    return narrow_relaxations(question, drop_unneeded(edits, works), finder)


class Removable(Protocol):
    """Something that can be taken away."""

    @property
    def alike(self) -> object | None: ...


R = TypeVar("R", bound=Removable)


def relaxation_sets(edits: Sequence[R]) -> Iterator[Sequence[R]]:
    """All sets but the empty one, smaller ones first; of edits that are alike, the first so many stand for all."""
    before: dict[int, int] = {}
    last: dict[object, int] = {}
    for number, edit in enumerate(edits):
        if edit.alike is not None:
            if edit.alike in last:
                before[number] = last[edit.alike]
            last[edit.alike] = number
    for size in range(1, len(edits) + 1):
        for numbers in _ordered_combinations(len(edits), size, before):
            yield [edits[number] for number in numbers]


def _ordered_combinations(count: int, size: int, before: Mapping[int, int]) -> Iterator[tuple[int, ...]]:
    """Ascending numbers below ``count``, each only together with the one that must come ``before`` it."""

    def extend(chosen: tuple[int, ...], start: int) -> Iterator[tuple[int, ...]]:
        if len(chosen) == size:
            yield chosen
            return
        for number in range(start, count):
            if number not in before or before[number] in chosen:
                yield from extend((*chosen, number), number + 1)

    return extend((), 0)


def drop_unneeded(edits: Sequence[R], works: Callable[[Sequence[R]], bool]) -> list[R]:
    """What is left of edits that work when each that is not needed is put back, the last ones first."""
    remaining = list(edits)
    indispensable: set[object] = set()
    for edit in reversed(edits):
        if edit.alike is not None and edit.alike in indispensable:
            continue
        rest = [other for other in remaining if other is not edit]
        if works(rest):
            remaining = rest
        elif edit.alike is not None:
            indispensable.add(edit.alike)
    return remaining


def narrow_relaxations(
    question: FeasibilityQuestion, edits: Sequence[Relaxation], finder: FeasibilityChecker
) -> list[Relaxation]:
    """The same set with each edit that takes away too much replaced by what it needs."""
    exact = [edit for edit in edits if edit.narrow is None]
    vague = [edit for edit in edits if edit.narrow is not None]
    several = len(edits) > 1 and bool(vague)
    while vague:
        edit = vague.pop(0)
        assert edit.narrow is not None
        exact += edit.narrow(apply_relaxations(question, [*exact, *vague]), finder)
    # What one edit was narrowed to, others that were still too generous had a part in.
    return drop_unneeded(exact, lambda chosen: finder.works(apply_relaxations(question, chosen))) if several else exact
