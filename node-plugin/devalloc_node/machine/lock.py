"""One change of a machine at a time, between threads and between processes (two plugins in a rolling update)."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from devalloc_node.deadline import Deadline
from devalloc_node.errors import Failed

_POLL_SECONDS = 0.02


class MachineLocks:
    """Locks by name, below a folder. A thread may take one again that it has."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mutex = threading.Lock()
        self._threads: dict[str, threading.RLock] = {}
        self._depth: dict[str, int] = {}

    @contextmanager
    def held(self, name: str, deadline: Deadline) -> Iterator[None]:
        """Raises Failed (``MachineBusy``) at the deadline."""
        with self._mutex:
            lock = self._threads.setdefault(name, threading.RLock())
        busy = Failed("MachineBusy", f"another change of machine {name} is under way; try again")
        if not lock.acquire(timeout=deadline.seconds):
            raise busy
        try:
            if self._depth.get(name):
                yield
                return
            fd = self._file(name, deadline, busy)
            self._depth[name] = 1
            try:
                yield
            finally:
                self._depth[name] = 0
                os.close(fd)
        finally:
            lock.release()

    def _file(self, name: str, deadline: Deadline, busy: Failed) -> int:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The file stays: its name has a hash of the machine's, and there are never many.
        fd = os.open(self._folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return fd
            except BlockingIOError:
                if deadline.passed:
                    os.close(fd)
                    raise busy from None
                time.sleep(_POLL_SECONDS)
