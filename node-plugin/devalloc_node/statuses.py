"""What is written on claims about the devices they hold: ``Ready`` while prepared, and ``Healthy`` (T3, T29)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping

from devalloc.api.meta import ALLOCATED_NODE
from devalloc.store import Object, Store, StoreError
from devalloc_node.binding.binding import Health
from devalloc_node.claims.store_grants import claim_ref
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
_MEMBERS = ("type", "status", "reason", "message")
_STATUS = {"healthy": "True", "unhealthy": "False", "unknown": "Unknown"}


class ClaimStatuses:
    """Keeps the conditions of a store's DeviceClaims as their node sees them. Not safe for threads."""

    def __init__(self, store: Store, node_name: str) -> None:
        self._store = store
        self._node_name = node_name
        self._told: dict[ClaimRef, _Conditions] | None = None
        """None before the first look at what an earlier instance said."""

    def update(self, prepared: Iterable[Prepared], checkup: Checkup) -> None:
        """Write what has changed since the last call; what could not be written is tried again by the next."""
        if self._told is None:
            try:
                self._told = dict(_said_earlier(self._store.list("DeviceClaim").objects, self._node_name))
            except StoreError as error:
                log.warning("could not look at what was said on claims before: %s", error)
                return
        told = self._told
        health = {(each.pool, each.device): each.health for each in checkup.devices}
        now: dict[ClaimRef, _Conditions] = {}
        for claim in prepared:
            now[claim.ref] = {
                (key := (device.pool, device.device)): conditions_of(device, health.get(key))
                for device in claim.devices
            }
        for ref in sorted(told.keys() - now.keys()):
            if self._write(ref, {device: _over(conditions) for device, conditions in told[ref].items()}):
                del told[ref]
        for ref, conditions in now.items():
            if told.get(ref) != conditions and self._write(ref, conditions):
                told[ref] = conditions

    def _write(self, ref: ClaimRef, conditions: _Conditions) -> bool:
        try:
            set_conditions(self._store, ref, conditions)
        except Denied:
            return True  # gone, or a claim of another dialect: nobody to tell
        except NodeError as error:
            log.warning("could not say on claim %s how its devices are: %s", ref, error)
            return False
        return True


def _said_earlier(claims: Iterable[Object], node_name: str) -> Iterator[tuple[ClaimRef, _Conditions]]:
    """Of the node's claims those that are called ready: what a crash or a reboot undid must not stay so."""
    for claim in claims:
        if claim["metadata"].get("annotations", {}).get(ALLOCATED_NODE) != node_name:
            continue
        found: _Conditions = {}
        try:
            for status in claim["status"]["deviceStatuses"]:
                ours = [each for each in status.get("conditions", ()) if each["type"] in (READY, HEALTHY)]
                if any(each["type"] == READY and each["status"] == "True" for each in ours):
                    device = status["devicePoolName"], status["deviceName"]
                    found[device] = [{key: each[key] for key in _MEMBERS} for each in ours]
        except (KeyError, TypeError, AttributeError):
            continue  # none of ours, or somebody else wrote there
        if found:
            yield claim_ref(claim), found


def _over(conditions: Iterable[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """What is left to say of a device that is no longer prepared; nobody looks at it for this claim any more."""
    over = {READY: "False", HEALTHY: "Unknown"}
    return [_condition(each["type"], over[each["type"]], "Unprepared", "") for each in conditions]


def conditions_of(device: PreparedDevice, health: Health | None) -> list[Mapping[str, str]]:
    """``Ready`` of a prepared device, and ``Healthy`` where somebody has looked: type, status, reason and message."""
    return [_ready(device)] + ([] if health is None else [_healthy(health.state, health.message)])


def _ready(device: PreparedDevice) -> Mapping[str, str]:
    behind = ", ".join((*device.functions, *filter(None, [device.mdev_uuid])))
    return _condition(READY, "True", "Prepared", f"{device.binding}: {behind}" if behind else device.binding)


def _healthy(state: str, message: str) -> Mapping[str, str]:
    return _condition(HEALTHY, _STATUS[state], state.capitalize(), message)


def _condition(kind: str, status: str, reason: str, message: str) -> Mapping[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}
