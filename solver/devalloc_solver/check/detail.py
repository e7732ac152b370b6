"""The rules for the devices of one claim detail, without regard to other owners."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from devalloc.api.claim import COUNT, DeviceClaimDetail
from devalloc.api.quantity import NANO, ONE, Quantity
from devalloc_solver.check.pools import CheckedDevice, KnownPools
from devalloc_solver.check.specs import RequestTerms
from devalloc_solver.check.usage import CheckedUse

MAX_WHOLES = 100
"""Whole devices of a driver that are judged for a claim. By these, a solver that gives parts wrongly is seen; and no
expression of a claim is evaluated on a whole fleet once more."""


def detail_violations(
    term: RequestTerms, uses: Sequence[CheckedUse], node: str | None, fleet: KnownPools, pin: str | None
) -> list[str]:
    """What is wrong with the devices of a detail, as sentences without their subject. Raises budget.BudgetExceeded.

    ``pin``: the node to which the claim is bound.
    """
    detail = term.detail
    if not uses:
        return ["has no device (S8)"]
    wrong: list[str] = []
    devices = [use.pooled for use in uses]
    count = 1 if len(devices) == 1 else len({*devices})
    if count < len(devices):
        several = ((pooled, times) for pooled, times in Counter(devices).items() if times > 1)
        wrong += [f"has {times} entries for device {pooled} (S18)" for pooled, times in several]
    rule, have_parts, have_amounts = term.rule, False, False
    for use in uses:
        pooled = use.pooled
        if pooled.accepted_by != rule.number and (refusal := rule.refusal(pooled)) is not None:
            wrong.append(f"device {pooled} {refusal}")
        have_parts |= pooled.is_part
        have_amounts |= bool(use.amounts)
    if have_parts and not (term.is_admin or term.says_which):
        wrong += _part_violations(term, devices, pin, fleet)
    if term.number is not None and term.number[0] <= count <= term.number[1]:
        wrong += _amount_free_violations(uses) if have_amounts else ()
    elif term.is_admin:
        wrong += _admin_violations(term, uses, node, fleet)
    elif COUNT in detail.requests or not detail.requests:
        wrong += _whole_device_violations(detail, uses)
    else:
        wrong += _share_violations(detail, uses)
    if detail.match_attributes:
        wrong += mismatched_attributes(detail.match_attributes, devices)
    return wrong


def mismatched_attributes(names: Iterable[str], devices: Sequence[CheckedDevice]) -> Iterator[str]:
    """The attributes that not all devices have with one value; types count (S15, S3)."""
    for name in names:
        without = [pooled for pooled in devices if name not in pooled.attributes]
        if without:
            yield f"device {without[0]} lacks the attribute {name} that must match (S15)"
            continue
        for pooled in devices[1:]:
            one, other = devices[0].attributes[name], pooled.attributes[name]
            if one != other:  # values of two types are never equal
                yield f"devices {devices[0]} and {pooled} differ in {name}: {one!r} and {other!r} (S15)"
                break


def _admin_violations(
    term: RequestTerms, uses: Sequence[CheckedUse], node: str | None, fleet: KnownPools
) -> Iterator[str]:
    detail = term.detail
    yield from _amount_free_violations(uses)
    yield from _count_violations(detail, uses, exact=True)
    if COUNT in detail.requests:
        return
    taken = {use.pooled.key for use in uses}
    for pooled in fleet.reached(node):
        if pooled.key not in taken and term.rule.refusal(pooled) is None:
            yield f"device {pooled} matches, and an admin detail without a count gets all (S14)"


def _whole_device_violations(detail: DeviceClaimDetail, uses: Sequence[CheckedUse]) -> Iterator[str]:
    yield from _amount_free_violations(uses)
    yield from _count_violations(detail, uses)
    for name in sorted((detail.requests.keys() | detail.limits.keys()) - {COUNT}):
        total = sum(use.pooled.usable(name) for use in uses)
        if name in detail.requests and total < detail.requests[name].nano:
            yield f"{_text(total)} {name} is less than the request of {detail.requests[name]} (S10)"
        if name in detail.limits and total > detail.limits[name].nano:
            yield f"{_text(total)} {name} is more than the limit of {detail.limits[name]} (S10)"


def _share_violations(detail: DeviceClaimDetail, uses: Sequence[CheckedUse]) -> Iterator[str]:
    yield from _count_violations(detail, uses)
    for use in uses:
        if not use.amounts:
            yield f"the share of device {use.pooled} has no amounts (S10)"
        for name, amount in use.amounts.items():
            resource = use.pooled.resources.get(name)
            if name not in detail.requests:
                yield f"device {use.pooled} gives {name}, which was not requested (S11)"
            elif resource is None:
                yield f"device {use.pooled} has no {name} to give (S11)"
            elif amount <= 0:
                yield f"device {use.pooled} gives {_text(amount)} {name}: an entry is more than zero (S11)"
            elif amount % resource.block.nano:
                yield f"{_text(amount)} {name} of device {use.pooled} is not a multiple of {resource.block} (S11)"
    for name, request in detail.requests.items():
        yield from _shared_total(name, request, detail.limits.get(name), uses)


def _shared_total(name: str, request: Quantity, limit: Quantity | None, uses: Sequence[CheckedUse]) -> Iterator[str]:
    givers = [use for use in uses if name in use.amounts and name in use.pooled.resources]
    total = sum(use.amounts[name] for use in givers)
    if total < request.nano:
        yield f"{_text(total)} {name} is less than the request of {request} (S8)"
    for use in givers:
        block = use.pooled.resources[name].block
        if total - block.nano >= request.nano:
            yield f"device {use.pooled} could give a block of {block} {name} less (S11)"
    blocks = sum(use.pooled.resources[name].block.nano for use in givers)
    if limit is not None and total - limit.nano >= blocks:
        yield f"{_text(total)} {name} is more than the limit of {limit}, rounding to blocks included (S9)"


def _amount_free_violations(uses: Sequence[CheckedUse]) -> Iterator[str]:
    for use in uses:
        if use.amounts:
            yield f"device {use.pooled} is not shared here and still has amounts (S10)"


def _count_violations(detail: DeviceClaimDetail, uses: Sequence[CheckedUse], *, exact: bool = False) -> Iterator[str]:
    """The number of devices lies between the request (S8) and the limit (S9); `exact` leaves no room above (S14)."""
    count = len({use.pooled for use in uses})
    request, cap = detail.requests.get(COUNT), detail.limits.get(COUNT)
    if request is not None and (cap is None or exact):
        cap = request
    elif cap is None and not detail.requests and not exact:
        cap = ONE
    if request is not None and count * NANO < request.nano:
        yield f"has {count} devices, and {request} are requested (S8)"
    if cap is not None and count * NANO > cap.nano:
        yield f"has {count} devices, and may have {cap} (S9)"


def _text(nano: int) -> str:
    """An amount for a message; sums may leave the range of a Quantity."""
    units, rest = divmod(nano, NANO)
    return str(units) if rest == 0 else f"{nano}n"


def _part_violations(
    term: RequestTerms, devices: Sequence[CheckedDevice], pin: str | None, fleet: KnownPools
) -> Iterator[str]:
    """What is wrong with parts that a detail has although it does not say that it wants one: a whole device would do.

    ``pin``: the node to which the claim is bound. Raises budget.BudgetExceeded.
    """
    parts = {pooled.pool.spec.driver: pooled for pooled in reversed(devices) if pooled.is_part}
    for driver, pooled in parts.items():
        for whole in islice(fleet.whole_devices(driver, pin), MAX_WHOLES):
            has_all = all(name in whole.attributes for name in term.detail.match_attributes)
            if has_all and term.rule.refusal(whole) is None:
                yield f"device {pooled} is a part, which the claim does not ask for: {whole} is offered whole (S6b)"
                return
