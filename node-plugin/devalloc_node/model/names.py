"""Validate names from outside before they become parts of paths, files or messages."""

from __future__ import annotations

import re

from devalloc_node.errors import Denied
from devalloc_node.model.grant import ClaimRef

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_UID = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9]{0,62}[A-Za-z0-9])?")


def is_label(text: str) -> bool:
    """A DNS label: namespaces, requests, devices."""
    return _LABEL.fullmatch(text) is not None


def is_subdomain(text: str) -> bool:
    """DNS labels with dots between them, at most 253 characters: claims, drivers."""
    return len(text) <= 253 and _SUBDOMAIN.fullmatch(text) is not None


def is_uid(text: str) -> bool:
    """Letters, digits and dashes, at most 64 characters: Kubernetes has UUIDs, other stores their own."""
    return _UID.fullmatch(text) is not None


def shown(text: str, most: int = 64) -> str:
    """A text of unknown origin for a message: quoted, without control characters, cut."""
    return repr(text) if len(text) <= most else f"{text[:most]!r} and {len(text) - most} more characters"


def check_ref(ref: ClaimRef) -> None:
    """Raises Denied ``ClaimNameInvalid`` for names that no claim can have."""
    for what, text, fits, rule in (
        ("namespace", ref.namespace, is_label(ref.namespace), "a DNS label in lower case"),
        ("name", ref.name, is_subdomain(ref.name), "a DNS name in lower case of at most 253 characters"),
        ("UID", ref.uid, is_uid(ref.uid), "letters, digits and dashes, at most 64"),
    ):
        if not fits:
            raise Denied("ClaimNameInvalid", f"the {what} of the claim must be {rule}, not {shown(text)}")
