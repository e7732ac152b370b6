"""Dump the journal for people and programs."""

from __future__ import annotations

from typing import Any

from devalloc_node.journal.protocol import JournalReader


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
