"""What is known of a request before any node is looked at: what its expressions read, and what they demand."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, Protocol

from devalloc_solver.eligibility.judge import ExpressionError, Judge
from devalloc_solver.eligibility.predicate import Language, Predicate


class Kind(Protocol):
    """Equal devices: they differ in name, and in the values of varied attributes, only."""

    @property
    def driver(self) -> str: ...

    @property
    def one(self) -> Any:
        """A device of the snapshot that stands for all."""


class Kinds(Protocol):
    """All devices of a fleet."""

    @property
    def kinds(self) -> Sequence[Kind]: ...

    @property
    def varied(self) -> frozenset[str]:
        """Attributes by whose values kinds do not differ."""

    def find(self, name: str, values: Iterable[object]) -> Mapping[str | None, int] | None:
        """Find the nodes that have devices with one of these values; None of an attribute that is not varied."""


@dataclass(frozen=True, slots=True)
class ClassRule:
    """What a device class accepts."""

    drivers: frozenset[str] | None
    """the only ones of its devices; None for any"""
    predicates: tuple[Predicate, ...]


@dataclass(frozen=True, eq=False)
class Eligible:
    """What decides whether a request may have a device, but for what is withheld."""

    judge: Judge
    classes: tuple[ClassRule, ...] | None
    """the device must be of one of these; None: of any or none"""
    own: tuple[Predicate, ...]
    """the expressions of the request"""
    values: tuple[tuple[str, frozenset[Any]], ...] = ()
    """(attribute, values) of which each candidate has one, whatever the expressions say"""

    @property
    def predicates(self) -> Sequence[Predicate]:
        """All expressions that may decide."""
        return (*(one for rule in self.classes or () for one in rule.predicates), *self.own)

    @property
    def necessary(self) -> Sequence[Predicate]:
        """The expressions that each candidate passes: without those of classes, if it may be of any of several."""
        return self.predicates if self.classes is None or len(self.classes) == 1 else self.own

    @cached_property
    def reads(self) -> frozenset[str] | None:
        """The attributes that its expressions read; None for all."""
        names = {name for name, _ in self.values}
        for predicate in self.predicates:
            if predicate.reads is None:
                return None
            names |= predicate.reads
        return frozenset(names)

    @property
    def is_exhausting(self) -> bool:
        """Whether an expression is too expensive on some device."""
        return any(self.judge.is_exhausting(predicate.text) for predicate in self.predicates)

    @property
    def class_drivers(self) -> frozenset[str] | None:
        """The drivers of which its classes take devices, of kinds too that are yet to come; None for any."""
        if self.classes is None:
            return None
        drivers: set[str] = set()
        for rule in self.classes:
            if rule.drivers is None:
                return None
            drivers |= rule.drivers
        return frozenset(drivers)

    def literals(self) -> Iterator[tuple[str, frozenset[Any]]]:
        """Iterate over attributes of which each candidate has one of the values, as far as that is said plainly."""
        yield from self.values
        for predicate in self.necessary:
            yield from predicate.find_literals()

    def passing(self, name: str, values: Iterable[object], kinds: Kinds) -> Sequence[object] | None:
        """List the values of an attribute that a candidate may have, by the expressions that read nothing else; None
        without any. Raises OutOfTime."""
        deciding = [predicate for predicate in self.necessary if predicate.only == name]
        if not deciding:
            return None
        others = reduce(frozenset.union, [predicate.reads or frozenset() for predicate in deciding]) - {name}
        if others and any(not others.isdisjoint(kind.one.attributes) for kind in kinds.kinds):
            return None  # of a list
        left = [*values]
        try:
            for predicate in deciding:
                left = self.judge.passing(predicate.text, left)
        except ExpressionError:
            return None
        return left

    def drivers(self, kinds: Kinds) -> frozenset[str] | None:
        """Find the drivers of the kinds that no expression rules out which reads nothing that varies within them; None
        for any. Raises OutOfTime."""
        drivers: set[str] = set()
        try:
            for kind in kinds.kinds:
                if kind.driver not in drivers and self._may_be(kind, kinds):
                    drivers.add(kind.driver)
        except ExpressionError:
            return self.class_drivers
        return frozenset(drivers)

    def _may_be(self, kind: Kind, kinds: Kinds) -> bool:
        rules = (rule.predicates for rule in self.classes or () if rule.drivers is None or kind.driver in rule.drivers)
        is_of_class = self.classes is None or any(self._passes(predicates, kind, kinds) for predicates in rules)
        return is_of_class and self._passes(self.own, kind, kinds)

    def _passes(self, predicates: Iterable[Predicate], kind: Kind, kinds: Kinds) -> bool:
        varied = kinds.varied.intersection(kind.one.attributes)
        return all(
            self.judge.verdict(one.text, kind.one) is True
            for one in predicates
            if one.reads is not None and varied.isdisjoint(one.reads)
        )


def is_of_kinds(predicate: Predicate, kinds: Kinds) -> bool:
    """Whether an expression reads nothing that varies within kinds."""
    return predicate.reads is not None and kinds.varied.isdisjoint(predicate.reads)


def places(predicate: Predicate, language: Language, kinds: Kinds) -> Collection[str | None] | None:
    """Find the only nodes that may have devices of which an expression is true, as it compares what varies within kinds
    with literals; None where it does not, or may fail on other devices of a kind rather than be false."""
    fewest: Collection[str | None] | None = None
    read = kinds.varied.intersection(predicate.reads or ())
    for name, values in predicate.find_literals() if read else ():
        if name not in read:
            continue
        if any(isinstance(kind.one.attributes.get(name), frozenset) for kind in kinds.kinds):
            return None
        nodes = kinds.find(name, values)
        if nodes is None or (fewest is not None and len(nodes) >= len(fewest)):
            continue
        concerned = (kind.one for kind in kinds.kinds if not read.isdisjoint(kind.one.attributes))
        if all(not one.shareable and language.is_certain(one, name, values) for one in concerned):
            fewest = nodes
    return fewest
