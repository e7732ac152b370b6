"""The devices that allocated claims hold, read back from their status (S18)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from devalloc.api.claim import DeviceAllocation, DeviceClaim
from devalloc.api.device_class import DeviceClass
from devalloc.api.device_records import DeviceRecord, read_records
from devalloc.api.meta import DEVICE_RECORDS
from devalloc.api.problems import Problem
from devalloc_solver.problem.ghosts import HeldRecords
from devalloc_solver.problem.loads import Loads
from devalloc_solver.problem.snapshot import Device, Ghost, Pool, Snapshot

Key = tuple[str, str]
LostDevice = dict[str, str]
"""The names of an allocated device that no longer exists, outermost first: fields of the dialect"""


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """One device that a claim holds: whole when ``amounts`` is None, else the nano units of each resource.

    A claim may hold several shares or portions of a device, each an item of its own: they add up.
    """

    device: int
    amounts: tuple[tuple[str, int], ...] | None
    is_certain: bool = True
    """False for each of several devices if it is unknown which of them it is."""

    @property
    def sums(self) -> dict[str, int] | None:
        """The amounts, each resource once."""
        if self.amounts is None:
            return None
        total: dict[str, int] = {}
        for name, nano in self.amounts:
            total[name] = total.get(name, 0) + nano
        return total


@dataclass(frozen=True, slots=True)
class Allocation:
    """The devices one claim holds; devices of admin details are not among them."""

    claim: Key
    priority: int
    items: tuple[AllocatedDevice, ...]


@dataclass(slots=True)
class Usage:
    """All that is in use, added up. Amounts never go below zero: more held than there is leaves nothing (S18)."""

    snapshot: Snapshot
    whole: set[int] = field(default_factory=set)
    shared: dict[int, dict[str, int]] = field(default_factory=dict)
    """device -> resource -> nano units in use"""
    drawn: dict[int, dict[str, int]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(int)))
    """pool -> resource -> blocks in use"""
    groups: dict[int, set[object]] = field(default_factory=lambda: defaultdict(set))
    """pool -> compatibility groups in use (S12a)"""
    _loads: Loads | None = None

    @classmethod
    def of(cls, snapshot: Snapshot, allocations: Iterable[Allocation]) -> Usage:
        usage = cls(snapshot)
        for allocation in allocations:
            usage.add(allocation)
        return usage

    def add(self, allocation: Allocation) -> None:
        for item in allocation.items:
            device = self.snapshot.devices[item.device]
            before = self.load_of(device) if self._loads is not None else 0
            if not self.in_use(device):
                for name, blocks in device.draws:
                    self.drawn[device.pool][name] += blocks
                if device.compatibility is not None:
                    self.groups[device.pool].add(device.compatibility)
            if item.amounts is None:
                self.whole.add(item.device)
            else:
                used = self.shared.setdefault(item.device, defaultdict(int))
                for name, nano in item.amounts:
                    used[name] += nano
            if self._loads is not None:
                self._loads.add(device.pool, self.load_of(device) - before)

    @property
    def loads(self) -> Loads:
        """How much of each pool and node is in use; once it has been asked for, ``add`` counts there, too."""
        if self._loads is None:
            self._loads = Loads(self.snapshot)
            for index in self.whole | self.shared.keys():
                device = self.snapshot.devices[index]
                self._loads.add(device.pool, self.load_of(device))
        return self._loads

    def load_of(self, device: Device) -> int:
        """How much of a device is in use, see ``Loads``."""
        if not self.in_use(device):
            return 0
        amounts = None if device.index in self.whole else self.shared[device.index]
        return self.loads.scale(device.pool).load(device, amounts)

    def in_use(self, device: Device) -> bool:
        return device.index in self.whole or device.index in self.shared

    def pools_in_use(self) -> set[int]:
        return {self.snapshot.devices[index].pool for index in (*self.whole, *self.shared)}

    def free_blocks(self, device: Device, resource: str) -> int:
        """Blocks that a new share may take."""
        capacity = device.resources.get(resource)
        if capacity is None or device.index in self.whole:
            return 0
        used = self.shared.get(device.index, {}).get(resource, 0)
        return max(0, (capacity.nano - used) // capacity.block)

    def free_nano(self, device: Device, resource: str) -> int:
        """What is left of a resource in nano units; negative where more is held than there is."""
        capacity = device.resources.get(resource)
        return (0 if capacity is None else capacity.nano) - self.shared.get(device.index, {}).get(resource, 0)

    def portions_left(self, device: Device, portion: Iterable[tuple[str, int]]) -> int | None:
        """How many more times a portion can be taken of a shareable device; None for any number of times.

        Where more is held than there is, nothing is left, not even portions of no size.
        """
        if device.index in self.whole:
            return 0
        fewest: int | None = None
        for name, amount in portion:
            left = self.free_nano(device, name)
            times = 0 if left < amount else None if amount == 0 else left // amount
            if times is not None and (fewest is None or times < fewest):
                fewest = times
        return fewest

    def excludes(self, device: Device) -> bool:
        """Whether a device is not in use, and its pool has not what it takes: resources, or its compatibility group."""
        if self.in_use(device) or not (device.draws or device.compatibility is not None):
            return False
        free = {name: self.free_pool_blocks(device.pool, name) for name, _ in device.draws}
        return not pool_allows(device, free, self.groups.get(device.pool))

    def free_pool_blocks(self, pool: int, resource: str) -> int:
        capacity = self.snapshot.pools[pool].resources[resource].blocks
        return max(0, capacity - self.drawn[pool][resource] if pool in self.drawn else capacity)


def pool_allows(device: Device, free: Mapping[str, int], groups: Collection[object] | None) -> bool:
    """Pool resources and compatibility groups (S12, S12a), for a device that is not in use.

    ``free``: blocks that its pool has left; ``groups``: those in use there.
    """
    for name, blocks in device.draws:
        if blocks > free[name]:
            return False
    return device.compatibility is None or not groups or {*groups} == {device.compatibility}


def node_of(claim: DeviceClaim, snapshot: Snapshot) -> str | None:
    """The node of an allocated claim: as its annotations say, else the one that has its devices (S2)."""
    named = claim.allocated_node or claim.pinned_node
    if named is not None or claim.status is None:
        return named
    look_up = DevicesByName(snapshot)
    devices = [d for entry in claim.status.allocations for d in look_up.devices(None, entry) if d.ghost is None]
    nodes = {snapshot.pools[device.pool].node for device in devices} - {None}
    return nodes.pop() if len(nodes) == 1 else None


def read_allocations(
    snapshot: Snapshot, claims: Iterable[DeviceClaim], classes: Mapping[str, DeviceClass]
) -> tuple[list[Allocation], dict[Key, list[LostDevice]], list[Problem]]:
    """What the allocated claims hold, the devices of theirs that are gone, and what could not be resolved."""
    allocations: list[Allocation] = []
    lost: dict[Key, list[LostDevice]] = {}
    problems: list[Problem] = []
    look_up = DevicesByName(snapshot)
    for claim in claims:
        assert claim.status is not None
        held: list[AllocatedDevice] = []
        for entry, admin in zip(claim.status.allocations, admin_entries(claim, classes), strict=True):
            devices = look_up.devices(claim.allocated_node or claim.pinned_node, entry)
            published = [device for device in devices if device.ghost is None]
            if not published:
                lost.setdefault(claim.key, []).append(_lost_device(entry))
            if len(published) > 1:
                problems.append(_ambiguous_device(claim, entry, len(published)))
            if not admin:
                held += _held_devices(devices, allocated_amounts(entry))
        allocations.append(Allocation(claim.key, claim.priority, tuple(held)))
    return allocations, lost, problems


def allocated_amounts(entry: DeviceAllocation) -> tuple[tuple[str, int], ...] | None:
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


def recover_allocation(
    snapshot: Snapshot, claim: Key, node: str | None, entries: Iterable[DeviceAllocation]
) -> tuple[Allocation, list[LostDevice]]:
    """What an invalid claim holds all the same: giving its devices away would be worse than its error (S13)."""
    held: list[AllocatedDevice] = []
    lost: list[LostDevice] = []
    look_up = DevicesByName(snapshot)
    for entry in entries:
        devices = look_up.devices(node, entry)
        held += _held_devices(devices, allocated_amounts(entry))
        if all(device.ghost is not None for device in devices):
            lost.append(_lost_device(entry))
    return Allocation(claim, 0, tuple(held)), lost


def _lost_device(entry: DeviceAllocation) -> LostDevice:
    return {"devicePoolName": entry.device_pool_name, "deviceName": entry.device_name}


def _held_devices(devices: Sequence[Device], amounts: tuple[tuple[str, int], ...] | None) -> list[AllocatedDevice]:
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

    def devices(self, node: str | None, entry: DeviceAllocation) -> list[Device]:
        """The device of an entry, and its ghost. Where its node is unknown and the pool name is not unique, every one
        it may be: holding too much is safe, giving a device twice is not (S13)."""
        pools = self.pools(node, entry.device_pool_name)
        return [device for pool in pools for device in self.devices_of(pool, entry.device_name)]

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


def ghosts_of(
    snapshot: Snapshot,
    claims: Iterable[DeviceClaim],
    others: Iterable[tuple[str | None, Iterable[DeviceAllocation]]],
    classes: Mapping[str, DeviceClass],
) -> dict[int, dict[str, Ghost]]:
    """What the snapshot lacks of the devices of allocated claims: ghosts by pool and device.

    ``others``: node and entries of invalid claims, of which no record counts.
    """
    held, look_up = HeldRecords(), DevicesByName(snapshot)
    for claim in claims:
        assert claim.status is not None
        node = claim.allocated_node or claim.pinned_node
        records = read_records(claim.metadata.annotations.get(DEVICE_RECORDS))
        for entry, admin in zip(claim.status.allocations, admin_entries(claim, classes), strict=True):
            if not admin:
                record = records.get((entry.device_pool_name, entry.device_name))
                _add_record(held, look_up, node, entry, record)
    for node, entries in others:
        for entry in entries:
            _add_record(held, look_up, node, entry, None)
    return held.ghosts()


def _add_record(
    held: HeldRecords, look_up: DevicesByName, node: str | None, entry: DeviceAllocation, record: DeviceRecord | None
) -> None:
    pools = look_up.pools(node, entry.device_pool_name)
    devices = [(pool, device) for pool in pools for device in look_up.devices_of(pool, entry.device_name)]
    for pool, device in devices:
        held.add(pool, entry.device_name, device, record)
    for pool in pools if not devices else ():
        held.add(pool, entry.device_name, None, record)


def _ambiguous_device(claim: DeviceClaim, entry: DeviceAllocation, count: int) -> Problem:
    return Problem(
        f"{count} pools are named {entry.device_pool_name!r} and the claim does not name its node: "
        f"device {entry.device_name!r} counts as held in all of them; set the annotation devalloc.io/allocated-node",
        path="status.allocations",
        kind="DeviceClaim",
        namespace=claim.namespace,
        name=claim.metadata.name,
    )
