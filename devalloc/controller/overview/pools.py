"""DevicePools as cards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from devalloc.api import summaries
from devalloc.api.cordon import ALL_DEVICES, cordon_reasons
from devalloc.api.meta import UNAVAILABLE
from devalloc.api.quantity import Quantity, QuantityError
from devalloc.controller.overview.model import (
    EXCLUDED,
    STATES,
    CardSummary,
    CardSupply,
    DeviceCounts,
    DeviceHolder,
    DeviceState,
    DeviceSummary,
    device_kind,
    nested_devices,
    safe_text,
    shorten,
)
from devalloc.controller.reconcile.availability import CountedPool, FleetCounts, HeldDevice
from devalloc.controller.reconcile.claims import ClaimKey

DeviceName = tuple[str, str]
"""Pool and device."""


def device_holders(counted: FleetCounts, users: Mapping[ClaimKey, str]) -> dict[DeviceName, list[DeviceHolder]]:
    """Who has which device. ``users``: the machine that a claim is for."""
    by_device: dict[DeviceName, list[DeviceHolder]] = defaultdict(list)
    for holding in counted.holdings:
        entry = holding.entry
        by_device[entry.device_pool_name, entry.device_name].append(_holder(holding, counted, users))
    return by_device


def pool_card(one: CountedPool, holders: Mapping[DeviceName, Sequence[DeviceHolder]]) -> CardSummary:
    spec, name = one.pool.spec, one.pool.metadata.name
    common = {each.name: str(each.value) for each in spec.attributes}
    own = {device.name: common | {each.name: str(each.value) for each in device.attributes} for device in spec.devices}
    devices = tuple(
        DeviceSummary(
            name=device,
            what=device_kind(own[device]),
            state=(state := _state(device, one, own[device])),
            why=EXCLUDED if state == "excluded" else shorten(own[device].get(UNAVAILABLE, "")),
            holders=tuple(holders.get((name, device), ())),
            level=level,
        )
        for device, level in nested_devices(own, own)
    )
    return CardSummary(
        name=name,
        driver=spec.driver,
        model=safe_text(summaries.pool_model, one.manifest),
        numa=safe_text(summaries.pool_numa_nodes, one.manifest),
        cordoned=shorten(cordon_reasons(one.manifest).get(ALL_DEVICES, "")),
        devices=devices,
        counts=DeviceCounts(**{state: sum(device.state == state for device in devices) for state in STATES}),
        supplies=_supplies(one),
    )


def reported_available(one: CountedPool) -> object:
    """How many are available as the controller wrote it; None where it did not."""
    status = one.manifest.get("status")
    return status.get("availableDevices") if isinstance(status, dict) else None


def _state(name: str, one: CountedPool, attributes: Mapping[str, str]) -> DeviceState:
    if name in one.use:
        return "shared" if name in one.available else "held"
    if name in one.available:
        return "free"
    return "unavailable" if UNAVAILABLE in attributes else "excluded"


def _supplies(one: CountedPool) -> tuple[CardSupply, ...]:
    left = {resource.name: resource.capacity for resource in one.pool.spec.resources}
    try:
        for device in one.pool.spec.devices:
            if device.name in one.use:
                for name, amount in device.requests.items():
                    if name in left:
                        left[name] -= amount
    except QuantityError:  # the sum exceeds what a quantity can express
        return ()
    nothing = Quantity(0)
    return tuple(
        CardSupply(resource.name, str(resource.capacity), str(max(left[resource.name], nothing)))
        for resource in one.pool.spec.resources
    )


def _holder(holding: HeldDevice, counted: FleetCounts, users: Mapping[ClaimKey, str]) -> DeviceHolder:
    amounts = ", ".join(f"{part.name} {part.allocation}" for part in holding.entry.allocations)
    machine = counted.machines.get(holding.claim)
    if machine is not None:
        return DeviceHolder("VirtualMachine", *machine, amounts)
    namespace, name = holding.claim
    return DeviceHolder("DeviceClaim", namespace, name, amounts, users.get(holding.claim, ""), holding.is_admin)
