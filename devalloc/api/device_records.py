"""What the devices of an allocated claim were when it got them: the annotation ``DEVICE_RECORDS`` (S18).

Pools are published again and again, and a driver may leave out a device that a claim has, or publish it with less. What
the device drew of its pool is drawn all the same, so the claim records it. The annotation is a JSON object::

    {"POOL": {"DEVICE": {"draws": {"slices": "4"}, "counters": "9f86d081", "compatibilityGroup": "A"}}}

POOL is the name of a DevicePool, or DRIVER/POOL of a device of a ResourceClaim. Every field may be missing: a device
without ``draws`` has no record of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from json.encoder import encode_basestring_ascii
from typing import Any

from devalloc.api.meta import DEVICE_RECORDS
from devalloc.api.quantity import Quantity, QuantityError

PoolDevice = tuple[str, str]
"""(pool, device)"""
Draws = tuple[tuple[str, int], ...]
"""(counter, nano units), sorted, each above zero"""
MAX_RECORDS_SIZE = 48 * 1024
"""Characters of the annotation: of the 256 KiB that annotations of an object have on a cluster, half is for devalloc. A
claim with more has no record, and counts as one of an earlier version."""
_MAX_READ = 128 * 1024
_MAX_REMEMBERED = 4 * 1024
"""Characters of an annotation up to which what it says is remembered: most have some hundred, and tenants that may edit
their claims can write others."""
_MAX_COUNTERS = 512
"""Counters of one device that are read."""


@dataclass(frozen=True)
class DeviceRecord:
    """What is recorded of one device."""

    draws: Draws | None = None
    """what it drew of the counters of its pool; None if that is not recorded"""
    counters: str = ""
    """``counters_digest`` of the pool at that time"""
    group: str | None = None
    """its compatibility group (S12a)"""

    @classmethod
    @lru_cache(maxsize=4096)
    def shared(cls, draws: Draws | None, counters: str, group: str | None) -> DeviceRecord:
        """One object for equal records: a large fleet has the same ones on every node."""
        return cls(draws, counters, group)

    @cached_property
    def text(self) -> str:
        """The record as JSON: written once, many devices have the same."""
        content: dict[str, Any] = {}
        if self.draws is not None:
            content |= {"draws": {name: str(Quantity(nano)) for name, nano in self.draws}, "counters": self.counters}
        if self.group is not None:
            content["compatibilityGroup"] = self.group
        return json.dumps(content, separators=(",", ":"))


@lru_cache(maxsize=4096)
def counters_digest(counters: frozenset[str]) -> str:
    """A short text that is another one when a pool gets other counters."""
    return hashlib.sha256("\n".join(sorted(counters)).encode()).hexdigest()[:8]


def write_records(records: Mapping[PoolDevice, DeviceRecord]) -> str | None:
    """The annotation for the devices of a claim; None where there is nothing to record, or too much."""
    if len(records) == 1:
        (((pool, device), record),) = records.items()
        text = f"{{{encode_basestring_ascii(pool)}:{{{encode_basestring_ascii(device)}:{record.text}}}}}"
        return text if len(text) <= MAX_RECORDS_SIZE else None
    pools: dict[str, list[str]] = {}
    for (pool, device), record in records.items():
        pools.setdefault(pool, []).append(f"{encode_basestring_ascii(device)}:{record.text}")
    if not pools:
        return None
    text = ",".join([f"{encode_basestring_ascii(pool)}:{{{','.join(of_pool)}}}" for pool, of_pool in pools.items()])
    return f"{{{text}}}" if len(text) <= MAX_RECORDS_SIZE else None


_NOTHING: Mapping[PoolDevice, DeviceRecord] = {}
_MakeRecord = Callable[[Draws | None, str, str | None], DeviceRecord]


def read_records(text: object) -> Mapping[PoolDevice, DeviceRecord]:
    """What an annotation records. What cannot be read is not recorded."""
    if not isinstance(text, str) or not text or len(text) > _MAX_READ:
        return _NOTHING
    return _read_small(text) if len(text) <= _MAX_REMEMBERED else _read(text, DeviceRecord)


def records_of_manifest(claim: Mapping[str, Any]) -> Mapping[PoolDevice, DeviceRecord]:
    """What the manifest of a claim records, whatever else it has."""
    metadata = claim.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    return read_records(annotations.get(DEVICE_RECORDS)) if isinstance(annotations, Mapping) else _NOTHING


@lru_cache(maxsize=1024)
def _read_small(text: str) -> Mapping[PoolDevice, DeviceRecord]:
    return _read(text, DeviceRecord.shared)


def _read(text: str, make: _MakeRecord) -> Mapping[PoolDevice, DeviceRecord]:
    try:
        pools = json.loads(text)
    except (ValueError, RecursionError):
        return _NOTHING
    return {
        (pool, device): _read_record(content, make)
        for pool, devices in (pools.items() if isinstance(pools, dict) else ())
        for device, content in (devices.items() if isinstance(devices, dict) else ())
        if isinstance(content, dict)
    }


def _read_record(content: Mapping[str, Any], make: _MakeRecord) -> DeviceRecord:
    counters, group = content.get("counters"), content.get("compatibilityGroup")
    is_readable = isinstance(counters, str) and (group is None or isinstance(group, str))
    return make(
        _read_draws(content.get("draws")) if is_readable else None,
        counters if isinstance(counters, str) else "",
        group if isinstance(group, str) else None,
    )


def _read_draws(content: object) -> Draws | None:
    if not isinstance(content, dict) or len(content) > _MAX_COUNTERS:
        return None
    try:
        amounts = {name: Quantity.parse(amount).nano for name, amount in content.items()}
    except QuantityError:
        return None
    if any(nano < 0 for nano in amounts.values()):
        return None
    return tuple(sorted((name, nano) for name, nano in amounts.items() if nano))
