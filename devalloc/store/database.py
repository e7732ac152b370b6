"""A connection to the SQLite file: opened safely, migrated, with errors that say what to do."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from devalloc.store import reserve
from devalloc.store.errors import Damaged, NoSpace, StoreError, Unavailable, Unusable
from devalloc.store.migrations import Schema, migrate
from devalloc.store.paths import check_private, file_at, prepare

BUSY_SECONDS = 30.0
"""How long a write waits for the writes of other processes."""
_WAL_LIMIT_BYTES = 16 * 2**20
_WRITE_ERRORS = (sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_TRUNCATE)
"""What SQLite says if a quota is used up (EDQUOT), and if the disk fails."""


def open_database(path: Path, schema: Schema) -> sqlite3.Connection:
    """A connection for reading and writing, on a schema that is up to date. Raises Unusable, Unavailable.

    If the disk is full, it is opened with the reserve: SQLite makes files beside it.
    """
    prepare(path, schema.noun)
    check_private(reserve.file_of(path))
    connection = reserve.spend(path, lambda: _opened(path, schema))
    reserve.refill(path)
    return connection


def _opened(path: Path, schema: Schema) -> sqlite3.Connection:
    with explained(path, schema):
        connection = _connect(path)
        try:
            _refuse_foreign(connection, path, schema)
            _use_wal(connection)
            migrate(connection, schema)
        except BaseException:
            connection.close()
            raise
    return connection


def open_named(path: Path, schema: Schema) -> tuple[sqlite3.Connection, tuple[int, int] | None]:
    """As ``open_database``, and which file it is (``file_at``)."""
    while True:
        before = file_at(path)
        connection = open_database(path, schema)
        if before in (None, now := file_at(path)):
            return connection, now
        connection.close()  # another was put in its place meanwhile


def open_reader(path: Path, schema: Schema) -> sqlite3.Connection:
    """One more connection to a database that is open already, for reading only."""
    with explained(path, schema):
        connection = _connect(path)
        connection.execute("PRAGMA query_only = ON")
    return connection


def shorten_log(connection: sqlite3.Connection) -> None:
    """Write the log to the database if there is space for it there: SQLite then begins the log again, in the file that
    it has."""
    with suppress(sqlite3.Error):
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


@contextmanager
def transaction(connection: sqlite3.Connection, *, write: bool) -> Iterator[None]:
    """All of it or nothing; reads see one moment."""
    connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def explained(path: Path, schema: Schema) -> Iterator[None]:
    """Turn SQLite's errors into ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise explanation(path, schema, error) from error


def _connect(path: Path) -> sqlite3.Connection:
    # mode=rw: never create a file here, that is done with the right mode elsewhere.
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _refuse_foreign(connection: sqlite3.Connection, path: Path, schema: Schema) -> None:
    """Look before anything is written, and at one moment: another process may be making the schema."""
    with transaction(connection, write=False):
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and application != schema.application_id:
        raise Unusable(f"{path} is a database of another program; choose another path for the {schema.noun}")
    if version > len(schema.steps):
        raise Unusable(
            f"{path} was written by a newer devalloc (schema {version}; this one knows up to {len(schema.steps)}). "
            "It was left as it is. Use the newer version, or restore a backup that this version made"
        )


def _use_wal(connection: sqlite3.Connection) -> None:
    # Switching the journal does not wait for other processes that open the file at the same moment.
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


def no_space(path: Path, schema: Schema) -> str:
    """What to say if the disk is full, or the reserve is not whole."""
    return (
        f"no space left for the {schema.noun} {path}; nothing was written. {schema.full} Free at least "
        f"{reserve.BYTES >> 20} MiB on the file system of {path.parent} and try again"
    )


def explanation(path: Path, schema: Schema, error: sqlite3.Error) -> StoreError:
    """What an error of SQLite means, and what to do."""
    what = f"the {schema.noun} {path}"
    code = getattr(error, "sqlite_errorcode", 0)
    if code == sqlite3.SQLITE_IOERR_SHMSIZE:  # the index of the log could not be made
        code = sqlite3.SQLITE_FULL
    if code in _WRITE_ERRORS and not reserve.is_space(path.parent):
        code = sqlite3.SQLITE_FULL
    match code & 0xFF:
        case sqlite3.SQLITE_NOTADB:
            return Damaged(
                f"{path} is not a devalloc {schema.noun} ({error}); choose another path, or move the file away"
            )
        case sqlite3.SQLITE_CORRUPT:
            return Damaged(f"{what} is damaged ({error}). {schema.damaged.format(name=path.name)}")
        case sqlite3.SQLITE_FULL:
            return NoSpace(no_space(path, schema))
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_CANTOPEN:
            return Unavailable(f"{what} cannot be opened for writing ({error}); nothing was written")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return Unavailable(
                f"another process has kept {what} busy for {BUSY_SECONDS:.0f} s; nothing was written. Try again"
            )
        case _:
            return Unavailable(f"{what} failed: {error}; read again what was written last")
