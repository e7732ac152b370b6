"""Compile a syntax tree to Python closures and type-check it.

Each node becomes a ``CompiledNode``: type, closure and fixed cost. A closure takes the frame of one evaluation,
``[attributes, budget, variable, variable, ...]``. The fixed cost of everything outside macro bodies is spent before the
evaluation starts, that of a body at each turn, so that a plain comparison pays nothing for being bounded.

A node that can only fail, such as ``1 == 'a'``, has the type NEVER. That makes an expression invalid when nothing
else can become of it; ``1 == 'a' || true`` is true, like any other error beside ``true``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatchmethod
from typing import Any

from devalloc_solver.cel.devmgmt import comprehensions, operators, quantities, standard_functions, string_functions
from devalloc_solver.cel.devmgmt.functions import DYN, Overload, Table, function_table
from devalloc_solver.cel.devmgmt.lexer import error_at
from devalloc_solver.cel.devmgmt.operators import Frame, Run
from devalloc_solver.cel.devmgmt.syntax_tree import (
    Binary,
    Call,
    Conditional,
    Index,
    ListOf,
    Literal,
    Logical,
    Macro,
    MapOf,
    Name,
    Node,
    Select,
    Unary,
)
from devalloc_solver.cel.devmgmt.values import to_quantity, to_semver, type_name
from devalloc_solver.cel.errors import CompileError, EvaluationError

NEVER = "never"
DEVICE = "device"
FUNCTIONS: Table = function_table(standard_functions.FUNCTIONS, quantities.FUNCTIONS, string_functions.FUNCTIONS)
_ORDER: Mapping[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class CompiledNode:
    """What a node becomes: its static type, its closure, its fixed cost in steps."""

    type: str
    run: Run
    cost: int = 1
    failure: CompileError | None = None
    """Why it can only fail, when its type is NEVER."""


@dataclass(frozen=True, slots=True)
class CompiledExpression:
    """A whole expression: ``slots`` is the number of macro variables in its frame, ``reads`` the attributes or None."""

    run: Run
    cost: int
    slots: int
    reads: frozenset[str] | None


def build(text: str, tree: Node) -> CompiledExpression:
    """Check ``tree``, the syntax tree of ``text``, and turn it into a predicate. Raises CompileError."""
    builder = _Builder(text)
    code = builder.build(tree)
    if code.failure is not None:
        raise code.failure
    if code.type not in ("bool", DYN):
        raise error_at(text, tree.at, f"the expression must be a boolean; this is always a {code.type}")
    return CompiledExpression(code.run, code.cost, builder.slots, None if builder.whole else frozenset(builder.reads))


class _Builder:
    def __init__(self, text: str) -> None:
        self.text = text
        self.reads: set[str] = set()
        self.whole = False
        self.slots = 0
        self.scope: dict[str, int] = {}

    @singledispatchmethod
    def build(self, node: Node) -> CompiledNode:
        raise AssertionError(node)

    def error(self, node: Node, message: str) -> CompileError:
        return error_at(self.text, node.at, message)

    def never(self, node: Node, message: str, *operands: CompiledNode) -> CompiledNode:
        """Code for what can only fail, and does so when it is evaluated: because of an operand, or of ``message``."""
        inner = next((operand.failure for operand in operands if operand.failure is not None), None)
        failure = inner or self.error(node, message)

        def run(_frame: Frame) -> object:
            raise EvaluationError(failure.message)

        return CompiledNode(NEVER, run, failure=failure)

    def is_device(self, node: Node) -> bool:
        if not isinstance(node, Name):
            return False
        return node.name == "." + DEVICE or (node.name == DEVICE and DEVICE not in self.scope)

    # -- names and fields --------------------------------------------------------------------------------------------

    @build.register
    def _(self, node: Literal) -> CompiledNode:
        value = node.value
        return CompiledNode(type_name(value), lambda _frame: value)

    @build.register
    def _(self, node: Name) -> CompiledNode:
        slot = self.scope.get(node.name)
        if slot is not None:
            return CompiledNode(DYN, operator.itemgetter(slot))
        if self.is_device(node):
            self.whole = True
            return CompiledNode("map", operators.whole_device)
        name = node.name.lstrip(".")
        raise self.error(
            node,
            f"undeclared name {name!r}: only 'device' is declared"
            " (text needs quotes; an attribute with - or / in its name is read as device['pcie-root'])",
        )

    @build.register
    def _(self, node: Select) -> CompiledNode:
        if self.is_device(node.operand):
            self.reads.add(node.field)
            if node.test:
                return CompiledNode("bool", operators.has_attribute(node.field), 3)
            return CompiledNode(DYN, operators.attribute(node.field), 2)
        operand = self.build(node.operand)
        if operand.type not in ("map", DYN):
            return self.never(node, f"a {operand.type} has no fields, so no {node.field!r}", operand)
        return CompiledNode(
            "bool" if node.test else DYN, operators.field(operand.run, node.field, node.test), 1 + operand.cost
        )

    @build.register
    def _(self, node: Index) -> CompiledNode:
        if self.is_device(node.operand) and isinstance(node.key, Literal) and isinstance(node.key.value, str):
            self.reads.add(node.key.value)
            return CompiledNode(DYN, operators.attribute(node.key.value), 3)
        operand, key = self.build(node.operand), self.build(node.key)
        if operand.type not in ("list", "map", DYN):
            return self.never(node, f"a {operand.type} has no elements", operand)
        return CompiledNode(DYN, operators.index(operand.run, key.run), 1 + operand.cost + key.cost)

    # -- operators ---------------------------------------------------------------------------------------------------

    @build.register
    def _(self, node: Logical) -> CompiledNode:
        operands = [self.build(operand) for operand in node.operands]
        if all(operand.type not in ("bool", DYN) for operand in operands):
            return self.never(node, f"{node.operator} combines booleans, not a {operands[0].type}", *operands)
        run = operators.logical([operand.run for operand in operands], decisive=node.operator == "||")
        return CompiledNode("bool", run, 1 + sum(operand.cost for operand in operands))

    @build.register
    def _(self, node: Conditional) -> CompiledNode:
        condition, then, otherwise = (self.build(child) for child in node.children())
        if condition.type not in ("bool", DYN):
            return self.never(node, f"the condition of ?: is a boolean, not a {condition.type}", condition)
        if then.failure is not None and otherwise.failure is not None:
            return then
        types = {branch.type for branch in (then, otherwise)} - {NEVER}
        run = operators.conditional(condition.run, then.run, otherwise.run)
        return CompiledNode(_union_type(types), run, 1 + condition.cost + then.cost + otherwise.cost)

    @build.register
    def _(self, node: Unary) -> CompiledNode:
        operand = self.build(node.operand)
        if node.operator == "-":
            return self.overloaded(node, "unary -", standard_functions.NEGATIONS, [operand])
        if operand.type not in ("bool", DYN):
            return self.never(node, f"! negates a boolean, not a {operand.type}", operand)
        return CompiledNode("bool", operators.negation(operand.run), 1 + operand.cost)

    @build.register
    def _(self, node: Binary) -> CompiledNode:
        if node.operator == "in" and self.is_device(node.right) and isinstance(node.left, Literal):
            if isinstance(node.left.value, str):
                self.reads.add(node.left.value)
                return CompiledNode("bool", operators.has_attribute(node.left.value), 3)
            return self.never(node, f"the names of attributes are strings, not a {type_name(node.left.value)}")
        left, right = self.build(node.left), self.build(node.right)
        if node.operator in standard_functions.OPERATORS:
            return self.overloaded(node, node.operator, standard_functions.OPERATORS[node.operator], [left, right])
        cost = 1 + left.cost + right.cost
        if node.operator == "in":
            if right.type not in ("list", "map", DYN):
                return self.never(node, f"'in' looks into a list or a map, not into a {right.type}", right)
            return CompiledNode("bool", operators.member(left.run, right.run), cost)
        equality = node.operator in ("==", "!=")
        if not _comparable(left.type, right.type, equality):
            message = f"{node.operator} never compares {left.type} with {right.type}"
            return self.never(node, message + _conversion_hint(left.type, right.type), left, right)
        if equality:
            return CompiledNode("bool", operators.equals(left.run, right.run, node.operator == "=="), cost)
        return CompiledNode("bool", operators.compares(left.run, right.run, _ORDER[node.operator]), cost)

    # -- collections, functions, macros ------------------------------------------------------------------------------

    @build.register
    def _(self, node: ListOf) -> CompiledNode:
        items = [self.build(item) for item in node.items]
        if all(isinstance(item, Literal) for item in node.items):
            constant = [item.value for item in node.items if isinstance(item, Literal)]
            return CompiledNode("list", lambda _frame: constant, 1 + len(items))
        return CompiledNode(
            "list", operators.list_of([item.run for item in items]), 1 + sum(item.cost for item in items)
        )

    @build.register
    def _(self, node: MapOf) -> CompiledNode:
        entries = [(self.build(key), self.build(value)) for key, value in node.entries]
        run = operators.map_of([(key.run, value.run) for key, value in entries])
        return CompiledNode("map", run, 1 + sum(key.cost + value.cost for key, value in entries))

    @build.register
    def _(self, node: Call) -> CompiledNode:
        member = node.target is not None
        overloads = FUNCTIONS.get((node.function, member), ())
        if not overloads:
            raise self.error(node, _undeclared(node.function, member))
        operands = [self.build(child) for child in node.children()]
        fitting = [row for row in overloads if len(row.params) == len(operands)]
        if not fitting:
            raise self.error(node, f"{node.function}() has other arguments: {_signatures(overloads)}")
        code = self.overloaded(node, f"{node.function}()", fitting, operands)
        return self.folded(node, code) if node.function in _CONSTANTS else code

    @build.register
    def _(self, node: Macro) -> CompiledNode:
        over = self.build(node.over)
        if over.type not in ("list", "map", DYN):
            return self.never(node, f"{node.macro}() goes through a list or a map, not through a {over.type}", over)
        slot = 2 + self.slots
        self.slots += 1
        outer = self.scope
        self.scope = {**outer, node.variable: slot}
        condition = self.build(node.condition) if node.condition is not None else None
        body = self.build(node.body)
        self.scope = outer
        cost = 1 + body.cost + (condition.cost if condition else 0)
        if node.macro in ("all", "exists"):
            run = comprehensions.quantifier(over.run, slot, body.run, cost, decisive=node.macro == "exists")
            return CompiledNode("bool", run, 1 + over.cost)
        if node.macro == "exists_one":
            return CompiledNode("bool", comprehensions.exists_one(over.run, slot, body.run, cost), 1 + over.cost)
        if node.macro == "filter":
            run = comprehensions.filter_map(over.run, slot, body.run, None, cost)
        else:
            run = comprehensions.filter_map(over.run, slot, condition.run if condition else None, body.run, cost)
        return CompiledNode("list", run, 1 + over.cost)

    def overloaded(
        self, node: Node, name: str, overloads: Sequence[Overload], operands: Sequence[CompiledNode]
    ) -> CompiledNode:
        types = [operand.type for operand in operands]
        fitting = [row for row in overloads if row.accepts(types)]
        if not fitting:
            return self.never(node, f"{name} is not defined for {' and '.join(types)}", *operands)
        run = operators.call(name, fitting, [operand.run for operand in operands])
        return CompiledNode(
            _union_type({row.result for row in fitting}), run, 1 + sum(operand.cost for operand in operands)
        )

    def folded(self, node: Call, code: CompiledNode) -> CompiledNode:
        """The value itself for a constructor of a literal, which must be one; a pattern is compiled ahead."""
        argument = node.args[-1] if node.args else None
        if code.type == NEVER or not isinstance(argument, Literal) or not isinstance(argument.value, str):
            return code
        try:
            value = _CONSTANTS[node.function](argument.value)
        except EvaluationError as error:
            raise self.error(argument, str(error)) from None
        return code if node.function == "matches" else CompiledNode(code.type, lambda _frame: value)


_CONSTANTS: Mapping[str, Callable[[str], object]] = {
    "quantity": to_quantity,
    "semver": to_semver,
    "matches": standard_functions.regex,
}


def _union_type(types: set[str]) -> str:
    return next(iter(types)) if len(types) == 1 else DYN


def _comparable(left: str, right: str, equality: bool) -> bool:
    if NEVER in (left, right):
        return False
    if not equality and not {left, right} <= _ORDERED:
        return False
    pair = {left, right}
    return DYN in pair or len(pair) == 1 or pair in ({"string", "quantity"}, {"string", "semver"})


_ORDERED = frozenset({"bool", "int", "uint", "double", "string", "quantity", "semver", DYN})


def _conversion_hint(left: str, right: str) -> str:
    numbers = {"int", "uint", "double"}
    return "; convert one of them, such as int(...)" if {left, right} <= numbers else ""


def _signatures(overloads: Sequence[Overload]) -> str:
    return ", ".join(row.signature.partition(" ->")[0] for row in overloads)


def _undeclared(name: str, member: bool) -> str:
    twins = FUNCTIONS.get((name, not member), ())
    if twins:
        return f"{name}() is called as {_signatures(twins[:2])}"
    if not member and name in ("timestamp", "duration", "bytes"):
        return f"{name}() is not part of this dialect"
    return f"undeclared function {name}()"
