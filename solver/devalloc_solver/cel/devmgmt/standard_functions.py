"""Standard functions of CEL: sizes, conversions, regular expressions, and the arithmetic operators."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from importlib import import_module
from typing import Any

from devalloc_solver.cel.budget import Budget
from devalloc_solver.cel.devmgmt.functions import overload
from devalloc_solver.cel.devmgmt.values import MAX_INT, MAX_UINT, MIN_INT, Uint, short_text
from devalloc_solver.cel.errors import EvaluationError

_INT = re.compile(r"[+-]?[0-9]{1,30}")
_UINT = re.compile(r"[0-9]{1,30}")
_DOUBLE = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_BOOLS = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}
_REGEX_MEMORY = 1 << 20
"""Bytes for one compiled pattern: what needs more is refused instead of being slow."""


def integer(value: int) -> int:
    """``value`` as int64. Raises EvaluationError when it does not fit."""
    if MIN_INT <= value <= MAX_INT:
        return value
    raise EvaluationError("the result is beyond the range of a 64-bit integer")


def unsigned(value: int) -> Uint:
    """``value`` as uint64. Raises EvaluationError when it does not fit."""
    if 0 <= value <= MAX_UINT:
        return Uint(value)
    raise EvaluationError("the result is beyond the range of a 64-bit unsigned integer")


def divide(left: int, right: int) -> int:
    """The quotient, truncated toward zero. Raises EvaluationError for a zero divisor."""
    if right == 0:
        raise EvaluationError("division by zero")
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def remainder(left: int, right: int) -> int:
    """What ``divide`` leaves; it has the sign of ``left``. Raises EvaluationError for a zero divisor."""
    return left - right * divide(left, right)


def _modulo(left: int, right: int) -> int:
    integer(divide(left, right))  # -2**63 % -1 overflows like the division, as upstream
    return remainder(left, right)


def _divide_doubles(left: float, right: float) -> float:
    if right != 0:
        return left / right
    if left == 0 or math.isnan(left):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1.0, right)


def _truncate(value: float) -> int:
    if not math.isfinite(value):
        raise EvaluationError(f"the double {value} has no whole number")
    return math.trunc(value)


def _uint_of_double(value: float) -> Uint:
    if value < 0:
        raise EvaluationError(f"the double {value} is negative and no unsigned integer")
    return unsigned(_truncate(value))


def _double_of_string(text: str) -> float:
    value = float(_read(_DOUBLE, text, "double"))
    if math.isinf(value):
        raise EvaluationError(f"the string {short_text(text)} is beyond the range of a double")
    return value


def _read(pattern: re.Pattern[str], text: str, what: str) -> str:
    if pattern.fullmatch(text) is None:
        raise EvaluationError(f"the string {short_text(text)} is no {what}")
    return text


def _bool_of_string(text: str) -> bool:
    if text not in _BOOLS:
        raise EvaluationError(f"the string {short_text(text)} is no bool")
    return _BOOLS[text]


_REGEX_TOO_LARGE = 10_000
"""Steps that it costs to find out that a pattern needs too much memory."""
_STEPS_PER_INSTRUCTION = 2


@lru_cache(maxsize=128)
def regex(pattern: str) -> Any:
    """A compiled RE2 pattern. Raises EvaluationError for one that is invalid or too large."""
    re2: Any = import_module("re2")  # only expressions that match patterns pay for the import

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _REGEX_MEMORY
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        why = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else error.args[0]
        raise EvaluationError(f"invalid regular expression {short_text(pattern)}: {why}") from None
    except UnicodeError:
        raise EvaluationError(f"the regular expression {short_text(pattern)} is no valid Unicode") from None


def _matches(text: str, pattern: str, budget: Budget) -> bool:
    # Compiling and matching cost what the program is, not only the text of it ("x{900}"); kept or not, the same.
    budget.spend(32 + 16 * len(pattern))
    try:
        compiled = regex(pattern)
    except EvaluationError as error:
        if "too large" in str(error):
            budget.spend(_REGEX_TOO_LARGE)
        raise
    size = compiled.programsize
    budget.spend(_STEPS_PER_INSTRUCTION * max(size - 8 * len(pattern), 0))
    budget.spend(len(text) * (1 + max(len(pattern), size // 2) // 16))
    try:
        return compiled.search(text) is not None
    except UnicodeError:
        raise EvaluationError(f"the string {short_text(text)} is no valid Unicode") from None


FUNCTIONS = (
    overload("size(string) -> int", len, "characters (code points)"),
    overload("size(list) -> int", len),
    overload("size(map) -> int", len),
    overload("string.size() -> int", len),
    overload("list.size() -> int", len),
    overload("map.size() -> int", len),
    overload("string.contains(string) -> bool", lambda text, part: part in text),
    overload("string.startsWith(string) -> bool", lambda text, part: text.startswith(part)),
    overload("string.endsWith(string) -> bool", lambda text, part: text.endswith(part)),
    overload("string.matches(string) -> bool", _matches, "RE2, finds the pattern anywhere", budgeted=True),
    overload("matches(string, string) -> bool", _matches, "RE2, finds the pattern anywhere", budgeted=True),
    overload("bool(bool) -> bool", lambda value: value),
    overload("bool(string) -> bool", _bool_of_string, "1 t T true TRUE True, 0 f F false FALSE False"),
    overload("int(int) -> int", lambda value: value),
    overload("int(uint) -> int", lambda value: integer(int(value))),
    overload("int(double) -> int", lambda value: integer(_truncate(value)), "toward zero"),
    overload("int(string) -> int", lambda text: integer(int(_read(_INT, text, "int"))), "decimal"),
    overload("uint(uint) -> uint", lambda value: value),
    overload("uint(int) -> uint", unsigned),
    overload("uint(double) -> uint", _uint_of_double, "toward zero"),
    overload("uint(string) -> uint", lambda text: unsigned(int(_read(_UINT, text, "uint"))), "decimal"),
    overload("double(double) -> double", lambda value: value),
    overload("double(int) -> double", float, "the nearest double"),
    overload("double(uint) -> double", float, "the nearest double"),
    overload("double(string) -> double", _double_of_string),
    overload("string(string) -> string", lambda text: text),
    overload("string(bool) -> string", lambda value: "true" if value else "false"),
    overload("string(int) -> string", str),
    overload("string(uint) -> string", str),
    overload("string(semver) -> string", str),
)

OPERATORS = {
    "+": (
        overload("add(int, int) -> int", lambda a, b: integer(a + b)),
        overload("add(uint, uint) -> uint", lambda a, b: unsigned(int(a) + int(b))),
        overload("add(double, double) -> double", lambda a, b: a + b),
        overload("add(string, string) -> string", lambda a, b: a + b),
        overload("add(list, list) -> list", lambda a, b: a + b),
    ),
    "-": (
        overload("subtract(int, int) -> int", lambda a, b: integer(a - b)),
        overload("subtract(uint, uint) -> uint", lambda a, b: unsigned(int(a) - int(b))),
        overload("subtract(double, double) -> double", lambda a, b: a - b),
    ),
    "*": (
        overload("multiply(int, int) -> int", lambda a, b: integer(a * b)),
        overload("multiply(uint, uint) -> uint", lambda a, b: unsigned(int(a) * int(b))),
        overload("multiply(double, double) -> double", lambda a, b: a * b),
    ),
    "/": (
        overload("divide(int, int) -> int", lambda a, b: integer(divide(a, b)), "toward zero"),
        overload("divide(uint, uint) -> uint", lambda a, b: unsigned(divide(int(a), int(b)))),
        overload("divide(double, double) -> double", _divide_doubles),
    ),
    "%": (
        overload("modulo(int, int) -> int", _modulo),
        overload("modulo(uint, uint) -> uint", lambda a, b: unsigned(remainder(int(a), int(b)))),
    ),
}
"""Binary arithmetic operators; comparisons are in ``values``."""

NEGATIONS = (
    overload("negate(int) -> int", lambda value: integer(-value)),
    overload("negate(double) -> double", lambda value: -value),
)
