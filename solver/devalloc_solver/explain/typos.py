"""Typing errors: names and values that no device has while a device has a similar one, and values of another type.

A dialect reads its expressions, and says how it names types and attributes.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from devalloc.api.findings import Cause, Fact, fact
from devalloc.api.problems import MAX_WORD, closest_match, normalized
from devalloc_solver.cel.errors import CompileError
from devalloc_solver.cel.reads import Comparison, Places, comparisons, nodes_with_places, value_path
from devalloc_solver.cel.syntax_tree import Node
from devalloc_solver.explain.relaxations import Relaxation
from devalloc_solver.problem.demand import Demand, PlacementUnit

MAX_VALUES = 1_000
"""Values among which one is looked for that was meant; identifiers have more, and each is like the next."""
MAX_EXPRESSIONS = 1_000
"""Expressions whose typing errors are remembered; when there are more, all are forgotten."""
SHOWN = 3
"""Typing errors that one finding lists."""


@dataclass(frozen=True, slots=True)
class Typo:
    """Something that was most likely mistyped."""

    path: str
    """of the field, below the claim; empty where it is not known"""
    cause: Fact
    written: str
    suggestion: str | None
    """what stands there as it was most likely meant, or None where that cannot be told"""


D = TypeVar("D")
M = TypeVar("M")
ValuesOf = Callable[[Sequence[D]], Collection[object] | None]
"""The values of one attribute on all that some devices stand for; None when they are too many to look among."""


@dataclass(slots=True)
class KnownNames(Generic[D]):
    """The names and values that some devices have, counted when asked."""

    devices: Sequence[D]
    values_of: Callable[[D, str], Iterable[object]]
    """the values of an attribute on a device"""
    copies: Sequence[int] | None = None
    """how many devices each stands for; None: each for itself"""
    identifiers: Mapping[str, ValuesOf[D]] = field(default_factory=dict)
    """attributes of which the devices here have but some of the values"""
    _names: dict[object, Counter[str]] = field(default_factory=dict)
    _values: dict[str, Counter[object]] = field(default_factory=dict)
    in_expressions: dict[str, tuple[Typo, ...]] = field(default_factory=dict)
    """what is odd in expressions, wherever they stand"""

    @property
    def total(self) -> int:
        return len(self.devices) if self.copies is None else sum(self.copies)

    def names(self, names_of: Callable[[D], Iterable[str]]) -> Counter[str]:
        """name -> devices that have it"""
        if names_of not in self._names:
            self._names[names_of] = self._count(map(names_of, self.devices))
        return self._names[names_of]

    def values(self, name: str) -> Counter[object]:
        """value of an attribute -> devices that have it"""
        if name not in self._values:
            self._values[name] = self._count(self.values_of(device, name) for device in self.devices)
        return self._values[name]

    def texts(self, name: str) -> Collection[str]:
        """All texts that an attribute has; none when there are too many to look among."""
        values: Collection[object] = self.values(name)
        if name in self.identifiers:
            values = self.identifiers[name](self.devices) or ()
        elif len(values) > MAX_VALUES:
            return ()
        return [value for value in values if isinstance(value, str)]

    def expression(self, text: str, look: Callable[[str], Iterable[Typo]]) -> tuple[Typo, ...]:
        """What ``look`` finds in an expression, once; nothing in one that is invalid."""
        if text not in self.in_expressions:
            if len(self.in_expressions) >= MAX_EXPRESSIONS:
                self.in_expressions.clear()
            try:
                self.in_expressions[text] = (*look(text),)
            except (CompileError, RecursionError):
                self.in_expressions[text] = ()
        return self.in_expressions[text]

    def _count(self, marked: Iterable[Iterable[M]]) -> Counter[M]:
        if self.copies is None:
            return Counter(mark for marks in marked for mark in marks)
        counts: Counter[M] = Counter()
        for marks, count in zip(marked, self.copies, strict=True):
            for mark in marks:
                counts[mark] += count
        return counts


class UnitTypos(ABC):
    """Finds what was most likely mistyped in claims. A dialect reads the fields of its claims and classes."""

    @abstractmethod
    def of_demand(self, demand: Demand) -> Iterable[Typo]:
        """All typing errors of one claim, and of the classes that it names."""

    def marked(self, edit: Relaxation, unit: PlacementUnit) -> Relaxation:
        """The edit with what was most likely meant, if what it takes away was mistyped, and the dialect says where."""
        return edit

    def of_unit(self, unit: PlacementUnit, ends: float | None) -> list[Fact]:
        """The first ones of a unit. After the monotonic time ``ends`` no more are looked for."""
        causes: list[Fact] = []
        for typo in (typo for demand in unit.demands for typo in self.of_demand(demand)):
            if typo.cause not in causes:
                causes.append(typo.cause)
            if len(causes) == SHOWN or (ends is not None and time.monotonic() > ends):
                break
        return causes


@dataclass(frozen=True, slots=True)
class TypeNames:
    """What a dialect calls the types of values."""

    names: Mapping[type, str]
    article: str
    """between "is" and the name of a type"""
    parsers: Mapping[str, Callable[[str], object]] = field(default_factory=dict)
    """types whose values an expression writes as texts -> how they are read, with ValueError for others"""

    def of(self, value: object) -> str | None:
        """None for a value of a type that nothing is said of."""
        return self.names.get(type(value))


def mistyped_parts(
    root: Node,
    variables: Places,
    name_typo: Callable[[tuple[str, ...]], Typo | None],
    comparison_typo: Callable[[Comparison], Typo | None],
) -> Iterator[Typo]:
    """The typing errors of an expression: of the names that it reads, in their order, then of what it compares."""
    nodes = [*nodes_with_places(root, variables)]
    paths = dict.fromkeys(path for node, places in nodes if (path := value_path(node, places)) is not None)
    yield from (typo for path in paths if (typo := name_typo(path)) is not None)
    compared = (comparison for node, places in nodes for comparison in comparisons(node, places))
    yield from (typo for comparison in compared if (typo := comparison_typo(comparison)) is not None)


def mistyped_name(
    name: str,
    having: Counter[str],
    total: int,
    *,
    path: str = "",
    what: str | None = None,
    rare: float = 0.0,
    nearest: Callable[[str, Collection[str]], str | None] = closest_match,
) -> Typo | None:
    """A name that hardly any of ``total`` devices has, while a near one is on more of them.

    ``having``: name -> devices; ``rare``: the part of the devices that counts as hardly any; ``what``: before the name.
    """
    count = having[name]
    if not total or count > rare * total:
        return None
    near = nearest(name, [other for other, number in having.items() if number > max(count, rare * total)])
    if near is None or near == name:
        return None
    return Typo(path, fact(Cause.UNKNOWN_NAME, name=name, what=what, count=count, total=total, near=near), name, near)


def mistyped_comparison(
    survey: KnownNames[D], operator: str, name: str, literal: object, types: TypeNames, access: str
) -> Typo | None:
    """A text that no device has while one has a similar one or contains it, or a value of another type than all have.

    ``access``: how an expression reads the attribute.
    """
    values, kind = survey.values(name), types.of(literal)
    if kind is None or not (values or name in survey.identifiers):
        return None
    kinds = {types.of(value) for value in values}
    if kind in kinds or not kinds:
        if not isinstance(literal, str) or operator != "==" or values[literal]:
            return None
        return _mistyped_text(name, literal, survey.texts(name), survey.total, access)
    other = kinds.pop()
    return None if kinds or other is None else _mistyped_type(name, literal, values.total(), other, types)


def _mistyped_text(name: str, literal: str, values: Collection[str], total: int, access: str) -> Typo | None:
    wider = sorted(value for value in values if literal and literal.casefold() in value.casefold())
    word = re.compile(rf"(?<![^\W_]){re.escape(literal)}(?![^\W_])", re.IGNORECASE)
    is_case = any(len(value) == len(literal) for value in wider)
    # As a word of a longer text it is nearer than any other spelling, but for another case of all of it.
    as_word = [] if is_case else [value for value in wider if word.search(value)]
    # With other numbers a value is another address or model, and no other spelling.
    numbers, spelled = _numbers(literal), normalized(literal[:MAX_WORD])
    alike = [each for each in values if _numbers(each) == numbers or normalized(each[:MAX_WORD]) == spelled]
    near = None if as_word else closest_match(literal, alike) or _longest_word_match(literal, values)
    wider = as_word or wider
    there: dict[str, Any] = {"name": name, "value": literal, "total": total}
    if near is not None:
        cause = fact(Cause.UNKNOWN_VALUE, **there, near=near)
        return None if near == literal else Typo("", cause, repr(literal), repr(near))
    if not wider:
        return None
    part = wider[0][(at := wider[0].casefold().index(literal.casefold())) : at + len(literal)]
    cause = fact(Cause.UNKNOWN_VALUE, **there, whole=wider[0], write=f"{access}.contains({part!r})")
    return Typo("", cause, repr(literal), None)


def _numbers(text: str) -> list[str]:
    return re.findall(r"\d+", text[:MAX_WORD])


def _longest_word_match(literal: str, values: Iterable[str]) -> str | None:
    """The longest value that is a word of the literal: L40S of 'AD102GL [L40S]'."""
    parts = (value for value in values if re.search(rf"(?<![^\W_]){re.escape(value)}(?![^\W_])", literal))
    return max(parts, key=lambda value: (len(value), value), default=None) or None


def _mistyped_type(name: str, literal: object, count: int, other: str, types: TypeNames) -> Typo | None:
    there: dict[str, Any] = {"name": name, "type": f"{types.article}{other}", "count": count}
    shown = repr(literal) if isinstance(literal, str) else str(literal).lower()
    meant, advice = None, ""
    if isinstance(literal, str):
        if (parse := types.parsers.get(other)) is not None:
            fault = _format_error(parse, literal)
            cause = fact(Cause.WRONG_TYPE, **there, literal=shown, fault=fault)
            return None if fault is None else Typo("", cause, literal, None)
        is_bare = {"number": _is_number(literal), "int": _is_number(literal), "bool": literal in ("true", "false")}
        meant = literal if is_bare.get(other) else None
        advice = f"write {meant} without quotes" if meant else ""
    elif other == types.names[str]:
        meant = f"'{shown}'"
        advice = f"write {meant} in quotes"
    elif other in types.parsers:
        advice = f"write it as {types.article}{other} in quotes"
    cause = fact(Cause.WRONG_TYPE, **there, literal=shown, of=types.of(literal), advice=advice or None)
    return Typo("", cause, shown, meant)


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def _format_error(parse: Callable[[str], object], text: str) -> str | None:
    """What is wrong with a text that stands for a value of another type, or None."""
    try:
        parse(text)
    except ValueError as error:
        return str(error)
    return None
