"""ResourceSlices, ResourceClaims, quotas and rules as manifests, as an API server has them."""

from __future__ import annotations

from typing import Any

from devalloc.api.dedicated_pools import ALLOCATOR_KEY, DEVALLOC

Object = dict[str, Any]
API = "resource.k8s.io/v1"
DRIVER = "devalloc.io"


def slice_of(pool: str, node: str, devices: list[Object] | None = None, *, of: int = 1, **spec: Any) -> Object:
    """A slice of a pool of ``of`` slices. ``spec``: more of it; ``generation`` is the pool's."""
    header = {"name": pool, "generation": spec.pop("generation", 1), "resourceSliceCount": of}
    name = spec.pop("name", f"{node}-{pool}-{header['generation']}")
    body: Object = {"driver": DRIVER, "nodeName": node, "pool": header, **spec}
    return _of("ResourceSlice", {"name": name}, body | ({} if devices is None else {"devices": devices}))


def device(name: str, *taints: Object, draws: dict[str, str] | None = None, **attributes: Any) -> Object:
    """``draws``: on counters of the set ``set-0``."""
    content: Object = {"name": name}
    if attributes:
        content["attributes"] = {
            key.replace("__", "/"): {"int" if isinstance(value, int) else "string": value}
            for key, value in attributes.items()
        }
    if taints:
        content["taints"] = list(taints)
    if draws:
        counters = {key: {"value": value} for key, value in draws.items()}
        content["consumesCounters"] = [{"counterSet": "set-0", "counters": counters}]
    return content


def counters(**amounts: str) -> Object:
    """The counter set ``set-0``, for ``slice_of(…, sharedCounters=[…])``."""
    return {"name": "set-0", "counters": {key: {"value": value} for key, value in amounts.items()}}


def resource_claim(
    name: str, *devices: str, namespace: str = "default", pods: tuple[str, ...] = (), **more: Any
) -> Object:
    """One of one request of the class ``gpu``, with devices as ``pool/device``; ``count``, ``ours``, ``node``."""
    labels = {ALLOCATOR_KEY: DEVALLOC} if more.pop("ours", False) else {}
    node = more.pop("node", "")
    request = {"deviceClassName": "gpu", "count": more.pop("count", max(1, len(devices)))}
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "labels": labels}
    claim = _of("ResourceClaim", metadata, {"devices": {"requests": [{"name": "r", "exactly": request}]}})
    if devices:
        named = (each.rpartition("/") for each in devices)
        results = [{"request": "r", "driver": DRIVER, "pool": pool, "device": one, **more} for pool, _, one in named]
        claim["status"] = {"allocation": {"devices": {"results": results}}}
        if node:
            field = {"key": "metadata.name", "operator": "In", "values": [node]}
            claim["status"]["allocation"]["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [field]}]}
        claim["status"]["reservedFor"] = [{"resource": "pods", "name": pod, "uid": pod} for pod in pods]
    return claim


def taint_rule(name: str, effect: str = "NoSchedule", **selector: str) -> Object:
    taint = {"key": "example.com/broken", "effect": effect}
    return _of("DeviceTaintRule", {"name": name}, {"deviceSelector": selector, "taint": taint})


def resource_quota(name: str, namespace: str = "default", used: dict[str, str] | None = None, **hard: str) -> Object:
    """``hard``: of DeviceClaims by class; ``used``: a status with these names as they are, and ``hard`` besides."""
    bounds = {f"{key}.deviceclass.devmgmtproto.k8s.io/devices": value for key, value in hard.items()}
    quota: Object = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"hard": bounds},
    }
    return quota if used is None else {**quota, "status": {"hard": bounds | dict.fromkeys(used, "2"), "used": used}}


def warning(claim: Object, reason: str, note: str, at: str = "2026-01-01T00:00:00.000000Z", **more: Any) -> Object:
    """An Event that the controller tells of a ResourceClaim."""
    metadata = {"name": f"{claim['metadata']['name']}.{at}", "namespace": "default"}
    regarding = {"kind": "ResourceClaim", "name": claim["metadata"]["name"], "uid": claim["metadata"]["uid"]}
    fields = {"reason": reason, "note": note, "eventTime": at, "regarding": regarding, "type": "Warning", **more}
    return {"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": metadata, **fields}


def _of(kind: str, metadata: Object, spec: Object) -> Object:
    return {"apiVersion": API, "kind": kind, "metadata": metadata, "spec": spec}
