"""Fencing: which nodes are off, as an admin or a fencing program states, and from which nodes an object was taken away.

A node that does not answer may still run its machines. So nothing that it holds goes to another node before someone
who can know states that it is powered off: with ``devalloc fence``, or on a cluster with the taint of Kubernetes'
non-graceful node shutdown (https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from devalloc.api import meta
from devalloc.api.cordon import NODE_KIND, has_out_of_service_taint, is_node, pool_node
from devalloc.api.views import ObjectView, as_mapping, as_mappings

Object = dict[str, Any]


def is_ready(node: Object | None) -> bool:
    """Whether the kubelet of a Node reports that it is well: such a node is not off, whatever its taints state."""
    return _has_ready(node, "True")


def is_lost(node: Object) -> bool:
    """Whether the kubelet of a Node does not report: its Lease is old, so Kubernetes sets Ready to Unknown. One that
    reports that it is not well is not lost."""
    return _has_ready(node, "Unknown")


def _has_ready(node: Object | None, status: str) -> bool:
    conditions = as_mappings(as_mapping(as_mapping(node).get("status")).get("conditions"))
    return any(one.get("type") == "Ready" and one.get("status") == status for one in conditions)


_STATING_KINDS = (NODE_KIND, "DevicePool")
"""Kinds that say whether a node is off."""


def fence_statements(documents: Iterable[Object]) -> dict[str, str]:
    """The nodes that are stated to be off, with who states it: by their pools and Nodes among the documents."""
    statements: dict[str, str] = {}
    for doc in documents:
        if is_node(doc):
            if has_out_of_service_taint(doc):
                statements.setdefault(doc["metadata"]["name"], f"taint {meta.OUT_OF_SERVICE}")
        elif doc.get("kind") == "DevicePool" and (why := ObjectView(doc).annotation(meta.FENCED_NODE)) is not None:
            statements[pool_node(doc) or ""] = why
    statements.pop("", None)
    return statements


def fenced_nodes(documents: Iterable[Object]) -> dict[str, str]:
    """The nodes whose machines and claims may go to other nodes, with who states that they are off. A Node that is
    Ready is none of them, as in Kubernetes."""
    documents = [doc for doc in documents if doc.get("kind") in _STATING_KINDS]
    ready = {doc["metadata"]["name"] for doc in documents if is_node(doc) and is_ready(doc)}
    return {node: why for node, why in fence_statements(documents).items() if node not in ready}


def fenced_from(obj: Object) -> frozenset[str]:
    """The fenced nodes from which a claim or machine was taken away, and that have not confirmed it yet."""
    return frozenset(filter(None, (ObjectView(obj).annotation(meta.FENCED_FROM) or "").split(",")))


def fenced_from_note(nodes: Iterable[str]) -> str | None:
    """The value of the annotation for these nodes; None if it is to be removed."""
    return ",".join(sorted(nodes)) or None


def without_holder(obj: Object) -> Object:
    """The object without the mark of the node that holds it."""
    metadata = obj["metadata"]
    left = [name for name in metadata.get("finalizers") or () if name != meta.NODE_FINALIZER]
    annotations = {k: v for k, v in (metadata.get("annotations") or {}).items() if k != meta.PREPARED_ON}
    return {**obj, "metadata": {**metadata, "annotations": annotations, "finalizers": left}}
