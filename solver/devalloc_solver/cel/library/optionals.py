"""Optional values: ``device.attributes["d"].?model.orValue("")``."""

from __future__ import annotations

from typing import Any

from devalloc_solver.cel.errors import EvaluationError
from devalloc_solver.cel.library.times import Duration
from devalloc_solver.cel.registry import ANY, LIST, Overload
from devalloc_solver.cel.values import LISTS, MAPS, NOTHING, Frame, OptionalValue, UInt, type_name


def _value(_: Frame, optional: OptionalValue) -> Any:
    if not optional.present:
        raise EvaluationError("optional.none() dereference")
    return optional.value


def _of_non_zero(_: Frame, value: Any) -> OptionalValue:
    kind = type(value)
    if kind is Duration:
        return OptionalValue(True, value) if value.nanoseconds else NOTHING
    plain = kind in (bool, int, UInt, float, str, bytes, type(None)) or kind in LISTS or kind in MAPS
    return NOTHING if plain and not value else OptionalValue(True, value)


def _unwrap(frame: Frame, items: list[Any]) -> list[Any]:
    frame.spend(len(items))
    for item in items:
        if type(item) is not OptionalValue:
            raise EvaluationError(f"a {type_name(item)} is not optional")
    return [item.value for item in items if item.present]


FUNCTIONS: tuple[Overload, ...] = (
    ("optional.of", (ANY,), lambda _, value: OptionalValue(True, value)),
    ("optional.ofNonZeroValue", (ANY,), _of_non_zero),
    ("optional.none", (), lambda _: NOTHING),
    ("optional.unwrap", (LIST,), _unwrap),
    ("unwrapOpt", (LIST,), _unwrap),
    ("value", (OptionalValue,), _value),
    ("hasValue", (OptionalValue,), lambda _, optional: optional.present),
)
