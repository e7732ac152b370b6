"""``"%s has %d".format([name, count])``.

Numbers with a fraction come out as Kubernetes writes them (its version of the strings library uses the locale en-US):
thousands are grouped, and an exponent is written with a multiplication sign and superscript digits.
"""

from __future__ import annotations

import math
import re
from typing import Any

from devalloc_solver.cel.errors import EvaluationError
from devalloc_solver.cel.library.conversions import to_string
from devalloc_solver.cel.library.strings import ESCAPES
from devalloc_solver.cel.library.times import Duration, Timestamp
from devalloc_solver.cel.registry import LIST, STRING, Overload
from devalloc_solver.cel.values import LISTS, MAPS, Frame, TypeValue, from_key, type_name

CLAUSE = re.compile(r"%(?:(%)|(?:\.(\d*))?(.?))", re.ASCII | re.DOTALL)
"""A percent sign and what follows: another one, or a precision and a verb."""

VERBS = {"s": None, "d": ("int", "uint"), "b": ("int", "uint", "bool"), "o": ("int", "uint")} | {
    "x": ("int", "uint", "string", "bytes"),
    "X": ("int", "uint", "string", "bytes"),
    "f": ("double", "string"),
    "e": ("double", "string"),
}
"""The types that each verb takes; None: nearly all. The text of a double that is not a number counts as a double."""

SHOWN = frozenset(
    (
        *("bool", "bytes", "double", "int", "list", "map", "null", "string", "type", "uint", "dyn"),
        *(Duration.type_name, Timestamp.type_name),
    )
)
"""The types that ``%s`` takes."""

_SUPERSCRIPT = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_DEFAULT_PRECISION = 6
_MAX_PRECISION = 1000


def _format(frame: Frame, text: str, arguments: list[Any]) -> str:
    frame.pass_over(len(text))
    pieces, position, used = [], 0, 0
    for clause in CLAUSE.finditer(text):
        pieces.append(text[position : clause.start()])
        position = clause.end()
        if clause[1]:
            pieces.append("%")
            continue
        if used >= len(arguments):
            raise EvaluationError(f"format: index {used} out of range")
        pieces.append(_clause(frame, clause[2], clause[3], arguments[used]))
        frame.pass_over(len(pieces[-1]))
        used += 1
    pieces.append(text[position:])
    return "".join(pieces)


def _clause(frame: Frame, precision: str | None, verb: str, value: Any) -> str:
    if verb not in VERBS or precision == "":
        raise EvaluationError(f"format: unrecognized clause {verb!r}")
    wanted = VERBS[verb]
    if wanted is not None and type_name(value) not in wanted:
        raise EvaluationError(f"format: %{verb} does not take a {type_name(value)}")
    if verb == "s":
        return _shown(frame, value)
    if verb in "fe":
        return _decimal_fraction(frame, verb, precision, value)
    if verb in "xX" and isinstance(value, (str, bytes)):
        data = value if isinstance(value, bytes) else value.encode()
        frame.pass_over(2 * len(data))
        return data.hex().upper() if verb == "X" else data.hex()
    return format(int(value), verb)


def _decimal_fraction(frame: Frame, verb: str, precision: str | None, value: Any) -> str:
    if isinstance(value, str):
        if value not in _SPECIAL:
            raise EvaluationError(f"format: %{verb} does not take a string")
        value = _SPECIAL[value]
    digits = _DEFAULT_PRECISION if precision is None else int(precision[:10])
    if digits > _MAX_PRECISION:
        raise EvaluationError(f"format: a precision of {digits} is beyond {_MAX_PRECISION}")
    frame.pass_over(digits)
    if not math.isfinite(value):
        shown = "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"
        return shown.rjust(digits) if verb == "e" else shown
    if verb == "f":
        return f"{value:,.{digits}f}"
    mantissa, _, exponent = f"{value:.{digits}e}".partition("e")
    return f"{mantissa}\u00d710{exponent.removeprefix('+').translate(_SUPERSCRIPT)}"


def _shown(frame: Frame, value: Any) -> str:
    kind = type(value)
    if kind in LISTS:
        return "[" + ", ".join(_quoted(frame, item) for item in value) + "]"
    if kind in MAPS:
        pairs = [(_key(key), _quoted(frame, item)) for key, item in value.items()]
        return "{" + ", ".join(f"{key}:{item}" for key, item in sorted(pairs, key=lambda pair: pair[0])) + "}"
    if value is None:
        return "null"
    if isinstance(value, TypeValue):
        return value.name
    return str(value) if kind in (Duration, Timestamp) else to_string(frame, value)


def _key(key: Any) -> str:
    value = from_key(key)
    if isinstance(value, str):
        return _go_quoted(value)
    return ("true" if value else "false") if isinstance(value, bool) else str(int(value))


def _quoted(frame: Frame, value: Any) -> str:
    """A member of a list or map."""
    frame.spend(4)
    kind = type(value)
    if kind is str:
        return _go_quoted(value)
    if kind is bytes:
        return "b" + _go_quoted(to_string(frame, value))
    if kind is float:
        if math.isfinite(value):
            return f"{value:.{_DEFAULT_PRECISION}f}"
        return '"NaN"' if math.isnan(value) else '"+Inf"' if value > 0 else '"-Inf"'
    if kind is Timestamp or kind is Duration:
        return f'{"timestamp" if kind is Timestamp else "duration"}("{value}")'
    return _shown(frame, value)


def _go_quoted(text: str) -> str:
    shown = []
    for letter in text:
        if letter in ESCAPES:
            shown.append(ESCAPES[letter])
        elif letter.isprintable():
            shown.append(letter)
        else:
            code = ord(letter)
            shown.append(f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    return f'"{"".join(shown)}"'


FUNCTIONS: tuple[Overload, ...] = (("format", (STRING, LIST), _format),)
