"""What QEMU and the guest of a machine have written, which is theirs: it is read and emptied with care.

A machine's own files: the lock that QEMU holds while it runs, and the logs of QEMU and the guest.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress

from devalloc.file_lock import FileLock
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Failed, Unknown
from devalloc_node.machine.paths import MachineConfig
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
        life = FileLock.existing(config.life(machine_id))
    except FileNotFoundError:  # it was never started, or the file was removed
        return with_removed_file(config.life(machine_id), f"\0guest={machine_id},".encode())
    except OSError as error:
        raise Failed("HostUnreadable", f"cannot check whether machine {machine_id} lives: {error}") from None
    with life:
        deadline = Deadline.after(seconds)
        ending = deadline.capped(_ENDING_SECONDS)
        while True:
            is_locked = life.is_locked_elsewhere()
            words = life.read(64).split() if is_locked or _is_of_this_boot(life) else ()
            if len(words) == 2 and (qemu := process(int(words[0]))) == Process(int(words[0]), int(words[1])):
                if is_locked or ending.passed:
                    return qemu
            elif not is_locked:
                return None
            if deadline.passed:
                raise Unknown("MachineUnclear", f"machine {machine_id} lives, but its process is unknown")
            time.sleep(_POLL_SECONDS)


def machine_ids(config: MachineConfig) -> set[str]:
    """The machines, by id, that have a life file."""
    return {path.name.removesuffix(".life") for path in config.state.glob("*.life")}


def _is_of_this_boot(life: FileLock) -> bool:
    """Whether a file was written since the host was started: the numbers of processes mean nothing after that."""
    return os.fstat(life.fileno()).st_mtime >= time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


_TAIL_BYTES = 2000


def last_words(config: MachineConfig, machine_id: str, name: str = "qemu.log") -> str:
    """The end of a log of the machine, as one line. The file is its user's, so links are not followed."""
    try:
        fd = os.open(config.folder(machine_id) / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            return ""
        text = os.pread(fd, _TAIL_BYTES, max(0, info.st_size - _TAIL_BYTES)).decode(errors="replace")
        return " / ".join(line for line in "".join(c if c.isprintable() else "\n" for c in text).split("\n") if line)
    finally:
        os.close(fd)


def trim(config: MachineConfig, machine_id: str) -> None:
    """Empty logs that a guest has filled; QEMU appends, so it goes on at the start."""
    folder = str(config.folder(machine_id))
    for name in ("console.log", "qemu.log"):
        path = f"{folder}/{name}"
        with suppress(OSError):
            if os.lstat(path).st_size <= config.log_bytes:  # nearly always: this is done for all, again and again
                continue
            fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                info = os.fstat(fd)
                if stat.S_ISREG(info.st_mode) and info.st_size > config.log_bytes:
                    os.ftruncate(fd, 0)
            finally:
                os.close(fd)
