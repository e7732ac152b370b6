"""Operators that need not evaluate all operands: ``&&``, ``||``, ``?:``, ``orValue``.

Each function here takes the closures of the parts and returns that of the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from devalloc_solver.cel.kubernetes import field_access
from devalloc_solver.cel.kubernetes.errors import EvaluationError
from devalloc_solver.cel.kubernetes.field_access import Run
from devalloc_solver.cel.kubernetes.values import Frame, OptionalValue, no_overload


def _short_circuit(function: str, decisive: bool) -> Callable[[Run, Run], Run]:
    """``&&``, which false decides, or ``||``, which true does; a side that decides absorbs an error of the other."""
    other = not decisive

    def joined(left: Run, right: Run) -> Run:
        def decide(frame: Frame) -> Any:
            try:
                first = left(frame)
            except EvaluationError:
                if right(frame) is decisive:
                    return decisive
                raise
            if first is decisive:
                return decisive
            second = right(frame)
            if second is decisive:
                return decisive
            if first is other and second is other:
                return other
            raise no_overload(function, first, second)

        return decide

    return joined


def conditional(condition: Run, yes: Run, no: Run) -> Run:
    """``condition ? yes : no``."""

    def choose(frame: Frame) -> Any:
        chosen = condition(frame)
        if chosen is True:
            return yes(frame)
        if chosen is False:
            return no(frame)
        raise no_overload("_?_:_", chosen)

    return choose


def _not(operand: Run) -> Run:
    def negation(frame: Frame) -> bool:
        value = operand(frame)
        if value is True or value is False:
            return not value
        raise no_overload("!_", value)

    return negation


def _not_strictly_false(operand: Run) -> Run:
    """False only for false: an error may still be absorbed by a later element."""

    def undecided(frame: Frame) -> bool:
        try:
            return operand(frame) is not False
        except EvaluationError:
            return True

    return undecided


def _index(container: Run, key: Run) -> Run:
    return lambda frame: field_access.get(container(frame), frame.look_up(key(frame)))


def _optional_index(container: Run, key: Run) -> Run:
    return lambda frame: field_access.get_optional(container(frame), frame.look_up(key(frame)))


def _or_optional(left: Run, right: Run) -> Run:
    def first_present(frame: Frame) -> Any:
        value = left(frame)
        if type(value) is not OptionalValue:
            raise no_overload("or", value)
        if value.present:
            return value
        other = right(frame)
        if type(other) is not OptionalValue:
            raise no_overload("or", value, other)
        return other

    return first_present


def _or_value(left: Run, right: Run) -> Run:
    def value_or_default(frame: Frame) -> Any:
        value = left(frame)
        if type(value) is not OptionalValue:
            raise no_overload("orValue", value)
        return value.value if value.present else right(frame)

    return value_or_default


OPERATORS: dict[str, Callable[..., Run]] = {
    "_&&_": _short_circuit("_&&_", False),
    "_||_": _short_circuit("_||_", True),
    "_?_:_": conditional,
    "!_": _not,
    "@not_strictly_false": _not_strictly_false,
    "_[_]": _index,
    "_[?_]": _optional_index,
    "_?._": _optional_index,
    "or": _or_optional,
    "orValue": _or_value,
}
"""by the names that the parser gives them"""
