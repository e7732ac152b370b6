"""What devices in use count for beyond what their pools publish of them: as claims recorded it, or all there is (S18).

A pool may be published without a device that a claim has, with one that draws less, or with other counters. What the
claim recorded counts on. Where it recorded nothing and the device is missing, or where the record is about counters
that the pool does not have any more, the device counts for everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from devalloc.api import meta
from devalloc.api.device_records import DeviceRecord, PoolDevice, counters_digest, read_records
from devalloc.api.quantity import Quantity, ceil_blocks, floor_blocks
from devalloc_solver.check.answer import Answer
from devalloc_solver.check.pools import CheckedDevice

UNKNOWN_GROUP = "(unknown)"
"""Of a missing device of which no group is recorded: it goes with no other."""


class CountedDraws(NamedTuple):
    """What one claim's record, or the lack of it, makes a device count for."""

    blocks: Mapping[str, int] = {}
    """of each resource of the pool"""
    group: str | None = None


NOTHING = CountedDraws()


def counted_draws(pooled: CheckedDevice, record: DeviceRecord | None) -> CountedDraws:
    """What a device in use counts for, given what its claim recorded of it."""
    resources = pooled.pool.spec.resources
    has_groups = any(a.name == meta.COMPATIBILITY_GROUP for d in pooled.pool.spec.devices for a in d.attributes)
    everything = {each.name: floor_blocks(each.capacity, each.block) for each in resources}
    if record is None or record.draws is None:
        if pooled.is_published:
            return NOTHING
        return CountedDraws(everything, UNKNOWN_GROUP if has_groups or _is_grouped(pooled) else None)
    is_same = pooled.is_published or record.counters == counters_digest(frozenset(everything))
    draws = dict(record.draws)
    if not is_same or not draws.keys() <= everything.keys():
        return CountedDraws(everything, record.group)
    blocks = {
        each.name: ceil_blocks(Quantity(draws[each.name]), each.block) for each in resources if each.name in draws
    }
    return CountedDraws(blocks, record.group)


def _is_grouped(pooled: CheckedDevice) -> bool:
    return any(attribute.name == meta.COMPATIBILITY_GROUP for attribute in pooled.pool.spec.attributes)


def record_violations(answer: Answer, taken: Iterable[CheckedDevice]) -> Iterator[str]:
    """Where a record of a new allocation differs from what its devices draw. It may be missing: then more counts."""
    text = answer.annotations.get(meta.DEVICE_RECORDS)
    if text is None:
        return
    records: Mapping[PoolDevice, DeviceRecord] = read_records(text)
    for pooled in taken:
        record = records.get((pooled.pool.metadata.name, pooled.device.name))
        if record is None or record.draws is None:
            continue
        blocks = {each.name: each.block.nano for each in pooled.pool.spec.resources}
        draws = tuple(sorted((name, number * blocks[name]) for name, number, _ in pooled.draws))
        if record != DeviceRecord(draws, counters_digest(frozenset(blocks)), pooled.compatibility_group):
            yield f"device {pooled} is recorded with other draws, or another group, than it has (S18)"
