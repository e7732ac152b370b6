"""Arithmetic, size and membership."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from devalloc_solver.cel.errors import EvaluationError
from devalloc_solver.cel.registry import (
    ANY,
    BYTES,
    DOUBLE,
    INT,
    LIST,
    MAP,
    STRING,
    UINT,
    Implementation,
    Overload,
)
from devalloc_solver.cel.values import (
    Frame,
    checked_int,
    checked_uint,
    contains,
    map_key,
)


def _ints(compute: Callable[[int, int], int]) -> Implementation:
    return lambda _, left, right: checked_int(compute(left, right))


def _uints(compute: Callable[[int, int], int]) -> Implementation:
    return lambda _, left, right: checked_uint(compute(int(left), int(right)))


def quotient(left: int, right: int) -> int:
    """Truncated towards zero."""
    if right == 0:
        raise EvaluationError("division by zero")
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _remainder(left: int, right: int) -> int:
    if right == 0:
        raise EvaluationError("modulus by zero")
    if right == -1:
        checked_int(-left)  # the quotient overflows, which Kubernetes does not let pass here either
    remainder = abs(left) % abs(right)
    return -remainder if left < 0 else remainder


def _divide(_: Frame, left: float, right: float) -> float:
    if right:
        return left / right
    if left == 0 or math.isnan(left):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1, right)


def _concatenated(frame: Frame, left: Any, right: Any) -> Any:
    frame.pass_over(len(left) + len(right))
    return left + right


def _joined_lists(frame: Frame, left: Any, right: Any) -> list[Any]:
    frame.pass_over(len(left) + len(right))
    return [*left, *right]


def _in_map(frame: Frame, key: Any, entries: dict[Any, Any]) -> bool:
    try:
        return map_key(frame.look_up(key)) in entries
    except EvaluationError:
        return False


def _size(_: Frame, value: Any) -> int:
    return len(value)


FUNCTIONS: tuple[Overload, ...] = (
    ("_+_", (INT, INT), _ints(operator.add)),
    ("_+_", (UINT, UINT), _uints(operator.add)),
    ("_+_", (DOUBLE, DOUBLE), lambda _, left, right: left + right),
    ("_+_", (STRING, STRING), _concatenated),
    ("_+_", (BYTES, BYTES), _concatenated),
    ("_+_", (LIST, LIST), _joined_lists),
    ("_-_", (INT, INT), _ints(operator.sub)),
    ("_-_", (UINT, UINT), _uints(operator.sub)),
    ("_-_", (DOUBLE, DOUBLE), lambda _, left, right: left - right),
    ("_*_", (INT, INT), _ints(operator.mul)),
    ("_*_", (UINT, UINT), _uints(operator.mul)),
    ("_*_", (DOUBLE, DOUBLE), lambda _, left, right: left * right),
    ("_/_", (INT, INT), _ints(quotient)),
    ("_/_", (UINT, UINT), _uints(quotient)),
    ("_/_", (DOUBLE, DOUBLE), _divide),
    ("_%_", (INT, INT), _ints(_remainder)),
    ("_%_", (UINT, UINT), _uints(_remainder)),
    ("-_", (INT,), lambda _, value: checked_int(-value)),
    ("-_", (DOUBLE,), lambda _, value: -value),
    ("@in", (ANY, LIST), lambda frame, value, items: contains(frame, items, value)),
    ("@in", (ANY, MAP), _in_map),
    ("size", (STRING,), _size),
    ("size", (BYTES,), _size),
    ("size", (LIST,), _size),
    ("size", (MAP,), _size),
)
