"""The funnels of a whole fleet, counted from its kinds of devices.

Kinds are refined by the unique attributes that a claim reads. If it only compares identifiers with literals, the
devices that have one of these are split off, and all others of a kind stay together.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice
from typing import Any

from devalloc_solver.dialects.device_claims.candidates import CandidateFinder
from devalloc_solver.explain.funnel import MAX_USERS, SHOWN, Funnel, has_room_for
from devalloc_solver.explain.typos import MAX_VALUES
from devalloc_solver.fleet.equal_devices import EqualDevices, EqualDevicesIndex
from devalloc_solver.fleet.fleet_stats import NAMED_PER_KIND, NETWORK, DevicePosition, FleetStats
from devalloc_solver.fleet.pool_states import NodeRecord, PoolState
from devalloc_solver.problem.allocations import Key, Usage
from devalloc_solver.problem.demand import AllocationMode, Request
from devalloc_solver.problem.snapshot import Device

StepKey = tuple[int, str]
"""(stage, what)"""


@dataclass(slots=True)
class KindFunnels:
    """Makes funnels; see ``funnel.Counts``. For one state of the fleet."""

    stats: FleetStats
    eligibility: CandidateFinder
    """judges one device of each kind, as ``Kinds.sample`` has them"""

    def make(self, request: Request) -> Funnel:
        """The funnel of a request of any part of the fleet."""
        sample = self.eligibility.snapshot
        sizes, firsts = self.sizes(), self.firsts()
        rejected: dict[StepKey, list[EqualDevices]] = defaultdict(list)
        examples: dict[StepKey, list[DevicePosition]] = defaultdict(list)
        accepted: set[int] = set()
        without: list[EqualDevices] = []
        nothing = Usage(sample)
        for kind in self.parts():
            if not sizes.get(kind.index):
                continue
            mismatch = self.eligibility.mismatch(request.spec, sample.devices[kind.index])
            if mismatch is not None:
                rejected[mismatch.stage, mismatch.what].append(kind)
                if mismatch.example:
                    examples[mismatch.stage, mismatch.what].append(firsts[kind.index][0])
            elif has_room_for(request, sample, kind.index, nothing):
                accepted.add(kind.index)
            else:
                without.append(kind)
        steps = []
        for (stage, what), kinds in sorted(rejected.items(), key=lambda item: _order(item[0], item[1], sizes)):
            example = self._example(request, examples[stage, what])
            steps.append((what, sum(sizes[k.index] for k in kinds), self._names(kinds), example))
        if without:
            count = sum(sizes[kind.index] for kind in without)
            steps.append(
                (f"have no {' or '.join(sorted(request.requests))} to share", count, self._names(without), None)
            )
        matching = sum(sizes[kind] for kind in accepted)
        taken = 0 if request.mode.is_admin else self.taken(request, accepted)
        holders = self.holders(request, accepted) if taken else ()
        excluded = 0 if request.mode.is_admin else self.excluded(accepted)
        free = matching - taken - excluded
        return Funnel(request, sum(sizes.values()), tuple(steps), matching, holders, taken, excluded, free)

    def parts(self) -> Sequence[EqualDevices]:
        """All devices, in parts that are judged alike."""
        return self.stats.index.kinds.kinds

    def sizes(self) -> Mapping[int, int]:
        """part -> devices"""
        return self.stats.sizes()

    def firsts(self) -> Mapping[int, Sequence[DevicePosition]]:
        """part -> its first devices in natural order"""
        return self.stats.firsts()

    # -- names ---------------------------------------------------------------------------------------------------------

    def _names(self, kinds: Sequence[EqualDevices]) -> tuple[str, ...]:
        """The first devices of these kinds."""
        firsts = self.firsts()
        return tuple(self._title(place) for place in islice(merge(*(firsts[kind.index] for kind in kinds)), SHOWN))

    def _title(self, place: DevicePosition) -> str:
        record = self.stats.record(place[0])
        device = record.snapshot.devices[place[1]]
        return f"{record.snapshot.pools[device.pool].name}/{device.name}"

    def _example(self, request: Request, places: Sequence[DevicePosition]) -> str | None:
        """Why the first device is rejected, in its own values."""
        if not places:
            return None
        first = min(places)
        record = self.stats.record(first[0])
        device = record.snapshot.devices[first[1]]
        sample = self.eligibility.snapshot.devices[first[2]]
        same = type(device)(
            sample.index, sample.pool, device.name, device.attributes, device.resources, device.draws, device.undefined
        )
        mismatch = self.eligibility.mismatch(request.spec, same)
        return None if mismatch is None or not mismatch.example else f"{self._title(first)}: {mismatch.example}"

    # -- in use --------------------------------------------------------------------------------------------------------

    def taken(self, request: Request, accepted: set[int]) -> int:
        """Devices of these kinds of which the request can have nothing now."""
        taken = self.stats.used(accepted)
        if taken and request.mode is AllocationMode.SHARE:
            shared = ((state, count) for state, count in self.stats.states() if state.shared)
            taken -= sum(count * _devices_with_room(request, state, accepted) for state, count in shared)
        return taken

    def excluded(self, accepted: set[int]) -> int:
        """Free devices of these kinds that cannot be had, because others have what they need of the pool."""
        return self.stats.excluded(accepted)

    def holders(self, request: Request, accepted: set[int]) -> tuple[tuple[Key, int], ...]:
        """Who holds them: the first ones, and as many nameless ones as there are more."""
        if request.mode is AllocationMode.SHARE:
            return self._holders_of_shared(request, accepted)
        listed, users = self.stats.holders_of(accepted, MAX_USERS)
        return (*listed, *((_UNNAMED,) * (users - len(listed))))

    def _holders_of_shared(self, request: Request, accepted: set[int]) -> tuple[tuple[Key, int], ...]:
        index = self.stats.index
        taken: dict[tuple[str | None, int], bool] = {}
        users: dict[Any, int] = defaultdict(int)
        for key, items in index.held.items():
            for node, device, _ in items:
                record = index.network if node is None else index.records[node]
                assert record is not None
                if record.kinds[device].index not in accepted:
                    continue
                if (node, device) not in taken:
                    taken[node, device] = not _has_room(request, record, device)
                if taken[node, device]:
                    users[key] += 1
        return tuple(sorted(users.items(), key=lambda item: (-item[1], item[0])))


def _order(step: StepKey, kinds: Sequence[EqualDevices], sizes: Mapping[int, int]) -> tuple[int, int, str]:
    return step[0], -sum(sizes[kind.index] for kind in kinds), step[1]


_UNNAMED: tuple[Key, int] = (("", ""), 0)


def _devices_with_room(request: Request, state: PoolState, kinds: Collection[int]) -> int:
    """Devices of these kinds that are in use, and have something left for a request that shares."""
    own = ((state.kind.kinds[group], use) for group, use in state.shared)
    return sum(
        not whole and _has_room_left(request, kind, dict(amounts))
        for kind, (whole, amounts) in own
        if kind.index in kinds
    )


def _has_room(request: Request, record: NodeRecord, device: int) -> bool:
    pool = record.snapshot.devices[device].pool
    use = record.uses[pool][device - record.starts[pool]]
    return not use.whole and _has_room_left(request, record.kinds[device], use.amounts)


def _has_room_left(request: Request, kind: EqualDevices, used: Mapping[str, int]) -> bool:
    for name in request.requests:
        resource = kind.one.resources.get(name)
        if resource is not None and (resource.nano - used.get(name, 0)) // resource.block > 0:
            return True
    return False


NodeDevice = tuple[str | None, int]
"""(node, device in the snapshot of that node)"""


@dataclass(slots=True, eq=False)
class RefinedKinds:
    """All devices of a fleet by kind and by what a claim reads, for one layout of the fleet."""

    stats: FleetStats
    read: tuple[str, ...]
    """attributes that are no part of kinds"""
    literals: Mapping[str, frozenset[object]] | None
    """what each is compared with, and nothing else is done with it; None where all values count"""
    kinds: EqualDevicesIndex = field(default_factory=EqualDevicesIndex)
    """the parts, as kinds"""
    sizes: dict[int, int] = field(default_factory=dict)
    firsts: dict[int, list[DevicePosition]] = field(default_factory=dict)
    split_devices: dict[NodeDevice, int] = field(default_factory=dict)
    """the part of each device that is split off"""
    rest: dict[int, int] = field(default_factory=dict)
    """kind -> the part of all other devices of that kind"""

    def __post_init__(self) -> None:
        numbers: dict[tuple[object, ...], int] = {}
        left = Counter(self.stats.sizes())
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
                self.split_devices[record.name, device.index] = number
                left[kind.index] -= 1
        for kind in self.stats.index.kinds.kinds:
            if left[kind.index]:
                self._take_rest(kind, left[kind.index])

    def _tells(self, name: str, value: object) -> bool:
        if value is None:
            return False
        return self.literals is None or not isinstance(value, str) or value in self.literals[name]

    def _records(self) -> Iterable[NodeRecord]:
        """In natural order, those that have a device to be split off."""
        if self.literals is None:
            return self.stats.in_order()
        kinds, index = self.stats.index.kinds, self.stats.index
        nodes = {node for name, values in self.literals.items() for node in kinds.find(name, values) or ()}
        own = sorted((index.records[node] for node in nodes if node is not None), key=_rank)
        return [index.network, *own] if None in nodes and index.network is not None else own

    def _part(self, kind: EqualDevices, attributes: Mapping[str, object]) -> int:
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
        self.kinds.kinds.append(EqualDevices(number, kind.driver, like, {}))
        self.sizes[number], self.firsts[number] = 0, []
        return number

    def _take_rest(self, kind: EqualDevices, count: int) -> None:
        places = [p for p in self.stats.firsts()[kind.index] if (self._node(p), p[1]) not in self.split_devices]
        if len(places) < min(NAMED_PER_KIND, count):
            places = []
            for place in self._places(kind):
                if (self._node(place), place[1]) not in self.split_devices:
                    places.append(place)
                    if len(places) == min(NAMED_PER_KIND, count):
                        break
        first = self.stats.record(places[0][0]).snapshot.devices[places[0][1]]
        number = self.rest[kind.index] = self._part(kind, first.attributes)
        self.sizes[number] = count
        self.firsts[number] = [(rank, device, number) for rank, device, _ in places]

    def _places(self, kind: EqualDevices) -> Iterator[DevicePosition]:
        for record in self.stats.in_order():
            for device, own in zip(record.snapshot.devices, record.kinds, strict=True):
                if own is kind:
                    yield _rank(record), device.index, kind.index

    def _node(self, place: DevicePosition) -> str | None:
        return self.stats.record(place[0]).name

    # -- who has what --------------------------------------------------------------------------------------------------

    def devices(self, parts: set[int]) -> Mapping[str | None, Sequence[int]]:
        """Node -> its devices that are of these parts."""
        by_node: dict[str | None, list[int]] = {}
        if parts.isdisjoint(self.rest.values()):
            for (node, device), number in self.split_devices.items():
                if number in parts:
                    by_node.setdefault(node, []).append(device)
            return by_node
        for record in self.stats.in_order():
            for device, kind in enumerate(record.kinds):
                number = self.split_devices.get((record.name, device), -1)
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
        if len(self.stats.index.kinds.places.get(name, ())) - others > MAX_VALUES:
            return None
        values: set[object] = set()
        for node, devices in self.devices(own_parts).items():
            own = _record(self.stats, node).snapshot.devices
            values.update(own[device].attributes[name] for device in devices if name in own[device].attributes)
        return values if len(values) <= MAX_VALUES else None


@dataclass(slots=True)
class RefinedFunnels(KindFunnels):
    """Makes funnels of requests that take whole devices."""

    split: RefinedKinds

    def parts(self) -> Sequence[EqualDevices]:
        return self.split.kinds.kinds

    def sizes(self) -> Mapping[int, int]:
        return self.split.sizes

    def firsts(self) -> Mapping[int, Sequence[DevicePosition]]:
        return self.split.firsts

    def taken(self, request: Request, accepted: set[int]) -> int:
        return sum(
            _is_used(_record(self.stats, node), device)
            for node, devices in self.split.devices(accepted).items()
            for device in devices
        )

    def excluded(self, accepted: set[int]) -> int:
        return sum(
            _is_excluded(_record(self.stats, node), device)
            for node, devices in self.split.devices(accepted).items()
            for device in devices
        )

    def holders(self, request: Request, accepted: set[int]) -> tuple[tuple[Key, int], ...]:
        users: Counter[Key] = Counter()
        held = self.stats.index.held
        for node, devices in self.split.devices(accepted).items():
            own_devices = {*devices}
            for key in self.stats.holders.get(node, ()):
                count = sum(on == node and device in own_devices for on, device, _ in held[key])
                if count:
                    users[key] += count
        return tuple(sorted(users.items(), key=lambda item: (-item[1], item[0])))


def _record(stats: FleetStats, node: str | None) -> NodeRecord:
    record = stats.index.network if node is None else stats.index.records[node]
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
