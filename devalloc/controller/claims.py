"""Reading claims as the store has them: plain content that nobody promises to be well formed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from devalloc.api import meta
from devalloc.store import Object

ClaimKey = tuple[str, str]
"""Namespace and name, the namespace never empty, as the solver answers."""

OF_ALLOCATION = (meta.ALLOCATED_NODE, meta.ALLOCATION_DETAILS, meta.ALLOCATED_SPEC, meta.REASON, meta.MESSAGE)
"""The annotations that the allocator writes, and takes away again."""


def claims_among(documents: Iterable[Object]) -> list[Object]:
    """The DeviceClaims."""
    return [doc for doc in documents if doc.get("kind") == "DeviceClaim" and doc.get("apiVersion") == meta.DEVMGMT]


def claim_key(claim: Object) -> ClaimKey:
    """(namespace, name)"""
    return claim["metadata"].get("namespace") or "default", claim["metadata"]["name"]


def annotation(claim: Object, name: str) -> str | None:
    """The value of an annotation."""
    value: str | None = claim["metadata"].get("annotations", {}).get(name)
    return value


def allocations(claim: Object) -> list[Any]:
    """The entries of status.allocations, well formed or not; empty for a claim that is not allocated."""
    found = claim.get("status", {}).get("allocations")
    return found if isinstance(found, list) else []


def is_deleting(claim: Object) -> bool:
    """True once somebody asked for its deletion."""
    return "deletionTimestamp" in claim["metadata"]


def group_of(claim: Object) -> str | None:
    """The group within the namespace whose claims are satisfied all or none (S7)."""
    return annotation(claim, meta.GROUP) or None


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


def as_allocated(document: Object) -> Object:
    """The document as it counts: an allocated claim's spec is fixed until it is released (S18).

    Were an edit to count, a claim could be made to look as if it held nothing while it still does.
    """
    if document.get("kind") != "DeviceClaim" or (spec := allocated_spec(document)) == document.get("spec"):
        return document
    return {**document, "spec": spec}
