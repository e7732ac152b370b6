"""Reserved disk space for changes that delete or undo something: a file beside a database, allocated in advance.

Deleting or undoing something needs disk space, too. If the disk is full, such changes use the space of this file, one
piece at a time. Changes that add something never use it; they are refused until the file has its full size again. So a
user who fills the disk cannot prevent the release of devices, and nothing starts that could not be undone.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from devalloc.store.errors import NoSpace, is_disk_full

RESERVE_SUFFIX = ".reserve"
"""Suffix of the file's name, after the database's name."""
RESERVE_BYTES = 2**20
"""Much more than one change needs. Successive changes overwrite the same log: see ``run_with_reserve``."""
_PIECES = 16

Result = TypeVar("Result")


def reserve_path(path: Path) -> Path:
    """The reserve of the database at ``path``."""
    return path.with_name(path.name + RESERVE_SUFFIX)


def is_whole(path: Path) -> bool:
    """Whether the reserve is complete."""
    with suppress(OSError):
        return os.lstat(reserve_path(path)).st_size >= RESERVE_BYTES
    return False


def refill(path: Path) -> bool:
    """Allocate the reserve of the database at ``path`` if there is space; returns whether it has its full size.

    Also True if the file cannot be created for another reason: then the write itself reports the error.
    """
    if is_whole(path):
        return True
    try:
        descriptor = os.open(reserve_path(path), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            before = os.fstat(descriptor).st_size
            try:
                os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
            except OSError:
                os.ftruncate(descriptor, before)  # part of it may already be allocated
                raise
        finally:
            os.close(descriptor)
    except OSError as error:
        return not is_disk_full(error)
    return True


def has_space(folder: Path) -> bool:
    """Whether the file system of that folder has space for one piece of the reserve. Also True if this cannot be tested
    for another reason."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES // _PIECES)
    except OSError as error:
        return not is_disk_full(error)
    return True


def run_with_reserve(path: Path, change: Callable[[], Result], shorten: Callable[[], object] = lambda: None) -> Result:
    """Make a change that deletes or undoes something, with the reserve of the database at ``path`` if the disk is full.
    ``change`` must be atomic, because it is called again after ``shorten``, which writes the log to the database so
    that SQLite starts it again. Raises NoSpace if the reserve is used up, too."""
    tries = 0
    while True:
        try:
            return change()
        except NoSpace as error:
            tries += 1
            # Other processes may fill the disk, or refill the reserve, as fast as this process releases it.
            if tries > 2 * _PIECES or (tries > 1 and not _release_piece(path)):
                raise NoSpace(f"{error}. Its reserve {reserve_path(path)} is used up") from error
            shorten()


def _release_piece(path: Path) -> bool:
    """Return a piece of the reserve to the file system; False if none is left."""
    try:
        descriptor = os.open(reserve_path(path), os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            os.ftruncate(descriptor, max(0, size - RESERVE_BYTES // _PIECES))
        finally:
            os.close(descriptor)
    except OSError:
        return False
    return size > 0
