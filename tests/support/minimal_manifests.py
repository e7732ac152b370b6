"""Manifests as users write them, as small as can be."""

from __future__ import annotations

from typing import Any


def claim(name: str = "a", namespace: str = "default", **metadata: Any) -> dict[str, Any]:
    """A claim as a user would write it."""
    return {
        "apiVersion": "devmgmtproto.k8s.io/v1alpha1",
        "kind": "DeviceClaim",
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": {"claims": [{"deviceClass": "gpu"}]},
    }


def pool(name: str = "p") -> dict[str, Any]:
    return {
        "apiVersion": "devmgmtproto.k8s.io/v1alpha1",
        "kind": "DevicePool",
        "metadata": {"name": name},
        "spec": {"driver": "d"},
    }


def a_class(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "devmgmtproto.k8s.io/v1alpha1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"deviceType": "gpu"},
    }
