"""Grants and answers as JSON for the journal. Unknown members are ignored; missing ones have defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from devalloc_node.errors import Failed
from devalloc_node.model.grant import ClaimRef, Grant, GrantedDevice
from devalloc_node.model.prepared import Prepared, PreparedDevice

Device = TypeVar("Device", GrantedDevice, PreparedDevice)


def grant_content(grant: Grant, source: str) -> dict[str, Any]:
    """All of it but the reference, which has columns of its own. ``source``: which cluster or store it is from."""
    return {
        "source": source,
        "kind": grant.kind,
        "devices": [_without_defaults(device) for device in grant.devices],
        "pods": list(grant.pods),
        "pod_claim_name": grant.pod_claim_name,
    }


def grant_of(ref: ClaimRef, content: Mapping[str, Any]) -> Grant:
    """Raises Failed (``JournalDamaged``) where it is none."""
    try:
        devices = tuple(_decoded(GrantedDevice, device) for device in content["devices"])
        pods = tuple(content.get("pods", ()))
        return Grant(ref, content["kind"], devices, pods, content.get("pod_claim_name"))
    except (KeyError, TypeError, AttributeError) as error:
        raise _unreadable(ref, "grant", error) from error


def prepared_content(prepared: Prepared) -> dict[str, Any]:
    """All of it but the reference."""
    ids = {name: list(ids) for name, ids in prepared.cdi_ids.items()}
    return {"devices": [_without_defaults(device) for device in prepared.devices], "cdi_ids": ids}


def prepared_of(ref: ClaimRef, content: Mapping[str, Any]) -> Prepared:
    """Raises Failed (``JournalDamaged``) where it is none."""
    try:
        devices = tuple(_decoded(PreparedDevice, device) for device in content["devices"])
        return Prepared(ref, devices, {name: tuple(ids) for name, ids in content.get("cdi_ids", {}).items()})
    except (KeyError, TypeError, AttributeError) as error:
        raise _unreadable(ref, "answer", error) from error


def _without_defaults(device: GrantedDevice | PreparedDevice) -> dict[str, Any]:
    """What differs from the default: lists for tuples, plain dicts."""
    content = {}
    for member in fields(device):
        value = getattr(device, member.name)
        if isinstance(value, tuple):
            value = [dict(item) if isinstance(item, Mapping) else item for item in value]
        elif isinstance(value, Mapping):
            value = dict(value)
        if value not in (None, False, [], {}):
            content[member.name] = value
    return content


def _decoded(kind: type[Device], content: Mapping[str, Any]) -> Device:
    names = {member.name for member in fields(kind)}
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in content.items() if name in names
    }
    return kind(**{"requests": (), **values})


def _unreadable(ref: ClaimRef, what: str, error: Exception) -> Failed:
    return Failed("JournalDamaged", f"cannot read the {what} of claim {ref} in the journal: {error!r}", retryable=False)
