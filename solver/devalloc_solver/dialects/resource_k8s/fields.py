"""The types of fields of ``resource.k8s.io/v1``, from which pydantic reads manifests; amounts; errors.

Amounts are Kubernetes quantities, exact at any size (settled D4). They remember their form, binary or decimal, because
answers write it in the same form.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, TypeVar

import pydantic
from pydantic import BeforeValidator, ConfigDict, FailFast, Field, PlainValidator

from devalloc.api.json_content import escape_invalid_unicode
from devalloc.api.quantity import MAX_LENGTH, NANO, Format, Quantity, QuantityError, type_name
from devalloc_solver import errors
from devalloc_solver.cel.budget import Bound

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


class AllocationError(Exception):
    """The claims cannot be answered for this node, because something in the input is wrong.

    ``node_local`` tells that only this node's pools are at fault: other nodes may still do. Every other error would
    come back on every node.
    """

    def __init__(self, message: str, *, node_local: bool = False, exceeded: Bound | None = None) -> None:
        """``exceeded``: by expressions of the claims."""
        super().__init__(message)
        self.message = message
        self.node_local = node_local
        self.exceeded = exceeded


class ResourceAnswerRefused(errors.AnswerRefused):
    """The same for an answer of this dialect, told by its violations."""

    def __init__(self, violations: Sequence[str]) -> None:
        super().__init__("the check refuses this answer (please report it): " + "; ".join(violations[:10]))


NUMBER_LIMIT = 2**64
"""The first whole number that no field can be."""


class FieldError(ValueError):
    """Content that is not what the field takes; ``path`` says which field."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path} {message}" if path else message)
        self.path = path
        self.message = message


class SelectorError(FieldError):
    """A node selector that Kubernetes refuses: it is unknown which nodes it means."""


class Strict:
    """Base of parts of manifests in which an unknown field is an error: to ignore it may change the answer."""

    __slots__ = ()
    __pydantic_config__ = ConfigDict(extra="forbid", arbitrary_types_allowed=True)


class Tolerant:
    """Base of parts of manifests that may have any other fields."""

    __slots__ = ()
    __pydantic_config__ = ConfigDict(extra="ignore", arbitrary_types_allowed=True)


def short_text(value: object) -> str:
    """A value of any kind as short text, whatever its size and depth."""
    if type(value) is str and value.isascii():
        return value
    if isinstance(value, str):
        return escape_invalid_unicode(value)
    if isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < NUMBER_LIMIT):
        return str(value)
    return type_name(value)


def read_amount(value: object) -> Amount:
    """A quantity. Raises QuantityError."""
    if isinstance(value, int) and abs(value) >= 10**30:
        raise QuantityError("is too large for a quantity")
    return _parse_quantity(value) if type(value) is str else Amount.parse(value)


@lru_cache(maxsize=4096)
def _parse_quantity(text: str) -> Amount:
    """Devices have much the same amounts."""
    return Amount.parse(text)


def _require_list(value: object) -> object:
    if not isinstance(value, list):
        raise ValueError(f"must be a list, not {type_name(value)}")
    return value


def _read_label(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be a string, not {type_name(value)}: write it in quotes")
    return short_text(value)


def _is_given(value: object) -> bool:
    return value is not None


T = TypeVar("T")
Text = Annotated[str, pydantic.Strict(), Field(min_length=0)]
"""Any text that can be encoded: pydantic looks at a text only if its length is limited."""
Needed = Annotated[str, pydantic.Strict(), Field(min_length=1)]
Flag = Annotated[bool, pydantic.Strict()]
Number = Annotated[int, pydantic.Strict(), Field(gt=-NUMBER_LIMIT, lt=NUMBER_LIMIT)]
AmountField = Annotated[Amount, PlainValidator(read_amount)]
Items = Annotated[tuple[T, ...], FailFast(), BeforeValidator(_require_list)]
Texts = Items[Text]
Amounts = dict[Text, AmountField]
Labels = dict[Text, Annotated[str, PlainValidator(_read_label)]]
Given = Annotated[bool, PlainValidator(_is_given)]
"""Whether the field is there, whatever it has."""
Ignored = Annotated[None, PlainValidator(lambda _: None)]
"""A field that has no part in an allocation."""
