"""Probe which fields of ResourceSlices the API server keeps: it silently drops fields of disabled features."""

from __future__ import annotations

from typing import Any

from devalloc.store.kubernetes.api_error import ApiError, Object
from devalloc.store.kubernetes.client import Client
from devalloc_node.kube.names import object_name
from devalloc_node.kube.slices import SliceFeatures

SLICES = "/apis/resource.k8s.io/v1/resourceslices"

_COUNTER = {"probe": {"value": "1"}}


def probe_features(client: Client, driver: str, node: str) -> SliceFeatures:
    """Ask by creating a slice that is not stored. Raises ApiError."""
    taint = {"key": "devalloc.io/probe", "effect": "NoSchedule"}
    device = {"name": "probe", "taints": [taint]}
    consumed = {"counterSet": "probe", "counters": _COUNTER, "compatibilityGroups": ["probe"]}
    try:
        stored = _stored_slice(client, driver, node, {"devices": [{**device, "consumesCounters": [consumed]}]})[
            "devices"
        ][0]
    except ApiError as error:
        if error.status != 422:
            raise
        # 1.34 wants counters in the slice of their devices, which ours are not.
        stored = _stored_slice(client, driver, node, {"devices": [device]})["devices"][0]
    counters = stored.get("consumesCounters") or []
    return SliceFeatures(
        counters=bool(counters),
        taints=bool(stored.get("taints")),
        groups=bool(counters and counters[0].get("compatibilityGroups")),
    )


def slice_object(driver: str, node: str, pool: Object, name: str, content: Object) -> Object:
    """A ResourceSlice of this node. ``pool``: its name, generation and resourceSliceCount."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {"driver": driver, "nodeName": node, "pool": pool, **content},
    }


def _stored_slice(client: Client, driver: str, node: str, content: Object) -> Any:
    pool = {"name": "probe", "generation": 1, "resourceSliceCount": 1}
    body = slice_object(driver, node, pool, object_name(node, driver, "probe"), content)
    try:
        return client.create(SLICES, body, {"dryRun": "All"})["spec"]
    except ApiError as error:
        if error.status == 404:
            raise ApiError(
                404, error.reason, "the cluster does not serve resource.k8s.io/v1: Kubernetes 1.34 or newer is needed"
            ) from None
        raise
