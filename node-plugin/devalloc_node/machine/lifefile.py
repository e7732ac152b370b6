"""Whether a machine lives: told by the lock of its life file, which its QEMU holds until the kernel ends it."""

from __future__ import annotations

import fcntl
import os
import time

from devalloc_node.deadline import Deadline
from devalloc_node.errors import Failed, Unknown
from devalloc_node.machine.config import MachineConfig
from devalloc_node.machine.process import Process, process, with_removed_file

_POLL_SECONDS = 0.05
_ENDING_SECONDS = 0.2
"""For a process that has given up all it had to be gone."""


def process_of(machine_id: str, config: MachineConfig, seconds: float = 2.0) -> Process | None:
    """The process of a machine that runs; None where none does.

    Its lock of its life file proves that it lives. Without the lock it may still be ending, and holds devices until
    the kernel is done with them: it has ended when its process has.

    Raises Unknown where it lives and its process cannot be told within ``seconds``: it is only just being started;
    Failed where nothing can be told.
    """
    try:
        fd = os.open(config.life(machine_id), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:  # it never was started, or somebody took the file away under it
        return with_removed_file(config.life(machine_id), f"\0guest={machine_id},".encode())
    except OSError as error:
        raise Failed("HostUnreadable", f"whether machine {machine_id} lives cannot be told: {error}") from None
    try:
        deadline = Deadline.after(seconds)
        ending = deadline.capped(_ENDING_SECONDS)
        while True:
            is_locked = _is_locked(fd)
            words = os.pread(fd, 64, 0).split() if is_locked or _is_of_this_boot(fd) else ()
            if len(words) == 2 and (found := process(int(words[0]))) == Process(int(words[0]), int(words[1])):
                if is_locked or ending.passed:
                    return found
            elif not is_locked:
                return None
            if deadline.passed:
                raise Unknown("MachineUnclear", f"machine {machine_id} lives, and its process is not known")
            time.sleep(_POLL_SECONDS)
    finally:
        os.close(fd)


def ids(config: MachineConfig) -> set[str]:
    """The machines, by id, that have a life file."""
    return {path.name.removesuffix(".life") for path in config.state.glob("*.life")}


def _is_locked(fd: int) -> bool:
    """Whether another process has locked the file for itself alone."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def _is_of_this_boot(fd: int) -> bool:
    """Whether a file was written since the host was started: the numbers of processes mean nothing after that."""
    return os.fstat(fd).st_mtime >= time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
