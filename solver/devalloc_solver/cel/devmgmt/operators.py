"""Closures for operators, field access, literals and calls: everything but macros."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from devalloc.api.semver import SemVer
from devalloc_solver.cel.devmgmt.functions import Overload
from devalloc_solver.cel.devmgmt.values import (
    CelMap,
    Uint,
    charge_lookup,
    contains,
    equal,
    order_keys,
    short_text,
    type_name,
    version_cost,
)
from devalloc_solver.cel.errors import EvaluationError

Frame = list[Any]
"""``[attributes, budget, variable, variable, ...]`` of one evaluation."""
Run = Callable[[Frame], Any]

_PLAIN = frozenset({bool, int, str, float, Uint})
_SIZED = (str, list, CelMap)


def missing(name: str) -> EvaluationError:
    return EvaluationError(f"the device has no attribute {short_text(name)}")


def attribute(name: str) -> Run:
    """``device.name``"""

    def run(frame: Frame) -> Any:
        try:
            return frame[0][name]
        except KeyError:
            raise missing(name) from None

    return run


def has_attribute(name: str) -> Run:
    """``has(device.name)`` and ``'name' in device``"""
    return lambda frame: name in frame[0]


def whole_device(frame: Frame) -> CelMap:
    """``device`` as a value."""
    attributes, budget = frame[0], frame[1]
    budget.spend(len(attributes))
    device = CelMap()
    for name in sorted(attributes):
        device.put(name, attributes[name])
    return device


def field(operand: Run, name: str, test: bool) -> Run:
    """``operand.name`` and ``has(operand.name)``"""

    def run(frame: Frame) -> Any:
        value = operand(frame)
        if not isinstance(value, CelMap):
            raise EvaluationError(f"a {type_name(value)} has no fields, so no {short_text(name)}")
        return value.has(name) if test else value.get(name)

    return run


def index(operand: Run, key: Run) -> Run:
    """``operand[key]``"""

    def run(frame: Frame) -> Any:
        value, at = operand(frame), key(frame)
        if isinstance(value, CelMap):
            return value.get(charge_lookup(at, frame[1]))
        if not isinstance(value, list):
            raise EvaluationError(f"a {type_name(value)} has no elements")
        if type(at) not in (int, Uint):
            raise EvaluationError(f"the index of a list is an int, not {type_name(at)}")
        if not 0 <= at < len(value):
            raise EvaluationError(f"the list has no element {at}; it has {len(value)}")
        return value[at]

    return run


def equals(left: Run, right: Run, wanted: bool) -> Run:
    """``left == right`` when ``wanted``, else ``left != right``"""

    def run(frame: Frame) -> bool:
        return equal(left(frame), right(frame), frame[1]) is wanted

    return run


def compares(left: Run, right: Run, order: Callable[[Any, Any], Any]) -> Run:
    """``left < right`` and its like"""

    def run(frame: Frame) -> bool:
        one, other = order_keys(left(frame), right(frame), frame[1])
        return bool(order(one, other))

    return run


def member(wanted: Run, within: Run) -> Run:
    """``wanted in within``"""

    def run(frame: Frame) -> bool:
        value, collection = wanted(frame), within(frame)
        if isinstance(collection, CelMap):
            return collection.has(charge_lookup(value, frame[1]))
        if not isinstance(collection, list):
            raise EvaluationError(f"'in' looks into a list or a map, not into a {type_name(collection)}")
        return contains(collection, value, frame[1])

    return run


def logical(operands: Sequence[Run], *, decisive: bool) -> Run:
    """``a || b || ...`` (decided by a true one) and ``a && b && ...`` (by a false one), whatever errors beside it."""
    symbol = "||" if decisive else "&&"

    def run(frame: Frame) -> bool:
        failure: EvaluationError | None = None
        for operand in operands:
            try:
                value: object = operand(frame)
            except EvaluationError as error:
                failure = failure or error
                continue
            if value is decisive:
                return decisive
            if value is not (not decisive) and failure is None:
                failure = EvaluationError(f"{symbol} combines booleans, not a {type_name(value)}")
        if failure is not None:
            raise failure
        return not decisive

    return run


def negation(operand: Run) -> Run:
    """``!operand``"""

    def run(frame: Frame) -> bool:
        value = operand(frame)
        if value is True:
            return False
        if value is False:
            return True
        raise EvaluationError(f"! negates a boolean, not a {type_name(value)}")

    return run


def conditional(condition: Run, then: Run, otherwise: Run) -> Run:
    """``condition ? then : otherwise``"""

    def run(frame: Frame) -> Any:
        value = condition(frame)
        if value is True:
            return then(frame)
        if value is False:
            return otherwise(frame)
        raise EvaluationError(f"the condition of ?: is a boolean, not a {type_name(value)}")

    return run


def list_of(items: Sequence[Run]) -> Run:
    """``[a, b]``"""
    return lambda frame: [item(frame) for item in items]


def map_of(entries: Sequence[tuple[Run, Run]]) -> Run:
    """``{a: b}``"""

    def run(frame: Frame) -> CelMap:
        value = CelMap()
        for key, item in entries:
            value.put(charge_lookup(key(frame), frame[1]), item(frame))
        return value

    return run


def _size(value: object) -> int:
    """What it costs a function to take a value: its length."""
    if isinstance(value, SemVer):
        return version_cost(value)
    return len(value) if isinstance(value, _SIZED) else 0


def call(name: str, overloads: Sequence[Overload], operands: Sequence[Run]) -> Run:
    """A function or arithmetic operator: the overload for the types of the values."""
    chosen: dict[tuple[type, ...], Overload] = {}

    def choose(values: Sequence[object]) -> Overload:
        types = [type_name(value) for value in values]
        for candidate in overloads:
            if candidate.accepts(types):
                return candidate
        raise EvaluationError(f"{name} is not defined for {' and '.join(types) or 'no argument'}")

    def run(frame: Frame) -> Any:
        values = [operand(frame) for operand in operands]
        key = tuple(map(type, values))
        function = chosen.get(key)
        if function is None:
            function = chosen[key] = choose(values)
        if function.budgeted:
            return function.run(*values, frame[1])
        size = sum(map(_size, values))
        if size:
            frame[1].spend(size)
        return function.run(*values)

    return run
