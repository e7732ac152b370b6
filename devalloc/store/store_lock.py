"""A lock on a store: one process at a time runs the loops on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from devalloc.file_lock import FileLock
from devalloc.store.errors import StoreLocked, Unavailable
from devalloc.store.paths import check_private


@contextmanager
def hold_store(store: Path) -> Iterator[Callable[[], bool]]:
    """Hold the lock to run the loops on this store. Raises StoreLocked with the other process's pid, Unavailable.

    Yields a function that checks whether the lock is still valid: if its file is deleted with its folder, another
    process can create and lock a new one.

    It is a kernel lock on ``<store>.lock``, so it ends with the process in any case. The file stays: removing it would
    let two processes lock two different files.
    """
    path = store.with_name(store.name + ".lock")
    check_private(path)
    try:
        lock = FileLock(path)
    except OSError as error:
        raise Unavailable(f"cannot lock the store {store}: {error.strerror}") from error

    def is_held() -> bool:
        try:
            return lock.is_same_file()
        except OSError as error:
            raise Unavailable(f"cannot look at {path}: {error.strerror}") from error

    with lock:
        if not lock.try_lock():
            raise _locked_error(store, lock.read(32))
        lock.write(f"{os.getpid()}\n".encode())
        yield is_held


def _locked_error(store: Path, content: bytes) -> StoreLocked:
    text = content.strip().decode("ascii", "replace")
    pid = int(text) if text.isdecimal() else None
    who = "another process" if pid is None else f"process {pid}"
    stop = "" if pid is None else f" (kill {pid})"
    return StoreLocked(f"{who} already runs devalloc on {store}; stop it first{stop}, or use another store", pid)
