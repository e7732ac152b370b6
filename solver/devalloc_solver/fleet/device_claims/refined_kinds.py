"""Kinds of devices refined by the unique attributes that a claim reads, for its funnels and typing errors.

If a claim only compares identifiers with literals, the devices that have one of these are split off, and all others of
a kind stay together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from devalloc_solver.explain.typos import MAX_VALUES
from devalloc_solver.fleet.device_kinds import DeviceKind, DeviceKinds
from devalloc_solver.fleet.fleet_stats import NAMED_PER_KIND, NETWORK, DevicePosition, FleetStats
from devalloc_solver.fleet.funnels import KindFunnels
from devalloc_solver.fleet.pool_states import NodeRecord
from devalloc_solver.problem.allocations import Key
from devalloc_solver.problem.demand import Request
from devalloc_solver.problem.snapshot import Device

NodeDevice = tuple[str | None, int]
"""(node, device in the snapshot of that node)"""


@dataclass(slots=True, eq=False)
class RefinedKinds:
    """All devices of a fleet by kind and by what a claim reads, for one layout of the fleet."""

    census: FleetStats
    read: tuple[str, ...]
    """attributes that are no part of kinds"""
    literals: Mapping[str, frozenset[object]] | None
    """what each is compared with, and nothing else is done with it; None where all values count"""
    kinds: DeviceKinds = field(default_factory=DeviceKinds)
    """the parts, as kinds"""
    sizes: dict[int, int] = field(default_factory=dict)
    firsts: dict[int, list[DevicePosition]] = field(default_factory=dict)
    apart: dict[NodeDevice, int] = field(default_factory=dict)
    """the part of each device that is split off"""
    rest: dict[int, int] = field(default_factory=dict)
    """kind -> the part of all other devices of that kind"""

    def __post_init__(self) -> None:
        numbers: dict[tuple[object, ...], int] = {}
        left = Counter(self.census.sizes())
        for record in self._records():
            for device, kind in zip(record.snapshot.devices, record.kinds, strict=True):
                values = [device.attributes.get(name) for name in self.read]
                if not any(map(self._tells, self.read, values)):
                    continue
                key = (kind.index, *((type(value), value) for value in values))
                number = numbers.get(key)
                if number is None:
                    number = numbers[key] = self._part(kind, device.attributes)
                place = _rank(record), device.index, number
                self.sizes[number] += 1
                if len(self.firsts[number]) < NAMED_PER_KIND:
                    self.firsts[number].append(place)
                self.apart[record.name, device.index] = number
                left[kind.index] -= 1
        for kind in self.census.index.kinds.kinds:
            if left[kind.index]:
                self._take_rest(kind, left[kind.index])

    def _tells(self, name: str, value: object) -> bool:
        if value is None:
            return False
        return self.literals is None or not isinstance(value, str) or value in self.literals[name]

    def _records(self) -> Iterable[NodeRecord]:
        """In natural order, those that have a device to be split off."""
        if self.literals is None:
            return self.census.in_order()
        kinds, index = self.census.index.kinds, self.census.index
        nodes = {node for name, values in self.literals.items() for node in kinds.find(name, values) or ()}
        own = sorted((index.records[node] for node in nodes if node is not None), key=_rank)
        return [index.network, *own] if None in nodes and index.network is not None else own

    def _part(self, kind: DeviceKind, attributes: Mapping[str, object]) -> int:
        number = len(self.kinds.kinds)
        one = kind.one
        like = type(one)(
            number,
            0,
            one.name,
            attributes,
            one.resources,
            one.draws,
            one.undefined,
            one.shareable,
            one.reach,
            one.traits,
        )
        self.kinds.kinds.append(DeviceKind(number, kind.driver, like, {}))
        self.sizes[number], self.firsts[number] = 0, []
        return number

    def _take_rest(self, kind: DeviceKind, count: int) -> None:
        places = [p for p in self.census.firsts()[kind.index] if (self._node(p), p[1]) not in self.apart]
        if len(places) < min(NAMED_PER_KIND, count):
            places = []
            for place in self._places(kind):
                if (self._node(place), place[1]) not in self.apart:
                    places.append(place)
                    if len(places) == min(NAMED_PER_KIND, count):
                        break
        first = self.census.record(places[0][0]).snapshot.devices[places[0][1]]
        number = self.rest[kind.index] = self._part(kind, first.attributes)
        self.sizes[number] = count
        self.firsts[number] = [(rank, device, number) for rank, device, _ in places]

    def _places(self, kind: DeviceKind) -> Iterator[DevicePosition]:
        for record in self.census.in_order():
            for device, own in zip(record.snapshot.devices, record.kinds, strict=True):
                if own is kind:
                    yield _rank(record), device.index, kind.index

    def _node(self, place: DevicePosition) -> str | None:
        return self.census.record(place[0]).name

    # -- who has what --------------------------------------------------------------------------------------------------

    def devices(self, parts: set[int]) -> Mapping[str | None, Sequence[int]]:
        """Node -> its devices that are of these parts."""
        by_node: dict[str | None, list[int]] = {}
        if parts.isdisjoint(self.rest.values()):
            for (node, device), number in self.apart.items():
                if number in parts:
                    by_node.setdefault(node, []).append(device)
            return by_node
        for record in self.census.in_order():
            for device, kind in enumerate(record.kinds):
                number = self.apart.get((record.name, device), -1)
                if (self.rest.get(kind.index, -1) if number < 0 else number) in parts:
                    by_node.setdefault(record.name, []).append(device)
        return by_node

    def values_on(self, name: str, parts: Sequence[Device]) -> Collection[object] | None:
        """The values of an identifier on all devices of these parts; None when they are more than MOST_VALUES."""
        own_parts = {part.index for part in parts}
        others = sum(
            self.sizes[kind.index]
            for kind in self.kinds.kinds
            if kind.index not in own_parts and name in kind.one.attributes
        )
        # Each other device has one value at most that no device of these parts has.
        if len(self.census.index.kinds.places.get(name, ())) - others > MAX_VALUES:
            return None
        values: set[object] = set()
        for node, devices in self.devices(own_parts).items():
            own = _record(self.census, node).snapshot.devices
            values.update(own[device].attributes[name] for device in devices if name in own[device].attributes)
        return values if len(values) <= MAX_VALUES else None


@dataclass(slots=True)
class RefinedFunnels(KindFunnels):
    """Makes funnels of requests that take whole devices."""

    split: RefinedKinds

    def parts(self) -> Sequence[DeviceKind]:
        return self.split.kinds.kinds

    def sizes(self) -> Mapping[int, int]:
        return self.split.sizes

    def firsts(self) -> Mapping[int, Sequence[DevicePosition]]:
        return self.split.firsts

    def taken(self, request: Request, accepted: set[int]) -> int:
        return sum(
            _is_used(_record(self.census, node), device)
            for node, devices in self.split.devices(accepted).items()
            for device in devices
        )

    def excluded(self, accepted: set[int]) -> int:
        return sum(
            _is_excluded(_record(self.census, node), device)
            for node, devices in self.split.devices(accepted).items()
            for device in devices
        )

    def holders(self, request: Request, accepted: set[int]) -> tuple[tuple[Key, int], ...]:
        users: Counter[Key] = Counter()
        held = self.census.index.held
        for node, devices in self.split.devices(accepted).items():
            own_devices = {*devices}
            for key in self.census.holders.get(node, ()):
                count = sum(on == node and device in own_devices for on, device, _ in held[key])
                if count:
                    users[key] += count
        return tuple(sorted(users.items(), key=lambda item: (-item[1], item[0])))


def _record(census: FleetStats, node: str | None) -> NodeRecord:
    record = census.index.network if node is None else census.index.records[node]
    assert record is not None
    return record


def _is_used(record: NodeRecord, device: int) -> bool:
    pool = record.snapshot.devices[device].pool
    return device - record.starts[pool] in record.uses[pool]


def _is_excluded(record: NodeRecord, device: int) -> bool:
    pool = record.snapshot.devices[device].pool
    group = record.pools[pool].group_of[device - record.starts[pool]]
    return record.states[pool].excluded[group] and not _is_used(record, device)


def _rank(record: NodeRecord) -> int:
    return NETWORK if record.name is None else record.rank
