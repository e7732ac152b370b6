"""What claims hold, and what that leaves of the pools: DevicePool.status.availableDevices."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from devalloc.api.claim import DeviceAllocation, DeviceClaim
from devalloc.api.decode import decode
from devalloc.api.device_class import DeviceClass
from devalloc.api.device_records import DeviceRecord, read_records
from devalloc.api.meta import COMPATIBILITY_GROUP, DEVICE_RECORDS
from devalloc.api.moved_claims import moved_claims_among
from devalloc.api.pool import AttributeValue, Device, DevicePool, unavailability
from devalloc.api.quantity import ceil_blocks, floor_blocks
from devalloc.api.unreadable_claims import recover_status
from devalloc.api.views import ClaimKey, ClaimView, device_claims_in
from devalloc.controller.reconcile.requester import Requester, RoundRequests
from devalloc.controller.reconcile.snapshot import Memo
from devalloc.controller.reconcile.stored_claims import effective_documents
from devalloc.store import Object
from devalloc_solver.dialects.device_claims.status import admin_entries
from devalloc_solver.problem.ghosts import UNKNOWN_GROUP, drawn_in_use


@dataclass
class DeviceUse:
    """What claims hold of one device."""

    whole: bool = False
    nano: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Nano units in use of each of the device's resources."""
    records: list[DeviceRecord | None] = field(default_factory=list)
    """What each claim recorded of it."""


PoolUse = Mapping[str, DeviceUse]
"""By device name; devices without holder are not in it."""


@dataclass(frozen=True, slots=True)
class HeldDevice:
    """One entry of what a claim was given."""

    claim: ClaimKey
    entry: DeviceAllocation
    is_admin: bool = False
    """Of an admin detail: it holds nothing (S14)."""
    record: DeviceRecord | None = None
    """What the claim recorded of the device."""


def held_devices(
    documents: Iterable[Object], classes: Mapping[str, DeviceClass], memo: Memo | None = None
) -> Iterator[HeldDevice]:
    """What the allocated claims among documents hold. One that cannot be read holds what its status names (S13)."""
    memo = memo or Memo()
    admin = frozenset(name for name, each in classes.items() if each.spec.admin_access)
    for doc in device_claims_in(documents):
        yield from memo.of("holdings", doc, partial(_held_by_manifest, doc, classes), admin)


def _held_by_manifest(doc: Object, classes: Mapping[str, DeviceClass]) -> tuple[HeldDevice, ...]:
    if not ClaimView(doc).entries:
        return ()  # whatever else is in it: to read all of a claim that waits takes long
    claim = decode(doc).object
    if isinstance(claim, DeviceClaim):
        return (*_held_by_claim(claim, classes),)
    status = recover_status(doc.get("status"))
    return () if status is None else tuple(HeldDevice(ClaimView(doc).key, entry) for entry in status.allocations)


def _held_by_claim(claim: DeviceClaim, classes: Mapping[str, DeviceClass]) -> Iterator[HeldDevice]:
    if claim.status is not None:
        records = read_records(claim.metadata.annotations.get(DEVICE_RECORDS))
        for entry, is_admin in zip(claim.status.allocations, admin_entries(claim, classes), strict=True):
            record = records.get((entry.device_pool_name, entry.device_name))
            yield HeldDevice(claim.key, entry, is_admin, record)


def device_uses(held: Iterable[HeldDevice]) -> dict[str, dict[str, DeviceUse]]:
    """What is held, by pool name and device name."""
    by_pool: dict[str, dict[str, DeviceUse]] = defaultdict(lambda: defaultdict(DeviceUse))
    for holding in held:
        if holding.is_admin:
            continue
        use = by_pool[holding.entry.device_pool_name][holding.entry.device_name]
        use.records.append(holding.record)
        use.whole |= not holding.entry.allocations
        for part in holding.entry.allocations:
            use.nano[part.name] += part.allocation.nano
    return by_pool


def device_names_held_on(node_name: str, documents: Iterable[Object]) -> frozenset[str]:
    """Names of the devices that claims hold on a node, or get there by a move of their machine; ``documents`` have the
    claims, the classes and the machines.

    What cannot be read holds nothing here: a device that a claim uses is then in use, and never free by mistake.
    """
    listed = [*documents]
    objects = [decode(document).object for document in (*listed, *moved_claims_among(listed))]
    classes = {o.metadata.name: o for o in objects if isinstance(o, DeviceClass)}
    claims = [o for o in objects if isinstance(o, DeviceClaim) and node_name == (o.allocated_node or o.pinned_node)]
    held = device_uses(holding for claim in claims for holding in _held_by_claim(claim, classes))
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
class FleetCounts:
    """A fleet, counted: the only place that decides what is available and what is held."""

    pools: Sequence[CountedPool]
    holdings: Sequence[HeldDevice]
    """Also of machines (``owner_names``)."""


def count_fleet(documents: Sequence[Object], memo: Memo, requesters: Sequence[Requester[Any]]) -> FleetCounts:
    """Count a fleet from all of its objects. What a claim holds is taken from ``memo`` if the claim has not changed."""
    held = _held_by_all(documents, memo, requesters)
    used, shared = device_uses(held), _shared_names(documents)
    counted = [
        CountedPool(
            doc,
            pool,
            use := used.get(name := pool.metadata.name, {}),
            available_devices(pool, use, knows_missing=name not in shared),
        )
        for doc in documents
        if doc["kind"] == "DevicePool" and isinstance(pool := decode(doc).object, DevicePool)
    ]
    return FleetCounts(counted, held)


class PoolCounter:
    """The same as numbers, call by call: a call costs what has changed. Not thread-safe."""

    def __init__(self, requesters: Sequence[Requester[Any]] = ()) -> None:
        self._requesters = requesters
        self._others = frozenset(kind for each in requesters for kind in each.kinds)
        """Kinds of what may hold devices beside claims."""
        self._documents: dict[int, Object] = {}
        self._settled: dict[int, Object] = {}
        """Claims that are no longer among the documents, and count."""
        self._uncounted: dict[int, Object] = {}
        """Those of them that no call has counted."""
        self._classes: list[Object] = []
        self._is_plain = False
        """Only claims hold devices, and their classes are what they were."""
        self._held: dict[int, Sequence[HeldDevice]] = {}
        """by the claim, what it holds"""
        self._by_pool: dict[str, dict[int, list[HeldDevice]]] = {}
        """the same by the name of the pool"""
        self._pools: dict[str, list[Object]] = {}
        self._numbers: dict[int, tuple[int, int] | None] = {}
        """by the pool, how many devices it has, and how many are available"""
        self._memo = Memo()
        """of counts where others hold devices"""

    def count(self, documents: Sequence[Object]) -> list[tuple[Object, int, int]]:
        """Each pool that can be read, with how many devices it has and how many are available."""
        settled, uncounted = self._settled, self._uncounted
        before, now = self._documents, {place: doc for doc in documents if (place := id(doc)) not in settled}
        gone = [doc for place, doc in before.items() if place not in now]
        new = [doc for place, doc in now.items() if place not in before] + [*uncounted.values()]
        self._documents, self._uncounted = now, {}
        of_all = {"DeviceClass", *self._others}  # these bear on what claims hold that do not change
        is_small = self._is_plain and all(doc["kind"] not in of_all for doc in (*gone, *new))
        self._is_plain = False  # after an error all is counted
        self._is_plain = is_small and self._note(gone, new)
        if not self._is_plain:
            self._begin([*now.values(), *settled.values()])
        numbers = ((doc, self._numbers[id(doc)]) for doc in documents if doc["kind"] == "DevicePool")
        return [(doc, *number) for doc, number in numbers if number is not None]

    def settle(self, claims: Iterable[Object]) -> None:
        """Count these although they are no longer among the documents, until ``unsettle``."""
        for claim in claims:
            if self._documents.pop(id(claim), None) is None:
                self._uncounted[id(claim)] = claim
            self._settled[id(claim)] = claim

    def unsettle(self, claims: Iterable[Object]) -> None:
        """Count these as long as they are among the documents."""
        for claim in claims:
            is_counted = self._settled.pop(id(claim), None) is not None
            if self._uncounted.pop(id(claim), None) is None and is_counted:
                self._documents[id(claim)] = claim

    def _begin(self, documents: Sequence[Object]) -> None:
        """Count all."""
        self._memo.turn()
        self._classes = [doc for doc in documents if doc["kind"] == "DeviceClass"]
        for counted in (self._held, self._by_pool, self._numbers, self._pools):
            counted.clear()
        for doc in documents:
            if doc["kind"] == "DevicePool":
                self._pools.setdefault(doc["metadata"]["name"], []).append(doc)
        has_others = not self._others.isdisjoint({doc["kind"] for doc in documents})
        self._is_plain = not has_others and self._hold(device_claims_in(documents))
        if self._is_plain:
            for name in self._pools:
                self._count(name)
            return
        held = _held_by_all(documents, self._memo, self._requesters)
        used = device_uses(held)
        for name, pools in self._pools.items():
            use = used.get(name, {})
            for doc in pools:
                made = partial(_pool_numbers, doc, use, knows_missing=len(pools) == 1)
                self._numbers[id(doc)] = self._memo.of("available", doc, made, (use, len(pools)))

    def _note(self, gone: Sequence[Object], new: Sequence[Object]) -> bool:
        """Count the pools anew that have changed, or of which claims have got or given back devices; False if that
        does not suffice."""
        changed = {doc["metadata"]["name"] for doc in (*gone, *new) if doc["kind"] == "DevicePool"}
        for doc in gone:
            self._numbers.pop(id(doc), None)
            for holding in self._held.pop(id(doc), ()):
                changed.add(name := holding.entry.device_pool_name)
                self._by_pool[name].pop(id(doc), None)
        claims = device_claims_in(new)
        if not self._hold(claims):
            return False
        for claim in claims:
            changed.update(holding.entry.device_pool_name for holding in self._held.get(id(claim), ()))
        for name in changed:
            there = [doc for doc in self._pools.get(name, ()) if id(doc) in self._documents]
            there += [doc for doc in new if doc["kind"] == "DevicePool" and doc["metadata"]["name"] == name]
            self._pools[name] = there
            self._count(name)
            if not there:
                del self._pools[name]
            if not self._by_pool.get(name):
                self._by_pool.pop(name, None)
        return True

    def _hold(self, claims: Sequence[Object]) -> bool:
        """Note what claims hold; False if that depends on more than themselves and the classes."""
        if not claims:
            return True
        as_they_count = effective_documents([*self._classes, *claims])
        if len(as_they_count) > len(self._classes) + len(claims):
            return False
        objects = [decode(doc).object for doc in self._classes]
        by_name = {each.metadata.name: each for each in objects if isinstance(each, DeviceClass)}
        for claim, counted in zip(claims, as_they_count[len(self._classes) :], strict=True):
            if held := _held_by_manifest(counted, by_name):
                self._held[id(claim)] = held
            for holding in held:
                self._by_pool.setdefault(holding.entry.device_pool_name, {}).setdefault(id(claim), []).append(holding)
        return True

    def _count(self, name: str) -> None:
        """Count the pools of one name."""
        pools, held = self._pools[name], self._by_pool.get(name, {})
        use = device_uses(one for each in held.values() for one in each).get(name, {})
        for doc in pools:
            self._numbers[id(doc)] = _pool_numbers(doc, use, knows_missing=len(pools) == 1)


def _shared_names(documents: Sequence[Object]) -> frozenset[str]:
    """Names that several pools have: what claims have of one may be missing in another one."""
    names = Counter(doc["metadata"]["name"] for doc in documents if doc["kind"] == "DevicePool")
    return frozenset(name for name, number in names.items() if number > 1)


def _held_by_all(documents: Sequence[Object], memo: Memo, requesters: Sequence[Requester[Any]]) -> Sequence[HeldDevice]:
    """What claims hold, and what all requesters do."""
    placed = RoundRequests(requesters, effective_documents(documents, memo), memo)
    classes = [decode(doc).object for doc in placed.documents if doc["kind"] == "DeviceClass"]
    by_name = {each.metadata.name: each for each in classes if isinstance(each, DeviceClass)}
    return list(held_devices(placed.documents, by_name, memo))


def _pool_numbers(doc: Object, use: PoolUse, *, knows_missing: bool) -> tuple[int, int] | None:
    pool = decode(doc).object
    if not isinstance(pool, DevicePool):
        return None
    return len(pool.spec.devices), len(available_devices(pool, use, knows_missing=knows_missing))


def available_devices(pool: DevicePool, use: PoolUse, *, knows_missing: bool = True) -> frozenset[str]:
    """Names of the devices of which one more claim could get at least a part, each looked at alone. ``knows_missing``:
    whether a device in use that the pool does not have is one that it had."""
    capacity = {resource.name: resource for resource in pool.spec.resources}
    attributes = pool.spec.effective_attributes
    there = {device.name: device for device in pool.spec.devices}
    held = {name: one for name, one in use.items() if knows_missing or name in there}
    groups = _groups_in_use({name: attributes.get(name) for name in held}, held)

    def draws(device: Device) -> dict[str, int]:
        return {name: ceil_blocks(amount, capacity[name].block) for name, amount in device.requests.items()}

    free = {name: floor_blocks(resource.capacity, resource.block) for name, resource in capacity.items()}
    total = {name: blocks * capacity[name].block.nano for name, blocks in free.items()}
    is_closed = False
    for device_name, used in held.items():
        device = there.get(device_name)
        if device is not None and not device.requests.keys() <= capacity.keys():
            continue
        own = None if device is None else draws(device)
        published = None if own is None else {name: n * capacity[name].block.nano for name, n in own.items()}
        drawn = drawn_in_use(total, published, used.records)
        is_closed |= bool(drawn.lost)
        for name, nano in drawn.amounts.items():
            free[name] -= -(-nano // capacity[name].block.nano)

    def is_available(device: Device) -> bool:
        own = attributes[device.name]
        # A resource that the pool does not define can never be drawn on (S12).
        if unavailability(own) is not None or not device.requests.keys() <= capacity.keys():
            return False
        if (own_use := use.get(device.name)) is not None:
            return not own_use.whole and any(
                (resource.capacity.nano - own_use.nano[resource.name]) // resource.block.nano > 0
                for resource in device.resources
            )
        if is_closed or any(blocks > free[name] for name, blocks in draws(device).items()):
            return False
        return COMPATIBILITY_GROUP not in own or groups <= {own[COMPATIBILITY_GROUP]}

    return frozenset(device.name for device in pool.spec.devices if is_available(device))


def _groups_in_use(
    attributes: Mapping[str, Mapping[str, AttributeValue] | None], use: PoolUse
) -> set[AttributeValue | None]:
    """The compatibility groups of devices in use; of one that the pool does not have, the recorded one."""
    groups: set[AttributeValue | None] = set()
    for name, own in attributes.items():
        records = use[name].records
        groups |= {record.group for record in records if record is not None}
        if own is not None:
            groups.add(own.get(COMPATIBILITY_GROUP))
        elif not all(record is not None and record.draws is not None for record in records):
            groups.add(UNKNOWN_GROUP)
    return groups - {None}
