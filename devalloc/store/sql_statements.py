"""The SQL statements of the embedded store, and their results."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import TypeVar

from devalloc.api.kinds import API_KINDS, qualified_kind
from devalloc.store import metadata_rules
from devalloc.store.errors import Expired, Invalid, Key, NotFound, Object
from devalloc.store.metadata_rules import parse_version
from devalloc.store.protocol import Event, EventType, Fence

_SMALL_CHANGE_BYTES = 256
"""By how many bytes an object may grow when the disk is full: for ``running: false``, or the reason of a failure."""
_DELETING_BYTES = 4096
"""The same for an object that is being deleted: for its deletionTimestamp, and for conditions in which the owners of
its finalizers report their progress."""

Result = TypeVar("Result")


class SqlStatements:
    """The statements; each must run inside a transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._written: list[tuple[Object | None, Object]] = []
        """Objects before and after the changes, except deleted ones."""

    @property
    def grows(self) -> bool:
        """Whether the writes need more space: they add an object, or more than a few words to one."""
        return _grow(self._written)

    def unless_it_grows(self, write: Callable[[], Result]) -> Result | None:
        """Make that write; if it grows, undo it and return None."""
        before = len(self._written)
        self._connection.execute("SAVEPOINT unit")
        try:
            result = write()
            if not _grow(self._written[before:]):
                return result
            self._connection.execute("ROLLBACK TO unit")
            del self._written[before:]
            return None
        finally:
            # If the disk becomes full within a statement, SQLite ends the transaction with its savepoints.
            if self._connection.in_transaction:
                self._connection.execute("RELEASE unit")

    def find(self, key: Key) -> Object | None:
        row = self._connection.execute(
            "SELECT content FROM objects WHERE kind = ? AND namespace = ? AND name = ?", _row_key(key)
        ).fetchone()
        return None if row is None else metadata_rules.decode(row[0])

    def read(self, key: Key) -> Object:
        if (obj := self.find(key)) is None:
            raise NotFound(f"{key} does not exist")
        return obj

    def current(self, obj: Object) -> tuple[Key, Object]:
        """The stored object that ``obj`` will replace. Raises Conflict if ``obj`` is not based on its latest state."""
        key = Key.of(obj)
        base, uid = metadata_rules.base_version(key, obj), obj["metadata"].get("uid") or None
        if (old := self.find(key)) is None:
            before = None if key.kind == obj["kind"] else self.find(key._replace(kind=obj["kind"]))
            if before is not None and uid == before["metadata"]["uid"]:
                raise Invalid(f"{key}: the object has apiVersion {before['apiVersion']}; its group cannot change")
            raise NotFound(f"{key} does not exist")
        metadata_rules.check_state(key, old, uid, base)
        return key, old

    def select(self, kinds: frozenset[str] | None, namespace: str | None) -> list[Object]:
        where, parameters = _where(kinds)
        if namespace is not None:
            where, parameters = f"{where} AND namespace = ?", (*parameters, namespace)
        rows = self._connection.execute(
            f"SELECT content FROM objects WHERE {where} ORDER BY kind, namespace, name", parameters
        )
        return [metadata_rules.decode(content) for (content,) in rows]

    def version(self) -> int:
        """The newest resourceVersion."""
        return self._counter()[0]

    def identity(self) -> str:
        (value,) = self._connection.execute("SELECT value FROM identity").fetchone()
        return str(value)

    def insert(self, key: Key, obj: Object) -> Object:
        version = self._next()
        obj = metadata_rules.with_version(obj, version)
        self._written.append((None, obj))
        self._connection.execute(
            "INSERT INTO objects VALUES (?, ?, ?, ?, ?, ?, 0, ?)",
            (*_row_key(key), version, version, version, metadata_rules.encode(obj)),
        )
        return obj

    def update(self, key: Key, old: Object, new: Object) -> Object:
        """Store ``new``; does nothing if nothing changed."""
        if new == old:
            return old
        version = self._next()
        respecified = new["metadata"]["generation"] != old["metadata"]["generation"]
        restated = new.get("status") != old.get("status")
        new = metadata_rules.with_version(new, version)
        self._written.append((old, new))
        self._connection.execute(
            "UPDATE objects SET version = ?, content = ?, spec_version = iif(?, ?, spec_version),"
            " status_version = iif(?, ?, status_version) WHERE kind = ? AND namespace = ? AND name = ?",
            (version, metadata_rules.encode(new), respecified, version, restated, version, *_row_key(key)),
        )
        return new

    def remove(self, key: Key, last: Object, deletions_kept: int) -> Object:
        version = self._next()
        last = metadata_rules.with_version(last, version)
        self._connection.execute(
            "INSERT INTO tombstones VALUES (?, ?, ?)", (version, key.kind, metadata_rules.encode(last))
        )
        self._connection.execute("DELETE FROM objects WHERE kind = ? AND namespace = ? AND name = ?", _row_key(key))
        self._forget(deletions_kept)
        return last

    def events(self, kinds: frozenset[str] | None, since: int, *, deletions: bool) -> tuple[list[Event], int]:
        """The changes after ``since``, in order, and the resourceVersion up to which they are complete."""
        newest, forgotten = self._counter()
        # A caller that starts from 0 knows no objects whose deletion it could miss.
        if 0 < since < forgotten or since > newest:
            raise Expired(f"resourceVersion {since} is too old, or from another store (now {newest}); list again")
        where, parameters = _where(kinds)
        changed = self._connection.execute(
            f"SELECT version, created_version, content FROM objects WHERE version > ? AND {where}", (since, *parameters)
        )
        changes = [
            (version, EventType.ADDED if born > since else EventType.MODIFIED, content)
            for version, born, content in changed
        ]
        if deletions:
            deleted = self._connection.execute(
                f"SELECT version, content FROM tombstones WHERE version > ? AND {where}", (since, *parameters)
            )
            changes += [(version, EventType.DELETED, content) for version, content in deleted]
        return [Event(what, metadata_rules.decode(content), str(at)) for at, what, content in sorted(changes)], newest

    def broken(self, fence: Fence) -> dict[Key, str]:
        """The changes that violate the fence."""
        since, conflicts = parse_version(fence.resource_version), {}
        newest, forgotten = self._counter()
        if since < forgotten:
            raise Expired(f"the fence is of resourceVersion {since}, but deletions since then are forgotten")
        if since > newest:
            raise Expired(f"the fence is of resourceVersion {since}, but the store, another one, is only at {newest}")
        for kinds, column, what in (
            (fence.specs, "spec_version", "its spec was written"),
            (fence.statuses, "status_version", "its status was written"),
        ):
            where, parameters = _where(kinds)
            for (content,) in self._connection.execute(
                f"SELECT content FROM objects WHERE {where} AND {column} > ?", (*parameters, since)
            ):
                key = Key.of(metadata_rules.decode(content))
                conflicts[key] = f"{key} changed meanwhile: {what}"
        where, parameters = _where(fence.specs)
        for (content,) in self._connection.execute(
            f"SELECT content FROM tombstones WHERE {where} AND version > ?", (*parameters, since)
        ):
            key = Key.of(metadata_rules.decode(content))
            conflicts[key] = f"{key} was deleted meanwhile"
        return conflicts

    def problems(self) -> list[str]:
        """Damage to the file, and rows that do not match their objects."""
        problems = [text for (text,) in self._connection.execute("PRAGMA integrity_check") if text != "ok"]
        newest, factory = self.version(), self._connection.text_factory
        self._connection.text_factory = lambda raw: raw.decode("utf-8", "replace")  # damaged bytes, too
        try:
            rows = self._connection.execute("SELECT kind, namespace, name, version, content FROM objects").fetchall()
        finally:
            self._connection.text_factory = factory
        for kind, namespace, name, version, content in rows:
            key = Key(kind, namespace or None, name)
            try:
                obj = metadata_rules.decode(content)
                # Versions before 0.2.0 stored objects of other groups under their kind alone.
                names = (Key.of(obj), Key.of({**obj, "apiVersion": ""}))
                same = key in names and obj["metadata"]["resourceVersion"] == str(version)
            except (ValueError, KeyError, TypeError, AttributeError, Invalid):
                same = False
            if not same or version > newest:
                problems.append(f"{key}: the row does not contain that object at resourceVersion {version}")
        return problems

    def call_by_group(self) -> None:
        """Rename objects of other groups, which versions before 0.2.0 stored under their kind, to the full name."""
        where, parameters = _where(frozenset(API_KINDS))
        for kind, namespace, name, content in self._connection.execute(
            f"SELECT kind, namespace, name, content FROM objects WHERE {where}", parameters
        ).fetchall():
            try:
                full = qualified_kind(kind, metadata_rules.decode(content).get("apiVersion"))
            except (ValueError, AttributeError):
                continue  # damaged; the check reports it
            if full != kind:
                self._connection.execute(
                    "UPDATE OR IGNORE objects SET kind = ? WHERE kind = ? AND namespace = ? AND name = ?",
                    (full, kind, namespace, name),
                )

    def _counter(self) -> tuple[int, int]:
        """The newest resourceVersion, and the one up to which deletions are forgotten.

        An empty store is at 1: a watch from 0 starts with the existing objects and does not report earlier deletions,
        but a watch from a list of the empty store must report them.
        """
        newest, forgotten = self._connection.execute("SELECT max(version, 1), forgotten FROM counter").fetchone()
        return int(newest), int(forgotten)

    def _next(self) -> int:
        self._connection.execute("UPDATE counter SET version = max(version, 1) + 1")
        return self.version()

    def _forget(self, deletions_kept: int) -> None:
        (count,) = self._connection.execute("SELECT count(*) FROM tombstones").fetchone()
        # In steps of a tenth, so that not every deletion has this cost.
        if count <= deletions_kept + deletions_kept // 10:
            return
        (limit,) = self._connection.execute(
            "SELECT version FROM tombstones ORDER BY version DESC LIMIT 1 OFFSET ?", (deletions_kept,)
        ).fetchone()
        self._connection.execute("DELETE FROM tombstones WHERE version <= ?", (limit,))
        self._connection.execute("UPDATE counter SET forgotten = ?", (limit,))


def _grow(written: Sequence[tuple[Object | None, Object]]) -> bool:
    if any(old is None for old, _ in written):
        return True
    more = sum(len(metadata_rules.encode(new)) - len(metadata_rules.encode(old or {})) for old, new in written)
    return more > sum(_DELETING_BYTES if metadata_rules.is_deleting(new) else _SMALL_CHANGE_BYTES for _, new in written)


def _row_key(key: Key) -> tuple[str, str, str]:
    return key.kind, key.namespace or "", key.name


def _where(kinds: frozenset[str] | None) -> tuple[str, tuple[str, ...]]:
    if kinds is None:
        return "TRUE", ()
    return f"kind IN ({', '.join('?' * len(kinds))})", tuple(sorted(kinds))
