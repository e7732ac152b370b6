"""Devices in use: those that the caller lists, and those of claims that have an allocation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from devalloc_solver.dialects.resource_k8s.claims import (
    AllocationEntries,
    DeviceName,
    DeviceResult,
    DevicesInUseSpec,
    ResourceClaim,
)
from devalloc_solver.dialects.resource_k8s.decode import read
from devalloc_solver.dialects.resource_k8s.fields import FieldError
from devalloc_solver.dialects.resource_k8s.quantities import Amount

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
    listed = read(DevicesInUseSpec, allocated, "allocated")
    usage.whole.update(device.id for device in listed.devices)
    for share in listed.shares:
        usage.add_share(share.id, share.share, {})
    for use in listed.consumed:
        usage.add_share(use.id, None, _nano(use.consumed))
    for claim in claims:
        if claim.allocation is not None:
            add_allocation(usage, claim.allocation, f"claim {claim.title}: status.allocation")
    return usage


def add_allocation(usage: DeviceUsage, allocation: Mapping[str, Any], path: str) -> None:
    """Add what a claim's ``status.allocation`` holds. Raises FieldError; all that names a device is added before.

    A device whose held amount is unknown counts as held whole: unreadable content releases nothing.
    """
    faults = []
    for entry, at in _results(allocation, path):
        try:
            _add_result(usage, entry, at)
        except FieldError as error:
            faults.append(error)
    if faults:
        raise faults[0]


def _results(allocation: Mapping[str, Any], path: str) -> Iterator[tuple[Any, str]]:
    """The entries of an allocation, readable or not, each with its path."""
    read(AllocationEntries, allocation, path)
    entries = (allocation.get("devices") or {}).get("results") or ()
    where = f"{path}.devices.results" if path else "devices.results"
    return ((entry, f"{where}[{number}]") for number, entry in enumerate(entries))


def _add_result(usage: DeviceUsage, entry: object, path: str) -> None:
    try:
        result = read(DeviceResult, entry, path)
    except FieldError:
        device = read(DeviceName, entry, path).id
        if not isinstance(entry, Mapping) or entry.get("adminAccess") is not True:
            usage.whole.add(device)
        raise
    if result.admin:
        return
    if result.share:
        usage.add_share(result.id, result.share, _nano(result.consumed))
    else:
        usage.whole.add(result.id)


def readable_allocation(allocation: Mapping[str, Any]) -> dict[str, Any]:
    """What ``add_allocation`` adds of an allocation, as an allocation that can be read."""
    results: list[Any] = []
    try:
        for entry, at in _results(allocation, ""):
            own = DeviceUsage()
            try:
                _add_result(own, entry, at)
                results.append(entry)
            except FieldError:
                results += [dict(zip(("driver", "pool", "device"), device, strict=True)) for device in own.whole]
    except FieldError:
        pass
    return {"devices": {"results": results}}


def _nano(amounts: Mapping[str, Amount]) -> dict[str, int]:
    return {name: amount.nano for name, amount in amounts.items()}
