"""What pools say of the devices that claims get, and the note of it on a claim: which hardware it was given."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from devalloc.api.device_identity import identity_of
from devalloc.api.views import as_mapping, as_mappings, effective_attributes

_MOST = 32_768
"""Characters of the note on one claim, of the 256 KiB that all annotations of an object can have."""


class PoolAttributes:
    """The texts among the attributes of the devices of pools, read when they are asked for."""

    def __init__(self, documents: Iterable[Mapping[str, Any]]) -> None:
        self._documents = documents
        self._pools: dict[str, Mapping[str, Any]] | None = None
        self._read: dict[str, dict[str, dict[str, str]]] = {}

    def texts(self, pool: str, device: str) -> dict[str, str]:
        """The attributes of a device that are texts; empty if it is not there."""
        if self._pools is None:
            self._pools = {doc["metadata"]["name"]: doc for doc in self._documents if doc.get("kind") == "DevicePool"}
        if pool not in self._read:
            content = as_mapping(self._pools.get(pool))
            devices = as_mappings(as_mapping(content.get("spec")).get("devices"))
            self._read[pool] = {str(one.get("name")): _texts(content, one) for one in devices}
        return self._read[pool].get(device, {})

    def identities(self, entries: Sequence[Mapping[str, Any]]) -> str | None:
        """Which hardware the devices of allocations are, for the annotation ``ALLOCATED_IDENTITIES``; None if their
        pools do not say it."""
        noted = {}
        for entry in entries:
            place = str(entry.get("devicePoolName")), str(entry.get("deviceName"))
            if identity := identity_of(self.texts(*place)):
                noted["/".join(place)] = identity
        text = json.dumps(noted, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return text if noted and len(text) <= _MOST else None


def _texts(pool: Mapping[str, Any], device: Mapping[str, Any]) -> dict[str, str]:
    values = {name: entry.get("stringValue") for name, entry in effective_attributes(pool, device).items()}
    return {name: value for name, value in values.items() if isinstance(value, str)}
