"""What a selector reads of a device, and the equalities that it demands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal as Only

from devalloc_solver.cel import reads as analysis
from devalloc_solver.cel.comprehensions import quantified
from devalloc_solver.cel.library.strings import is_pattern
from devalloc_solver.cel.reads import Place
from devalloc_solver.cel.syntax_tree import Call, Comprehension, ListOf, Literal, Name, Node


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

PLACES = {
    "device": Place((), -1),
    "device.driver": Place(("driver",), 0),
    "device.allowMultipleAllocations": Place(("allow_multiple",), 0),
    "device.attributes": Place(("attribute",), 2),
    "device.capacity": Place(("capacity",), 2),
}
"""The variables of the device; a path is a kind, a domain and an identifier."""


def reads(root: Node) -> frozenset[DeviceField] | None:
    """Everything of the device that can influence the value; None when that is not known beforehand."""
    paths = analysis.paths_read(root, PLACES)
    return None if paths is None else frozenset(DeviceField(*path) for path in paths)  # type: ignore[arg-type]


def conjuncts(root: Node) -> list[tuple[Node, frozenset[DeviceField] | None]]:
    """The operands of the top-level ``&&``, each with what it reads; see ``cel.reads.conjuncts``."""
    return [
        (node, None if paths is None else frozenset(DeviceField(*path) for path in paths))  # type: ignore[arg-type]
        for node, paths in analysis.conjuncts(root, PLACES)
    ]


def equalities(root: Node) -> tuple[Equality, ...]:
    """The equalities with literals of one type that every matching device fulfils."""
    return tuple(
        Equality(path[1], path[2], tuple(value for value in values if isinstance(value, str | int)))
        for path, values in analysis.equalities(root, PLACES, _is_indexed)
    )


def _is_indexed(path: tuple[str, ...], values: Sequence[object]) -> bool:
    kinds = {type(value) for value in values}
    return path[0] == "attribute" and len(kinds) == 1 and kinds <= {str, int, bool}


def drivers(root: Node) -> frozenset[str] | None:
    """The drivers of which every matching device has one; None if the expression does not say so."""
    sets = [frozenset(map(str, values)) for _, values in analysis.equalities(root, PLACES, _is_driver)]
    return frozenset.intersection(*sets) or None if sets else None


def _is_driver(path: tuple[str, ...], values: Sequence[object]) -> bool:
    return path == ("driver",) and all(isinstance(value, str) for value in values)


_TEXT_TESTS = frozenset(("_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_", "startsWith", "endsWith", "contains"))


def needs_only_texts(root: Node) -> frozenset[DeviceField] | None:
    """The attributes on which an expression cannot fail, if each is there and is one string; None if it may fail.

    It must be made of comparisons of such attributes with short literals, of patterns that are literals, and of macros
    that compare them with each of some literals. All that these cost is known beforehand.
    """
    texts: set[DeviceField] = set()
    return frozenset(texts) if _is_safe(root, texts, frozenset()) else None


def _is_safe(node: Node, texts: set[DeviceField], variables: frozenset[str]) -> bool:
    """``variables``: those of a macro around the node, which are literal texts."""
    match node:
        case Call(function="_&&_" | "_||_" | "!_", arguments=parts):
            return all(_is_safe(part, texts, variables) for part in parts)
        case Call(function="@in", arguments=(left, ListOf(elements=elements))):
            return _is_text(left, texts, variables) and all(isinstance(one, Literal) for one in elements)
        case Call(function="matches", arguments=(left, Literal(value=str(pattern)))):
            return _is_text(left, texts, variables) and is_pattern(pattern)
        case Call(function=function, arguments=(left, right)) if function in _TEXT_TESTS:
            return _is_text(left, texts, variables) and _is_text(right, texts, variables)
        case Comprehension(range=ListOf(elements=elements, optional=optional)) if not variables and not optional:
            body = None if node.second_variable else quantified(node)
            if body is None or not all(isinstance(one, Literal) and type(one.value) is str for one in elements):
                return False
            return _is_safe(body, texts, frozenset((node.variable,)))
    return False


def _is_text(node: Node, texts: set[DeviceField], variables: frozenset[str]) -> bool:
    if isinstance(node, Literal):
        return isinstance(node.value, str)
    if isinstance(node, Name) and node.name in variables:
        return True
    if isinstance(node, Call) and node.function in ("lowerAscii", "upperAscii") and len(node.arguments) == 1:
        return _is_text(node.arguments[0], texts, variables)
    place = analysis.place_of(node, PLACES)
    if place is None or place.steps != 0 or place.path[0] != "attribute" or analysis.is_optional(node):
        return False
    texts.add(DeviceField("attribute", *place.path[1:]))
    return True
