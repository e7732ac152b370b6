"""What the journal says, for people and programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from devalloc.inventory.pci import Address
from devalloc_node.journal import ClaimState
from devalloc_node.journal.protocol import Reader
from devalloc_node.journal.records import WITHHELD


def described(journal: Reader) -> dict[str, Any]:
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
        {"device": found.device, "holds": list(found.keys), "reason": found.reason, "since": found.since}
        for found in journal.withheld()
    ]
    return {"claims": claims, "shared": shared, "withheld": withheld}


def not_undone(journal: Reader, gone: Mapping[str, str]) -> dict[str, str]:
    """Devices (``pool/device``) of claims that could not be undone, or are not yet although they are ``gone`` (by UID,
    and why); and why. Their claims hold them here until they are, whoever else may think that they are free."""
    found: dict[str, str] = {}
    for record in journal.claims():
        why = None
        if record.state is not ClaimState.PREPARED:
            why = next((step.problem for step in journal.steps(record.ref.uid) if step.state == "stuck"), None)
        elif record.ref.uid in gone:
            why = gone[record.ref.uid]
        devices = [held.device for held in journal.held().values() if held.uid == record.ref.uid] if why else []
        found |= dict.fromkeys(devices, f"claim {record.ref} is not undone: {why}")
    return found


def made_vfs(journal: Reader) -> frozenset[str]:
    """Names of ports (as devices) whose VFs were made for claims, and go with the last of those that have some now."""
    found = set()
    for name in journal.shared():
        pf = Address.parse(name.partition("/")[2])
        users = journal.users(name)
        if pf is None or not users or any(user.owner.startswith(WITHHELD) for user in users):
            continue
        if any(each.step.kind == "vf-count" and not each.step.before for each in journal.steps(name)):
            found.add(pf.device_name)
    return frozenset(found)


def _steps(journal: Reader, owner: str) -> list[dict[str, Any]]:
    return [
        {
            "device": found.device,
            "kind": found.step.kind,
            "target": found.step.target,
            "before": found.step.before,
            "after": found.step.after,
            "state": found.state,
            "problem": found.problem,
        }
        for found in journal.steps(owner)
    ]
