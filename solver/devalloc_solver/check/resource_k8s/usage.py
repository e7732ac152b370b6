"""The rules that hold across all answers: no device has two owners, no share and no counter is given twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from devalloc.api.device_records import DeviceRecord, counters_digest
from devalloc_solver.check.resource_k8s.claim import AllocatedResult, AnsweredClaim, duplicate_devices
from devalloc_solver.check.resource_k8s.pools import CounterId, DeviceId, NodeDevice, NodePool, PublishedPools
from devalloc_solver.check.resource_k8s.prior_allocations import PriorUsage
from devalloc_solver.check.resource_k8s.quantities import to_nano


def use_violations(
    answered: Sequence[AnsweredClaim], offer: PublishedPools, held: PriorUsage, features: Container[str]
) -> list[str]:
    """What is wrong with the answers taken together, and with what was in use before."""
    shareable = "DRAConsumableCapacity" in features
    ordinary = [one for answer in answered for one in answer.taken if not one.request.is_admin]
    devices: dict[DeviceId, NodeDevice] = {one.device.id: one.device for one in ordinary}
    violations: list[str] = []
    if not _are_free(answered, held):
        violations = _owner_violations(answered, ordinary, devices, held, shareable)
    if "DRAPartitionableDevices" in features:
        violations += counter_violations(devices, offer, held)
    return violations


def _are_free(answered: Sequence[AnsweredClaim], held: PriorUsage) -> bool:
    """Whether all devices are given whole and once, and none was in use: then no rule but that of counters matters."""
    taken = [one for answer in answered for one in answer.taken]
    ids = {one.device.id for one in taken}
    return (
        len(ids) == len(taken)
        and held.whole.keys().isdisjoint(ids)
        and held.shared.keys().isdisjoint(ids)
        and not any("shareID" in one.entry or "consumedCapacity" in one.entry for one in taken)
    )


def _owner_violations(
    answered: Sequence[AnsweredClaim],
    ordinary: Sequence[AllocatedResult],
    devices: Mapping[DeviceId, NodeDevice],
    held: PriorUsage,
    shareable: bool,
) -> list[str]:
    violations = [*_claim_violations(answered, shareable), *_share_id_violations(answered, held)]
    times = dict(duplicate_devices([one.device.id for one in ordinary]))
    for key, device in devices.items():
        where = "/".join(key)
        if key in held.whole:
            violations.append(f"{where} is in use")
        if not (shareable and device.manifest.get("allowMultipleAllocations")):
            if key in held.shared:
                violations.append(f"{where} is not shareable, and shares of it are in use")
            if key in times:
                violations.append(f"{where} is given {times[key]} times")
    return [*violations, *_capacity_violations(ordinary, held)]


def _claim_violations(answered: Sequence[AnsweredClaim], shareable: bool) -> Iterator[str]:
    """Not even admin access has a device twice in one claim, unless it is shareable."""
    for answer in answered:
        times = duplicate_devices(
            [
                one.device.id
                for one in answer.taken
                if not (shareable and one.device.manifest.get("allowMultipleAllocations"))
            ]
        )
        for key, number in times:
            yield f"{answer.title}: has {'/'.join(key)} {number} times"


def _share_id_violations(answered: Sequence[AnsweredClaim], held: PriorUsage) -> Iterator[str]:
    seen: set[tuple[DeviceId, str]] = set()
    for answer in answered:
        for one in answer.taken:
            if not one.entry.get("shareID"):
                continue
            share = (one.device.id, str(one.entry["shareID"]))
            if share in seen or share in held.share_ids:
                yield f"{answer.title}: {'/'.join(one.device.id)}: the share {share[1]} exists already"
            seen.add(share)


def _capacity_violations(ordinary: Sequence[AllocatedResult], held: PriorUsage) -> Iterator[str]:
    used: dict[DeviceId, dict[str, int]] = defaultdict(dict)
    capacities = {}
    consuming = [one for one in ordinary if one.entry.get("consumedCapacity")]
    for one in consuming:
        key = one.device.id
        capacities[key] = one.device.manifest.get("capacity") or {}
        amounts = used.setdefault(key, dict(held.consumed.get(key, {})))
        for name, amount in one.entry["consumedCapacity"].items():
            amounts[name] = amounts.get(name, 0) + to_nano(amount)
    for one in consuming:
        # This answer does not judge capacities that it takes nothing of.
        for name in one.entry["consumedCapacity"]:
            amounts, key = used[one.device.id], one.device.id
            total = to_nano(capacities[key][name]["value"]) if name in capacities[key] else 0
            if amounts[name] > total:
                yield f"{'/'.join(key)}: {amounts[name]} of {total} {name} are consumed (nano units)"


def counter_violations(devices: dict[DeviceId, NodeDevice], offer: PublishedPools, held: PriorUsage) -> Iterator[str]:
    """A device draws once, however many shares of it there are, and wherever it is reached from. Nothing but shares of
    what is in use is given of a pool that lacks counters which claims recorded."""
    new = {key: device for key, device in devices.items() if key not in held}
    for driver, name in sorted({key[:2] for key in new}):
        drawing = [device for key, device in new.items() if device.draws and key[:2] == (driver, name)]
        if not drawing and not held.has_draws(driver, name):
            continue
        pool = offer.pool(driver, name)
        if pool is None:
            continue
        others = _unlike_published(pool, offer, held.of_pool(driver, name))
        if others and _lacks_counters(pool, others):
            yield f"{driver}/{name}: devices are given although the pool lacks counters that claims recorded (S18)"
        if drawing:
            yield from _overdrawn(pool, drawing, others, held)


def _overdrawn(
    pool: NodePool, devices: Iterable[NodeDevice], others: Sequence[RecordedDevice], held: PriorUsage
) -> Iterator[str]:
    """The counters of a pool of which these devices draw more than is left."""
    drawn: dict[CounterId, int] = defaultdict(int)
    for device in devices:
        for counter, amount in device.draws:
            if amount:  # who takes nothing of a counter is not kept off by what is in use of it
                drawn[counter] += amount
    for counter, amount in _recorded_draws(pool, others) if others else ():
        if counter in drawn:
            drawn[counter] += amount
    for counter_set in {counter[2] for counter in drawn}:
        drawing = pool.drawing.get(counter_set, {})
        for key in drawing.keys() & held.whole.keys() | drawing.keys() & held.shared.keys():
            for device in drawing[key]:
                for counter, amount in device.draws:
                    if counter in drawn and counter[2] == counter_set:
                        drawn[counter] += amount
    for counter in sorted(drawn):
        if drawn[counter] > pool.counters.get(counter, 0):
            yield f"{'/'.join(counter)}: {drawn[counter]} of {pool.counters.get(counter, 0)} are drawn (nano units)"


RecordedDevice = tuple[NodeDevice | None, Sequence[DeviceRecord | None]]
"""A device in use, or None of one that no slice has any more; and what the claims recorded of it that have it."""


def _unlike_published(
    pool: NodePool, offer: PublishedPools, held: Mapping[DeviceId, Sequence[DeviceRecord | None]]
) -> list[RecordedDevice]:
    """The devices in use that a pool has no more, or that it publishes with other draws than claims recorded."""
    others: list[RecordedDevice] = []
    lacking: list[DeviceId] = []
    published = pool.published
    for key, records in held.items():
        device = published.get(key)
        if device is None:
            lacking.append(key)
            continue
        for record in records:  # mostly they recorded what the slice says, or nothing
            if record is not None and record.draws is not None and record.draws != pool.draws_to_record(device):
                others.append((device, records))
                break
    if lacking:
        everywhere = offer.device_names(*lacking[0][:2])
        others += [(None, held[key]) for key in lacking if everywhere is not None and key[2] not in everywhere]
    return others


def _lacks_counters(pool: NodePool, others: Iterable[RecordedDevice]) -> bool:
    """Whether claims recorded counters of a pool that it does not have any more: no one knows who draws on them."""
    names = {"/".join(counter[2:]) for counter in pool.counters}
    recorded = (record for _, records in others for record in records)
    return any(record is not None and not dict(record.draws or ()).keys() <= names for record in recorded)


def _recorded_draws(pool: NodePool, others: Iterable[RecordedDevice]) -> Iterator[tuple[CounterId, int]]:
    """What devices in use draw beyond what the slices say: as recorded, or all there is if that is not known."""
    names = {"/".join(counter[2:]): counter for counter in pool.counters}
    digest = counters_digest(frozenset(names))
    for device, records in others:
        own: dict[CounterId, int] = defaultdict(int)
        for counter, amount in () if device is None else device.draws:
            own[counter] += amount
        counted = dict(own)
        for record in records:
            draws = None if record is None or record.draws is None else dict(record.draws)
            if draws is None and device is not None:
                continue
            is_same = record is not None and (device is not None or record.counters == digest)
            if draws is None or not is_same or not draws.keys() <= names.keys():
                counted = {counter: max(own[counter], amount) for counter, amount in pool.counters.items()}
                break
            for name, amount in draws.items():
                counted[names[name]] = max(amount, counted.get(names[name], 0))
        yield from ((counter, amount - own[counter]) for counter, amount in counted.items() if amount > own[counter])
