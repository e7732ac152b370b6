"""What a request takes of a device's capacity: request policies, rounding, and amounts that are too large.

A request is rounded up to what the policy of the device offers. Without a policy, and without a step, amounts are exact
at any size; stepping happens in 64-bit whole units (thousandths behind DRAFractionalCapacityRange), and an amount that
does not fit there is an error, never wrapped (settled D4).
"""

from __future__ import annotations

from collections.abc import Mapping

from devalloc.api.quantity import NANO
from devalloc_solver.dra.amounts import MAX_INT64, MILLI, Amount
from devalloc_solver.dra.objects import Capacity, Device, Policy, Range


class AmountError(Exception):
    """An amount that nobody can account for: an error of the whole allocation."""


def taken(asked: Mapping[str, Amount], device: Device, *, fractional: bool) -> dict[str, Amount] | str:
    """What a request takes of each capacity, or why the device does not do.

    ``asked`` are the request's amounts by capacity name as the device publishes it. A capacity that is not asked for
    is taken by its policy's default, or in full.

    Raises AmountError for an amount that is negative or cannot be rounded.
    """
    if missing := next((name for name in sorted(asked) if name not in device.capacity), None):
        return f"has no capacity {missing}"
    found = {name: _taken(name, asked.get(name), device.capacity[name], fractional) for name in sorted(device.capacity)}
    for name, amount in found.items():
        if amount.nano < 0:
            raise AmountError(f"capacity {name}: {amount} is negative; correct the device's capacity or policy")
    for name, amount in found.items():
        capacity = device.capacity[name]
        if (why := _violation(amount, capacity.policy, fractional)) is not None:
            return f"takes {amount} of {name}, {why}"
        if amount.nano > capacity.value.nano:
            return f"takes {amount} of {name}, which has {capacity.value}"
    return found


def _taken(name: str, asked: Amount | None, capacity: Capacity, fractional: bool) -> Amount:
    policy = capacity.policy
    if asked is None:
        return policy.default if policy is not None and policy.default is not None else capacity.value
    if policy is None:
        return asked
    if policy.range is not None:
        return _stepped(name, asked, policy.range, fractional)
    return next((value for value in policy.values if asked.nano <= value.nano), asked)


def _stepped(name: str, asked: Amount, offered: Range, fractional: bool) -> Amount:
    """The least amount of a range that is not below what is asked for."""
    if asked.nano < offered.least.nano:
        return offered.least
    if offered.step is None:
        return asked
    if _in_milli(offered, fractional):
        unit, have = MILLI, asked.milli
    else:
        unit, have = NANO, asked.units if asked.nano <= MAX_INT64 * NANO else None
    if have is not None:
        least, step = -(-offered.least.nano // unit), -(-offered.step.nano // unit)
        rounded = least + step * -(-(have - least) // step)
        if rounded <= MAX_INT64:
            return Amount(rounded * unit, offered.step.format)
    digits = "thousandths" if unit == MILLI else "whole units"
    raise AmountError(
        f"capacity {name}: {asked} cannot be rounded to steps of {offered.step} in 64-bit {digits}; ask for less"
    )


def _in_milli(offered: Range, fractional: bool) -> bool:
    """Whether a range is counted in thousandths: behind its gate, when all of it fits."""
    parts = (offered.least, offered.most, offered.step)
    return fractional and all(part is None or part.milli is not None for part in parts)


def _violation(amount: Amount, policy: Policy | None, fractional: bool) -> str | None:
    if policy is None or (policy.default is not None and amount.nano == policy.default.nano):
        return None
    if policy.range is not None:
        return _range_violation(amount, policy.range, fractional)
    if policy.values and all(amount.nano != value.nano for value in policy.values):
        return f"more than any valid value (at most {policy.values[-1]})"
    return None


def _range_violation(amount: Amount, offered: Range, fractional: bool) -> str | None:
    if offered.most is not None and amount.nano > offered.most.nano:
        return f"more than one request may have ({offered.most})"
    if offered.step is None:
        return None
    if _in_milli(offered, fractional):
        unit, have = MILLI, amount.milli
    else:
        unit, have = NANO, amount.units
    least, step = -(-offered.least.nano // unit), -(-offered.step.nano // unit)
    if have is None or (have - least) % step:
        return f"which is not {offered.least} and a number of steps of {offered.step}"
    return None
