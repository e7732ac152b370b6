"""Ghosts: what devices in use draw beyond what their pool publishes of them (S18).

A pool may be published without a device that a claim has, or with one that draws less. The hardware is in use all the
same. A ghost is a device of the pool that draws the rest: what the claim recorded, or everything if nothing is
recorded. Each claim that has the device has its ghost; no node reaches it, and no request is offered it.

A pool may also be published without a resource that a claim recorded. Which of its devices drew on that is unknown, so
in such a pool all of them do, and the ghost draws all of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from devalloc.api.device_records import DeviceRecord, counters_digest
from devalloc.api.meta import COMPATIBILITY_GROUP
from devalloc_solver.problem.snapshot import Device, Ghost, Pool, Resource, Snapshot, join_pools, renumber

UNKNOWN_GROUP = "not recorded"
"""The compatibility group of a device of which it is not known: it is compatible with no other."""
_UNREACHABLE: frozenset[str] = frozenset()

Records = Sequence[DeviceRecord | None]
"""Of the claims that have a device, what they recorded of it; None if nothing."""


class Drawn(NamedTuple):
    """What a device in use draws."""

    amounts: Mapping[str, int]
    """nano units of each counter"""
    is_certain: bool = True
    """False if it is not known, so that it counts for all there is"""
    lost: tuple[tuple[str, int], ...] = ()
    """(resource, nano units) that were recorded, and that the pool does not have any more"""


def drawn_in_use(counters: Mapping[str, int], published: Mapping[str, int] | None, records: Records) -> Drawn:
    """What a device in use draws of its pool.

    ``counters``: nano units that the pool has of each. ``published``: what the pool says that the device draws; None if
    it does not publish the device.
    """
    lost: dict[str, int] = {}
    for name, nano in (draw for record in records if record is not None for draw in record.draws or ()):
        if name not in counters:
            lost[name] = max(nano, lost.get(name, 0))
    if lost:
        return Drawn(counters, is_certain=False, lost=tuple(sorted(lost.items())))
    amounts = dict(published or {})
    for record in records:
        if record is None or record.draws is None:
            if published is None:
                return Drawn(counters, is_certain=False)
            continue
        if published is None and record.counters != counters_digest(frozenset(counters)):
            return Drawn(counters, is_certain=False)
        for name, nano in record.draws:
            amounts[name] = max(nano, amounts.get(name, 0))
    return Drawn(amounts)


def _has_groups(pool: Pool) -> bool:
    """Whether any of its devices is of a compatibility group."""
    return any(device.compatibility is not None for device in pool.devices)


def has_draws(record: DeviceRecord | None) -> bool:
    """Whether it is recorded of a device that it draws something, so that it matters whatever its pool says now."""
    return record is not None and bool(record.draws)


def find_ghost(pool: Pool, device: Device | None, records: Records) -> Ghost | None:
    """The ghost of a device in use, if it has one. ``device``: as the pool publishes it."""
    if device is not None and not any(records):
        return None
    counters = {name: resource.nano for name, resource in pool.resources.items()}
    draws = {} if device is None else dict(device.draws)
    published = None if device is None else dict(_nano(pool, device))
    drawn = drawn_in_use(counters, published, records)
    more = {
        name: blocks
        for name, nano in sorted(drawn.amounts.items())
        if (blocks := -(-nano // pool.resources[name].block) - draws.get(name, 0)) > 0
    }
    group = _group_of_ghost(pool, device, records)
    if not (more or drawn.lost or group is not None):
        return None
    return Ghost(tuple(more.items()), group, drawn.is_certain, drawn.lost)


def device_record(pool: Pool, device: Device) -> DeviceRecord:
    """What is to be recorded of a device that a claim gets; of one that others share, with what its ghost draws."""
    record = pool.records.get(device.name)
    if record is None:
        record = pool.records[device.name] = _make_record(pool, device)
    return record


def _make_record(pool: Pool, device: Device) -> DeviceRecord:
    group, draws = device.compatibility, _nano(pool, device)
    own_lost: Mapping[str, int] = {}
    for one in reversed(pool.devices):
        if one.ghost is None:
            break  # ghosts are the last ones
        if one.name == device.name:
            more, own_lost = dict(_nano(pool, one)), dict(one.ghost.lost)
            names = sorted(more.keys() | dict(draws).keys())
            draws = tuple((name, more.get(name, 0) + dict(draws).get(name, 0)) for name in names)
    lost = lost_resources(pool)
    if lost:
        draws = tuple(sorted([*(draw for draw in draws if draw[0] not in lost), *own_lost.items()]))
    counters = counters_digest(frozenset(pool.resources.keys() - lost | own_lost.keys()))
    return DeviceRecord.shared(draws, counters, group if isinstance(group, str) else None)


def _nano(pool: Pool, device: Device) -> tuple[tuple[str, int], ...]:
    resources = pool.resources
    return tuple([(name, blocks * resources[name].block) for name, blocks in device.draws])


def is_as_recorded(pool: Pool, device: Device, record: DeviceRecord) -> bool:
    """Whether a pool publishes a device as a claim recorded it."""
    if record is pool.records.get(device.name) and not has_ghosts(pool):
        return True
    return record.draws == _nano(pool, device) and record.group in (None, device.compatibility)


def _group_of_ghost(pool: Pool, device: Device | None, records: Records) -> str | None:
    if not _has_groups(pool):
        return None
    if device is None and not all(record is not None and record.draws is not None for record in records):
        return UNKNOWN_GROUP
    groups = {record.group for record in records if record is not None}
    groups -= {None, None if device is None else device.compatibility}
    return UNKNOWN_GROUP if len(groups) > 1 else next(iter(groups), None)


class HeldRecords:
    """The devices of pools that claims have, with what these recorded of them."""

    def __init__(self) -> None:
        self._by_pool: dict[int, tuple[Pool, dict[str, tuple[Device | None, list[DeviceRecord | None]]]]] = {}

    def add(self, pool: Pool, name: str, device: Device | None, record: DeviceRecord | None) -> None:
        """A claim has a device. ``device``: as the pool publishes it."""
        if device is not None and (record is None or is_as_recorded(pool, device, record)):
            return
        _, held = self._by_pool.setdefault(pool.index, (pool, {}))
        held.setdefault(name, (device, []))[1].append(record)

    def ghosts(self) -> dict[int, dict[str, Ghost]]:
        """By the number of the pool and the name of the device."""
        ghosts: dict[int, dict[str, Ghost]] = defaultdict(dict)
        for number, (pool, held) in self._by_pool.items():
            for name, (device, records) in sorted(held.items()):
                ghost = find_ghost(pool, device, records)
                if ghost is not None:
                    ghosts[number][name] = ghost
        return ghosts


def has_ghosts(pool: Pool) -> bool:
    """Whether a pool has any; they are the last of its devices."""
    return bool(pool.devices) and pool.devices[-1].ghost is not None


def without_ghosts(pool: Pool) -> Pool:
    """The pool as it is published."""
    if not has_ghosts(pool):
        return pool
    pool = _without_lost(pool)
    return replace(pool, devices=tuple([device for device in pool.devices if device.ghost is None]))


def lost_resources(pool: Pool) -> frozenset[str]:
    """The resources of a pool that it is not published with any more."""
    lost: set[str] = set()
    for device in reversed(pool.devices):
        if device.ghost is None:
            break  # ghosts are the last ones
        lost.update(name for name, _ in device.ghost.lost)
    return frozenset(lost)


def _without_lost(pool: Pool) -> Pool:
    lost = lost_resources(pool)
    if not lost:
        return pool
    devices = [replace(one, draws=tuple(draw for draw in one.draws if draw[0] not in lost)) for one in pool.devices]
    resources = {name: resource for name, resource in pool.resources.items() if name not in lost}
    return replace(pool, resources=resources, devices=tuple(devices))


def _with_lost(pool: Pool, lost: Collection[str]) -> Pool:
    """The pool with resources that all of its devices draw on."""
    one_each = tuple((name, 1) for name in lost)
    devices = [replace(device, draws=tuple(sorted((*device.draws, *one_each)))) for device in pool.devices]
    resources = {**pool.resources, **dict.fromkeys(lost, Resource(1, len(devices)))}
    return replace(pool, resources=resources, devices=tuple(devices))


def with_ghosts(pool: Pool, ghosts: Mapping[str, Ghost]) -> Pool:
    """The pool with its ghosts behind its devices; they have no numbers yet."""
    lost = {name for ghost in ghosts.values() for name, _ in ghost.lost}
    if lost:
        pool = _with_lost(pool, sorted(lost))
    more = tuple(
        Device(
            index=-1,
            pool=pool.index,
            name=name,
            attributes={} if ghost.group is None else {COMPATIBILITY_GROUP: ghost.group},
            resources={},
            draws=(*ghost.draws, *((name, len(pool.devices)) for name, _ in ghost.lost)),
            undefined=None,
            reach=_UNREACHABLE,
            ghost=ghost,
            compatibility=ghost.group,
        )
        for name, ghost in ghosts.items()
    )
    return replace(pool, devices=(*pool.devices, *more)) if more else pool


def snapshot_with_ghosts(snapshot: Snapshot, ghosts: Mapping[int, Mapping[str, Ghost]]) -> Snapshot:
    """The snapshot with the ghosts of its pools, by the number of the pool; all devices get new numbers."""
    pools = [with_ghosts(pool, ghosts.get(pool.index, {})) for pool in snapshot.pools]
    return join_pools(renumber(pools), snapshot.nodes)
