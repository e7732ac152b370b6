"""Copies of our SQLite files: made while they are in use, and put back while they are not."""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from devalloc.store.database import explained, explanation, open_database, open_reader
from devalloc.store.errors import Invalid, StoreError, Unavailable
from devalloc.store.migrations import Schema, migrate
from devalloc.store.paths import FILES, SMALLEST_DATABASE_BYTES, check_private, log_of

_LOGS = ("-shm", "-wal", "-journal")

Problems = Callable[[sqlite3.Connection], Sequence[str]]
"""What is wrong with the content of a database, for people."""


def copy_out(source: Path, path: Path, schema: Schema, problems: Problems) -> None:
    """Copy a database to ``path`` (0600), whole as of one moment, while others use it.

    What was at ``path`` is replaced only by a copy that is complete, checked and on disk. Raises StoreError.
    """
    try:
        own = (source.with_name(source.name + end) for end in FILES)
        if path.exists() and any(file.exists() and path.samefile(file) for file in own):
            raise Invalid(f"{path} is the {schema.noun} itself or part of it; name another file for the backup")
        if path.with_name(f"{path.name}-wal").exists():
            raise Invalid(f"{path} is a {schema.noun} that is in use, or was when it crashed; name another file")
        part = _made_beside(path)
        try:
            with _explained(path, schema, source), closing(sqlite3.connect(part)) as copy:
                with closing(open_reader(source, schema)) as reader:
                    reader.backup(copy)
                # Without its own log beside it, so that the one file is the whole backup.
                copy.execute("PRAGMA journal_mode = DELETE")
                found = problems(copy)
            if found:
                raise Unavailable(f"the backup of {source} came out damaged: {found[0]}")
            _sync(part)
            part.replace(path)
            _sync(path.parent)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise Unavailable(f"cannot write the backup {path}: {error.strerror}") from error


def put_back(
    copy: Path, path: Path, schema: Schema, problems: Problems, change: Callable[[sqlite3.Connection], None]
) -> Path | None:
    """Put a copy in the place of a database that nobody has open; where what was there is now, None for nowhere.

    The copy is brought to the present schema, changed by ``change`` and checked before anything is touched; ``copy``
    itself stays as it is. A crash leaves the old database or the new one. Raises StoreError.
    """
    _check(copy, schema)
    try:
        part = _made_beside(path)
        try:
            with _explained(path, schema, copy, is_backup=True), closing(_opened(part)) as made:
                with closing(sqlite3.connect(f"{copy.absolute().as_uri()}?mode=ro", uri=True)) as reader:
                    reader.backup(made)
                found = problems(made)
                if not found:
                    migrate(made, schema)
                    change(made)
                    made.execute("PRAGMA journal_mode = DELETE")
            if found:
                raise Invalid(f"the backup {copy} is damaged: {found[0]}; use another one")
            _sync(part)
            aside = _set_aside(path, schema)
            part.replace(path)
            _sync(path.parent)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise Unavailable(f"cannot put {copy} back at {path}: {error.strerror}") from error
    return aside


@contextmanager
def _explained(path: Path, schema: Schema, source: Path, *, is_backup: bool = False) -> Iterator[None]:
    """Turn SQLite's errors into ours: of ``path``, which is written, or of ``source``, which is read, if what it has is
    no good."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise explanation(path, schema, error) from error
        if not is_backup:
            raise explanation(source, schema, error) from error
        what = "is damaged" if code == sqlite3.SQLITE_CORRUPT else f"is no backup of a devalloc {schema.noun}"
        raise Invalid(f"the backup {source} {what} ({error}); use another one") from error


def _check(copy: Path, schema: Schema) -> None:
    try:
        if not copy.is_file() or copy.stat().st_size < SMALLEST_DATABASE_BYTES:
            raise Invalid(f"{copy} is no backup of a devalloc {schema.noun}")
        if copy.with_name(f"{copy.name}-wal").exists():
            raise Invalid(f"{copy} is a {schema.noun} that is in use, or was when it crashed, and no backup")
    except OSError as error:
        raise Unavailable(f"cannot read the backup {copy}: {error.strerror}") from error
    with (
        _explained(copy, schema, copy, is_backup=True),
        closing(sqlite3.connect(f"{copy.absolute().as_uri()}?mode=ro", uri=True)) as reader,
    ):
        (application,) = reader.execute("PRAGMA application_id").fetchone()
        (version,) = reader.execute("PRAGMA user_version").fetchone()
    if application != schema.application_id:
        raise Invalid(f"{copy} is no backup of a devalloc {schema.noun}")
    if version > len(schema.steps):
        raise Invalid(
            f"{copy} was written by a newer devalloc (schema {version}; this one knows up to {len(schema.steps)}); "
            "use that one"
        )


def _set_aside(path: Path, schema: Schema) -> Path | None:
    """Give what is there another name, its database last: where this is cut off, it is still found and complete."""
    if not path.exists():
        return None
    check_private(path)
    # A damaged one is set aside with its log.
    with suppress(StoreError), closing(open_database(path, schema)) as database, explained(path, schema):
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    aside = _set_log_aside(path)
    os.link(path, aside)  # the name itself goes to the new one in one step
    return aside


def leave(connection: sqlite3.Connection, path: Path) -> Path:
    """Another file was put in the place of a database that is open: write its log into it, wherever it is now, and set
    the log aside, which SQLite would take for that of the other file. What the log goes by now. Raises OSError."""
    with suppress(sqlite3.Error):
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    return log_of(_set_log_aside(path))


def _set_log_aside(path: Path) -> Path:
    """Give what SQLite keeps beside a database other names; that of the database itself which goes with them, and is
    free."""
    number, stamp = 0, f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    while _is_taken(aside := path.with_name(f"{path.name}.before-{stamp}" + (f"-{number}" if number else ""))):
        number += 1
    for end in _LOGS:
        with suppress(FileNotFoundError):
            path.with_name(path.name + end).rename(aside.with_name(aside.name + end))
    return aside


def _is_taken(path: Path) -> bool:
    return any(path.with_name(path.name + end).exists() for end in ("", *_LOGS))


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None)


def _made_beside(path: Path) -> Path:
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    return part


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
