"""Elements of maps, lists and optional values: ``x[key]``, ``x.field``, and their optional forms."""

from __future__ import annotations

from typing import Any

from devalloc_solver.cel.errors import EvaluationError
from devalloc_solver.cel.values import LISTS, MAPS, NOTHING, MapWithDefault, OptionalValue, map_key, no_overload

ABSENT = object()


def find(container: Any, key: Any) -> Any:
    """The element of a map or list at ``key``, or ABSENT. Raises EvaluationError for keys of a wrong type."""
    kind = type(container)
    if kind in MAPS:
        value = container.get(map_key(key), ABSENT)
        return {} if value is ABSENT and kind is MapWithDefault else value
    if kind in LISTS:
        index = _index(key)
        return container[index] if 0 <= index < len(container) else ABSENT
    return ABSENT


def _index(key: Any) -> int:
    if isinstance(key, bool) or not isinstance(key, (int, float)):
        raise EvaluationError("unsupported index type in list")
    if isinstance(key, float) and not key.is_integer():
        raise EvaluationError(f"unsupported index value {key} in list")
    return int(key)


def get(container: Any, key: Any) -> Any:
    """``container[key]``; of an optional container, an optional element."""
    if type(container) is OptionalValue:
        return get_optional(container, key)
    value = find(container, key)
    if value is ABSENT:
        if type(container) in LISTS:
            raise EvaluationError(f"index out of bounds: {key}")
        if type(container) in MAPS:
            raise EvaluationError(f"no such key: {key}")
        raise no_overload("_[_]", container, key)
    return value


def get_optional(container: Any, key: Any) -> OptionalValue:
    """``container[?key]``; what has no elements has none at ``key`` either."""
    if type(container) is OptionalValue:
        if not container.present:
            return NOTHING
        container = container.value
    value = find(container, key)
    return NOTHING if value is ABSENT else OptionalValue(True, value)


def has(container: Any, field: str) -> bool:
    """``has(container.field)``."""
    return get_optional(container, field).present
