"""What claims say, read from plain content that nobody promises to be well formed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from devalloc.api import meta
from devalloc.api.content import writable

Object = dict[str, Any]

ClaimKey = tuple[str, str]
"""Namespace and name, the namespace never empty, as the solver answers."""


def claims_among(documents: Iterable[Object]) -> list[Object]:
    """The DeviceClaims."""
    return [doc for doc in documents if doc.get("kind") == "DeviceClaim" and doc.get("apiVersion") == meta.DEVMGMT]


def claim_key(claim: Object) -> ClaimKey:
    """(namespace, name)"""
    return claim["metadata"].get("namespace") or "default", claim["metadata"]["name"]


def claim_key_or_none(document: object) -> ClaimKey | None:
    """The key of a claim, even if the rest of it cannot be read; None if it has no name, or is of another kind."""
    if not isinstance(document, Mapping) or document.get("kind") != "DeviceClaim":
        return None
    metadata = document.get("metadata")
    if not isinstance(metadata, Mapping) or not isinstance(name := metadata.get("name"), str):
        return None
    namespace = metadata.get("namespace")
    return writable(namespace) if isinstance(namespace, str) and namespace else "default", writable(name)


def annotation(claim: Object, name: str) -> str | None:
    """The value of an annotation."""
    noted = claim["metadata"].get("annotations")
    value = noted.get(name) if isinstance(noted, dict) else None
    return value if isinstance(value, str) else None


def allocations(claim: Object) -> list[Any]:
    """The entries of status.allocations, well formed or not; empty for a claim that is not allocated."""
    status = claim.get("status")
    found = status.get("allocations") if isinstance(status, dict) else None
    return found if isinstance(found, list) else []


def is_deleting(claim: Object) -> bool:
    """True once somebody asked for its deletion."""
    return claim["metadata"].get("deletionTimestamp") is not None


def group_of(claim: Object) -> str | None:
    """The group within the namespace whose claims are satisfied all or none (S7)."""
    return annotation(claim, meta.GROUP) or None


def admin_classes(documents: Iterable[Object]) -> frozenset[str]:
    """Names of the classes that have admin access."""
    return frozenset(
        doc["metadata"]["name"]
        for doc in documents
        if doc.get("kind") == "DeviceClass" and isinstance(spec := doc.get("spec"), dict) and spec.get("adminAccess")
    )
