"""Typing errors in ResourceClaims: ``modle`` for ``model``, ``A10O`` for ``A100``, ``gpus`` for ``gpu``.

A name or value counts as a typing error only if no device of the fleet has it and a device has a similar one.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial

from devalloc.api.problems import closest_match
from devalloc.api.semver import SemVer
from devalloc_solver.cel.kubernetes import CompileError, compile
from devalloc_solver.dialects.resource_k8s.claims import ResourceClaim
from devalloc_solver.dialects.resource_k8s.feature_gates import DEFAULT_GATES
from devalloc_solver.dialects.resource_k8s.published_devices import PublishedDevice, find_attribute
from devalloc_solver.explain.typos import (
    SHOWN,
    KnownNames,
    TypeNames,
    Typo,
    ValuesOf,
    mistyped_comparison,
    mistyped_name,
)

_TYPES = TypeNames({str: "string", int: "int", bool: "bool"}, "of type ")


@dataclass(slots=True)
class ResourceTypoFinder:
    """Finds what was most likely mistyped, among the devices that some node reaches."""

    offers: Sequence[PublishedDevice]
    copies: Sequence[int] | None = None
    """how many devices each of the offers stands for; None: itself"""
    identifiers: Mapping[str, ValuesOf[PublishedDevice]] = field(default_factory=dict)
    """attributes of which the offers have but some of the values"""
    _survey: KnownNames[PublishedDevice] = field(init=False)

    def __post_init__(self) -> None:
        there = [number for number, offer in enumerate(self.offers) if offer.nodes]
        copies = None if self.copies is None else [self.copies[number] for number in there]
        self._survey = KnownNames([self.offers[number] for number in there], _values, copies, self.identifiers)

    def of_claims(
        self, claims: Iterable[ResourceClaim], class_selectors: Iterable[str] = (), ends: float | None = None
    ) -> list[str]:
        """The first typing errors of these claims, and of the selectors of the classes they name, in words.

        After the monotonic time ``ends`` no more are looked for.
        """
        texts: dict[str, None] = {}
        for typos in self._all(claims, class_selectors):
            texts |= dict.fromkeys(typo.words for typo in typos if typo is not None)
            if ends is not None and time.monotonic() > ends:
                break
        return [*texts][:SHOWN]

    def _all(self, claims: Iterable[ResourceClaim], class_selectors: Iterable[str]) -> Iterator[Iterable[Typo | None]]:
        survey = self._survey
        for claim in claims:
            for constraint in claim.constraints:
                yield [self._name(_attributes, "", constraint.attribute)]
            for subrequest in (subrequest for request in claim.requests for subrequest in request.subrequests):
                yield from map(self._of_expression, subrequest.selectors)
                for name in subrequest.capacity:  # which is named as the devices name it
                    yield [mistyped_name(name, survey.names(_own_capacities), survey.total, what="capacity ")]
        yield from map(self._of_expression, class_selectors)

    def _of_expression(self, expression: str) -> tuple[Typo, ...]:
        return self._survey.expression(expression, partial(self._in_expression, expression))

    def _in_expression(self, expression: str) -> Iterator[Typo]:
        try:
            program = compile(expression, DEFAULT_GATES)
        except CompileError:
            return
        for read in sorted(program.reads or (), key=lambda r: (r.kind, r.domain, r.id)):
            if read.kind in ("attribute", "capacity"):
                names_of, what = (_attributes, "") if read.kind == "attribute" else (_capacities, "capacity ")
                typo = self._name(names_of, what, f"{read.domain}/{read.id}")
                yield from () if typo is None else (typo,)
        for one in program.equalities:
            access = f"device.attributes['{one.domain}'].{one.id}"
            for value in sorted(one.values, key=repr):
                typo = mistyped_comparison(self._survey, ("==", f"{one.domain}/{one.id}", value), _TYPES, access)
                yield from () if typo is None else (typo,)

    def _name(self, names_of: Callable[[PublishedDevice], Iterable[str]], what: str, name: str) -> Typo | None:
        survey = self._survey
        return mistyped_name(name, survey.names(names_of), survey.total, what=what, nearest=nearest_name)


def _attributes(offer: PublishedDevice) -> Iterable[str]:
    return _full_names(tuple(offer.device.attributes), offer.pool.driver)


def _capacities(offer: PublishedDevice) -> Iterable[str]:
    return _full_names(tuple(offer.device.capacity), offer.pool.driver)


def _own_capacities(offer: PublishedDevice) -> Iterable[str]:
    """As the device writes them."""
    return offer.device.capacity


@lru_cache(maxsize=1024)
def _full_names(names: tuple[str, ...], driver: str) -> frozenset[str]:
    """Many devices have the same."""
    return frozenset(name if "/" in name else f"{driver}/{name}" for name in names)


def _values(offer: PublishedDevice, name: str) -> Iterable[object]:
    """A list equals no literal, whatever is in it."""
    attribute = find_attribute(offer, name)
    if attribute is None or attribute.is_list or attribute.fault is not None:
        return ()
    return map(SemVer, map(str, attribute.values)) if attribute.kind == "version" else attribute.values


def nearest_name(name: str, full_names: Collection[str]) -> str | None:
    """The nearest of full names: the id in the same domain, or the same id in the nearest domain."""
    domain, _, identifier = name.rpartition("/")
    by_domain: dict[str, set[str]] = defaultdict(set)
    for other in full_names:
        prefix, _, short = other.rpartition("/")
        by_domain[prefix].add(short)
    if domain in by_domain:
        near = closest_match(identifier, by_domain[domain])
        return None if near is None else f"{domain}/{near}"
    having = [other for other, names in by_domain.items() if identifier in names]
    near = closest_match(domain, having)
    return None if near is None else f"{near}/{identifier}"
