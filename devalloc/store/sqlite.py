"""The embedded store: one SQLite file that several processes share.

Every write is on disk (WAL, synchronous=FULL) before it returns. There is no daemon: a watch polls for commits of other
connections, which takes microseconds; without writes to the log it sleeps until the kernel reports one. The file must
be on a local file system.

``restore`` restores a backup.
"""

from __future__ import annotations

import builtins
import ctypes
import logging
import os
import select
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from devalloc.store import database, metadata_rules
from devalloc.store.database import (
    no_space_message,
    open_reader,
    open_with_identity,
    transaction,
    translate_errors,
    truncate_wal,
)
from devalloc.store.database_copies import copy_database, flush_replaced, restore_database
from devalloc.store.errors import (
    AlreadyExists,
    Conflict,
    Expired,
    FenceBroken,
    Key,
    NoSpace,
    Object,
    SkippedForSpace,
    Unavailable,
)
from devalloc.store.metadata_rules import changed_message, parse_version
from devalloc.store.paths import file_identity, hold_store, prepare_folder, wal_path
from devalloc.store.protocol import Change, CommitOutcomes, CommitResult, Event, Fence, Listing
from devalloc.store.sql_statements import SqlStatements

log = logging.getLogger(__name__)

_MODIFIED = 0x2
"""IN_MODIFY"""
_BUFFER_BYTES = 1 << 16


class FileWatch:
    """Writes to one file by processes of this host. Not thread-safe."""

    def __init__(self, path: Path | None) -> None:
        """``path`` None: nothing is waited for."""
        self._fd = -1 if path is None else _open_inotify(path)

    @property
    def is_supported(self) -> bool:
        """Whether the kernel reports them: not without the file, or beyond the user's limit of watches."""
        return self._fd >= 0

    def wait(self, seconds: float) -> bool:
        """Wait until the file was written since the last call, or until the time is up; returns whether it was."""
        ready = select.poll()  # select() does not support descriptors above 1023
        ready.register(self._fd, select.POLLIN)
        if not ready.poll(seconds * 1000):
            return False
        os.read(self._fd, _BUFFER_BYTES)  # consecutive equal events are merged
        return True

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _open_inotify(path: Path) -> int:
    """A descriptor from which to read events; -1 if there is none."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    if fd >= 0 and libc.inotify_add_watch(fd, os.fsencode(path), _MODIFIED) >= 0:
        return fd
    log.debug("cannot watch %s for writes: %s", path, os.strerror(ctypes.get_errno()))
    if fd >= 0:
        os.close(fd)
    return -1


POLL_SECONDS = 0.05
"""Maximum delay of a watch, in seconds."""
QUIET_SECONDS = 0.25
"""The same after a while without writes, if the kernel does not report writes; also how long a sleeping watch may take
to end."""
ACTIVE_SECONDS = 1.0
"""How long a watch polls after a write to the log, in seconds: the kernel reports the first byte, but a commit takes
effect some time after the last one."""
DELETIONS_KEPT = 10_000
"""A watch that has missed more deletions must list again."""


Method = TypeVar("Method", bound=Callable[..., Any])


def _with_reserve(method: Method) -> Method:
    """If the disk is full, repeat a write that does not grow, with the space of the reserve."""

    @wraps(method)
    def written(self: SQLiteStore, *arguments: Any, **named: Any) -> Any:
        if self.is_together:  # a part of a transaction cannot be repeated
            return method(self, *arguments, **named)
        return database.run_with_reserve(self.path, lambda: method(self, *arguments, **named), self._shorten_log)

    return cast(Method, written)


class SQLiteStore:
    """``devalloc.store.Store`` in one file, which is created if missing. Thread-safe, but not usable across a fork."""

    def __init__(self, path: Path, *, deletions_kept: int = DELETIONS_KEPT) -> None:
        """Raises Unusable (of another program or user, damaged, too new) and Unavailable (no rights, no space)."""
        self.path = path
        self._deletions_kept = deletions_kept
        self._lock = threading.RLock()
        self._connection, self._file = open_with_identity(path, database.STORE_SCHEMA)
        self._log = file_identity(wal_path(path))
        """None for a backup on a read-only file system."""
        self._refused: str | None = None
        """Why the store is not usable any more."""
        self._together: SqlStatements | None = None
        """The transaction of ``together``."""

    @property
    def is_together(self) -> bool:
        """Whether this thread is inside ``together``."""
        with self._lock:
            return self._together is not None

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make all reads and writes of this thread inside in one transaction: many writes cost a fraction of what each
        costs alone. Errors about one object (Conflict, NotFound, Invalid) may be caught inside; any error that ends the
        block, such as Unavailable for a full disk, undoes all of it."""
        with self._transaction() as rows:
            self._together = rows
            try:
                yield
            finally:
                self._together = None

    def get(self, kind: str, namespace: str | None, name: str) -> Object:
        key = Key.checked(kind, namespace, name)
        with self._transaction(write=False) as rows:
            return rows.read(key)

    def list(self, kinds: str | Iterable[str] | None = None, namespace: str | None = None) -> Listing:
        with self._transaction(write=False) as rows:
            return Listing(rows.select(_kinds(kinds), namespace), str(rows.version()))

    def watch(
        self,
        kinds: str | Iterable[str] | None = None,
        since: str = "0",
        *,
        timeout: float | None = None,
        stop: threading.Event | None = None,
    ) -> Generator[Event, None, None]:
        wanted, version = _kinds(kinds), parse_version(since)
        until = None if timeout is None else time.monotonic() + timeout
        connection, file = self._reader()
        is_look = timeout is not None and timeout <= 0  # the kernel takes 10 ms to end the watch of a file
        with closing(connection), closing(FileWatch(None if is_look else wal_path(self.path))) as writes:
            rows, seen = SqlStatements(connection), None
            active_until = time.monotonic() + ACTIVE_SECONDS
            while stop is None or not stop.is_set():
                if (now_there := file_identity(self.path)) != file:
                    raise self._removed() if now_there is None else Expired("the store was replaced; list again")
                with self._translating(rows):
                    (now,) = connection.execute("PRAGMA data_version").fetchone()
                    events: list[Event] = []
                    if now != seen:
                        with transaction(connection, write=False):
                            # A watch from 0 gets the existing objects, and deletions only from then on.
                            with_deletions = version > 0 or seen is not None
                            events, version = rows.events(wanted, version, deletions=with_deletions)
                        seen = now
                yield from events
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    return
                is_quiet = writes.is_supported and time.monotonic() > active_until
                pause = QUIET_SECONDS if is_quiet else POLL_SECONDS
                pause = pause if left is None else min(pause, left)
                if not is_quiet and stop is None:
                    time.sleep(pause)
                elif not is_quiet and stop is not None:
                    stop.wait(pause)
                if writes.is_supported and writes.wait(pause if is_quiet else 0.0):
                    active_until = time.monotonic() + ACTIVE_SECONDS

    @_with_reserve
    def create(self, obj: Object) -> Object:
        key = Key.of(obj)
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        new = metadata_rules.as_stored(metadata_rules.new_object(obj, str(uuid.uuid4()), now))
        with self._transaction() as rows:
            if (old := rows.find(key)) is not None:
                raise AlreadyExists(f"{key} already exists ({old.get('apiVersion')})")
            return rows.insert(key, new)

    @_with_reserve
    def replace(self, obj: Object) -> Object:
        with self._transaction() as rows:
            key, old = rows.current(obj)
            new = metadata_rules.as_stored(metadata_rules.replace_all_but_status(old, obj))
            if metadata_rules.is_deleting(new) and not metadata_rules.finalizers(new):
                return rows.remove(key, new, self._deletions_kept)
            return rows.update(key, old, new)

    @_with_reserve
    def replace_status(self, obj: Object) -> Object:
        with self._transaction() as rows:
            key, old = rows.current(obj)
            return rows.update(key, old, metadata_rules.as_stored(metadata_rules.with_status(old, obj.get("status"))))

    @_with_reserve
    def commit(self, changes: Sequence[Change], fence: Fence | None = None) -> CommitResult:
        with self._transaction() as rows:
            _check_fence(rows, fence)
            return CommitResult(_write_changes(rows, changes), str(rows.version()))

    def commit_each(self, units: Sequence[Sequence[Change]], fence: Fence | None = None) -> CommitOutcomes:
        try:
            return self._commit_each(units, fence, may_grow=True)
        except Unavailable as error:
            if len(units) < 2 or not isinstance(error.__cause__, NoSpace):
                raise
        # The disk is full. Units that release something must not wait for units that need space.
        return self._commit_each(units, fence, may_grow=False)

    @_with_reserve
    def _commit_each(self, units: Sequence[Sequence[Change]], fence: Fence | None, *, may_grow: bool) -> CommitOutcomes:
        done: builtins.list[Sequence[Object] | Conflict] = []
        with self._transaction() as rows:
            _check_fence(rows, fence)
            for unit in units:
                write = partial(_write_changes, rows, unit)
                try:
                    written = write() if may_grow else rows.unless_it_grows(write)
                    done.append(self._no_space_for(unit) if written is None else written)
                except Conflict as conflict:
                    done.append(conflict)
            return CommitOutcomes(done, str(rows.version()))

    def _no_space_for(self, unit: Sequence[Change]) -> SkippedForSpace:
        why = no_space_message(self.path, database.STORE_SCHEMA)
        return SkippedForSpace({change.key: f"{change.key} is not written: {why}" for change in unit}, why)

    @_with_reserve
    def delete(
        self,
        kind: str,
        namespace: str | None,
        name: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> Object:
        key = Key.checked(kind, namespace, name)
        with self._transaction() as rows:
            old = rows.read(key)
            metadata_rules.check_state(key, old, uid, resource_version)
            if not metadata_rules.finalizers(old):
                return rows.remove(key, old, self._deletions_kept)
            now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
            return rows.update(key, old, metadata_rules.mark_deleting(old, now))

    def identity(self) -> str:
        with self._transaction(write=False) as rows:
            return rows.identity()

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def backup(self, path: Path) -> None:
        """Copy the store to ``path`` (0600), consistently, even while it is in use.

        Only a copy that is complete, checked and on disk replaces an existing file.
        """
        with self._lock:
            self._follow()
        copy_database(self.path, path, database.STORE_SCHEMA, lambda copy: SqlStatements(copy).problems())

    def check(self) -> Sequence[str]:
        """Problems of the file and its objects; empty for a good store. Reads everything."""
        with self._transaction(write=False) as rows:
            return rows.problems()

    @_with_reserve
    def call_by_group(self) -> None:
        """Store objects of other groups under the kind's full name, even if an older version stored them."""
        with self._transaction() as rows:
            rows.call_by_group()

    def _removed(self) -> Unavailable:
        return Unavailable(
            f"the store {self.path} was removed while it was in use; nothing was written. Restore it or a backup"
        )

    @contextmanager
    def _transaction(self, *, write: bool = True) -> Iterator[SqlStatements]:
        with self._lock:
            if self._together is not None:
                with self._translating(self._together):
                    yield self._together
                return
            self._follow()
            rows = SqlStatements(self._connection)
            try:
                with self._translating(rows), transaction(self._connection, write=write):
                    yield rows
                    if write and not database.is_whole(self.path) and rows.grows and not database.refill(self.path):
                        raise NoSpace(no_space_message(self.path, database.STORE_SCHEMA))
            except NoSpace as error:
                if rows.grows:  # the reserve is not for writes that grow
                    raise Unavailable(str(error)) from error
                raise

    @contextmanager
    def _translating(self, rows: SqlStatements) -> Iterator[None]:
        """Translate SQLite's errors, and those of damaged rows, which name the object."""
        try:
            with translate_errors(self.path, database.STORE_SCHEMA):
                yield
        except (metadata_rules.DamagedRow, Unavailable) as error:
            is_undecodable = "Could not decode to UTF-8" in str(error)
            if not (is_undecodable or isinstance(error, metadata_rules.DamagedRow)):
                raise
            with suppress(sqlite3.Error):
                if problems := rows.problems():
                    raise database.damaged_database(self.path, database.STORE_SCHEMA, problems[0]) from error
            raise database.damaged_database(self.path, database.STORE_SCHEMA, str(error)) from error

    def _shorten_log(self) -> None:
        with self._lock:
            truncate_wal(self._connection)

    def _reader(self) -> tuple[sqlite3.Connection, tuple[int, int] | None]:
        """Another connection, for reading, and the identity of its file."""
        with self._lock:
            self._follow()
            return open_reader(self.path, database.STORE_SCHEMA), self._file

    def _follow(self) -> None:
        """Switch to the file that now has the name: another file has replaced the old one, where writes would be lost.
        Raises Unavailable if there is no file, or if its log belongs to another file."""
        if self._refused is not None:
            raise Unavailable(self._refused)
        now, log_now = file_identity(self.path), file_identity(wal_path(self.path))
        if (now, log_now) == (self._file, self._log):
            return
        if now is None:
            raise self._removed()
        if now == self._file and self._log is None:
            return  # another process has begun to write to the backup by another mount; SQLite then reads its log
        if now == self._file:
            raise Unavailable(
                f"{wal_path(self.path)} was removed or replaced while the store was in use; nothing was written. Put "
                "it "
                "back, or stop all devalloc processes on this host, which then write what they still have to the store"
            )
        if log_now is not None and log_now == self._log:
            # Otherwise SQLite would use it as the log of the new file, and write it into that.
            try:
                aside = f"is now {flush_replaced(self._connection, self.path).name}"
            except OSError as error:
                aside = f"could not be renamed ({error.strerror}); rename it first"
            self._refused = (
                f"another file was moved to {self.path} while the store was in use; nothing was written. The log of "
                f"the old one {aside}. Start devalloc again to use the new file, or restore the right one with "
                "`devalloc restore`, which is also the way to replace a store"
            )
            raise Unavailable(self._refused)
        before = self._connection
        self._connection, self._file = open_with_identity(self.path, database.STORE_SCHEMA)
        self._log = file_identity(wal_path(self.path))
        before.close()
        log.warning("a restore has replaced the store %s; continuing with the new one", self.path)


def _check_fence(rows: SqlStatements, fence: Fence | None) -> None:
    """Raises FenceBroken, Expired."""
    if fence is not None and (broken := rows.broken(fence)):
        raise FenceBroken(broken)


def _write_changes(rows: SqlStatements, changes: Sequence[Change]) -> list[Object]:
    """Write all changes; returns the objects as stored. Raises Conflict before the first write."""
    conflicts, olds = {}, []
    for change in changes:
        old = rows.find(change.key)
        if old is None:
            conflicts[change.key] = f"{change.key} is gone"
        elif old["metadata"]["resourceVersion"] != change.resource_version:
            conflicts[change.key] = changed_message(change.key, old, change.resource_version)
        else:
            olds.append(old)
    if conflicts:
        raise Conflict(conflicts)
    done = []
    for change, old in zip(changes, olds, strict=True):
        done.append(rows.update(change.key, old, metadata_rules.as_stored(metadata_rules.with_change(old, change))))
    return done


def _kinds(kinds: str | Iterable[str] | None) -> frozenset[str] | None:
    if kinds is None:
        return None
    return frozenset([kinds] if isinstance(kinds, str) else kinds)


def restore(copy: Path, path: Path) -> Path | None:
    """Replace the store at ``path`` with a backup; returns the new path of the old store, None if there was none.

    The result gets a new ``identity``, so that programs that acted on the old store check their state before they
    continue. Raises StoreLocked while a process runs the loops on it, and StoreError.
    """
    prepare_folder(path)
    with hold_store(path):
        return restore_database(
            copy,
            path,
            database.STORE_SCHEMA,
            lambda connection: SqlStatements(connection).problems(),
            _assign_new_identity,
        )


def _assign_new_identity(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE identity SET value = lower(hex(randomblob(16)))")
