"""What claims hold, and what of the pools that leaves: the number is DevicePool.status.availableDevices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from devalloc.api.claim import DeviceAllocation, DeviceClaim
from devalloc.api.decode import decode
from devalloc.api.deviceclass import DeviceClass
from devalloc.api.meta import COMPATIBILITY_GROUP, UNAVAILABLE
from devalloc.api.pool import AttributeValue, Device, DevicePool
from devalloc.api.quantity import ceil_blocks, floor_blocks
from devalloc.api.salvage import salvaged_status
from devalloc.controller import placing
from devalloc.controller.claims import ClaimKey, as_allocated, claim_key, claims_among
from devalloc.controller.placing.machines import MachineKey
from devalloc.controller.reading import Made
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


@dataclass(frozen=True, slots=True)
class Holding:
    """One entry of what a claim was given."""

    claim: ClaimKey
    entry: DeviceAllocation
    is_admin: bool = False
    """Of an admin detail: it holds nothing (S14)."""


def holdings(
    documents: Iterable[Object], classes: Mapping[str, DeviceClass], made: Made | None = None
) -> Iterator[Holding]:
    """What the allocated claims among documents hold. One that cannot be read holds what its status names (S13)."""
    made = made or Made()
    admin = frozenset(name for name, each in classes.items() if each.spec.admin_access)
    for doc in claims_among(documents):
        yield from made.of("holdings", doc, partial(_read_holdings, doc, classes), admin)


def _read_holdings(doc: Object, classes: Mapping[str, DeviceClass]) -> tuple[Holding, ...]:
    claim = decode(doc).object
    if isinstance(claim, DeviceClaim):
        return (*_holdings(claim, classes),)
    status = salvaged_status(doc.get("status"))
    return () if status is None else tuple(Holding(claim_key(doc), entry) for entry in status.allocations)


def _holdings(claim: DeviceClaim, classes: Mapping[str, DeviceClass]) -> Iterator[Holding]:
    if claim.status is not None:
        for entry, is_admin in zip(claim.status.allocations, admin_entries(claim, classes), strict=True):
            yield Holding(claim.key, entry, is_admin)


def uses(held: Iterable[Holding]) -> dict[str, dict[str, Use]]:
    """What is held, by pool name and device name."""
    found: dict[str, dict[str, Use]] = defaultdict(lambda: defaultdict(Use))
    for holding in held:
        if holding.is_admin:
            continue
        use = found[holding.entry.device_pool_name][holding.entry.device_name]
        use.whole |= not holding.entry.allocations
        for part in holding.entry.allocations:
            use.nano[part.name] += part.allocation.nano
    return found


def held_on(node_name: str, documents: Iterable[Object]) -> frozenset[str]:
    """Names of the devices that claims hold on a node; ``documents`` have the claims and the classes.

    What cannot be read holds nothing here: a device that somebody uses is then in use, and never free by mistake.
    """
    found = [decode(document).object for document in documents]
    classes = {o.metadata.name: o for o in found if isinstance(o, DeviceClass)}
    claims = [o for o in found if isinstance(o, DeviceClaim) and node_name == (o.allocated_node or o.pinned_node)]
    held = uses(holding for claim in claims for holding in _holdings(claim, classes))
    return frozenset(device for devices in held.values() for device in devices)


@dataclass(frozen=True, slots=True)
class CountedPool:
    """A pool that can be read, and what is left of it."""

    manifest: Object
    pool: DevicePool
    use: PoolUse
    available: frozenset[str]
    """Names of its devices of which one more claim could get at least a part."""


@dataclass(frozen=True, slots=True)
class Counted:
    """A fleet, counted: here alone it is told what is available and what is held."""

    pools: Sequence[CountedPool]
    holdings: Sequence[Holding]
    """Also of the claims that stand for machines."""
    machines: Mapping[ClaimKey, MachineKey]
    """Which machine a claim stands for that is no object."""


def count(documents: Sequence[Object], made: Made) -> Counted:
    """Of all objects; the pools among them are ``with_cordons``. What a claim holds is taken from ``made`` if the claim
    has not changed."""
    placed, held = _held(documents, made)
    used = uses(held)
    counted = [
        CountedPool(doc, pool, use := used.get(pool.metadata.name, {}), available(pool, use))
        for doc in placed.documents
        if doc["kind"] == "DevicePool" and isinstance(pool := decode(doc).object, DevicePool)
    ]
    return Counted(counted, held, placed.names)


def numbers(documents: Sequence[Object], made: Made) -> list[tuple[Object, int, int]]:
    """The same as numbers: each pool that can be read, with how many devices it has and how many are available. What
    was ``made`` of documents before is not read again."""
    placed, held = _held(documents, made)
    used = uses(held)
    found = []
    for doc in placed.documents:
        if doc["kind"] == "DevicePool":
            use = used.get(doc["metadata"]["name"], {})
            if (number := made.of("available", doc, partial(_numbers, doc, use), use)) is not None:
                found.append((doc, *number))
    return found


def _held(documents: Sequence[Object], made: Made) -> tuple[placing.Placing, list[Holding]]:
    placed = placing.with_machines(as_allocated(documents, made), made)
    classes = [decode(doc).object for doc in placed.documents if doc["kind"] == "DeviceClass"]
    by_name = {each.metadata.name: each for each in classes if isinstance(each, DeviceClass)}
    return placed, list(holdings(placed.documents, by_name, made))


def _numbers(doc: Object, use: PoolUse) -> tuple[int, int] | None:
    pool = decode(doc).object
    return (len(pool.spec.devices), len(available(pool, use))) if isinstance(pool, DevicePool) else None


def available(pool: DevicePool, use: PoolUse) -> frozenset[str]:
    """Names of the devices of which one more claim could get at least a part, each looked at alone."""
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

    return frozenset(device.name for device in pool.spec.devices if is_available(device))


def _attributes(pool: DevicePool) -> dict[str, dict[str, AttributeValue]]:
    """The effective attributes of each device (S3)."""
    of_pool = {attribute.name: attribute.value for attribute in pool.spec.attributes}
    return {
        device.name: of_pool | {attribute.name: attribute.value for attribute in device.attributes}
        for device in pool.spec.devices
    }
