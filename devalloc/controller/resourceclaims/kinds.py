"""What of a cluster is read to answer ResourceClaims."""

from __future__ import annotations

from devalloc.store.kubernetes.resources import Resource

_API = "resource.k8s.io"
CLAIMS = Resource("ResourceClaim", _API, "v1", "resourceclaims", True, True)
KINDS = (
    CLAIMS,
    Resource("ResourceSlice", _API, "v1", "resourceslices", False, False),
    Resource("DeviceClass", _API, "v1", "deviceclasses", False, False),
    Resource("DeviceTaintRule", _API, "v1", "devicetaintrules", False, False),
    Resource("Node", "", "v1", "nodes", False, False),
    Resource("Pod", "", "v1", "pods", True, False, fields="spec.nodeName="),
)
OPTIONAL = frozenset({"DeviceTaintRule"})
"""Kinds that a cluster may not serve: in v1 since Kubernetes 1.37."""
NAMES = frozenset(resource.store_kind for resource in KINDS)
