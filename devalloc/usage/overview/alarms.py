"""Devices that claims hold together and cannot: an alarm, whatever the cause (see
``devalloc_solver.problem.overuse``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from devalloc.api.findings import AT_LENGTH, Finding, message_of, owner_ref
from devalloc.api.owner_names import Owner, owner_of
from devalloc.api.quantity import ceil_blocks, floor_blocks
from devalloc.controller.reconcile.availability import FleetCounts
from devalloc.usage.overview.model import Alarm, Dialect, shorten
from devalloc.usage.overview.pools import (
    PoolName,
    SliceDeviceUses,
    SlicePool,
    consumed_counters,
    pool_counters,
    shared_capacities,
)
from devalloc_solver.problem.overuse import DeviceHold, Overuse, find_overuse, overuse_cause

_Name = tuple[str, ...]
"""The driver of a ResourceSlice, pool and device."""


def pool_alarms(counted: FleetCounts) -> Iterator[Alarm]:
    """Among what DeviceClaims and machines hold."""
    pools = {one.pool.metadata.name: one.pool.spec for one in counted.pools}
    devices = {(name, device.name): device for name, pool in pools.items() for device in pool.devices}
    blocks = {(pool, r.name): r for pool, spec in pools.items() for r in spec.resources}

    def holds() -> Iterator[DeviceHold[_Name]]:
        for holding in counted.holdings:
            if holding.is_admin:
                continue
            amounts: dict[str, int] = {}
            for part in holding.entry.allocations:
                amounts[part.name] = amounts.get(part.name, 0) + part.allocation.nano
            is_whole = not amounts or min(amounts.values()) < 0
            name = holding.entry.device_pool_name, holding.entry.device_name
            yield DeviceHold(owner_of(holding.claim), name, None if is_whole else amounts)

    def capacity(name: _Name) -> dict[str, int]:
        device = devices.get((name[0], name[1]))
        return {} if device is None else {each.name: each.capacity.nano for each in device.resources}

    def draws(name: _Name) -> Iterator[tuple[tuple[str, str], int]]:
        device = devices.get((name[0], name[1]))
        for resource, amount in () if device is None else device.requests.items():
            if (pool_resource := blocks.get((name[0], resource))) is not None:
                yield (name[0], resource), ceil_blocks(amount, pool_resource.block)

    def total(counter: tuple[str, str]) -> int:
        return floor_blocks(blocks[counter].capacity, blocks[counter].block)

    yield from _alarms("DevicePool", find_overuse(holds(), capacity, draws, total))


def slice_alarms(pools: Iterable[SlicePool], uses: SliceDeviceUses) -> Iterator[Alarm]:
    """Among what ResourceClaims hold of any driver; shares and counters count where ``pools`` has their devices."""
    by_name = {(pool.driver, pool.name): pool for pool in pools}
    devices = {(*key, str(device.get("name", ""))): device for key, pool in by_name.items() for device in pool.devices}
    totals: dict[PoolName, Mapping[str, int]] = {}

    def holds() -> Iterator[DeviceHold[_Name]]:
        for name, use in uses.items():
            device = devices.get(name)
            for share in use.shares:
                is_whole = share.is_whole or (device is not None and device.get("allowMultipleAllocations") is not True)
                yield DeviceHold(("ResourceClaim", *share.claim), name, None if is_whole else share.nano)

    def capacity(name: _Name) -> dict[str, int]:
        device = devices.get((name[0], name[1], name[2]))
        return {} if device is None else shared_capacities(device)

    def draws(name: _Name) -> Iterator[tuple[tuple[PoolName, str], int]]:
        pool, device = (name[0], name[1]), devices.get((name[0], name[1], name[2]))
        if device is not None and not by_name[pool].wrong:
            for (group, counter), nano in consumed_counters(device):
                yield (pool, f"{group}/{counter}"), nano or 0

    def total(counter: tuple[PoolName, str]) -> int | None:
        pool, name = counter
        if pool not in totals:
            totals[pool] = {"/".join(key): amount.nano for key, amount in pool_counters(by_name[pool]).items()}
        return totals[pool].get(name)

    yield from _alarms("ResourceSlice", find_overuse(holds(), capacity, draws, total))


def _alarms(dialect: Dialect, overuses: Iterable[Overuse[_Name]]) -> Iterator[Alarm]:
    for each in overuses:
        cause = overuse_cause(each, _title, _holder)
        yield Alarm(
            dialect=dialect,
            devices=tuple(_title(device) for device in each.devices),
            holders=tuple((kind, namespace, name) for kind, namespace, name in each.claims),
            cause=cause,
            text=shorten(message_of(Finding([cause]), AT_LENGTH)),
            is_of_owners=each.resource is None,
        )


def _title(device: _Name) -> str:
    """pool/device"""
    return "/".join(device[-2:])


def _holder(owner: tuple[str, ...]) -> Mapping[str, Any]:
    return {**owner_ref(Owner(*owner)), "objectKind": owner[0]}
