"""Small fleets and claims as manifests, and what a store says about them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from devalloc.store import Store

Object = dict[str, Any]
DEVMGMT = "devmgmtproto.k8s.io/v1alpha1"


def gpu_pool(name: str = "p", devices: int = 2, node: str | None = "n", **attributes: str) -> Object:
    """A pool of whole devices d0, d1, ... of the driver gpu.devalloc.io."""
    return {
        "apiVersion": DEVMGMT,
        "kind": "DevicePool",
        "metadata": {"name": name},
        "spec": {
            "driver": "gpu.devalloc.io",
            **({"nodeName": node} if node else {}),
            "attributes": [{"name": key, "stringValue": value} for key, value in attributes.items()],
            "devices": [{"name": f"d{number}"} for number in range(devices)],
        },
    }


def gpu_class(name: str = "gpu", **spec: Any) -> Object:
    return {
        "apiVersion": DEVMGMT,
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"driver": "gpu.devalloc.io", **spec},
    }


def gpu_claim(name: str, count: int = 1, namespace: str = "default", **annotations: str) -> Object:
    """A claim for whole devices of the class gpu; annotations without their prefix devalloc.io/."""
    return {
        "apiVersion": DEVMGMT,
        "kind": "DeviceClaim",
        "metadata": {
            "name": name,
            "namespace": namespace,
            **({"annotations": {f"devalloc.io/{k}": v for k, v in annotations.items()}} if annotations else {}),
        },
        "spec": {"claims": [{"deviceClass": "gpu", "requests": {"count": count}}]},
    }


def fill(store: Store, *objects: Object) -> None:
    """Create the objects."""
    for obj in objects:
        store.create(obj)


def held(store: Store, name: str, namespace: str = "default") -> list[str]:
    """The devices of a claim as pool/device."""
    status = store.get("DeviceClaim", namespace, name).get("status", {})
    return [f"{entry['devicePoolName']}/{entry['deviceName']}" for entry in status.get("allocations") or ()]


def annotations(store: Store, name: str, namespace: str = "default") -> dict[str, str]:
    """The annotations of a claim, without their prefix devalloc.io/."""
    by_name = store.get("DeviceClaim", namespace, name)["metadata"].get("annotations", {})
    return {key.removeprefix("devalloc.io/"): value for key, value in by_name.items()}


def owners(store: Store) -> Counter[str]:
    """How many claims hold each device that is held at all."""
    claims = store.list("DeviceClaim").objects
    return Counter(
        f"{entry['devicePoolName']}/{entry['deviceName']}"
        for claim in claims
        for entry in claim.get("status", {}).get("allocations", [])
    )
