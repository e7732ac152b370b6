"""``status.devices`` of ResourceClaims: what this node has made of their devices, and how these are.

Only this driver's entries are touched, and by a JSON patch: the API server compares the entries of other drivers byte
for byte, and server-side apply would write their ``data`` anew. It takes an entry only for a device that the claim
holds, and drops it with the allocation.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from devalloc.api.conditions import with_conditions
from devalloc.store.kubernetes.api_error import ApiError, Object
from devalloc.store.kubernetes.client import Client, path_segment
from devalloc_node.health.conditions import conditions_of
from devalloc_node.health.device_info import device_data, network_data
from devalloc_node.health.watch import HealthSnapshot
from devalloc_node.kube.grants import CLAIMS
from devalloc_node.model.grant import ClaimRef
from devalloc_node.model.step import Prepared, PreparedDevice

log = logging.getLogger(__name__)

FORBIDDEN_SECONDS = 300.0
"""How long nothing is tried after the server said that we may not write on claims."""
REFUSED_SECONDS = 60.0
"""How long a claim is left alone of which it refused what we wrote."""

_Key = tuple[str, str, str | None]
"""Pool, device and share."""
_Entries = dict[_Key, Object]


class ResourceClaimStatuses:
    """Keeps the entries of one driver on one node. Not safe for threads."""

    def __init__(self, client: Client, driver: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._driver = driver
        self._clock = clock
        self._written: dict[ClaimRef, _Entries] = {}
        self._not_before = 0.0
        self._refused: dict[ClaimRef, float] = {}
        """Claims that are left alone, and until when."""

    def update(self, prepared: Iterable[Prepared], checkup: HealthSnapshot) -> None:
        """Write what has changed since the last call; what could not be written is tried again by the next.

        The first call reads each prepared claim, and writes where an earlier instance said something else.
        """
        if self._clock() < self._not_before:
            return
        health = {(each.pool, each.device): each.health for each in checkup.devices}
        now: dict[ClaimRef, _Entries] = {}
        for claim in prepared:
            now[claim.ref] = {
                (device.pool, device.device, device.share): self._entry(
                    device, conditions_of(device, health.get((device.pool, device.device)))
                )
                for device in claim.devices
            }
        try:
            for ref in sorted(self._written.keys() - now.keys()):
                if self._write(ref, {}):
                    del self._written[ref]
            for ref, entries in now.items():
                if self._written.get(ref) != entries and self._write(ref, entries):
                    self._written[ref] = entries
        except ApiError as error:
            if error.status in (401, 403):
                self._not_before = self._clock() + FORBIDDEN_SECONDS
            log.warning("cannot write the health of devices to ResourceClaims: %s", error)

    def _entry(self, device: PreparedDevice, conditions: list[Mapping[str, str]]) -> Object:
        entry: Object = {"driver": self._driver, "pool": device.pool, "device": device.device}
        if device.share is not None:
            entry["shareID"] = device.share
        entry |= {"conditions": [dict(each) for each in conditions], "data": device_data(device)}
        return entry | ({"networkData": network} if (network := network_data(device)) else {})

    def _write(self, ref: ClaimRef, entries: _Entries) -> bool:
        """Whether the claim shows it, or no claim exists. Raises ApiError where others will fare no better."""
        if self._clock() < self._refused.get(ref, 0.0):
            return False
        self._refused.pop(ref, None)
        path = CLAIMS.format(path_segment(ref.namespace), path_segment(ref.name))
        try:
            claim = self._client.get(path)
            if claim["metadata"]["uid"] != ref.uid:
                return True
            if operations := self._operations(claim, entries):
                self._client.patch(f"{path}/status", operations)
        except ApiError as error:
            if error.is_not_found:
                return True
            if error.is_conflict:
                return False  # the claim has changed
            if error.status != 422:
                raise
            self._refused[ref] = self._clock() + REFUSED_SECONDS
            log.warning("cannot write the health of the devices of ResourceClaim %s: %s", ref, error)
            return False
        except (KeyError, TypeError, AttributeError) as error:
            log.warning("cannot read ResourceClaim %s: %s %s", ref, type(error).__name__, error)
            return False
        return True

    def _operations(self, claim: Object, entries: _Entries) -> list[Object]:
        """The patch after which the claim has these entries of ours; empty where it has, or holds nothing."""
        status = claim.get("status") or {}
        held = {_key(each) for each in _results(status) if each["driver"] == self._driver}
        there = status.get("devices") or []
        ours = {_key(each): index for index, each in enumerate(there) if each["driver"] == self._driver}
        operations: list[Object] = []
        for key, entry in entries.items():
            before = there[ours[key]] if key in ours else None
            if key in held and (wanted := _timed(entry, before)) != before:
                place = ("add", "-") if before is None else ("replace", ours[key])
                operations.append({"op": place[0], "path": f"/status/devices/{place[1]}", "value": wanted})
        gone = sorted((index for key, index in ours.items() if key not in entries), reverse=True)
        operations += ({"op": "remove", "path": f"/status/devices/{index}"} for index in gone)
        if not operations:
            return []
        if not there:
            operations.insert(0, {"op": "add", "path": "/status/devices", "value": []})
        version = {"op": "replace", "path": "/metadata/resourceVersion", "value": claim["metadata"]["resourceVersion"]}
        return [version, *operations]


def _results(status: Mapping[str, Any]) -> list[Any]:
    allocation = status.get("allocation") or {}
    return (allocation.get("devices") or {}).get("results") or []


def _key(status: Mapping[str, Any]) -> _Key:
    return status["pool"], status["device"], status.get("shareID")


_OF_NETWORKS = ("interfaceName", "ips")
"""Members of ``networkData`` that the plugin does not know: the network component that wrote them keeps them."""


def _timed(entry: Object, before: Object | None) -> Object:
    """The entry with the times since when its conditions are so, and what network components wrote."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    types = {each["type"] for each in entry["conditions"]}
    merged = with_conditions((before or {}).get("conditions"), entry["conditions"], now)
    conditions = [each for each in merged if each["type"] in types]
    written = (before or {}).get("networkData") or {}
    network = {name: written[name] for name in _OF_NETWORKS if name in written} | entry.get("networkData", {})
    return {**entry, "conditions": conditions, **({"networkData": network} if network else {})}
