"""From one type to another: ``int("3")``, ``string(1.5)``, ``type(x)``."""

from __future__ import annotations

import math
import re
from typing import Any

from devalloc_solver.cel.errors import EvaluationError
from devalloc_solver.cel.registry import ANY, BOOL, BYTES, DOUBLE, INT, STRING, UINT, Overload
from devalloc_solver.cel.values import (
    Frame,
    TypeValue,
    UInt,
    checked_int,
    checked_uint,
    no_overload,
    type_name,
)

_INTEGER = re.compile(r"[+-]?\d{1,40}", re.ASCII)
_UNSIGNED = re.compile(r"\d{1,40}", re.ASCII)
_FLOAT = re.compile(r"[+-]?(\d[\d_]*(?:\.[\d_]*)?|\.\d[\d_]*)([eE][+-]?\d+)?(?<!_)", re.ASCII)
_HEX_FLOAT = re.compile(r"[+-]?0[xX]([0-9a-fA-F]+(?:\.[0-9a-fA-F]*)?|\.[0-9a-fA-F]+)[pP][+-]?\d+", re.ASCII)
_NO_NUMBER = re.compile(r"[+-]?(inf|infinity)|nan", re.ASCII | re.IGNORECASE)
_TRUE = frozenset(("1", "t", "true", "TRUE", "True", "T"))
_FALSE = frozenset(("0", "f", "false", "FALSE", "False", "F"))


def _bad(what: str, text: object) -> EvaluationError:
    return EvaluationError(f"{str(text)[:60]!r} is not {what}")


def _text_to_int(_: Frame, text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise _bad("an int", text)
    return checked_int(int(text))


def _float_to_int(_: Frame, value: float) -> int:
    if math.isnan(value) or math.isinf(value) or not -(2.0**63) < value < 2.0**63:
        raise EvaluationError("integer overflow")
    return int(value)


def _text_to_uint(_: Frame, text: str) -> UInt:
    if not _UNSIGNED.fullmatch(text):
        raise _bad("a uint", text)
    return checked_uint(int(text))


def _float_to_uint(_: Frame, value: float) -> UInt:
    if math.isnan(value) or value < 0 or value >= 2.0**64:
        raise EvaluationError("unsigned integer overflow")
    return UInt(value)


def text_to_double(frame: Frame, text: str) -> float:
    frame.pass_over(len(text))
    if _HEX_FLOAT.fullmatch(text):
        try:
            return float.fromhex(text)
        except OverflowError:
            raise _bad("a double", text) from None
    try:
        if _NO_NUMBER.fullmatch(text):
            return float(text)
        if _FLOAT.fullmatch(text) and math.isfinite(value := float(text)):
            return value
    except ValueError:  # underscores in wrong places
        pass
    raise _bad("a double", text)


def _text_to_bool(_: Frame, text: str) -> bool:
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise _bad("a bool", text)


def _bytes_to_text(frame: Frame, data: bytes) -> str:
    frame.pass_over(len(data))
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise EvaluationError("invalid UTF-8 in bytes, cannot convert to string") from None


def _text_to_bytes(frame: Frame, text: str) -> bytes:
    frame.pass_over(len(text))
    return text.encode()


def _float_to_text(value: float) -> str:
    """As Go's ``%g``: the shortest digits, with an exponent from a million up and from 1e-5 down."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    mantissa, _, power = f"{value!r}".partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.removeprefix("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    exponent = int(power or 0) + len(whole) - 1
    if whole == "0":
        exponent = int(power or 0) - (len(fraction) - len(fraction.lstrip("0")) + 1)
    digits = digits.rstrip("0")
    if not digits:
        return sign + "0"
    if exponent < -4 or exponent >= 6:
        fraction = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{fraction}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    if len(digits) <= exponent + 1:
        return sign + digits + "0" * (exponent + 1 - len(digits))
    return f"{sign}{digits[: exponent + 1]}.{digits[exponent + 1 :]}"


def to_string(frame: Frame, value: Any) -> str:
    """``string(value)`` for the types of the standard library. Raises EvaluationError for others."""
    kind = type(value)
    if kind is str:
        return str(value)
    if kind is bool:
        return "true" if value else "false"
    if kind is float:
        return _float_to_text(value)
    if kind is bytes:
        return _bytes_to_text(frame, value)
    if kind in (int, UInt):
        return str(value)
    raise no_overload("string", value)


def _same(_: Frame, value: Any) -> Any:
    return value


FUNCTIONS: tuple[Overload, ...] = (
    ("int", (INT,), _same),
    ("int", (UINT,), lambda _, value: checked_int(int(value))),
    ("int", (DOUBLE,), _float_to_int),
    ("int", (STRING,), _text_to_int),
    ("uint", (UINT,), _same),
    ("uint", (INT,), lambda _, value: checked_uint(value)),
    ("uint", (DOUBLE,), _float_to_uint),
    ("uint", (STRING,), _text_to_uint),
    ("double", (DOUBLE,), _same),
    ("double", (INT,), lambda _, value: float(value)),
    ("double", (UINT,), lambda _, value: float(value)),
    ("double", (STRING,), text_to_double),
    ("bool", (BOOL,), _same),
    ("bool", (STRING,), _text_to_bool),
    ("bytes", (BYTES,), _same),
    ("bytes", (STRING,), _text_to_bytes),
    *(("string", (kind,), to_string) for kind in (STRING, BOOL, INT, UINT, DOUBLE, BYTES)),
    ("dyn", (ANY,), _same),
    ("type", (ANY,), lambda _, value: TypeValue(type_name(value))),
)
