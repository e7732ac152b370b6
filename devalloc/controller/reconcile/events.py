"""Events of claims: a write of the allocator causes one if a claim got or gave back something, or has nothing for
another reason than before. A sentence that changes only in its numbers is on the object, and no event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from devalloc.api.conditions import ALLOCATED, DEVICE_LOST
from devalloc.api.views import ClaimView, as_mappings
from devalloc.store import Object

RELEASED = "Released"
NORMAL, WARNING = "Normal", "Warning"
_SHOWN = 8
"""Devices that an event names."""


@dataclass(frozen=True, slots=True)
class ObjectEvent:
    """One thing that happened to an object."""

    regarding: Mapping[str, str]
    """apiVersion, kind, namespace, name, uid and resourceVersion of the object."""
    type: str
    reason: str
    """A code of docs/reasons.md, or what was done."""
    action: str
    """What the controller was at: Allocate, Release, Place, Migrate, Check."""
    note: str


def claim_events(before: Object, after: Object) -> Iterable[ObjectEvent]:
    """What became of a DeviceClaim by a write of ours; nothing for what no user waits for."""
    had, has = ClaimView(before).entries, ClaimView(after).entries
    if has and not had:
        node = ClaimView(after).node
        where = f" on node {node}" if node else ""
        yield object_event(after, NORMAL, ALLOCATED, "Allocate", f"{_count(has)}{where}: {_devices(has)}")
    elif had and not has:
        yield object_event(after, NORMAL, RELEASED, "Release", f"{_count(had)} taken back: {_devices(had)}")
    for lost in sorted(_lost_devices(after) - _lost_devices(before)):
        yield object_event(after, WARNING, DEVICE_LOST, "Check", f"device {lost} no longer exists")
    reason = ClaimView(after).reason
    if reason and reason != ClaimView(before).reason:
        yield object_event(after, WARNING, reason, "Check" if has else "Allocate", ClaimView(after).message)


def object_event(obj: Object, type: str, reason: str, action: str, note: str) -> ObjectEvent:
    """An event of an object as it is now."""
    metadata = obj["metadata"]
    regarding = {
        "apiVersion": obj["apiVersion"],
        "kind": obj["kind"],
        "namespace": metadata.get("namespace", ""),
        "name": metadata["name"],
        "uid": metadata.get("uid", ""),
        "resourceVersion": metadata.get("resourceVersion", ""),
    }
    return ObjectEvent({name: value for name, value in regarding.items() if value}, type, reason, action, note)


def _lost_devices(claim: Object) -> set[str]:
    devices = set()
    for one in as_mappings(claim.get("status", {}).get("deviceStatuses")):
        conditions = {(each.get("type"), each.get("status")) for each in as_mappings(one.get("conditions"))}
        if (DEVICE_LOST, "True") in conditions:
            devices.add(f"{one.get('devicePoolName')}/{one.get('deviceName')}")
    return devices


def _count(entries: list[Any]) -> str:
    return f"{len(entries)} device{'s' if len(entries) > 1 else ''}"


def _devices(entries: list[Any]) -> str:
    names = [f"{entry.get('devicePoolName')}/{entry.get('deviceName')}" for entry in as_mappings(entries)]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"
