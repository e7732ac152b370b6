"""The API resources that are read to answer ResourceClaims."""

from __future__ import annotations

from devalloc.store.kubernetes.resources import ApiResource

_API = "resource.k8s.io"
CLAIM_RESOURCE = ApiResource("ResourceClaim", _API, "v1", "resourceclaims", True, True)
WATCHED_RESOURCES = (
    CLAIM_RESOURCE,
    ApiResource("ResourceSlice", _API, "v1", "resourceslices", False, False),
    ApiResource("DeviceClass", _API, "v1", "deviceclasses", False, False),
    ApiResource("DeviceTaintRule", _API, "v1", "devicetaintrules", False, False),
    ApiResource("Node", "", "v1", "nodes", False, False),
    ApiResource("Pod", "", "v1", "pods", True, False, fields="spec.nodeName="),
)
OPTIONAL_KINDS = frozenset({"DeviceTaintRule"})
"""Kinds that a cluster may not serve: in v1 since Kubernetes 1.37."""
WATCHED_KINDS = frozenset(resource.store_kind for resource in WATCHED_RESOURCES)
