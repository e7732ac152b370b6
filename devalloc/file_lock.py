"""Locks on files and folders, held by an open file (flock).

The kernel releases a lock when the last process that has the file open ends, however it ends. So no lock survives a
crash, and a lock file that is left behind means nothing. All versions of devalloc use the same files and the same kind
of lock: an old process and a new one exclude each other.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Self


class FileLock:
    """An open lock file, locked or not. Two of them exclude each other, also in one process and one thread.

    The callers decide how long they wait, what they report, and whether they remove the file.
    """

    def __init__(self, path: Path) -> None:
        """Open the file, and make it (0600) if it is missing; a symbolic link is refused. Raises OSError."""
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    @classmethod
    def existing(cls, path: Path) -> Self:
        """The same for a file that must be there. Raises FileNotFoundError, and other OSErrors."""
        return cls._opened(path, os.O_RDWR | os.O_NOFOLLOW)

    @classmethod
    def of_folder(cls, path: Path) -> Self:
        """A lock on a folder itself, which a link may lead to. Raises OSError."""
        return cls._opened(path, os.O_RDONLY | os.O_DIRECTORY)

    @classmethod
    def _opened(cls, path: Path, flags: int) -> Self:
        lock = cls.__new__(cls)
        lock.path, lock._descriptor = path, os.open(path, flags | os.O_CLOEXEC)
        return lock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock, and close the file. Again it does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def fileno(self) -> int:
        """The descriptor, for what the other methods do not offer."""
        return self._descriptor

    def try_lock(self, *, shared: bool = False) -> bool:
        """Lock it, alone or ``shared`` with others that do the same; False if another holder excludes that.

        A lock of the other kind is converted. The kernel releases it first, so another process may get in between, and
        nothing is locked if that happened.
        """
        try:
            fcntl.flock(self._descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def lock(self, *, shared: bool = False) -> None:
        """Lock it as ``try_lock`` does, and wait for other holders as long as that takes."""
        fcntl.flock(self._descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)

    def lock_within(self, seconds: float, poll_seconds: float) -> bool:
        """Lock it alone, and look again every ``poll_seconds``; False if another holder still has it at the end."""
        deadline = time.monotonic() + seconds
        while not self.try_lock():
            if time.monotonic() >= deadline:
                return False
            time.sleep(poll_seconds)
        return True

    def unlock(self) -> None:
        """Release the lock; the file stays open."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def is_locked_elsewhere(self) -> bool:
        """Whether another holder has locked it alone. Leaves this one unlocked."""
        if not self.try_lock(shared=True):
            return True
        self.unlock()
        return False

    def is_same_file(self) -> bool:
        """Whether the path still leads to this file.

        If not, its last holder removed it, and the lock is worth nothing: others lock the file that has the name now.
        Raises OSError.
        """
        try:
            at_path = self.path.lstat()
        except FileNotFoundError:
            return False
        return os.path.samestat(at_path, os.fstat(self._descriptor))

    def read(self, size: int) -> bytes:
        """The first ``size`` bytes of what a holder wrote. Raises OSError."""
        return os.pread(self._descriptor, size, 0)

    def write(self, content: bytes) -> None:
        """Replace the content of the file, to say who holds it. Raises OSError."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, content, 0)

    def holder(self) -> str:
        """Who has it locked, for people: ``process 4242 (devalloc)``, or ``another process`` if the kernel does not
        tell."""
        info = os.fstat(self._descriptor)
        inode = f"{os.major(info.st_dev):02x}:{os.minor(info.st_dev):02x}:{info.st_ino}"
        try:
            for line in Path("/proc/locks").read_text().splitlines():
                words = line.split()  # 1: FLOCK ADVISORY WRITE 4242 fe:00:131 0 EOF
                if words[1:2] == ["FLOCK"] and words[5:6] == [inode] and words[4].isdecimal() and words[4] != "0":
                    name = Path(f"/proc/{words[4]}/comm").read_text(errors="replace").strip()
                    return f"process {words[4]} ({name})"
        except OSError:
            pass
        return "another process"
