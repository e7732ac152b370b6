"""Comprehensions: what all, exists, map, filter, sortBy, cel.bind and the like expand to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any

from devalloc_solver.cel.kubernetes.errors import EvaluationError
from devalloc_solver.cel.kubernetes.field_access import Run
from devalloc_solver.cel.kubernetes.lazy_operators import conditional
from devalloc_solver.cel.kubernetes.reads import is_binding
from devalloc_solver.cel.kubernetes.syntax_tree import Call, Comprehension, ListOf, Literal, MapOf, Name, Node, children
from devalloc_solver.cel.kubernetes.values import LISTS, MAPS, Frame, from_key, map_key, no_overload

if TYPE_CHECKING:
    from devalloc_solver.cel.kubernetes.build import VariableScope

Build = Callable[[Node, "VariableScope"], Run]

_UNSET = object()


class _FailedAccumulator:
    """An accumulator whose last step failed; reading it fails again, until something absorbs that."""

    __slots__ = ("error",)

    def __init__(self, error: EvaluationError) -> None:
        self.error = error


def compile_comprehension(node: Comprehension, scope: VariableScope, build: Build) -> Run:
    """The closure of a comprehension."""
    if is_binding(node):
        return _binding(node, scope, build)
    variables = scope.new_slot(), scope.new_slot()
    inner = scope.with_variable(node.variable, _reader(variables[0]))
    if node.second_variable:
        inner = inner.with_variable(node.second_variable, _reader(variables[1]))
    source, pairs = build(node.range, scope), bool(node.second_variable)
    weight = 1 + cost_per_turn(node.condition) + cost_per_turn(node.step)
    appended = _appended_value(node)
    if appended is None:
        return _general_loop(node, scope, inner, build, source, variables, weight)
    value, condition = appended
    tested = build(condition, inner) if condition else None
    return _collect_into_list(source, pairs, variables, weight, build(value, inner), tested)


def _general_loop(
    node: Comprehension,
    scope: VariableScope,
    inner: VariableScope,
    build: Build,
    source: Run,
    variables: tuple[int, int],
    weight: int,
) -> Run:
    """The general case: an accumulator, and a step that gives its next value."""
    accumulator, (first, second) = scope.new_slot(), variables
    held = _accumulator(accumulator)
    step_scope = inner.with_variable(node.accumulator, held)
    start, result = build(node.start, scope), build(node.result, scope.with_variable(node.accumulator, held))
    condition, step = build(node.condition, step_scope), _step(node, step_scope, build, accumulator)
    pairs = bool(node.second_variable)

    def run(frame: Frame) -> Any:
        items = _loop_items(source(frame), pairs)
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


def _loop_items(value: Any, pairs: bool) -> Iterator[tuple[Any, Any]]:
    """What is gone through: elements or keys; with two variables index and element, or key and value."""
    kind = type(value)
    if kind in LISTS:
        return iter(enumerate(value)) if pairs else zip(value, repeat(None))
    if kind in MAPS:
        return ((from_key(key), item) for key, item in list(value.items()))
    raise no_overload("comprehension", value)


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


def cost_per_turn(node: Node) -> int:
    """The cost of one turn: its nodes. Of a comprehension inside only what comes before its turns and after them: these
    count their own.
    """
    if isinstance(node, Literal):
        return 0
    if isinstance(node, Comprehension):
        return cost_per_turn(node.range) + cost_per_turn(node.start) + cost_per_turn(node.result)
    return 1 + sum(map(cost_per_turn, children(node)))


def _appended_value(node: Comprehension) -> tuple[Node, Node | None] | None:
    """(value, condition) when the comprehension only collects values into a list, as map and filter do."""
    always = isinstance(node.condition, Literal) and node.condition.value is True
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


def _addition(node: Comprehension, call: Call) -> Node | None:
    match call:
        case Call(function="_+_", arguments=(Name(name=name), ListOf(elements=(value,), optional=optional))) if (
            name == node.accumulator and not optional
        ):
            return value
    return None


def _collect_into_list(
    source: Run, pairs: bool, variables: tuple[int, int], weight: int, value: Run, condition: Run | None
) -> Run:
    first, second = variables

    def run(frame: Frame) -> list[Any]:
        slots, values = frame.slots, []
        for slots[first], slots[second] in _loop_items(source(frame), pairs):
            frame.spend(weight)
            if condition is not None:
                wanted = condition(frame)
                if wanted is False:
                    continue
                if wanted is not True:
                    raise no_overload("_?_:_", wanted)
            values.append(value(frame))
        return values

    return run


def _step(node: Comprehension, scope: VariableScope, build: Build, accumulator: int) -> Run:
    """The step of a comprehension; entries are put into the map that only the comprehension itself holds."""
    step = node.step
    if isinstance(step, Call) and step.function == "_?_:_":
        condition, addition, otherwise = step.arguments
        insert = _insertion(node, addition, scope, build, accumulator)
        if insert is not None and isinstance(otherwise, Name) and otherwise.name == node.accumulator:
            return conditional(build(condition, scope), insert, build(otherwise, scope))
    return _insertion(node, step, scope, build, accumulator) or build(step, scope)


def _insertion(node: Comprehension, step: Node, scope: VariableScope, build: Build, accumulator: int) -> Run | None:
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
            added = {map_key(values[0]): values[1]}
        elif type(values[0]) in MAPS:
            added = values[0]
        else:
            raise no_overload("cel.@mapInsert", entries, values[0])
        for key, value in added.items():
            if frame.look_up(key) in entries:
                raise EvaluationError(f"insert failed: key {from_key(key)} already exists")
            entries[key] = value
        return entries

    return insert
