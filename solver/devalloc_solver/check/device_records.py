"""What devices in use count for beyond what their pools publish of them: as claims recorded it, or all there is (S18).

A pool may be published without a device that a claim has, with one that draws less, or with other counters. What the
claim recorded counts on. Where it recorded nothing and the device is missing, or where the record is about counters
that the pool does not have any more, the device counts for everything. In the second case nothing else of the pool may
be given, because no one knows what draws on those counters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from devalloc.api import meta
from devalloc.api.device_records import DeviceRecord, counters_digest, read_records, write_records
from devalloc.api.quantity import Quantity, ceil_blocks, floor_blocks
from devalloc_solver.check.pools import CheckedDevice

UNKNOWN_GROUP = "(unknown)"
"""Of a missing device of which no group is recorded: it goes with no other."""


class CountedDraws(NamedTuple):
    """What one claim's record, or the lack of it, makes a device count for."""

    blocks: Mapping[str, int] = {}
    """of each resource of the pool"""
    group: str | None = None
    is_alone: bool = False
    """nothing else of its pool may be given"""


NOTHING = CountedDraws()


def counted_draws(pooled: CheckedDevice, record: DeviceRecord | None) -> CountedDraws:
    """What a device in use counts for, given what its claim recorded of it."""
    if record is None or record.draws is None:
        return NOTHING if pooled.is_published else CountedDraws(_everything(pooled), _unknown_group(pooled))
    resources, draws = pooled.pool.spec.resources, dict(record.draws)
    names = {each.name for each in resources}
    is_same = pooled.is_published or record.counters == counters_digest(frozenset(names))
    if not is_same or not draws.keys() <= names:
        return CountedDraws(_everything(pooled), record.group, is_alone=not draws.keys() <= names)
    blocks = {one.name: ceil_blocks(Quantity(draws[one.name]), one.block) for one in resources if one.name in draws}
    return CountedDraws(blocks, record.group)


def _everything(pooled: CheckedDevice) -> Mapping[str, int]:
    return {each.name: floor_blocks(each.capacity, each.block) for each in pooled.pool.spec.resources}


def _unknown_group(pooled: CheckedDevice) -> str | None:
    spec = pooled.pool.spec
    listed = [*spec.attributes, *(attribute for device in spec.devices for attribute in device.attributes)]
    return UNKNOWN_GROUP if any(one.name == meta.COMPATIBILITY_GROUP for one in listed) else None


def record_violations(text: str, taken: Sequence[CheckedDevice]) -> Iterator[str]:
    """Where the record of a new allocation differs from what its devices draw. It may lack some: then more counts."""
    right = {
        (one.pool.metadata.name, one.device.name): _record_of(one)
        for one in taken
        if one.pool.spec.resources or one.compatibility_group is not None
    }
    if write_records(right) == text:
        return  # as nearly always
    records = read_records(text)
    for pooled in taken:
        record = records.get((pooled.pool.metadata.name, pooled.device.name))
        if record is not None and record.draws is not None and not _covers(record, pooled):
            yield f"device {pooled} is recorded with other draws, or another group, than it has (S18)"


def _covers(record: DeviceRecord, pooled: CheckedDevice) -> bool:
    """Whether a record says as much as is right, or more: a share also records what those before it drew, of counters,
    too, that the pool lacks now."""
    right, more = _record_of(pooled), dict(record.draws or ())
    is_enough = all(more.get(name, 0) >= nano for name, nano in right.draws or ())
    names = {each.name for each in pooled.pool.spec.resources}
    counters = right.counters if more.keys() <= names else counters_digest(frozenset(names | more.keys()))
    return is_enough and (record.counters, record.group) == (counters, right.group)


def _record_of(pooled: CheckedDevice) -> DeviceRecord:
    """What is right to record of a device."""
    if pooled.record is None:
        pooled.record = _make_record(pooled)
    return pooled.record


def _make_record(pooled: CheckedDevice) -> DeviceRecord:
    resources = {each.name: each for each in pooled.pool.spec.resources}
    draws = tuple(sorted([(name, number * resources[name].block.nano) for name, number, _ in pooled.draws]))
    return DeviceRecord.shared(draws, counters_digest(frozenset(resources)), pooled.compatibility_group)
