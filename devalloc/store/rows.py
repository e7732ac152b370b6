"""The statements of the embedded store, and what they find."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import TypeVar

from devalloc.api.kinds import KINDS, kind_in_store
from devalloc.store import lifecycle
from devalloc.store.errors import Conflict, Expired, Invalid, NotFound
from devalloc.store.key import Key, Object
from devalloc.store.protocol import Event, EventType, Fence
from devalloc.store.versions import another, changed, version_of

_WORDS_BYTES = 256
"""By how much an object may grow with the reserve of a full disk: to have ``running: false``, or say why it fails."""
_DELETING_BYTES = 4096
"""The same of one that is being deleted: room for its deletionTimestamp, and for the conditions in which those who hold
it say how far they are."""

Result = TypeVar("Result")


class Rows:
    """The statements, each to be used inside a transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._written: list[tuple[Object | None, Object]] = []
        """Objects before and after, of those that are not removed."""

    @property
    def grows(self) -> bool:
        """Whether what was written adds something that takes space: an object, or more than words to one."""
        return _grow(self._written)

    def unless_it_grows(self, write: Callable[[], Result]) -> Result | None:
        """Make that write; None, and nothing of it is written, if it grows."""
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
            # A full disk within a statement ends the transaction, and the savepoint with it.
            if self._connection.in_transaction:
                self._connection.execute("RELEASE unit")

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
        if (old := self.find(key)) is None:
            before = None if key.kind == obj["kind"] else self.find(key._replace(kind=obj["kind"]))
            if before is not None and uid == before["metadata"]["uid"]:
                raise Invalid(f"{key}: the object is of {before['apiVersion']}, and stays of that group")
            raise NotFound(f"{key} does not exist")
        if uid and uid != old["metadata"]["uid"]:
            raise Conflict({key: another(key, old, uid)})
        if base != old["metadata"]["resourceVersion"]:
            raise Conflict({key: changed(key, old, base)})
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
        return self._counter()[0]

    def identity(self) -> str:
        (value,) = self._connection.execute("SELECT value FROM identity").fetchone()
        return str(value)

    def insert(self, key: Key, obj: Object) -> Object:
        version = self._next()
        obj = lifecycle.versioned(obj, version)
        self._written.append((None, obj))
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
        self._written.append((old, new))
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
        newest, forgotten = self._counter()
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
        return [Event(what, lifecycle.decode(content), str(at)) for at, what, content in sorted(found)], newest

    def broken(self, fence: Fence) -> dict[Key, str]:
        """What the fence forbids and happened."""
        since, conflicts = version_of(fence.resource_version), {}
        newest, forgotten = self._counter()
        if since < forgotten:
            raise Expired(f"the fence is as old as resourceVersion {since}, and deletions since then are forgotten")
        if since > newest:
            raise Expired(f"the fence is of resourceVersion {since}, and the store, another one, only at {newest}")
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
                # Versions before 0.2.0 stored an object of another group by its kind alone.
                names = (Key.of(obj), Key.of({**obj, "apiVersion": ""}))
                same = key in names and obj["metadata"]["resourceVersion"] == str(version)
            except (ValueError, KeyError, TypeError, AttributeError, Invalid):
                same = False
            if not same or version > newest:
                found.append(f"{key}: what is stored is not that object at resourceVersion {version}")
        return found

    def call_by_group(self) -> None:
        """Have objects of other groups, as versions before 0.2.0 stored them, by the kind's full name."""
        where, parameters = _where(frozenset(KINDS))
        for kind, namespace, name, content in self._connection.execute(
            f"SELECT kind, namespace, name, content FROM objects WHERE {where}", parameters
        ).fetchall():
            try:
                full = kind_in_store(kind, lifecycle.decode(content).get("apiVersion"))
            except (ValueError, AttributeError):
                continue  # damaged, which the check says
            if full != kind:
                self._connection.execute(
                    "UPDATE OR IGNORE objects SET kind = ? WHERE kind = ? AND namespace = ? AND name = ?",
                    (full, kind, namespace, name),
                )

    def _counter(self) -> tuple[int, int]:
        """The newest resourceVersion, and the one up to which deletions are forgotten.

        A store into which nothing was written is at 1: a watch from 0 begins with the objects that exist and says
        nothing of those that came and went before, which a watch from a list of the empty store must say.
        """
        newest, forgotten = self._connection.execute("SELECT max(version, 1), forgotten FROM counter").fetchone()
        return int(newest), int(forgotten)

    def _next(self) -> int:
        self._connection.execute("UPDATE counter SET version = max(version, 1) + 1")
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


def _grow(written: Sequence[tuple[Object | None, Object]]) -> bool:
    if any(old is None for old, _ in written):
        return True
    more = sum(len(lifecycle.encode(new)) - len(lifecycle.encode(old or {})) for old, new in written)
    return more > sum(_DELETING_BYTES if lifecycle.is_deleting(new) else _WORDS_BYTES for _, new in written)


def _row_key(key: Key) -> tuple[str, str, str]:
    return key.kind, key.namespace or "", key.name


def _where(kinds: frozenset[str] | None) -> tuple[str, tuple[str, ...]]:
    if kinds is None:
        return "TRUE", ()
    return f"kind IN ({', '.join('?' * len(kinds))})", tuple(sorted(kinds))
