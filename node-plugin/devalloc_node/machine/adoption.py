"""Adopt running machines: those that another program started, and those that the journal lost."""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

from devalloc.api.virtual_machine import VirtualMachine
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.machine import launch, machine_files, memory, paths, vcpu
from devalloc_node.machine.paths import AllowedFolder, MachineConfig
from devalloc_node.machine.process import Process, memlock, process
from devalloc_node.machine.qmp import Connect, Monitor, SocketPeer, malformed_as_failed
from devalloc_node.machine.records import MACHINES, UNKNOWN_AMOUNTS, MachineAmounts, MachineRecord, MachineView
from devalloc_node.machine.registry import LOOK_SECONDS, MachineRegistry
from devalloc_node.machine.spec import MIB, MachineSpec, machine_id, spec_of


@dataclass(frozen=True, slots=True)
class AdoptedMachine:
    """A QEMU that may be taken into care."""

    process: Process
    run: str
    """Its UUID, or a name made of its process where it has none."""
    amounts: MachineAmounts
    user: int | None
    """Whose process it is; None: the plugin's own user's."""


def boot_id() -> str:
    """Of this run of the host; process numbers mean nothing in another one."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def own_user() -> int:
    return os.geteuid()


def owner_check(key: str, user: int, qemu: Process | None = None) -> Callable[[SocketPeer], None]:
    """Refuses a socket on which another user's process listens or speaks, or (``qemu``) another process speaks."""

    def check(peer: SocketPeer) -> None:
        if peer.uid != user:
            does = "answers" if peer.speaks else "listens"
            raise Denied("SocketNotOurs", f"machine {key}: a process of user {peer.uid} {does} on its socket")
        if peer.speaks and qemu is not None and peer.pid != qemu.pid:
            raise Denied(
                "SocketNotOurs",
                f"machine {key} is process {qemu.pid}, but process {peer.pid} now answers on its socket; delete the "
                "machine to adopt that one",
            )

    return check


def examine(spec: MachineSpec, config: MachineConfig, connect: Connect, deadline: Deadline) -> AdoptedMachine:
    """Prove that a machine may be adopted, and look at it.

    Raises Denied: ``PathNotAllowed``, ``PathMissing``, ``SocketNotOurs``, ``MemlockTooLow``; Failed, Unknown where it
    does not answer as QEMU.
    """
    if spec.adopt is None:
        raise Denied("MachineInvalid", f"machine {spec.key} has no socket to adopt it by")
    lent = () if config.lent is None else (config.lent,)
    allowed = (*config.socket_folders, *(AllowedFolder(folder, "any") for folder in lent))
    path = paths.resolve_allowed(spec.adopt, allowed, spec.namespace, "socket", writes=True, option="--qmp-folder")
    info = path.lstat()
    if not stat.S_ISSOCK(info.st_mode):
        raise Denied("PathNotAllowed", f"{path} is not a socket")
    if info.st_uid != own_user() and not any(folder.resolve() in path.parents for folder in lent):
        raise Denied("SocketNotOurs", f"socket {path} belongs to user {info.st_uid}, but devalloc runs as {own_user()}")
    seen: list[Process] = []
    check = owner_check(spec.key, info.st_uid)

    def note(peer: SocketPeer) -> None:
        check(peer)
        if peer.speaks:
            speaker = process(peer.pid)
            if speaker is None:
                raise Failed("MachineNotFound", f"process {peer.pid}, which answered on {path}, has ended")
            if spec.claims:
                check_memlock(spec, config, speaker)
            seen.append(speaker)

    monitor = connect(spec.key, str(path), command_seconds=config.command_seconds, check=note)
    try:
        with malformed_as_failed(spec.key):
            machine_uuid = UUID(monitor.execute("query-uuid", deadline=deadline)["UUID"])
            speaker = seen[-1]
            run = str(machine_uuid)
            if not machine_uuid.int:
                run = f"{boot_id()}-{speaker.pid}-{speaker.started}"
            user = None if info.st_uid == own_user() else info.st_uid
            return AdoptedMachine(speaker, run, _amounts(monitor, deadline), user)
    finally:
        monitor.close()


def check_memlock(spec: MachineSpec, config: MachineConfig, qemu: Process) -> None:
    """Raises Denied (``MemlockTooLow``) where devices cannot be passed through: VFIO locks all of its memory."""
    needed = launch.memlock_needed(spec, config)
    try:
        limit = memlock(qemu.pid)
    except OSError as error:
        raise Failed("MachineNotFound", f"cannot inspect process {qemu.pid}: {error}") from None
    if limit is not None and limit < needed:
        who = "the plugin, which must not raise its own limit," if spec.adopt is None else "it"
        raise Denied(
            "MemlockTooLow",
            f"machine {spec.key}: QEMU (process {qemu.pid}) may lock {limit // MIB}Mi of memory, but devices need "
            f"{needed // MIB}Mi; start {who} with a higher limit (ulimit -l, LimitMEMLOCK=)",
        )


def _amounts(monitor: Monitor, deadline: Deadline) -> MachineAmounts:
    vcpus = vcpu.count(monitor, deadline)
    return MachineAmounts(vcpus * 1000, vcpus, memory.observe_memory(monitor, deadline).total)


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
    return None if user == own_user() else user
