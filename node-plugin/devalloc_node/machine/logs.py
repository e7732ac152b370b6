"""What QEMU and the guest of a machine have written, which is theirs: it is read and emptied with care."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from devalloc_node.machine.config import MachineConfig

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
