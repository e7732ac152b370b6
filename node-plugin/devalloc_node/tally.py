"""How things stand, counted from the journal and the machines: for the metrics and for GetNode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from devalloc_node.claims.content import prepared_of
from devalloc_node.journal import ClaimState, SQLiteJournal
from devalloc_node.journal.schema import SCHEMA
from devalloc_node.journal.sqlite import QUARANTINED
from devalloc_node.machine.process import traffic, usage
from devalloc_node.machine.view import Machine
from devalloc_node.metrics import State, Utilisation, WarmSetups
from devalloc_node.pb import node_pb2 as pb
from devalloc_node.step import ATTACHMENT
from devalloc_node.warm.view import Status


def state(journal: SQLiteJournal, machines: Sequence[Machine], warm: Status | None = None) -> State:
    """In numbers. Raises Failed where the journal cannot be read."""
    records = journal.claims()
    prepared = [prepared_of(record.ref, record.prepared) for record in records if record.prepared is not None]
    live = [machine for machine in machines if machine.runs]
    running = [machine.observed for machine in live]
    steps = [record.step.kind for claim in records for record in journal.steps(claim.ref.uid)]
    return State(
        prepared_devices=Counter(device.binding for claim in prepared for device in claim.devices),
        claims=Counter(str(record.state) for record in records),
        machines=Counter(machine.phase for machine in machines),
        vcpus=sum(observed.vcpus or 0 for observed in running),
        memory_bytes=sum(observed.memory_bytes or 0 for observed in running),
        attached_devices=steps.count(ATTACHMENT),
        quarantined=_quarantined(journal),
        utilisation=[_utilisation(machine) for machine in live],
        warm=None if warm is None else _warm(warm),
    )


def _warm(status: Status) -> WarmSetups:
    by_state = {
        "ready": status.ready,
        "taken": len(status.taken),
        "making": status.making,
        "removing": status.removing,
    }
    return WarmSetups(by_state, status.made, status.failures)


def _utilisation(machine: Machine) -> Utilisation:
    used = usage(machine.pid) if machine.pid else None
    milli = machine.observed.cpu_milli
    return Utilisation(
        machine=machine.key,
        pid=machine.pid,
        taps=machine.taps,
        cpus=None if milli is None else milli / 1000,
        memory_bytes=machine.observed.memory_bytes,
        cpu_seconds=None if used is None else used.cpu_seconds,
        resident_bytes=None if used is None else used.resident_bytes,
        traffic=traffic(machine.pid, machine.taps) if machine.pid and machine.taps else {},
    )


def journal_of(journal: SQLiteJournal) -> pb.Journal:
    """The journal as GetNode tells it. Raises Failed where it cannot be read."""
    states = {record.ref.uid: record.state for record in journal.claims()}
    unfinished = [uid for uid, found in states.items() if found is not ClaimState.PREPARED]
    stuck = [uid for uid in unfinished if any(step.state == "stuck" for step in journal.steps(uid))]
    return pb.Journal(
        path=str(journal.path),
        schema=len(SCHEMA.steps),
        prepared_claims=len(states) - len(unfinished),
        unfinished_claims=len(unfinished),
        stuck_claims=len(stuck),
        withheld=[
            pb.WithheldDevice(device=found.device, reason=found.reason, since=found.since)
            for found in journal.withheld()
        ],
        quarantined=_quarantined(journal),
    )


def _quarantined(journal: SQLiteJournal) -> int:
    aside = journal.setting(QUARANTINED)
    return int(aside is not None and Path(aside).exists())
