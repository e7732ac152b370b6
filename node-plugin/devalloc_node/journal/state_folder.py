"""The state folder, and what happens to an unreadable journal."""

from __future__ import annotations

import os
import stat
from datetime import datetime
from pathlib import Path

from devalloc.file_lock import FileLock
from devalloc.store.errors import Unavailable, Unusable
from devalloc.store.paths import FILES
from devalloc_node.journal import wal_check

_DAMAGED = ".damaged-"


def make_private(folder: Path) -> None:
    """Make a private folder (0700), or make an existing one private. Raises Unusable, Unavailable."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = folder.lstat()
        if not stat.S_ISDIR(info.st_mode):
            raise Unusable(f"{folder} is a link or not a folder; give the path of the state folder itself")
        if info.st_uid != os.geteuid():
            raise Unusable(f"the state folder {folder} belongs to user {info.st_uid}, not to you ({os.geteuid()})")
        if info.st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        raise Unavailable(f"cannot create the state folder {folder}: {error.strerror}") from error


def open_lock(folder: Path) -> FileLock:
    """The lock that each process holds (shared) while it has the journal open. Raises OSError."""
    return FileLock(folder / "journal.lock")


def missing_wal(path: Path, lock: FileLock) -> str | None:
    """What is missing of the log of a journal that no process has open, for people; None for nothing.

    A process that has it open checked it before. Leaves the lock exclusive or shared. Raises
    Unavailable.
    """
    for _ in range(2):
        if not lock.try_lock():
            # Another process that has it alone may only be looking: wait, and look again.
            lock.lock(shared=True)
            continue
        try:
            return wal_check.wal_damage(path)
        except OSError as error:
            raise Unavailable(f"cannot read the journal {path}: {error.strerror}") from error
    return None


def damaged_journals(path: Path) -> list[Path]:
    """The databases that ``move_aside`` has renamed and that are still there, the latest last."""
    ends = tuple(end for end in FILES if end)
    return sorted(file for file in path.parent.glob(f"{path.name}{_DAMAGED}*") if not file.name.endswith(ends))


def move_aside(path: Path, now: datetime) -> Path:
    """Rename a database and what SQLite keeps beside it; the new path of the database."""
    stamp = f"{now:%Y%m%dT%H%M%SZ}"
    number = 0
    while (aside := path.with_name(f"{path.name}{_DAMAGED}{stamp}" + (f"-{number}" if number else ""))).exists():
        number += 1
    # The database last: where this is cut off, the damaged file is still there to be found and moved.
    for suffix in reversed([end for end in FILES if end != ".lock"]):
        file = path.with_name(path.name + suffix)
        if file.exists():
            file.rename(aside.with_name(aside.name + suffix))
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return aside
