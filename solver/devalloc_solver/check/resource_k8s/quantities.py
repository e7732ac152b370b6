"""Quantities as exact integers, and how much of a capacity a request takes by its policy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

NANO = 10**9
_MILLI = 10**6
_LONGEST = 100
"""characters of a quantity"""
_BEYOND = 2**63
"""The first whole number that does not fit 64 bits."""

_TEXT = re.compile(r"([+-]?)(\d*)\.?(\d*)([numkMGTPE]?|[KMGTPE]i|[eE][+-]?\d{1,4})", re.ASCII)
_TENS = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


class UncountableAmount(Exception):
    """A request that cannot be rounded in 64 bits, or an amount below zero: the whole call is an error."""


def to_nano(value: object) -> int:
    """A quantity in nano units: finer ones are rounded away from zero, binary ones capped at 64 bits."""
    return _read(str(value))


@lru_cache(maxsize=4096)
def _read(text: str) -> int:
    match = _TEXT.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None or not match[2] + match[3]:
        raise UncountableAmount(f"{text[:_LONGEST]!r} is not a quantity")
    sign, whole, fraction, suffix = match.groups()
    amount: int = int(whole + fraction)
    power = 9 - len(fraction)
    if suffix.endswith("i"):
        amount <<= 10 * (1 + "KMGTPE".index(suffix[0]))
    else:
        power += _TENS[suffix] if suffix in _TENS else int(suffix[1:])
    amount = amount * 10**power if power >= 0 else -(-amount // 10**-power)
    if suffix.endswith("i"):
        amount = min(amount, (_BEYOND - 1) * NANO)
    return -amount if sign == "-" else amount


def amounts_to_take(
    requested: Mapping[str, object], capacities: Mapping[str, Any], *, fractional: bool
) -> dict[str, int] | None:
    """What a request takes of each capacity of a device, in nano units; None where the device has nothing for it.

    Raises UncountableAmount.
    """
    if not requested.keys() <= capacities.keys():
        return None
    sound: dict[str, int] = {}
    for name, capacity in capacities.items():
        amount = _amount_to_take(requested.get(name), capacity, fractional)
        if amount is not None:
            if amount < 0:
                raise UncountableAmount("an amount is negative")
            sound[name] = amount
    if len(sound) != len(capacities):
        return None
    for name, amount in sound.items():
        if amount > to_nano(capacities[name]["value"]):
            return None
    return sound


def _amount_to_take(requested: object, capacity: Mapping[str, Any], fractional: bool) -> int | None:
    policy = capacity.get("requestPolicy") or {}
    default = policy.get("default")
    if requested is None:
        return to_nano(capacity["value"] if default is None else default)
    amount = to_nano(requested)
    limits = policy.get("validRange") or {}
    if limits.get("min") is not None:
        amount = _round_to_step(amount, limits, fractional)
    elif policy.get("validValues"):
        values = [to_nano(value) for value in policy["validValues"]]
        amount = min((value for value in values if value >= amount), default=amount)
        if amount not in values and (default is None or amount != to_nano(default)):
            return None
    if limits.get("max") is not None and amount > to_nano(limits["max"]):
        return amount if default is not None and amount == to_nano(default) else None
    return amount


def _round_to_step(amount: int, limits: Mapping[str, Any], fractional: bool) -> int:
    """At least the minimum, and a whole number of steps above it: counted in thousandths where all of it fits."""
    least = to_nano(limits["min"])
    if amount < least:
        return least
    if limits.get("step") is None:
        return amount
    parts = [to_nano(limits[name]) for name in ("min", "max", "step") if limits.get(name) is not None]
    milli = fractional and all(part % _MILLI == 0 and abs(part) // _MILLI < _BEYOND for part in parts)
    unit = _MILLI if milli else NANO
    if milli and amount % unit:
        raise UncountableAmount("a request is finer than a thousandth")
    first, step, wanted = (-(-value // unit) for value in (least, to_nano(limits["step"]), amount))
    rounded = first + -(-(wanted - first) // step) * step
    if max(wanted, rounded) >= _BEYOND:
        raise UncountableAmount("a request does not fit 64 bits")
    return rounded * unit
