"""Fields of raw claim manifests, which may be malformed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from devalloc.api import meta
from devalloc.api.json_content import escape_invalid_unicode

Object = dict[str, Any]

ClaimKey = tuple[str, str]
"""Namespace and name, the namespace never empty, as the solver answers."""


def device_claims_in(documents: Iterable[Object]) -> list[Object]:
    """The DeviceClaims among documents."""
    return [doc for doc in documents if doc.get("kind") == "DeviceClaim" and doc.get("apiVersion") == meta.DEVMGMT]


def claim_key(claim: Object) -> ClaimKey:
    """(namespace, name)"""
    return claim["metadata"].get("namespace") or "default", claim["metadata"]["name"]


def claim_key_or_none(document: object) -> ClaimKey | None:
    """The key of a claim, even if the rest is unreadable; None if it has no name or is of another kind."""
    if not isinstance(document, Mapping) or document.get("kind") != "DeviceClaim":
        return None
    metadata = document.get("metadata")
    if not isinstance(metadata, Mapping) or not isinstance(name := metadata.get("name"), str):
        return None
    namespace = metadata.get("namespace")
    return escape_invalid_unicode(namespace) if isinstance(
        namespace, str
    ) and namespace else "default", escape_invalid_unicode(name)


def annotation_of(claim: Object, name: str) -> str | None:
    """The value of an annotation."""
    noted = claim["metadata"].get("annotations")
    value = noted.get(name) if isinstance(noted, dict) else None
    return value if isinstance(value, str) else None


def allocation_entries(claim: Object) -> list[Any]:
    """The entries of status.allocations, well formed or not; empty for a claim that is not allocated."""
    status = claim.get("status")
    entries = status.get("allocations") if isinstance(status, dict) else None
    return entries if isinstance(entries, list) else []


def is_deleting(claim: Object) -> bool:
    """Whether its deletion was requested."""
    return claim["metadata"].get("deletionTimestamp") is not None


def group_of(claim: Object) -> str | None:
    """The claim's group within its namespace; its members are satisfied all or none (S7)."""
    return annotation_of(claim, meta.GROUP) or None


def admin_class_names(documents: Iterable[Object]) -> frozenset[str]:
    """Names of the classes that have admin access."""
    return frozenset(
        doc["metadata"]["name"]
        for doc in documents
        if doc.get("kind") == "DeviceClass" and isinstance(spec := doc.get("spec"), dict) and spec.get("adminAccess")
    )
