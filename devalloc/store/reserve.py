"""Disk space in reserve for changes that delete or undo something: a file beside a database, allocated in advance.

What deletes or undoes something has to be written down too. If the disk is full, that takes its space from this file,
one piece at a time. What adds something never does, and is refused until the file has its whole size again. So somebody
who fills the disk cannot keep what they hold from being taken away, and nothing new is begun that could not be undone.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from devalloc.store.errors import NoSpace, is_disk_full

END = ".reserve"
"""End of the file's name, behind that of the database."""
BYTES = 2**20
"""Much more than one change takes. Changes that follow each other write over the same log: see ``spend``."""
_PIECES = 16

Result = TypeVar("Result")


def file_of(path: Path) -> Path:
    """The reserve of the database at ``path``."""
    return path.with_name(path.name + END)


def is_whole(path: Path) -> bool:
    """Whether nothing of the reserve is spent."""
    with suppress(OSError):
        return os.lstat(file_of(path)).st_size >= BYTES
    return False


def refill(path: Path) -> bool:
    """Allocate the reserve of the database at ``path`` if there is room; whether it has its whole size.

    True also if no such file can be made for another reason: then the write itself says what is wrong.
    """
    if is_whole(path):
        return True
    try:
        descriptor = os.open(file_of(path), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            before = os.fstat(descriptor).st_size
            try:
                os.posix_fallocate(descriptor, 0, BYTES)
            except OSError:
                os.ftruncate(descriptor, before)  # a part of it may have been allocated
                raise
        finally:
            os.close(descriptor)
    except OSError as error:
        return not is_disk_full(error)
    return True


def is_space(folder: Path) -> bool:
    """Whether the file system of that folder has space for as much as one piece of the reserve. True also if that
    cannot be tried for another reason."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, BYTES // _PIECES)
    except OSError as error:
        return not is_disk_full(error)
    return True


def spend(path: Path, change: Callable[[], Result], shorten: Callable[[], object] = lambda: None) -> Result:
    """Make a change that deletes or undoes something, with the reserve of the database at ``path`` if there is no other
    space. ``change`` does all or nothing, and is called again, after ``shorten``: write the log to the database, so
    that SQLite begins it again. Raises NoSpace if the reserve is used up too."""
    tries = 0
    while True:
        try:
            return change()
        except NoSpace as error:
            tries += 1
            # Other processes may fill the disk, or refill the reserve, as fast as this one releases it.
            if tries > 2 * _PIECES or (tries > 1 and not _release(path)):
                raise NoSpace(f"{error}. Its reserve {file_of(path)} is used up") from error
            shorten()


def _release(path: Path) -> bool:
    """Give a piece of the reserve back to the file system; False if there is none."""
    try:
        descriptor = os.open(file_of(path), os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            os.ftruncate(descriptor, max(0, size - BYTES // _PIECES))
        finally:
            os.close(descriptor)
    except OSError:
        return False
    return size > 0
