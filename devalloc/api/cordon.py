"""Cordons: devices that an admin keeps from being allocated (T17), where that is recorded, and what it does to a pool.

An annotation of the pool records the cordon. It survives every publication, and a publisher never deletes a pool that
has one. Both the publisher and the allocator add ``devalloc.io/unavailable`` to cordoned devices. On a Kubernetes
cluster the allocator also respects the Node: cordoned, tainted, or not ready. An embedded store has no current Nodes,
so its readers leave them out (``NODE_KIND``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from devalloc.api import meta

Object = dict[str, Any]
NODE_KIND = "Node"
"""Kind of Kubernetes' Nodes."""
CORDONED = "cordoned: "
"""Prefix of the reason why a cordoned device is unavailable."""
NODE_CORDONED = "node is cordoned by kubectl"
_NOT_READY = "node is not Ready ("
_TAINTED = "node has taint "
FENCED = "fenced: "
"""Prefix of the reason why the devices of a fenced node are unavailable (``fencing``)."""
NODE_FENCED = f"{FENCED}node, taint {meta.OUT_OF_SERVICE}"
NODE_NOTES = (meta.CORDONED_NODE, meta.FENCED_NODE)
"""Annotations that all pools of a node have, also those that are added later."""
ALL_DEVICES = "*"
"""Stands for every device of the pool."""
_BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")
_OWN_TAINTS = "devalloc.io/"
"""Taints with such a key keep pods off nodes for machines."""
_MIRRORED_TAINTS = frozenset(f"node.kubernetes.io/{name}" for name in ("unschedulable", "not-ready", "unreachable"))
"""Taints with which Kubernetes repeats, later, what the Node's own fields already say."""


@dataclass(frozen=True, slots=True)
class UnschedulableReason:
    """Why a whole node gets nothing new."""

    verb: str
    """In the imperative, with ``remedy``: what makes the node schedulable again."""
    remedy: str
    """With {node}: its object."""
    advice: str
    """A sentence with {node}: what an admin does."""
    why: str
    is_cordon: bool


_UNSCHEDULABLE_REASONS = (
    (
        f"{FENCED}node, ",
        "run",
        "`devalloc unfence node/{node}`",
        "When the node is back, run `devalloc unfence node/{node}`.",
    ),
    (f"{CORDONED}node, ", "run", "`devalloc uncordon node/{node}`", "Run `devalloc uncordon node/{node}`."),
    (NODE_CORDONED, "run", "`kubectl uncordon {node}`", "Run `kubectl uncordon {node}`."),
    (_NOT_READY, "wait until", "node {node} is Ready", "`kubectl describe node {node}` shows why it is not Ready."),
    (
        _TAINTED,
        "remove",
        "the taint of node {node}",
        f"Remove the taint from node {{node}}; if it is only for pods, set the annotation {meta.TOLERATED_TAINTS}.",
    ),
)
"""Prefix of the reason, verb, remedy and advice."""
_NEXT_REASON = re.compile(
    rf"; (?={'|'.join(re.escape(prefix) for prefix, *_ in _UNSCHEDULABLE_REASONS)}|{CORDONED}|node, )"
)
"""Between the parts of a reason. The text of a user may contain semicolons, too."""


@lru_cache(maxsize=1024)
def unschedulable_reasons(why: str) -> tuple[UnschedulableReason, ...]:
    """Why the device's whole node gets nothing new; empty if the device is also unavailable for a reason of its own, or
    its pool."""
    reasons = []
    for part in dict.fromkeys(_NEXT_REASON.split(why)):
        row = next((row for row in _UNSCHEDULABLE_REASONS if part.startswith(row[0])), None)
        if row is None:
            return ()
        reasons.append(
            UnschedulableReason(
                *row[1:],
                part.replace(": node, by ", " by ", 1).replace(": node, ", ": ", 1),
                part.startswith((CORDONED, NODE_CORDONED)),
            )
        )
    return tuple(reasons)


def is_cordoned(reason: UnschedulableReason) -> bool:
    """Whether a node gets nothing new because an admin has cordoned it."""
    return reason.is_cordon


def unschedulable_nodes(documents: Iterable[Object]) -> dict[str, str]:
    """The Kubernetes Nodes among the documents that get no new claims and machines, with the reason."""
    nodes = (doc for doc in documents if doc.get("kind") == NODE_KIND and is_node(doc))
    return {node["metadata"]["name"]: why for node in nodes if (why := _unschedulable_reason(node)) is not None}


def not_ready_reason(node: Object) -> str | None:
    """Why a Node is not ready; None if it is ready or has never reported its state."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready: Object = next((each for each in conditions if each.get("type") == "Ready"), {})
    return str(ready.get("reason") or ready["status"]) if ready.get("status") in ("False", "Unknown") else None


def is_cordon_reason(why: str) -> bool:
    """Whether the device is unavailable because it, its pool or its node is cordoned, or its node is fenced, and not
    because it is broken."""
    return why.startswith((CORDONED, NODE_CORDONED, FENCED))


def is_cordon_or_unschedulable(blocker: Mapping[str, Any]) -> bool:
    """Whether a blocker is a node that gets nothing new, or a cordoned device: neither claim nor fleet need change."""
    return blocker["kind"] == "unavailable" and ("device" not in blocker or is_cordon_reason(blocker["why"]))


def is_node(doc: Object) -> bool:
    """Whether it is a Node of Kubernetes."""
    return doc.get("kind") == NODE_KIND and doc.get("apiVersion") == "v1"


def is_readable_node(node: Object) -> bool:
    """Whether what counts of a Node can be read: one of a file may have any content."""
    parts = [node.get(name) or {} for name in ("metadata", "spec", "status")]
    if not all(isinstance(part, dict) for part in parts):
        return False
    metadata, spec, status = parts
    rows = [spec.get("taints") or [], status.get("conditions") or []]
    return (
        isinstance(metadata.get("name"), str)
        and isinstance(metadata.get("annotations") or {}, dict)
        and all(isinstance(each, str) for each in (metadata.get("annotations") or {}).values())
        and all(isinstance(row, list) and all(isinstance(one, dict) for one in row) for row in rows)
    )


def has_out_of_service_taint(node: Object) -> bool:
    """Whether an admin states that the machine of a Node is off: as in Kubernetes, whatever value and effect it has."""
    taints = (node.get("spec") or {}).get("taints") or ()
    return any(taint.get("key") == meta.OUT_OF_SERVICE for taint in taints)


def pool_node(pool: Object) -> str | None:
    """The node of a pool manifest; None for a pool that every node reaches, or whose node is not given."""
    spec = pool.get("spec")
    name = spec.get("nodeName") if isinstance(spec, dict) else None
    return name if isinstance(name, str) and name else None


def unknown_nodes(documents: Iterable[Object]) -> dict[str, str]:
    """Node names of pools for which the cluster has no Node, each with its first pool and the number of others. Empty
    if the documents contain no Node."""
    documents = list(documents)
    nodes = {doc["metadata"]["name"] for doc in documents if is_node(doc)}
    pools: dict[str, list[str]] = {}
    for doc in documents if nodes else ():
        if doc.get("kind") == "DevicePool" and (name := pool_node(doc)) is not None and name not in nodes:
            pools.setdefault(name, []).append(doc["metadata"]["name"])
    return {
        name: min(of_it) + (f" and {len(of_it) - 1} more" if len(of_it) > 1 else "") for name, of_it in pools.items()
    }


def _unschedulable_reason(node: Object) -> str | None:
    spec = node.get("spec") or {}
    if has_out_of_service_taint(node):
        return NODE_FENCED
    if spec.get("unschedulable"):
        return NODE_CORDONED
    if (lacks := not_ready_reason(node)) is not None:
        return f"{_NOT_READY}{lacks})"
    annotations = node["metadata"].get("annotations") or {}
    tolerated = {key.strip() for key in annotations.get(meta.TOLERATED_TAINTS, "").split(",")}
    for taint in spec.get("taints") or ():
        key = str(taint.get("key", ""))
        if (
            taint.get("effect") in _BLOCKING_EFFECTS
            and not key.startswith(_OWN_TAINTS)
            and key not in tolerated | _MIRRORED_TAINTS
        ):
            value = f"={taint['value']}" if taint.get("value") else ""
            return f"{_TAINTED}{key}{value}:{taint['effect']}"
    return None


def cordon_reasons(pool: Object, why_unschedulable: str | None = None) -> dict[str, str]:
    """Why devices of a pool manifest are cordoned, by name; ALL for the pool. An unreadable annotation cordons all.
    ``why_unschedulable``: why its node accepts nothing new."""
    reasons: dict[str, str] = {}
    for text in filter(None, [_annotation(pool, meta.CORDONED)]):
        try:
            listed = json.loads(text)
        except ValueError:
            listed = None
        if not isinstance(listed, dict):
            listed = {ALL_DEVICES: f"annotation {meta.CORDONED} cannot be read"}
        reasons = {str(name): f"{CORDONED}{why}" for name, why in listed.items()}
    node = _annotation(pool, meta.CORDONED_NODE)
    if node is not None:
        reasons[ALL_DEVICES] = (
            f"{CORDONED}node, {node}" if ALL_DEVICES not in reasons else f"{reasons[ALL_DEVICES]}; node, {node}"
        )
    if (fenced := _annotation(pool, meta.FENCED_NODE)) is not None:
        before = [reasons[ALL_DEVICES]] if ALL_DEVICES in reasons else []
        reasons[ALL_DEVICES] = "; ".join([f"{FENCED}node, {fenced}", *before])
    if why_unschedulable is not None:
        reasons[ALL_DEVICES] = (
            why_unschedulable if ALL_DEVICES not in reasons else f"{reasons[ALL_DEVICES]}; {why_unschedulable}"
        )
    return reasons


def cordon_annotations(
    pool: Object, device: str | None, why: str | None, *, keep: bool = False
) -> dict[str, str | None]:
    """The changed annotations of a pool after a device, or (None) the whole pool, is cordoned or (``why`` None)
    uncordoned. ``keep``: keep an existing reason.

    A value of None removes an annotation. Devices that the pool does not have (any more) are allowed.
    """
    text = _annotation(pool, meta.CORDONED)
    try:
        listed = json.loads(text or "{}")
    except ValueError:
        listed = {}
    reasons = dict(listed) if isinstance(listed, dict) else {}
    if why is None:
        reasons.pop(device or ALL_DEVICES, None)
    elif not keep or (device or ALL_DEVICES) not in reasons:
        reasons[device or ALL_DEVICES] = why
    return {meta.CORDONED: json.dumps(reasons, sort_keys=True) if reasons else None}


def has_cordon_annotation(pool: Object) -> bool:
    """Whether the pool has an annotation of an admin that cordons or fences it, so that it must not be deleted."""
    return any(_annotation(pool, name) is not None for name in (meta.CORDONED, *NODE_NOTES))


def apply_cordons(pool: Object, why_unschedulable: str | None = None) -> Object:
    """The pool manifest with cordoned devices made unavailable; the same object if nothing is cordoned."""
    reasons = cordon_reasons(pool, why_unschedulable)
    spec = pool.get("spec")
    devices = spec.get("devices") if isinstance(spec, dict) else None
    if not reasons or not isinstance(spec, dict) or not isinstance(devices, list):
        return pool
    common = _unavailable_reason(spec)
    changed = [_mark_unavailable(device, reasons, common) for device in devices]
    return {**pool, "spec": {**spec, "devices": changed}}


def apply_all_cordons(documents: Iterable[Object]) -> list[Object]:
    """The documents with cordoned devices made unavailable in their pools, also because of Nodes among them."""
    documents = list(documents)
    unschedulable = unschedulable_nodes(documents)
    return [
        apply_cordons(doc, unschedulable.get(pool_node(doc) or "")) if doc.get("kind") == "DevicePool" else doc
        for doc in documents
    ]


def _mark_unavailable(device: Any, by_name: Mapping[str, str], common: str | None) -> Any:
    name = device.get("name") if isinstance(device, dict) else None
    why = [by_name[key] for key in (name, ALL_DEVICES) if isinstance(key, str) and key in by_name]
    if not isinstance(device, dict) or not why:
        return device
    own = device.get("attributes")
    if own is not None and not isinstance(own, list):
        return device  # who reads it reports that
    before = _unavailable_reason(device) or common
    # Its publisher may already have added it.
    reasons = [*([before] if before else []), *(each for each in why if each not in (before or ""))]
    attribute = {"name": meta.UNAVAILABLE, "stringValue": "; ".join(reasons)}
    others = [each for each in own or () if not _is_unavailable_attribute(each)]
    return {**device, "attributes": [*others, attribute]}


def _unavailable_reason(content: Mapping[str, Any]) -> str | None:
    attributes = content.get("attributes")
    for entry in attributes if isinstance(attributes, list) else ():
        if _is_unavailable_attribute(entry) and isinstance(entry.get("stringValue"), str):
            return str(entry["stringValue"])
    return None


def _is_unavailable_attribute(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.get("name") == meta.UNAVAILABLE


def _annotation(pool: Object, name: str) -> str | None:
    metadata = pool.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    value = annotations.get(name) if isinstance(annotations, dict) else None
    return value if isinstance(value, str) else None
