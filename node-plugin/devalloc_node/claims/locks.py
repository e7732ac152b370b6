"""Locks between threads and processes: one file a name, with flock, which goes with its process however it ends."""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from devalloc_node.deadline import Deadline
from devalloc_node.errors import Failed
from devalloc_node.journal.folder import make_private
from devalloc_node.lockfile import is_at

_POLL_SECONDS = (0.001, 0.05)
"""The first and the longest pause between looks at a lock of another process."""


class Locks:
    """Locks below a folder. A thread may hold one of each kind, in this order: ``named``, ``claim``, ``shared``; and
    who cleans a withheld device, that of the device (``shared`` too) before that of what it shares."""

    def __init__(self, folder: Path) -> None:
        make_private(folder)
        self._folder = folder
        self._mutex = threading.Lock()
        self._waiting: dict[str, tuple[threading.Lock, int]] = {}
        """Of this process, by file name: so that threads wait without looking again and again."""

    def claim(self, uid: str, deadline: Deadline) -> AbstractContextManager[None]:
        """Be the only one who works on a claim. Raises Failed (``ClaimBusy``) at the deadline."""
        busy = Failed("ClaimBusy", f"another request works on the claim {uid}; try again")
        return self._held(f"claim-{_hashed(uid)}", deadline, busy)

    def shared(self, name: str, deadline: Deadline) -> AbstractContextManager[None]:
        """Be the only one who changes what is shared. Raises Failed (``SharedBusy``) at the deadline."""
        busy = Failed("SharedBusy", f"another request changes {name}; try again")
        return self._held(f"shared-{_hashed(name)}", deadline, busy)

    def named(self, name: str, deadline: Deadline) -> AbstractContextManager[None]:
        """A lock for who works with several claims, such as on a machine. Raises Failed (``Busy``) at the deadline."""
        busy = Failed("Busy", f"another request works on {name}; try again")
        return self._held(f"named-{_hashed(name)}", deadline, busy)

    def sharing(self) -> bool:
        """Whether somebody changes something shared at this moment."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return False
        for name in names:
            if not name.startswith("shared-"):
                continue
            try:
                descriptor = os.open(self._folder / name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            finally:
                os.close(descriptor)
        return False

    @contextmanager
    def _held(self, name: str, deadline: Deadline, busy: Failed) -> Iterator[None]:
        with self._mutex:
            lock, count = self._waiting.get(name, (threading.Lock(), 0))
            self._waiting[name] = (lock, count + 1)
        try:
            if not lock.acquire(timeout=deadline.seconds):
                raise busy
            try:
                descriptor = self._file(name, deadline, busy)
                try:
                    yield
                finally:
                    # Removed while it is locked: who waits for it notices (below) and makes a new one.
                    (self._folder / name).unlink(missing_ok=True)
                    os.close(descriptor)
            finally:
                lock.release()
        finally:
            with self._mutex:
                lock, count = self._waiting.pop(name)
                if count > 1:
                    self._waiting[name] = (lock, count - 1)

    def _file(self, name: str, deadline: Deadline, busy: Failed) -> int:
        """A descriptor of the file of that name, locked."""
        path, pause = self._folder / name, _POLL_SECONDS[0]
        while True:
            descriptor = self._open(path)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if is_at(descriptor, path):
                    return descriptor
            except BlockingIOError:
                if deadline.passed:
                    os.close(descriptor)
                    raise busy from None
                time.sleep(min(pause, deadline.seconds))
                pause = min(2 * pause, _POLL_SECONDS[1])
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _open(self, path: Path) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            try:
                return os.open(path, flags, 0o600)
            except FileNotFoundError:  # somebody removed the folder
                self._folder.mkdir(mode=0o700, exist_ok=True)
                return os.open(path, flags, 0o600)
        except OSError as error:
            raise Failed("LockUnavailable", f"cannot lock {path}: {error.strerror}") from error


def _hashed(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
