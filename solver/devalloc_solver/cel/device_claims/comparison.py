"""How values compare, and what two different types have to do with each other (S6).

===========  =================================================================
CEL type     compares with
===========  =================================================================
bool         bool
int          int
uint         uint
double       double
string       string; quantity and semver, when it is the text of one
null_type    null (== and != only)
list, map    their like (== and != only)
quantity     quantity, string: by amount
semver       semver, string: by precedence
===========  =================================================================
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from devalloc.api.quantity import Quantity, QuantityError
from devalloc.api.semver import SemVer, SemVerError
from devalloc_solver.cel import values
from devalloc_solver.cel.errors import EvaluationError
from devalloc_solver.cel.values import LISTS, LONG, MAPS, Frame, UInt, precedence

_PLAIN = frozenset({bool, int, UInt, float, str})
_KEYS = frozenset({str, int})


def type_name(value: object) -> str:
    """The name of the type of ``value``, such as ``quantity``."""
    return values.type_name(value).rpartition(".")[2].lower()


@lru_cache(maxsize=4096)
def to_quantity(text: str) -> Quantity:
    """Read a quantity. Raises EvaluationError."""
    try:
        return Quantity.parse(text)
    except QuantityError as error:
        raise EvaluationError(f"the string {error}") from None


@lru_cache(maxsize=4096)
def to_semver(text: str) -> SemVer:
    """Read a semantic version. Raises EvaluationError."""
    try:
        return SemVer.parse(text)
    except SemVerError as error:
        raise EvaluationError(f"the string {error}") from None


def equal(frame: Frame, left: Any, right: Any) -> bool:
    """``left == right``. Raises EvaluationError for two types that do not compare."""
    kind = type(left)
    if kind is type(right) and kind in _PLAIN:
        if kind is str and len(left) > LONG:
            frame.spend(len(left) // LONG)
        return left == right  # type: ignore[no-any-return]
    if left is None and right is None:
        return True
    if kind in LISTS and type(right) in LISTS:
        return len(left) == len(right) and _decided(frame, zip(left, right, strict=True), by=False)
    if kind in MAPS and type(right) in MAPS:
        if len(left) != len(right) or not all(frame.look_up(key) in right for key in left):
            return False
        return _decided(frame, ((left[key], right[key]) for key in left), by=False)
    keys = _keys(frame, left, right)
    if keys is None:
        raise EvaluationError(f"{type_name(left)} and {type_name(right)} are different types and never compare")
    return bool(keys[0] == keys[1])


def unequal(frame: Frame, left: Any, right: Any) -> bool:
    """``left != right``. Raises EvaluationError for two types that do not compare."""
    return not equal(frame, left, right)


def order_keys(frame: Frame, _: str, left: Any, right: Any) -> tuple[Any, Any]:
    """Two keys that order as ``left`` and ``right`` do. Raises EvaluationError for types without a common order."""
    keys = _keys(frame, left, right)
    if keys is None:
        raise EvaluationError(f"{type_name(left)} and {type_name(right)} have no order between them")
    return keys


def contains(frame: Frame, items: Iterable[Any], wanted: Any) -> bool:
    """``wanted in items``: as ``items.exists(x, x == wanted)``, so an element of another type is an error unless
    another one is equal."""
    return _decided(frame, ((item, wanted) for item in items), by=True)


def map_key(key: Any) -> Any:
    """The form in which a ``dict`` holds a key: those of two types are two keys. Raises EvaluationError for others."""
    kind = type(key)
    if kind in _KEYS:
        return key
    if kind is bool or kind is UInt:
        return kind, key
    raise EvaluationError(f"a {type_name(key)} cannot be the key of a map; keys are bool, int, uint or string")


def _keys(frame: Frame, left: Any, right: Any) -> tuple[Any, Any] | None:
    """What compares in place of two values: themselves, amounts or precedences; None for types that do not compare."""
    kind, other = type(left), type(right)
    if kind is other:
        if kind in _PLAIN:
            return left, right
        if kind is Quantity:
            return left.nano, right.nano
        if kind is SemVer:
            frame.spend(_reading_cost(left) + _reading_cost(right))
            return precedence(left), precedence(right)
    elif kind is str and other in (Quantity, SemVer):
        keys = _keys(frame, right, left)
        return keys and (keys[1], keys[0])
    elif other is str:
        frame.spend(len(right) // LONG)
        if kind is Quantity:
            return left.nano, to_quantity(right).nano
        if kind is SemVer:
            return precedence(left), precedence(to_semver(right))
    return None


def _reading_cost(version: SemVer) -> int:
    """What it costs to read the precedence of a version; nothing for one of usual length."""
    return len(version.text) // 4 if len(version.text) > LONG else 0


def _decided(frame: Frame, pairs: Iterable[tuple[Any, Any]], *, by: bool) -> bool:
    """Whether a pair is equal (decided ``by`` one that is), or all are (by one that is not), whatever errors beside."""
    failure: EvaluationError | None = None
    for left, right in pairs:
        frame.spend(1)
        try:
            if equal(frame, left, right) is by:
                return by
        except EvaluationError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return not by
