"""What a write of the allocator is to those who wait for it, as a Kubernetes Event tells it. Pure.

Told are changes: what a claim got or gave back, and why it has nothing where that is another reason than before. A
sentence that changes with its numbers is on the object, and no event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from devalloc.api import meta
from devalloc.api.reservation import FITS
from devalloc.controller import placing
from devalloc.controller.claims import allocations, annotation
from devalloc.controller.decision import ALLOCATED, DEVICE_LOST
from devalloc.controller.placing import machines
from devalloc.controller.placing.service import SERVED
from devalloc.store import Object

RELEASED, PLACED = "Released", "Placed"
NORMAL, WARNING = "Normal", "Warning"
_NO_TROUBLE = ("StoppedOnRequest", "NotPlaced")
"""Reasons of machines that are as they should be, or of which the controller tells."""
_SHOWN = 8
"""Devices that an event names."""


@dataclass(frozen=True, slots=True)
class Told:
    """One thing that happened to an object."""

    regarding: Mapping[str, str]
    """apiVersion, kind, namespace, name, uid and resourceVersion of the object."""
    type: str
    reason: str
    """A code of docs/reasons.md, or what was done."""
    action: str
    """What the controller was at: Allocate, Release, Place, Check."""
    note: str


def changes(before: Object, after: Object) -> list[Told]:
    """What became of an object by a write of ours; nothing for what nobody waits for."""
    if before["kind"] == "DeviceClaim":
        return [*_of_claim(before, after)]
    if before["kind"] == placing.KIND:
        return [*_of_machine(before, after)]
    return []


def said_by_node(before: Object, after: Object) -> list[Told]:
    """What a node says is wrong with a machine that it has, where that is another reason than before."""
    was, now = machines.status_of(before).get("reason"), machines.status_of(after).get("reason")
    if machines.holder_of(after) is None or not now or now == was or now in _NO_TROUBLE:
        return []
    note = str(machines.status_of(after).get("message", ""))
    return [_told(after, WARNING, str(now), "Run", note)]


def _of_claim(before: Object, after: Object) -> Iterable[Told]:
    had, has = allocations(before), allocations(after)
    if has and not had:
        node = annotation(after, meta.ALLOCATED_NODE)
        where = f" on node {node}" if node else ""
        yield _told(after, NORMAL, ALLOCATED, "Allocate", f"{_count(has)}{where}: {_devices(has)}")
    elif had and not has:
        yield _told(after, NORMAL, RELEASED, "Release", f"{_count(had)} taken back: {_devices(had)}")
    for lost in sorted(_lost(after) - _lost(before)):
        yield _told(after, WARNING, DEVICE_LOST, "Check", f"device {lost} exists no more")
    reason = annotation(after, meta.REASON)
    if reason and reason != annotation(before, meta.REASON):
        yield _told(after, WARNING, reason, "Check" if has else "Allocate", annotation(after, meta.MESSAGE) or "")


def _of_machine(before: Object, after: Object) -> Iterable[Told]:
    was, now = _condition(before, PLACED), _condition(after, PLACED)
    if now.get("status") == "True" and was.get("status") != "True":
        yield _told(after, NORMAL, PLACED, "Place", str(now.get("message", "")))
    elif now.get("status") == "False" and now.get("reason") != was.get("reason"):
        yield _told(after, WARNING, str(now.get("reason")), "Place", str(now.get("message", "")))
    elif was.get("status") == "True" and not now:
        node = machines.status_of(before).get("nodeName")
        yield _told(after, NORMAL, RELEASED, "Release", f"nothing is kept for it on node {node} any more")
    served = _condition(after, SERVED)
    if served.get("status") == "False" and served.get("reason") != _condition(before, SERVED).get("reason"):
        yield _told(after, WARNING, str(served.get("reason")), "Place", str(served.get("message", "")))
    fitted, fits = _condition(before, FITS), _condition(after, FITS)
    if fits.get("status") == "False" and fits.get("reason") != fitted.get("reason"):
        yield _told(after, WARNING, str(fits.get("reason")), "Place", str(fits.get("message", "")))


def _told(obj: Object, type: str, reason: str, action: str, note: str) -> Told:
    metadata = obj["metadata"]
    regarding = {
        "apiVersion": obj["apiVersion"],
        "kind": obj["kind"],
        "namespace": metadata.get("namespace", ""),
        "name": metadata["name"],
        "uid": metadata.get("uid", ""),
        "resourceVersion": metadata.get("resourceVersion", ""),
    }
    return Told({name: value for name, value in regarding.items() if value}, type, reason, action, note)


def _condition(machine: Object, name: str) -> Mapping[str, Any]:
    known = _maps(machines.status_of(machine).get("conditions"))
    return next((one for one in known if one.get("type") == name), {})


def _lost(claim: Object) -> set[str]:
    found = set()
    for one in _maps(claim.get("status", {}).get("deviceStatuses")):
        told = {(each.get("type"), each.get("status")) for each in _maps(one.get("conditions"))}
        if (DEVICE_LOST, "True") in told:
            found.add(f"{one.get('devicePoolName')}/{one.get('deviceName')}")
    return found


def _maps(value: object) -> list[dict[str, Any]]:
    """Of what others may have written in another form, what has this one."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _count(entries: list[Any]) -> str:
    return f"{len(entries)} device{'s' if len(entries) > 1 else ''}"


def _devices(entries: list[Any]) -> str:
    names = [f"{entry.get('devicePoolName')}/{entry.get('deviceName')}" for entry in _maps(entries)]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"
