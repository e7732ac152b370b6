"""The syntax tree. ``at`` is the offset in the text that errors point at; ``depth`` counts the levels below."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Node:
    at: int
    depth: int = field(init=False, default=1, compare=False)

    def children(self) -> tuple[Node, ...]:
        return ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "depth", 1 + max((child.depth for child in self.children()), default=0))


@dataclass(frozen=True, slots=True)
class Literal(Node):
    value: object


@dataclass(frozen=True, slots=True)
class Name(Node):
    name: str
    """With a leading dot when it was written so: then macro variables do not hide it."""


@dataclass(frozen=True, slots=True)
class Select(Node):
    """``operand.field``, or ``has(operand.field)`` with ``test``."""

    operand: Node
    field: str
    test: bool = False

    def children(self) -> tuple[Node, ...]:
        return (self.operand,)


@dataclass(frozen=True, slots=True)
class Index(Node):
    operand: Node
    key: Node

    def children(self) -> tuple[Node, ...]:
        return self.operand, self.key


@dataclass(frozen=True, slots=True)
class Call(Node):
    """``function(args)``, or ``target.function(args)``."""

    function: str
    target: Node | None
    args: tuple[Node, ...]

    def children(self) -> tuple[Node, ...]:
        return self.args if self.target is None else (self.target, *self.args)


@dataclass(frozen=True, slots=True)
class Unary(Node):
    operator: str
    operand: Node

    def children(self) -> tuple[Node, ...]:
        return (self.operand,)


@dataclass(frozen=True, slots=True)
class Binary(Node):
    operator: str
    left: Node
    right: Node

    def children(self) -> tuple[Node, ...]:
        return self.left, self.right


@dataclass(frozen=True, slots=True)
class Logical(Node):
    """``a && b && c`` or ``a || b || c``: one node however long."""

    operator: str
    operands: tuple[Node, ...]

    def children(self) -> tuple[Node, ...]:
        return self.operands


@dataclass(frozen=True, slots=True)
class Conditional(Node):
    condition: Node
    then: Node
    otherwise: Node

    def children(self) -> tuple[Node, ...]:
        return self.condition, self.then, self.otherwise


@dataclass(frozen=True, slots=True)
class ListOf(Node):
    items: tuple[Node, ...]

    def children(self) -> tuple[Node, ...]:
        return self.items


@dataclass(frozen=True, slots=True)
class MapOf(Node):
    entries: tuple[tuple[Node, Node], ...]

    def children(self) -> tuple[Node, ...]:
        return tuple(part for entry in self.entries for part in entry)


@dataclass(frozen=True, slots=True)
class Macro(Node):
    """``over.macro(variable, [condition,] body)``."""

    macro: str
    over: Node
    variable: str
    condition: Node | None
    body: Node

    def children(self) -> tuple[Node, ...]:
        return (self.over, self.body) if self.condition is None else (self.over, self.condition, self.body)
