"""JSON as the peers of the scaling protocols read it, which are written in Go.

The names of fields match without regard to case, unknown fields are ignored, missing ones and null are zero, of a field
that is there twice the last counts, and only the first value of a body is read. What has the wrong type is an error.
"""

from __future__ import annotations

import json
import math
import struct
from decimal import Decimal, InvalidOperation
from typing import Any

from devalloc.api.quantity import NANO, Quantity, QuantityError, ceil_units, type_name


class RequestError(Exception):
    """``status`` and ``text``, which is the body as text/plain; ``detail`` is for the log."""

    def __init__(self, status: int, text: str, detail: str = "") -> None:
        super().__init__(f"{text}: {detail}" if detail else text)
        self.status = status
        self.text = text
        self.detail = detail


MAX_CPU = 2**32 - 1
"""Thousandths of a CPU that fit on the wire."""
MAX_BYTES = 2**64 - 1
_BINARY = (("Ei", 2**60), ("Pi", 2**50), ("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10))


class WireAmountError(ValueError):
    """What is no amount; the message completes the sentence "<field> ..."."""


def cpu_to_json(milli: int) -> int | str:
    """Whole CPUs as a number (1000 is 1), all else as a quantity ("250m")."""
    _check(milli, MAX_CPU, "thousandths of a CPU")
    whole, rest = divmod(milli, 1000)
    return f"{milli}m" if rest else whole


def cpu_to_quantity(milli: int) -> str:
    """As a quantity, where the wire wants nothing else: "250m", "1"."""
    return str(cpu_to_json(milli))


def cpu_from_json(value: object) -> int:
    """Thousandths of a CPU. Raises WireAmountError."""
    return _read(value, -3, MAX_CPU, "of CPU, such as 2 or '250m'", "4294967295m")


def bytes_to_json(count: int) -> int | str:
    """Below 1024 a number; from there a quantity in the largest binary unit that leaves no rest ("1536Mi", "1500")."""
    _check(count, MAX_BYTES, "bytes")
    return count if count < 1024 else bytes_to_quantity(count)


def bytes_to_quantity(count: int) -> str:
    """As a quantity, where the wire wants nothing else: "1Gi", "1500", "12"."""
    _check(count, MAX_BYTES, "bytes")
    for suffix, unit in _BINARY:
        if count and count % unit == 0:
            return f"{count // unit}{suffix}"
    return str(count)


def bytes_from_json(value: object) -> int:
    """Bytes. Raises WireAmountError."""
    return _read(value, 0, MAX_BYTES, "of bytes, such as 1024 or '1Gi'", str(MAX_BYTES))


def _read(value: object, power: int, most: int, form: str, most_shown: str) -> int:
    if value is None:
        return 0
    if isinstance(value, Quantity):
        amount = _units_of(value, power) if value.nano >= 0 else -1
    elif isinstance(value, bool) or not isinstance(value, (str, int, float, Decimal)):
        raise WireAmountError(f"must be an amount {form}, not {type_name(value)}")
    elif isinstance(value, int):
        amount = value * int(10**-power)
    else:
        try:
            amount = ceil_units(value.strip() if isinstance(value, str) else str(value), power)
        except QuantityError as error:
            raise WireAmountError(str(error)) from None
    if amount < 0:
        raise WireAmountError("must not be negative")
    if amount > most:
        raise WireAmountError(f"is more than fits: at most {most_shown}")
    return amount


def _units_of(quantity: Quantity, power: int) -> int:
    return -(-quantity.nano // (NANO // int(10**-power)))


def _check(amount: int, most: int, unit: str) -> None:
    if not 0 <= amount <= most:
        raise WireAmountError(f"{amount} {unit} cannot be written: 0 to {most} can")


_SPACE = " \t\r\n"


class Unreadable(ValueError):
    """A body that cannot be decoded; the message is a sentence that begins with the field, where there is one."""


def decode_body(body: bytes) -> object:
    """The first JSON value of a body, for Fields. Raises Unreadable."""
    text = body.decode("utf-8", "replace").lstrip(_SPACE)
    if not text:
        raise Unreadable("there is no body")
    return _value(text, "the body")[0]


def _value(text: str, what: str) -> tuple[object, int]:
    try:
        return _DECODER.raw_decode(text)
    except RecursionError:
        raise Unreadable(f"{what} is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise Unreadable(f"{what} is not valid JSON: {error}") from None


def _folded(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for name, value in pairs:
        key = name.casefold()
        before = content.get(key)
        # An object that comes twice fills the same structure twice.
        content[key] = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value
    return content


def _integer(text: str) -> int | Decimal:
    return int(text) if len(text) <= 40 else Decimal(text)


def _fraction(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent beyond all bounds: no field can hold it, and where none wants it it is fine
        return Decimal("NaN")


def _no_constant(text: str) -> None:
    raise json.JSONDecodeError(f"{text} is not a number", text, 0)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_folded, parse_float=_fraction, parse_int=_integer, parse_constant=_no_constant
)


def decode_text(text: str) -> object:
    """The value of a text that has one, such as an annotation, for JsonFields. Raises Unreadable."""
    text = text.strip(_SPACE)
    value, end = _value(text, "it")
    if end < len(text):
        raise Unreadable("it has more than one JSON value")
    return value


def fold_names(content: Any) -> Any:
    """Decoded JSON from elsewhere, such as an object of an API server, for JsonFields."""
    if isinstance(content, dict):
        return _folded([(str(name), fold_names(value)) for name, value in content.items()])
    return content


class JsonFields:
    """The fields of one object, read one by one. Reading raises Unreadable with the field's path."""

    def __init__(self, value: object, path: str = "") -> None:
        """``value`` is of first_value; null is an object without fields."""
        if value is not None and not isinstance(value, dict):
            raise Unreadable(f"{path or 'the body'} must be an object, not {_named(value)}")
        self._values: dict[str, Any] = value or {}
        self._path = path

    def path(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def has(self, name: str) -> bool:
        """Whether it is there and not null."""
        return self._get(name) is not None

    def inner(self, name: str) -> JsonFields:
        return JsonFields(self._get(name), self.path(name))

    def optional(self, name: str) -> JsonFields | None:
        return self.inner(name) if self.has(name) else None

    def text(self, name: str) -> str:
        value = self._get(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self._wrong(name, "a text", value)
        # Half a surrogate pair can be spelled and nothing can write it.
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def flag(self, name: str) -> bool:
        value = self._get(name)
        if not isinstance(value, bool | None):
            raise self._wrong(name, "true or false", value)
        return bool(value)

    def whole(self, name: str, bits: int) -> int:
        """A whole number without a sign, of so many bits."""
        value = self._get(name)
        if value is None:
            return 0
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(name, "a whole number", value)
        if not 0 <= value < 2**bits:
            raise Unreadable(f"{self.path(name)} must be 0 to {2**bits - 1}, not {value}")
        return value

    def number(self, name: str, *, single: bool = False) -> float | None:
        """A finite number (of single precision); None when it is missing."""
        value = self._get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
            raise self._wrong(name, "a number", value)
        try:
            number = float(value)
            struct.pack("<f" if single else "<d", number)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise Unreadable(f"{self.path(name)} is too large a number")
        return number

    def cpu(self, name: str) -> int:
        """Thousandths of a CPU."""
        try:
            return cpu_from_json(self._get(name))
        except WireAmountError as error:
            raise Unreadable(f"{self.path(name)} {error}") from None

    def bytes(self, name: str) -> int:
        try:
            return bytes_from_json(self._get(name))
        except WireAmountError as error:
            raise Unreadable(f"{self.path(name)} {error}") from None

    def _get(self, name: str) -> Any:
        return self._values.get(name.casefold())

    def _wrong(self, name: str, form: str, value: object) -> Unreadable:
        return Unreadable(f"{self.path(name)} must be {form}, not {_named(value)}")


def _named(value: object) -> str:
    return "a fraction or a huge number" if isinstance(value, Decimal) else type_name(value)


def encode_message(message: object) -> bytes:
    """A message as peers write it."""
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
