"""The funnels of a whole fleet, counted from its kinds of devices.

If a claim reads unique attributes (a uuid), kinds are refined by them: the devices that have one of the values that it
names are split off, and all others of a kind stay together. A dialect judges one device of each kind or part.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from heapq import nsmallest
from itertools import chain
from typing import NamedTuple, Protocol

from devalloc.api.findings import Rule
from devalloc_solver.explain.funnel import SHOWN, Funnel, Holders, Step, nothing_to_share
from devalloc_solver.explain.typos import MAX_VALUES, ValuesOf
from devalloc_solver.fleet.equal_devices import EqualDevices, EqualDevicesIndex
from devalloc_solver.fleet.fleet_stats import (
    DevicePosition,
    FleetStats,
    Node,
    has_room_left,
    rank_of,
    ranked_users,
)
from devalloc_solver.fleet.pool_states import NodeRecord
from devalloc_solver.problem.allocations import Key
from devalloc_solver.problem.demand import AllocationMode, Request
from devalloc_solver.problem.snapshot import Device, with_index


class FleetParts(Protocol):
    """All devices of a fleet in parts that are judged alike: its kinds (``FleetStats``), or parts of them."""

    @property
    def kinds(self) -> EqualDevicesIndex:
        """The parts, and some that are of no device."""

    def sizes(self) -> Mapping[int, int]:
        """part -> devices"""

    def firsts(self) -> Mapping[int, Sequence[DevicePosition]]:
        """part -> its first SHOWN devices"""

    def taken(self, request: Request, kinds: Collection[int]) -> int:
        """Devices of these parts of which a request can have nothing now."""

    def excluded(self, kinds: Collection[int]) -> int:
        """Free devices of these parts that cannot be had, because others have what they need of the pool."""

    def holders_for(self, request: Request, kinds: Collection[int]) -> Holders:
        """Who holds what is taken of these parts; see ``Funnel.list_holders``."""


class RejectedDevices(NamedTuple):
    """Devices that drop out at one step."""

    stage: int
    rule: Rule
    number: int
    firsts: Sequence[DevicePosition]
    example: tuple[DevicePosition, int] | None
    """the first one of which there is more to say, and its part"""


@dataclass(slots=True)
class FleetFunnels(ABC):
    """Makes the funnels of requests. What a dialect says of a request is asked once for each label, so all requests of
    one label must be the same one, as it was written or as it is read for a few nodes."""

    stats: FleetStats
    parts: FleetParts
    _judged: dict[str, tuple[set[int], tuple[Step, ...]]] = field(default_factory=dict, init=False)

    @abstractmethod
    def judge(self, request: Request) -> tuple[set[int], Iterable[RejectedDevices]]:
        """(the parts that a request may take, how others drop out); of one step, there may be several entries."""

    @abstractmethod
    def example(self, request: Request, by: Rule, first: DevicePosition, part: int) -> str | None:
        """What there is to say of a device that drops out, and is of a part that does."""

    @abstractmethod
    def order(self, step: RejectedDevices) -> tuple[object, ...]:
        """Steps are in the order of these."""

    def make(self, request: Request) -> Funnel:
        if request.label not in self._judged:
            self._judged[request.label] = self._judge(request)
        accepted, steps = self._judged[request.label]
        sizes = self.parts.sizes()
        matching = sum(sizes[part] for part in accepted)
        is_admin = request.mode.is_admin
        taken = 0 if is_admin else self.parts.taken(request, accepted)
        holders = cache(lambda: self.parts.holders_for(request, accepted) if taken else ())
        excluded = 0 if is_admin else self.parts.excluded(accepted)
        total, free = sum(sizes.values()), matching - taken - excluded
        return Funnel(request, total, steps, matching, holders, taken, excluded, free)

    def _judge(self, request: Request) -> tuple[set[int], tuple[Step, ...]]:
        accepted, rejected = self.judge(request)
        by_step: dict[tuple[int, Rule], list[RejectedDevices]] = defaultdict(list)
        for one in rejected:
            by_step[one.stage, one.rule].append(one)
        steps = []
        for step in sorted(map(_joined, by_step.values()), key=self.order):
            example = None if step.example is None else self.example(request, step.rule, *step.example)
            steps.append((step.rule, step.number, tuple(map(self.title, step.firsts)), example))
        if request.mode is AllocationMode.SHARE:
            parts = self.parts.kinds.kinds
            without = [part for part in accepted if not has_room_left(request, parts[part], {})]
            if without:
                step = _joined([self.step(part, nothing_to_share(request)) for part in without])
                steps.append((step.rule, step.number, tuple(map(self.title, step.firsts)), None))
                accepted = accepted.difference(without)
        return accepted, tuple(steps)

    def step(self, part: int, by: Rule, stage: int = 0, *, has_example: bool = False) -> RejectedDevices:
        """All devices of a part drop out."""
        firsts = self.parts.firsts()[part]
        return RejectedDevices(stage, by, self.parts.sizes()[part], firsts, (firsts[0], part) if has_example else None)

    def title(self, position: DevicePosition) -> str:
        record = self.stats.record(position.rank)
        device = record.snapshot.devices[position.device]
        return f"{record.snapshot.pools[device.pool].name}/{device.name}"

    def device(self, position: DevicePosition) -> Device:
        return self.stats.record(position.rank).snapshot.devices[position.device]


def _joined(steps: Sequence[RejectedDevices]) -> RejectedDevices:
    firsts = nsmallest(SHOWN, chain.from_iterable(step.firsts for step in steps))
    example = min((step.example for step in steps if step.example is not None), default=None)
    return RejectedDevices(steps[0].stage, steps[0].rule, sum(step.number for step in steps), firsts, example)


# -- devices that a claim tells apart ----------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class RefinedKinds:
    """All devices of a fleet by kind and by what a claim reads, for one layout of the fleet; see ``FleetParts``.

    Those of some nodes are split off, and all others of a kind are one part. Requests take these devices whole.
    """

    stats: FleetStats
    read: tuple[str, ...]
    """attributes that are no part of kinds"""
    nodes: Collection[Node] | None = None
    """those with devices that are split off; None: all"""
    kinds: EqualDevicesIndex = field(default_factory=EqualDevicesIndex)
    """the parts, as kinds"""
    _sizes: dict[int, int] = field(default_factory=dict)
    _firsts: dict[int, Sequence[DevicePosition]] = field(default_factory=dict)
    _split: dict[tuple[Node, int], int] = field(default_factory=dict)
    """(node, device in its snapshot) -> the part of a device that is split off"""
    _rest: dict[int, int] = field(default_factory=dict)
    """kind -> the part of all other devices of that kind"""

    def __post_init__(self) -> None:
        numbers: dict[tuple[object, ...], int] = {}
        firsts: dict[int, list[DevicePosition]] = {}
        left = Counter(self.stats.sizes())
        for record, pool in self.stats.pools(self._records()):
            for device in record.snapshot.pools[pool].devices:
                values = [device.attributes.get(name) for name in self.read]
                if all(value is None for value in values):
                    continue
                kind = record.kinds[device.index]
                key = (kind.index, *((type(value), value) for value in values))
                number = numbers.get(key)
                if number is None:
                    number = numbers[key] = self._part(kind, device)
                    self._firsts[number] = firsts[number] = []
                self._sizes[number] += 1
                if len(firsts[number]) < SHOWN:
                    firsts[number].append(self.stats.position(record, pool, device.index))
                self._split[record.name, device.index] = number
                left[kind.index] -= 1
        for kind in self.stats.kinds.kinds:
            if left[kind.index]:
                positions = self.stats.first_of(kind, self._split)
                first = self.stats.record(positions[0].rank).snapshot.devices[positions[0].device]
                number = self._rest[kind.index] = self._part(kind, first)
                self._sizes[number], self._firsts[number] = left[kind.index], positions

    def _records(self) -> Iterable[NodeRecord]:
        """In natural order, those that may have a device to be split off."""
        if self.nodes is None:
            return self.stats.in_order()
        return sorted(map(self.stats.node, self.nodes), key=rank_of)

    def _part(self, kind: EqualDevices, device: Device) -> int:
        number = len(self.kinds.kinds)
        self.kinds.kinds.append(EqualDevices(number, kind.driver, with_index(device, number, 0), {}))
        self._sizes[number] = 0
        return number

    def sizes(self) -> Mapping[int, int]:
        return self._sizes

    def firsts(self) -> Mapping[int, Sequence[DevicePosition]]:
        return self._firsts

    def devices(self, parts: Collection[int]) -> Mapping[Node, Sequence[int]]:
        """Node -> its devices that are of these parts."""
        by_node: dict[Node, list[int]] = {}
        if not any(part in parts for part in self._rest.values()):
            for (node, device), part in self._split.items():
                if part in parts:
                    by_node.setdefault(node, []).append(device)
            return by_node
        for record in self.stats.in_order():
            for device, kind in enumerate(record.kinds):
                own = self._split.get((record.name, device), -1)
                if (self._rest.get(kind.index, -1) if own < 0 else own) in parts:
                    by_node.setdefault(record.name, []).append(device)
        return by_node

    @property
    def identifiers(self) -> Mapping[str, ValuesOf[Device]]:
        """What is read of which the parts have but some of the values."""
        return {} if self.nodes is None else {name: partial(self._values_on, name) for name in self.read}

    def _values_on(self, name: str, parts: Sequence[Device]) -> Collection[object] | None:
        """The values of an identifier on all devices of these parts; None when they are more than MAX_VALUES."""
        own_parts = {part.index for part in parts}
        others = sum(
            self._sizes[kind.index]
            for kind in self.kinds.kinds
            if kind.index not in own_parts and name in kind.one.attributes
        )
        # Each other device has one value at most that no device of these parts has.
        if len(self.stats.index.kinds.places.get(name, ())) - others > MAX_VALUES:
            return None
        values: set[object] = set()
        for node, devices in self.devices(own_parts).items():
            own = self.stats.node(node).snapshot.devices
            values.update(own[device].attributes[name] for device in devices if name in own[device].attributes)
        return values if len(values) <= MAX_VALUES else None

    def taken(self, request: Request, kinds: Collection[int]) -> int:
        return sum(_is_used(self.stats.node(n), device) for n, own in self.devices(kinds).items() for device in own)

    def excluded(self, kinds: Collection[int]) -> int:
        return sum(_is_excluded(self.stats.node(n), device) for n, own in self.devices(kinds).items() for device in own)

    def holders_for(self, request: Request, kinds: Collection[int]) -> Holders:
        users: Counter[Key] = Counter()
        for node, devices in self.devices(kinds).items():
            own_devices = {*devices}
            for key in self.stats.holders.get(node, ()):
                users[key] += sum(on == node and device in own_devices for on, device, _ in self.stats.index.held[key])
        return ranked_users(users)


def _is_used(record: NodeRecord, device: int) -> bool:
    pool = record.snapshot.devices[device].pool
    return device - record.starts[pool] in record.uses[pool]


def _is_excluded(record: NodeRecord, device: int) -> bool:
    pool = record.snapshot.devices[device].pool
    group = record.pools[pool].group_of[device - record.starts[pool]]
    return record.states[pool].excluded[group] and not _is_used(record, device)
