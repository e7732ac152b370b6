"""What claims hold, and how many devices of a pool that leaves: what DevicePool.status.availableDevices says."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from devalloc.api.claim import DeviceClaim
from devalloc.api.decode import decode
from devalloc.api.deviceclass import DeviceClass
from devalloc.api.meta import COMPATIBILITY_GROUP, UNAVAILABLE
from devalloc.api.pool import AttributeValue, Device, DevicePool
from devalloc.api.quantity import ceil_blocks, floor_blocks
from devalloc.store import Object
from devalloc_solver.holdings import admin_entries


@dataclass
class Use:
    """What claims hold of one device."""

    whole: bool = False
    nano: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Nano units in use of each of the device's resources."""


PoolUse = Mapping[str, Use]
"""By device name; devices that nobody holds are not in it."""


def uses(claims: Iterable[DeviceClaim], classes: Mapping[str, DeviceClass]) -> dict[str, dict[str, Use]]:
    """What the allocated claims hold, by pool name and device name. Admin details hold nothing (S14)."""
    held: dict[str, dict[str, Use]] = defaultdict(lambda: defaultdict(Use))
    for claim in claims:
        if claim.status is None:
            continue
        for entry, is_admin in zip(claim.status.allocations, admin_entries(claim, classes), strict=True):
            if is_admin:
                continue
            use = held[entry.device_pool_name][entry.device_name]
            use.whole |= not entry.allocations
            for part in entry.allocations:
                use.nano[part.name] += part.allocation.nano
    return held


def held_on(node_name: str, documents: Iterable[Object]) -> frozenset[str]:
    """Names of the devices that claims hold on a node; ``documents`` have the claims and the classes.

    What cannot be read holds nothing here: a device that somebody uses is then in use, and never free by mistake.
    """
    found = [decode(document).object for document in documents]
    classes = {o.metadata.name: o for o in found if isinstance(o, DeviceClass)}
    claims = [o for o in found if isinstance(o, DeviceClaim) and node_name == (o.allocated_node or o.pinned_node)]
    return frozenset(device for devices in uses(claims, classes).values() for device in devices)


def available_devices(pool: DevicePool, use: PoolUse) -> int:
    """Devices of which one more claim could get at least a part, each looked at alone."""
    capacity = {resource.name: resource for resource in pool.spec.resources}
    attributes = _attributes(pool)
    held = [device for device in pool.spec.devices if device.name in use]
    groups = {attributes[device.name].get(COMPATIBILITY_GROUP) for device in held} - {None}

    def draws(device: Device) -> dict[str, int]:
        return {name: ceil_blocks(amount, capacity[name].block) for name, amount in device.requests.items()}

    free = {name: floor_blocks(resource.capacity, resource.block) for name, resource in capacity.items()}
    for device in held:
        if device.requests.keys() <= capacity.keys():
            for name, blocks in draws(device).items():
                free[name] -= blocks

    def is_available(device: Device) -> bool:
        own = attributes[device.name]
        # A resource that the pool does not define can never be drawn on (S12).
        if UNAVAILABLE in own or not device.requests.keys() <= capacity.keys():
            return False
        if (mine := use.get(device.name)) is not None:
            return not mine.whole and any(
                (resource.capacity.nano - mine.nano[resource.name]) // resource.block.nano > 0
                for resource in device.resources
            )
        if any(blocks > free[name] for name, blocks in draws(device).items()):
            return False
        return COMPATIBILITY_GROUP not in own or groups <= {own[COMPATIBILITY_GROUP]}

    return sum(map(is_available, pool.spec.devices))


def _attributes(pool: DevicePool) -> dict[str, dict[str, AttributeValue]]:
    """The effective attributes of each device (S3)."""
    of_pool = {attribute.name: attribute.value for attribute in pool.spec.attributes}
    return {
        device.name: of_pool | {attribute.name: attribute.value for attribute in device.attributes}
        for device in pool.spec.devices
    }
