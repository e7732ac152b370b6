"""Arithmetic, order, size, membership, and the parts of dates."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from datetime import datetime
from typing import Any

from devalloc_solver.cel.errors import EvaluationError
from devalloc_solver.cel.library.times import SECOND, Duration, Timestamp
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
    PARSING_COST,
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


def _quotient(left: int, right: int) -> int:
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


def _spans(sign: int) -> Implementation:
    return lambda _, left, right: Duration(left.nanoseconds + sign * right.nanoseconds)


def _moved(sign: int) -> Implementation:
    return lambda _, moment, span: moment.moved(sign * span.nanoseconds)


def _in_map(frame: Frame, key: Any, entries: dict[Any, Any]) -> bool:
    try:
        return map_key(frame.look_up(key)) in entries
    except EvaluationError:
        return False


def _size(_: Frame, value: Any) -> int:
    return len(value)


def _local(frame: Frame, moment: Timestamp, zone: str) -> datetime:
    frame.spend(4 * PARSING_COST)  # reads the zone's file when it is not kept
    return moment.local(zone)


def _date_part(name: str, part: Callable[[Any], int]) -> tuple[Overload, Overload]:
    return (
        (name, (Timestamp,), lambda _, moment: part(moment.local(None))),
        (name, (Timestamp, STRING), lambda frame, moment, zone: part(_local(frame, moment, zone))),
    )


FUNCTIONS: tuple[Overload, ...] = (
    ("_+_", (INT, INT), _ints(operator.add)),
    ("_+_", (UINT, UINT), _uints(operator.add)),
    ("_+_", (DOUBLE, DOUBLE), lambda _, left, right: left + right),
    ("_+_", (STRING, STRING), _concatenated),
    ("_+_", (BYTES, BYTES), _concatenated),
    ("_+_", (LIST, LIST), _joined_lists),
    ("_+_", (Duration, Duration), _spans(1)),
    ("_+_", (Timestamp, Duration), _moved(1)),
    ("_+_", (Duration, Timestamp), lambda _, span, moment: moment.moved(span.nanoseconds)),
    ("_-_", (INT, INT), _ints(operator.sub)),
    ("_-_", (UINT, UINT), _uints(operator.sub)),
    ("_-_", (DOUBLE, DOUBLE), lambda _, left, right: left - right),
    ("_-_", (Duration, Duration), _spans(-1)),
    ("_-_", (Timestamp, Duration), _moved(-1)),
    ("_-_", (Timestamp, Timestamp), lambda _, left, right: Duration(left.nanoseconds - right.nanoseconds)),
    ("_*_", (INT, INT), _ints(operator.mul)),
    ("_*_", (UINT, UINT), _uints(operator.mul)),
    ("_*_", (DOUBLE, DOUBLE), lambda _, left, right: left * right),
    ("_/_", (INT, INT), _ints(_quotient)),
    ("_/_", (UINT, UINT), _uints(_quotient)),
    ("_/_", (DOUBLE, DOUBLE), _divide),
    ("_%_", (INT, INT), _ints(_remainder)),
    ("_%_", (UINT, UINT), _uints(_remainder)),
    ("-_", (INT,), lambda _, value: checked_int(-value)),
    ("-_", (DOUBLE,), lambda _, value: -value),
    ("-_", (Duration,), lambda _, span: Duration(-span.nanoseconds)),
    ("@in", (ANY, LIST), lambda frame, value, items: contains(frame, items, value)),
    ("@in", (ANY, MAP), _in_map),
    ("size", (STRING,), _size),
    ("size", (BYTES,), _size),
    ("size", (LIST,), _size),
    ("size", (MAP,), _size),
    *_date_part("getFullYear", lambda moment: moment.year),
    *_date_part("getMonth", lambda moment: moment.month - 1),
    *_date_part("getDate", lambda moment: moment.day),
    *_date_part("getDayOfMonth", lambda moment: moment.day - 1),
    *_date_part("getDayOfWeek", lambda moment: moment.isoweekday() % 7),
    *_date_part("getDayOfYear", lambda moment: moment.timetuple().tm_yday - 1),
    *_date_part("getHours", lambda moment: moment.hour),
    *_date_part("getMinutes", lambda moment: moment.minute),
    *_date_part("getSeconds", lambda moment: moment.second),
    *_date_part("getMilliseconds", lambda moment: moment.microsecond // 1000),
    ("getHours", (Duration,), lambda _, span: _quotient(span.nanoseconds, 3600 * SECOND)),
    ("getMinutes", (Duration,), lambda _, span: _quotient(span.nanoseconds, 60 * SECOND)),
    ("getSeconds", (Duration,), lambda _, span: _quotient(span.nanoseconds, SECOND)),
    ("getMilliseconds", (Duration,), lambda _, span: _quotient(span.nanoseconds, 10**6)),
)
