"""Reading claims as the store has them: plain content that nobody promises to be well formed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from devalloc.api import meta
from devalloc.api.claim import DeviceClaim
from devalloc.api.decode import decode
from devalloc.api.plainclaims import ClaimKey as ClaimKey
from devalloc.api.plainclaims import admin_classes as admin_classes
from devalloc.api.plainclaims import allocations as allocations
from devalloc.api.plainclaims import annotation as annotation
from devalloc.api.plainclaims import claim_key as claim_key
from devalloc.api.plainclaims import claims_among as claims_among
from devalloc.api.plainclaims import group_of as group_of
from devalloc.api.plainclaims import is_deleting as is_deleting
from devalloc.controller.reading import Made
from devalloc.store import Object

OF_ALLOCATION = (
    meta.ALLOCATED_NODE,
    meta.ALLOCATED_DEVICES,
    meta.ALLOCATION_DETAILS,
    meta.ALLOCATED_SPEC,
    meta.ADMIN_CLASSES,
    meta.REASON,
    meta.MESSAGE,
)
"""The annotations that the allocator writes, and takes away again."""


def is_prepared(claim: Object) -> bool:
    """True while its node holds the claim's devices, or is about to: they are nobody else's."""
    return meta.NODE_FINALIZER in claim["metadata"].get("finalizers", ())


def wants_release(claim: Object) -> bool:
    """True when its devices are wanted back whoever uses them."""
    return annotation(claim, meta.RELEASE) is not None


def spec_text(claim: Object) -> str:
    """The claim's spec for the annotation ALLOCATED_SPEC."""
    return json.dumps(claim.get("spec"), sort_keys=True, separators=(",", ":"))


def allocated_spec(claim: Object) -> Any:
    """The spec that the allocation answers; the claim's own where none is recorded."""
    text = annotation(claim, meta.ALLOCATED_SPEC)
    if text is None or not allocations(claim):
        return claim.get("spec")
    try:
        return json.loads(text)
    except ValueError:
        return claim.get("spec")  # somebody else wrote there


def classes_named(claim: Object) -> frozenset[str]:
    """The classes that the claim's details name; none for a claim that cannot be read."""
    read = decode(claim).object
    if not isinstance(read, DeviceClaim):
        return frozenset()
    details = (detail for entry in read.spec.claims for detail in entry.alternatives)
    return frozenset(detail.device_class for detail in details if detail.device_class)


_ONCE_ADMIN: Object = {
    "apiVersion": meta.DEVMGMT,
    "kind": "DeviceClass",
    "metadata": {"name": "had-admin-access.devalloc.io"},
    "spec": {"adminAccess": True},
}
"""Stands for the classes that had admin access when a claim was allocated, and have it no more."""


def as_allocated(documents: Sequence[Object], made: Made | None = None) -> list[Object]:
    """The documents as they count: what allocated claims are, is fixed until they are released (S18).

    Were an edit of the claim, or admin access given to its class later, to count, a claim would look as if it held
    nothing while it still does; and were admin access taken from its class to count, as if it held what others have.
    """
    admin, made = admin_classes(documents), made or Made()
    counted, once_admin = [], False
    for doc in documents:
        if doc.get("kind") == "DeviceClaim":
            as_it_counts, had_admin = made.of("as-allocated", doc, partial(_as_allocated, doc, admin), admin)
            counted.append(as_it_counts)
            once_admin = once_admin or had_admin
        else:
            counted.append(doc)
    return [*counted, _ONCE_ADMIN] if once_admin else counted


def _admin_when_allocated(claim: Object) -> frozenset[str]:
    """The classes the claim names that had admin access when it was allocated."""
    try:
        return frozenset(json.loads(annotation(claim, meta.ADMIN_CLASSES) or "[]"))
    except (ValueError, TypeError):
        return frozenset()  # somebody else wrote there


def _as_allocated(claim: Object, admin: frozenset[str]) -> tuple[Object, bool]:
    """The claim as it counts, and whether a class that it names has lost admin access since."""
    recorded = _admin_when_allocated(claim) if claim.get("apiVersion") == meta.DEVMGMT else frozenset()
    once_admin = bool(recorded - admin)
    if not allocations(claim) or annotation(claim, meta.ALLOCATED_SPEC) is None:
        return claim, once_admin
    recorded = _admin_when_allocated(claim)
    instead = {**dict.fromkeys(admin - recorded), **dict.fromkeys(recorded - admin, _ONCE_ADMIN["metadata"]["name"])}
    spec = _with_classes(allocated_spec(claim), instead)
    return claim if spec == claim.get("spec") else {**claim, "spec": spec}, once_admin


def _with_classes(content: Any, instead: Mapping[str, str | None]) -> Any:
    """A spec in which details name other classes, or (None) no class, instead of some."""
    if isinstance(content, list):
        return [_with_classes(item, instead) for item in content]
    if not isinstance(content, dict):
        return content
    changed = {
        name: _with_classes(value, instead) if name in ("claims", "oneOf") else value for name, value in content.items()
    }
    named = content.get("deviceClass")
    if isinstance(named, str) and named in instead:
        changed["deviceClass"] = instead[named]
    return {name: value for name, value in changed.items() if name != "deviceClass" or value is not None}
