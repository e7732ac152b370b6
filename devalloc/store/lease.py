"""One process at a time runs the loops on a store."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from devalloc.store.errors import Held, Unavailable
from devalloc.store.paths import check_private, file_at


@contextmanager
def hold(store: Path) -> Iterator[Callable[[], bool]]:
    """Be the one process that runs the loops on this store. Raises Held, naming the other process's pid.

    Gives a function that says whether it still is: the lock's file may go with its folder, and then another process can
    make one of its own.

    The lock is the kernel's, on ``<store>.lock``, so that it goes with the process however that ends. The file stays:
    removing it would let two processes lock two different files.
    """
    path = store.with_name(store.name + ".lock")
    check_private(path)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Unavailable(f"cannot lock the store {store}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _held(store, os.pread(descriptor, 32, 0)) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        locked = os.fstat(descriptor)
        yield lambda: file_at(path) == (locked.st_dev, locked.st_ino)
    finally:
        os.close(descriptor)


def _held(store: Path, content: bytes) -> Held:
    text = content.strip().decode("ascii", "replace")
    pid = int(text) if text.isdecimal() else None
    who = "another process" if pid is None else f"process {pid}"
    stop = "" if pid is None else f" (kill {pid})"
    return Held(f"{who} runs devalloc on {store} already; stop it first{stop}, or use another store", pid)
