"""Comprehensions: what all, exists, map, filter, sortBy, cel.bind and the like expand to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

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


Build = Callable[[Node, VariableScope], Run]

_UNSET = object()

TURN = 2
"""What a turn costs besides what stands in it."""


class _FailedAccumulator:
    """An accumulator whose last step failed; reading it fails again, until something absorbs that."""

    __slots__ = ("error",)

    def __init__(self, error: EvaluationError) -> None:
        self.error = error


def compile_comprehension(node: Comprehension, scope: VariableScope, build: Build, environment: Environment) -> Run:
    """The closure of a comprehension; ``all``, ``exists``, ``map`` and ``filter`` need no accumulator."""
    if is_binding(node):
        return _binding(node, scope, build)
    slot, items = scope.new_slot(), _items(build(node.range, scope), bool(node.second_variable), environment)
    if node.second_variable:
        inner = scope.with_variable(node.variable, _part_reader(slot, 0))
        inner = inner.with_variable(node.second_variable, _part_reader(slot, 1))
    else:
        inner = scope.with_variable(node.variable, _reader(slot))
    if (body := quantified(node)) is not None:
        decisive = _is_literal(node.start, False)
        weight = TURN + cost_of(body)
        turns = _quantifier(items, slot, weight, build(body, inner), decisive, environment)
        searched = _searched_in_texts(node, body, decisive)
        if searched is None:
            return turns
        what, texts = searched
        return _member_of_texts(build(what, scope), texts, decisive, weight, turns)
    if (appended := _appended_value(node)) is not None:
        value, condition = appended
        weight = TURN + cost_of(value) + (cost_of(condition) if condition else 0)
        tested = build(condition, inner) if condition else None
        return _collect_into_list(items, slot, weight, build(value, inner), tested, environment)
    accumulator = scope.new_slot()
    held = _accumulator(accumulator)
    step_scope = inner.with_variable(node.accumulator, held)
    return _general_loop(
        items,
        slot,
        1 + cost_of(node.condition) + cost_of(node.step),
        accumulator,
        build(node.start, scope),
        build(node.condition, step_scope),
        _step(node, step_scope, build, accumulator, environment),
        build(node.result, scope.with_variable(node.accumulator, held)),
    )


def _searched_in_texts(node: Comprehension, body: Node, decisive: bool) -> tuple[Node, frozenset[str]] | None:
    """What ``[texts].exists(x, x == what)`` or ``[texts].all(x, x != what)`` searches, and the texts."""
    wanted = "_==_" if decisive else "_!=_"
    if node.second_variable or not isinstance(node.range, ListOf) or node.range.optional:
        return None
    texts = [one.value for one in node.range.elements if isinstance(one, Literal) and type(one.value) is str]
    if len(texts) != len(node.range.elements) or not isinstance(body, Call) or body.function != wanted:
        return None
    left, right = body.arguments
    for variable, other in ((left, right), (right, left)):
        if isinstance(variable, Name) and variable.name == node.variable and not _names(other, node.variable):
            return other, frozenset(texts)
    return None


def _names(node: Node, name: str) -> bool:
    """Whether a name stands anywhere in a node."""
    return (isinstance(node, Name) and node.name == name) or any(_names(part, name) for part in children(node))


def _member_of_texts(searched: Run, texts: frozenset[str], decisive: bool, weight: int, turns: Run) -> Run:
    """The same by a set, where a text is searched; what compares with texts in another way is compared in turns."""

    def run(frame: Frame) -> Any:
        try:
            value = searched(frame)
        except EvaluationError:
            return turns(frame)
        if type(value) is not str:
            return turns(frame)
        frame.spend(weight)
        return (value in texts) is decisive

    return run


def _items(source: Run, pairs: bool, environment: Environment) -> Callable[[Frame], Iterable[Any]]:
    """What is gone through: elements or keys; with two variables pairs of index and element, or of key and value."""

    def items(frame: Frame) -> Iterable[Any]:
        value = source(frame)
        kind = type(value)
        if kind in LISTS:
            return enumerate(value) if pairs else value
        if kind in MAPS:
            return [(from_key(key), item) if pairs else from_key(key) for key, item in value.items()]
        raise environment.no_overload("comprehension", value)

    return items


def _general_loop(
    items: Callable[[Frame], Iterable[Any]],
    slot: int,
    weight: int,
    accumulator: int,
    start: Run,
    condition: Run,
    step: Run,
    result: Run,
) -> Run:
    """The general case: an accumulator, and a step that gives its next value."""

    def run(frame: Frame) -> Any:
        elements = items(frame)
        slots = frame.slots
        slots[accumulator] = start(frame)
        for slots[slot] in elements:
            frame.spend(weight)
            if condition(frame) is not True:
                break
            try:
                slots[accumulator] = step(frame)
            except EvaluationError as error:
                slots[accumulator] = _FailedAccumulator(error)
        return result(frame)

    return run


def quantified(node: Comprehension) -> Node | None:
    """The body of ``all`` and ``exists``: ``accumulator && body`` or ``accumulator || body``, until that is decided."""
    match node.condition, node.step, node.result:
        case (
            Call(function="@not_strictly_false"),
            Call(function="_&&_" | "_||_", arguments=(Name(name=name), body)),
            Name(name=result),
        ) if name == result == node.accumulator:
            return body
    return None


def _quantifier(
    items: Callable[[Frame], Iterable[Any]],
    slot: int,
    weight: int,
    body: Run,
    decisive: bool,
    environment: Environment,
) -> Run:
    """``exists``, which a true body decides, or ``all``, which a false one does, like || and &&."""

    def run(frame: Frame) -> bool:
        failure: EvaluationError | None = None
        slots, spend = frame.slots, frame.spend
        for slots[slot] in items(frame):
            spend(weight)
            try:
                value: object = body(frame)
            except EvaluationError as error:
                failure = failure or error
                continue
            if value is decisive:
                return decisive
            if failure is None and type(value) is not bool:
                failure = environment.no_overload("@condition", value)
        if failure is not None:
            raise failure
        return not decisive

    return run


def _reader(slot: int) -> Run:
    return lambda frame: frame.slots[slot]


def _part_reader(slot: int, part: int) -> Run:
    return lambda frame: frame.slots[slot][part]


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
    cost = 1
    for part in children(node):
        cost += cost_of(part)
    return cost


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


def _collect_into_list(
    items: Callable[[Frame], Iterable[Any]],
    slot: int,
    weight: int,
    value: Run,
    condition: Run | None,
    environment: Environment,
) -> Run:
    """``map`` and ``filter``, with or without a condition."""

    def run(frame: Frame) -> list[Any]:
        slots, spend, values = frame.slots, frame.spend, []
        for slots[slot] in items(frame):
            spend(weight)
            if condition is not None:
                wanted = condition(frame)
                if wanted is False:
                    continue
                if wanted is not True:
                    raise environment.no_overload("@condition", wanted)
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
