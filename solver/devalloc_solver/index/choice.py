"""Which attributes are part of the kinds of devices: by value, by which devices share one, or not at all.

Nodes that are alike in all that is part of kinds are looked at once for a claim, so their number must stay small
however attributes differ: a serial number of each device, a rack of each node, firmware that differs from card to
card. What is left out is read device by device, by the few claims that read it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from devalloc.api.meta import COMPATIBILITY_GROUP
from devalloc_solver.snapshot import Snapshot

NODE_KINDS = 48
"""Kinds of nodes that attributes may make of those that nothing else tells apart."""
VARIED = 32
"""Distinct values beyond which an attribute is varied in any case."""


@dataclass(frozen=True, slots=True)
class Choice:
    """No answer depends on it, only how fast it comes."""

    varied: frozenset[str] = frozenset()
    """attributes that are no part of kinds by value"""
    scattered: frozenset[str] = frozenset()
    """those of them of which kinds do not even have which devices of a node share a value"""


def choose(nodes: Iterable[Snapshot], network: Snapshot | None, read: frozenset[str]) -> Choice:
    """The choice for a fleet; ``read`` are attributes that claims are known to read."""
    snapshots = list(nodes)
    columns, values = _columns(snapshots)
    for device in network.devices if network is not None else ():
        for name, value in device.attributes.items():
            values.setdefault(name, set()).add(value)
    lists = {name for name, met in values.items() if any(isinstance(value, frozenset) for value in met)}
    groups = _numbers([tuple((p.driver, len(p.devices)) for p in snapshot.pools) for snapshot in snapshots])
    most = max(NODE_KINDS, len(set(groups)))
    steady: dict[str, list[int]] = {}
    for name, column in columns.items():
        if len(values[name]) <= VARIED:
            steady[name] = _numbers(column)
    varied = {name for name, met in values.items() if len(met) > VARIED}
    scattered = set()
    for name in sorted(steady, key=lambda name: (name not in read, max(steady[name], default=0), name)):
        finer = _numbers([*zip(groups, steady[name], strict=True)])
        if max(finer, default=0) < most:
            groups = finer
        else:
            varied.add(name)
    patterns = {name: _numbers([*map(_pattern, columns.get(name, ()))]) for name in varied}
    for name in sorted(varied, key=lambda name: (name not in read, max(patterns[name], default=0), name)):
        finer = _numbers([*zip(groups, patterns[name], strict=True)]) if patterns[name] else groups
        if name == COMPATIBILITY_GROUP or (max(finer, default=0) < most and name not in lists):
            groups = finer
        else:
            scattered.add(name)
    return Choice(frozenset(varied), frozenset(scattered))


_Column = tuple[Hashable, ...]
"""(position, value) in turn of the devices of a node that have an attribute"""


def _columns(snapshots: Sequence[Snapshot]) -> tuple[Mapping[str, Sequence[_Column]], dict[str, set[object]]]:
    """For each attribute that of every node, and the values there are."""
    columns: dict[str, list[_Column]] = {}
    values: dict[str, set[object]] = {}
    for number, snapshot in enumerate(snapshots):
        mine: dict[str, list[Hashable]] = {}
        for position, device in enumerate(snapshot.devices):
            for name, value in device.attributes.items():
                column = mine.get(name)
                if column is None:
                    column = mine[name] = []
                column.append(position)
                column.append(value)
        for name, listed in mine.items():
            of_all = columns.get(name)
            if of_all is None:
                of_all, values[name] = columns.setdefault(name, []), set()
            of_all.extend([()] * (number - len(of_all)))
            of_all.append(tuple(listed))
            values[name].update(listed[1::2])
    for of_all in columns.values():
        of_all.extend([()] * (len(snapshots) - len(of_all)))
    return columns, values


def _pattern(column: _Column) -> _Column:
    """The same for nodes where the same devices share a value."""
    number: dict[Hashable, int] = {}
    return tuple(each if place % 2 == 0 else number.setdefault(each, len(number)) for place, each in enumerate(column))


def _numbers(each: Sequence[Hashable]) -> list[int]:
    """A number for each, equal for equal ones; in order of the first."""
    number: dict[Hashable, int] = {}
    return [number.setdefault(one, len(number)) for one in each]
