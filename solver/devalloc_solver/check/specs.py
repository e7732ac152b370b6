"""What a spec asks for, worked out once: it holds for every answer as long as the classes stay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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


class AnsweredRequests(NamedTuple):
    """What the allocations of an answer are for, told from its alternatives and details alone."""

    terms: tuple[RequestTerms | None, ...]
    """of each allocation, in their order; None for details that were not chosen"""
    positions: tuple[tuple[RequestTerms, tuple[int, ...]], ...]
    """the terms that it is about, exactly one alternative of each oneOf (S16), each with the indexes of its
    allocations"""
    wrong: tuple[str, ...]
    """what is wrong with the details, in their order"""
    has_admin: bool
    """whether any of them is for admins"""


@dataclass(frozen=True, slots=True, eq=False)
class SpecTerms:
    """One spec, with the classes as they are."""

    spec: DeviceClaimSpec
    flaw: str | None
    """why it can never be satisfied: a class that it names, or an expression"""
    catalogue: ClassCatalogue
    _choices: dict[tuple[int | None, ...] | None, Mapping[DetailIndex, RequestTerms]] = field(default_factory=dict)
    _answered: dict[tuple[object, tuple[DetailIndex, ...]], AnsweredRequests] = field(default_factory=dict)

    def answered(self, one_of: Sequence[int | None] | None, details: tuple[DetailIndex, ...]) -> AnsweredRequests:
        """The terms by the alternatives and details that an answer names. Raises MalformedAnswer."""
        chosen = None if one_of is None else tuple(one_of)
        cached = self._answered.get((chosen, details))
        if cached is None:
            if len(self._answered) >= MAX_SPECS:
                self._answered.clear()
            cached = self._answered[chosen, details] = self._find(self._choose(chosen), details)
        return cached

    def _choose(self, one_of: tuple[int | None, ...] | None) -> Mapping[DetailIndex, RequestTerms]:
        terms = self._choices.get(one_of)
        if terms is None:
            terms = self._choices[one_of] = dict(self._terms(one_of))
        return terms

    def _find(self, chosen: Mapping[DetailIndex, RequestTerms], details: tuple[DetailIndex, ...]) -> AnsweredRequests:
        wrong = [
            f"an allocation is for {_detail_label(index)}, which was not chosen (S16, S18)"
            for index in sorted({index for index in details if index not in chosen}, key=str)
        ]
        if any(later[0] < earlier[0] for earlier, later in pairwise(details)):
            wrong.append("the allocations are not in the order of the details (S18)")
        positions = tuple(
            (term, tuple(number for number, each in enumerate(details) if each == index))
            for index, term in chosen.items()
        )
        has_admin = any(term.is_admin for term in chosen.values())
        return AnsweredRequests(tuple(map(chosen.get, details)), positions, tuple(wrong), has_admin)

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
            self.catalogue.rule(detail),
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
