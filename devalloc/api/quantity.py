"""Kubernetes quantities, exact: ``1500m``, ``10Gi``, ``2e3``.

A quantity is a whole number of *nano* units, so arithmetic never leaves the integers. The grammar is that of
``k8s.io/apimachinery`` ``resource.Quantity`` with two deliberate differences (claim-semantics S4, S4a): an amount
finer than one nano is an error instead of being rounded up, and one beyond int64 base units is an error instead of
being capped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import total_ordering

NANO = 10**9
MAX_BASE_UNITS = 2**63 - 1
MAX_LENGTH = 100
"""Characters of a quantity's text."""

_NUMBER = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)(.*)", re.DOTALL | re.ASCII)
_EXPONENT = re.compile(r"[eE]([+-]?\d{1,4})", re.ASCII)

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_BY_POWER = {power: suffix for suffix, power in _DECIMAL.items()}
_BYTES = (("M", 6, 20), ("G", 9, 30), ("T", 12, 40), ("P", 15, 50), ("E", 18, 60))
_HINTS = {
    **{f"{suffix}{unit}": suffix for suffix in _BINARY for unit in ("", "B")},
    **{f"{letter}B": f"{letter} (10^{power}) or {letter}i (2^{binary})" for letter, power, binary in _BYTES},
    **{letter: f"{letter} or {letter}i" for letter in "GTP"},
    "KB": "k",
    "K": "k or Ki",
}
_RATE_UNIT = re.compile(r"\s*(?P<prefix>(?:[kKmMgGtT]i?)?)(?P<unit>(?:[bB]|[bB]its?|[bB]ytes?)?)(?:ps|/s|/sec|/second)")
"""A rate with its unit, as people write it: MB/s, Mbps, Mbit/s, Mi/s. A small b is a bit, except in "byte"."""
_SUFFIX_HINTS = {wrong.lower(): right for wrong, right in _HINTS.items()}
"""The most likely meaning of an unknown suffix, by its lower-case form."""


class QuantityError(ValueError):
    """A text that is not a quantity, or an amount that cannot be represented."""


class Format(Enum):
    """How an amount is written; comparisons ignore it."""

    DECIMAL_SI = "DecimalSI"
    BINARY_SI = "BinarySI"
    DECIMAL_EXPONENT = "DecimalExponent"


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """An exact amount: ``nano`` billionths of the base unit (byte, core, device), written in ``format``."""

    nano: int
    format: Format = Format.DECIMAL_SI

    def __post_init__(self) -> None:
        if abs(self.nano) > MAX_BASE_UNITS * NANO:
            raise QuantityError("is beyond the range of 64-bit base units (at most 9223372036854775807)")

    @classmethod
    def parse(cls, value: object) -> Quantity:
        """Parse a quantity of manifest content: a string, or a JSON number by its decimal text.

        Raises QuantityError with a message that completes the sentence "<field> ...".
        """
        if isinstance(value, Quantity):
            return value
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise QuantityError(f"must be a quantity such as 2, '500m' or '10Gi', not {type_name(value)}")
        text = value if isinstance(value, str) else getattr(value, "text", None) or repr(value)
        return cls._parse_text(text)

    @classmethod
    def capped(cls, nano: int, form: Format = Format.DECIMAL_SI) -> Quantity:
        """Make a sum of amounts, each of which may be as large as there are: the largest one for a sum beyond it."""
        return cls(min(nano, MAX_BASE_UNITS * NANO), form)

    @classmethod
    def _parse_text(cls, text: str) -> Quantity:
        negative, digits, scale, fmt = _split(text)
        if digits == 0:
            return cls(0, fmt)
        nano = _scaled(digits, scale + 9, text)
        try:
            return cls(-nano if negative else nano, fmt)
        except QuantityError as error:
            raise QuantityError(f"{error}: {text!r}") from None

    # -- reading -----------------------------------------------------------------------------------------------------

    def as_integer(self) -> int | None:
        """The amount in base units, or None if it is a fraction."""
        units, rest = divmod(self.nano, NANO)
        return units if rest == 0 else None

    def __str__(self) -> str:
        """The canonical text: the largest suffix that leaves no fraction, as in Kubernetes."""
        return sum_text(self.nano, self.format)

    def __repr__(self) -> str:
        return f"Quantity({str(self)!r})"

    # -- comparing and arithmetic ------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and self.nano == other.nano

    def __lt__(self, other: Quantity) -> bool:
        if not isinstance(other, Quantity):
            return NotImplemented
        return self.nano < other.nano

    def __hash__(self) -> int:
        return hash(("Quantity", self.nano))

    def __add__(self, other: Quantity) -> Quantity:
        return Quantity(self.nano + other.nano, self._common_format(other))

    def __sub__(self, other: Quantity) -> Quantity:
        return Quantity(self.nano - other.nano, self._common_format(other))

    def times(self, count: int) -> Quantity:
        """The amount ``count`` times over."""
        return Quantity(self.nano * count, self.format)

    def _common_format(self, other: Quantity) -> Format:
        return self.format if self.nano else other.format


def count_text(amount: object) -> str:
    """An amount of what people count, such as CPUs: 1000, not 1k. Anything else is as it is."""
    text = str(amount)
    try:
        units = Quantity.parse(text).as_integer()
    except QuantityError:
        return text
    return text if units is None else str(units)


def sum_text(nano: int, form: Format = Format.DECIMAL_SI) -> str:
    """Write a sum of amounts, which may be beyond what one quantity can be, in the canonical way."""
    if nano == 0:
        return "0"
    units, rest = divmod(nano, NANO)
    if form is Format.BINARY_SI and not rest and abs(units) >= 1024:
        for suffix, factor in reversed(_BINARY.items()):
            if units % factor == 0:
                return f"{units // factor}{suffix}"
        return str(units)
    mantissa, power = nano, -9
    while mantissa % 1000 == 0 and power < 18:
        mantissa, power = mantissa // 1000, power + 3
    if form is Format.DECIMAL_EXPONENT:
        return f"{mantissa}e{power}" if power else str(mantissa)
    return f"{mantissa}{_DECIMAL_BY_POWER[power]}"


_READABLE_DIGITS = 4
"""Amounts with more digits are rounded for people."""


def readable_texts(*amounts: Quantity) -> list[str]:
    """The amounts for people: long ones are rounded down to a tenth of the largest suffix, such as 23.2Gi for
    24370748Ki. All are exact if different amounts would look the same."""
    texts = [_readable_text(amount) for amount in amounts]
    return texts if len(set(texts)) == len(set(amounts)) else [str(amount) for amount in amounts]


def _readable_text(amount: Quantity) -> str:
    exact, units = str(amount), amount.nano // NANO
    if sum(map(str.isdigit, exact)) <= _READABLE_DIGITS or amount.format is Format.DECIMAL_EXPONENT:
        return exact
    decimal = {suffix: 10**power for suffix, power in _DECIMAL.items() if power > 0}
    factors = _BINARY if amount.format is Format.BINARY_SI else decimal
    suffix, factor = next(((name, size) for name, size in reversed(factors.items()) if size <= units), ("", 0))
    if not suffix:
        return exact
    whole, tenth = divmod(units * 10 // factor, 10)
    return f"{whole}.{tenth}{suffix}" if tenth else f"{whole}{suffix}"


ONE = Quantity(NANO)
"""One base unit: the default block size."""


def floor_blocks(amount: Quantity, block: Quantity) -> int:
    """Whole blocks that fit into ``amount`` (usable capacity, claim-semantics S11)."""
    return amount.nano // block.nano


def ceil_blocks(amount: Quantity, block: Quantity) -> int:
    """Blocks needed to hold ``amount`` (a request, claim-semantics S11)."""
    return -(-amount.nano // block.nano)


def ceil_units(text: str, power: int) -> int:
    """The amount in units of ``10**power``, rounded up, like Kubernetes rounds amounts beyond a reader's precision.

    ``ceil_units("0.0001", -3)`` is 1. Raises QuantityError for what is not a quantity, negative, or beyond the range.
    """
    negative, digits, scale, _ = _split(text)
    if digits == 0:
        return 0
    if negative:
        raise QuantityError(f"must not be negative: {text!r}")
    if scale < -200:
        return 1  # smaller than any amount that the digits of a text can express
    if scale - power >= 0:
        return _scaled(digits, scale - power, text)
    return -(-digits // int(10 ** (power - scale)))


def _split(text: str) -> tuple[bool, int, int, Format]:
    """Whether it is negative, the digits, their power of ten, and the format."""
    match = _NUMBER.fullmatch(text)
    if len(text) > MAX_LENGTH or match is None:
        shown = text if len(text) <= 40 else text[:37] + "..."
        raise QuantityError(f"is not a quantity: {shown!r} (write a number and a suffix, such as 2, '500m' or '10Gi')")
    sign, number, suffix = match.groups()
    whole, _, fraction = number.partition(".")
    digits = int(whole + fraction or "0")
    scale = -len(fraction)
    multiplier, fmt = 1, Format.DECIMAL_SI
    if suffix in _DECIMAL:
        scale += _DECIMAL[suffix]
    elif suffix in _BINARY:
        multiplier, fmt = _BINARY[suffix], Format.BINARY_SI
    elif exponent := _EXPONENT.fullmatch(suffix):
        scale += int(exponent[1])
        fmt = Format.DECIMAL_EXPONENT
    else:
        if (unit := _RATE_UNIT.fullmatch(suffix)) is not None:
            raise QuantityError(f"is not a quantity: {text!r} {_rate_advice(sign + number, unit)}")
        hint = _SUFFIX_HINTS.get(suffix.lower())
        advice = f"; did you mean {hint}?" if hint else "; use n u m k M G T P E, Ki Mi Gi Ti Pi Ei or an exponent"
        raise QuantityError(f"is not a quantity: {text!r} has the unknown suffix {suffix!r}{advice}")
    return sign == "-", digits * multiplier, scale, fmt


def _rate_advice(number: str, unit: re.Match[str]) -> str:
    """What is wrong with a rate whose unit is written, and how to write it; ``unit``: of ``_RATE_UNIT``."""
    prefix = unit["prefix"][:1].upper() + ("i" if unit["prefix"][1:] else "")
    prefix = "k" if prefix == "K" else prefix
    right = number + prefix
    is_bits = unit["unit"][:1] == "b" and not unit["unit"].lower().startswith("byte")
    if is_bits:
        try:
            bits = Quantity.parse(right)
            right = str(Quantity(-(-bits.nano // (8 * NANO)) * NANO, bits.format))
        except QuantityError:
            right = "an eighth of the number"
    words = "counts bits" if is_bits else "names a unit"
    return f"{words} ({unit[0].strip()!r}); write rates as bytes per second, without a unit: {right}"


def _scaled(digits: int, power: int, text: str) -> int:
    if power >= 0:
        if power > 40:
            raise QuantityError(f"is beyond the range of 64-bit base units: {text!r}")
        return digits * int(10**power)
    if power < -200:
        raise QuantityError(f"is finer than one nano unit: {text!r}")
    nano, rest = divmod(digits, int(10**-power))
    if rest:
        raise QuantityError(f"is finer than one nano unit: {text!r}")
    return nano


def type_name(value: object) -> str:
    """The type of a value, in terms that a manifest's author knows."""
    for kind, words in _TYPE_NAMES.items():
        if isinstance(value, kind):
            return words
    return f"a {type(value).__name__}"


_TYPE_NAMES: dict[type, str] = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "a map",
}


def parse_cpu_and_memory(text: str, example: str) -> tuple[int, int]:
    """Thousandths of a CPU and bytes, written as ``CPU,MEMORY``. Raises QuantityError, which shows the example."""
    try:
        cpu, memory = (ceil_units(part.strip(), power) for part, power in zip(text.split(","), (-3, 0), strict=True))
    except ValueError:
        cpu = memory = -1
    if not (0 <= cpu < 2**32 and 0 <= memory < 2**64):
        raise QuantityError(f"must be CPU and memory, such as {example}, not {text}")
    return cpu, memory
