"""Count the state of the node from the journal and the machines, for the metrics and for GetNode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from devalloc_node.claims.journal_content import prepared_of
from devalloc_node.journal import ClaimState, SQLiteJournal
from devalloc_node.journal.schema import SCHEMA
from devalloc_node.journal.sqlite import QUARANTINED
from devalloc_node.machine.process import traffic, usage
from devalloc_node.machine.records import MachineView
from devalloc_node.metrics.registry import MachineUsage, NodeState
from devalloc_node.model.step import ATTACHMENT
from devalloc_node.pb import node_pb2 as pb


class GuestMetrics(Protocol):
    """What guests report."""

    @property
    def dropped(self) -> int: ...

    def metrics(self) -> Mapping[str, Mapping[str, float]]: ...


def node_state(
    journal: SQLiteJournal, machines: Sequence[MachineView], guests: GuestMetrics | None = None
) -> NodeState:
    """In numbers. Raises Failed where the journal cannot be read."""
    records = journal.claims()
    prepared = [prepared_of(record.ref, record.prepared) for record in records if record.prepared is not None]
    live = [machine for machine in machines if machine.runs]
    running = [machine.observed for machine in live]
    steps = [record.step.kind for claim in records for record in journal.steps(claim.ref.uid)]
    return NodeState(
        prepared_devices=Counter(device.binding for claim in prepared for device in claim.devices),
        claims=Counter(str(record.state) for record in records),
        machines=Counter(machine.shown_phase for machine in machines),
        vcpus=sum(observed.vcpus or 0 for observed in running),
        memory_bytes=sum(observed.memory_bytes or 0 for observed in running),
        attached_devices=steps.count(ATTACHMENT),
        quarantined=_quarantined(journal),
        utilisation=[_machine_usage(machine) for machine in live],
        guest_metrics={} if guests is None else guests.metrics(),
        dropped_lines=0 if guests is None else guests.dropped,
    )


def _machine_usage(machine: MachineView) -> MachineUsage:
    used = usage(machine.pid) if machine.pid else None
    milli = machine.observed.cpu_milli
    return MachineUsage(
        machine=machine.key,
        pid=machine.pid,
        taps=machine.taps,
        cpus=None if milli is None else milli / 1000,
        memory_bytes=machine.observed.memory_bytes,
        cpu_seconds=None if used is None else used.cpu_seconds,
        resident_bytes=None if used is None else used.resident_bytes,
        traffic=traffic(machine.pid, machine.taps) if machine.pid and machine.taps else {},
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
