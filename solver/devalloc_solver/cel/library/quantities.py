"""Quantities: ``quantity("10Gi").isLessThan(device.capacity["d"].memory)``.

An amount is a whole number of nano units without bounds. Reading follows ``resource.ParseQuantity``: a finer amount is
rounded away from zero, one with a binary suffix is capped at 64 bits, and a missing number is nought. Everything else
is exact.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from devalloc.api.quantity import NANO, Quantity
from devalloc_solver.cel.errors import EvaluationError
from devalloc_solver.cel.registry import INT, STRING, Overload
from devalloc_solver.cel.values import CHARACTERS_PER_UNIT, INT_MAX, INT_MIN, PARSING_COST, Frame

MAX_LENGTH = 1000
"""Characters of a quantity's text."""

MAX_EXPONENT = 1000
"""The largest exponent of ten that is read."""

_TEXT = re.compile(r"([+-]?)(\d*)(?:\.(\d*))?([numkMGTPE]?|[KMGTPE]i|[eE][+-]?\d{1,10})", re.ASCII)
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


@dataclass(frozen=True, slots=True)
class CelQuantity:
    """A quantity; equal to another of the same amount, however written."""

    type_name: ClassVar[str] = "kubernetes.Quantity"
    nano: int


Amount = CelQuantity | Quantity
"""A quantity of resource.k8s.io, or of DeviceClaims."""


def parse(text: str) -> CelQuantity:
    """Read a quantity. Raises EvaluationError."""
    match = _TEXT.fullmatch(text) if 0 < len(text) <= MAX_LENGTH else None
    if match is None:
        raise EvaluationError(f"{text[:60]!r} is not a quantity")
    sign, whole, fraction, suffix = match.groups()
    multiplier, power = _BINARY.get(suffix, 1), _DECIMAL.get(suffix, 0)
    if suffix not in _BINARY and suffix not in _DECIMAL:
        power = int(suffix[1:])
        if abs(power) > MAX_EXPONENT:
            raise EvaluationError(f"{text[:60]!r} is not a quantity: the exponent is beyond {MAX_EXPONENT}")
    fraction = fraction or ""
    scaled, power = int(whole + fraction or "0") * multiplier, power - len(fraction) + 9
    nano = scaled * 10**power if power >= 0 else -(-scaled // 10**-power)
    if multiplier > 1:
        nano = min(nano, INT_MAX * NANO)
    return CelQuantity(-nano if sign == "-" else nano)


def _quantity(frame: Frame, text: str) -> CelQuantity:
    frame.spend(PARSING_COST + len(text) // CHARACTERS_PER_UNIT)
    return parse(text)


def _is_quantity(frame: Frame, text: str) -> bool:
    frame.spend(PARSING_COST + len(text) // CHARACTERS_PER_UNIT)
    try:
        parse(text)
    except EvaluationError:
        return False
    return True


def _compare(_: Frame, left: Amount, right: Amount) -> int:
    return (left.nano > right.nano) - (left.nano < right.nano)


def _is_integer(_: Frame, amount: Amount) -> bool:
    return amount.nano % NANO == 0 and INT_MIN <= amount.nano // NANO <= INT_MAX


def _as_integer(frame: Frame, amount: Amount) -> int:
    if not _is_integer(frame, amount):
        raise EvaluationError("cannot convert value to integer")
    return amount.nano // NANO


def _as_float(_: Frame, amount: Amount) -> float:
    try:
        return amount.nano / NANO
    except OverflowError:
        return float("inf") if amount.nano > 0 else float("-inf")


def amount_functions(kind: type) -> tuple[Overload, ...]:
    """The functions of quantities that read only their amount; ``kind``: the class of a dialect's quantities."""
    return (
        ("sign", (kind,), lambda _, amount: (amount.nano > 0) - (amount.nano < 0)),
        ("isGreaterThan", (kind, kind), lambda _, left, right: left.nano > right.nano),
        ("isLessThan", (kind, kind), lambda _, left, right: left.nano < right.nano),
        ("compareTo", (kind, kind), _compare),
        ("isInteger", (kind,), _is_integer),
        ("asInteger", (kind,), _as_integer),
        ("asApproximateFloat", (kind,), _as_float),
    )


FUNCTIONS: tuple[Overload, ...] = (
    ("quantity", (STRING,), _quantity),
    ("isQuantity", (STRING,), _is_quantity),
    *amount_functions(CelQuantity),
    ("add", (CelQuantity, CelQuantity), lambda _, left, right: CelQuantity(left.nano + right.nano)),
    ("add", (CelQuantity, INT), lambda _, left, right: CelQuantity(left.nano + right * NANO)),
    ("sub", (CelQuantity, CelQuantity), lambda _, left, right: CelQuantity(left.nano - right.nano)),
    ("sub", (CelQuantity, INT), lambda _, left, right: CelQuantity(left.nano - right * NANO)),
)
