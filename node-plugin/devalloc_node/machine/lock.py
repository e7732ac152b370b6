"""One change of a machine at a time, between threads and between processes (two plugins in a rolling update)."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from devalloc_node.deadline import Deadline
from devalloc_node.errors import Failed
from devalloc_node.lockfile import is_at

_POLL_SECONDS = 0.02


class MachineLocks:
    """Locks by name, below a folder. A thread may take one again that it has."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mutex = threading.Lock()
        self._threads: dict[str, tuple[threading.RLock, int]] = {}
        """Of this process, with how many hold or wait for it."""
        self._taken: set[str] = set()
        """Those that a thread of this process has."""

    @contextmanager
    def held(self, name: str, deadline: Deadline) -> Iterator[None]:
        """Raises Failed (``MachineBusy``) at the deadline, and where a lock cannot be had at all."""
        busy = Failed("MachineBusy", f"another change of machine {name} is under way; try again")
        with self._mutex:
            lock, count = self._threads.get(name, (threading.RLock(), 0))
            self._threads[name] = (lock, count + 1)
        try:
            if not lock.acquire(timeout=deadline.seconds):
                raise busy
            try:
                with self._between_processes(name, deadline, busy):
                    yield
            finally:
                lock.release()
        finally:
            with self._mutex:
                lock, count = self._threads.pop(name)
                if count > 1:
                    self._threads[name] = (lock, count - 1)

    @contextmanager
    def _between_processes(self, name: str, deadline: Deadline, busy: Failed) -> Iterator[None]:
        if name in self._taken:
            yield
            return
        fd = self._file(name, deadline, busy)
        self._taken.add(name)
        try:
            yield
        finally:
            self._taken.discard(name)
            # Removed while it is locked: who waits for it notices (below) and makes a new one.
            with suppress(OSError):
                self._path(name).unlink(missing_ok=True)
            os.close(fd)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.lock"

    def _file(self, name: str, deadline: Deadline, busy: Failed) -> int:
        path = self._path(name)
        while True:
            try:
                self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise Failed("LockUnavailable", f"cannot lock {path}: {error.strerror}") from error
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if is_at(fd, path):
                    return fd
            except BlockingIOError:
                if deadline.passed:
                    os.close(fd)
                    raise busy from None
                time.sleep(_POLL_SECONDS)
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)
