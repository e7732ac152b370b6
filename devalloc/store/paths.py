"""Where the embedded store lives, and that nobody else can read it or another SQLite file of ours, or replace it."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from devalloc.store.errors import Damaged, Unavailable, Unusable

ENVIRONMENT = "DEVALLOC_STORE"
"""Environment variable with the path of the store."""

SMALLEST_DATABASE_BYTES = 512
"""SQLite's smallest page."""

FILES = ("", "-wal", "-shm", "-journal", ".lock")
"""Ends of names: the database, what SQLite keeps beside it, and the lock of the loops. The file of ``reserve`` holds
nothing, and belongs to whatever database has the name."""


def default_path(environ: Mapping[str, str] = os.environ, uid: int | None = None) -> Path:
    """``$DEVALLOC_STORE``, else /var/lib/devalloc/devalloc.db for root, else below the user's state folder.

    Raises Unusable if the user has no home folder.
    """
    if path := environ.get(ENVIRONMENT):
        return Path(path).expanduser()
    if (os.geteuid() if uid is None else uid) == 0:
        return Path("/var/lib/devalloc/devalloc.db")
    state = Path(environ.get("XDG_STATE_HOME", ""))
    # The XDG rules say that a relative path is to be ignored.
    if not state.is_absolute():
        try:
            state = Path(environ.get("HOME") or Path.home()) / ".local" / "state"
        except RuntimeError:  # a user without an entry in /etc/passwd
            raise Unusable(f"this user has no home folder to keep a store in: set HOME or {ENVIRONMENT}") from None
    return state / "devalloc" / "devalloc.db"


def prepare(path: Path, noun: str = "store") -> None:
    """Make the file's folder (0700) and file (0600) where missing, and check the files that are there.

    Raises Unusable when one of them is a link, not a plain file or another user's. No file is opened for that: closing
    any descriptor of a database drops the locks that SQLite holds on it elsewhere in this process.
    """
    try:
        _make_folder(path.parent)
        for suffix in FILES:
            check_private(path.with_name(path.name + suffix))
        with suppress(FileExistsError):
            os.mknod(path, stat.S_IFREG | 0o600)
        check_private(path)
        # SQLite takes a file of one byte for an empty one and would write over it.
        if 0 < path.stat().st_size < SMALLEST_DATABASE_BYTES:
            raise Damaged(f"{path} is not a devalloc {noun}; choose another path, or move the file away")
    except OSError as error:
        raise Unavailable(f"cannot open the {noun} {path}: {error.strerror}") from error


def log_of(path: Path) -> Path:
    """SQLite's log beside a database, which is there as long as somebody has that open."""
    return path.with_name(f"{path.name}-wal")


def file_at(path: Path) -> tuple[int, int] | None:
    """Which file has the name, as device and inode; None where none has. Raises Unavailable."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unavailable(f"cannot look at {path}: {error.strerror}") from error
    return found.st_dev, found.st_ino


def check_private(path: Path) -> None:
    """Refuse a link, anything but a plain file, and another user's file; take rights away from group and others."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "not a plain file"
        raise Unusable(f"{path} is {what}, which devalloc does not follow; give the path of the file itself")
    if found.st_uid != os.geteuid():
        raise Unusable(
            f"{path} belongs to user {found.st_uid}, not to you ({os.geteuid()}); "
            f"use a store of your own with ${ENVIRONMENT} or run as that user"
        )
    if found.st_mode & 0o077:
        path.chmod(0o600)


def prepare_folder(path: Path) -> None:
    """Make the file's folder (0700) where missing. Raises Unavailable."""
    try:
        _make_folder(path.parent)
    except OSError as error:
        raise Unavailable(f"cannot make the folder {path.parent}: {error.strerror}") from error


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
