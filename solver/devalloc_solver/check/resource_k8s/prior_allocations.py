"""What was in use before an answer: what the caller lists, and what claims with an allocation hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from devalloc.api.device_records import DeviceRecord, PoolDevice, records_of_manifest
from devalloc.api.json_content import MAPPINGS
from devalloc_solver.check.resource_k8s.pools import DeviceId
from devalloc_solver.check.resource_k8s.quantities import UncountableAmount, to_nano

Manifest = Mapping[str, Any]
Records = Mapping[PoolDevice, DeviceRecord]
"""What a claim recorded of its devices."""


class PriorUsage:
    """Devices in use, counted, so that holders come and go; admin access holds nothing."""

    def __init__(self, allocated: Manifest, claims: Iterable[Manifest]) -> None:
        self.whole: dict[DeviceId, int] = {}
        """device -> times it is held whole"""
        self.shared: dict[DeviceId, int] = {}
        """device -> shares of it"""
        self.share_ids: dict[tuple[DeviceId, str], int] = {}
        self.consumed: dict[DeviceId, dict[str, int]] = {}
        self._of_pools: dict[tuple[str, str], dict[DeviceId, list[DeviceRecord | None]]] = {}
        """pool -> device -> of each claim that has it, what it recorded of it"""
        self._drawing: dict[tuple[str, str], int] = {}
        """pool -> devices of which a claim recorded that they draw something"""
        for one in allocated.get("devices") or ():
            _add_count(self.whole, _device_id(one), 1)
        for one in allocated.get("shares") or ():
            _add_count(self.shared, _device_id(one), 1)
            _add_count(self.share_ids, (_device_id(one), str(one.get("shareID"))), 1)
        for one in allocated.get("consumedCapacity") or ():
            self._share(one, 1)
        for claim in claims:
            self.add((claim.get("status") or {}).get("allocation") or {}, records_of_manifest(claim))

    def __contains__(self, device: DeviceId) -> bool:
        return device in self.whole or device in self.shared

    def of_pool(self, driver: str, pool: str) -> Mapping[DeviceId, Sequence[DeviceRecord | None]]:
        """The devices in use of a pool, with what those recorded that have them."""
        return self._of_pools.get((driver, pool), {})

    def has_draws(self, driver: str, pool: str) -> bool:
        """Whether claims recorded of any device of a pool that it draws something."""
        return (driver, pool) in self._drawing

    def add(self, allocation: Manifest, records: Records) -> None:
        """A claim has an allocation, and recorded this of its devices."""
        for one in _results_with_device(allocation):
            if one.get("adminAccess") is not True:
                key = self._count(one, 1)
                record = _record_of(key, records) if records else None
                of_pool = self._of_pools.get(key[:2])
                if of_pool is None:
                    of_pool = self._of_pools[key[:2]] = {}
                if key in of_pool:
                    of_pool[key].append(record)
                else:
                    of_pool[key] = [record]
                if record is not None and record.draws:
                    _add_count(self._drawing, key[:2], 1)

    def remove(self, allocation: Manifest, records: Records) -> None:
        """It has it no more."""
        for one in _results_with_device(allocation):
            if one.get("adminAccess") is not True:
                key = self._count(one, -1)
                of_pool = self._of_pools[key[:2]]
                held = of_pool[key]
                if len(held) == 1:
                    (record,) = held
                    del of_pool[key]
                    if not of_pool:
                        del self._of_pools[key[:2]]
                else:
                    record = _record_of(key, records) if records else None
                    held.remove(record)
                if record is not None and record.draws:
                    _add_count(self._drawing, key[:2], -1)

    def _count(self, one: Manifest, sign: int) -> DeviceId:
        """Count what a result holds; its device."""
        share, key = one.get("shareID"), _device_id(one)
        if isinstance(share, str) and share:
            self._share(one, sign)
            _add_count(self.share_ids, (key, share), sign)
        else:
            _add_count(self.whole, key, sign)
        return key

    def _share(self, one: Manifest, sign: int) -> None:
        """A share of an amount that is negative or cannot be read is as good as the whole device."""
        amounts = _amounts(one)
        if amounts is None:
            _add_count(self.whole, _device_id(one), sign)
            return
        _add_count(self.shared, _device_id(one), sign)
        consumed = self.consumed.setdefault(_device_id(one), {})
        for name, amount in amounts.items():
            _add_count(consumed, name, sign * amount)
        if not consumed:
            del self.consumed[_device_id(one)]


def _record_of(device: DeviceId, records: Records) -> DeviceRecord | None:
    driver, pool, name = device
    return records.get((f"{driver}/{pool}", name))


def copy_allocation(allocation: Manifest) -> Manifest:
    """What ``PriorUsage`` reads of an allocation, whatever its author writes on it later."""
    return {"devices": {"results": [dict(one) for one in _results_with_device(allocation)]}}


def _results_with_device(allocation: Manifest) -> Iterator[Manifest]:
    """The results that name a device."""
    devices = allocation.get("devices")
    results = devices.get("results") if isinstance(devices, MAPPINGS) else None
    for one in results if isinstance(results, list) else ():
        if isinstance(one, MAPPINGS):
            driver, pool, device = one.get("driver"), one.get("pool"), one.get("device")
            names = isinstance(driver, str) and isinstance(pool, str) and isinstance(device, str)
            if names and driver and pool and device:
                yield one


def _amounts(one: Manifest) -> dict[str, int] | None:
    """What a share takes, in nano units; None if unknown: then all of the device counts as taken."""
    consumed = one.get("consumedCapacity")
    if consumed is None:
        consumed = {}
    if not isinstance(consumed, Mapping) or not isinstance(one.get("adminAccess"), bool | None):
        return None
    try:
        amounts = {name: to_nano(amount) for name, amount in consumed.items() if isinstance(name, str)}
    except (UncountableAmount, ValueError):
        return None
    return amounts if len(amounts) == len(consumed) and all(amount >= 0 for amount in amounts.values()) else None


def _add_count(counts: dict[Any, int], key: object, number: int) -> None:
    count = counts.get(key, 0) + number
    if count:
        counts[key] = count
    else:
        counts.pop(key, None)


def _device_id(one: Manifest) -> DeviceId:
    return one["driver"], one["pool"], one["device"]
