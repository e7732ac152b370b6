"""The devices that allocated DeviceClaims hold, read back from their status (S18)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from devalloc.api.claim import DeviceAllocation, DeviceClaim
from devalloc.api.device_class import DeviceClass
from devalloc.api.device_records import DeviceRecord, PoolDevice, read_records
from devalloc.api.meta import DEVICE_RECORDS
from devalloc.api.problems import Problem
from devalloc_solver.fleet.node_index import HeldDevice, HeldDevices
from devalloc_solver.pipeline.units import RejectedClaim
from devalloc_solver.problem.allocations import HELD_BEFORE, LEAVING, AllocatedDevice, Holding, Key, LostDevice
from devalloc_solver.problem.ghosts import HeldRecords
from devalloc_solver.problem.snapshot import Device, Ghost, Pool, Snapshot


def held_devices(claim: DeviceClaim, classes: Mapping[str, DeviceClass]) -> HeldDevices:
    """Read what an allocated claim holds; entries of admin details hold nothing (S14, S18)."""
    assert claim.status is not None
    marks = zip(claim.status.allocations, admin_entries(claim, classes), strict=True)
    records = read_records(claim.metadata.annotations.get(DEVICE_RECORDS))
    entries = tuple(_held_device(entry, records) for entry, is_admin in marks if not is_admin)
    return HeldDevices(claim.priority, _named_node(claim), entries, LEAVING if claim.is_leaving else HELD_BEFORE)


def held_by_invalid(claim: RejectedClaim) -> HeldDevices:
    """Read what an invalid claim holds: to give away what it was given would be worse than its error (S13)."""
    entries = () if claim.status is None else claim.status.allocations
    return HeldDevices(0, claim.node, tuple(_held_device(entry, {}) for entry in entries))


def _held_device(entry: DeviceAllocation, records: Mapping[PoolDevice, DeviceRecord]) -> HeldDevice:
    pool, device = entry.device_pool_name, entry.device_name
    return HeldDevice(pool, device, _allocated_amounts(entry), records.get((pool, device)))


def _named_node(claim: DeviceClaim | RejectedClaim) -> str | None:
    return claim.node if isinstance(claim, RejectedClaim) else claim.allocated_node or claim.pinned_node


def read_allocations(snapshot: Snapshot, holders: Iterable[tuple[Key, HeldDevices]]) -> list[Holding]:
    """What claims hold of a snapshot."""
    allocations, look_up = [], DevicesByName(snapshot)
    for key, held in holders:
        items = [_items(look_up.devices(held.node, one.pool, one.device), one.amounts) for one in held.entries]
        allocations.append(Holding(key, held.priority, tuple(chain.from_iterable(items)), held.leave))
    return allocations


def find_lost(
    snapshot: Snapshot, claims: Iterable[DeviceClaim | RejectedClaim]
) -> tuple[dict[Key, list[LostDevice]], list[Problem]]:
    """The devices of claims that are gone, those of admin details too, and what could not be resolved."""
    lost: dict[Key, list[LostDevice]] = {}
    problems: list[Problem] = []
    look_up = DevicesByName(snapshot)
    for claim in claims:
        for entry in () if claim.status is None else claim.status.allocations:
            pool, name = entry.device_pool_name, entry.device_name
            count = sum(device.ghost is None for device in look_up.devices(_named_node(claim), pool, name))
            if not count:
                lost.setdefault(claim.key, []).append({"devicePoolName": pool, "deviceName": name})
            if count > 1 and isinstance(claim, DeviceClaim):
                problems.append(_ambiguous_device(claim.key, entry, count))
    return lost, problems


def ghosts_of(snapshot: Snapshot, held: Iterable[tuple[str | None, HeldDevice]]) -> dict[int, dict[str, Ghost]]:
    """List what the snapshot lacks of devices that claims hold, of these nodes: ghosts by pool and device."""
    records, look_up = HeldRecords(), DevicesByName(snapshot)
    for node, entry in held:
        pools = look_up.pools(node, entry.pool)
        named: list[tuple[Pool, Device | None]]
        named = [(pool, device) for pool in pools for device in look_up.devices_of(pool, entry.device)]
        for pool, device in named or [(pool, None) for pool in pools]:
            records.add(pool, entry.device, device, entry.record)
    return records.ghosts()


def node_of(claim: DeviceClaim, snapshot: Snapshot) -> str | None:
    """The node of an allocated claim: as its annotations say, else the one that has its devices (S2)."""
    named = _named_node(claim)
    if named is not None or claim.status is None:
        return named
    look_up = DevicesByName(snapshot)
    entries = ((entry.device_pool_name, entry.device_name) for entry in claim.status.allocations)
    devices = [device for names in entries for device in look_up.devices(None, *names) if device.ghost is None]
    nodes = {snapshot.pools[device.pool].node for device in devices} - {None}
    return nodes.pop() if len(nodes) == 1 else None


def _allocated_amounts(entry: DeviceAllocation) -> tuple[tuple[str, int], ...] | None:
    """Nano units of each resource that an entry of a status holds; None when it holds the whole device.

    An amount below zero tells nothing of what is held. It must not pay for what others hold, so it is the device (S13).
    """
    amounts = tuple((a.name, a.allocation.nano) for a in entry.allocations)
    return None if any(nano < 0 for _, nano in amounts) else amounts or None


def admin_entries(claim: DeviceClaim, classes: Mapping[str, DeviceClass]) -> list[bool]:
    """For each allocation entry, whether it belongs to an admin detail and so holds nothing (S14, S18)."""
    assert claim.status is not None

    def is_admin(device_class: str | None) -> bool:
        named_class = classes.get(device_class or "")
        return named_class is not None and bool(named_class.spec.admin_access)

    details = claim.allocation_details()
    if details is None:
        every = all(is_admin(d.device_class) for entry in claim.spec.claims for d in entry.alternatives)
        return [every] * len(claim.status.allocations)
    answers = []
    for index, alternative in details:
        entry = claim.spec.claims[index] if index < len(claim.spec.claims) else None
        # An index that does not fit the spec says nothing: the entry counts as held, which is safe (S13).
        fits = entry is not None and (alternative is None) == (not entry.one_of)
        named = entry.alternatives[(alternative or 0) :][:1] if entry is not None and fits else []
        answers.append(any(is_admin(detail.device_class) for detail in named))
    return answers


def _items(devices: Sequence[Device], amounts: tuple[tuple[str, int], ...] | None) -> list[AllocatedDevice]:
    """The devices that an entry may mean, with their ghosts."""
    is_clear = sum(device.ghost is None for device in devices) == 1
    return [
        AllocatedDevice(device.index, amounts, is_clear)
        if device.ghost is None
        else AllocatedDevice(device.index, None, device.ghost.is_certain)
        for device in devices
    ]


class DevicesByName:
    """The pools and devices of a snapshot by their names. A pool of which several devices are looked up is read twice,
    however many they are."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._by_pool: dict[int, dict[str, list[Device]]] = {}

    def devices(self, node: str | None, pool: str, name: str) -> list[Device]:
        """The device of a name, and its ghost. Where its node is unknown and the pool name is not unique, every one
        it may be: holding too much is safe, giving a device twice is not (S13)."""
        return [device for each in self.pools(node, pool) for device in self.devices_of(each, name)]

    def pools(self, node: str | None, name: str) -> Sequence[Pool]:
        """The pools that an entry may mean."""
        if node is None:
            return self._snapshot.pools_by_name.get(name, ())
        pool = self._snapshot.find_pool(node, name)
        return (pool,) if pool is not None else ()

    def devices_of(self, pool: Pool, name: str) -> Sequence[Device]:
        """The device of that name in a pool, and its ghost."""
        by_name = self._by_pool.get(pool.index)
        if by_name is None:  # the only one, for most claims
            self._by_pool[pool.index] = {}
            return [device for device in pool.devices if device.name == name]
        if not by_name:
            for device in pool.devices:
                by_name.setdefault(device.name, []).append(device)
        return by_name.get(name, ())


def _ambiguous_device(claim: Key, entry: DeviceAllocation, count: int) -> Problem:
    return Problem(
        f"{count} pools are named {entry.device_pool_name!r} and the claim does not name its node: "
        f"device {entry.device_name!r} counts as held in all of them; set the annotation devalloc.io/allocated-node",
        path="status.allocations",
        kind="DeviceClaim",
        namespace=claim[0],
        name=claim[1],
    )
