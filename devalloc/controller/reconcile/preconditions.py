"""Preconditions of a decision, and whether they still hold after what happened meanwhile.

Devices are given once: of pools, classes and claims that hold devices nothing that counts may have changed. Others than
claims count for more and for less all the time, as machines do that are permitted it; that matters only to what was to
be given of the same node's room.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from devalloc.api.machine_reservation import sum_entries
from devalloc.api.meta import ADMIN_CLASSES, ALLOCATED_NODE, ALLOCATED_SPEC, ALLOCATION_DETAILS, DEVICE_RECORDS
from devalloc.api.views import ClaimView, as_mapping, as_mappings
from devalloc.controller.reconcile.decision import WriteUnit
from devalloc.controller.reconcile.requester import Requester
from devalloc.store import Key, Object

EXCLUSIVE_SPECS = frozenset({"DevicePool", "DeviceClass"})
EXCLUSIVE_STATUSES = frozenset({"DeviceClaim"})
"""What a decision depends on so that no device is given twice, beside the holders of requesters."""
_ALLOCATION_ANNOTATIONS = (ALLOCATED_NODE, ALLOCATION_DETAILS, DEVICE_RECORDS, ALLOCATED_SPEC, ADMIN_CLASSES)
"""Annotations that say what an allocated claim holds."""


def fuller_pools(
    before: Mapping[Key, Object], now: Mapping[Key, Object], requesters: Iterable[Requester[Any]]
) -> frozenset[str] | None:
    """Pools of which others than claims count for more than before; None if anything else is other than it was decided
    on."""
    holders = {kind: each for each in requesters for kind in each.holders}
    pools: set[str] = set()
    for key in before.keys() | now.keys():
        old, new = before.get(key), now.get(key)
        if old is new or key.kind not in EXCLUSIVE_SPECS | EXCLUSIVE_STATUSES | holders.keys():
            continue
        if (holder := holders.get(key.kind)) is not None:
            pools |= _pools_with_more(*([] if one is None else holder.held(one) for one in (old, new)))
        elif _relevant_part(old) != _relevant_part(new):
            return None
    return frozenset(pools)


def allocates_from(unit: WriteUnit, pools: frozenset[str]) -> bool:
    """Whether it gives something of one of these pools."""
    if not (unit.granted or unit.grows):
        return False
    statuses = [change.status or {} for change in unit.changes]
    parts = [*statuses, *(as_mapping(status.get("migrationState")) for status in statuses)]
    parts += [claim for part in parts for claim in as_mappings(part.get("claims"))]
    given = (entry for part in parts for entry in part.get("allocations") or ())
    return any(entry.get("devicePoolName") in pools for entry in given)


def _relevant_part(doc: Object | None) -> Any:
    if doc is None:
        return None
    metadata = doc["metadata"]
    if doc["kind"] in EXCLUSIVE_SPECS:
        return metadata["uid"], metadata["generation"]
    if not ClaimView(doc).entries:
        return None
    noted = metadata.get("annotations", {})
    values = [noted.get(name) for name in _ALLOCATION_ANNOTATIONS]
    return metadata["uid"], metadata["generation"], ClaimView(doc).entries, values


def _pools_with_more(before: list[Any], now: list[Any]) -> set[str]:
    was, taken = sum_entries(before), sum_entries(now)
    whole = {(entry["devicePoolName"], entry["deviceName"]) for entry in before}
    grown = {place[0] for place, amount in taken.items() if amount > was.get(place, 0)}
    return grown | {
        entry["devicePoolName"] for entry in now if (entry["devicePoolName"], entry["deviceName"]) not in whole
    }
