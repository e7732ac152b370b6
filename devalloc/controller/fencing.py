"""State that a node is off, or no longer. ``reconcile.fenced`` then takes away what it holds."""

from __future__ import annotations

from datetime import UTC, datetime

from devalloc.api import meta
from devalloc.api.cordon import has_out_of_service_taint
from devalloc.api.fencing import is_ready
from devalloc.controller.cordon import TargetNotFound, publishes_slices, set_node_note
from devalloc.controller.reconcile.fenced import held_objects
from devalloc.store import Conflict, Object, Store, StoreError
from devalloc.store.nodes import node_object, pools_of


class NodeAnswers(StoreError):
    """The node is not off: its kubelet reports that it is Ready."""


def is_named(store: Store, node: str) -> bool:
    """Whether anything in the store is of a node of this name. Raises StoreError."""
    if node_object(store, node) or pools_of(store, node) or publishes_slices(store, node):
        return True
    return bool(held_objects(store, node))


def state_fence(store: Store, node: str, why: str, *, keep: bool = False) -> bool:
    """State that a node is off; whether there was an object to state it on. Its machines and claims go to other nodes
    then. On a cluster its Node gets Kubernetes' taint, so that its pods and volumes are given up, too; elsewhere its
    pools get an annotation. ``keep``: a node that is fenced stays so for the reason that it has.
    Raises NodeAnswers if its Node is Ready, and StoreError."""
    while nodes := node_object(store, node):
        (current,) = nodes
        if is_ready(current):
            raise NodeAnswers(
                f"node {node} is Ready: its kubelet reports to the API server, so it is not off. Power it off, and "
                "wait until `kubectl get nodes` shows NotReady"
            )
        try:
            store.replace(_with_taint(current))
            return True
        except Conflict:
            continue
    try:
        set_node_note(store, node, meta.FENCED_NODE, why, keep=keep)
    except TargetNotFound:
        return False
    return True


def withdraw_fence(store: Store, node: str) -> bool:
    """State no longer that a node is off; whether that was stated. Raises StoreError."""
    was_stated = False
    while nodes := node_object(store, node):
        (current,) = nodes
        taints = [taint for taint in _taints(current) if taint.get("key") != meta.OUT_OF_SERVICE]
        if len(taints) == len(_taints(current)):
            break
        try:
            store.replace({**current, "spec": {**current["spec"], "taints": taints}})
            was_stated = True
            break
        except Conflict:
            continue
    try:
        return set_node_note(store, node, meta.FENCED_NODE, None) or was_stated
    except TargetNotFound:
        return was_stated


def _taints(node: Object) -> list[Object]:
    return list((node.get("spec") or {}).get("taints") or ())


def _with_taint(node: Object) -> Object:
    """The Node with Kubernetes' taint; itself if it has it."""
    if has_out_of_service_taint(node):
        return node
    since = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    taint = {"key": meta.OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute", "timeAdded": since}
    return {**node, "spec": {**(node.get("spec") or {}), "taints": [*_taints(node), taint]}}
