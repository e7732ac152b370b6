"""Closures that read values out of other values: the device, indexes, fields, and their optional forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from devalloc.api.quantity import Quantity
from devalloc_solver.cel.kubernetes.errors import EvaluationError
from devalloc_solver.cel.kubernetes.library.quantities import CelQuantity
from devalloc_solver.cel.kubernetes.reads import DevicePath
from devalloc_solver.cel.kubernetes.values import (
    LISTS,
    MAPS,
    NOTHING,
    Frame,
    MapWithDefault,
    OptionalValue,
    map_key,
    no_overload,
)

Run = Callable[[Frame], Any]

ABSENT = object()
_EMPTY: dict[str, Any] = {}


def device_attributes(frame: Frame) -> MapWithDefault:
    """``device.attributes`` as a value."""
    return MapWithDefault({domain: dict(values) for domain, values in frame.device.attributes.items()})


def device_capacity(frame: Frame) -> MapWithDefault:
    """``device.capacity`` as a value."""
    return MapWithDefault({domain: _amounts(values) for domain, values in frame.device.capacity.items()})


def _amounts(values: Mapping[str, Quantity]) -> dict[str, CelQuantity]:
    return {name: CelQuantity(quantity.nano) for name, quantity in values.items()}


def reader_of_path(path: DevicePath) -> Run | None:
    """How to read a place in the device directly; None for a whole map. A missing identifier is an error."""
    domain, name = path.domain, path.id
    if domain is None:
        return None
    if path.kind == "attribute":
        if name is None:
            return lambda frame: dict(frame.device.attributes.get(domain, _EMPTY))

        def attribute(frame: Frame) -> Any:
            try:
                return frame.device.attributes[domain][name]
            except KeyError:
                raise EvaluationError(f"no such key: {name}") from None

        return attribute
    if name is None:
        return lambda frame: _amounts(frame.device.capacity.get(domain, _EMPTY))

    def amount(frame: Frame) -> CelQuantity:
        try:
            return CelQuantity(frame.device.capacity[domain][name].nano)
        except KeyError:
            raise EvaluationError(f"no such key: {name}") from None

    return amount


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
