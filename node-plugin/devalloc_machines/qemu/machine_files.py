"""The files of machines: where they are, and what QEMU and the guest have written there.

A machine's own files are the lock that QEMU holds while it runs, and the logs of QEMU and the guest: these are read
and emptied with care.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from devalloc.file_lock import FileLock
from devalloc_machines.qemu.process import Process, process, with_removed_file
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Failed, Unknown

MAX_SOCKET_PATH = 107
"""Bytes of a path that a socket can be bound to."""


def file_state(path: str) -> tuple[int, ...]:
    """Something else as soon as a file comes, goes, is another one or is written to."""
    try:
        info = os.stat(path)
    except OSError as error:
        return (error.errno or 0,)
    except ValueError:  # no path at all
        return ()
    return info.st_dev, info.st_ino, info.st_mode, info.st_uid, info.st_size, info.st_mtime_ns


_POLL_SECONDS = 0.05
_ENDING_SECONDS = 0.2
"""For a process that has given up all it had to be gone."""


def process_of(machine_id: str, config: MachineConfig, seconds: float = 2.0) -> Process | None:
    """The process of a machine that runs; None if none does.

    Its lock of its life file proves that it lives. Without the lock it may still be ending, and holds devices until
    the kernel is done with them: it has ended when its process has.

    Raises Unknown if it lives and its process cannot be told within ``seconds``: it is only just being started;
    Failed if nothing can be told.
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


@contextmanager
def opened_log(path: Path) -> Iterator[int]:
    """A log, which its QEMU's user can replace: no link is followed, and nothing but a file is read. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(0, "it is not a file")
        yield file
    finally:
        os.close(file)


def last_words(config: MachineConfig, machine_id: str, name: str = "qemu.log") -> str:
    """The end of a log of the machine, as one line; empty if it cannot be read."""
    try:
        with opened_log(config.folder(machine_id) / name) as file:
            begin = max(0, os.fstat(file).st_size - _TAIL_BYTES)
            text = os.pread(file, _TAIL_BYTES, begin).decode(errors="replace")
    except OSError:
        return ""
    return " / ".join(line for line in "".join(c if c.isprintable() else "\n" for c in text).split("\n") if line)


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


def write_synced(path: Path, content: bytes) -> None:
    """Write a file that is the plugin's own user's alone, and have it on the disk. Raises OSError."""
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600)) as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())


def sync_folder(folder: Path) -> None:
    """Have on the disk what a folder contains. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove_folder(folder: Path) -> None:
    """Remove a folder of a machine that is deleted; it may be gone. Raises Failed (``HostRefused``)."""
    try:
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)
    except OSError as error:
        raise Failed("HostRefused", f"cannot remove {folder} of a deleted machine: {error.strerror}") from None
