"""What applying a manifest does to an object of a store."""

from __future__ import annotations

from collections.abc import Iterable

from devalloc.api.meta import (
    CORDONED,
    CORDONED_NODE,
    EVICT,
    FENCED_FROM,
    FENCED_NODE,
    LAST_NODE,
    NODE_LABEL,
    PREPARED_ON,
    RELEASE,
    REPLICA_SET,
)
from devalloc.api.views import ClaimView
from devalloc.controller.reconcile.stored_claims import ALLOCATION_ANNOTATIONS
from devalloc.store import Invalid, Key, Object

CLAIM = "DeviceClaim"


def apply_refusal(old: Object, wanted: Object) -> str:
    """Why the manifest may not be applied; "" when it may. An allocated claim's spec is fixed until it is released
    (S18)."""
    kind = Key.of(old).kind
    if kind == "VirtualMachineMigration" and old["spec"] != wanted["spec"]:
        return "its spec cannot change; delete it and create another"
    if kind != CLAIM or not ClaimView(old).entries or old["spec"] == wanted["spec"]:
        return ""
    namespace, name = ClaimView(old).key
    return f"is allocated, so its spec is fixed; take its devices back first: devalloc release {name} -n {namespace}"


def merge_manifest(old: Object, wanted: Object) -> Object:
    """What to write: the manifest, the state it is based on, and what the manifest has no say in."""
    metadata = dict(wanted["metadata"])
    written = metadata.get("annotations") or {}
    if isinstance(written, dict):  # anything else stays as it is, and the store or the solver refuses it
        ours = {*ALLOCATION_ANNOTATIONS, PREPARED_ON, RELEASE, EVICT, LAST_NODE, FENCED_FROM}
        theirs = {name: text for name, text in written.items() if name not in ours}
        before = old["metadata"].get("annotations", {})
        stay = {name: text for name, text in before.items() if name in ours}
        # A pool that is applied again stays cordoned and fenced.
        cordons = {name: text for name, text in before.items() if name in (CORDONED, CORDONED_NODE, FENCED_NODE)}
        metadata["annotations"] = {**cordons, **theirs, **stay}
    if label := old["metadata"].get("labels", {}).get(NODE_LABEL):
        labels = metadata.get("labels") or {}
        metadata["labels"] = {**labels, NODE_LABEL: label} if isinstance(labels, dict) else labels
    if name := old["metadata"].get("labels", {}).get(REPLICA_SET):
        labels = metadata.get("labels") or {}
        metadata["labels"] = {**labels, REPLICA_SET: name} if isinstance(labels, dict) else labels
    metadata.setdefault("finalizers", old["metadata"].get("finalizers", []))
    if owners := old["metadata"].get("ownerReferences"):
        metadata.setdefault("ownerReferences", owners)
    metadata["resourceVersion"] = old["metadata"]["resourceVersion"]
    metadata.pop("uid", None)
    return {**wanted, "metadata": metadata}


def overlay_manifests(
    stored: Iterable[Object], manifests: Iterable[Object]
) -> tuple[list[Object], list[tuple[Key, str]]]:
    """The objects that a store would have after all manifests were applied, and which of these may not be, with why.

    A manifest without a name comes as it is.
    """
    objects, added, refused = {Key.of(obj): obj for obj in stored}, [], []
    replaced: dict[Key, Object] = {}
    for manifest in manifests:
        try:
            key = Key.of(manifest)
        except Invalid:
            added.append(manifest)
            continue
        old = objects.get(key)
        if old is None or key in replaced:
            added.append(manifest)
        elif why := apply_refusal(old, manifest):
            refused.append((key, why))
        else:
            replaced[key] = _object_after(old, manifest)
    return [*(replaced.get(key, obj) for key, obj in objects.items()), *added], refused


def _object_after(old: Object, manifest: Object) -> Object:
    server = {name: value for name, value in old["metadata"].items() if name in ("uid", "creationTimestamp")}
    new = merge_manifest(old, manifest)
    content = {name: value for name, value in new.items() if name != "status"}
    status = {} if old.get("status") is None else {"status": old["status"]}
    return {**content, "metadata": {**new["metadata"], **server}, **status}
