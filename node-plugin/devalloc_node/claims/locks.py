"""Locks between threads and processes: one file a name, with flock, which goes with its process however it ends."""

from __future__ import annotations

import hashlib
import os
from contextlib import AbstractContextManager
from pathlib import Path

from devalloc.file_lock import FileLock
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Failed
from devalloc_node.host.lock_folder import LockFolder
from devalloc_node.journal.state_folder import make_private


class ClaimLocks:
    """Locks below a folder, each held for ``work``, in words. A thread may hold one of each kind, in this order:
    ``named``, ``claim``, ``shared``; and who cleans a withheld device, that of the device (``shared`` too) before that
    of what it shares."""

    def __init__(self, folder: Path) -> None:
        make_private(folder)
        self._folder = folder
        self._locks = LockFolder(folder)

    def claim(self, uid: str, deadline: Deadline, work: str) -> AbstractContextManager[None]:
        """Be the only one who works on a claim. Raises Failed (``ClaimBusy``) at the deadline."""
        return self._locks.held(
            f"claim-{_hashed(uid)}", deadline, work, lambda why: Failed("ClaimBusy", f"claim {uid} is busy: {why}")
        )

    def shared(self, name: str, deadline: Deadline, work: str) -> AbstractContextManager[None]:
        """Be the only one who changes what is shared. Raises Failed (``SharedBusy``) at the deadline."""
        return self._locks.held(
            f"shared-{_hashed(name)}", deadline, work, lambda why: Failed("SharedBusy", f"{name} is busy: {why}")
        )

    def named(self, name: str, deadline: Deadline, work: str) -> AbstractContextManager[None]:
        """A lock for who works with several claims, such as on a machine. Raises Failed (``Busy``) at the deadline."""
        return self._locks.held(
            f"named-{_hashed(name)}",
            deadline,
            work,
            lambda why: Failed("Busy", f"{name.replace('/', ' ', 1)} is busy: {why}"),
        )

    def sharing(self) -> bool:
        """Whether a call changes something shared at this moment."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return False
        for name in names:
            if not name.startswith("shared-"):
                continue
            try:
                with FileLock.existing(self._folder / name) as lock:
                    if lock.is_locked_elsewhere():
                        return True
            except FileNotFoundError:
                continue
        return False


def _hashed(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
