"""What the journal says, for people and programs."""

from __future__ import annotations

from typing import Any

from devalloc_node.journal.protocol import Reader


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
