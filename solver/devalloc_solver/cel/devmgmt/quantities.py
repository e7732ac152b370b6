"""Kubernetes' functions for quantities and semantic versions.

Where a member of a quantity or version takes another one, its text does as well: ``device.vram.isLessThan('8Gi')``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from devalloc.api.quantity import NANO, Quantity, QuantityError
from devalloc.api.semver import SemVer
from devalloc_solver.cel.devmgmt.functions import Overload, overload
from devalloc_solver.cel.devmgmt.standard_functions import integer
from devalloc_solver.cel.devmgmt.values import precedence, to_quantity, to_semver
from devalloc_solver.cel.errors import EvaluationError


def _is_quantity(text: str) -> bool:
    try:
        to_quantity(text)
    except EvaluationError:
        return False
    return True


def _is_semver(text: str) -> bool:
    try:
        to_semver(text)
    except EvaluationError:
        return False
    return True


def _quantity(value: Quantity | str | int) -> Quantity:
    if isinstance(value, Quantity):
        return value
    return to_quantity(value) if isinstance(value, str) else Quantity(value * NANO)


def _semver(value: SemVer | str) -> SemVer:
    return value if isinstance(value, SemVer) else to_semver(value)


def _compare_quantities(left: Quantity, right: Quantity | str) -> int:
    other = _quantity(right).nano
    return (left.nano > other) - (left.nano < other)


def _compare_versions(left: SemVer, right: SemVer | str) -> int:
    one, other = precedence(left), precedence(_semver(right))
    return (one > other) - (one < other)


def _as_integer(value: Quantity) -> int:
    units = value.as_integer()
    if units is None:
        raise EvaluationError(f"the quantity {value} is no whole number")
    return integer(units)


def _sum(left: Quantity, right: Quantity | str | int, sign: int) -> Quantity:
    try:
        return left + _quantity(right) if sign > 0 else left - _quantity(right)
    except QuantityError as error:
        raise EvaluationError(f"the result {error}") from None


def _comparison(compare: Callable[[Any, Any], int], sign: int, left: Any, right: Any) -> bool:
    return compare(left, right) == sign


def _comparisons() -> list[Overload]:
    rows: list[Overload] = []
    pairs: list[tuple[str, str, Callable[[Any, Any], int]]] = [
        ("quantity", "quantity", _compare_quantities),
        ("quantity", "string", _compare_quantities),
        ("semver", "semver", _compare_versions),
        ("semver", "string", _compare_versions),
    ]
    for receiver, argument, compare in pairs:
        rows += [
            overload(f"{receiver}.compareTo({argument}) -> int", compare, "-1, 0 or 1"),
            overload(f"{receiver}.isGreaterThan({argument}) -> bool", partial(_comparison, compare, 1)),
            overload(f"{receiver}.isLessThan({argument}) -> bool", partial(_comparison, compare, -1)),
        ]
    return rows


FUNCTIONS = (
    overload("quantity(string) -> quantity", to_quantity, "a literal that is not a quantity is invalid"),
    overload("isQuantity(string) -> bool", _is_quantity),
    overload("semver(string) -> semver", to_semver, "a literal that is not a version is invalid"),
    overload("isSemver(string) -> bool", _is_semver),
    *_comparisons(),
    overload("quantity.sign() -> int", lambda value: (value.nano > 0) - (value.nano < 0), "-1, 0 or 1"),
    overload("quantity.isInteger() -> bool", lambda value: value.as_integer() is not None),
    overload("quantity.asInteger() -> int", _as_integer, "an error when it has a fraction"),
    overload("quantity.asApproximateFloat() -> double", lambda value: value.nano / NANO),
    *(
        row
        for argument in ("quantity", "string", "int")
        for row in (
            overload(f"quantity.add({argument}) -> quantity", lambda a, b: _sum(a, b, 1)),
            overload(f"quantity.sub({argument}) -> quantity", lambda a, b: _sum(a, b, -1)),
        )
    ),
    overload("semver.major() -> int", lambda version: integer(precedence(version)[0])),
    overload("semver.minor() -> int", lambda version: integer(precedence(version)[1])),
    overload("semver.patch() -> int", lambda version: integer(precedence(version)[2])),
)
