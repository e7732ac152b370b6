"""The conditions that a node writes to claims about their devices: `Ready` while prepared, and `Healthy` (T3, T29)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping

from devalloc.api.views import ClaimView
from devalloc.store import Object, Store, StoreError
from devalloc_node.binding.binding import HealthState
from devalloc_node.claims.finalizers import set_conditions
from devalloc_node.claims.store_grants import claim_ref
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, NodeError
from devalloc_node.health.watch import HealthSnapshot, HealthWatch
from devalloc_node.model.grant import ClaimRef
from devalloc_node.model.step import Prepared, PreparedDevice

log = logging.getLogger(__name__)

STATUS_SECONDS = 5.0
"""How often it is looked whether claims are to be told something about their devices."""
_TICK_SECONDS = 0.5


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
        self._soon = threading.Event()

    def soon(self) -> None:
        """Other claims are prepared than before, or their devices are otherwise."""
        self._soon.set()

    def run(self, stop: threading.Event) -> None:
        """Until ``stop`` is set."""
        while not stop.is_set():
            self._soon.clear()
            checkup = self._health.snapshot()
            try:
                self._tell(self._prepared(), checkup)
            except Exception:
                log.exception("cannot write the health of devices to claims; trying again")
            until = Deadline.after(STATUS_SECONDS)
            while not (stop.is_set() or until.passed or self._health.wait(checkup.version, 0.0)):
                if self._soon.wait(_TICK_SECONDS):
                    break


READY = "Ready"
HEALTHY = "Healthy"

_Device = tuple[str, str]
_Conditions = dict[_Device, list[Mapping[str, str]]]
_MEMBERS = ("type", "status", "reason", "message")
_STATUS = {"healthy": "True", "unhealthy": "False", "unknown": "Unknown"}


class ClaimConditions:
    """Keeps the conditions of a store's DeviceClaims as their node sees them. Not safe for threads."""

    def __init__(self, store: Store, node_name: str) -> None:
        self._store = store
        self._node_name = node_name
        self._written: dict[ClaimRef, _Conditions] | None = None
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
        now: dict[ClaimRef, _Conditions] = {}
        for claim in prepared:
            now[claim.ref] = {
                (key := (device.pool, device.device)): conditions_of(device, health.get(key))
                for device in claim.devices
            }
        for ref in sorted(written.keys() - now.keys()):
            if self._write(ref, {device: _final_conditions(conditions) for device, conditions in written[ref].items()}):
                del written[ref]
        for ref, conditions in now.items():
            if written.get(ref) != conditions and self._write(ref, conditions):
                written[ref] = conditions

    def _write(self, ref: ClaimRef, conditions: _Conditions) -> bool:
        try:
            set_conditions(self._store, ref, conditions)
        except Denied:
            return True  # gone, or a claim of another dialect: no object to write to
        except NodeError as error:
            log.warning("cannot write the health of the devices of claim %s: %s", ref, error)
            return False
        return True


def _ready_before(claims: Iterable[Object], node_name: str) -> Iterator[tuple[ClaimRef, _Conditions]]:
    """Of the node's claims those that are called ready: what a crash or a reboot undid must not stay so."""
    for claim in claims:
        if ClaimView(claim).node != node_name:
            continue
        by_device: _Conditions = {}
        try:
            for status in claim["status"]["deviceStatuses"]:
                ours = [each for each in status.get("conditions", ()) if each["type"] in (READY, HEALTHY)]
                if any(each["type"] == READY and each["status"] == "True" for each in ours):
                    device = status["devicePoolName"], status["deviceName"]
                    by_device[device] = [{key: each[key] for key in _MEMBERS} for each in ours]
        except (KeyError, TypeError, AttributeError):
            continue  # not ours, or others wrote there
        if by_device:
            yield claim_ref(claim), by_device


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
