"""Lists and sets."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cmp_to_key, partial
from itertools import pairwise
from typing import Any

from devalloc_solver.cel.errors import EvaluationError
from devalloc_solver.cel.registry import ANY, INT, LIST, Implementation, Overload
from devalloc_solver.cel.values import (
    LISTS,
    LONG,
    NOTHING,
    Frame,
    OptionalValue,
    UInt,
    checked_int,
    checked_uint,
    contains,
    equal_or_false,
    order_keys,
    type_name,
)


def _comparing(items: list[Any]) -> int:
    """What it costs to compare each of ``items`` once to another one."""
    return len(items) + sum(len(item) // LONG for item in items if type(item) is str or type(item) is bytes)


def comparing_functions(
    equal: Callable[[Frame, Any, Any], bool], order_keys: Callable[[Frame, str, Any, Any], tuple[Any, Any]]
) -> tuple[Overload, ...]:
    """The functions of lists whose elements compare as a dialect says."""

    def is_sorted(frame: Frame, items: list[Any]) -> bool:
        frame.spend(_comparing(items))
        for left, right in pairwise(items):
            one, another = order_keys(frame, "isSorted", left, right)
            if one > another:
                return False
        return True

    def extreme(name: str, is_better: Callable[[Any, Any], Any]) -> Implementation:
        def best(frame: Frame, items: list[Any]) -> Any:
            if not items:
                raise EvaluationError(f"{name} called on empty list")
            frame.spend(_comparing(items))
            best_item = items[0]
            for item in items[1:]:
                if is_better(*order_keys(frame, name, item, best_item)):
                    best_item = item
            return best_item

        return best

    def index_of(frame: Frame, items: list[Any], value: Any) -> int:
        frame.spend(len(items))
        return next((index for index, item in enumerate(items) if equal(frame, item, value)), -1)

    def last_index_of(frame: Frame, items: list[Any], value: Any) -> int:
        frame.spend(len(items))
        return next((at for at in range(len(items) - 1, -1, -1) if equal(frame, items[at], value)), -1)

    return (
        ("isSorted", (LIST,), is_sorted),
        ("min", (LIST,), extreme("min", operator.lt)),
        ("max", (LIST,), extreme("max", operator.gt)),
        ("indexOf", (LIST, ANY), index_of),
        ("lastIndexOf", (LIST, ANY), last_index_of),
    )


def _sum(frame: Frame, items: list[Any]) -> Any:
    frame.spend(len(items))
    kind: Any = type(items[0]) if items else int
    is_number = kind in (int, UInt, float)
    if any(type(item) is not kind for item in items) or not (is_number or hasattr(kind, "total")):
        raise EvaluationError(f"sum() adds numbers of one type, not {' and '.join(sorted({*map(type_name, items)}))}")
    if not is_number:
        return kind.total(items)
    total: Any = kind(0)
    for item in items:
        total = total + item if kind is float else _checked(kind, int(total) + int(item))
    return total


def _checked(kind: type, value: int) -> int:
    return checked_uint(value) if kind is UInt else checked_int(value)


def _includes(frame: Frame, target: Any, value: Any) -> bool:
    if type(target) not in LISTS:
        return equal_or_false(frame, target, value)
    frame.spend(len(target))
    return any(equal_or_false(frame, item, value) for item in target)


def _slice(frame: Frame, items: list[Any], start: int, end: int) -> list[Any]:
    if start < 0 or end < 0 or start > end or end > len(items):
        raise EvaluationError(f"cannot slice({start}, {end}) a list of {len(items)}")
    frame.spend(end - start)
    return list(items[start:end])


def _flatten(frame: Frame, items: list[Any], depth: int = 1) -> list[Any]:
    if depth < 0:
        raise EvaluationError("flatten: the depth must not be negative")
    flat: list[Any] = []
    for item in items:
        frame.spend(1)
        if type(item) in LISTS and depth > 0:
            flat += _flatten(frame, item, depth - 1)
        else:
            flat.append(item)
    return flat


def _sorted_by(frame: Frame, items: list[Any], keys: list[Any]) -> list[Any]:
    if len(items) != len(keys):
        raise EvaluationError("sortBy: as many keys as elements are needed")
    if any(type(key) is not type(keys[0]) for key in keys):
        raise EvaluationError("list elements must have the same type")
    frame.spend(2 * _comparing(keys) * len(items).bit_length())
    pairs: list[tuple[Any, Any]] = list(zip(keys, items, strict=True))
    pairs.sort(key=cmp_to_key(partial(_by_key, frame)))
    return [item for _key, item in pairs]


def _by_key(frame: Frame, left: tuple[Any, Any], right: tuple[Any, Any]) -> int:
    one, another = order_keys(frame, "sort", left[0], right[0])
    return int(one > another) - int(one < another)


def _range(frame: Frame, count: int) -> list[int]:
    if count < 0:
        raise EvaluationError(f"lists.range: the size must not be negative, got {count}")
    frame.spend(count)
    return list(range(count))


def _reverse(frame: Frame, items: list[Any]) -> list[Any]:
    frame.spend(len(items))
    return list(reversed(items))


def _distinct(frame: Frame, items: list[Any]) -> list[Any]:
    distinct: list[Any] = []
    for item in items:
        if not contains(frame, distinct, item):
            distinct.append(item)
    return distinct


def _contains_all(frame: Frame, items: list[Any], wanted: list[Any]) -> bool:
    return all(contains(frame, items, item) for item in wanted)


def _intersects(frame: Frame, left: list[Any], right: list[Any]) -> bool:
    return any(contains(frame, right, item) for item in left)


def _equivalent(frame: Frame, left: list[Any], right: list[Any]) -> bool:
    return _contains_all(frame, left, right) and _contains_all(frame, right, left)


def _at(index: int) -> Callable[[Frame, list[Any]], OptionalValue]:
    return lambda _, items: OptionalValue(True, items[index]) if items else NOTHING


FUNCTIONS: tuple[Overload, ...] = (
    ("sum", (LIST,), _sum),
    ("includes", (ANY, ANY), _includes),
    ("slice", (LIST, INT, INT), _slice),
    ("flatten", (LIST,), _flatten),
    ("flatten", (LIST, INT), _flatten),
    ("sort", (LIST,), lambda frame, items: _sorted_by(frame, items, items)),
    ("@sortByAssociatedKeys", (LIST, LIST), _sorted_by),
    ("lists.range", (INT,), _range),
    ("reverse", (LIST,), _reverse),
    ("distinct", (LIST,), _distinct),
    ("first", (LIST,), _at(0)),
    ("last", (LIST,), _at(-1)),
    ("sets.contains", (LIST, LIST), _contains_all),
    ("sets.intersects", (LIST, LIST), _intersects),
    ("sets.equivalent", (LIST, LIST), _equivalent),
)
