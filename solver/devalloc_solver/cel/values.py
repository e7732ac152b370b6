"""Run-time values, their types and their equality.

| CEL                | here                                   |
|--------------------|----------------------------------------|
| int, uint          | ``int`` within 64 bits, ``UInt``       |
| double, bool, null | ``float``, ``bool``, ``None``          |
| string, bytes      | ``str``, ``bytes``                     |
| list               | ``list`` or ``tuple``                  |
| map                | ``dict``; its keys pass ``map_key``    |
| everything else    | the class of its own, with ``type_name`` |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from devalloc.api.quantity import Quantity
from devalloc.api.semver import Precedence, SemVer
from devalloc_solver.cel.budget import Budget
from devalloc_solver.cel.errors import EvaluationError

INT_MIN, INT_MAX, UINT_MAX = -(2**63), 2**63 - 1, 2**64 - 1

CHARACTERS_PER_UNIT = 10
"""Characters (or list elements) that one unit of cost lets an operation pass over, as in Kubernetes."""


PARSING_COST = 10
"""What it costs to read a value of a type of its own (address, URL, version, ...) out of a text, besides its length."""

LONG = 64
"""Texts up to this length are compared for nothing; longer ones cost a unit per so many characters."""


class Frame:
    """The state of one evaluation: the device, the cost that is left, and the variables of comprehensions."""

    __slots__ = ("budget", "device", "slots", "spend")

    def __init__(self, device: Any, budget: Budget, slots: int) -> None:
        self.device = device
        self.budget = budget
        self.spend = budget.spend
        self.slots: list[Any] = [None] * slots

    def look_up(self, key: Any) -> Any:
        """``key`` as it is, with what it costs to compare it to the same key of a map spent."""
        if type(key) is str and len(key) > LONG:
            self.spend(len(key) // LONG)
        return key

    def pass_over(self, size: int) -> None:
        """Spend what it costs to read or write ``size`` characters or elements."""
        self.spend(1 + size // CHARACTERS_PER_UNIT)


class UInt(int):
    """An unsigned integer, apart from ``int`` by its type only."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class TypeValue:
    """What ``type(x)`` gives, and what a type's name stands for."""

    type_name: ClassVar[str] = "type"
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class OptionalValue:
    """An optional value."""

    type_name: ClassVar[str] = "optional_type"
    present: bool
    value: Any = None


NOTHING = OptionalValue(False)


class MapWithDefault(dict[Any, Any]):
    """A map of which every key can be looked up: one that is absent gives an empty map."""

    __slots__ = ()


_KEYS = frozenset((str, int, UInt, float, type(None)))


def map_key(value: Any) -> Any:
    """The form in which a ``dict`` holds a key, since Python takes true for 1: that of a boolean is a pair of its type
    and itself. Raises EvaluationError for what cannot be a key.
    """
    kind = type(value)
    if kind in _KEYS:
        return value
    if kind is bool:
        return kind, value
    raise EvaluationError(f"unsupported key type: {type_name(value)}")


def from_key(key: Any) -> Any:
    """The value of a key that a ``dict`` holds."""
    return key[1] if type(key) is tuple else key


_NAMES = {
    int: "int",
    UInt: "uint",
    float: "double",
    bool: "bool",
    type(None): "null_type",
    str: "string",
    bytes: "bytes",
    list: "list",
    tuple: "list",
    dict: "map",
    MapWithDefault: "map",
    Quantity: "kubernetes.Quantity",
    SemVer: "kubernetes.Semver",
}


def type_name(value: Any) -> str:
    """The name of a value's type in the language."""
    kind = type(value)
    return _NAMES.get(kind) or str(kind.type_name)


def short_text(value: object) -> str:
    """A short text of ``value`` for messages."""
    return shorten(repr(value) if isinstance(value, str) else str(value))


def shorten(text: str) -> str:
    """``text``, cut to what fits into a message."""
    return text if len(text) <= 60 else text[:57] + "..."


def no_overload(function: str, *arguments: Any) -> EvaluationError:
    """The error for a function that does not take these types."""
    function = "_?_:_" if function == "@condition" else function
    return EvaluationError(f"no such overload: {function}({', '.join(map(type_name, arguments))})")


def checked_int(value: int) -> int:
    """``value`` as int64. Raises EvaluationError when it does not fit."""
    if INT_MIN <= value <= INT_MAX:
        return value
    raise EvaluationError("integer overflow: the result is beyond the range of a 64-bit integer")


def checked_uint(value: int) -> UInt:
    """``value`` as uint64. Raises EvaluationError when it does not fit."""
    if 0 <= value <= UINT_MAX:
        return UInt(value)
    raise EvaluationError("unsigned integer overflow: the result is beyond the range of a 64-bit unsigned integer")


LISTS = (list, tuple)
MAPS = (dict, MapWithDefault)
_NUMBERS = (int, UInt, float)
_PLAIN = frozenset((str, bytes, bool))
_OPAQUE_NAMES = frozenset(("kubernetes.Quantity", "kubernetes.URL", "net.IP", "net.CIDR", "kubernetes.NamedFormat"))


def equal(frame: Frame, left: Any, right: Any) -> bool:
    """``==``. Values of different types are unequal, and numbers of all kinds are equal by value.

    Raises EvaluationError where Kubernetes' own types (quantity, version, URL, address, format) stand on the left of
    something else: those types compare with their own kind only.
    """
    kind, other = type(left), type(right)
    if kind is other and kind in _PLAIN:
        if kind is not bool and len(left) > LONG:
            frame.spend(len(left) // LONG)
        return bool(left == right)
    if kind in _NUMBERS:
        if other not in _NUMBERS:
            return False
        return float(left) == float(right) if kind is float or other is float else left == right
    if left is None or right is None:
        return left is right
    if kind in _NAMES:
        if kind is SemVer:
            return _same_version(frame, left, right)
        if kind in LISTS:
            return other in LISTS and _equal_lists(frame, left, right)
        return kind in MAPS and other in MAPS and _equal_maps(frame, left, right)
    if kind is OptionalValue:
        if other is not OptionalValue or left.present != right.present:
            return False
        return not left.present or equal(frame, left.value, right.value)
    if kind is not other and kind.type_name in _OPAQUE_NAMES:
        raise no_overload("_==_", left, right)
    return kind is other and bool(left == right)


def _same_version(frame: Frame, left: SemVer, right: Any) -> bool:
    if type(right) is not SemVer:
        raise no_overload("_==_", left, right)
    frame.pass_over(len(left.text) + len(right.text))
    return left.text == right.text or precedence(left) == precedence(right)


@lru_cache(maxsize=4096)
def precedence(version: SemVer) -> Precedence:
    """What orders versions; the same few come with every device."""
    return version.precedence


def equal_or_false(frame: Frame, left: Any, right: Any) -> bool:
    """``==`` as membership and the list functions see it: what cannot be compared is unequal."""
    try:
        return equal(frame, left, right)
    except EvaluationError:
        return False


def unequal(frame: Frame, left: Any, right: Any) -> bool:
    """``!=``: what cannot be compared is unequal."""
    return not equal_or_false(frame, left, right)


def _equal_lists(frame: Frame, left: Any, right: Any) -> bool:
    if len(left) != len(right):
        return False
    frame.spend(len(left))
    return all(equal_or_false(frame, a, b) for a, b in zip(left, right, strict=True))


def _equal_maps(frame: Frame, left: dict[Any, Any], right: dict[Any, Any]) -> bool:
    if len(left) != len(right):
        return False
    frame.spend(len(left))
    return all(frame.look_up(key) in right and equal_or_false(frame, value, right[key]) for key, value in left.items())


def contains(frame: Frame, items: Iterable[Any], value: Any) -> bool:
    """Whether an element of ``items`` equals ``value``."""
    for item in items:
        frame.spend(1)
        if equal_or_false(frame, value, item):
            return True
    return False


def order_keys(_: Frame, function: str, left: Any, right: Any) -> tuple[Any, Any]:
    """Two keys that order as the values do. Raises EvaluationError for types without an order, and for NaN."""
    kind, other = type(left), type(right)
    if kind in _NUMBERS and other in _NUMBERS:
        if left != left or right != right:
            raise EvaluationError("NaN values cannot be ordered")
        if kind is float or other is float:
            return float(left), float(right)
    elif kind is not other or not (kind in _PLAIN or getattr(kind, "ordered", False)):
        raise no_overload(function, left, right)
    return left, right
