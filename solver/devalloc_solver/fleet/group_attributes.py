"""Which attributes define a kind of device: by value, by which devices share a value, or not at all.

The search judges nodes of equal kinds once for a claim, so the number of kinds must stay small however attributes
differ: a serial number of each device, a rack of each node, firmware that differs from card to
card. Attributes that are left out are read device by device, for the few claims that use them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from devalloc.api.meta import COMPATIBILITY_GROUP
from devalloc_solver.problem.snapshot import Snapshot

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


def choose_group_attributes(
    nodes: Iterable[Snapshot], network: Snapshot | None, read: frozenset[str]
) -> GroupAttributes:
    """The choice for a fleet; ``read`` are attributes that claims are known to read."""
    snapshots = list(nodes)
    columns, values = _columns(snapshots)
    for device in network.devices if network is not None else ():
        for name, value in device.attributes.items():
            values.setdefault(name, set()).add(value)
    lists = {name for name, met in values.items() if any(isinstance(value, frozenset) for value in met)}
    groups = _number_values([tuple((p.driver, len(p.devices)) for p in snapshot.pools) for snapshot in snapshots])
    most = max(NODE_KINDS, len(set(groups)))
    steady: dict[str, list[int]] = {}
    for name, column in columns.items():
        if len(values[name]) <= VARIED_ABOVE:
            steady[name] = _number_values(column)
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


_Column = tuple[tuple[int, ...], tuple[Hashable, ...]]
"""The positions of the devices of a node that have an attribute, and their values."""
_NO_COLUMN: _Column = (), ()


def _columns(snapshots: Sequence[Snapshot]) -> tuple[Mapping[str, Sequence[_Column]], dict[str, set[object]]]:
    """For each attribute that of every node, and the values there are."""
    columns: dict[str, list[_Column]] = {}
    values: dict[str, set[object]] = {}
    for number, snapshot in enumerate(snapshots):
        for name, column in _columns_of_node(snapshot).items():
            of_all = columns.get(name)
            if of_all is None:
                of_all, values[name] = columns.setdefault(name, []), set()
            of_all.extend([_NO_COLUMN] * (number - len(of_all)))
            of_all.append(column)
            values[name].update(column[1])
    for of_all in columns.values():
        of_all.extend([_NO_COLUMN] * (len(snapshots) - len(of_all)))
    return columns, values


def _columns_of_node(snapshot: Snapshot) -> dict[str, _Column]:
    """Devices that have the same attributes are read together: most of a node are like that."""
    devices = snapshot.devices
    alike: dict[tuple[str, ...], list[int]] = {}
    for position, device in enumerate(devices):
        alike.setdefault(tuple(device.attributes), []).append(position)
    parts: dict[str, list[_Column]] = {}
    for names, positions in alike.items():
        rows = zip(*[devices[position].attributes.values() for position in positions], strict=True)
        where = tuple(positions)
        for name, values in zip(names, rows, strict=True):
            parts.setdefault(name, []).append((where, values))
    return {name: own[0] if len(own) == 1 else _join(own) for name, own in parts.items()}


def _join(parts: Sequence[_Column]) -> _Column:
    entries = [entry for positions, values in parts for entry in zip(positions, values, strict=True)]
    entries.sort(key=itemgetter(0))
    return tuple([position for position, _ in entries]), tuple([value for _, value in entries])


def _value_pattern(column: _Column) -> _Column:
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
