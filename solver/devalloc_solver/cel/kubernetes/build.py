"""Compile a type-checked syntax tree to nested closures that evaluate it.

Each closure takes a Frame and returns a value or raises EvaluationError.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from devalloc_solver.cel.budget import Budget
from devalloc_solver.cel.kubernetes import comprehensions, field_access
from devalloc_solver.cel.kubernetes.errors import CompileError, EvaluationError
from devalloc_solver.cel.kubernetes.field_access import Run
from devalloc_solver.cel.kubernetes.lazy_operators import OPERATORS
from devalloc_solver.cel.kubernetes.library.registry import Function
from devalloc_solver.cel.kubernetes.library.table import FUNCTIONS
from devalloc_solver.cel.kubernetes.reads import is_optional, path_of
from devalloc_solver.cel.kubernetes.syntax_tree import Call, Comprehension, ListOf, Literal, MapOf, Name, Node, Select
from devalloc_solver.cel.kubernetes.values import (
    Frame,
    OptionalValue,
    TypeValue,
    contains,
    equal,
    equal_or_false,
    map_key,
)

_PURE = frozenset(("quantity", "semver", "ip", "cidr", "url", "duration", "timestamp"))
_PURE_COST = 10**6


@dataclass(slots=True)
class VariableScope:
    """The variables of comprehensions in force: name to slot; and how many slots there are in all."""

    slots: dict[str, Run] = field(default_factory=dict)
    count: list[int] = field(default_factory=lambda: [0])

    def with_variable(self, name: str, read: Run) -> VariableScope:
        return VariableScope({**self.slots, name: read}, self.count)

    def new_slot(self) -> int:
        self.count[0] += 1
        return self.count[0] - 1


def build(root: Node, allow_multiple: bool) -> tuple[Run, int]:
    """The closure of a whole expression and the number of slots that its Frame needs. Raises CompileError."""
    scope = VariableScope()
    return _Builder(allow_multiple).run(root, scope), scope.count[0]


class _Builder:
    def __init__(self, allow_multiple: bool) -> None:
        self._variables: dict[str, Run] = {
            "device.driver": lambda frame: frame.device.driver,
            "device.attributes": field_access.device_attributes,
            "device.capacity": field_access.device_capacity,
            "device.allowMultipleAllocations": lambda frame: frame.device.allow_multiple,
        }
        fields = {name.removeprefix("device."): read for name, read in self._variables.items()}
        if not allow_multiple:
            del fields["allowMultipleAllocations"]
        self._variables["device"] = lambda frame: {name: read(frame) for name, read in fields.items()}

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
                return comprehensions.compile_comprehension(node, scope, self.run)

    def _name(self, node: Name, scope: VariableScope) -> Run:
        local = scope.slots.get(node.name)
        if local is not None:
            return local
        variable = self._variables.get(node.name)
        if variable is not None:
            return variable
        kind = TypeValue(node.name)
        return lambda _: kind

    def _select(self, node: Select, scope: VariableScope) -> Run:
        name, test = node.field, node.test
        direct = _path_reader(node)
        if direct is not None:
            return direct
        operand = self._operand(node.operand, scope)
        if test:
            return lambda frame: field_access.has(operand(frame), name)
        return lambda frame: field_access.get(operand(frame), name)

    def _operand(self, node: Node, scope: VariableScope) -> Run:
        return _path_reader(node) or self.run(node, scope)

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

        def entries(frame: Frame) -> dict[Any, Any]:
            mapping: dict[Any, Any] = {}
            for key_of, value_of, optional in parts:
                key, value = map_key(frame.look_up(key_of(frame))), value_of(frame)
                if optional:
                    if not _checked_optional(value).present:
                        continue
                    value = value.value
                mapping[key] = value
            return mapping

        return entries

    # -- calls --------------------------------------------------------------------------------------------------------

    def _call(self, node: Call, scope: VariableScope) -> Run:
        if node.function == "_[_]":
            direct = _path_reader(node)
            if direct is not None:
                return direct
        arguments = [self.run(argument, scope) for argument in node.arguments]
        operator = OPERATORS.get(node.function)
        if operator is not None:
            return operator(*arguments)
        function = FUNCTIONS.get(node.function)
        if function is None:
            raise CompileError(f"the function {node.function!r} is not supported")
        if node.function in ("_==_", "_!=_"):
            return _equality(node, arguments)
        if node.function == "@in" and (members := _member_of_literals(node, arguments)) is not None:
            return members
        called = _function_call(function, arguments)
        if node.function in _PURE and all(isinstance(argument, Literal) for argument in node.arguments):
            return _constant(called)
        return called


def _path_reader(node: Node) -> Run | None:
    """How to read a place in the device without going through its maps; None for anything else."""
    path = path_of(node)
    return None if path is None or is_optional(node) else field_access.reader_of_path(path)


def _function_call(function: Function, arguments: list[Run]) -> Run:
    match arguments:
        case [only]:
            return lambda frame: function(frame, only(frame))
        case [first, second]:
            return lambda frame: function(frame, first(frame), second(frame))
    return lambda frame: function(frame, *[argument(frame) for argument in arguments])


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


def _equality(node: Call, arguments: list[Run]) -> Run:
    wanted = node.function == "_==_"
    left, right = arguments
    if isinstance(node.arguments[1], Literal) and isinstance(node.arguments[1].value, str):
        text = node.arguments[1].value

        def same_text(frame: Frame) -> bool:
            value = left(frame)
            if type(value) is str:
                return (value == text) is wanted
            return equal(frame, value, text) if wanted else not equal_or_false(frame, value, text)

        return same_text
    if wanted:
        return lambda frame: equal(frame, left(frame), right(frame))
    return lambda frame: not equal_or_false(frame, left(frame), right(frame))


def _member_of_literals(node: Call, arguments: list[Run]) -> Run | None:
    """``x in [literals of one kind]`` by a set."""
    items = node.arguments[1]
    if not isinstance(items, ListOf) or items.optional:
        return None
    if not items.elements:
        return lambda _: False  # nothing is in it, not even what cannot be computed
    values = [item.value for item in items.elements if isinstance(item, Literal)]
    kinds = {type(value) for value in values}
    if len(values) != len(items.elements) or len(kinds) != 1 or not kinds <= {str, int}:
        return None
    kind, members, searched = kinds.pop(), frozenset(values), arguments[0]

    def member(frame: Frame) -> bool:
        value = searched(frame)
        return value in members if type(value) is kind else contains(frame, values, value)

    return member
