"""The embedded store: one SQLite file that several processes share.

Every write is on disk (WAL, synchronous=FULL) before it returns. A watch polls for commits of other connections, which
costs microseconds, so that it needs no daemon. The file must be on a local file system.

Restoring a backup: ``restore``.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
import uuid
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from devalloc.store import lifecycle, migrations
from devalloc.store.copies import copy_out, put_back
from devalloc.store.database import explained, open_named, open_reader, transaction
from devalloc.store.errors import AlreadyExists, Conflict, Expired, FenceBroken, Invalid, NotFound, Unavailable
from devalloc.store.key import Key, Object
from devalloc.store.lease import hold
from devalloc.store.paths import file_at, prepare_folder
from devalloc.store.protocol import Change, Event, EventType, Fence, Listing

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05
"""How long a watch may take to see a change. An idle watch then costs some 0.3 % of a core."""
DELETIONS_KEPT = 10_000
"""A watch that missed more deletions than this has to list again."""


class SQLiteStore:
    """``devalloc.store.Store`` in one file, made when missing. Safe to share between threads, not across a fork."""

    def __init__(self, path: Path, *, deletions_kept: int = DELETIONS_KEPT) -> None:
        """Raises Unusable (not ours to open, damaged, too new) and Unavailable (no rights, no space)."""
        self.path = path
        self._deletions_kept = deletions_kept
        self._lock = threading.RLock()
        self._connection, self._file = open_named(path, migrations.STORE)

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
        wanted, version = _kinds(kinds), _version(since)
        until = None if timeout is None else time.monotonic() + timeout
        file = file_at(self.path)
        with closing(open_reader(self.path, migrations.STORE)) as connection:
            rows, seen = _Rows(connection), None
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
                pause = POLL_SECONDS if left is None else min(POLL_SECONDS, left)
                if stop is None:
                    time.sleep(pause)
                else:
                    stop.wait(pause)

    def create(self, obj: Object) -> Object:
        key = Key.of(obj)
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        new = lifecycle.plain(lifecycle.created(obj, str(uuid.uuid4()), now))
        with self._transaction() as rows:
            if (old := rows.find(key)) is not None:
                raise AlreadyExists(f"{key} exists already ({old.get('apiVersion')})")
            return rows.insert(key, new)

    def replace(self, obj: Object) -> Object:
        with self._transaction() as rows:
            key, old = rows.current(obj)
            new = lifecycle.plain(lifecycle.replaced(old, obj))
            if lifecycle.is_deleting(new) and not lifecycle.finalizers(new):
                return rows.remove(key, new, self._deletions_kept)
            return rows.update(key, old, new)

    def replace_status(self, obj: Object) -> Object:
        with self._transaction() as rows:
            key, old = rows.current(obj)
            return rows.update(key, old, lifecycle.plain(lifecycle.with_status(old, obj.get("status"))))

    def commit(self, changes: Sequence[Change], fence: Fence | None = None) -> Sequence[Object]:
        with self._transaction() as rows:
            if fence is not None and (broken := rows.broken(fence)):
                raise FenceBroken(broken)
            conflicts, olds = {}, []
            for change in changes:
                old = rows.find(change.key)
                if old is None:
                    conflicts[change.key] = f"{change.key} is gone"
                elif old["metadata"]["resourceVersion"] != change.resource_version:
                    conflicts[change.key] = _changed(change.key, old, change.resource_version)
                else:
                    olds.append(old)
            if conflicts:
                raise Conflict(conflicts)
            done = []
            for change, old in zip(changes, olds, strict=True):
                new = lifecycle.annotated(lifecycle.with_status(old, change.status), change.annotations)
                done.append(rows.update(change.key, old, lifecycle.plain(new)))
            return done

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
                raise Conflict({key: _another(key, old, uid)})
            if resource_version is not None and metadata["resourceVersion"] != resource_version:
                raise Conflict({key: _changed(key, old, resource_version)})
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
        copy_out(self.path, path, migrations.STORE, lambda copy: _Rows(copy).problems())

    def check(self) -> Sequence[str]:
        """What is wrong with the file and the objects in it; nothing in a good store. Reads everything."""
        with self._transaction(write=False) as rows:
            return rows.problems()

    def _removed(self) -> Unavailable:
        return Unavailable(
            f"the store {self.path} was removed while it is in use; nothing was written. Put it, or a backup, back"
        )

    @contextmanager
    def _transaction(self, *, write: bool = True) -> Iterator[_Rows]:
        with self._lock:
            self._follow()
            with explained(self.path, migrations.STORE), transaction(self._connection, write=write):
                yield _Rows(self._connection)

    def _follow(self) -> None:
        """Go on with the file that has the name now: another was put in its place, and nobody would see what is
        written to the one that was there. Raises Unavailable where there is none."""
        if (now := file_at(self.path)) == self._file:
            return
        if now is None:
            raise self._removed()
        before = self._connection
        self._connection, self._file = open_named(self.path, migrations.STORE)
        before.close()
        log.warning("the store %s was replaced, by a restore; going on with what is there now", self.path)


class _Rows:
    """The statements, each to be used inside a transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def find(self, key: Key) -> Object | None:
        row = self._connection.execute(
            "SELECT content FROM objects WHERE kind = ? AND namespace = ? AND name = ?", _row_key(key)
        ).fetchone()
        return None if row is None else lifecycle.decode(row[0])

    def read(self, key: Key) -> Object:
        if (obj := self.find(key)) is None:
            raise NotFound(f"{key} does not exist")
        return obj

    def current(self, obj: Object) -> tuple[Key, Object]:
        """The stored object that ``obj`` is to take the place of, if it is based on its latest state."""
        key = Key.of(obj)
        base, uid = obj["metadata"].get("resourceVersion"), obj["metadata"].get("uid")
        if not base:
            raise Invalid(f"{key}: metadata.resourceVersion must say which state the write is based on; get it first")
        old = self.read(key)
        if uid and uid != old["metadata"]["uid"]:
            raise Conflict({key: _another(key, old, uid)})
        if base != old["metadata"]["resourceVersion"]:
            raise Conflict({key: _changed(key, old, base)})
        return key, old

    def select(self, kinds: frozenset[str] | None, namespace: str | None) -> list[Object]:
        where, parameters = _where(kinds)
        if namespace is not None:
            where, parameters = f"{where} AND namespace = ?", (*parameters, namespace)
        rows = self._connection.execute(
            f"SELECT content FROM objects WHERE {where} ORDER BY kind, namespace, name", parameters
        )
        return [lifecycle.decode(content) for (content,) in rows]

    def version(self) -> int:
        """The newest resourceVersion."""
        (version,) = self._connection.execute("SELECT version FROM counter").fetchone()
        return int(version)

    def identity(self) -> str:
        (value,) = self._connection.execute("SELECT value FROM identity").fetchone()
        return str(value)

    def insert(self, key: Key, obj: Object) -> Object:
        version = self._next()
        obj = lifecycle.versioned(obj, version)
        self._connection.execute(
            "INSERT INTO objects VALUES (?, ?, ?, ?, ?, ?, 0, ?)",
            (*_row_key(key), version, version, version, lifecycle.encode(obj)),
        )
        return obj

    def update(self, key: Key, old: Object, new: Object) -> Object:
        """Store ``new``; nothing is written when nothing changed."""
        if new == old:
            return old
        version = self._next()
        respecified = new["metadata"]["generation"] != old["metadata"]["generation"]
        restated = new.get("status") != old.get("status")
        new = lifecycle.versioned(new, version)
        self._connection.execute(
            "UPDATE objects SET version = ?, content = ?, spec_version = iif(?, ?, spec_version),"
            " status_version = iif(?, ?, status_version) WHERE kind = ? AND namespace = ? AND name = ?",
            (version, lifecycle.encode(new), respecified, version, restated, version, *_row_key(key)),
        )
        return new

    def remove(self, key: Key, last: Object, deletions_kept: int) -> Object:
        version = self._next()
        last = lifecycle.versioned(last, version)
        self._connection.execute("INSERT INTO tombstones VALUES (?, ?, ?)", (version, key.kind, lifecycle.encode(last)))
        self._connection.execute("DELETE FROM objects WHERE kind = ? AND namespace = ? AND name = ?", _row_key(key))
        self._forget(deletions_kept)
        return last

    def events(self, kinds: frozenset[str] | None, since: int, *, deletions: bool) -> tuple[list[Event], int]:
        """What changed after ``since``, in order, and the resourceVersion up to which that is all."""
        newest, forgotten = self._connection.execute("SELECT version, forgotten FROM counter").fetchone()
        # From 0 there is nothing a caller could still have to forget.
        if 0 < since < forgotten or since > newest:
            raise Expired(f"resourceVersion {since} is too old or of another store (now {newest}); list again")
        where, parameters = _where(kinds)
        changed = self._connection.execute(
            f"SELECT version, created_version, content FROM objects WHERE version > ? AND {where}", (since, *parameters)
        )
        found = [
            (version, EventType.ADDED if born > since else EventType.MODIFIED, content)
            for version, born, content in changed
        ]
        if deletions:
            deleted = self._connection.execute(
                f"SELECT version, content FROM tombstones WHERE version > ? AND {where}", (since, *parameters)
            )
            found += [(version, EventType.DELETED, content) for version, content in deleted]
        return [Event(what, lifecycle.decode(content)) for _, what, content in sorted(found)], int(newest)

    def broken(self, fence: Fence) -> dict[Key, str]:
        """What the fence forbids and happened."""
        since, conflicts = _version(fence.resource_version), {}
        (forgotten,) = self._connection.execute("SELECT forgotten FROM counter").fetchone()
        if since < forgotten:
            raise Expired(f"the fence is as old as resourceVersion {since}, and deletions since then are forgotten")
        for kinds, column, what in (
            (fence.specs, "spec_version", "its spec was written"),
            (fence.statuses, "status_version", "its status was written"),
        ):
            where, parameters = _where(kinds)
            for (content,) in self._connection.execute(
                f"SELECT content FROM objects WHERE {where} AND {column} > ?", (*parameters, since)
            ):
                key = Key.of(lifecycle.decode(content))
                conflicts[key] = f"{key} changed meanwhile: {what}"
        where, parameters = _where(fence.specs)
        for (content,) in self._connection.execute(
            f"SELECT content FROM tombstones WHERE {where} AND version > ?", (*parameters, since)
        ):
            key = Key.of(lifecycle.decode(content))
            conflicts[key] = f"{key} was deleted meanwhile"
        return conflicts

    def problems(self) -> list[str]:
        """Damage to the file, and rows that do not agree with the object in them."""
        found = [text for (text,) in self._connection.execute("PRAGMA integrity_check") if text != "ok"]
        newest = self.version()
        for kind, namespace, name, version, content in self._connection.execute(
            "SELECT kind, namespace, name, version, content FROM objects"
        ):
            key = Key(kind, namespace or None, name)
            try:
                obj = lifecycle.decode(content)
                same = Key.of(obj) == key and obj["metadata"]["resourceVersion"] == str(version)
            except (ValueError, KeyError, TypeError, AttributeError, Invalid):
                same = False
            if not same or version > newest:
                found.append(f"{key}: what is stored is not that object at resourceVersion {version}")
        return found

    def _next(self) -> int:
        self._connection.execute("UPDATE counter SET version = version + 1")
        return self.version()

    def _forget(self, deletions_kept: int) -> None:
        (count,) = self._connection.execute("SELECT count(*) FROM tombstones").fetchone()
        # In steps of a tenth, so that not every deletion pays for it.
        if count <= deletions_kept + deletions_kept // 10:
            return
        (limit,) = self._connection.execute(
            "SELECT version FROM tombstones ORDER BY version DESC LIMIT 1 OFFSET ?", (deletions_kept,)
        ).fetchone()
        self._connection.execute("DELETE FROM tombstones WHERE version <= ?", (limit,))
        self._connection.execute("UPDATE counter SET forgotten = ?", (limit,))


def _row_key(key: Key) -> tuple[str, str, str]:
    return key.kind, key.namespace or "", key.name


def _kinds(kinds: str | Iterable[str] | None) -> frozenset[str] | None:
    if kinds is None:
        return None
    return frozenset([kinds] if isinstance(kinds, str) else kinds)


def _where(kinds: frozenset[str] | None) -> tuple[str, tuple[str, ...]]:
    if kinds is None:
        return "TRUE", ()
    return f"kind IN ({', '.join('?' * len(kinds))})", tuple(sorted(kinds))


def _version(text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise Invalid(f"resourceVersion must be a decimal number as the store gave it, not {text!r:.60}")
    return int(text)


def _changed(key: Key, old: Object, base: str) -> str:
    now = old["metadata"]["resourceVersion"]
    return f"{key} changed meanwhile (resourceVersion {now}, the write is based on {base}); get it and try again"


def _another(key: Key, old: Object, uid: str) -> str:
    return f"{key} is another object now (uid {old['metadata']['uid']}, not {uid})"


def restore(copy: Path, path: Path) -> Path | None:
    """Put a backup in the place of the store at ``path``; where what was there is now, None where nothing was.

    It becomes a store of its own (``identity``): whoever acted on what the other one said looks before he goes on.
    Raises Held while a process runs the loops on it, and StoreError.
    """
    prepare_folder(path)
    with hold(path):
        return put_back(copy, path, migrations.STORE, lambda found: _Rows(found).problems(), _become_another)


def _become_another(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE identity SET value = lower(hex(randomblob(16)))")
