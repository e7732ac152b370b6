"""Grants and answers as JSON for the journal, and a dump of it. Unknown members are ignored; missing ones have
defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from devalloc_node.errors import Failed
from devalloc_node.journal.protocol import JournalReader
from devalloc_node.model.grant import ClaimRef, Grant, GrantedDevice
from devalloc_node.model.step import Prepared, PreparedDevice


def journal_dump(journal: JournalReader) -> dict[str, Any]:
    """Claims, what several share, and what is withheld, as JSON."""
    held: dict[str, list[str]] = {}
    for holding in journal.held().values():
        held.setdefault(holding.uid, []).append(holding.key)
    claims = [
        {
            "namespace": record.ref.namespace,
            "name": record.ref.name,
            "uid": record.ref.uid,
            "kind": record.kind,
            "state": str(record.state),
            "since": record.changed,
            "holds": held.get(record.ref.uid, []),
            "answer": record.prepared,
            "steps": _steps(journal, record.ref.uid),
        }
        for record in journal.claims()
    ]
    shared = [
        {"name": name, "users": sorted({user.owner for user in journal.users(name)}), "steps": _steps(journal, name)}
        for name in journal.shared()
    ]
    withheld = [
        {"device": entry.device, "holds": list(entry.keys), "reason": entry.reason, "since": entry.since}
        for entry in journal.withheld()
    ]
    return {"claims": claims, "shared": shared, "withheld": withheld}


def _steps(journal: JournalReader, owner: str) -> list[dict[str, Any]]:
    return [
        {
            "device": record.device,
            "kind": record.step.kind,
            "target": record.step.target,
            "before": record.step.before,
            "after": record.step.after,
            "state": record.state,
            "problem": record.problem,
        }
        for record in journal.steps(owner)
    ]


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
