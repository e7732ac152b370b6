"""SQLite files: safe opening, their schemas and migration, and errors that say what to do.

A schema has one step for each release that changed it. Released steps are never edited. Steps run in order, each in its
own transaction, so a crash leaves the schema of the last complete step. ``PRAGMA user_version`` is the number of
completed steps. If it is higher than this program knows, a newer version wrote the file, which then stays unchanged.

The store has no event log: a watch reads objects by their resourceVersion, and deletions from ``tombstones``.

Deleting or undoing something needs disk space, too. If the disk is full, such changes use the space of a file beside
the database, the reserve, one piece at a time. Changes that add something never use it; they are refused until the file
has its full size again. So a user who fills the disk cannot prevent the release of devices, and nothing starts that
could not be undone.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from devalloc.store.errors import Damaged, NoSpace, StoreError, Unavailable, Unusable, is_disk_full
from devalloc.store.paths import check_private, file_identity, is_read_only, make_private, prepare_files

log = logging.getLogger(__name__)

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


APPLICATION_ID = 0x64_76_61_6C
"""``PRAGMA application_id`` of our files: "dval"."""

STORE_STEPS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE objects (
            kind TEXT NOT NULL,
            namespace TEXT NOT NULL,         -- '' for cluster-scoped objects
            name TEXT NOT NULL,
            version INTEGER NOT NULL,        -- metadata.resourceVersion
            created_version INTEGER NOT NULL,
            spec_version INTEGER NOT NULL,   -- resourceVersion of the last change of spec, the creation included
            status_version INTEGER NOT NULL, -- resourceVersion of the last change of status, 0 for never
            content TEXT NOT NULL,           -- the manifest as JSON
            PRIMARY KEY (kind, namespace, name)
        )
        """,
        "CREATE UNIQUE INDEX objects_version ON objects (version)",
        """
        CREATE TABLE tombstones (
            version INTEGER PRIMARY KEY,     -- resourceVersion of the deletion
            kind TEXT NOT NULL,
            content TEXT NOT NULL            -- the manifest as it was last
        )
        """,
        "CREATE INDEX tombstones_kind ON tombstones (kind, version)",
        """
        CREATE TABLE counter (
            id INTEGER PRIMARY KEY CHECK (id = 1),
            version INTEGER NOT NULL,        -- the newest resourceVersion
            forgotten INTEGER NOT NULL       -- tombstones up to this resourceVersion are gone
        )
        """,
        "INSERT INTO counter VALUES (1, 0, 0)",
    ),
    (
        # A manual copy is the same store; a store from `restore`, and a new file at the same path, are different ones.
        "CREATE TABLE identity (id INTEGER PRIMARY KEY CHECK (id = 1), value TEXT NOT NULL)",
        "INSERT INTO identity VALUES (1, lower(hex(randomblob(16))))",
    ),
)


@dataclass(frozen=True)
class Schema:
    """A type of SQLite file."""

    noun: str
    """Its name in messages, such as "the store is damaged"."""
    application_id: int
    """``PRAGMA application_id`` of such files."""
    steps: tuple[tuple[str, ...], ...]
    damaged: str
    """What to do if it is damaged; ``{name}`` stands for its file name."""
    full: str
    """A sentence about what still works if the disk is full."""


STORE_SCHEMA = Schema(
    "store",
    APPLICATION_ID,
    STORE_STEPS,
    "Stop devalloc, and run `devalloc restore` with the last backup of `devalloc backup`; it keeps {name} for "
    "inspection",
    "Objects can still be deleted, but not created or made larger.",
)


def migrate(connection: sqlite3.Connection, schema: Schema) -> None:
    """Update the schema. The caller has checked that it is not newer."""
    try:
        while True:
            _begin_write(connection)
            # Read it before each step: another process may have run this or later steps while we had no lock.
            (done,) = connection.execute("PRAGMA user_version").fetchone()
            if done >= len(schema.steps):
                connection.execute("COMMIT")
                return
            for statement in schema.steps[done]:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {done + 1}")
            connection.execute(f"PRAGMA application_id = {schema.application_id}")
            connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


BUSY_SECONDS = 30.0
"""How long a write waits for writes of other processes, in seconds."""
_NOTICE_SECONDS = 2.0
"""Seconds after which a write logs that it waits."""
_WAL_LIMIT_BYTES = 16 * 2**20
_WRITE_ERRORS = (sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_TRUNCATE)
"""SQLite's error if a quota is used up (EDQUOT), and if the disk fails."""


def open_database(path: Path, schema: Schema) -> sqlite3.Connection:
    """A connection for reading and writing, with the current schema. Raises Unusable, Unavailable.

    If the disk is full, it uses the reserve, because SQLite creates files beside the database. On a read-only file
    system the connection only reads, and its writes raise Unavailable. So does opening if SQLite would have to create
    the files of the log: if no process has the database open. A backup has no log.
    """
    prepare_files(path, schema.noun)
    check_private(reserve_path(path))
    if is_read_only(path):
        return _opened_for_reading(path, schema)
    connection = run_with_reserve(path, lambda: _opened(path, schema))
    refill(path)
    return connection


def _opened_for_reading(path: Path, schema: Schema) -> sqlite3.Connection:
    with translate_errors(path, schema):
        connection = _connect(path)
        try:
            _refuse_foreign(connection, path, schema)
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version < len(schema.steps):
                raise Unavailable(
                    f"the {schema.noun} {path} has the schema of an older version, and its file system is read-only; "
                    "copy it to another one, which devalloc then upgrades"
                )
        except BaseException:
            connection.close()
            raise
    return connection


def _opened(path: Path, schema: Schema) -> sqlite3.Connection:
    with translate_errors(path, schema):
        connection = _connect(path)
        try:
            _refuse_foreign(connection, path, schema)
            make_private(path)
            _use_wal(connection)
            migrate(connection, schema)
        except BaseException:
            connection.close()
            raise
    return connection


def open_with_identity(path: Path, schema: Schema) -> tuple[sqlite3.Connection, tuple[int, int] | None]:
    """Like ``open_database``; also returns the file's identity (``file_identity``)."""
    while True:
        before = file_identity(path)
        connection = open_database(path, schema)
        if before in (None, now := file_identity(path)):
            return connection, now
        connection.close()  # another file has replaced it meanwhile


def open_reader(path: Path, schema: Schema) -> sqlite3.Connection:
    """Another connection to a database that is already open, for reading only."""
    with translate_errors(path, schema):
        connection = _connect(path)
        connection.execute("PRAGMA query_only = ON")
    return connection


def truncate_wal(connection: sqlite3.Connection) -> None:
    """Write the log to the database if there is space: SQLite then starts the log again, in the existing file."""
    with suppress(sqlite3.Error):
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


@contextmanager
def transaction(connection: sqlite3.Connection, *, write: bool) -> Iterator[None]:
    """A transaction: all or nothing; reads are consistent."""
    if write:
        _begin_write(connection)
    else:
        connection.execute("BEGIN")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _begin_write(connection: sqlite3.Connection) -> None:
    """Begin a transaction that writes; logs once if it has to wait for another process."""
    _set_busy_timeout(connection, _NOTICE_SECONDS)
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
            raise
        (_, _, file) = connection.execute("PRAGMA database_list").fetchone()
        log.warning("waiting for %s, which another process is writing to", file)
        _set_busy_timeout(connection, BUSY_SECONDS - _NOTICE_SECONDS)
        connection.execute("BEGIN IMMEDIATE")
    finally:
        _set_busy_timeout(connection, BUSY_SECONDS)


def _set_busy_timeout(connection: sqlite3.Connection, seconds: float) -> None:
    connection.execute(f"PRAGMA busy_timeout = {round(seconds * 1000)}")


@contextmanager
def translate_errors(path: Path, schema: Schema) -> Iterator[None]:
    """Translate SQLite's errors."""
    try:
        yield
    except sqlite3.Error as error:
        raise store_error_for(path, schema, error) from error


def _connect(path: Path) -> sqlite3.Connection:
    # Never create a file here; `prepare_files` creates it with the right mode. Never use `immutable=1` either: another
    # process may begin to write at any time by another mount, and such a connection would not notice.
    mode = "ro" if is_read_only(path) else "rw"
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _refuse_foreign(connection: sqlite3.Connection, path: Path, schema: Schema) -> None:
    """Refuse databases of other programs or newer versions, before anything is written. Reads in one transaction,
    because another process may be creating the schema."""
    with transaction(connection, write=False):
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and application != schema.application_id:
        raise Unusable(f"{path} is a database of another program; choose another path for the {schema.noun}")
    if version > len(schema.steps):
        raise Unusable(
            f"{path} was written by a newer devalloc (schema {version}; this one knows up to {len(schema.steps)}). "
            "It is unchanged. Use the newer version, or restore a backup that this version made"
        )


def _use_wal(connection: sqlite3.Connection) -> None:
    # Switching the journal mode does not wait for other processes that open the file at the same time.
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(0.01)
    if mode != "wal":
        raise sqlite3.OperationalError("this file system does not support SQLite's write-ahead log")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT_BYTES}")


def no_space_message(path: Path, schema: Schema) -> str:
    """The message if the disk is full, or the reserve is not complete."""
    return (
        f"no space left for the {schema.noun} {path}; nothing was written. {schema.full} Free at least "
        f"{RESERVE_BYTES >> 20} MiB on the file system of {path.parent} and try again"
    )


def damaged_database(path: Path, schema: Schema, why: str) -> Damaged:
    """The error for a database that is damaged, which says what to do."""
    return Damaged(f"the {schema.noun} {path} is damaged ({why}). {schema.damaged.format(name=path.name)}")


def store_error_for(path: Path, schema: Schema, error: sqlite3.Error) -> StoreError:
    """The translation of an SQLite error, which says what to do."""
    what = f"the {schema.noun} {path}"
    if isinstance(error, sqlite3.ProgrammingError) and "closed database" in str(error):
        return Unavailable(f"{what} is closed, because this process ends; nothing was written")
    code = getattr(error, "sqlite_errorcode", 0)
    if code == sqlite3.SQLITE_IOERR_SHMSIZE:  # the index of the log could not be created
        code = sqlite3.SQLITE_FULL
    if code in _WRITE_ERRORS and not has_space(path.parent):
        code = sqlite3.SQLITE_FULL
    match code & 0xFF:
        case sqlite3.SQLITE_NOTADB:
            return Damaged(
                f"{path} is not a devalloc {schema.noun} ({error}); choose another path, or move the file away"
            )
        case sqlite3.SQLITE_CORRUPT:
            return damaged_database(path, schema, str(error))
        case sqlite3.SQLITE_FULL:
            return NoSpace(no_space_message(path, schema))
        case sqlite3.SQLITE_READONLY if code == sqlite3.SQLITE_READONLY and is_read_only(path):
            return Unavailable(f"{what} is on a read-only file system; nothing was written")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN if is_read_only(path):
            # SQLite would have to create a file beside the database, or to write to one.
            names = [path.name + end for end in ("", "-wal", "-journal")]
            files = " and ".join(name for name in names if path.with_name(name).exists())
            return Unavailable(
                f"{what} cannot be read: its log needs a writable file system; copy {files} there, and use the copy"
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_CANTOPEN:
            return Unavailable(f"{what} cannot be opened for writing ({error}); nothing was written")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return Unavailable(
                f"another process has kept {what} busy for {BUSY_SECONDS:.0f} s; nothing was written. Try again"
            )
        case _:
            return Unavailable(f"{what} failed: {error}; check what was written last")
