"""Locks on files and folders, which go with their last holder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def is_at(descriptor: int, path: Path) -> bool:
    """Whether a file that was just locked is still the one of that name: its last holder removed it while it was
    locked, and then the lock is worth nothing. Whoever sees that opens the name anew."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    mine = os.fstat(descriptor)
    return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)


def take(descriptor: int) -> bool:
    """Lock what it leads to, or say that somebody else has it locked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def holder_of(descriptor: int) -> str:
    """Who has it locked, for people: ``process 4242 (devalloc)``, as far as the kernel tells."""
    found = os.fstat(descriptor)
    inode = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()  # 1: FLOCK ADVISORY WRITE 4242 fe:00:131 0 EOF
            if words[1:2] == ["FLOCK"] and words[5:6] == [inode] and words[4].isdecimal() and words[4] != "0":
                name = Path(f"/proc/{words[4]}/comm").read_text(errors="replace").strip()
                return f"process {words[4]} ({name})"
    except OSError:
        pass
    return "another process"
