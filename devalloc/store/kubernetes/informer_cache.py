"""Informer cache: the objects of a cluster as this process last saw them, in memory, with a history of its own.

The history counts changes from watches, lists and the answers to this process's own writes. A *place* in it is valid
only in this process (it starts at the current time, so places of earlier processes are too old). As in the embedded
store, each object has the places of its last changes, and recently deleted objects are kept. Duplicate or late news (a
watch behind a list, a list behind a write) is ignored.
"""

from __future__ import annotations

import marshal
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from devalloc.store.errors import Expired, Key, Object
from devalloc.store.metadata_rules import parse_version, spec_of
from devalloc.store.protocol import Event, EventType, Fence, Listing

MAX_DELETION_BYTES = 64 << 20
"""Maximum bytes of deleted objects, so that users who create and delete objects cannot fill this process's memory."""


@dataclass(slots=True)
class _CachedObject:
    """An existing object."""

    content: bytes
    """Serialized by ``marshal``, which is several times as fast as JSON; callers cannot change it."""
    uid: str
    version: int
    created: int
    changed: int
    spec: int
    status: int


@dataclass(frozen=True, slots=True)
class _Deletion:
    """A deleted object."""

    key: Key
    content: bytes
    uid: str
    at: int
    version: int
    """The API server's resource version at which it was gone."""


class InformerCache:
    """The informer cache. Thread-safe."""

    def __init__(self, deletions_kept: int) -> None:
        self.changed = threading.Condition(threading.RLock())
        """Notified about changes. Hold it to read several things consistently."""
        self.newest = self._forgotten = self._first = time.time_ns() // 1000
        self._deletions_kept = deletions_kept
        self._entries: dict[Key, _CachedObject] = {}
        """In the order of their last change."""
        self._kinds: dict[str, set[Key]] = {}
        self._last_changes: dict[str, int] = {}
        """The place of the last change, by kind."""
        self._gone: deque[_Deletion] = deque()
        self._gone_bytes = 0
        self._dead: dict[str, int] = {}
        """UIDs of deleted objects with the version of the deletion. Older news is ignored, but not newer news: with a
        field selector, an object can leave the selection and come back."""
        self._untold: dict[str, str] = {}
        """UIDs and kinds of objects that this process deleted, until the watch reports it, which may take long."""
        self._floors: dict[str, int] = {}
        """The API server's version up to which everything is known, by kind."""
        self._held: dict[Key, list[tuple[str, Object]]] = {}
        """Watch events of objects that this process is writing, until the result of the write is known."""

    # Input.

    def tell(self, kind: str, type_: str, obj: Object) -> None:
        """Process a watch event."""
        version, key = _version(obj), Key.of(obj)
        with self.changed:
            if version <= self._floors.get(kind, 0):
                return
            self._floors[kind] = version
            if key in self._held:
                self._held[key].append((type_, obj))
            else:
                self._tell(key, type_, obj)

    def note_bookmark(self, kind: str, version: str) -> None:
        """Process a bookmark: a watch has reported everything up to here."""
        with self.changed:
            self._floors[kind] = max(self._floors.get(kind, 0), parse_version(version))

    def see(self, obj: Object) -> None:
        """Process an object that was read or written."""
        with self.changed:
            self._see(obj)

    def lose(self, last: Object) -> None:
        """Process an object that this process deleted."""
        with self.changed:
            key, uid = Key.of(last), last["metadata"]["uid"]
            if uid not in self._dead:
                self._untold[uid] = key.kind
            self._lose(key, uid, last, _version(last))

    def relist(self, kind: str, objects: Iterable[Object], version: str, *, anew: bool = False) -> None:
        """Process a list of all selected objects of a kind at a version of the API server; differences become events.
        Ignores an outdated list, unless ``anew`` is set: then the server has lost newer changes (a backup was
        restored), and the list counts."""
        floor = parse_version(version)
        with self.changed:
            if floor < self._floors.get(kind, 0) and not anew:
                return
            there = {Key.of(obj): obj for obj in objects}
            uids = {obj["metadata"]["uid"] for obj in there.values()}
            self._untold = {uid: of for uid, of in self._untold.items() if of != kind or (uid in uids and not anew)}
            # What is listed exists, even if it had left the selection up to here.
            self._dead = {uid: at for uid, at in self._dead.items() if uid not in uids or (at > floor and not anew)}
            for key in list(self._kinds.get(kind, ())):
                entry = self._entries[key]
                if key not in there and (anew or entry.version <= floor):
                    self._lose(key, entry.uid, marshal.loads(entry.content), floor)
            for obj in there.values():
                self._see(obj, anew=anew)
            self._floors[kind] = floor

    @contextmanager
    def holding(self, keys: Iterable[Key]) -> Iterator[None]:
        """Hold back watch events of these objects while inside, so that own writes are recognized as such."""
        with self.changed:
            own = [key for key in keys if key not in self._held]
            self._held |= {key: [] for key in own}
        try:
            yield
        finally:
            with self.changed:
                for key in own:
                    for type_, obj in self._held.pop(key):
                        self._tell(key, type_, obj)

    def _tell(self, key: Key, type_: str, obj: Object) -> None:
        if type_ == EventType.DELETED.value:
            if self._untold.pop(obj["metadata"]["uid"], None) is None:
                self._lose(key, obj["metadata"]["uid"], obj, _version(obj))
        else:
            self._see(obj)

    def _see(self, obj: Object, *, anew: bool = False) -> None:
        metadata, key = obj["metadata"], Key.of(obj)
        uid, version = metadata["uid"], _version(obj)
        if version <= self._dead.get(uid, -1) or uid in self._untold:
            return
        entry = self._entries.get(key)
        if entry is not None and (version == entry.version if anew else version <= entry.version):
            return
        if entry is not None and entry.uid != uid:
            self._lose(key, entry.uid, marshal.loads(entry.content), version)
            entry = None
        self._dead.pop(uid, None)
        at = self._next(key.kind)
        if entry is None:
            born = _CachedObject(marshal.dumps(obj), uid, version, at, at, at, at if obj.get("status") else 0)
            self._entries[key] = born
            self._kinds.setdefault(key.kind, set()).add(key)
            return
        before = marshal.loads(entry.content)
        if before["metadata"].get("generation") != metadata.get("generation") or spec_of(before) != spec_of(obj):
            entry.spec = at
        if before.get("status") != obj.get("status"):
            entry.status = at
        entry.content, entry.version, entry.changed = marshal.dumps(obj), version, at
        del self._entries[key]
        self._entries[key] = entry  # moves it to the end, as the last change

    def _lose(self, key: Key, uid: str, last: Object, version: int) -> None:
        if uid in self._dead:
            return
        entry = self._entries.get(key)
        if entry is not None and entry.uid != uid:
            return  # an earlier object of that name; the present one already implies its deletion
        if entry is not None:
            del self._entries[key]
            self._kinds[key.kind].discard(key)
        content = marshal.dumps(last)
        self._gone.append(_Deletion(key, content, uid, self._next(key.kind), version))
        self._gone_bytes += len(content)
        self._dead[uid] = version
        while len(self._gone) > self._deletions_kept or self._gone_bytes > MAX_DELETION_BYTES:
            oldest = self._gone.popleft()
            self._gone_bytes -= len(oldest.content)
            if self._dead.get(oldest.uid) == oldest.version:
                del self._dead[oldest.uid]
            self._forgotten = oldest.at

    def _next(self, kind: str) -> int:
        self.newest += 1
        self._last_changes[kind] = self.newest
        self.changed.notify_all()
        return self.newest

    # Output.

    def find(self, key: Key) -> Object | None:
        """The last known state of an object."""
        with self.changed:
            entry = self._entries.get(key)
            return None if entry is None else marshal.loads(entry.content)

    def select(self, kinds: frozenset[str], namespace: str | None) -> Listing:
        """All objects of the kinds, ordered."""
        with self.changed:
            keys = [key for kind in kinds for key in self._kinds.get(kind, ())]
            wanted = sorted(
                (key for key in keys if namespace in (None, key.namespace)), key=lambda k: (k[0], k[1] or "", k[2])
            )
            contents, newest = [self._entries[key].content for key in wanted], self.newest
        return Listing([marshal.loads(content) for content in contents], str(newest))

    def events(self, kinds: frozenset[str], since: int, *, deletions: bool) -> tuple[list[Event], int]:
        """The changes after ``since``, in order, and the place up to which they are complete. Raises Expired."""
        with self.changed:
            # Forgotten deletions of other kinds do not matter.
            is_ours = self._first <= since <= self.newest
            if is_ours and all(self._last_changes.get(kind, 0) <= since for kind in kinds):
                return [], self.newest
            if 0 < since < self._forgotten or since > self.newest:
                raise Expired(f"place {since} is too old, or from another process (now {self.newest}); list again")
            changes: list[tuple[int, EventType, bytes]] = []
            for key, entry in reversed(self._entries.items()):
                if entry.changed <= since:
                    break
                if key.kind in kinds:
                    type_ = EventType.ADDED if entry.created > since else EventType.MODIFIED
                    changes.append((entry.changed, type_, entry.content))
            if deletions:
                gone = (each for each in self._gone_since(since) if each.key.kind in kinds)
                changes += [(each.at, EventType.DELETED, each.content) for each in gone]
            newest = self.newest
        return [Event(type_, marshal.loads(content), str(at)) for at, type_, content in sorted(changes)], newest

    def broken(self, fence: Fence, written: frozenset[Key] = frozenset()) -> dict[Key, str]:
        """The changes that violate the fence, except of objects that were ``written`` under it. Raises Expired."""
        since, conflicts = parse_version(fence.resource_version), {}
        with self.changed:
            if since < self._forgotten or since > self.newest:
                raise Expired(f"the fence's place {since} is too old, or from another process (now {self.newest})")
            for key, entry in reversed(self._entries.items()):
                if entry.changed <= since:
                    break
                if key in written:
                    continue
                if key.kind in fence.specs and entry.spec > since:
                    conflicts[key] = f"{key} changed meanwhile: its spec was written"
                if key.kind in fence.statuses and entry.status > since:
                    conflicts[key] = f"{key} changed meanwhile: its status was written"
            for each in self._gone_since(since):
                if each.key.kind in fence.specs:
                    conflicts[each.key] = f"{each.key} was deleted meanwhile"
        return conflicts

    def _gone_since(self, since: int) -> Iterator[_Deletion]:
        for each in reversed(self._gone):
            if each.at <= since:
                return
            yield each


def _version(obj: Object) -> int:
    return parse_version(obj["metadata"]["resourceVersion"])
