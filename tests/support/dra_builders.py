"""Short ways to write resource.k8s.io objects, and to ask for an allocation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from devalloc_solver.dra import allocate

Manifest = dict[str, Any]

API = "resource.k8s.io/v1"
DRIVER = "gpu.io"
NODE = "n1"


def device_class(name: str, *selectors: str) -> Manifest:
    """A class of the devices that these expressions select."""
    spec = {"selectors": [selector(expression) for expression in selectors]} if selectors else {}
    return {"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def node(name: str, **labels: str) -> Manifest:
    metadata = {"name": name, "labels": labels} if labels else {"name": name}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}


def typed(value: object) -> Manifest:
    """An attribute: a Python value, or the union itself."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list):
        return {"ints" if isinstance(value[0], int) else "strings": value}
    return {"bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "string": value}


def device(name: str, attributes: Mapping[str, object] | None = None, **fields: Any) -> Manifest:
    """A device; ``counters={"set": {"counter": "1"}}`` and ``capacity={"memory": "1Gi" or {...}}`` are written out."""
    manifest: Manifest = {"name": name}
    if attributes:
        manifest["attributes"] = {key: typed(value) for key, value in attributes.items()}
    for counter_set, used in (fields.pop("counters", None) or {}).items():
        entry = {"counterSet": counter_set, "counters": {key: {"value": value} for key, value in used.items()}}
        manifest.setdefault("consumesCounters", []).append(entry)
    if capacity := fields.pop("capacity", None):
        manifest["capacity"] = {k: v if isinstance(v, dict) else {"value": v} for k, v in capacity.items()}
    if fields.pop("shared", False):
        manifest["allowMultipleAllocations"] = True
    return manifest | fields


def devices(*names: str, **attributes: object) -> list[Manifest]:
    """Devices that differ in name only."""
    return [device(name, attributes) for name in names]


def slice_(name: str, content: Sequence[Manifest] = (), **spec: Any) -> Manifest:
    """A slice of the pool ``p`` of NODE with these devices, alone in its pool unless ``count`` says otherwise."""
    pool = {
        "name": spec.pop("pool", "p"),
        "generation": spec.pop("generation", 1),
        "resourceSliceCount": spec.pop("count", 1),
    }
    where = {"nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"} & spec.keys()
    place = {} if where else {"nodeName": NODE}
    body: Manifest = {"driver": spec.pop("driver", DRIVER), "pool": pool, **place}
    if content:
        body["devices"] = list(content)
    body |= {k: v for k, v in spec.items() if v is not None}
    return {"apiVersion": API, "kind": "ResourceSlice", "metadata": {"name": name}, "spec": body}


def counter_slice(name: str, sets: Mapping[str, Mapping[str, str]], **spec: Any) -> Manifest:
    """A slice of counter sets."""
    counter_sets = [
        {"name": s, "counters": {k: {"value": v} for k, v in members.items()}} for s, members in sets.items()
    ]
    return slice_(name, sharedCounters=counter_sets, **spec)


def selector(expression: str) -> Manifest:
    return {"cel": {"expression": expression}}


def request(name: str = "r", count: int | None = 1, *selectors: str, **fields: Any) -> Manifest:
    """A request for so many devices of the class ``any``, or for all of them with count None."""
    return {"name": name, "exactly": ask(count, *selectors, **fields)}


def ask(count: int | None = 1, *selectors: str, **fields: Any) -> Manifest:
    mode = {"allocationMode": "All"} if count is None else {"allocationMode": "ExactCount", "count": count}
    request: Manifest = {"deviceClassName": fields.pop("class_name", "any"), **mode}
    if selectors:
        request["selectors"] = [selector(expression) for expression in selectors]
    if amounts := fields.pop("amounts", None):
        request["capacity"] = {"requests": amounts}
    return request | fields


def first_of(name: str, *asks: Manifest) -> Manifest:
    """A request with the subrequests s0, s1, ..."""
    return {"name": name, "firstAvailable": [{"name": f"s{i}", **one} for i, one in enumerate(asks)]}


def claim(
    *requests: Manifest,
    name: str = "c",
    namespace: str = "default",
    marks: Mapping[str, str] | None = None,
    **devices: Any,
) -> Manifest:
    """A claim; ``match="a/b"`` and ``distinct="a/b"`` are constraints over all of its requests. ``marks``: annotations
    without their prefix devalloc.io/."""
    constraints = list(devices.pop("constraints", ()))
    for key in ("match", "distinct"):
        if (attribute := devices.pop(key, None)) is not None:
            constraints.append({f"{key}Attribute": attribute})
    body: Manifest = {"requests": list(requests), **devices}
    if constraints:
        body["constraints"] = constraints
    metadata: Manifest = {"namespace": namespace, "name": name}
    if marks is not None:
        metadata["annotations"] = {f"devalloc.io/{key}": value for key, value in marks.items()}
    return {"apiVersion": API, "kind": "ResourceClaim", "metadata": metadata, "spec": {"devices": body}}


def held(of: Manifest, *names: str, pool: str = "p") -> Manifest:
    """The claim with these devices of a pool for its request ``r``."""
    results = [{"request": "r", "driver": DRIVER, "pool": pool, "device": name} for name in names]
    return {**of, "status": {"allocation": {"devices": {"results": results}}}}


ANY = device_class("any")
"""A class that every device belongs to."""


def answer(
    claims: Manifest | Iterable[Manifest],
    *slices: Manifest,
    classes: Sequence[Manifest] = (ANY,),
    node: Manifest | str = NODE,
    **options: Any,
) -> list[Manifest] | None:
    """What ``allocate`` says."""
    claim_list = [claims] if isinstance(claims, dict) else list(claims)
    return allocate(node, claim_list, classes, slices, **options)


def given(results: Sequence[Manifest] | None) -> list[list[tuple[str, str]]] | None:
    """For each claim the (request, device) pairs, or None when nothing was allocated."""
    if results is None:
        return None
    return [[(one["request"], one["device"]) for one in result["devices"].get("results", ())] for result in results]


def names(results: Sequence[Manifest] | None) -> list[str] | None:
    """All devices of an answer, sorted."""
    pairs_by_claim = given(results)
    return None if pairs_by_claim is None else sorted(device for pairs in pairs_by_claim for _, device in pairs)
