"""What is known of a claim that is not readable as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from devalloc.api.claim import DeviceAllocation, DeviceClaimStatus
from devalloc.api.json_content import ContentError, content_faults
from devalloc.api.node_rules import restrictions_of
from devalloc.api.owner_names import read_name
from devalloc.api.views import ClaimKey

_DEVICE = ("devicePoolName", "deviceName")
_OTHER_FIELDS = DeviceClaimStatus.model_fields.keys() - {"allocations", "node_name", "reason"}
"""Fields of the status that are lists."""


def recover_status(content: object) -> DeviceClaimStatus | None:
    """The devices that the status of a claim names, regardless of its other errors; None if it names none.

    Each entry is read separately. An entry with unreadable amounts has the whole device, which includes whatever it was
    meant to have. An entry that names no device is ignored.
    """
    listed = content.get("allocations") if isinstance(content, Mapping) else None
    entries = [_entry(entry) for entry in listed] if isinstance(listed, list) else []
    held = [entry for entry in entries if entry is not None]
    if not held:
        return None
    # All fields are given: to find a default, pydantic inspects signatures, which costs a tenth of a prepare.
    rest: dict[str, Any] = {name: [] for name in _OTHER_FIELDS} | {"node_name": "", "reason": ""}
    return DeviceClaimStatus.model_construct({"allocations"}, allocations=held, **rest)


def _entry(content: object) -> DeviceAllocation | None:
    if not isinstance(content, Mapping):
        return None
    device = {name: content.get(name) for name in _DEVICE}
    amounts = content.get("allocations")
    whole = _recovered_entry(device)
    return whole if whole is None or not amounts else _recovered_entry({**device, "allocations": amounts}) or whole


def _recovered_entry(content: dict[str, object]) -> DeviceAllocation | None:
    try:
        return (
            None if content_faults(content) else DeviceAllocation.model_validate(content, by_alias=True, by_name=False)
        )
    except (ContentError, ValidationError):
        return None


def claim_key_or_none(document: object) -> ClaimKey | None:
    """The key of a claim, even if the rest is unreadable; None if it has no name or is of another kind."""
    if not isinstance(document, Mapping) or document.get("kind") != "DeviceClaim":
        return None
    metadata = document.get("metadata")
    if not isinstance(metadata, Mapping) or not isinstance(name := metadata.get("name"), str):
        return None
    namespace = metadata.get("namespace")
    own = read_name if restrictions_of(document) is None else str
    return own(namespace) if isinstance(namespace, str) and namespace else "default", own(name)
