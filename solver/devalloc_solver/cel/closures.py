"""Compile a syntax tree to nested closures that evaluate it.

Each closure takes a Frame and returns a value or raises EvaluationError. An environment says what is special about a
dialect.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from devalloc_solver.cel.budget import Budget
from devalloc_solver.cel.comprehensions import VariableScope, compile_comprehension
from devalloc_solver.cel.environment import Environment, Run
from devalloc_solver.cel.errors import CompileError, EvaluationError
from devalloc_solver.cel.operators import OPERATORS
from devalloc_solver.cel.registry import Function, Implementation
from devalloc_solver.cel.syntax_tree import Call, Comprehension, ListOf, Literal, MapOf, Name, Node, Select
from devalloc_solver.cel.values import Frame, OptionalValue, TypeValue, from_key, short_text

_PURE = frozenset(("quantity", "semver", "ip", "cidr", "url", "duration", "timestamp"))
_PURE_COST = 10**6


def build(root: Node, environment: Environment) -> tuple[Run, int]:
    """The closure of a whole expression and the number of slots that its Frame needs. Raises CompileError."""
    scope = VariableScope()
    return _Builder(environment).run(root, scope), scope.count[0]


class _Builder:
    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def run(self, node: Node, scope: VariableScope) -> Run:
        match node:
            case Literal(value=value):
                return lambda _: value
            case Name():
                return self._name(node, scope)
            case Select():
                return self._select(node, scope)
            case Call():
                return self._call(node, scope)
            case ListOf():
                return self._list(node, scope)
            case MapOf():
                return self._map(node, scope)
            case Comprehension():
                return compile_comprehension(node, scope, self.run, self._environment)

    def _name(self, node: Name, scope: VariableScope) -> Run:
        local = scope.slots.get(node.name)
        if local is not None:
            return local
        variable = self._environment.variables.get(node.name)
        if variable is not None:
            return variable
        kind = TypeValue(node.name)
        return lambda _: kind

    def _select(self, node: Select, scope: VariableScope) -> Run:
        direct = self._environment.direct(node, scope.slots)
        if direct is not None:
            return direct
        name, operand = node.field, self.run(node.operand, scope)
        take = self._environment.has if node.test else self._environment.get
        return lambda frame: take(operand(frame), name)

    def _list(self, node: ListOf, scope: VariableScope) -> Run:
        if all(isinstance(element, Literal) for element in node.elements) and not node.optional:
            constant = tuple(element.value for element in node.elements if isinstance(element, Literal))
            return lambda _: constant
        parts = [(self.run(element, scope), at in node.optional) for at, element in enumerate(node.elements)]

        def items(frame: Frame) -> list[Any]:
            values = []
            for part, optional in parts:
                value = part(frame)
                if not optional:
                    values.append(value)
                elif _checked_optional(value).present:
                    values.append(value.value)
            return values

        return items

    def _map(self, node: MapOf, scope: VariableScope) -> Run:
        parts = [(self.run(entry.key, scope), self.run(entry.value, scope), entry.optional) for entry in node.entries]
        map_key, unique = self._environment.map_key, self._environment.unique_keys

        def entries(frame: Frame) -> dict[Any, Any]:
            mapping: dict[Any, Any] = {}
            for key_of, value_of, optional in parts:
                key, value = map_key(frame.look_up(key_of(frame))), value_of(frame)
                if optional:
                    if not _checked_optional(value).present:
                        continue
                    value = value.value
                if unique and key in mapping:
                    raise EvaluationError(f"the map has the key {short_text(from_key(key))} twice")
                mapping[key] = value
            return mapping

        return entries

    # -- calls --------------------------------------------------------------------------------------------------------

    def _call(self, node: Call, scope: VariableScope) -> Run:
        direct = self._environment.direct(node, scope.slots)
        if direct is not None:
            return direct
        if node.function in ("_&&_", "_||_"):
            return OPERATORS[node.function](self._environment, *[self.run(part, scope) for part in _chain(node)])
        arguments = [self.run(argument, scope) for argument in node.arguments]
        if node.function in ("_==_", "_!=_") and (compared := self._literal_equality(node, arguments[0])) is not None:
            return compared
        if node.function == "@in" and (member := self._member_of_literals(node, arguments[0])) is not None:
            return member
        operator = OPERATORS.get(node.function)
        if operator is not None:
            return operator(self._environment, *arguments)
        function = self._environment.functions.get(node.function)
        if function is None:
            raise CompileError(f"the function {node.function!r} is not supported")
        called = _function_call(function, node, arguments)
        if node.function in _PURE and all(isinstance(argument, Literal) for argument in node.arguments):
            return _constant(called)
        return called

    def _literal_equality(self, node: Call, compared: Run) -> Run | None:
        """``x == 'text'``, ``x != 1``: two values of one of these types compare alike in every dialect."""
        literal = node.arguments[1]
        if not isinstance(literal, Literal) or type(literal.value) not in (str, int):
            return None
        constant, wanted = literal.value, node.function == "_==_"
        kind = type(constant)
        otherwise = self._environment.equal if wanted else self._environment.unequal

        def same(frame: Frame) -> bool:
            value = compared(frame)
            return (value == constant) is wanted if type(value) is kind else otherwise(frame, value, constant)

        return same

    def _member_of_literals(self, node: Call, searched: Run) -> Run | None:
        """``x in [literals of one kind]`` by a set."""
        items = node.arguments[1]
        if not isinstance(items, ListOf) or items.optional:
            return None
        values = [item.value for item in items.elements if isinstance(item, Literal)]
        kinds = {type(value) for value in values}
        if len(values) != len(items.elements) or len(kinds) != 1 or not kinds <= {str, int}:
            return None
        kind, members, contains = kinds.pop(), frozenset(values), self._environment.contains

        def member(frame: Frame) -> bool:
            value = searched(frame)
            return value in members if type(value) is kind else contains(frame, values, value)

        return member


def _chain(node: Call) -> Iterator[Node]:
    """The operands of nested calls of one operator, ``(a && b) && c``, from the left."""
    for argument in node.arguments:
        if isinstance(argument, Call) and argument.function == node.function:
            yield from _chain(argument)
        else:
            yield argument


def _function_call(function: Function, node: Call, arguments: list[Run]) -> Run:
    literals = [argument.value for argument in node.arguments[1:] if isinstance(argument, Literal)]
    if len(literals) == len(arguments) - 1 and (of_text := function.of_text(*literals)) is not None:
        return _text_call(function, of_text, arguments[0], literals)
    match arguments:
        case [only]:
            return lambda frame: function(frame, only(frame))
        case [first, second]:
            return lambda frame: function(frame, first(frame), second(frame))
    return lambda frame: function(frame, *[argument(frame) for argument in arguments])


def _text_call(function: Function, of_text: Implementation, receiver: Run, literals: list[Any]) -> Run:
    """A call of which only the receiver is not known before, mostly a text."""

    def call(frame: Frame) -> Any:
        value = receiver(frame)
        return of_text(frame, value) if type(value) is str else function(frame, value, *literals)

    return call


def _constant(called: Run) -> Run:
    """The value of a constant, computed now; an error stays one of the evaluation."""
    try:
        value = called(Frame(None, Budget(_PURE_COST), 0))
    except EvaluationError:
        return called
    return lambda _: value


def _checked_optional(value: Any) -> OptionalValue:
    if type(value) is not OptionalValue:
        raise EvaluationError("an element marked with a question mark is not optional")
    return value
