"""Devices that an admin keeps from being allocated (T17): where that is noted, and what it makes of a pool.

The note is an annotation of the pool, which outlives every publication; a pool that has one is never deleted by its
publisher. Who publishes a pool, and who allocates from it, adds ``devalloc.io/unavailable`` to the devices. On a
Kubernetes cluster the Node counts as well, for who allocates: cordoned, tainted, or not ready. In an embedded store
nobody keeps Nodes up to date, so they do not count there: its readers leave them out (``NODE``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from devalloc.api import meta

Object = dict[str, Any]
NODE = "Node"
"""Kind of Kubernetes' Nodes."""
CORDONED = "cordoned: "
"""How it begins why a device is not to be had that an admin keeps back."""
NODE_CORDONED = "node is cordoned by kubectl"
ALL = "*"
"""Stands for every device of the pool."""
_EFFECTS = ("NoSchedule", "NoExecute")
_OWN_TAINTS = "devalloc.io/"
"""Taints with such a key keep pods from nodes that are for machines."""
_ECHOES = frozenset(f"node.kubernetes.io/{name}" for name in ("unschedulable", "not-ready", "unreachable"))
"""Taints by which Kubernetes says again, and later, what the Node itself says."""


def closed_nodes(documents: Iterable[Object]) -> dict[str, str]:
    """Why Kubernetes Nodes among documents get no new claims and machines, by name."""
    nodes = (doc for doc in documents if is_node(doc))
    return {node["metadata"]["name"]: why for node in nodes if (why := _closed(node)) is not None}


def not_ready(node: Object) -> str | None:
    """Why a Node is not ready; None for one that is, or that never said how it is."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready: Object = next((each for each in conditions if each.get("type") == "Ready"), {})
    return str(ready.get("reason") or ready["status"]) if ready.get("status") in ("False", "Unknown") else None


def is_cordon(why: str) -> bool:
    """Whether somebody cordoned a device, its pool or its node: it is not broken."""
    return why.startswith((CORDONED, NODE_CORDONED))


def is_node(doc: Object) -> bool:
    """Whether it is a Node of Kubernetes."""
    return doc.get("kind") == NODE and doc.get("apiVersion") == "v1"


def node_of(pool: Object) -> str | None:
    """The node that a pool manifest is of; None for one that every node reaches, or that does not say."""
    spec = pool.get("spec")
    name = spec.get("nodeName") if isinstance(spec, dict) else None
    return name if isinstance(name, str) and name else None


def unknown_nodes(documents: Iterable[Object]) -> dict[str, str]:
    """What pools name as their node and is no Node of the cluster, each with its first pool, and how many more there
    are. Nothing where no Node is read."""
    documents = list(documents)
    nodes = {doc["metadata"]["name"] for doc in documents if is_node(doc)}
    pools: dict[str, list[str]] = {}
    for doc in documents if nodes else ():
        if doc.get("kind") == "DevicePool" and (name := node_of(doc)) is not None and name not in nodes:
            pools.setdefault(name, []).append(doc["metadata"]["name"])
    return {
        name: min(of_it) + (f" and {len(of_it) - 1} more" if len(of_it) > 1 else "") for name, of_it in pools.items()
    }


def _closed(node: Object) -> str | None:
    spec = node.get("spec") or {}
    if spec.get("unschedulable"):
        return NODE_CORDONED
    if (lacks := not_ready(node)) is not None:
        return f"node is not Ready ({lacks})"
    annotations = node["metadata"].get("annotations") or {}
    tolerated = {key.strip() for key in annotations.get(meta.TOLERATED_TAINTS, "").split(",")}
    for taint in spec.get("taints") or ():
        key = str(taint.get("key", ""))
        if taint.get("effect") in _EFFECTS and not key.startswith(_OWN_TAINTS) and key not in tolerated | _ECHOES:
            value = f"={taint['value']}" if taint.get("value") else ""
            return f"node has taint {key}{value}:{taint['effect']}"
    return None


def cordons(pool: Object, node_is_closed: str | None = None) -> dict[str, str]:
    """Why devices of a pool manifest are cordoned, by name; ALL for the pool. What cannot be read cordons all.
    ``node_is_closed``: why its node gets nothing new."""
    found: dict[str, str] = {}
    for text in filter(None, [_annotation(pool, meta.CORDONED)]):
        try:
            listed = json.loads(text)
        except ValueError:
            listed = None
        if not isinstance(listed, dict):
            listed = {ALL: f"annotation {meta.CORDONED} cannot be read"}
        found = {str(name): f"cordoned: {why}" for name, why in listed.items()}
    node = _annotation(pool, meta.CORDONED_NODE)
    if node is not None:
        found[ALL] = f"cordoned: node, {node}" if ALL not in found else f"{found[ALL]}; node, {node}"
    if node_is_closed is not None:
        found[ALL] = node_is_closed if ALL not in found else f"{found[ALL]}; {node_is_closed}"
    return found


def cordoned(pool: Object, device: str | None, why: str | None, *, keep: bool = False) -> dict[str, str | None]:
    """The annotations of a pool in which a device, or (None) all of it, is cordoned, or (``why`` None) no more.
    ``keep``: a reason that is there stays.

    None for an annotation that is to go. Devices that the pool does not have (any more) are as good as others.
    """
    text = _annotation(pool, meta.CORDONED)
    try:
        listed = json.loads(text or "{}")
    except ValueError:
        listed = {}
    kept = dict(listed) if isinstance(listed, dict) else {}
    if why is None:
        kept.pop(device or ALL, None)
    elif not keep or (device or ALL) not in kept:
        kept[device or ALL] = why
    return {meta.CORDONED: json.dumps(kept, sort_keys=True) if kept else None}


def is_noted(pool: Object) -> bool:
    """Whether the pool must stay, if only to carry the note."""
    return _annotation(pool, meta.CORDONED) is not None or _annotation(pool, meta.CORDONED_NODE) is not None


def with_cordons(pool: Object, node_is_closed: str | None = None) -> Object:
    """The pool manifest with what is cordoned made unavailable; the same object where nothing is."""
    found = cordons(pool, node_is_closed)
    spec = pool.get("spec")
    devices = spec.get("devices") if isinstance(spec, dict) else None
    if not found or not isinstance(spec, dict) or not isinstance(devices, list):
        return pool
    common = _unavailable(spec)
    changed = [_with_reason(device, found, common) for device in devices]
    return {**pool, "spec": {**spec, "devices": changed}}


def with_all_cordons(
    documents: Iterable[Object], change: Callable[[Object, str | None], Object] = with_cordons
) -> list[Object]:
    """The documents with what is cordoned made unavailable in their pools, also by Nodes among them. ``change``: what
    does so to one pool."""
    documents = list(documents)
    closed = closed_nodes(documents)
    return [change(doc, closed.get(node_of(doc) or "")) if doc["kind"] == "DevicePool" else doc for doc in documents]


def _with_reason(device: Any, found: Mapping[str, str], common: str | None) -> Any:
    name = device.get("name") if isinstance(device, dict) else None
    why = [found[key] for key in (name, ALL) if isinstance(key, str) and key in found]
    if not isinstance(device, dict) or not why:
        return device
    before = _unavailable(device) or common
    # Its publisher may have said so already.
    reasons = [*([before] if before else []), *(each for each in why if each not in (before or ""))]
    told = {"name": meta.UNAVAILABLE, "stringValue": "; ".join(reasons)}
    others = [each for each in device.get("attributes", ()) if not _is_reason(each)]
    return {**device, "attributes": [*others, told]}


def _unavailable(content: Mapping[str, Any]) -> str | None:
    attributes = content.get("attributes")
    for entry in attributes if isinstance(attributes, list) else ():
        if _is_reason(entry) and isinstance(entry.get("stringValue"), str):
            return str(entry["stringValue"])
    return None


def _is_reason(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.get("name") == meta.UNAVAILABLE


def _annotation(pool: Object, name: str) -> str | None:
    metadata = pool.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    value = annotations.get(name) if isinstance(annotations, dict) else None
    return value if isinstance(value, str) else None
