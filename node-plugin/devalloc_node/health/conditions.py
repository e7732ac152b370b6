"""What a node writes to claims about their devices: the conditions `Ready` and `Healthy` (T3, T29), and what they are
on the host."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from devalloc.api.views import ClaimView
from devalloc.store import Object, Store, StoreError
from devalloc.worker import Again, Pace, Why, Worker
from devalloc_node.binding.binding import HealthState
from devalloc_node.binding.vfio_handover import MAC
from devalloc_node.claims.finalizers import set_device_statuses
from devalloc_node.claims.store_grants import claim_ref
from devalloc_node.errors import Denied, NodeError
from devalloc_node.health.device_info import device_info
from devalloc_node.health.watch import HealthSnapshot, HealthWatch
from devalloc_node.model.grant import ClaimRef
from devalloc_node.model.step import MACHINE_ADDRESS, Prepared, PreparedDevice

log = logging.getLogger(__name__)

STATUS_SECONDS = 5.0
"""How often it is looked whether claims are to be told something about their devices."""


def with_machine_addresses(
    prepared: Iterable[Prepared], address_of: Callable[[ClaimRef, PreparedDevice], str | None]
) -> list[Prepared]:
    """Prepared claims with the addresses at which the machines are reached that have their devices. Network cards have
    addresses of their own, which only guests know. ``address_of``: None for a device that is in no such machine."""

    def with_address(ref: ClaimRef, device: PreparedDevice) -> PreparedDevice:
        address = None if device.admin or MAC in device.attributes else address_of(ref, device)
        return (
            device if address is None else replace(device, attributes={**device.attributes, MACHINE_ADDRESS: address})
        )

    return [
        replace(claim, devices=tuple(with_address(claim.ref, device) for device in claim.devices)) for claim in prepared
    ]


class ConditionReporter:
    """Run it in a thread of its own."""

    def __init__(
        self,
        tell: Callable[[Iterable[Prepared], HealthSnapshot], None],
        prepared: Callable[[], Iterable[Prepared]],
        health: HealthWatch,
    ) -> None:
        self._tell = tell
        self._prepared = prepared
        self._health = health
        pace = Pace(STATUS_SECONDS, STATUS_SECONDS)
        self._worker: Worker[None, object] = Worker(
            "cannot write the health of devices to claims", self._work, pace=pace
        )

    def soon(self) -> None:
        """Other claims are prepared than before, or their devices are otherwise."""
        self._worker.add(None)

    def run(self, stop: threading.Event) -> None:
        """Until ``stop`` is set."""
        self._worker.add(None)
        self._worker.run(stop)

    def _work(self, key: None, why: Why) -> Again:
        self._tell(self._prepared(), self._health.snapshot())
        return Again(STATUS_SECONDS)


READY = "Ready"
HEALTHY = "Healthy"

_Device = tuple[str, str]
_Conditions = dict[_Device, list[Mapping[str, str]]]


@dataclass(frozen=True, slots=True)
class _Statuses:
    """What is said of a claim's devices."""

    conditions: _Conditions
    info: dict[_Device, list[Mapping[str, Any]]]
    """Of each that is prepared, one object for each share."""


_MEMBERS = ("type", "status", "reason", "message")
_STATUS = {"healthy": "True", "unhealthy": "False", "unknown": "Unknown"}


class ClaimConditions:
    """Keeps the conditions of a store's DeviceClaims as their node sees them. Not safe for threads."""

    def __init__(self, store: Store, node_name: str) -> None:
        self._store = store
        self._node_name = node_name
        self._written: dict[ClaimRef, _Statuses] | None = None
        """None before the first look at what an earlier instance said."""

    def update(self, prepared: Iterable[Prepared], checkup: HealthSnapshot) -> None:
        """Write what has changed since the last call; what could not be written is tried again by the next."""
        if self._written is None:
            try:
                self._written = dict(_ready_before(self._store.list("DeviceClaim").objects, self._node_name))
            except StoreError as error:
                log.warning("cannot read the earlier conditions of claims: %s", error)
                return
        written = self._written
        health = {(each.pool, each.device): each.health for each in checkup.devices}
        now = {claim.ref: _statuses_of(claim, health) for claim in prepared}
        for ref in sorted(written.keys() - now.keys()):
            over = {device: _final_conditions(each) for device, each in written[ref].conditions.items()}
            if self._write(ref, _Statuses(over, {})):
                del written[ref]
        for ref, statuses in now.items():
            if written.get(ref) != statuses and self._write(ref, statuses):
                written[ref] = statuses

    def _write(self, ref: ClaimRef, statuses: _Statuses) -> bool:
        try:
            set_device_statuses(self._store, ref, statuses.conditions, statuses.info)
        except Denied:
            return True  # gone, or a claim of another dialect: no object to write to
        except NodeError as error:
            log.warning("cannot write the health of the devices of claim %s: %s", ref, error)
            return False
        return True


def _statuses_of(claim: Prepared, health: Mapping[_Device, HealthState]) -> _Statuses:
    conditions: _Conditions = {}
    info: dict[_Device, list[Mapping[str, Any]]] = {}
    for device in claim.devices:
        key = device.pool, device.device
        conditions[key] = conditions_of(device, health.get(key))
        info.setdefault(key, []).extend(filter(None, [device_info(device)]))
    return _Statuses(conditions, info)


def _ready_before(claims: Iterable[Object], node_name: str) -> Iterator[tuple[ClaimRef, _Statuses]]:
    """Of the node's claims those that are called ready: what a crash or a reboot undid must not stay so."""
    for claim in claims:
        if ClaimView(claim).node != node_name:
            continue
        by_device: _Conditions = {}
        info: dict[_Device, list[Mapping[str, Any]]] = {}
        try:
            for status in claim["status"]["deviceStatuses"]:
                ours = [each for each in status.get("conditions", ()) if each["type"] in (READY, HEALTHY)]
                if any(each["type"] == READY and each["status"] == "True" for each in ours):
                    device = status["devicePoolName"], status["deviceName"]
                    by_device[device] = [{key: each[key] for key in _MEMBERS} for each in ours]
                    info[device] = list(status.get("deviceInfo", ()))
        except (KeyError, TypeError, AttributeError):
            continue  # not ours, or others wrote there
        if by_device:
            yield claim_ref(claim), _Statuses(by_device, info)


def _final_conditions(conditions: Iterable[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """The last condition of a device that is no longer prepared, and no longer watched for this claim."""
    over = {READY: "False", HEALTHY: "Unknown"}
    return [_condition(each["type"], over[each["type"]], "Unprepared", "") for each in conditions]


def conditions_of(device: PreparedDevice, health: HealthState | None) -> list[Mapping[str, str]]:
    """``Ready`` of a prepared device, and ``Healthy`` if its health was observed: type, status, reason and message."""
    return [_ready(device)] + ([] if health is None else [_healthy(health.state, health.message)])


def _ready(device: PreparedDevice) -> Mapping[str, str]:
    behind = ", ".join((*device.functions, *filter(None, [device.mdev_uuid])))
    return _condition(READY, "True", "Prepared", f"{device.binding}: {behind}" if behind else device.binding)


def _healthy(state: str, message: str) -> Mapping[str, str]:
    return _condition(HEALTHY, _STATUS[state], state.capitalize(), message)


def _condition(kind: str, status: str, reason: str, message: str) -> Mapping[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}
