"""Devices in use: those that the caller lists, and those of claims that have an allocation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from devalloc_solver.dialects.resource_k8s.fields import FieldError, Fields
from devalloc_solver.dialects.resource_k8s.objects import ResourceClaim

DeviceId = tuple[str, str, str]
"""driver, pool, device"""


@dataclass(slots=True)
class DeviceUsage:
    """Devices that are taken, and what shares take of the others."""

    whole: set[DeviceId] = field(default_factory=set)
    shared: dict[DeviceId, dict[str, int]] = field(default_factory=dict)
    """capacity -> nano units; empty where shares take none"""
    share_ids: dict[DeviceId, set[str]] = field(default_factory=lambda: defaultdict(set))

    def is_used(self, device: DeviceId) -> bool:
        return device in self.whole or device in self.shared

    def add_share(self, device: DeviceId, share: str | None, consumed: Mapping[str, int]) -> None:
        amounts = self.shared.setdefault(device, {})
        for name, nano in consumed.items():
            amounts[name] = amounts.get(name, 0) + nano
        if share:
            self.share_ids[device].add(share)


def read_usage(allocated: Mapping[str, Any] | None, claims: Iterable[ResourceClaim]) -> DeviceUsage:
    """Read ``{"devices": [...], "shares": [...], "consumedCapacity": [...]}``, and what claims with a status hold.

    Devices of admin access hold nothing. Raises FieldError.
    """
    usage = DeviceUsage()
    sections = Fields(allocated, "allocated")
    for item, path in sections.items("devices"):
        usage.whole.add(_device_id(Fields(item, path)))
    for item, path in sections.items("shares"):
        fields = Fields(item, path)
        usage.add_share(_device_id(fields), fields.needed("shareID"), {})
    for item, path in sections.items("consumedCapacity"):
        fields = Fields(item, path)
        usage.add_share(_device_id(fields), None, _consumed(fields))
    sections.finish()
    for claim in claims:
        if claim.allocation is not None:
            add_allocation(usage, claim.allocation, f"claim {claim.title}: status.allocation")
    return usage


def add_allocation(usage: DeviceUsage, allocation: Mapping[str, Any], path: str) -> None:
    """Add what a claim's ``status.allocation`` holds. Raises FieldError; all that names a device is added before.

    A device whose held amount is unknown counts as held whole: unreadable content releases nothing.
    """
    faults = []
    for item, at in Fields(allocation, path).within("devices").members("results"):
        try:
            _add_result(usage, Fields(item, at))
        except FieldError as error:
            faults.append(error)
    if faults:
        raise faults[0]


def _add_result(usage: DeviceUsage, result: Fields) -> None:
    device = _device_id(result)
    try:
        is_admin, share, consumed = result.flag("adminAccess"), result.text("shareID"), _consumed(result)
    except FieldError:
        if result.content.get("adminAccess") is not True:
            usage.whole.add(device)
        raise
    if is_admin:
        return
    if share:
        usage.add_share(device, share, consumed)
    else:
        usage.whole.add(device)


def readable_allocation(allocation: Mapping[str, Any]) -> dict[str, Any]:
    """What ``add_allocation`` adds of an allocation, as an allocation that can be read."""
    results: list[Any] = []
    try:
        for item, at in Fields(allocation, "").within("devices").members("results"):
            own = DeviceUsage()
            try:
                _add_result(own, Fields(item, at))
                results.append(item)
            except FieldError:
                results += [dict(zip(("driver", "pool", "device"), device, strict=True)) for device in own.whole]
    except FieldError:
        pass
    return {"devices": {"results": results}}


def _device_id(fields: Fields) -> DeviceId:
    return fields.needed("driver"), fields.needed("pool"), fields.needed("device")


def _consumed(fields: Fields) -> dict[str, int]:
    amounts = fields.amounts("consumedCapacity")
    for name, amount in amounts.items():
        if amount.nano < 0:
            raise FieldError(f"{fields.at('consumedCapacity')}[{name!r}]", f"is negative: {amount}")
    return {name: amount.nano for name, amount in amounts.items()}
