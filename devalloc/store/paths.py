"""The path of the embedded store, the protection of our SQLite files from other users, and the lock on a store: one
process at a time runs the loops on it."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from devalloc.file_lock import FileLock
from devalloc.store.errors import Damaged, StoreLocked, Unavailable, Unusable

STORE_VARIABLE = "DEVALLOC_STORE"
"""Environment variable with the path of the store."""

ROOT_STORE = Path("/var/lib/devalloc/devalloc.db")
"""The default store of root."""

SMALLEST_DATABASE_BYTES = 512
"""SQLite's smallest page."""

FILES = ("", "-wal", "-shm", "-journal", ".lock")
"""Suffixes of file names: the database, SQLite's own files beside it, and the lock of the loops. The file of
``reserve`` has no content, and belongs to the database that currently has the name."""


def default_path(environ: Mapping[str, str] = os.environ, uid: int | None = None) -> Path:
    """``$DEVALLOC_STORE``, or else /var/lib/devalloc/devalloc.db for root, or else below the user's state folder.

    Raises Unusable if the user has no home folder.
    """
    if path := environ.get(STORE_VARIABLE):
        return Path(path).expanduser()
    if (os.geteuid() if uid is None else uid) == 0:
        return ROOT_STORE
    state = Path(environ.get("XDG_STATE_HOME", ""))
    # The XDG specification says to ignore relative paths.
    if not state.is_absolute():
        try:
            state = Path(environ.get("HOME") or Path.home()) / ".local" / "state"
        except RuntimeError:  # a user without an entry in /etc/passwd
            raise Unusable(f"this user has no home folder for the store: set HOME or {STORE_VARIABLE}") from None
    return state / "devalloc" / "devalloc.db"


def as_root() -> str:
    """The command as root, for messages. sudo has a PATH of its own, in which no virtual environment is."""
    script = Path(sys.argv[0])
    is_elsewhere = sys.prefix != sys.base_prefix and script.name.endswith("devalloc")
    return f"sudo {script.absolute() if is_elsewhere else 'devalloc'} …"


def access_error(what: str, error: OSError) -> Unavailable:
    """The error about a file or folder of a store that cannot be used, with what to do if this user has no right to."""
    advice = f"; run as root ({as_root()}), or use a store of your own with --store or {STORE_VARIABLE}"
    return Unavailable(f"{what}: {error.strerror}" + (advice if isinstance(error, PermissionError) else ""))


def prepare_files(path: Path, noun: str = "store") -> None:
    """Create the file (0600) and its folder (0700) if they are missing, and check existing files.

    Raises Unusable if one of them is a link, not a plain file or another user's. It opens and changes no existing file:
    the file may be no store, and closing any descriptor of a database drops the locks that SQLite holds on it elsewhere
    in this process.
    """
    try:
        _make_folder(path.parent)
        for suffix in FILES:
            check_owner(path.with_name(path.name + suffix))
        with suppress(FileExistsError):
            os.mknod(path, stat.S_IFREG | 0o600)
        check_owner(path)
        # SQLite treats a file of one byte as empty and would overwrite it.
        if 0 < path.stat().st_size < SMALLEST_DATABASE_BYTES:
            raise Damaged(f"{path} is not a devalloc {noun}; choose another path, or move the file away")
    except OSError as error:
        raise access_error(f"cannot open the {noun} {path}", error) from error


def wal_path(path: Path) -> Path:
    """SQLite's log beside a database; it exists while the database is open."""
    return path.with_name(f"{path.name}-wal")


def is_read_only(path: Path) -> bool:
    """Whether the file system of the file is mounted read-only."""
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False  # what uses the file reports it


def file_identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of the file at the path; None if there is none. Raises Unavailable."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise access_error(f"cannot read {path}", error) from error
    return status.st_dev, status.st_ino


def make_private(path: Path) -> None:
    """Remove the rights of group and others from a database and the files beside it. Raises as ``check_private``."""
    try:
        for suffix in FILES:
            check_private(path.with_name(path.name + suffix))
    except OSError as error:
        raise access_error(f"cannot protect {path} from other users", error) from error


def check_private(path: Path) -> None:
    """Refuse what ``check_owner`` refuses, and remove the rights of group and others."""
    status = check_owner(path)
    if status is not None and status.st_mode & 0o077:
        path.chmod(0o600)


def check_owner(path: Path) -> os.stat_result | None:
    """Refuse links, other non-plain files, and files of other users. Returns None if there is no file."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "not a plain file"
        raise Unusable(f"{path} is {what}, which devalloc does not use; give the path of the file itself")
    if status.st_uid != os.geteuid():
        how = f"run as root ({as_root()})" if status.st_uid == 0 else "run as that user"
        raise Unusable(
            f"{path} belongs to user {status.st_uid}, not to you ({os.geteuid()}); "
            f"{how}, or use a store of your own with ${STORE_VARIABLE}"
        )
    return status


def prepare_folder(path: Path) -> None:
    """Create the file's folder (0700) if it is missing. Raises Unavailable."""
    try:
        _make_folder(path.parent)
    except OSError as error:
        raise access_error(f"cannot create the folder {path.parent}", error) from error


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


_LOOK_SECONDS = 0.1
"""Who looks whether a store is locked (``is_locked_elsewhere``) shares its lock for less than this."""


@contextmanager
def hold_store(store: Path) -> Iterator[Callable[[], bool]]:
    """Hold the lock to run the loops on this store. Raises StoreLocked with the other process's pid, Unavailable.

    Yields a function that checks whether the lock is still valid: if its file is deleted with its folder, another
    process can create and lock a new one.

    It is a kernel lock on ``<store>.lock``, so it ends with the process in any case. The file stays: removing it would
    let two processes lock two different files.
    """
    path = store.with_name(store.name + ".lock")
    try:
        check_private(path)
        lock = FileLock(path)
    except OSError as error:
        raise access_error(f"cannot lock the store {store}", error) from error

    def is_held() -> bool:
        try:
            return lock.is_same_file()
        except OSError as error:
            raise Unavailable(f"cannot look at {path}: {error.strerror}") from error

    with lock:
        if not lock.lock_within(_LOOK_SECONDS, _LOOK_SECONDS / 10):
            raise _locked_error(store, lock.read(32))
        lock.write(f"{os.getpid()}\n".encode())
        yield is_held


def check_not_held(store: Path) -> None:
    """Raise as ``hold_store`` does, without a lock file beside what may be no store."""
    if store.with_name(store.name + ".lock").exists():
        with hold_store(store):
            pass


def _locked_error(store: Path, content: bytes) -> StoreLocked:
    text = content.strip().decode("ascii", "replace")
    pid = int(text) if text.isdecimal() else None
    who = "another process" if pid is None else f"process {pid}"
    stop = "" if pid is None else f" (kill {pid})"
    return StoreLocked(f"{who} already runs devalloc on {store}; stop it first{stop}, or use another store", pid)
