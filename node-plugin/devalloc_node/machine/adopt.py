"""Machines that somebody else started: who they are is proven before they are spoken to, and nothing is touched."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed
from devalloc_node.machine import cpu, launch, memory, paths
from devalloc_node.machine.config import Folder, MachineConfig
from devalloc_node.machine.monitor import Connect, Monitor, Peer, readable
from devalloc_node.machine.process import Process, memlock, process
from devalloc_node.machine.spec import MIB, MachineSpec
from devalloc_node.machine.view import Amounts


@dataclass(frozen=True, slots=True)
class Adopted:
    """A QEMU that may be taken into care."""

    process: Process
    run: str
    """Its UUID, or a name made of its process where it has none."""
    amounts: Amounts
    user: int | None
    """Whose process it is; None: the plugin's own user's."""


def boot_id() -> str:
    """Of this run of the host; process numbers mean nothing in another one."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def own_user() -> int:
    return os.geteuid()


def owner_check(key: str, user: int, known: Process | None = None) -> Callable[[Peer], None]:
    """Refuses a socket on which another user's process listens or speaks, or (``known``) another process speaks."""

    def check(peer: Peer) -> None:
        if peer.uid != user:
            does = "answers" if peer.speaks else "listens"
            raise Denied("SocketNotOurs", f"machine {key}: a process of user {peer.uid} {does} on its socket")
        if peer.speaks and known is not None and peer.pid != known.pid:
            raise Denied(
                "SocketNotOurs",
                f"machine {key} is process {known.pid}, and now process {peer.pid} answers on its socket; delete the "
                "machine to adopt that one",
            )

    return check


def examine(spec: MachineSpec, config: MachineConfig, connect: Connect, deadline: Deadline) -> Adopted:
    """Prove that a machine may be adopted, and look at it.

    Raises Denied: ``PathNotAllowed``, ``PathMissing``, ``SocketNotOurs``, ``MemlockTooLow``; Failed, Unknown where it
    does not answer as QEMU.
    """
    if spec.adopt is None:
        raise Denied("MachineInvalid", f"machine {spec.key} says no socket to adopt it by")
    lent = () if config.lent is None else (config.lent,)
    allowed = (*config.socket_folders, *(Folder(folder, "any") for folder in lent))
    path = paths.resolved(spec.adopt, allowed, spec.namespace, "socket", writes=True, option="--qmp-folder")
    info = path.lstat()
    if not stat.S_ISSOCK(info.st_mode):
        raise Denied("PathNotAllowed", f"{path} is not a socket")
    if info.st_uid != own_user() and not any(folder.resolve() in path.parents for folder in lent):
        raise Denied("SocketNotOurs", f"socket {path} is of user {info.st_uid}, and devalloc runs as {own_user()}")
    seen: list[Process] = []
    check = owner_check(spec.key, info.st_uid)

    def note(peer: Peer) -> None:
        check(peer)
        if peer.speaks:
            found = process(peer.pid)
            if found is None:
                raise Failed("MachineNotFound", f"process {peer.pid}, which answered on {path}, has ended")
            if spec.claims:
                check_memlock(spec, config, found)
            seen.append(found)

    monitor = connect(spec.key, str(path), command_seconds=config.command_seconds, check=note)
    try:
        with readable(spec.key):
            known = UUID(monitor.execute("query-uuid", deadline=deadline)["UUID"])
            found = seen[-1]
            run = str(known)
            if not known.int:
                run = f"{boot_id()}-{found.pid}-{found.started}"
            user = None if info.st_uid == own_user() else info.st_uid
            return Adopted(found, run, _amounts(monitor, deadline), user)
    finally:
        monitor.close()


def check_memlock(spec: MachineSpec, config: MachineConfig, found: Process) -> None:
    """Raises Denied (``MemlockTooLow``) where devices cannot be passed through: VFIO locks all of its memory."""
    needed = launch.memlock_needed(spec, config)
    try:
        limit = memlock(found.pid)
    except OSError as error:
        raise Failed("MachineNotFound", f"process {found.pid} cannot be looked at: {error}") from None
    if limit is not None and limit < needed:
        who = "the plugin, which may not raise its own," if spec.adopt is None else "it"
        raise Denied(
            "MemlockTooLow",
            f"machine {spec.key}: QEMU (process {found.pid}) may lock {limit // MIB}Mi of memory, and devices need "
            f"{needed // MIB}Mi; start {who} with a higher limit (ulimit -l, LimitMEMLOCK=)",
        )


def _amounts(monitor: Monitor, deadline: Deadline) -> Amounts:
    vcpus = cpu.count(monitor, deadline)
    return Amounts(vcpus * 1000, vcpus, memory.observe(monitor, deadline).total)
