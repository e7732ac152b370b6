"""Typing errors in ResourceClaims: ``modle`` for ``model``, ``A10O`` for ``A100``, ``gpus`` for ``gpu``.

A name or value counts as a typing error only if no device of the fleet has it and a device has a similar one.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat

from devalloc.api.suggest import closest_match
from devalloc_solver.cel.kubernetes import CompileError, Program, compile
from devalloc_solver.dialects.resource_k8s.feature_gates import DEFAULT_GATES
from devalloc_solver.dialects.resource_k8s.objects import ResourceClaim
from devalloc_solver.dialects.resource_k8s.published_devices import PublishedDevice, find_attribute
from devalloc_solver.explain.messages import count_devices

MAX_VALUES = 1_000
"""Values among which one is looked for that was meant; identifiers have more, and each is like the next."""
_TYPES: dict[type, str] = {str: "string", int: "int", bool: "bool"}
SHOWN = 3
"""Slips that one message tells."""


@dataclass(slots=True)
class ResourceTypoFinder:
    """Finds what was most likely mistyped, among the devices that some node reaches."""

    offers: Sequence[PublishedDevice]
    copies: Sequence[int] | None = None
    """how many devices each of the offers stands for; None: itself"""
    _devices: list[tuple[PublishedDevice, int]] = field(init=False)
    _total: int = field(init=False)
    _names: dict[str, Counter[str]] | None = None
    """kind of name -> full name -> devices that have it"""
    _capacities: Counter[str] | None = None
    """capacity as the devices write it -> devices that have it"""
    _values: dict[str, Counter[str]] = field(default_factory=dict)
    _kinds: dict[str, Counter[str]] = field(default_factory=dict)
    """attribute -> type of its value -> devices"""
    _by_expression: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """expression -> its slips"""

    def __post_init__(self) -> None:
        copies = repeat(1) if self.copies is None else self.copies
        self._devices = [(offer, count) for offer, count in zip(self.offers, copies, strict=False) if offer.nodes]
        self._total = sum(count for _, count in self._devices)

    def of_claims(
        self, claims: Iterable[ResourceClaim], class_selectors: Iterable[str] = (), ends: float | None = None
    ) -> list[str]:
        """The first slips of these claims, and of the selectors of the classes they name, in words.

        After the monotonic time ``ends`` no more are looked for.
        """
        texts: dict[str, None] = {}
        for slips in self._all(claims, class_selectors):
            texts |= dict.fromkeys(slips)
            if ends is not None and time.monotonic() > ends:
                break
        return [*texts][:SHOWN]

    def _all(self, claims: Iterable[ResourceClaim], class_selectors: Iterable[str]) -> Iterator[Iterable[str]]:
        for claim in claims:
            for constraint in claim.constraints:
                yield self._name("attribute", constraint.attribute)
            for ask in (ask for request in claim.requests for ask in request.asks):
                yield from map(self._of_expression, ask.selectors)
                yield from map(self._capacity, ask.capacity)
        yield from map(self._of_expression, class_selectors)

    def _of_expression(self, expression: str) -> tuple[str, ...]:
        if expression not in self._by_expression:
            try:
                self._by_expression[expression] = (*self._in_program(compile(expression, DEFAULT_GATES)),)
            except CompileError:
                self._by_expression[expression] = ()
        return self._by_expression[expression]

    def _in_program(self, program: Program) -> Iterator[str]:
        for read in sorted(program.reads or (), key=lambda r: (r.kind, r.domain, r.id)):
            if read.kind in ("attribute", "capacity"):
                yield from self._name(read.kind, f"{read.domain}/{read.id}")
        for equality in program.equalities:
            name = f"{equality.domain}/{equality.id}"
            for value in sorted(equality.values, key=repr):
                if (odd := self._type(name, value)) is not None:
                    yield odd
                elif isinstance(value, str):
                    yield from self._value(name, value)

    def _name(self, kind: str, name: str) -> Iterator[str]:
        full_names = self._full_names[kind]
        near = None if full_names[name] else nearest_name(name, full_names)
        if near is not None:
            what = "" if kind == "attribute" else f"{kind} "
            yield f"{what}`{name}` exists on 0 of {count_devices(self._total)}; did you mean `{near}`?"

    def _capacity(self, name: str) -> Iterator[str]:
        """A requested capacity, which is named as the devices name it."""
        if self._capacities is None:
            self._capacities = _count_names((other, n) for offer, n in self._devices for other in offer.device.capacity)
        near = None if self._capacities[name] else closest_match(name, self._capacities)
        if near is not None:
            yield f"capacity `{name}` exists on 0 of {count_devices(self._total)}; did you mean `{near}`?"

    def _type(self, name: str, value: object) -> str | None:
        """A value of another type than the attribute has on all devices."""
        if name not in self._kinds:
            attributes = ((find_attribute(offer, name), n) for offer, n in self._devices)
            self._kinds[name] = _count_names(
                (a.kind, n) for a, n in attributes if a is not None and not a.is_list and a.fault is None
            )
        kinds, written = self._kinds[name], _TYPES.get(type(value))
        if len(kinds) != 1 or written is None or written in kinds:
            return None
        ((other, count),) = kinds.items()
        if other not in _TYPES.values():
            return None
        shown = repr(value) if written == "string" else str(value).lower()
        advice = ""
        bare = {"int": str(value).removeprefix("-").isdecimal(), "bool": value in ("true", "false")}
        if written == "string" and bare.get(other):
            advice = f"; write {value} without quotes"
        elif other == "string":
            advice = f"; write '{shown}' in quotes"
        return (
            f"`{name}` is of type {other} on {count_devices(count)}, and is compared with the {written} {shown}{advice}"
        )

    def _value(self, name: str, value: str) -> Iterator[str]:
        if name not in self._values:
            attributes = ((find_attribute(offer, name), n) for offer, n in self._devices)
            self._values[name] = _count_names(
                (str(v), n) for a, n in attributes if a is not None and a.kind == "string" for v in a.values
            )
        values = self._values[name]
        if not values or values[value] or len(values) > MAX_VALUES:
            return
        near = closest_match(value, values)
        if near is not None:
            yield f"`{name}` is {value!r} on 0 of {count_devices(self._total)}; did you mean {near!r}?"

    @property
    def _full_names(self) -> dict[str, Counter[str]]:
        if self._names is None:
            name_sets: Counter[tuple[str, str, frozenset[str]]] = Counter()
            for offer, count in self._devices:
                device, driver = offer.device, offer.pool.driver
                name_sets["attribute", driver, frozenset(device.attributes)] += count
                name_sets["capacity", driver, frozenset(device.capacity)] += count
            self._names = {"attribute": Counter(), "capacity": Counter()}
            for (kind, driver, names), count in name_sets.items():
                for name in {_qualified(name, driver) for name in names}:
                    self._names[kind][name] += count
        return self._names


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


def _count_names(pairs: Iterable[tuple[str, int]]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for name, count in pairs:
        counted[name] += count
    return counted


def _qualified(name: str, driver: str) -> str:
    return name if "/" in name else f"{driver}/{name}"
