"""Whose turn it is to publish a node's devices: one process at a time, and who knows more of them goes first.

``devalloc up`` without the node plugin and ``devalloc node`` may both run on a machine and its store. The node plugin
knows what is prepared, broken or withheld, so it publishes while it runs, and the other when it does not. The locks are
the kernel's, so that they go with the process however that ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path

from devalloc.store import Unavailable
from devalloc.store.paths import check_private


class Turn:
    """One process's part in it. Use from one thread, but for ``is_wanted``."""

    def __init__(self, store: Path, node_name: str, *, first: bool) -> None:
        """``first``: others stop publishing for this one, as long as it is not closed. Raises Unavailable."""
        name = hashlib.sha256(node_name.encode()).hexdigest()[:12]
        self._path = store.with_name(f"{store.name}.{name}.publish.lock")
        self._wanted_path = store.with_name(f"{store.name}.{name}.first.lock")
        self._first = first
        self._lock = _open(self._path)
        try:
            self._wanted = _open(self._wanted_path)
        except BaseException:
            os.close(self._lock)
            raise
        if first:
            fcntl.flock(self._wanted, fcntl.LOCK_SH)

    def take(self) -> bool:
        """Whether it is our turn now, and is from here on."""
        return not self.is_wanted() and _try(self._lock)

    def is_wanted(self) -> bool:
        """Whether somebody goes before us. From any thread."""
        if self._first:
            return False
        try:
            probe = _open(self._wanted_path)  # a lock belongs to an open file: closing it gives it back
        except Unavailable:  # the folder is gone, and with it whatever another process could say there
            return False
        try:
            return not _try(probe)
        finally:
            os.close(probe)

    def give(self) -> None:
        """Let others have it."""
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give it back, and stand in nobody's way."""
        os.close(self._wanted)
        os.close(self._lock)


def _try(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open(path: Path) -> int:
    check_private(path)
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Unavailable(f"cannot open {path}: {error.strerror}") from error
