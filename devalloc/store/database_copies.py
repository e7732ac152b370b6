"""Backups of our SQLite files: made while they are in use, restored while they are not."""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from devalloc.store.database import Schema, migrate, open_database, open_reader, store_error_for, translate_errors
from devalloc.store.errors import Invalid, StoreError, Unavailable
from devalloc.store.paths import FILES, SMALLEST_DATABASE_BYTES, check_private, wal_path

_LOGS = ("-shm", "-wal", "-journal")

Problems = Callable[[sqlite3.Connection], Sequence[str]]
"""Finds problems in the content of a database, as messages."""


def copy_database(source: Path, path: Path, schema: Schema, problems: Problems) -> None:
    """Copy a database to ``path`` (0600), consistently, even while it is in use.

    Only a copy that is complete, checked and on disk replaces an existing file. Raises StoreError.
    """
    try:
        own = (source.with_name(source.name + end) for end in FILES)
        if path.exists() and any(file.exists() and path.samefile(file) for file in own):
            raise Invalid(f"{path} is the {schema.noun} itself or part of it; use another file for the backup")
        if path.with_name(f"{path.name}-wal").exists():
            raise Invalid(f"{path} is a {schema.noun} that is in use, or was in use when it crashed; use another file")
        part = _temporary_file_beside(path)
        try:
            with _translate_copy_errors(path, schema, source), closing(sqlite3.connect(part)) as copy:
                with closing(open_reader(source, schema)) as reader:
                    reader.backup(copy)
                # Without a log beside it, so that this one file is the whole backup.
                copy.execute("PRAGMA journal_mode = DELETE")
                damage = problems(copy)
            if damage:
                raise Unavailable(f"the backup of {source} is damaged: {damage[0]}")
            _sync(part)
            part.replace(path)
            _sync(path.parent)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise Unavailable(f"cannot write the backup {path}: {error.strerror}") from error


def restore_database(
    copy: Path, path: Path, schema: Schema, problems: Problems, change: Callable[[sqlite3.Connection], None]
) -> Path | None:
    """Replace a database that is not open with a copy; returns the new path of the old one, None if there was none.

    Migrates the copy to the present schema, applies ``change`` and checks it before it touches anything; the file
    ``copy`` itself does not change. A crash leaves the old database or the new one. Raises StoreError.
    """
    _check(copy, schema)
    try:
        part = _temporary_file_beside(path)
        try:
            with _translate_copy_errors(path, schema, copy, is_backup=True), closing(_opened(part)) as copied:
                with closing(sqlite3.connect(f"{copy.absolute().as_uri()}?mode=ro", uri=True)) as reader:
                    reader.backup(copied)
                damage = problems(copied)
                if not damage:
                    migrate(copied, schema)
                    change(copied)
                    copied.execute("PRAGMA journal_mode = DELETE")
            if damage:
                raise Invalid(f"the backup {copy} is damaged: {damage[0]}; use another one")
            _sync(part)
            aside = _rename_existing(path, schema)
            part.replace(path)
            _sync(path.parent)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise Unavailable(f"cannot restore {copy} to {path}: {error.strerror}") from error
    return aside


@contextmanager
def _translate_copy_errors(path: Path, schema: Schema, source: Path, *, is_backup: bool = False) -> Iterator[None]:
    """Translate SQLite's errors: about ``path``, which is written, or about ``source``, which is read, if its content
    is invalid."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise store_error_for(path, schema, error) from error
        if not is_backup:
            raise store_error_for(source, schema, error) from error
        what = "is damaged" if code == sqlite3.SQLITE_CORRUPT else f"is not a backup of a devalloc {schema.noun}"
        raise Invalid(f"the backup {source} {what} ({error}); use another one") from error


def _check(copy: Path, schema: Schema) -> None:
    try:
        if not copy.is_file() or copy.stat().st_size < SMALLEST_DATABASE_BYTES:
            raise Invalid(f"{copy} is not a backup of a devalloc {schema.noun}")
        if copy.with_name(f"{copy.name}-wal").exists():
            raise Invalid(f"{copy} is a {schema.noun} that is in use, or was in use when it crashed, not a backup")
    except OSError as error:
        raise Unavailable(f"cannot read the backup {copy}: {error.strerror}") from error
    with (
        _translate_copy_errors(copy, schema, copy, is_backup=True),
        closing(sqlite3.connect(f"{copy.absolute().as_uri()}?mode=ro", uri=True)) as reader,
    ):
        (application,) = reader.execute("PRAGMA application_id").fetchone()
        (version,) = reader.execute("PRAGMA user_version").fetchone()
    if application != schema.application_id:
        raise Invalid(f"{copy} is not a backup of a devalloc {schema.noun}")
    if version > len(schema.steps):
        raise Invalid(
            f"{copy} was written by a newer devalloc (schema {version}; this one knows up to {len(schema.steps)}); "
            "use that version"
        )


def _rename_existing(path: Path, schema: Schema) -> Path | None:
    """Rename the old files, the database last: if this is interrupted, the database is still found and complete."""
    if not path.exists():
        return None
    check_private(path)
    # A damaged one is set aside with its log.
    with suppress(StoreError), closing(open_database(path, schema)) as database, translate_errors(path, schema):
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    aside = _rename_log(path)
    os.link(path, aside)  # the new file then replaces the name itself atomically
    return aside


def flush_replaced(connection: sqlite3.Connection, path: Path) -> Path:
    """Handle an open database that another file has replaced: write its log into it, wherever it is now, and rename the
    log, because SQLite would use it for the other file. Returns the log's new name. Raises OSError."""
    with suppress(sqlite3.Error):
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    return wal_path(_rename_log(path))


def _rename_log(path: Path) -> Path:
    """Rename the files that SQLite keeps beside a database; returns the matching free name for the database."""
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


def _temporary_file_beside(path: Path) -> Path:
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    return part


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
