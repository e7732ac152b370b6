"""Equal devices: what all devices have in common that only a name or an address distinguishes. Short: a kind.

Attributes with few values are part of a kind. Attributes with many (uuid, pciBusID, a PCIe root named after its node)
are *varied*: of them a kind has only whether the device has the attribute and which devices of the same node have the
same value, so that equal nodes are of equal kinds. Where even that differs from node to node (firmware by card), they
are *scattered*, and a kind has only whether the device has the attribute. ``choose_group_attributes`` decides which
are which. An inverted index finds the values that are not part of kinds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import NamedTuple

from devalloc.api.meta import COMPATIBILITY_GROUP, ONLY_CLASS
from devalloc.api.quantity import Quantity
from devalloc.api.semver import SemVer
from devalloc_solver.problem.snapshot import Device, Pool, Snapshot, join_pools, renumber, with_index

NODE_KINDS = 48
"""Kinds of nodes that attributes may make of those that nothing else tells apart."""
VARIED_ABOVE = 32
"""Distinct values beyond which an attribute is varied in any case."""


@dataclass(frozen=True, slots=True)
class GroupAttributes:
    """No answer depends on it, only how fast it comes."""

    varied: frozenset[str] = frozenset()
    """attributes that are no part of kinds by value"""
    scattered: frozenset[str] = frozenset()
    """those of them of which kinds do not even have which devices of a node share a value"""
    values: Mapping[str, set[object]] = field(default_factory=dict, compare=False)
    """the values of all others, as far as they were read"""


Column = tuple[tuple[int, ...], tuple[Hashable, ...]]
"""The positions of the devices of a node that have an attribute, and their values."""
Columns = Mapping[str, Column]
"""Of a node, by attribute."""
_NO_COLUMN: Column = (), ()


def choose_group_attributes(
    nodes: Sequence[tuple[Snapshot, Columns]], network: Columns, read: frozenset[str]
) -> GroupAttributes:
    """The choice for a fleet; ``read`` are attributes that claims are known to read."""
    columns = _columns_of_all([own for _, own in nodes])
    values: dict[str, set[object]] = {}
    lists = set()
    for name, column in [*((name, one) for name, of_all in columns.items() for one in of_all), *network.items()]:
        met = values.setdefault(name, set())
        if len(met) <= VARIED_ABOVE:
            met.update(column[1])
        if frozenset in map(type, column[1]):
            lists.add(name)
    groups = _number_values([tuple((p.driver, len(p.devices)) for p in snapshot.pools) for snapshot, _ in nodes])
    most = max(NODE_KINDS, len(set(groups)))
    steady: dict[str, list[int]] = {}
    for name, of_all in columns.items():
        if len(values[name]) <= VARIED_ABOVE:
            steady[name] = _number_values(of_all)
    varied = {name for name, met in values.items() if len(met) > VARIED_ABOVE}
    scattered = set()
    for name in sorted(steady, key=lambda name: (name not in read, max(steady[name], default=0), name)):
        finer = _number_values([*zip(groups, steady[name], strict=True)])
        if max(finer, default=0) < most:
            groups = finer
        else:
            varied.add(name)
    patterns = {name: _number_values([*map(_value_pattern, columns.get(name, ()))]) for name in varied}
    for name in sorted(varied, key=lambda name: (name not in read, max(patterns[name], default=0), name)):
        finer = _number_values([*zip(groups, patterns[name], strict=True)]) if patterns[name] else groups
        if name == COMPATIBILITY_GROUP or (max(finer, default=0) < most and name not in lists):
            groups = finer
        else:
            scattered.add(name)
    fixed = {name: met for name, met in values.items() if name not in varied}
    return GroupAttributes(frozenset(varied), frozenset(scattered), fixed)


def _columns_of_all(nodes: Sequence[Columns]) -> Mapping[str, Sequence[Column]]:
    """For each attribute that of every node."""
    names = dict.fromkeys(name for own in nodes for name in own)
    return {name: [own.get(name, _NO_COLUMN) for own in nodes] for name in names}


def columns_of_node(snapshot: Snapshot) -> dict[str, Column]:
    """Devices that have the same attributes are read together: most of a node are like that."""
    devices = snapshot.devices
    alike: dict[tuple[str, ...], list[int]] = {}
    for position, device in enumerate(devices):
        alike.setdefault(tuple(device.attributes), []).append(position)
    parts: dict[str, list[Column]] = {}
    for names, positions in alike.items():
        rows = zip(*[devices[position].attributes.values() for position in positions], strict=True)
        where = tuple(positions)
        for name, values in zip(names, rows, strict=True):
            parts.setdefault(name, []).append((where, values))
    return {name: own[0] if len(own) == 1 else _join(own) for name, own in parts.items()}


def _join(parts: Sequence[Column]) -> Column:
    entries = [entry for positions, values in parts for entry in zip(positions, values, strict=True)]
    entries.sort(key=itemgetter(0))
    return tuple([position for position, _ in entries]), tuple([value for _, value in entries])


def _value_pattern(column: Column) -> Column:
    """The same for nodes where the same devices share a value."""
    positions, values = column
    if len({*values}) == len(values):
        return positions, ()
    number: dict[Hashable, int] = {}
    return positions, tuple([number.setdefault(each, len(number)) for each in values])


def _number_values(each: Sequence[Hashable]) -> list[int]:
    """A number for each, equal for equal ones; in order of the first."""
    number: dict[Hashable, int] = {}
    return [number.setdefault(one, len(number)) for one in each]


UNSHARED = -1
"""Mark of a value that no other device of the node has."""

_TYPED_VALUES = (Quantity, SemVer)
"""Values that expressions compare with texts in ways of their own (S6): they are entered by type."""
_PLAIN_TYPES = frozenset((str, int, bool, tuple))
"""Of values that are entered as they are."""
_OTHER_PROPERTIES = attrgetter("pool", "draws", "undefined", "shareable", "reach", "traits")
"""What a kind has of a device beside attributes and resources."""

ValueGroups = tuple[tuple[str, int], ...]
"""Varied attributes of a device, each with the number of its value among those that several devices of the node have,
or UNSHARED."""


@dataclass(frozen=True, slots=True, eq=False)
class EqualDevices:
    """Devices that differ in name, and in the values of varied attributes, only."""

    index: int
    driver: str
    one: Device
    """stands for all; what it says of varied attributes holds for itself only"""
    marks: Mapping[str, int]

    def value(self, name: str) -> object | None:
        """A value to compare within a node: equal for devices that have the same value; None without the attribute.

        That of a varied attribute is a mark; ``(UNSHARED,)`` is equal for devices that are *not*. Of a scattered
        attribute nothing is known: it must not be asked for.
        """
        mark = self.marks.get(name)
        return self.one.attributes.get(name) if mark is None else (mark,)


class _AttributeRoles(NamedTuple):
    """The part that each attribute of a device has in its kind; the same for all devices with the same attributes."""

    fixed: tuple[str, ...]
    """by value"""
    marked: tuple[str, ...]
    """by which devices of a node share a value"""
    varied: tuple[str, ...]
    """those that are no part by value"""
    presence: tuple[str, ...]
    """what else a kind has of them"""
    unshared: ValueGroups
    """the marks of a device that shares no value"""


@dataclass(slots=True, eq=False)
class EqualDevicesIndex:
    """All equal devices met so far, by kind, and where the values of varied attributes are."""

    choice: GroupAttributes = field(default_factory=GroupAttributes)
    kinds: list[EqualDevices] = field(default_factory=list)
    places: dict[str, dict[object, Sequence[str | None]]] = field(default_factory=dict)
    """varied attribute -> value -> the nodes of devices with it (None: the network), a node once for each device; those
    of one node together"""
    _by_key: dict[tuple[object, ...], EqualDevices] = field(default_factory=dict)
    _by_node: dict[tuple[object, ...], tuple[EqualDevices, ...]] = field(default_factory=dict)
    """the kinds of nodes that were read"""
    _roles: dict[tuple[str, ...], _AttributeRoles] = field(default_factory=dict)
    """by the names of attributes"""
    _values: dict[str, set[object]] = field(default_factory=lambda: defaultdict(set))
    """attribute that is not varied -> values met"""
    edition: int = 0
    """changes whenever nodes come, go, or have other devices"""
    shareable: bool = False
    """whether any device met is taken in portions"""
    _repeats: dict[str, dict[str | None, int]] = field(default_factory=dict)
    """varied attribute -> node -> the most devices there with one value, as far as requested"""
    _longest: dict[str, int] = field(default_factory=dict)
    """varied attribute -> characters of its longest text, as far as requested"""

    def __post_init__(self) -> None:
        self._values.update(self.choice.values)

    @property
    def varied(self) -> frozenset[str]:
        """Attributes that are no part of kinds by value."""
        return self.choice.varied

    def note(self, snapshot: Snapshot) -> bool:
        """Look at attributes before their devices are read; False when one has too many values by now."""
        varied, most, few = self.varied, VARIED_ABOVE, True
        seen: set[int] = set()
        for device in snapshot.devices:
            attributes = device.attributes
            if id(attributes) in seen:
                continue
            seen.add(id(attributes))
            for name, value in attributes.items():
                if name in varied:
                    continue
                values = self._values[name]
                values.add(value)
                few = few and len(values) <= most
        return few

    def read(self, snapshot: Snapshot, columns: Columns) -> tuple[EqualDevices, ...]:
        """The kind of each device of a node (or of the network), whose columns are given."""
        key = self._node_key(snapshot, columns)
        kinds = self._by_node.get(key)
        if kinds is None:
            kinds = self._by_node[key] = self._read_devices(snapshot)
        return kinds

    def _node_key(self, snapshot: Snapshot, columns: Columns) -> tuple[object, ...]:
        """Equal for nodes whose devices are of the same kinds, in the same order: all that a kind has, at once."""
        attributes: list[tuple[object, ...]] = []
        for name, column in columns.items():
            if name not in self.varied or name == ONLY_CLASS:
                attributes.append((name, *column))
            else:
                attributes.append((name, *(column[:1] if name in self.choice.scattered else _value_pattern(column))))
        resources = tuple([(n, _resources_key(d)) for n, d in enumerate(snapshot.devices) if d.resources])
        drivers = tuple([pool.driver for pool in snapshot.pools])
        return drivers, tuple(attributes), resources, tuple(map(_OTHER_PROPERTIES, snapshot.devices))

    def _read_devices(self, snapshot: Snapshot) -> tuple[EqualDevices, ...]:
        roles = [self._roles_of(tuple(device.attributes)) for device in snapshot.devices]
        marks = _marks(snapshot.devices, roles)
        drivers = [pool.driver for pool in snapshot.pools]
        return tuple(
            [
                self._kind(device, drivers[device.pool], own, marked)
                for device, own, marked in zip(snapshot.devices, roles, marks, strict=True)
            ]
        )

    def enter(self, node: str | None, columns: Columns) -> None:
        """Note where the values of varied attributes are."""
        self._changed()
        here = (node,)  # most values are of one device, and share this
        for name, values in self._varied_values(columns):
            by_value = self.places.setdefault(name, {})
            new = dict.fromkeys(values, here)
            if len(new) == len(values) and by_value.keys().isdisjoint(new):
                by_value.update(new)
                continue
            for value in values:
                nodes = by_value.get(value)
                if nodes is None:
                    by_value[value] = here
                elif isinstance(nodes, list):
                    nodes.append(node)
                else:
                    by_value[value] = [*nodes, node]

    def leave(self, node: str | None, columns: Columns) -> None:
        self._changed()
        for name, values in self._varied_values(columns):
            by_value = self.places[name]
            for value in {*values}:
                by_value[value] = [each for each in by_value[value] if each != node]
                if not by_value[value]:
                    del by_value[value]

    def _changed(self) -> None:
        self._repeats.clear()
        self._longest.clear()
        self.edition += 1

    def find(self, name: str, values: Iterable[object]) -> Mapping[str | None, int] | None:
        """Nodes that have devices whose attribute has one of the values, and at most how many such devices; None when
        the attribute is part of kinds."""
        if name not in self.varied:
            return None
        by_value = self.places.get(name, {})
        return Counter(node for value in dict.fromkeys((*values, *_TYPED_VALUES)) for node in by_value.get(value, ()))

    def count(self, name: str, values: Iterable[object]) -> int:
        """How many devices have one of the values of a varied attribute."""
        by_value = self.places.get(name, {})
        return sum(len(by_value.get(value, ())) for value in values)

    def values(self, name: str) -> Collection[object]:
        """Values that a varied attribute has anywhere; those of odd types only by their type."""
        return self.places.get(name, {})

    def repeats(self, name: str) -> Mapping[str | None, int] | None:
        """The most devices of each node that have one value of an attribute, or may; None when it is part of kinds."""
        if name not in self.varied:
            return None
        if name not in self._repeats:
            most: dict[str | None, int] = {}
            for nodes in self.places.get(name, {}).values():
                for node, count in Counter(nodes).items() if len(nodes) > 1 else ((nodes[0], 1),):
                    if most.get(node, 0) < count:
                        most[node] = count
            self._repeats[name] = most
        return self._repeats[name]

    def longest(self, name: str) -> int:
        """Characters of the longest text among the typed values of a varied attribute."""
        if name not in self._longest:
            texts = [value[1] for value in self.values(name) if type(value) is tuple and type(value[1]) is str]
            self._longest[name] = max(map(len, texts), default=0)
        return self._longest[name]

    def drivers(self) -> list[str]:
        return list(dict.fromkeys(kind.driver for kind in self.kinds))

    def _varied_values(self, columns: Columns) -> Iterable[tuple[str, Sequence[object]]]:
        for name in self.varied & columns.keys():
            values: Sequence[object] = columns[name][1]
            if not _PLAIN_TYPES.issuperset(map(type, values)):
                single = [one for value in values for one in (value if isinstance(value, frozenset) else (value,))]
                values = [type(one) if isinstance(one, _TYPED_VALUES) else one for one in single]
            yield name, values

    def _roles_of(self, names: tuple[str, ...]) -> _AttributeRoles:
        roles = self._roles.get(names)
        if roles is None:
            varied = self.varied.intersection(names)
            marked = tuple(sorted(varied - self.choice.scattered))
            roles = self._roles[names] = _AttributeRoles(
                fixed=tuple(sorted({*names} - varied)),
                marked=marked,
                varied=tuple(sorted(varied)),
                presence=tuple(sorted(self.choice.scattered.intersection(names))),
                unshared=tuple((name, UNSHARED) for name in marked),
            )
        return roles

    def _kind(self, device: Device, driver: str, roles: _AttributeRoles, marks: ValueGroups) -> EqualDevices:
        attributes = device.attributes
        key = (
            driver,
            roles.fixed,
            tuple(map(attributes.__getitem__, roles.fixed)),
            marks,
            roles.presence,
            attributes.get(ONLY_CLASS),
            _resources_key(device) if device.resources else (),
            device.unavailable is None,
            device.draws,
            device.undefined,
            device.shareable,
            device.reach,
            device.traits,
        )
        kind = self._by_key.get(key)
        if kind is None:
            kind = self._by_key[key] = EqualDevices(len(self.kinds), driver, device, dict(marks))
            self.kinds.append(kind)
            self.shareable = self.shareable or device.shareable
        return kind

    def sample(self) -> Snapshot:
        """One device of each kind, its index being that of the kind, in pools that have their driver only."""
        drivers = self.drivers()
        number = {driver: position for position, driver in enumerate(drivers)}
        devices = tuple(with_index(kind.one, kind.index, number[kind.driver]) for kind in self.kinds)
        pools = [
            Pool(position, "", f"of driver {driver}", driver, {}, tuple(d for d in devices if d.pool == position))
            for position, driver in enumerate(drivers)
        ]
        return join_pools(pools, ("",))


def _resources_key(device: Device) -> frozenset[tuple[str, int, int]]:
    return frozenset([(name, r.block, r.blocks) for name, r in device.resources.items()])


def _marks(devices: Sequence[Device], roles: Sequence[_AttributeRoles]) -> Iterable[ValueGroups]:
    """Of each device of a node."""
    columns: dict[str, list[object]] = defaultdict(list)
    for device, own in zip(devices, roles, strict=True):
        for name in own.marked:
            columns[name].append(device.attributes[name])
    shared = {
        name: {value for value, count in Counter(column).items() if count > 1}
        for name, column in columns.items()
        if len({*column}) < len(column)
    }
    numbers: dict[tuple[str, object], int] = {}
    for device, own in zip(devices, roles, strict=True):
        if shared.keys().isdisjoint(own.marked):
            yield own.unshared
            continue
        marks = []
        for name in own.marked:
            value = device.attributes[name]
            is_shared = name in shared and value in shared[name]
            marks.append((name, numbers.setdefault((name, value), len(numbers)) if is_shared else UNSHARED))
        yield tuple(marks)


def reachable_snapshot(own: Snapshot | None, network: Snapshot, node: str | None) -> Snapshot:
    """What a node reaches as one snapshot: first the network's pools, then its own (the natural order of pools)."""
    pools = renumber((*network.pools, *(own.pools if own is not None else ())))
    return join_pools(pools, (node,) if own is not None and own.pools and node is not None else ())


def empty_snapshot() -> Snapshot:
    """A snapshot of nothing."""
    return join_pools(())
