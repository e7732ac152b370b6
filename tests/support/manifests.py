"""The builders of ``devalloc_solver.testing``, and configuration objects."""

from __future__ import annotations

from devalloc.api.meta import DEVALLOC
from devalloc_solver.testing import Manifest, allocated, claim, device, device_class, entry, pool

__all__ = ["Manifest", "allocated", "claim", "config", "config_reference", "device", "device_class", "entry", "pool"]


def config(name: str, namespace: str = "default") -> Manifest:
    """A configuration object that classes and claims can refer to."""
    return {"apiVersion": DEVALLOC, "kind": "VfConfig", "metadata": {"name": name, "namespace": namespace}, "spec": {}}


def config_reference(name: str, namespace: str | None = None) -> Manifest:
    """A reference to such an object; classes need its namespace."""
    reference = {"apiVersion": DEVALLOC, "kind": "VfConfig", "name": name}
    return reference if namespace is None else {**reference, "namespace": namespace}
