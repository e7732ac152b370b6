"""Operators that need not evaluate all operands, or that compare: ``&&``, ``?:``, ``==``, ``<``, ``[]``, ``orValue``.

Each function here takes the environment and the closures of the parts, and returns that of the whole.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from devalloc_solver.cel.environment import Environment, Run
from devalloc_solver.cel.errors import EvaluationError
from devalloc_solver.cel.field_access import get_optional
from devalloc_solver.cel.values import Frame, OptionalValue


def _logical(function: str, decisive: bool) -> Callable[..., Run]:
    """``&&``, which false decides, or ``||``, which true does, whatever errors beside it."""
    other = not decisive

    def joined(environment: Environment, *operands: Run) -> Run:
        def decide(frame: Frame) -> bool:
            failure: EvaluationError | None = None
            for operand in operands:
                try:
                    value: object = operand(frame)
                except EvaluationError as error:
                    failure = failure or error
                    continue
                if value is decisive:
                    return decisive
                if value is not other and failure is None:
                    failure = environment.no_overload(function, value)
            if failure is not None:
                raise failure
            return other

        return decide

    return joined


def conditional(environment: Environment, condition: Run, yes: Run, no: Run) -> Run:
    """``condition ? yes : no``."""

    def choose(frame: Frame) -> Any:
        chosen = condition(frame)
        if chosen is True:
            return yes(frame)
        if chosen is False:
            return no(frame)
        raise environment.no_overload("_?_:_", chosen)

    return choose


def _not(environment: Environment, operand: Run) -> Run:
    def negation(frame: Frame) -> bool:
        value = operand(frame)
        if value is True or value is False:
            return not value
        raise environment.no_overload("!_", value)

    return negation


def _not_strictly_false(_: Environment, operand: Run) -> Run:
    """False only for false: an error may still be absorbed by a later element."""

    def undecided(frame: Frame) -> bool:
        try:
            return operand(frame) is not False
        except EvaluationError:
            return True

    return undecided


def _equal(environment: Environment, left: Run, right: Run) -> Run:
    equal = environment.equal
    return lambda frame: equal(frame, left(frame), right(frame))


def _unequal(environment: Environment, left: Run, right: Run) -> Run:
    unequal = environment.unequal
    return lambda frame: unequal(frame, left(frame), right(frame))


def _order(function: str, holds: Callable[[Any, Any], Any]) -> Callable[..., Run]:
    def ordering(environment: Environment, left: Run, right: Run) -> Run:
        order_keys = environment.order_keys

        def ordered(frame: Frame) -> bool:
            first, second = left(frame), right(frame)
            if type(first) is str or type(first) is bytes:
                frame.pass_over(len(first))
            one, another = order_keys(frame, function, first, second)
            return bool(holds(one, another))

        return ordered

    return ordering


def _index(environment: Environment, container: Run, key: Run) -> Run:
    get = environment.get
    return lambda frame: get(container(frame), frame.look_up(key(frame)))


def _optional_index(_: Environment, container: Run, key: Run) -> Run:
    return lambda frame: get_optional(container(frame), frame.look_up(key(frame)))


def _or_optional(environment: Environment, left: Run, right: Run) -> Run:
    def first_present(frame: Frame) -> Any:
        value = left(frame)
        if type(value) is not OptionalValue:
            raise environment.no_overload("or", value)
        if value.present:
            return value
        other = right(frame)
        if type(other) is not OptionalValue:
            raise environment.no_overload("or", value, other)
        return other

    return first_present


def _or_value(environment: Environment, left: Run, right: Run) -> Run:
    def value_or_default(frame: Frame) -> Any:
        value = left(frame)
        if type(value) is not OptionalValue:
            raise environment.no_overload("orValue", value)
        return value.value if value.present else right(frame)

    return value_or_default


OPERATORS: dict[str, Callable[..., Run]] = {
    "_&&_": _logical("_&&_", False),
    "_||_": _logical("_||_", True),
    "_?_:_": conditional,
    "!_": _not,
    "@not_strictly_false": _not_strictly_false,
    "_==_": _equal,
    "_!=_": _unequal,
    "_<_": _order("_<_", operator.lt),
    "_<=_": _order("_<=_", operator.le),
    "_>_": _order("_>_", operator.gt),
    "_>=_": _order("_>=_", operator.ge),
    "_[_]": _index,
    "_[?_]": _optional_index,
    "_?._": _optional_index,
    "or": _or_optional,
    "orValue": _or_value,
}
"""by their names in the syntax tree"""
