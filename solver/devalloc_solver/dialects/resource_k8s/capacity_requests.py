"""How much of a device's capacity a request takes: request policies, rounding, and overflow.

A request is rounded up to what the policy of the device offers. Without a policy, and without a step, amounts are exact
at any size; stepping happens in 64-bit whole units (thousandths behind DRAFractionalCapacityRange), and an amount that
does not fit there is an error, never wrapped (settled D4).
"""

from __future__ import annotations

from collections.abc import Mapping

from devalloc.api.quantity import NANO
from devalloc_solver.dialects.resource_k8s.quantities import MAX_INT64, MILLI, Amount
from devalloc_solver.dialects.resource_k8s.slices import (
    CapacityRange,
    CapacityRequestPolicy,
    DeviceCapacity,
    SliceDevice,
)


class CapacityOverflowError(Exception):
    """An amount that cannot be counted: an error of the whole allocation."""


def amounts_to_take(needs: Mapping[str, Amount], device: SliceDevice, *, fractional: bool) -> dict[str, Amount] | str:
    """What a request takes of each capacity, or why the device does not do.

    ``needs`` are the request's amounts by capacity name as the device publishes it. A capacity that is not asked for
    is taken by its policy's default, or in full.

    Raises AmountError for an amount that is negative or cannot be rounded.
    """
    if missing := next((name for name in sorted(needs) if name not in device.capacity), None):
        return f"has no capacity {missing}"
    takes = {
        name: _amount_to_take(name, needs.get(name), device.capacity[name], fractional)
        for name in sorted(device.capacity)
    }
    for name, amount in takes.items():
        if amount.nano < 0:
            raise CapacityOverflowError(
                f"capacity {name}: {amount} is negative; correct the device's capacity or policy"
            )
    for name, amount in takes.items():
        capacity = device.capacity[name]
        if (why := _violation(amount, capacity.policy, fractional)) is not None:
            return f"takes {amount} of {name}, {why}"
        if amount.nano > capacity.value.nano:
            return f"takes {amount} of {name}, which has {capacity.value}"
    return takes


def _amount_to_take(name: str, need: Amount | None, capacity: DeviceCapacity, fractional: bool) -> Amount:
    policy = capacity.policy
    if need is None:
        return policy.default if policy is not None and policy.default is not None else capacity.value
    if policy is None:
        return need
    if policy.range is not None:
        return _round_to_step(name, need, policy.range, fractional)
    return next((value for value in policy.values if need.nano <= value.nano), need)


def _round_to_step(name: str, need: Amount, offered: CapacityRange, fractional: bool) -> Amount:
    """The least amount of a range that is not below what is asked for."""
    if need.nano < offered.least.nano:
        return offered.least
    if offered.step is None:
        return need
    if _counts_in_milli(offered, fractional):
        unit, have = MILLI, need.milli
    else:
        unit, have = NANO, need.units if need.nano <= MAX_INT64 * NANO else None
    if have is not None:
        least, step = -(-offered.least.nano // unit), -(-offered.step.nano // unit)
        rounded = least + step * -(-(have - least) // step)
        if rounded <= MAX_INT64:
            return Amount(rounded * unit, offered.step.format)
    digits = "thousandths" if unit == MILLI else "whole units"
    raise CapacityOverflowError(
        f"capacity {name}: {need} cannot be rounded to steps of {offered.step} in 64-bit {digits}; ask for less"
    )


def _counts_in_milli(offered: CapacityRange, fractional: bool) -> bool:
    """Whether a range is counted in thousandths: behind its gate, when all of it fits."""
    parts = (offered.least, offered.most, offered.step)
    return fractional and all(part is None or part.milli is not None for part in parts)


def _violation(amount: Amount, policy: CapacityRequestPolicy | None, fractional: bool) -> str | None:
    if policy is None or (policy.default is not None and amount.nano == policy.default.nano):
        return None
    if policy.range is not None:
        return _range_violation(amount, policy.range, fractional)
    if policy.values and all(amount.nano != value.nano for value in policy.values):
        return f"more than any valid value (at most {policy.values[-1]})"
    return None


def _range_violation(amount: Amount, offered: CapacityRange, fractional: bool) -> str | None:
    if offered.most is not None and amount.nano > offered.most.nano:
        return f"more than one request may have ({offered.most})"
    if offered.step is None:
        return None
    if _counts_in_milli(offered, fractional):
        unit, have = MILLI, amount.milli
    else:
        unit, have = NANO, amount.units
    least, step = -(-offered.least.nano // unit), -(-offered.step.nano // unit)
    if have is None or (have - least) % step:
        return f"which is not {offered.least} and a number of steps of {offered.step}"
    return None
