"""What an expression reads of a device, and the equalities that it demands, found without evaluating it.

With these, a caller evaluates once for each distinct tuple of the values read, and finds candidates by index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal as Only

from devalloc_solver.cel.kubernetes.syntax_tree import (
    Call,
    Comprehension,
    ListOf,
    Literal,
    Name,
    Node,
    Select,
    children,
)


@dataclass(frozen=True, slots=True)
class DeviceField:
    """One part of a device. ``domain`` and ``id`` are empty for the driver and allowMultipleAllocations."""

    kind: Only["driver", "attribute", "capacity", "allow_multiple"]
    domain: str = ""
    id: str = ""


@dataclass(frozen=True, slots=True)
class Equality:
    """The device matches only if the attribute is present and is one of ``values``: strings, ints or booleans.

    Booleans and numbers are different values here, though Python takes True for 1: ``values`` never holds both.
    """

    domain: str
    id: str
    values: tuple[str | int | bool, ...]


DRIVER = DeviceField("driver")
ALLOW_MULTIPLE = DeviceField("allow_multiple")

_INDEX = frozenset(("_[_]", "_[?_]", "_?._"))
_MAPS: dict[str, Only["attribute", "capacity"]] = {"device.attributes": "attribute", "device.capacity": "capacity"}


@dataclass(frozen=True, slots=True)
class DevicePath:
    """A place in the device: one of its two maps, a domain of it, or a value."""

    kind: Only["attribute", "capacity"]
    domain: str | None = None
    id: str | None = None


class _DependsOnDevice(Exception):
    """What is read depends on the device."""


def reads(root: Node) -> frozenset[DeviceField] | None:
    """Everything of the device that can influence the value; None when that is not known beforehand."""
    collected: set[DeviceField] = set()
    try:
        _collect(root, {}, collected)
    except _DependsOnDevice:
        return None
    return frozenset(collected)


def path_of(node: Node, bound: dict[str, DevicePath] | None = None) -> DevicePath | None:
    """The place in the device that ``node`` denotes; ``bound`` holds those of the variables of cel.bind."""
    if isinstance(node, Name):
        if node.name in _MAPS:
            return DevicePath(_MAPS[node.name])
        return bound.get(node.name) if bound else None
    step = _step(node)
    if step is None:
        return None
    base, key = step
    path = path_of(base, bound)
    if path is None or path.id is not None:
        return None
    return DevicePath(path.kind, key) if path.domain is None else DevicePath(path.kind, path.domain, key)


def _step(node: Node) -> tuple[Node, str] | None:
    """``x["key"]``, ``x.key`` and their optional forms, as (x, key)."""
    match node:
        case Select():
            return node.operand, node.field
        case Call(function=function, arguments=(base, Literal(value=str() as key))) if function in _INDEX:
            return base, key
    return None


def _collect(node: Node, bound: dict[str, DevicePath], collected: set[DeviceField]) -> None:
    path = path_of(node, bound)
    if path is None and isinstance(node, Call) and node.function == "@in" and isinstance(node.arguments[0], Literal):
        path = _member(node.arguments[0].value, path_of(node.arguments[1], bound))
    if path is not None:
        if path.domain is None or path.id is None:
            raise _DependsOnDevice
        collected.add(DeviceField(path.kind, path.domain, path.id))
        return
    match node:
        case Name(name="device"):
            raise _DependsOnDevice
        case Name(name="device.driver"):
            collected.add(DRIVER)
        case Name(name="device.allowMultipleAllocations"):
            collected.add(ALLOW_MULTIPLE)
        case Comprehension():
            _collect_fold(node, bound, collected)
        case _:
            for part in children(node):
                _collect(part, bound, collected)


def _member(key: object, path: DevicePath | None) -> DevicePath | None:
    """``"x" in device.attributes["d"]`` asks for the presence of x only."""
    if isinstance(key, str) and path is not None and path.domain is not None and path.id is None:
        return DevicePath(path.kind, path.domain, key)
    return None


def _collect_fold(fold: Comprehension, bound: dict[str, DevicePath], collected: set[DeviceField]) -> None:
    start = path_of(fold.start, bound) if is_binding(fold) else None
    own = {name: path for name, path in bound.items() if name not in (fold.variable, fold.second_variable)}
    own.pop(fold.accumulator, None)
    if start is not None and start.id is None:
        own[fold.accumulator] = start
        _collect(fold.result, own, collected)
        return
    for part in (fold.range, fold.start):
        _collect(part, bound, collected)
    for part in (fold.condition, fold.step, fold.result):
        _collect(part, own, collected)


def is_binding(fold: Comprehension) -> bool:
    """Whether the comprehension is that of ``cel.bind``: over nothing, so that only its result counts."""
    return isinstance(fold.range, ListOf) and not fold.range.elements


def equalities(root: Node) -> tuple[Equality, ...]:
    """The equalities with literals that every matching device fulfils: those among the top-level conjuncts, and of
    alternatives those on an attribute that each of them demands something of."""
    match root:
        case Call(function="_&&_", arguments=parts):
            return tuple(equality for part in parts for equality in equalities(part))
        case Call(function="_||_", arguments=parts):
            first, *others = [{(e.domain, e.id): e for e in reversed(equalities(part))} for part in parts]
            common = [
                [one, *(other[place] for other in others)]
                for place, one in first.items()
                if all(place in other for other in others)
            ]
            return tuple(equality for same in common if (equality := _any_of(same)) is not None)
        case Call():
            equality = _equality(root)
            return () if equality is None else (equality,)
    return ()


def _any_of(equalities: Sequence[Equality]) -> Equality | None:
    """Any of some equalities on one attribute; None where they are of several types."""
    values = [value for each in equalities for value in each.values]
    if len({type(value) for value in values}) != 1:
        return None
    return Equality(equalities[0].domain, equalities[0].id, tuple(dict.fromkeys(values)))


def _equality(call: Call) -> Equality | None:
    match call:
        case Call(function="_==_", arguments=(left, Literal(value=value))):
            return _equality_of_values(left, (value,))
        case Call(function="_==_", arguments=(Literal(value=value), right)):
            return _equality_of_values(right, (value,))
        case Call(function="@in", arguments=(left, ListOf(elements=elements, optional=optional))) if not optional:
            if all(isinstance(element, Literal) for element in elements):
                return _equality_of_values(
                    left, tuple(element.value for element in elements if isinstance(element, Literal))
                )
    return None


def _equality_of_values(node: Node, values: tuple[object, ...]) -> Equality | None:
    path = path_of(node)
    if path is None or path.kind != "attribute" or path.domain is None or path.id is None or is_optional(node):
        return None
    kinds = {type(value) for value in values}
    if len(kinds) != 1 or not kinds <= {str, int, bool}:
        return None
    return Equality(path.domain, path.id, tuple(dict.fromkeys(v for v in values if isinstance(v, (str, int)))))


def is_optional(node: Node) -> bool:
    """Whether a place is asked for in a way that takes its absence: ``has``, ``.?x`` or ``[?x]``."""
    while (step := _step(node)) is not None:
        if isinstance(node, Select) and node.test:
            return True
        if isinstance(node, Call) and node.function != "_[_]":
            return True
        node = step[0]
    return False


_TEXT_TESTS = frozenset(("_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_", "startsWith", "endsWith", "contains"))


def needs_only_texts(root: Node) -> frozenset[DeviceField] | None:
    """The attributes on which an expression cannot fail, if each is there and is one string; None if it may fail.

    It must be made of comparisons of such attributes with short literals. All that these cost is known beforehand.
    """
    texts: set[DeviceField] = set()
    return frozenset(texts) if _is_safe(root, texts) else None


def _is_safe(node: Node, texts: set[DeviceField]) -> bool:
    match node:
        case Call(function="_&&_" | "_||_" | "!_", arguments=parts):
            return all(_is_safe(part, texts) for part in parts)
        case Call(function="@in", arguments=(left, ListOf(elements=elements))):
            return _is_text(left, texts) and all(isinstance(one, Literal) for one in elements)
        case Call(function=function, arguments=(left, right)) if function in _TEXT_TESTS:
            return _is_text(left, texts) and _is_text(right, texts)
    return False


def _is_text(node: Node, texts: set[DeviceField]) -> bool:
    if isinstance(node, Literal):
        return isinstance(node.value, str)
    path = path_of(node)
    if path is None or path.kind != "attribute" or path.domain is None or path.id is None or is_optional(node):
        return False
    texts.add(DeviceField("attribute", path.domain, path.id))
    return True
