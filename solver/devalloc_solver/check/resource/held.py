"""What is in use before an answer: what the caller tells, and what claims with an allocation hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from devalloc_solver.check.resource.amounts import nano
from devalloc_solver.check.resource.offer import DeviceId

Manifest = Mapping[str, Any]


class Held:
    """Devices in use; admin access holds nothing."""

    def __init__(self, allocated: Manifest, claims: Iterable[Manifest]) -> None:
        self.whole: set[DeviceId] = {_id(one) for one in allocated.get("devices") or ()}
        self.shared: set[DeviceId] = {_id(one) for one in allocated.get("shares") or ()}
        self.share_ids: set[tuple[DeviceId, str]] = set()
        self.consumed: dict[DeviceId, dict[str, int]] = defaultdict(dict)
        for one in allocated.get("shares") or ():
            self.share_ids.add((_id(one), str(one.get("shareID"))))
        for one in allocated.get("consumedCapacity") or ():
            self._consume(one)
        for claim in claims:
            devices = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
            for one in devices.get("results") or ():
                if one.get("adminAccess"):
                    continue
                if one.get("shareID"):
                    self.shared.add(_id(one))
                    self.share_ids.add((_id(one), str(one["shareID"])))
                    self._consume(one)
                else:
                    self.whole.add(_id(one))

    def __contains__(self, device: DeviceId) -> bool:
        return device in self.whole or device in self.shared

    def _consume(self, one: Manifest) -> None:
        device = _id(one)
        self.shared.add(device)
        amounts = self.consumed[device]
        for name, amount in (one.get("consumedCapacity") or {}).items():
            amounts[name] = amounts.get(name, 0) + nano(amount)


def _id(one: Manifest) -> DeviceId:
    return one["driver"], one["pool"], one["device"]
