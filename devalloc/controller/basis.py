"""What a decision rests on, and whether it still stands after what happened meanwhile.

Devices are given once: of pools, classes and claims that hold devices nothing that counts may have changed. Machines
count for more and for less all the time, as they are permitted; that matters only to what was to be given of the same
node's room.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from devalloc.api.meta import ADMIN_CLASSES, ALLOCATED_NODE, ALLOCATED_SPEC, ALLOCATION_DETAILS
from devalloc.controller import placing
from devalloc.controller.claims import allocations
from devalloc.controller.decision import Unit
from devalloc.store import Key, Object

EXCLUSIVE_SPECS = frozenset({"DevicePool", "DeviceClass"})
EXCLUSIVE_STATUSES = frozenset({"DeviceClaim", placing.KIND})
"""What a decision depends on so that no device is given twice."""
_OF_HOLDING = (ALLOCATED_NODE, ALLOCATION_DETAILS, ALLOCATED_SPEC, ADMIN_CLASSES)
"""Annotations that say what an allocated claim holds."""


def fuller(before: Mapping[Key, Object], now: Mapping[Key, Object]) -> frozenset[str] | None:
    """Pools of which machines count for more than before; None where anything else is other than it was decided on."""
    pools: set[str] = set()
    for key in before.keys() | now.keys():
        old, new = before.get(key), now.get(key)
        if old is new or key.kind not in EXCLUSIVE_SPECS | EXCLUSIVE_STATUSES:
            continue
        if key.kind == placing.KIND:
            pools |= _more(_kept(old), _kept(new))
        elif _what_counts(old) != _what_counts(new):
            return None
    return frozenset(pools)


def draws_on(unit: Unit, pools: frozenset[str]) -> bool:
    """Whether it gives something of one of these pools."""
    if not (unit.granted or unit.grows):
        return False
    given = (entry for change in unit.changes for entry in (change.status or {}).get("allocations") or ())
    return any(entry.get("devicePoolName") in pools for entry in given)


def _what_counts(doc: Object | None) -> Any:
    if doc is None:
        return None
    metadata = doc["metadata"]
    if doc["kind"] in EXCLUSIVE_SPECS:
        return metadata["uid"], metadata["generation"]
    if not allocations(doc):
        return None
    noted = metadata.get("annotations", {})
    told = [noted.get(name) for name in _OF_HOLDING]
    return metadata["uid"], metadata["generation"], allocations(doc), told


def _kept(machine: Object | None) -> list[Any]:
    return [] if machine is None else placing.counted(machine)


def _more(before: list[Any], now: list[Any]) -> set[str]:
    was, taken = placing.taken_by(before), placing.taken_by(now)
    whole = {(entry["devicePoolName"], entry["deviceName"]) for entry in before}
    found = {place[0] for place, amount in taken.items() if amount > was.get(place, 0)}
    return found | {
        entry["devicePoolName"] for entry in now if (entry["devicePoolName"], entry["deviceName"]) not in whole
    }
