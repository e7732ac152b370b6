"""Detecting writes to a file with inotify."""

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


class FileWatch:
    """Writes to one file by processes of this host. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        self._fd = _open_inotify(path)

    @property
    def is_supported(self) -> bool:
        """Whether the kernel reports them: not without the file, or beyond the user's limit of watches."""
        return self._fd >= 0

    def wait(self, seconds: float) -> bool:
        """Wait until the file was written since the last call, or until the time is up; returns whether it was."""
        ready = select.poll()  # select() does not support descriptors above 1023
        ready.register(self._fd, select.POLLIN)
        if not ready.poll(seconds * 1000):
            return False
        os.read(self._fd, _BUFFER_BYTES)  # consecutive equal events are merged
        return True

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _open_inotify(path: Path) -> int:
    """A descriptor from which to read events; -1 if there is none."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    if fd >= 0 and libc.inotify_add_watch(fd, os.fsencode(path), _MODIFIED) >= 0:
        return fd
    log.debug("cannot watch %s for writes: %s", path, os.strerror(ctypes.get_errno()))
    if fd >= 0:
        os.close(fd)
    return -1
