"""What is in use before an answer: what the caller tells, and what claims with an allocation hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from devalloc_solver.check.resource.amounts import Unaccountable, nano
from devalloc_solver.check.resource.offer import DeviceId

Manifest = Mapping[str, Any]

_NAMES = ("driver", "pool", "device")


class Held:
    """Devices in use, counted, so that holders come and go; admin access holds nothing."""

    def __init__(self, allocated: Manifest, claims: Iterable[Manifest]) -> None:
        self.whole: dict[DeviceId, int] = {}
        """device -> times it is held whole"""
        self.shared: dict[DeviceId, int] = {}
        """device -> shares of it"""
        self.share_ids: dict[tuple[DeviceId, str], int] = {}
        self.consumed: dict[DeviceId, dict[str, int]] = {}
        for one in allocated.get("devices") or ():
            _count(self.whole, _id(one), 1)
        for one in allocated.get("shares") or ():
            _count(self.shared, _id(one), 1)
            _count(self.share_ids, (_id(one), str(one.get("shareID"))), 1)
        for one in allocated.get("consumedCapacity") or ():
            self._share(one, 1)
        for claim in claims:
            self.add((claim.get("status") or {}).get("allocation") or {})

    def __contains__(self, device: DeviceId) -> bool:
        return device in self.whole or device in self.shared

    def add(self, allocation: Manifest, sign: int = 1) -> None:
        """A claim has an allocation; with ``sign`` -1 it has it no more."""
        for one in _naming(allocation):
            if one.get("adminAccess") is True:
                continue
            share = one.get("shareID")
            if isinstance(share, str) and share:
                self._share(one, sign)
                _count(self.share_ids, (_id(one), share), sign)
            else:
                _count(self.whole, _id(one), sign)

    def _share(self, one: Manifest, sign: int) -> None:
        """A share of an amount that is negative or cannot be read is as good as the whole device."""
        amounts = _amounts(one)
        if amounts is None:
            _count(self.whole, _id(one), sign)
            return
        _count(self.shared, _id(one), sign)
        consumed = self.consumed.setdefault(_id(one), {})
        for name, amount in amounts.items():
            _count(consumed, name, sign * amount)
        if not consumed:
            del self.consumed[_id(one)]


def copied(allocation: Manifest) -> Manifest:
    """What ``Held`` reads of an allocation, whatever its author writes on it later."""
    return {"devices": {"results": [dict(one) for one in _naming(allocation)]}}


def _naming(allocation: Manifest) -> Iterator[Manifest]:
    """The results that name a device."""
    devices = allocation.get("devices")
    results = devices.get("results") if isinstance(devices, Mapping) else None
    for one in results if isinstance(results, list) else ():
        if isinstance(one, Mapping) and all(one.get(part) and isinstance(one[part], str) for part in _NAMES):
            yield one


def _amounts(one: Manifest) -> dict[str, int] | None:
    """What a share takes, in nano units; None where nobody can tell, and so all of the device is taken."""
    told = one.get("consumedCapacity")
    if told is None:
        told = {}
    if not isinstance(told, Mapping) or not isinstance(one.get("adminAccess"), bool | None):
        return None
    try:
        found = {name: nano(amount) for name, amount in told.items() if isinstance(name, str)}
    except (Unaccountable, ValueError):
        return None
    return found if len(found) == len(told) and all(amount >= 0 for amount in found.values()) else None


def _count(found: dict[Any, int], key: object, number: int) -> None:
    found[key] = found.get(key, 0) + number
    if not found[key]:
        del found[key]


def _id(one: Manifest) -> DeviceId:
    return one["driver"], one["pool"], one["device"]
