"""The static check: what an expression names must exist, and it must be able to become a boolean.

A node that can only fail, such as ``1 == 'a'``, has the type NEVER. That makes an expression invalid when nothing
else can become of it; ``1 == 'a' || true`` is true, like any other error beside ``true``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from devalloc_solver.cel.device_claims.comparison import to_quantity, to_semver, type_name
from devalloc_solver.cel.device_claims.declarations import DYN, FUNCTIONS, OPERATORS, Declaration
from devalloc_solver.cel.device_claims.environment import PATTERNS, is_device, no_type, shown
from devalloc_solver.cel.errors import CompileError, EvaluationError, error_at
from devalloc_solver.cel.library.strings import compile_pattern
from devalloc_solver.cel.syntax_tree import Call, Comprehension, ListOf, Literal, MapOf, Name, Node, Select, children

NEVER = "never"
_EQUALITY = frozenset(("_==_", "_!=_"))
_ORDER = frozenset(("_<_", "_<=_", "_>_", "_>=_"))
_ORDERED = frozenset({"bool", "int", "uint", "double", "string", "quantity", "semver", DYN})
_CONSTANTS: Mapping[str, Callable[[str], object]] = {
    "quantity": to_quantity,
    "semver": to_semver,
    "matches": partial(compile_pattern, bounds=PATTERNS),
}
"""Functions whose last argument, as a literal, must be valid."""


@dataclass(frozen=True, slots=True)
class StaticType:
    """What is known of a node's value beforehand, and why it can only fail if its type is NEVER."""

    type: str
    failure: CompileError | None = None


def check(text: str, tree: Node) -> None:
    """Check ``tree``, the syntax tree of ``text``. Raises CompileError."""
    result = _Checker(text).check(tree, frozenset())
    if result.failure is not None:
        raise result.failure
    if result.type not in ("bool", DYN):
        article = "an" if result.type[0] in "aeiou" else "a"
        raise error_at(text, tree.id, f"the expression must be a boolean; this is always {article} {result.type}")


class _Checker:
    def __init__(self, text: str) -> None:
        self.text = text

    def error(self, node: Node, message: str) -> CompileError:
        return error_at(self.text, node.id, message)

    def never(self, node: Node, message: str, *operands: StaticType) -> StaticType:
        """What can only fail: because of an operand, or of ``message``."""
        inner = next((operand.failure for operand in operands if operand.failure is not None), None)
        return StaticType(NEVER, inner or self.error(node, message))

    def check(self, node: Node, variables: frozenset[str]) -> StaticType:
        match node:
            case Literal(value=value):
                return StaticType(type_name(value))
            case Name(name=name):
                return self.name(node, name, variables)
            case Select(operand=operand, field=field):
                if is_device(operand, variables):
                    return StaticType("bool" if node.test else DYN)
                container = self.check(operand, variables)
                if container.type not in ("map", DYN):
                    return self.never(node, f"a {container.type} has no fields, so no {field!r}", container)
                return StaticType("bool" if node.test else DYN)
            case Call():
                return self.call(node, variables)
            case ListOf() | MapOf():
                for part in children(node):
                    self.check(part, variables)
                return StaticType("list" if isinstance(node, ListOf) else "map")
            case Comprehension():
                return self.comprehension(node, variables)

    def name(self, node: Node, name: str, variables: frozenset[str]) -> StaticType:
        if name in variables:
            return StaticType(DYN)
        if is_device(node, variables):
            return StaticType("map")
        raise self.error(
            node,
            f"undeclared name {name.lstrip('.')!r}: only 'device' is declared"
            " (text needs quotes; an attribute with - or / in its name is read as device['pcie-root'])",
        )

    def comprehension(self, node: Comprehension, variables: frozenset[str]) -> StaticType:
        over = self.check(node.range, variables)
        if over.type not in ("list", "map", DYN):
            macro = self.text[node.id :].partition("(")[0].strip()
            return self.never(node, f"{macro}() goes through a list or a map, not through a {over.type}", over)
        self.check(node.step, variables | {node.variable, node.accumulator})
        return StaticType("list" if isinstance(node.start, ListOf) else "bool")

    # -- operators and functions -------------------------------------------------------------------------------------

    def call(self, node: Call, variables: frozenset[str]) -> StaticType:
        function = node.function
        if function == "@in" and is_device(node.arguments[1], variables) and isinstance(node.arguments[0], Literal):
            name = node.arguments[0].value
            if isinstance(name, str):
                return StaticType("bool")
            return self.never(node, f"the names of attributes are strings, not a {type_name(name)}")
        if function.isidentifier() and (function, node.method) not in FUNCTIONS:
            raise self.error(node, _undeclared(function, node.method))
        operands = [self.check(argument, variables) for argument in node.arguments]
        if (function, False) in OPERATORS:
            return self.overloaded(node, OPERATORS[function, False], operands)
        match function:
            case "_[_]":
                if operands[0].type not in ("list", "map", DYN):
                    return self.never(node, f"a {operands[0].type} has no elements", operands[0])
                return StaticType(DYN)
            case "_&&_" | "_||_":
                if all(operand.type not in ("bool", DYN) for operand in operands):
                    return self.never(node, no_type(function, operands[0].type), *operands)
                return StaticType("bool")
            case "!_":
                if operands[0].type not in ("bool", DYN):
                    return self.never(node, no_type(function, operands[0].type), operands[0])
                return StaticType("bool")
            case "_?_:_":
                return self.conditional(node, *operands)
            case "@in":
                if operands[1].type not in ("list", "map", DYN):
                    return self.never(node, no_type(function, operands[1].type), operands[1])
                return StaticType("bool")
        if function in _EQUALITY or function in _ORDER:
            return self.compared(node, *operands)
        return self.function(node, operands)

    def conditional(self, node: Call, condition: StaticType, then: StaticType, otherwise: StaticType) -> StaticType:
        if condition.type not in ("bool", DYN):
            return self.never(node, no_type(node.function, condition.type), condition)
        if then.failure is not None and otherwise.failure is not None:
            return then
        return StaticType(_union_type({branch.type for branch in (then, otherwise)} - {NEVER}))

    def compared(self, node: Call, left: StaticType, right: StaticType) -> StaticType:
        if _comparable(left.type, right.type, node.function in _EQUALITY):
            return StaticType("bool")
        message = f"{shown(node.function)} never compares {left.type} with {right.type}"
        return self.never(node, message + _conversion_hint(left.type, right.type), left, right)

    def function(self, node: Call, operands: Sequence[StaticType]) -> StaticType:
        overloads = FUNCTIONS[node.function, node.method]
        fitting = [row for row in overloads if len(row.params) == len(operands)]
        if not fitting:
            raise self.error(node, f"{node.function}() has other arguments: {_signatures(overloads)}")
        result = self.overloaded(node, fitting, operands)
        last = node.arguments[-1] if node.arguments else None
        validate = _CONSTANTS.get(node.function)
        if validate and result.type != NEVER and isinstance(last, Literal) and isinstance(last.value, str):
            try:
                validate(last.value)
            except EvaluationError as error:
                raise self.error(last, str(error)) from None
        return result

    def overloaded(self, node: Call, overloads: Sequence[Declaration], operands: Sequence[StaticType]) -> StaticType:
        types = [operand.type for operand in operands]
        fitting = [row for row in overloads if row.accepts(types)]
        if not fitting:
            return self.never(node, f"{shown(node.function)} is not defined for {' and '.join(types)}", *operands)
        return StaticType(_union_type({row.result for row in fitting}))


def _union_type(types: set[str]) -> str:
    return next(iter(types)) if len(types) == 1 else DYN


def _comparable(left: str, right: str, equality: bool) -> bool:
    if NEVER in (left, right):
        return False
    if not equality and not {left, right} <= _ORDERED:
        return False
    pair = {left, right}
    return DYN in pair or len(pair) == 1 or pair in ({"string", "quantity"}, {"string", "semver"})


def _conversion_hint(left: str, right: str) -> str:
    numbers = {"int", "uint", "double"}
    return "; convert one of them, such as int(...)" if {left, right} <= numbers else ""


def _signatures(overloads: Sequence[Declaration]) -> str:
    return ", ".join(row.signature.partition(" ->")[0] for row in overloads)


def _undeclared(name: str, member: bool) -> str:
    twins = FUNCTIONS.get((name, not member), ())
    if twins:
        return f"{name}() is called as {_signatures(twins[:2])}"
    if not member and name in ("timestamp", "duration", "bytes"):
        return f"{name}() is not part of this dialect"
    return f"undeclared function {name}()"
