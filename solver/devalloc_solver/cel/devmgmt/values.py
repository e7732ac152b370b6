"""The values of the language, how they compare, and what two different types have to do with each other (S6).

===========  ======================  =================================================================
CEL type     Python                  compares with
===========  ======================  =================================================================
bool         bool                    bool
int          int (64 bits)           int
uint         Uint (64 bits)          uint
double       float                   double
string       str                     string; quantity and semver, when it is the text of one
null_type    None                    null (== and != only)
list, map    list, CelMap            their like (== and != only)
quantity     Quantity                quantity, string: by amount
semver       SemVer                  semver, string: by precedence
===========  ======================  =================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from devalloc.api.quantity import Quantity, QuantityError
from devalloc.api.semver import Precedence, SemVer, SemVerError
from devalloc_solver.cel.budget import Budget
from devalloc_solver.cel.errors import EvaluationError

MAX_INT = 2**63 - 1
MIN_INT = -(2**63)
MAX_UINT = 2**64 - 1


class Uint(int):
    """An unsigned integer: a type of its own, never equal to an int."""

    __slots__ = ()


class CelMap:
    """A map: keys are bool, int, uint or string, and keys of two types are two keys."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[tuple[type, object], object] = {}

    def put(self, key: object, value: object) -> None:
        """Add an entry. Raises EvaluationError for a key of another type and for a key that is there already."""
        entry = (_key_type(key), key)
        if entry in self._entries:
            raise EvaluationError(f"the map has the key {short_text(key)} twice")
        self._entries[entry] = value

    def get(self, key: object) -> object:
        """The value of ``key``. Raises EvaluationError when there is none."""
        try:
            return self._entries[_key_type(key), key]
        except KeyError:
            raise EvaluationError(f"the map has no key {short_text(key)}") from None

    def has(self, key: object) -> bool:
        return (_key_type(key), key) in self._entries

    def __iter__(self) -> Iterator[object]:
        return (key for _, key in self._entries)

    def __len__(self) -> int:
        return len(self._entries)


_NAMES: dict[type, str] = {
    bool: "bool",
    int: "int",
    Uint: "uint",
    float: "double",
    str: "string",
    type(None): "null_type",
    list: "list",
    CelMap: "map",
    Quantity: "quantity",
    SemVer: "semver",
}
_PLAIN = frozenset({bool, int, Uint, float, str})
_LONG = 64
"""Texts up to this length compare for free; longer ones cost a step per ``_LONG`` characters."""


def version_cost(version: SemVer) -> int:
    """What it costs to read the precedence of a version; nothing for one of usual length."""
    return len(version.text) // 4 if len(version.text) > _LONG else 0


def charge_lookup(key: object, budget: Budget) -> object:
    """``key`` as it is, with what it costs to compare it to the same key of a map spent."""
    if type(key) is str and len(key) > _LONG:
        budget.spend(len(key) // _LONG)
    return key


def type_name(value: object) -> str:
    """The CEL name of the type of ``value``."""
    return _NAMES.get(type(value), type(value).__name__)


def short_text(value: object) -> str:
    """A short text of ``value`` for messages."""
    return shorten(repr(value) if isinstance(value, str) else str(value))


def shorten(text: str) -> str:
    """``text``, cut to what fits into a message."""
    return text if len(text) <= 60 else text[:57] + "..."


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


@lru_cache(maxsize=4096)
def precedence(version: SemVer) -> Precedence:
    """What orders versions; build metadata has no part in it."""
    return version.precedence


def equal(left: Any, right: Any, budget: Budget) -> bool:
    """``left == right``. Raises EvaluationError for two types that do not compare."""
    kind = type(left)
    if kind is type(right):
        if kind is type(None):
            return True
        if kind is list:
            return _equal_lists(left, right, budget)
        if kind is CelMap:
            return _equal_maps(left, right, budget)
    keys = _keys(left, right, budget)
    if keys is None:
        raise EvaluationError(f"{type_name(left)} and {type_name(right)} are different types and never compare")
    return bool(keys[0] == keys[1])


def order_keys(left: Any, right: Any, budget: Budget) -> tuple[Any, Any]:
    """Two keys that order as ``left`` and ``right`` do. Raises EvaluationError for types without a common order."""
    keys = _keys(left, right, budget)
    if keys is None:
        raise EvaluationError(f"{type_name(left)} and {type_name(right)} have no order between them")
    return keys


def contains(items: list[Any], wanted: object, budget: Budget) -> bool:
    """``wanted in items``: as ``items.exists(x, x == wanted)``, so an element of another type is an error unless
    another one is equal."""
    budget.spend(len(items))
    failure: EvaluationError | None = None
    for item in items:
        try:
            if equal(item, wanted, budget):
                return True
        except EvaluationError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return False


def _keys(left: Any, right: Any, budget: Budget) -> tuple[Any, Any] | None:
    """What compares in place of two values: themselves, amounts or precedences; None for types that do not compare."""
    kind, other = type(left), type(right)
    if kind is other:
        if kind is str and len(left) > _LONG:
            budget.spend(len(left) // _LONG)
        if kind in _PLAIN:
            return left, right
        if kind is Quantity:
            return left.nano, right.nano
        if kind is SemVer:
            budget.spend(version_cost(left) + version_cost(right))
            return precedence(left), precedence(right)
    elif kind is str:
        budget.spend(len(left) // _LONG)
        if other is Quantity:
            return to_quantity(left).nano, right.nano
        if other is SemVer:
            return precedence(to_semver(left)), precedence(right)
    elif other is str and kind in (Quantity, SemVer):
        keys = _keys(right, left, budget)
        return keys and (keys[1], keys[0])
    return None


def _equal_lists(left: list[Any], right: list[Any], budget: Budget) -> bool:
    if len(left) != len(right):
        return False
    return _all_equal(zip(left, right, strict=True), budget)


def _equal_maps(left: CelMap, right: CelMap, budget: Budget) -> bool:
    if len(left) != len(right) or not all(right.has(charge_lookup(key, budget)) for key in left):
        return False
    return _all_equal(((left.get(key), right.get(key)) for key in left), budget)


def _all_equal(pairs: Iterator[tuple[object, object]], budget: Budget) -> bool:
    failure: EvaluationError | None = None
    for one, another in pairs:
        budget.spend(1)
        try:
            if not equal(one, another, budget):
                return False
        except EvaluationError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return True


def _key_type(key: object) -> type:
    kind = type(key)
    if kind not in (bool, int, Uint, str):
        raise EvaluationError(f"a {type_name(key)} is no key of a map; keys are bool, int, uint or string")
    return kind
