"""What of Kubernetes' own claims is shown to people, where they may see it; no decision depends on it."""

from __future__ import annotations

from devalloc.store.kubernetes.resources import Resource

_API = "resource.k8s.io"
_NOTES = ("metadata", "annotations")
SHOWN = (
    Resource(
        "ResourceSlice",
        _API,
        "v1",
        "resourceslices",
        False,
        False,
        fields="spec.driver=devalloc.io",
        without=(_NOTES,),
    ),
    Resource(
        "ResourceClaim",
        _API,
        "v1",
        "resourceclaims",
        True,
        True,
        without=(
            _NOTES,
            ("spec", "devices", "config"),
            ("spec", "devices", "constraints"),
            ("status", "allocation", "devices", "config"),
            ("status", "devices"),
        ),
    ),
    Resource("DeviceTaintRule", _API, "v1", "devicetaintrules", False, False, without=(_NOTES, ("status",))),
    Resource(
        "Event",
        "events.k8s.io",
        "v1",
        "events",
        True,
        False,
        fields="regarding.kind=ResourceClaim,reportingController=devalloc.io/controller",
        without=(_NOTES,),
    ),
)
