"""What is in use before an answer: what the caller tells, and what claims with an allocation hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from devalloc_solver.check.resource.amounts import nano
from devalloc_solver.check.resource.offer import DeviceId

Manifest = Mapping[str, Any]


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
            _count(self.shared, _id(one), 1)
            self._consume(one, 1)
        for claim in claims:
            self.add((claim.get("status") or {}).get("allocation") or {})

    def __contains__(self, device: DeviceId) -> bool:
        return device in self.whole or device in self.shared

    def add(self, allocation: Manifest, sign: int = 1) -> None:
        """A claim has an allocation; with ``sign`` -1 it has it no more."""
        for one in (allocation.get("devices") or {}).get("results") or ():
            if one.get("adminAccess"):
                continue
            if one.get("shareID"):
                _count(self.shared, _id(one), sign)
                _count(self.share_ids, (_id(one), str(one["shareID"])), sign)
                self._consume(one, sign)
            else:
                _count(self.whole, _id(one), sign)

    def _consume(self, one: Manifest, sign: int) -> None:
        amounts = self.consumed.setdefault(_id(one), {})
        for name, amount in (one.get("consumedCapacity") or {}).items():
            _count(amounts, name, sign * nano(amount))
        if not amounts:
            del self.consumed[_id(one)]


def _count(found: dict[Any, int], key: object, number: int) -> None:
    found[key] = found.get(key, 0) + number
    if not found[key]:
        del found[key]


def _id(one: Manifest) -> DeviceId:
    return one["driver"], one["pool"], one["device"]
