"""Small fleets and claims as manifests, and what a store says about them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from devalloc.store import Store
from devalloc_solver import testing

Object = dict[str, Any]
DRIVER = "gpu.devalloc.io"


def gpu_pool(name: str = "p", devices: int = 2, node: str | None = "n", **attributes: str) -> Object:
    """A pool of whole devices d0, d1, ... of the driver gpu.devalloc.io."""
    return testing.pool(
        name, node, DRIVER, attributes=attributes, devices=[testing.device(f"d{number}") for number in range(devices)]
    )


def gpu_class(name: str = "gpu", **spec: Any) -> Object:
    return testing.device_class(name, **{"driver": DRIVER, **spec})


def gpu_claim(name: str, count: int = 1, namespace: str = "default", **annotations: str) -> Object:
    """A claim for whole devices of the class gpu; annotations without their prefix devalloc.io/."""
    own = {"annotations": {f"devalloc.io/{k}": v for k, v in annotations.items()}} if annotations else {}
    return testing.claim(name, testing.request("gpu", count), namespace=namespace, **own)


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
