"""Count the state of the node from the journal, for the metrics and for GetNode."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from devalloc_node.claims.journal_content import prepared_of
from devalloc_node.journal import ClaimState, SQLiteJournal
from devalloc_node.journal.schema import SCHEMA
from devalloc_node.journal.sqlite import QUARANTINED
from devalloc_node.metrics.registry import NodeState
from devalloc_node.model.step import ATTACHMENT
from devalloc_node.pb import node_pb2 as pb


def node_state(journal: SQLiteJournal) -> NodeState:
    """In numbers. Raises Failed where the journal cannot be read."""
    records = journal.claims()
    prepared = [prepared_of(record.ref, record.prepared) for record in records if record.prepared is not None]
    steps = [record.step.kind for claim in records for record in journal.steps(claim.ref.uid)]
    return NodeState(
        prepared_devices=Counter(device.binding for claim in prepared for device in claim.devices),
        claims=Counter(str(record.state) for record in records),
        attached_devices=steps.count(ATTACHMENT),
        quarantined=_quarantined(journal),
    )


def journal_info(journal: SQLiteJournal) -> pb.Journal:
    """The journal as GetNode tells it. Raises Failed where it cannot be read."""
    states = {record.ref.uid: record.state for record in journal.claims()}
    unfinished = [uid for uid, entry in states.items() if entry is not ClaimState.PREPARED]
    stuck = [uid for uid in unfinished if any(step.state == "stuck" for step in journal.steps(uid))]
    return pb.Journal(
        path=str(journal.path),
        schema=len(SCHEMA.steps),
        prepared_claims=len(states) - len(unfinished),
        unfinished_claims=len(unfinished),
        stuck_claims=len(stuck),
        withheld=[
            pb.WithheldDevice(device=entry.device, reason=entry.reason, since=entry.since)
            for entry in journal.withheld()
        ],
        quarantined=_quarantined(journal),
    )


def _quarantined(journal: SQLiteJournal) -> int:
    aside = journal.setting(QUARANTINED)
    return int(aside is not None and Path(aside).exists())
