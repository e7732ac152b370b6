"""What is written on claims about the devices they hold: ``Ready`` while prepared, and ``Healthy`` (T3, T29)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from devalloc.store import Store
from devalloc_node.errors import Denied, NodeError
from devalloc_node.feed import Checkup
from devalloc_node.grant import ClaimRef
from devalloc_node.marks import set_conditions
from devalloc_node.prepared import Prepared, PreparedDevice

log = logging.getLogger(__name__)

READY = "Ready"
HEALTHY = "Healthy"

_Device = tuple[str, str]
_Conditions = dict[_Device, list[Mapping[str, str]]]
_STATUS = {"healthy": "True", "unhealthy": "False", "unknown": "Unknown"}


class ClaimStatuses:
    """Keeps the conditions of a store's DeviceClaims as their node sees them. Not safe for threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._told: dict[ClaimRef, _Conditions] = {}

    def update(self, prepared: Iterable[Prepared], checkup: Checkup) -> None:
        """Write what has changed since the last call; what could not be written is tried again by the next."""
        health = {(each.pool, each.device): each.health for each in checkup.devices}
        now: dict[ClaimRef, _Conditions] = {}
        for claim in prepared:
            conditions: _Conditions = {}
            for device in claim.devices:
                found = health.get(key := (device.pool, device.device))
                conditions[key] = [_ready(device)] + ([] if found is None else [_healthy(found.state, found.message)])
            now[claim.ref] = conditions
        for ref in self._told.keys() - now.keys():
            over = {device: [_condition(READY, "False", "Unprepared", "")] for device in self._told[ref]}
            if self._write(ref, over):
                del self._told[ref]
        for ref, conditions in now.items():
            if self._told.get(ref) != conditions and self._write(ref, conditions):
                self._told[ref] = conditions

    def _write(self, ref: ClaimRef, conditions: _Conditions) -> bool:
        try:
            set_conditions(self._store, ref, conditions)
        except Denied:
            return True  # gone, or a claim of another dialect: nobody to tell
        except NodeError as error:
            log.warning("could not say on claim %s how its devices are: %s", ref, error)
            return False
        return True


def _ready(device: PreparedDevice) -> Mapping[str, str]:
    behind = ", ".join((*device.functions, *filter(None, [device.mdev_uuid])))
    return _condition(READY, "True", "Prepared", f"{device.binding}: {behind}" if behind else device.binding)


def _healthy(state: str, message: str) -> Mapping[str, str]:
    return _condition(HEALTHY, _STATUS[state], state.capitalize(), message)


def _condition(kind: str, status: str, reason: str, message: str) -> Mapping[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}
