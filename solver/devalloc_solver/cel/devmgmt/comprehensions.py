"""Closures for the comprehension macros: all, exists, exists_one, filter, map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from devalloc_solver.cel.devmgmt.operators import Frame, Run
from devalloc_solver.cel.devmgmt.values import CelMap, type_name
from devalloc_solver.cel.errors import EvaluationError


def _elements(value: object) -> Sequence[Any]:
    if isinstance(value, list):
        return value
    if isinstance(value, CelMap):
        return list(value)
    raise EvaluationError(f"a macro goes through a list or the keys of a map, not through a {type_name(value)}")


def quantifier(over: Run, slot: int, body: Run, cost: int, decisive: bool) -> Run:
    """``over.exists(x, body)`` (decided by a true one) and ``over.all(x, body)`` (by a false one), like || and &&."""

    def run(frame: Frame) -> bool:
        failure: EvaluationError | None = None
        for element in _elements(over(frame)):
            frame[1].spend(cost)
            frame[slot] = element
            try:
                value: object = body(frame)
            except EvaluationError as error:
                failure = failure or error
                continue
            if value is decisive:
                return decisive
            if value is not (not decisive) and failure is None:
                failure = _not_a_boolean(value)
        if failure is not None:
            raise failure
        return not decisive

    return run


def exists_one(over: Run, slot: int, body: Run, cost: int) -> Run:
    """``over.exists_one(x, body)``: an error anywhere is an error."""

    def run(frame: Frame) -> bool:
        count = 0
        for element in _elements(over(frame)):
            frame[1].spend(cost)
            frame[slot] = element
            count += _boolean(body(frame))
        return count == 1

    return run


def filter_map(over: Run, slot: int, condition: Run | None, body: Run | None, cost: int) -> Run:
    """``over.filter(x, condition)`` without a body, ``over.map(x, [condition,] body)`` with one."""

    def run(frame: Frame) -> list[Any]:
        elements = []
        for element in _elements(over(frame)):
            frame[1].spend(cost)
            frame[slot] = element
            if condition is None or _boolean(condition(frame)):
                elements.append(element if body is None else body(frame))
        return elements

    return run


def _boolean(value: object) -> bool:
    if value is True or value is False:
        return bool(value)
    raise _not_a_boolean(value)


def _not_a_boolean(value: object) -> EvaluationError:
    return EvaluationError(f"the condition of a macro is a boolean, not a {type_name(value)}")
