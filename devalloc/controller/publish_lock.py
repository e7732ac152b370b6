"""A lock that decides which process publishes a node's devices: one at a time, and the one that knows more goes first.

``devalloc up`` without the node plugin and ``devalloc node`` may both run on a machine and its store. The node plugin
knows what is prepared, broken or withheld, so it publishes while it runs, and the other when it does not. The locks are
the kernel's, so that they go with the process however that ends.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from devalloc.file_lock import FileLock
from devalloc.store import Unavailable
from devalloc.store.paths import check_private


class PublishLock:
    """One process's part in it. Use from one thread, but for ``is_wanted``."""

    def __init__(self, store: Path, node_name: str, *, first: bool) -> None:
        """``first``: others stop publishing for this one, as long as it is not closed. Raises Unavailable."""
        name = hashlib.sha256(node_name.encode()).hexdigest()[:12]
        self._path = store.with_name(f"{store.name}.{name}.publish.lock")
        self._wanted_path = store.with_name(f"{store.name}.{name}.first.lock")
        self._first = first
        self._lock = _open_lock_file(self._path)
        try:
            self._wanted = _open_lock_file(self._wanted_path)
        except BaseException:
            self._lock.close()
            raise
        if first:
            self._wanted.lock(shared=True)

    def take(self) -> bool:
        """Whether it is our turn now, and is from here on."""
        return not self.is_yield_requested() and self._lock.try_lock()

    def is_yield_requested(self) -> bool:
        """Whether another publisher has precedence. From any thread."""
        if self._first:
            return False
        try:
            with _open_lock_file(self._wanted_path) as probe:
                return not probe.try_lock()
        except Unavailable:  # the folder is gone, and with it whatever another process could say there
            return False

    def give(self) -> None:
        """Let others have it."""
        self._lock.unlock()

    def close(self) -> None:
        """Release the lock for others."""
        self._wanted.close()
        self._lock.close()


def _open_lock_file(path: Path) -> FileLock:
    check_private(path)
    try:
        return FileLock(path)
    except OSError as error:
        raise Unavailable(f"cannot open {path}: {error.strerror}") from error
