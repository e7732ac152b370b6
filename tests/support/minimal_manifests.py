"""Manifests as users write them, as small as can be."""

from __future__ import annotations

from typing import Any

from devalloc_solver import testing


def claim(name: str = "a", namespace: str = "default", **metadata: Any) -> dict[str, Any]:
    """A claim as a user would write it."""
    return testing.claim(name, testing.request("gpu"), namespace=namespace, **metadata)


def pool(name: str = "p") -> dict[str, Any]:
    content = testing.pool(name, None, "d")
    del content["spec"]["devices"]
    return content


def a_class(name: str) -> dict[str, Any]:
    return testing.device_class(name, deviceType="gpu")


def a_config(name: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "devalloc.io/v1alpha1", "kind": "VfioConfig", "metadata": metadata}
