"""Typing errors in ResourceClaims: ``modle`` for ``model``, ``A10O`` for ``A100``, ``gpus`` for ``gpu``.

A name or value counts as a typing error only if no device of the fleet has it and a device has a similar one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain

from devalloc.api.findings import Cause, fact
from devalloc.api.problems import closest_match
from devalloc.api.semver import SemVer
from devalloc_solver.cel.kubernetes.reads import PLACES
from devalloc_solver.cel.kubernetes.type_checker import parse_and_check
from devalloc_solver.cel.reads import Comparison
from devalloc_solver.dialects.resource_k8s.feature_gates import DEFAULT_GATES
from devalloc_solver.dialects.resource_k8s.published_devices import find_attribute, published_device
from devalloc_solver.dialects.resource_k8s.slices import UnusualAttribute
from devalloc_solver.explain.typos import (
    KnownNames,
    TypeNames,
    Typo,
    UnitTypos,
    ValuesOf,
    mistyped_comparison,
    mistyped_name,
    mistyped_parts,
)
from devalloc_solver.problem.demand import Demand
from devalloc_solver.problem.snapshot import Device

_TYPES = TypeNames({str: "string", int: "int", bool: "bool"}, "of type ")


@dataclass(slots=True)
class ResourceTypoFinder(UnitTypos):
    """Finds what was most likely mistyped, among the devices that some node reaches."""

    devices: Sequence[Device]
    copies: Sequence[int] | None = None
    """how many devices each of these stands for; None: itself"""
    identifiers: Mapping[str, ValuesOf[Device]] = field(default_factory=dict)
    """attributes of which the devices have but some of the values"""
    _survey: KnownNames[Device] = field(init=False)

    def __post_init__(self) -> None:
        there = [number for number, device in enumerate(self.devices) if published_device(device).nodes]
        copies = None if self.copies is None else [self.copies[number] for number in there]
        self._survey = KnownNames([self.devices[number] for number in there], _values, copies, self.identifiers)

    def of_demand(self, demand: Demand) -> Iterator[Typo]:
        return filter(None, self._all(demand))

    def _all(self, demand: Demand) -> Iterator[Typo | None]:
        claim, survey = demand.claim.claim, self._survey
        yield from (self._name(_attributes, None, constraint.attribute) for constraint in claim.constraints)
        for subrequest in claim.subrequests:
            yield from chain.from_iterable(map(self._of_expression, subrequest.selectors))
            having = survey.names(_own_capacities)
            for name in subrequest.capacity:  # which is named as the devices name it
                yield mistyped_name(name, having, survey.total, what="capacity", nearest=_nearest_capacity)
        classes = {request.spec.subrequest.class_name: request.spec.judge.classes for request in demand.requests}
        for name, of_name in classes.items():
            yield from chain.from_iterable(map(self._of_expression, of_name[name].selectors))

    def _of_expression(self, expression: str) -> tuple[Typo, ...]:
        return self._survey.expression(expression, self._in_expression)

    def _in_expression(self, expression: str) -> Iterator[Typo]:
        return mistyped_parts(
            parse_and_check(expression, DEFAULT_GATES).root, PLACES, self._of_path, self._of_comparison
        )

    def _of_path(self, path: tuple[str, ...]) -> Typo | None:
        if path[0] not in ("attribute", "capacity"):
            return None
        kind, domain, *rest = path
        names_of, others, map_of = (
            (_attributes, _capacities, "capacity") if kind == "attribute" else (_capacities, _attributes, "attributes")
        )
        if "/" in domain:
            home, _, name = domain.partition("/")
            cause = fact(Cause.MISPLACED, name=domain, what="is not a domain", write=f"['{home}'].{name}")
            return Typo("", cause, domain, None) if self._survey.names(names_of)[domain] else None
        name = "/".join((domain, *rest))
        if not self._survey.names(names_of)[name] and self._survey.names(others)[name]:
            what = "is a capacity" if map_of == "capacity" else "is an attribute"
            written = f"device.{map_of}['{domain}'].{'/'.join(rest)}"
            return Typo("", fact(Cause.MISPLACED, name=name, what=what, write=written), name, None)
        return self._name(names_of, None if kind == "attribute" else "capacity", name)

    def _of_comparison(self, comparison: Comparison) -> Typo | None:
        operator, path, literal = comparison
        if path[0] != "attribute":
            return None
        access = f"device.attributes['{path[1]}'].{path[2]}"
        return mistyped_comparison(self._survey, operator, "/".join(path[1:]), literal, _TYPES, access)

    def _name(self, names_of: Callable[[Device], Iterable[str]], what: str | None, name: str) -> Typo | None:
        survey = self._survey
        return mistyped_name(name, survey.names(names_of), survey.total, what=what, nearest=nearest_name)


def _attributes(device: Device) -> Iterable[str]:
    offer = published_device(device)
    return _full_names(tuple(offer.device.attributes), offer.pool.driver)


def _capacities(device: Device) -> Iterable[str]:
    offer = published_device(device)
    return _full_names(tuple(offer.device.capacity), offer.pool.driver)


def _own_capacities(device: Device) -> Iterable[str]:
    """As the device writes them."""
    return published_device(device).device.capacity


@lru_cache(maxsize=1024)
def _full_names(names: tuple[str, ...], driver: str) -> frozenset[str]:
    """Many devices have the same."""
    return frozenset(name if "/" in name else f"{driver}/{name}" for name in names)


def _values(device: Device, name: str) -> Iterable[object]:
    """A list equals no literal, whatever is in it."""
    attribute = find_attribute(published_device(device), name)
    if attribute is None or isinstance(attribute, UnusualAttribute):
        return ()
    kind, value = attribute
    return (SemVer(value) if kind == "version" else value,)


def _nearest_capacity(name: str, others: Collection[str]) -> str | None:
    """The nearest of names as devices write them. With the driver's domain and without it, a request means two of them,
    other than a selector."""
    identifier = name.rpartition("/")[2]
    alike = (other for other in others if ("/" in other) != ("/" in name) and other.rpartition("/")[2] == identifier)
    return min(alike, default=None) or closest_match(name, others)


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
