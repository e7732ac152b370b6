"""The syntax tree of both dialects, in CEL's own form (``cel.expr.Expr``): operators are calls, macros are expanded.

The ``id`` of a node is what its front end calls it: the parser of DeviceClaims its offset in the text, the official
runtime a number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant, as the value that it has at run time."""

    id: int
    value: Any


@dataclass(frozen=True, slots=True)
class Name:
    """A variable: of the environment by its full name (``device.driver``), or of a comprehension."""

    id: int
    name: str


@dataclass(frozen=True, slots=True)
class Select:
    """``operand.field``; with ``test`` what ``has(operand.field)`` expands to."""

    id: int
    operand: Node
    field: str
    test: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """A function or operator; the receiver of a method comes first among ``arguments``.

    A chain of ``&&`` or ``||`` may be one call.
    """

    id: int
    function: str
    arguments: tuple[Node, ...]
    method: bool = False


@dataclass(frozen=True, slots=True)
class ListOf:
    """``[…]``; ``optional`` holds the positions written with a question mark."""

    id: int
    elements: tuple[Node, ...]
    optional: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a map; ``optional`` where the key is written with a question mark."""

    key: Node
    value: Node
    optional: bool = False


@dataclass(frozen=True, slots=True)
class MapOf:
    """``{…}``; with a ``message`` the construction of a protocol buffer message."""

    id: int
    entries: tuple[Entry, ...]
    message: str = ""


@dataclass(frozen=True, slots=True)
class Comprehension:
    """What every comprehension macro expands to."""

    id: int
    variable: str
    second_variable: str
    range: Node
    accumulator: str
    start: Node
    condition: Node
    step: Node
    result: Node


Node = Literal | Name | Select | Call | ListOf | MapOf | Comprehension


def children(node: Node) -> tuple[Node, ...]:
    """The direct parts of a node, in the order of evaluation."""
    match node:
        case Literal() | Name():
            return ()
        case Call():
            return node.arguments
        case Select():
            return (node.operand,)
        case ListOf():
            return node.elements
        case MapOf():
            return tuple(part for entry in node.entries for part in (entry.key, entry.value))
        case Comprehension():
            return node.range, node.start, node.condition, node.step, node.result


def is_binding(fold: Comprehension) -> bool:
    """Whether the comprehension is that of ``cel.bind``: over nothing, so that only its result counts."""
    return isinstance(fold.range, ListOf) and not fold.range.elements


def walk(node: Node) -> Iterator[Node]:
    """The node and all below it."""
    pending = [node]
    while pending:
        current = pending.pop()
        yield current
        pending.extend(children(current))
