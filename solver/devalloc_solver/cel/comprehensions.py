"""Comprehensions: what all, exists, map, filter, sortBy, cel.bind and the like expand to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any

from devalloc_solver.cel.environment import Environment, Run
from devalloc_solver.cel.errors import EvaluationError
from devalloc_solver.cel.operators import conditional
from devalloc_solver.cel.syntax_tree import (
    Call,
    Comprehension,
    ListOf,
    Literal,
    MapOf,
    Name,
    Node,
    children,
    is_binding,
)
from devalloc_solver.cel.values import LISTS, MAPS, Frame, from_key

if TYPE_CHECKING:
    from devalloc_solver.cel.build import VariableScope

Build = Callable[[Node, "VariableScope"], Run]

_UNSET = object()


class _FailedAccumulator:
    """An accumulator whose last step failed; reading it fails again, until something absorbs that."""

    __slots__ = ("error",)

    def __init__(self, error: EvaluationError) -> None:
        self.error = error


def compile_comprehension(node: Comprehension, scope: VariableScope, build: Build, environment: Environment) -> Run:
    """The closure of a comprehension; ``all``, ``exists``, ``map`` and ``filter`` need no accumulator."""
    if is_binding(node):
        return _binding(node, scope, build)
    variables = scope.new_slot(), scope.new_slot()
    inner = scope.with_variable(node.variable, _reader(variables[0]))
    if node.second_variable:
        inner = inner.with_variable(node.second_variable, _reader(variables[1]))
    loop = _Loop(build(node.range, scope), variables, bool(node.second_variable), environment)
    if (body := _quantified(node)) is not None:
        return _quantifier(loop, 1 + cost_of(body), build(body, inner), _is_literal(node.start, False))
    if (appended := _appended_value(node)) is not None:
        value, condition = appended
        weight = 1 + cost_of(value) + (cost_of(condition) if condition else 0)
        return _collect_into_list(loop, weight, build(value, inner), build(condition, inner) if condition else None)
    return _general_loop(node, scope, inner, build, loop)


@dataclass(frozen=True, slots=True)
class _Loop:
    """What is gone through, and the slots of the variables."""

    source: Run
    slots: tuple[int, int]
    pairs: bool
    environment: Environment

    def items(self, frame: Frame) -> Iterator[tuple[Any, Any]]:
        """Elements or keys; with two variables index and element, or key and value."""
        value = self.source(frame)
        kind = type(value)
        if kind in LISTS:
            return iter(enumerate(value)) if self.pairs else zip(value, repeat(None))
        if kind in MAPS:
            return ((from_key(key), item) for key, item in list(value.items()))
        raise self.environment.no_overload("comprehension", value)


def _general_loop(node: Comprehension, scope: VariableScope, inner: VariableScope, build: Build, loop: _Loop) -> Run:
    """The general case: an accumulator, and a step that gives its next value."""
    accumulator, (first, second) = scope.new_slot(), loop.slots
    held = _accumulator(accumulator)
    step_scope = inner.with_variable(node.accumulator, held)
    start, result = build(node.start, scope), build(node.result, scope.with_variable(node.accumulator, held))
    condition, step = build(node.condition, step_scope), _step(node, step_scope, build, accumulator, loop.environment)
    weight = 1 + cost_of(node.condition) + cost_of(node.step)

    def run(frame: Frame) -> Any:
        items = loop.items(frame)
        slots = frame.slots
        slots[accumulator] = start(frame)
        for slots[first], slots[second] in items:
            frame.spend(weight)
            if condition(frame) is not True:
                break
            try:
                slots[accumulator] = step(frame)
            except EvaluationError as error:
                slots[accumulator] = _FailedAccumulator(error)
        return result(frame)

    return run


def _quantified(node: Comprehension) -> Node | None:
    """The body of ``all`` and ``exists``: ``accumulator && body`` or ``accumulator || body``, until that is decided."""
    match node.condition, node.step, node.result:
        case (
            Call(function="@not_strictly_false"),
            Call(function="_&&_" | "_||_", arguments=(Name(name=name), body)),
            Name(name=result),
        ) if name == result == node.accumulator:
            return body
    return None


def _quantifier(loop: _Loop, weight: int, body: Run, decisive: bool) -> Run:
    """``exists``, which a true body decides, or ``all``, which a false one does, like || and &&."""
    first, second = loop.slots
    no_overload = loop.environment.no_overload

    def run(frame: Frame) -> bool:
        failure: EvaluationError | None = None
        slots = frame.slots
        for slots[first], slots[second] in loop.items(frame):
            frame.spend(weight)
            try:
                value: object = body(frame)
            except EvaluationError as error:
                failure = failure or error
                continue
            if value is decisive:
                return decisive
            if failure is None and type(value) is not bool:
                failure = no_overload("@condition", value)
        if failure is not None:
            raise failure
        return not decisive

    return run


def _reader(slot: int) -> Run:
    return lambda frame: frame.slots[slot]


def _accumulator(slot: int) -> Run:
    def read(frame: Frame) -> Any:
        value = frame.slots[slot]
        if type(value) is _FailedAccumulator:
            raise value.error
        return value

    return read


def _binding(node: Comprehension, scope: VariableScope, build: Build) -> Run:
    """``cel.bind``: the value is computed when it is first used."""
    slot, start = scope.new_slot(), build(node.start, scope)

    def read(frame: Frame) -> Any:
        value = frame.slots[slot]
        if value is _UNSET:
            try:
                value = frame.slots[slot] = start(frame)
            except EvaluationError as error:
                value = frame.slots[slot] = _FailedAccumulator(error)
        if type(value) is _FailedAccumulator:
            raise value.error
        return value

    result = build(node.result, scope.with_variable(node.accumulator, read))

    def run(frame: Frame) -> Any:
        frame.slots[slot] = _UNSET
        return result(frame)

    return run


def cost_of(node: Node) -> int:
    """What a part of an expression costs besides what its operations count: its nodes, but for literals. Of a
    comprehension only what comes before its turns and after them: each turn counts its own.
    """
    if isinstance(node, Literal):
        return 0
    if isinstance(node, Comprehension):
        return cost_of(node.range) + cost_of(node.start) + cost_of(node.result)
    return 1 + sum(map(cost_of, children(node)))


def _appended_value(node: Comprehension) -> tuple[Node, Node | None] | None:
    """(value, condition) when the comprehension only collects values into a list, as map and filter do."""
    always = _is_literal(node.condition, True)
    empty = isinstance(node.start, ListOf) and not node.start.elements
    plain = isinstance(node.result, Name) and node.result.name == node.accumulator
    if not (always and empty and plain):
        return None
    match node.step:
        case Call(function="_?_:_", arguments=(condition, Call() as addition, Name(name=unchanged))) if (
            unchanged == node.accumulator and (value := _addition(node, addition)) is not None
        ):
            return value, condition
        case Call() as addition if (value := _addition(node, addition)) is not None:
            return value, None
    return None


def _is_literal(node: Node, value: bool) -> bool:
    return isinstance(node, Literal) and node.value is value


def _addition(node: Comprehension, call: Call) -> Node | None:
    match call:
        case Call(function="_+_", arguments=(Name(name=name), ListOf(elements=(value,), optional=optional))) if (
            name == node.accumulator and not optional
        ):
            return value
    return None


def _collect_into_list(loop: _Loop, weight: int, value: Run, condition: Run | None) -> Run:
    first, second = loop.slots

    def run(frame: Frame) -> list[Any]:
        slots, values = frame.slots, []
        for slots[first], slots[second] in loop.items(frame):
            frame.spend(weight)
            if condition is not None:
                wanted = condition(frame)
                if wanted is False:
                    continue
                if wanted is not True:
                    raise loop.environment.no_overload("@condition", wanted)
            values.append(value(frame))
        return values

    return run


def _step(node: Comprehension, scope: VariableScope, build: Build, accumulator: int, environment: Environment) -> Run:
    """The step of a comprehension; entries are put into the map that only the comprehension itself holds."""
    step = node.step
    if isinstance(step, Call) and step.function == "_?_:_":
        condition, addition, otherwise = step.arguments
        insert = _insertion(node, addition, scope, build, accumulator, environment)
        if insert is not None and isinstance(otherwise, Name) and otherwise.name == node.accumulator:
            return conditional(environment, build(condition, scope), insert, build(otherwise, scope))
    return _insertion(node, step, scope, build, accumulator, environment) or build(step, scope)


def _insertion(
    node: Comprehension, step: Node, scope: VariableScope, build: Build, accumulator: int, environment: Environment
) -> Run | None:
    if not (isinstance(step, Call) and step.function == "cel.@mapInsert"):
        return None
    if not (isinstance(node.start, MapOf) and isinstance(step.arguments[0], Name)):
        return None
    held = _accumulator(accumulator)
    parts = [build(argument, scope) for argument in step.arguments[1:]]

    def insert(frame: Frame) -> dict[Any, Any]:
        entries: dict[Any, Any] = held(frame)
        values = [part(frame) for part in parts]
        if len(values) == 2:
            added = {environment.map_key(values[0]): values[1]}
        elif type(values[0]) in MAPS:
            added = values[0]
        else:
            raise environment.no_overload("cel.@mapInsert", entries, values[0])
        for key, value in added.items():
            if frame.look_up(key) in entries:
                raise EvaluationError(f"insert failed: key {from_key(key)} already exists")
            entries[key] = value
        return entries

    return insert
