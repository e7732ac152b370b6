"""Builders of small fleets, claims and answers, for tests of the checker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from devalloc.api import meta
from devalloc.api.claim import DeviceClaim
from devalloc.api.device_class import DeviceClass
from devalloc.api.pool import Attribute, AttributeValue, DevicePool

Manifest = dict[str, Any]
Amounts = Mapping[str, str]
Attributes = Mapping[str, AttributeValue]
Resources = Mapping[str, str | tuple[str, str]]
"""Capacity, or (capacity, block size), by name."""
Granted = str | tuple[str, Amounts]
"""A device as "pool/device"; with amounts when it is a share."""

NOTES = {"group": meta.GROUP, "pin": meta.NODE, "priority": meta.PRIORITY, "node": meta.ALLOCATED_NODE}
"""Short names of the annotations of claims."""


def device(
    name: str, attributes: Attributes | None = None, *, draws: Amounts | None = None, has: Resources | None = None
) -> Manifest:
    """A device that draws on its pool's resources, and has resources of its own."""
    return {
        "name": name,
        "attributes": _attributes(attributes),
        "requests": dict(draws or {}),
        "resources": _resources(has),
    }


def pool(
    name: str,
    *devices: Manifest,
    node: str | None = "n1",
    driver: str = "gpu",
    attributes: Attributes | None = None,
    has: Resources | None = None,
) -> DevicePool:
    """A pool of a node, or of the network."""
    spec = {
        "nodeName": node,
        "driver": driver,
        "attributes": _attributes(attributes),
        "resources": _resources(has),
        "devices": list(devices),
    }
    return DevicePool.model_validate({"metadata": {"name": name}, "spec": spec})


def device_class(name: str, **spec: Any) -> DeviceClass:
    return DeviceClass.model_validate({"metadata": {"name": name}, "spec": spec})


def claim(name: str, *details: Manifest, match: tuple[str, ...] = (), **metadata: Any) -> DeviceClaim:
    """A pending claim of the details, by default one that takes one whole device of any kind.

    Keywords are the short names of annotations (NOTES), or fields of metadata.
    """
    annotations = {NOTES[key]: metadata.pop(key) for key in list(metadata) if key in NOTES}
    manifest = {
        "metadata": {"name": name, "namespace": "default", "annotations": annotations, **metadata},
        "spec": {"claims": list(details) or [{}], "matchAttributes": list(match)},
    }
    return DeviceClaim.model_validate(manifest)


def held_claim(pending: DeviceClaim, *granted: Granted, details: list[str] | None = None) -> DeviceClaim:
    """The claim as it is once it holds the devices; without `details`, the annotation is missing."""
    manifest = pending.to_manifest()
    manifest["status"] = {"allocations": [grant(each) for each in granted]}
    if details is not None:
        manifest["metadata"]["annotations"][meta.ALLOCATION_DETAILS] = json.dumps(details)
    return DeviceClaim.model_validate(manifest)


def grant(granted: Granted) -> Manifest:
    """An entry of allocations."""
    path, amounts = (granted, {}) if isinstance(granted, str) else granted
    pool_name, _, device_name = path.partition("/")
    entry: Manifest = {"devicePoolName": pool_name, "deviceName": device_name}
    if amounts:
        entry["allocations"] = [{"name": name, "allocation": amount} for name, amount in amounts.items()]
    return entry


def answer(name: str, *granted: Granted, node: str | None = "n1", details: str = "") -> Manifest:
    """A claim's answer. `details` tells the detail of each device, such as "0 0 1.1"; by default it is the first."""
    indexes = details.split() or ["0"] * len(granted)
    chosen: dict[int, int | None] = {}
    for index in indexes:
        position, _, alternative = index.partition(".")
        chosen[int(position)] = int(alternative) if alternative else None
    annotations = {meta.ALLOCATION_DETAILS: json.dumps(indexes)}
    if node is not None:
        annotations[meta.ALLOCATED_NODE] = node
    return {
        "namespace": "default",
        "name": name,
        "allocated": True,
        "node": node,
        "allocations": [grant(each) for each in granted],
        "oneOf": [chosen.get(position) for position in range(max(chosen, default=0) + 1)],
        "annotations": annotations,
    }


def unallocated(name: str) -> Manifest:
    """The answer of a claim that gets nothing."""
    return {"namespace": "default", "name": name, "allocated": False, "node": None, "allocations": [], "oneOf": None}


def echo(claim: DeviceClaim) -> Manifest:
    """The answer of a claim that came in allocated."""
    node = claim.allocated_node or claim.pinned_node
    status = claim.to_manifest()["status"]
    return {**unallocated(claim.metadata.name), "allocated": True, "node": node, **status}


def assert_refused(violations: list[str], *parts: str) -> None:
    """One thing is wrong, and the sentence says which."""
    assert len(violations) == 1, violations
    for part in parts:
        assert part in violations[0]


def _attributes(attributes: Attributes | None) -> list[Manifest]:
    return [Attribute.of(name, value).to_manifest() for name, value in (attributes or {}).items()]


def _resources(resources: Resources | None) -> list[Manifest]:
    listed = []
    for name, amount in (resources or {}).items():
        capacity, block = (amount, None) if isinstance(amount, str) else amount
        listed.append({"name": name, "capacity": capacity} | ({"blockSize": block} if block else {}))
    return listed
