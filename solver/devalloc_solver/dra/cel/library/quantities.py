"""Quantities: ``quantity("10Gi").isLessThan(device.capacity["d"].memory)``.

An amount is a whole number of nano units without bounds. Reading rounds a finer amount away from zero and caps one
beyond 64 bits, as ``resource.ParseQuantity`` does; adding and subtracting are exact.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from devalloc_solver.dra.cel.errors import EvaluationError
from devalloc_solver.dra.cel.library.registry import INT, STRING, Overload
from devalloc_solver.dra.cel.values import INT_MAX, INT_MIN, Frame

NANO = 10**9

_TEXT = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)([^\d].*)?", re.ASCII | re.DOTALL)
_EXPONENT = re.compile(r"[eE]([+-]?\d{1,18})", re.ASCII)
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


@dataclass(frozen=True, slots=True)
class Amount:
    """A quantity; equal to another of the same amount, however written."""

    type_name: ClassVar[str] = "kubernetes.Quantity"
    nano: int


def parse(text: str) -> Amount:
    """Read a quantity. Raises EvaluationError."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise EvaluationError(f"{text[:60]!r} is not a quantity")
    sign, number, suffix = match[1], match[2], match[3] or ""
    multiplier, power = _BINARY.get(suffix, 1), _DECIMAL.get(suffix)
    if power is None:
        power = 0
        if suffix not in _BINARY:
            exponent = _EXPONENT.fullmatch(suffix)
            if exponent is None:
                raise EvaluationError(f"{text[:60]!r} is not a quantity: unknown suffix {suffix[:20]!r}")
            power = int(exponent[1])
    whole, _, fraction = number.partition(".")
    digits = (whole + fraction).lstrip("0")
    nano = _scaled(digits, multiplier, power - len(fraction) + 9)
    return Amount(-nano if sign == "-" else nano)


def _scaled(digits: str, multiplier: int, power: int) -> int:
    """``digits`` times ``multiplier`` times ten to the ``power``, rounded up to a whole number and capped."""
    if not digits:
        return 0
    if len(digits) + power > 40:
        return INT_MAX * NANO
    if len(digits) + power < -40:
        return 1
    kept = digits[:80]
    if len(kept) < len(digits):  # what follows can only decide whether to round up
        power += len(digits) - len(kept)
        tail = 1 if digits[80:].strip("0") else 0
    else:
        tail = 0
    value = int(kept) * multiplier
    if power >= 0:
        return min(value * int(10**power), INT_MAX * NANO)
    return min(-(-(value + tail) // int(10**-power)), INT_MAX * NANO)


def _quantity(frame: Frame, text: str) -> Amount:
    frame.pass_over(len(text))
    return parse(text)


def _is_quantity(frame: Frame, text: str) -> bool:
    frame.pass_over(len(text))
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


FUNCTIONS: tuple[Overload, ...] = (
    ("quantity", (STRING,), _quantity),
    ("isQuantity", (STRING,), _is_quantity),
    ("sign", (Amount,), lambda _, amount: (amount.nano > 0) - (amount.nano < 0)),
    ("isGreaterThan", (Amount, Amount), lambda _, left, right: left.nano > right.nano),
    ("isLessThan", (Amount, Amount), lambda _, left, right: left.nano < right.nano),
    ("compareTo", (Amount, Amount), _compare),
    ("add", (Amount, Amount), lambda _, left, right: Amount(left.nano + right.nano)),
    ("add", (Amount, INT), lambda _, left, right: Amount(left.nano + right * NANO)),
    ("sub", (Amount, Amount), lambda _, left, right: Amount(left.nano - right.nano)),
    ("sub", (Amount, INT), lambda _, left, right: Amount(left.nano - right * NANO)),
    ("isInteger", (Amount,), _is_integer),
    ("asInteger", (Amount,), _as_integer),
    ("asApproximateFloat", (Amount,), _as_float),
)
