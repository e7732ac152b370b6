"""Snapshots of a store and values computed from them, kept from one to the next: only what has changed is read
again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from devalloc.store import EventType, Expired, Key, Object, Store

T = TypeVar("T")


class Snapshot(NamedTuple):
    """All objects as of one moment."""

    objects: Mapping[Key, Object]
    """By kind, namespace and name in order; if the reader is asked for changes, new ones are the last."""
    version: str
    """The place in the store's history that they are of."""
    is_new: bool
    """Something is other than at the look before."""


class SnapshotReader:
    """The objects of some kinds. Use from one thread; do not change what it returns.

    An object that is as it was is the very same one, so that ``Memo`` knows what was made of it.
    """

    def __init__(self, store: Store, kinds: Iterable[str] | None, without: Collection[str] = ()) -> None:
        """``kinds``: None for all, but ``without`` some."""
        self._store = store
        self._kinds = None if kinds is None else frozenset(kinds)
        self._without = frozenset(without)
        self._objects: dict[Key, Object] = {}
        self._version: str | None = None
        """None before the first look."""
        self._changed: set[Key] | None = None
        """None before the first ``take_changes``."""

    def take_changes(self) -> set[Key]:
        """The objects that have come, gone or become others between the last call and the last look; all at first.

        From then on a look costs what has changed, because new objects are no longer put in order among the others."""
        changed, self._changed = self._changed, set()
        return {*self._objects} if changed is None else changed

    def look(self) -> Snapshot:
        """What there is now. Raises StoreError."""
        before = self._objects
        if self._version is None or not self._hear(self._version):
            listed, self._version = self._store.list(self._kinds)
            keys = sorted(((Key.of(obj), obj) for obj in listed), key=lambda item: order_of_key(item[0]))
            self._objects = {
                key: _previous_if_equal(before.get(key), obj) for key, obj in keys if key.kind not in self._without
            }
            if self._changed is not None:
                self._changed |= before.keys() - self._objects.keys()
                self._changed |= {key for key, obj in self._objects.items() if before.get(key) is not obj}
        return Snapshot(self._objects, self._version, self._objects is not before)

    def _hear(self, since: str) -> bool:
        """Take in what has happened; False if the store no longer has these changes."""
        try:
            events = [*self._store.watch(self._kinds, since, timeout=0)]
        except Expired:
            return False
        if not events:
            return True
        self._version = events[-1].resource_version
        events = [event for event in events if Key.of(event.object).kind not in self._without]
        if not events:
            return True
        objects = dict(self._objects)  # who was given the others may have them still
        new: dict[Key, Object] = {}
        for event in events:
            key = Key.of(event.object)
            if event.type is EventType.DELETED:
                objects.pop(key, None)
                new.pop(key, None)
            elif key in objects:
                objects[key] = event.object
            else:
                new[key] = event.object
        if self._changed is None:
            ordered = sorted((objects | new).items(), key=lambda item: order_of_key(item[0])) if new else ()
            self._objects = dict(ordered) if new else objects
        else:
            self._objects = objects | new
            self._changed |= {Key.of(event.object) for event in events}
        return True


def order_of_key(key: Key) -> tuple[str, str, str]:
    """What snapshots are sorted by: kind, namespace and name."""
    return key.kind, key.namespace or "", key.name


def _previous_if_equal(before: Object | None, obj: Object) -> Object:
    """The object as it was known before, if it is the same. Its resourceVersion does not say so after a restore."""
    return before if before is not None and before == obj else obj


class Memo:
    """A cache of values computed from objects; it keeps each as long as every round asks for it. Use from one thread.

    Objects are compared by identity: for those of a ``SnapshotReader``, which never change.
    """

    def __init__(self) -> None:
        self._before: dict[tuple[str, int], tuple[Object, Any, Any]] = {}
        self._now: dict[tuple[str, int], tuple[Object, Any, Any]] = {}
        self._settled: dict[tuple[str, int], tuple[Object, Any, Any]] = {}
        self._names: set[str] = set()
        """What values are of."""

    def turn(self) -> None:
        """What was not asked for since the last turn is forgotten."""
        self._before, self._now = self._now, {}

    def settle(self, objects: Iterable[Object]) -> None:
        """Keep what was made of these, though no round asks for it, until ``unsettle``."""
        for place in ((what, id(obj)) for obj in objects for what in self._names):
            before, now = self._before.pop(place, None), self._now.pop(place, None)
            if (cached := now or before) is not None:
                self._settled[place] = cached

    def unsettle(self, objects: Iterable[Object]) -> None:
        """Keep what was made of these as long as every round asks for it."""
        for place in ((what, id(obj)) for obj in objects for what in self._names):
            if (cached := self._settled.pop(place, None)) is not None:
                self._now[place] = cached

    def is_none(self, what: str, obj: Object, given: Any = None) -> bool:
        """Whether the result of ``of`` for these is in the cache and None, which costs less than to ask for it."""
        place = what, id(obj)
        cached = self._now.get(place) or self._before.get(place)
        if cached is None or cached[2] is not None or cached[0] is not obj:
            return False
        if cached[1] is not given and cached[1] != given:
            return False
        self._now[place] = cached
        return True

    def of(self, what: str, obj: Object, make: Callable[[], T], given: Any = None) -> T:
        """The result of ``make``, which depends on the object and on what is equal to ``given`` only."""
        place = what, id(obj)
        cached = self._now.get(place) or self._before.get(place)
        if cached is None or cached[0] is not obj or (cached[1] is not given and cached[1] != given):
            cached = obj, given, make()
            self._names.add(what)
        self._now[place] = cached
        value: T = cached[2]
        return value
