"""Objects of older versions of resource.k8s.io as ``v1`` has them, and fields at the place of another version.

``v1beta2`` has the form of ``v1``. In ``v1beta1`` the fields of ``exactly`` are fields of the request, and those of a
device are below ``basic``. Kubernetes' API server converts alike (pkg/apis/resource/v1beta1/conversion.go).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from devalloc.api.json_content import MAPPINGS

API_VERSION = "resource.k8s.io/v1"
V1BETA1, V1BETA2 = "resource.k8s.io/v1beta1", "resource.k8s.io/v1beta2"
V1ALPHA3 = "resource.k8s.io/v1alpha3"
"""Only DeviceTaintRules are read as it has them; the form of its other objects is that of ``v1beta1``."""
TAINT_RULE_VERSIONS = (V1ALPHA3, V1BETA2)
"""Older versions that have DeviceTaintRules, in the form of ``v1``."""
OF_EXACTLY = (
    *("deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "tolerations", "capacity"),
    "derivedAttributes",
)
"""Fields of a request for devices, which v1 has below ``exactly``."""

Manifest = Mapping[str, Any]


def as_v1(content: Any) -> Any:
    """An object of an older version as an object of ``v1``; any other content, and what cannot be converted, as it is.

    Fields that no version has stay where they were, so that reading the object reports them.
    """
    if not isinstance(content, MAPPINGS):
        return content
    version = content.get("apiVersion")
    if version == API_VERSION:
        return content
    if version == V1BETA2 or (content.get("kind") == "DeviceTaintRule" and version in TAINT_RULE_VERSIONS):
        return {**content, "apiVersion": API_VERSION}
    if version != V1BETA1 or misplaced_field(content) is not None:
        return content
    converted, spec = {**content, "apiVersion": API_VERSION}, content.get("spec")
    if not isinstance(spec, Mapping):
        return converted
    if isinstance(devices := spec.get("devices"), list):
        return {**converted, "spec": {**spec, "devices": [_device(device) for device in devices]}}
    if isinstance(inner := spec.get("spec"), Mapping):
        return {**converted, "spec": {**spec, "spec": _claim_spec(inner)}}
    return {**converted, "spec": _claim_spec(spec)}


def _claim_spec(spec: Manifest) -> Manifest:
    devices = spec.get("devices")
    requests = devices.get("requests") if isinstance(devices, Mapping) else None
    if not isinstance(devices, Mapping) or not isinstance(requests, list):
        return spec
    return {**spec, "devices": {**devices, "requests": [_request(request) for request in requests]}}


def _request(request: Any) -> Any:
    if not isinstance(request, Mapping):
        return request
    exactly = {name: value for name, value in request.items() if name in OF_EXACTLY}
    rest = {name: value for name, value in request.items() if name not in OF_EXACTLY}
    is_set = any(value not in (None, "", [], {}) for value in exactly.values())
    return {**rest, "exactly": exactly} if is_set else rest


def _device(device: Any) -> Any:
    if not isinstance(device, Mapping) or not isinstance(device.get("basic"), Mapping):
        return device
    return {**device["basic"], **{name: value for name, value in device.items() if name != "basic"}}


def misplaced_field(content: Manifest) -> tuple[str, str] | None:
    """(path, what to do) of a field that stands where another version has it; None if there is none."""
    spec = content.get("spec")
    is_old = content.get("apiVersion") == V1BETA1
    if not isinstance(spec, Mapping):
        return None
    if isinstance(devices := spec.get("devices"), list):
        return _misplaced_in_devices(devices, "spec.devices", is_old=is_old)
    path = "spec.devices.requests"
    if isinstance(inner := spec.get("spec"), Mapping):
        devices, path = inner.get("devices"), "spec.spec.devices.requests"
    requests = devices.get("requests") if isinstance(devices, Mapping) else None
    return _misplaced_in_requests(requests, path, is_old=is_old) if isinstance(requests, list) else None


def _misplaced_in_requests(requests: list[Any], path: str, *, is_old: bool) -> tuple[str, str] | None:
    for number, request in enumerate(requests):
        if not isinstance(request, Mapping):
            continue
        if is_old and "exactly" in request:
            return f"{path}[{number}].exactly", f"is a field of v1, not of v1beta1: write apiVersion: {API_VERSION}"
        flat = [name for name in OF_EXACTLY if request.get(name) is not None]
        if not is_old and flat and request.get("firstAvailable") is None:
            return f"{path}[{number}]", f"has {', '.join(flat)}: move these fields below `exactly`"
    return None


def _misplaced_in_devices(devices: list[Any], path: str, *, is_old: bool) -> tuple[str, str] | None:
    for number, device in enumerate(devices):
        if not isinstance(device, MAPPINGS):
            continue
        if is_old:
            if flat := [str(name) for name in device if name not in ("name", "basic")]:
                return f"{path}[{number}].{flat[0]}", f"is below `basic` in v1beta1: write apiVersion: {API_VERSION}"
        elif "basic" in device:
            return f"{path}[{number}].basic", "is a field of v1beta1: move what is below it up to the device"
    return None
