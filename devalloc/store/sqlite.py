"""The embedded store: one SQLite file that several processes share.

Every write is on disk (WAL, synchronous=FULL) before it returns. A watch polls for commits of other connections, which
costs microseconds, so that it needs no daemon; while nobody writes to the log it sleeps until the kernel tells it of a
write. The file must be on a local file system.

Restoring a backup: ``restore``.
"""

from __future__ import annotations

import builtins
import logging
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from devalloc.store import lifecycle, migrations, reserve
from devalloc.store.copies import copy_out, leave, put_back
from devalloc.store.database import explained, no_space, open_named, open_reader, shorten_log, transaction
from devalloc.store.errors import AlreadyExists, Conflict, Expired, FenceBroken, LeftOut, NoSpace, Unavailable
from devalloc.store.key import Key, Object
from devalloc.store.lease import hold
from devalloc.store.paths import file_at, log_of, prepare_folder
from devalloc.store.protocol import Change, Event, Fence, Listing, Outcomes, Written
from devalloc.store.rows import Rows
from devalloc.store.versions import another, changed, version_of
from devalloc.store.writes import Writes

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05
"""How long a watch may take to see a change."""
QUIET_SECONDS = 0.25
"""The same where nobody has written for a while and the kernel tells of no write; and how long a watch that waits for
one may take to end."""
ACTIVE_SECONDS = 1.0
"""How long a watch polls after a write to the log: the kernel tells of the first byte, and a commit counts some time
after the last one."""
DELETIONS_KEPT = 10_000
"""A watch that missed more deletions than this has to list again."""


Method = TypeVar("Method", bound=Callable[..., Any])


def _with_reserve(method: Method) -> Method:
    """If the disk is full, repeat a write that does not grow with the space of the reserve."""

    @wraps(method)
    def written(self: SQLiteStore, *arguments: Any, **named: Any) -> Any:
        return reserve.spend(self.path, lambda: method(self, *arguments, **named), self._shorten_log)

    return cast(Method, written)


class SQLiteStore:
    """``devalloc.store.Store`` in one file, made when missing. Safe to share between threads, not across a fork."""

    def __init__(self, path: Path, *, deletions_kept: int = DELETIONS_KEPT) -> None:
        """Raises Unusable (not ours to open, damaged, too new) and Unavailable (no rights, no space)."""
        self.path = path
        self._deletions_kept = deletions_kept
        self._lock = threading.RLock()
        self._connection, self._file = open_named(path, migrations.STORE)
        self._log = file_at(log_of(path))
        self._refused: str | None = None
        """Why nothing is read or written any more."""

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
        wanted, version = _kinds(kinds), version_of(since)
        until = None if timeout is None else time.monotonic() + timeout
        connection, file = self._reader()
        with closing(connection), closing(Writes(log_of(self.path))) as writes:
            rows, seen = Rows(connection), None
            active_until = time.monotonic() + ACTIVE_SECONDS
            while stop is None or not stop.is_set():
                if (now_there := file_at(self.path)) != file:
                    raise self._removed() if now_there is None else Expired("the store was replaced; list again")
                with explained(self.path, migrations.STORE):
                    (now,) = connection.execute("PRAGMA data_version").fetchone()
                    events: list[Event] = []
                    if now != seen:
                        with transaction(connection, write=False):
                            # One who starts from 0 is told what there is, and from then on also what goes.
                            told = version > 0 or seen is not None
                            events, version = rows.events(wanted, version, deletions=told)
                        seen = now
                yield from events
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    return
                is_quiet = writes.are_told and time.monotonic() > active_until
                pause = QUIET_SECONDS if is_quiet else POLL_SECONDS
                pause = pause if left is None else min(pause, left)
                if not is_quiet and stop is None:
                    time.sleep(pause)
                elif not is_quiet and stop is not None:
                    stop.wait(pause)
                if writes.are_told and writes.wait(pause if is_quiet else 0.0):
                    active_until = time.monotonic() + ACTIVE_SECONDS

    @_with_reserve
    def create(self, obj: Object) -> Object:
        key = Key.of(obj)
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        new = lifecycle.plain(lifecycle.created(obj, str(uuid.uuid4()), now))
        with self._transaction() as rows:
            if (old := rows.find(key)) is not None:
                raise AlreadyExists(f"{key} exists already ({old.get('apiVersion')})")
            return rows.insert(key, new)

    @_with_reserve
    def replace(self, obj: Object) -> Object:
        with self._transaction() as rows:
            key, old = rows.current(obj)
            new = lifecycle.plain(lifecycle.replaced(old, obj))
            if lifecycle.is_deleting(new) and not lifecycle.finalizers(new):
                return rows.remove(key, new, self._deletions_kept)
            return rows.update(key, old, new)

    @_with_reserve
    def replace_status(self, obj: Object) -> Object:
        with self._transaction() as rows:
            key, old = rows.current(obj)
            return rows.update(key, old, lifecycle.plain(lifecycle.with_status(old, obj.get("status"))))

    @_with_reserve
    def commit(self, changes: Sequence[Change], fence: Fence | None = None) -> Written:
        with self._transaction() as rows:
            _hold(rows, fence)
            return Written(_write(rows, changes), str(rows.version()))

    def commit_each(self, units: Sequence[Sequence[Change]], fence: Fence | None = None) -> Outcomes:
        try:
            return self._commit_each(units, fence, may_grow=True)
        except Unavailable as error:
            if len(units) < 2 or not isinstance(error.__cause__, NoSpace):
                raise
        # The disk is full. A unit that takes something back must not wait for one that needs space.
        return self._commit_each(units, fence, may_grow=False)

    @_with_reserve
    def _commit_each(self, units: Sequence[Sequence[Change]], fence: Fence | None, *, may_grow: bool) -> Outcomes:
        done: builtins.list[Sequence[Object] | Conflict] = []
        with self._transaction() as rows:
            _hold(rows, fence)
            for unit in units:
                write = partial(_write, rows, unit)
                try:
                    written = write() if may_grow else rows.unless_it_grows(write)
                    done.append(self._no_space_for(unit) if written is None else written)
                except Conflict as conflict:
                    done.append(conflict)
            return Outcomes(done, str(rows.version()))

    def _no_space_for(self, unit: Sequence[Change]) -> LeftOut:
        why = no_space(self.path, migrations.STORE)
        return LeftOut({change.key: f"{change.key} is not written: {why}" for change in unit}, why)

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
            metadata = old["metadata"]
            if uid is not None and metadata["uid"] != uid:
                raise Conflict({key: another(key, old, uid)})
            if resource_version is not None and metadata["resourceVersion"] != resource_version:
                raise Conflict({key: changed(key, old, resource_version)})
            if not lifecycle.finalizers(old):
                return rows.remove(key, old, self._deletions_kept)
            now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
            return rows.update(key, old, lifecycle.marked(old, now))

    def identity(self) -> str:
        with self._transaction(write=False) as rows:
            return rows.identity()

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def backup(self, path: Path) -> None:
        """Copy the store to ``path`` (0600), whole as of one moment, while others use it.

        What was at ``path`` is replaced only by a copy that is complete, checked and on disk.
        """
        with self._lock:
            self._follow()
        copy_out(self.path, path, migrations.STORE, lambda copy: Rows(copy).problems())

    def check(self) -> Sequence[str]:
        """What is wrong with the file and the objects in it; nothing in a good store. Reads everything."""
        with self._transaction(write=False) as rows:
            return rows.problems()

    @_with_reserve
    def call_by_group(self) -> None:
        """Find objects of other groups by the kind's full name, also where an older version stored them."""
        with self._transaction() as rows:
            rows.call_by_group()

    def _removed(self) -> Unavailable:
        return Unavailable(
            f"the store {self.path} was removed while it is in use; nothing was written. Put it, or a backup, back"
        )

    @contextmanager
    def _transaction(self, *, write: bool = True) -> Iterator[Rows]:
        with self._lock:
            self._follow()
            rows = Rows(self._connection)
            try:
                with explained(self.path, migrations.STORE), transaction(self._connection, write=write):
                    yield rows
                    if write and not reserve.is_whole(self.path) and rows.grows and not reserve.refill(self.path):
                        raise NoSpace(no_space(self.path, migrations.STORE))
            except NoSpace as error:
                if rows.grows:  # the reserve is not for that
                    raise Unavailable(str(error)) from error
                raise

    def _shorten_log(self) -> None:
        with self._lock:
            shorten_log(self._connection)

    def _reader(self) -> tuple[sqlite3.Connection, tuple[int, int] | None]:
        """One more connection, for reading, and the file that it reads."""
        with self._lock:
            self._follow()
            return open_reader(self.path, migrations.STORE), self._file

    def _follow(self) -> None:
        """Go on with the file that has the name now: another was put in its place, and nobody would see what is
        written to the one that was there. Raises Unavailable where there is none, or its log is another's."""
        if self._refused is not None:
            raise Unavailable(self._refused)
        now, log_now = file_at(self.path), file_at(log_of(self.path))
        if (now, log_now) == (self._file, self._log):
            return
        if now is None:
            raise self._removed()
        if now == self._file:
            raise Unavailable(
                f"{log_of(self.path)} was removed or replaced while the store is in use; nothing was written. Put it "
                "back, or stop all of devalloc on this host, which writes to the store itself what it still has of it"
            )
        if log_now == self._log:
            # SQLite would take it for the log of what is there now, and write it into that.
            try:
                aside = f"is {leave(self._connection, self.path).name} now"
            except OSError as error:
                aside = f"could not be renamed ({error.strerror}), which is to be done first"
            self._refused = (
                f"another file was moved to {self.path} while the store was in use; nothing was written. The log of "
                f"the former one {aside}. Start devalloc again to go on with what is there, or put back what belongs "
                "there with `devalloc restore`, which is also the way to replace a store"
            )
            raise Unavailable(self._refused)
        before = self._connection
        self._connection, self._file = open_named(self.path, migrations.STORE)
        self._log = file_at(log_of(self.path))
        before.close()
        log.warning("the store %s was replaced, by a restore; going on with what is there now", self.path)


def _hold(rows: Rows, fence: Fence | None) -> None:
    """Raises FenceBroken, Expired."""
    if fence is not None and (broken := rows.broken(fence)):
        raise FenceBroken(broken)


def _write(rows: Rows, changes: Sequence[Change]) -> list[Object]:
    """All of them, as stored; a Conflict is raised before the first is written."""
    conflicts, olds = {}, []
    for change in changes:
        old = rows.find(change.key)
        if old is None:
            conflicts[change.key] = f"{change.key} is gone"
        elif old["metadata"]["resourceVersion"] != change.resource_version:
            conflicts[change.key] = changed(change.key, old, change.resource_version)
        else:
            olds.append(old)
    if conflicts:
        raise Conflict(conflicts)
    done = []
    for change, old in zip(changes, olds, strict=True):
        new = lifecycle.annotated(lifecycle.with_status(old, change.status), change.annotations)
        done.append(rows.update(change.key, old, lifecycle.plain(new)))
    return done


def _kinds(kinds: str | Iterable[str] | None) -> frozenset[str] | None:
    if kinds is None:
        return None
    return frozenset([kinds] if isinstance(kinds, str) else kinds)


def restore(copy: Path, path: Path) -> Path | None:
    """Put a backup in the place of the store at ``path``; where what was there is now, None where nothing was.

    It becomes a store of its own (``identity``): whoever acted on what the other one said looks before he goes on.
    Raises Held while a process runs the loops on it, and StoreError.
    """
    prepare_folder(path)
    with hold(path):
        return put_back(copy, path, migrations.STORE, lambda found: Rows(found).problems(), _become_another)


def _become_another(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE identity SET value = lower(hex(randomblob(16)))")
