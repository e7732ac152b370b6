"""Amounts in resource.k8s.io: Kubernetes quantities, exact at any size (settled D4).

An amount remembers its form, binary or decimal, because answers write it in the same form.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from devalloc.api.quantity import MAX_LENGTH, NANO, Format, Quantity, QuantityError, type_name

MILLI = NANO // 1000
MAX_INT64 = 2**63 - 1

_TEXT = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)([numkMGTPE]?|[KMGTPE]i|[eE][+-]?\d{1,3})", re.ASCII)
_POWERS = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_FACTORS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}


class _AnyQuantity(Quantity):
    """A quantity that may be beyond 64 bits, as Kubernetes' own may."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Nothing is too large."""


@dataclass(frozen=True, slots=True)
class Amount:
    """A quantity: ``nano`` billionths of the unit."""

    nano: int
    format: Format = Format.DECIMAL_SI
    text: str | None = field(default=None, compare=False)
    """as it was written, where Kubernetes would write it so again"""

    @classmethod
    def parse(cls, value: object) -> Amount:
        """Read a quantity as Kubernetes does: finer than one nano is rounded up, and only one with a binary suffix is
        capped, at 64 bits.

        Raises QuantityError with a message that completes the sentence "<field> ...".
        """
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise QuantityError(f"must be a quantity such as 2, '500m' or '10Gi', not {type_name(value)}")
        text = value if isinstance(value, str) else getattr(value, "text", None) or repr(value)
        match = _TEXT.fullmatch(text) if len(text) <= MAX_LENGTH else None
        if match is None:
            return cls.parse(str(Quantity.parse(text)))  # which says what is wrong with it
        sign, number, suffix = match.groups()
        whole, _, fraction = number.partition(".")
        digits, power, factor, form = int(whole + fraction), 9 - len(fraction), 1, Format.DECIMAL_SI
        if suffix in _FACTORS:
            factor, form = _FACTORS[suffix], Format.BINARY_SI
        elif suffix in _POWERS:
            power += _POWERS[suffix]
        else:
            power, form = power + int(suffix[1:]), Format.DECIMAL_EXPONENT
        nano: int = digits * factor * 10**power if power >= 0 else -(-digits * factor // 10**-power)
        if form is Format.BINARY_SI:
            nano = min(nano, MAX_INT64 * NANO)
        as_written = text if _keeps_text(whole.lstrip("0") + fraction, power - 9, form) else None
        return cls(-nano if sign == "-" else nano, form, as_written)

    @property
    def quantity(self) -> Quantity:
        return _AnyQuantity(self.nano, self.format)

    @property
    def units(self) -> int:
        """In whole units, rounded up."""
        return -(-self.nano // NANO)

    @property
    def milli(self) -> int | None:
        """In thousandths, or None where that is not exact within 64 bits."""
        milli, rest = divmod(self.nano, MILLI)
        return milli if rest == 0 and -MAX_INT64 <= milli <= MAX_INT64 else None

    def __str__(self) -> str:
        """As Kubernetes writes it: the canonical text, or what was read where that is close to it."""
        return str(self.quantity) if self.text is None else self.text


def _keeps_text(digits: str, power: int, form: Format) -> bool:
    """Whether Kubernetes repeats a text as it was read."""
    if form is Format.BINARY_SI:
        return power == 0 and len(digits) < 5 and int(digits or "0") % 8 != 0
    return power % 3 == 0 and 0 < len(digits) <= 18 and digits[0] != "0" and not digits.endswith("000")
