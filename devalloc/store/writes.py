"""Noticing that a file is written to, as the kernel tells it (inotify)."""

from __future__ import annotations

import ctypes
import logging
import os
import select
from pathlib import Path

log = logging.getLogger(__name__)

_MODIFIED = 0x2
"""IN_MODIFY"""
_BUFFER_BYTES = 1 << 16


class Writes:
    """What processes of this host write to one file. For one thread."""

    def __init__(self, path: Path) -> None:
        self._fd = _watched(path)

    @property
    def are_told(self) -> bool:
        """Whether the kernel tells of them: it does not without the file, or beyond the user's number of watches."""
        return self._fd >= 0

    def wait(self, seconds: float) -> bool:
        """Until the file was written to since the last call, or the time is up; whether it was."""
        ready = select.poll()  # select itself knows no descriptors above 1023
        ready.register(self._fd, select.POLLIN)
        if not ready.poll(seconds * 1000):
            return False
        os.read(self._fd, _BUFFER_BYTES)  # equal events that follow each other are one
        return True

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _watched(path: Path) -> int:
    """A descriptor to read events from; -1 where there is none."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    if fd >= 0 and libc.inotify_add_watch(fd, os.fsencode(path), _MODIFIED) >= 0:
        return fd
    log.debug("cannot watch %s for writes: %s", path, os.strerror(ctypes.get_errno()))
    if fd >= 0:
        os.close(fd)
    return -1
