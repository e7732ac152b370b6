"""What a spec asks for, worked out once: it holds for every answer to it, as long as the classes stay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from devalloc.api.claim import COUNT, DeviceClaimDetail, DeviceClaimSpec
from devalloc.api.quantity import NANO, ONE
from devalloc_solver.check.answer import DetailIndex, MalformedAnswer
from devalloc_solver.check.catalogue import Catalogue, Rule

MAX_SPECS = 4_096
"""Specs remembered; when there are more, all are forgotten."""


class Term(NamedTuple):
    """One detail, or one alternative of one."""

    label: str
    """such as "detail 0.1" """
    detail: DeviceClaimDetail
    is_admin: bool
    number: tuple[int, int] | None
    """least and most devices, of a detail that asks for whole devices by their number alone"""
    rule: Rule
    """which devices it accepts"""


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The terms that an answer is about, exactly one alternative of each oneOf (S16)."""

    terms: Mapping[DetailIndex, Term]
    _sequences: dict[tuple[DetailIndex, ...], tuple[str, ...]] = field(default_factory=dict)

    def sequence_violations(self, details: tuple[DetailIndex, ...]) -> Sequence[str]:
        """What is wrong with the details of the allocations, in their order."""
        known = self._sequences.get(details)
        if known is None:
            if len(self._sequences) >= MAX_SPECS:
                self._sequences.clear()
            known = self._sequences[details] = tuple(self._find_violations(details))
        return known

    def _find_violations(self, details: tuple[DetailIndex, ...]) -> Iterator[str]:
        for index in sorted({index for index in details if index not in self.terms}, key=str):
            yield f"an allocation is for {_label(index)}, which was not chosen (S16, S18)"
        if any(later[0] < earlier[0] for earlier, later in pairwise(details)):
            yield "the allocations are not in the order of the details (S18)"


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """One spec, with the classes as they are."""

    spec: DeviceClaimSpec
    flaw: str | None
    """why nobody can have it: a class that it names, or an expression"""
    catalogue: Catalogue
    _choices: dict[tuple[int | None, ...] | None, Choice] = field(default_factory=dict)

    def choose(self, one_of: Sequence[int | None] | None) -> Choice:
        """The terms by the alternatives that an answer names. Raises MalformedAnswer."""
        key = None if one_of is None else tuple(one_of)
        known = self._choices.get(key)
        if known is None:
            known = self._choices[key] = Choice(dict(self._terms(key)))
        return known

    def _terms(self, one_of: tuple[int | None, ...] | None) -> Iterable[tuple[DetailIndex, Term]]:
        instances = self.spec.claims
        indexes = [None] * len(instances) if one_of is None else one_of
        if len(indexes) != len(instances):
            raise MalformedAnswer(f"oneOf has {len(indexes)} elements, and spec.claims {len(instances)} (S16)")
        for position, (instance, index) in enumerate(zip(instances, indexes, strict=True)):
            if instance.one_of:
                if index is None or not 0 <= index < len(instance.one_of):
                    raise MalformedAnswer(f"detail {position}: oneOf is {index}, not one of its alternatives (S16)")
                yield (position, index), self._term((position, index), instance.one_of[index])
            else:
                if index is not None:
                    raise MalformedAnswer(f"detail {position}: oneOf is {index}, and it has no alternatives (S16)")
                yield (position, None), self._term((position, None), instance)

    def _term(self, index: DetailIndex, detail: DeviceClaimDetail) -> Term:
        is_admin = self.catalogue.is_admin(detail)
        return Term(
            _label(index), detail, is_admin, None if is_admin else _number(detail), Rule(self.catalogue, detail)
        )


class Specs:
    """Specs in terms of a catalogue, each worked out once."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self._known: dict[int, Asked] = {}
        """by the identity of the spec, which is kept there so that no other has it"""

    def asked(self, spec: DeviceClaimSpec) -> Asked:
        known = self._known.get(id(spec))
        if known is None:
            if len(self._known) >= MAX_SPECS:
                self._known.clear()
            known = self._known[id(spec)] = Asked(spec, self.catalogue.flaw(spec), self.catalogue)
        return known


def _number(detail: DeviceClaimDetail) -> tuple[int, int] | None:
    """The number of devices lies between the request (S8) and the limit (S9); exactly the request without a limit."""
    if detail.requests.keys() - {COUNT} or detail.limits.keys() - {COUNT}:
        return None
    asked, cap = detail.requests.get(COUNT), detail.limits.get(COUNT)
    if cap is None:
        cap = ONE if asked is None else asked
    return (0 if asked is None else -(-asked.nano // NANO)), cap.nano // NANO


def _label(index: DetailIndex) -> str:
    position, alternative = index
    return f"detail {position}" if alternative is None else f"detail {position}.{alternative}"
