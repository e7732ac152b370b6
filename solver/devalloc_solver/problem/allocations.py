"""The devices that claims hold, and all of them added up: what is in use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from devalloc_solver.problem.loads import Loads
from devalloc_solver.problem.snapshot import Device, Snapshot

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


class LeaveMode(Enum):
    """How an owner parts with its devices."""

    LEAVING = "leaving"
    """it is on its way: they come free, and nothing is to be done"""
    RELEASE = "release"
    """it gives them back, and may wait for others"""
    RESTART = "restart"
    """it ends, and begins again elsewhere"""
    LIVE = "live"
    """it goes on while it moves, and has devices in both places until it is there"""


@dataclass(frozen=True, slots=True)
class Leave:
    """How an owner may part with its devices, and how much is lost with that."""

    mode: LeaveMode
    cost: tuple[int, ...]
    """none negative; of all that leave together these are added up, place by place, and the first places count most"""


HELD_BEFORE = Leave(LeaveMode.RELEASE, (1, 1))
LEAVING = Leave(LeaveMode.LEAVING, (1, 1))
GIVEN_NOW = Leave(LeaveMode.RELEASE, (1, 0))
"""As few owners as possible leave; of as many, most are to be those that got their devices in this batch."""


@dataclass(frozen=True, slots=True)
class Holding:
    """The devices that one owner holds, and parts with all at once; those of admin details are not among them."""

    owner: Key
    priority: int
    items: tuple[AllocatedDevice, ...]
    leave: Leave | None = HELD_BEFORE
    """None: the owner stays"""


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
    def of(cls, snapshot: Snapshot, allocations: Iterable[Holding]) -> Usage:
        usage = cls(snapshot)
        for holding in allocations:
            usage.add(holding)
        return usage

    def as_holding(self) -> Holding:
        """All of it, as if one claim held it."""
        items = [AllocatedDevice(index, None) for index in sorted(self.whole)]
        items += [
            AllocatedDevice(index, tuple(sorted(amounts.items()))) for index, amounts in sorted(self.shared.items())
        ]
        return Holding(("", ""), 0, tuple(items))

    def add(self, holding: Holding) -> None:
        for item in holding.items:
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
