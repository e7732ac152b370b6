"""CPU and bytes as the scaling protocols write them: a number where that is short, else a Kubernetes quantity.

Amounts of CPU are thousandths of one. Read is whatever is a quantity, as a text or a JSON number; what is finer than
the unit is rounded up, so that nobody who wants a little gets nothing. null is 0. Negative, empty and unparsable
amounts are errors, and so are those beyond what a peer can hold: peers in use wrap them into something else (T23).
"""

from __future__ import annotations

from decimal import Decimal

from devalloc.api.quantity import NANO, Quantity, QuantityError, ceil_units, type_name

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
    """Thousandths of a CPU. Raises ScalarError."""
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
    """Bytes. Raises ScalarError."""
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
