"""What a spec asks for, worked out once: it holds for every answer as long as the classes stay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from devalloc.api.claim import COUNT, DeviceClaimDetail, DeviceClaimSpec
from devalloc.api.quantity import NANO, ONE
from devalloc_solver.check.answer import DetailIndex, MalformedAnswer
from devalloc_solver.check.classes import ClassCatalogue, DetailRule

MAX_SPECS = 4_096
"""Specs remembered; when there are more, all are forgotten."""


class RequestTerms(NamedTuple):
    """One detail, or one alternative of one."""

    label: str
    """such as "detail 0.1" """
    detail: DeviceClaimDetail
    is_admin: bool
    number: tuple[int, int] | None
    """least and most devices, of a detail that asks for whole devices by their number alone"""
    rule: DetailRule
    """which devices it accepts"""
    says_which: bool
    """whether its expressions, or those of the class that it names, say if it wants a part of a device (S6b)"""


@dataclass(frozen=True, slots=True, eq=False)
class ChosenAlternatives:
    """The terms that an answer is about, exactly one alternative of each oneOf (S16)."""

    terms: Mapping[DetailIndex, RequestTerms]
    _sequences: dict[tuple[DetailIndex, ...], tuple[str, ...]] = field(default_factory=dict)

    def sequence_violations(self, details: tuple[DetailIndex, ...]) -> Sequence[str]:
        """What is wrong with the details of the allocations, in their order."""
        cached = self._sequences.get(details)
        if cached is None:
            if len(self._sequences) >= MAX_SPECS:
                self._sequences.clear()
            cached = self._sequences[details] = tuple(self._find_violations(details))
        return cached

    def _find_violations(self, details: tuple[DetailIndex, ...]) -> Iterator[str]:
        for index in sorted({index for index in details if index not in self.terms}, key=str):
            yield f"an allocation is for {_detail_label(index)}, which was not chosen (S16, S18)"
        if any(later[0] < earlier[0] for earlier, later in pairwise(details)):
            yield "the allocations are not in the order of the details (S18)"


@dataclass(frozen=True, slots=True, eq=False)
class SpecTerms:
    """One spec, with the classes as they are."""

    spec: DeviceClaimSpec
    flaw: str | None
    """why it can never be satisfied: a class that it names, or an expression"""
    catalogue: ClassCatalogue
    _choices: dict[tuple[int | None, ...] | None, ChosenAlternatives] = field(default_factory=dict)

    def choose(self, one_of: Sequence[int | None] | None) -> ChosenAlternatives:
        """The terms by the alternatives that an answer names. Raises MalformedAnswer."""
        key = None if one_of is None else tuple(one_of)
        cached = self._choices.get(key)
        if cached is None:
            cached = self._choices[key] = ChosenAlternatives(dict(self._terms(key)))
        return cached

    def _terms(self, one_of: tuple[int | None, ...] | None) -> Iterable[tuple[DetailIndex, RequestTerms]]:
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

    def _term(self, index: DetailIndex, detail: DeviceClaimDetail) -> RequestTerms:
        is_admin = self.catalogue.is_admin(detail)
        return RequestTerms(
            _detail_label(index),
            detail,
            is_admin,
            None if is_admin else _allowed_count(detail),
            DetailRule(self.catalogue, detail),
            self.catalogue.says_which(detail),
        )


class SpecCache:
    """Specs in terms of a catalogue, each worked out once."""

    def __init__(self, catalogue: ClassCatalogue) -> None:
        self.catalogue = catalogue
        self._by_spec: dict[int, SpecTerms] = {}
        """by the identity of the spec, which is kept there so that no other has it"""

    def terms_of(self, spec: DeviceClaimSpec) -> SpecTerms:
        cached = self._by_spec.get(id(spec))
        if cached is None:
            if len(self._by_spec) >= MAX_SPECS:
                self._by_spec.clear()
            cached = self._by_spec[id(spec)] = SpecTerms(spec, self.catalogue.flaw(spec), self.catalogue)
        return cached


def _allowed_count(detail: DeviceClaimDetail) -> tuple[int, int] | None:
    """The number of devices lies between the request (S8) and the limit (S9); exactly the request without a limit."""
    if detail.requests.keys() - {COUNT} or detail.limits.keys() - {COUNT}:
        return None
    request, cap = detail.requests.get(COUNT), detail.limits.get(COUNT)
    if cap is None:
        cap = ONE if request is None else request
    return (0 if request is None else -(-request.nano // NANO)), cap.nano // NANO


def _detail_label(index: DetailIndex) -> str:
    position, alternative = index
    return f"detail {position}" if alternative is None else f"detail {position}.{alternative}"
