"""What a store has, and what was made of it, kept from look to look: only what has changed is read again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from devalloc.store import EventType, Expired, Key, Object, Store

T = TypeVar("T")


class Look(NamedTuple):
    """All objects as of one moment."""

    objects: Mapping[Key, Object]
    """By kind, namespace and name in order."""
    version: str
    """The place in the store's history that they are of."""
    is_new: bool
    """Something is other than at the look before."""


class Reading:
    """The objects of some kinds. Use from one thread; nobody may change what it gives.

    An object that is as it was is the very same one, so that ``Made`` knows what was made of it.
    """

    def __init__(self, store: Store, kinds: Iterable[str] | None, without: Collection[str] = ()) -> None:
        """``kinds``: None for all, but ``without`` some."""
        self._store = store
        self._kinds = None if kinds is None else frozenset(kinds)
        self._without = frozenset(without)
        self._objects: dict[Key, Object] = {}
        self._version: str | None = None
        """None before the first look."""

    def look(self) -> Look:
        """What there is now. Raises StoreError."""
        before = self._objects
        if self._version is None or not self._hear(self._version):
            listed, self._version = self._store.list(self._kinds)
            keys = ((Key.of(obj), obj) for obj in listed)
            self._objects = {key: _known(before.get(key), obj) for key, obj in keys if key.kind not in self._without}
        return Look(self._objects, self._version, self._objects is not before)

    def _hear(self, since: str) -> bool:
        """Take in what has happened; False where the store cannot tell that any more."""
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
        is_ordered = True
        for event in events:
            key = Key.of(event.object)
            if event.type is EventType.DELETED:
                objects.pop(key, None)
            else:
                is_ordered = is_ordered and key in objects
                objects[key] = event.object
        self._objects = objects if is_ordered else dict(sorted(objects.items(), key=_order))
        return True


def _order(item: tuple[Key, Object]) -> tuple[str, str, str]:
    kind, namespace, name = item[0]
    return kind, namespace or "", name


def _known(before: Object | None, obj: Object) -> Object:
    """The object as it was known before, if it is the same. Its resourceVersion does not say so after a restore."""
    return before if before is not None and before == obj else obj


class Made:
    """What was made of objects, known again for as long as each is asked about turn after turn. Use from one thread.

    Objects are told by identity: for those of a ``Reading``, which nobody changes.
    """

    def __init__(self) -> None:
        self._before: dict[tuple[str, int], tuple[Object, Any, Any]] = {}
        self._now: dict[tuple[str, int], tuple[Object, Any, Any]] = {}

    def turn(self) -> None:
        """What was not asked for since the last turn is forgotten."""
        self._before, self._now = self._now, {}

    def of(self, what: str, obj: Object, make: Callable[[], T], given: Any = None) -> T:
        """The result of ``make``, which depends on the object and on what is equal to ``given`` only."""
        place = what, id(obj)
        known = self._now.get(place) or self._before.get(place)
        if known is None or known[0] is not obj or known[1] != given:
            known = obj, given, make()
        self._now[place] = known
        found: T = known[2]
        return found
