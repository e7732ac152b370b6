"""Running machines that the journal does not know, because it was lost or restored from an older copy."""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from uuid import UUID

from devalloc.api.virtual_machine import VirtualMachine
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.machine import adoption, machine_files
from devalloc_node.machine.paths import MachineConfig
from devalloc_node.machine.process import Process
from devalloc_node.machine.qmp import Monitor
from devalloc_node.machine.records import MACHINES, UNKNOWN_AMOUNTS, MachineRecord, MachineView
from devalloc_node.machine.registry import LOOK_SECONDS, MachineRegistry
from devalloc_node.machine.spec import machine_id, spec_of

LOG = logging.getLogger(__name__)
PAUSED = "prelaunch"
"""What QEMU says of itself until its CPUs are let run for the first time."""


def is_paused(monitor: Monitor, deadline: Deadline) -> bool:
    """Whether QEMU waits to let its CPUs run for the first time. Raises NodeError."""
    return bool(monitor.execute("query-status", deadline=deadline)["status"] == PAUSED)


def never_ran(machines: MachineRegistry, record: MachineRecord, due: Deadline) -> bool:
    """Whether a machine that lives has no guest yet: QEMU waits to let its CPUs run for the first time.

    A record that says ``starting`` does not decide that alone: the plugin may have been killed after it let them run.
    Raises NodeError if QEMU does not answer by ``due``. Who would end the machine gives it LOOK_SECONDS, whatever its
    caller has left: a QEMU that is slow is not one without a guest.
    """
    if record.state != "starting":
        return False
    with machines.line(record) as monitor:
        return is_paused(monitor, due)


def is_without_guest(machines: MachineRegistry, record: MachineRecord) -> bool:
    """As ``never_ran``. If QEMU does not answer, there may be a guest."""
    with suppress(NodeError):
        return never_ran(machines, record, Deadline.after(LOOK_SECONDS))
    return False


def is_other_run(record: MachineRecord, process: Process) -> bool:
    """Whether a process that is the machine by its life file was started as another run than the record's. Not where
    that cannot be seen; an adopted one is known by its process, and may write its UUID as it likes."""
    if record.spec.adopt is not None:
        return False
    try:
        words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"-uuid" in words[:-1] and words[words.index(b"-uuid") + 1] != record.run.encode()


def orphan_refusal(name: str, process: Process) -> Denied:
    """The message about one that cannot be identified."""
    return Denied(
        "MachineRuns",
        f"machine {name} already runs as process {process.pid} but is not in the journal; shut its guest down or end "
        f"that process first (kill {process.pid})",
        retryable=True,
    )


def recognised_record(
    machines: MachineRegistry, machine: VirtualMachine, run: str, process: Process, due: Deadline
) -> MachineRecord:
    """The record of a living machine, if it is the ``run`` that its object names.

    Raises Denied (``MachineRuns``) if it is another run, and Failed or Unknown if QEMU does not answer.
    """
    spec = spec_of(machine)
    if not run:
        raise orphan_refusal(spec.key, process)
    record = MachineRecord(machine.to_manifest(), "running", run, user_of(machines.config, spec.id), cpus_left=None)
    there = observe_run(machines, record, due)
    if there.run != run:
        raise orphan_refusal(spec.key, process)
    LOG.warning("adopted machine %s (process %d), which was not in the journal", spec.key, process.pid)
    return there


def observe_run(machines: MachineRegistry, record: MachineRecord, due: Deadline) -> MachineRecord:
    """What QEMU says of a machine that lives: which run it is, and whether its CPUs ever ran. Raises NodeError."""
    with machines.line(record) as monitor:
        run = str(UUID(monitor.execute("query-uuid", deadline=due)["UUID"]))
        now = record.become("starting" if is_paused(monitor, due) else "running")
    # Of another run nothing of that holds.
    return (
        now
        if run == record.run
        else replace(now, run=run, applied=UNKNOWN_AMOUNTS, requested=UNKNOWN_AMOUNTS, cpus_left=None)
    )


def all_orphans(machines: MachineRegistry) -> list[MachineView]:
    """Those that live and have no record, as far as that and what they are called is known. Raises NodeError."""
    config, lost_machines = machines.config, []
    for lives in machine_files.machine_ids(config) - {machine_id(key) for key in machines.records.records(MACHINES)}:
        process, key = None, _key_of(lives, config)
        with suppress(NodeError):  # one that cannot be told of must not hide the others
            process = machine_files.process_of(lives, config)
        if process is not None and key is not None:
            why = (
                f"it lives as process {process.pid} but is not in the journal: a VirtualMachine that names this run "
                f"adopts it; else shut its guest down, or end that process (kill {process.pid})"
            )
            socket = str(config.folder(lives) / "qmp")
            lost_machines.append(
                MachineView(key, "", "Unknown", pid=process.pid, reason="MachineLost", message=why, qmp_socket=socket)
            )
    return lost_machines


def _key_of(lives: str, config: MachineConfig) -> str | None:
    """``namespace/name`` of a machine, from its command line; None if unknown."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        key = json.loads(config.plan(lives).read_bytes())["key"]
        return key if isinstance(key, str) and machine_id(key) == lives else None
    return None


def user_of(config: MachineConfig, name: str) -> int | None:
    """What a machine's QEMU runs as, by its folder, which it cannot give away. Raises Failed."""
    try:
        user = os.lstat(config.folder(name)).st_uid
    except OSError as error:
        raise Failed("HostUnreadable", f"cannot inspect the folder of machine {name}: {error}") from None
    return None if user == adoption.own_user() else user
