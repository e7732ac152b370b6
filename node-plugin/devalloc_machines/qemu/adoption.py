"""Adopt machines that others started: prove their identity before speaking to them, and change nothing."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from devalloc.api.virtual_machine import VirtualMachine
from devalloc_machines.qemu import allowed_paths, launch, memory, vcpu
from devalloc_machines.qemu.process import Process, memlock, process
from devalloc_machines.qemu.qmp import Connect, SocketPeer, malformed_as_failed
from devalloc_machines.qemu.records import MachineAmounts, MachineRecord
from devalloc_machines.qemu.settings import AllowedFolder, MachineConfig
from devalloc_machines.qemu.spec import CPU, MIB, MachineSpec, spec_of
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed


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


def examine(machine: VirtualMachine, config: MachineConfig, connect: Connect, deadline: Deadline) -> MachineRecord:
    """Prove that a machine may be adopted, and look at it: what is to be recorded of it. Its run is its UUID, or a name
    made of its process if it has none.

    Raises Denied: ``PathNotAllowed``, ``PathMissing``, ``SocketNotOurs``, ``MemlockTooLow``; Failed, Unknown if it
    does not answer as QEMU.
    """
    spec = spec_of(machine)
    if spec.adopt is None:
        raise Denied("MachineInvalid", f"machine {spec.key} has no socket to adopt it by")
    lent = () if config.lent is None else (config.lent,)
    allowed = (*config.socket_folders, *(AllowedFolder(folder, "any") for folder in lent))
    path = allowed_paths.resolve_allowed(
        spec.adopt, allowed, spec.namespace, "socket", writes=True, option="--qmp-folder"
    )
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
            speaker, boot, vcpus = seen[-1], boot_id(), vcpu.count(monitor, deadline)
            return MachineRecord(
                machine.to_manifest(),
                "running",
                run=str(machine_uuid) if machine_uuid.int else f"{boot}-{speaker.pid}-{speaker.started}",
                user=None if info.st_uid == own_user() else info.st_uid,
                process=speaker,
                boot=boot,
                applied=MachineAmounts(vcpus * CPU, vcpus, memory.observe_memory(monitor, deadline).total),
                cpus_left=None,
            )
    finally:
        monitor.close()


def check_memlock(spec: MachineSpec, config: MachineConfig, qemu: Process) -> None:
    """Raises Denied (``MemlockTooLow``) if devices cannot be passed through: VFIO locks all of its memory."""
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
