"""The overview of a store, made anew when something changed and somebody looks."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from devalloc.api.cordon import NODE
from devalloc.controller.overview import Overview, overview, within
from devalloc.controller.overview.claims import has_untold
from devalloc.controller.reading import Look, Made, Reading
from devalloc.store import Forbidden, NotServed, Object, Store, StoreError

log = logging.getLogger(__name__)

KINDS = ("DevicePool", "DeviceClass", "DeviceClaim", "VirtualMachine")
BESIDE = ("ResourceQuota", NODE, "ResourceSlice", "ResourceClaim", "DeviceTaintRule")
"""What is shown as well where it can be read. Of an embedded store Nodes do not count."""
LEAST_SECONDS = 1.0
SHARE = 10
"""However many look, and however large the fleet is: no more than one part in so many of a CPU is spent.
What counts is the CPU time of the thread that looks."""
NO_KINDS = (
    "There are no DevicePools, DeviceClaims or VirtualMachines: devalloc's own kinds are not installed in this cluster."
)
OLD = "ResourceSlices, ResourceClaims and quotas may be shown as they were: what changes of them is not told any more."
AGAIN_SECONDS = 30.0
"""After which a kind is asked for again that could not be read."""
SILENT_SECONDS = 10.0
"""For so long a cluster's watches may be begun anew before what is shown is said to be old."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What there was to see."""

    version: str
    """Another one whenever there is anything else to see, also in another process."""
    overview: Overview
    at: datetime
    """When the store was last read."""
    trouble: str = ""
    """Why the store cannot be read; what is shown is the last that was."""
    warns: bool = False
    """The first note is what ``remarks`` of the ``Sight`` said."""


@dataclass(frozen=True, slots=True)
class _Read:
    looks: tuple[Look, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def objects(self) -> Iterator[Object]:
        return (obj for look in self.looks for obj in look.objects.values())

    def __add__(self, more: _Read) -> _Read:
        return _Read(self.looks + more.looks, self.notes + more.notes)


class Sight:
    """Use from any thread."""

    def __init__(
        self,
        store: Store,
        beside: Store | None = None,
        *,
        namespace: str | None = None,
        remarks: Callable[[], str] = lambda: "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``beside``: where on a cluster that is read which not everybody may read, and which nothing else depends on:
        what cannot be read is said, and the rest shown. None: all is in ``store``. ``namespace``: the only one whose
        claims, machines and quotas are shown. ``remarks``: what else is to be said; "" for nothing."""
        self._store = store
        self._namespace = namespace
        self._remarks = remarks
        self._beside = beside
        self._clock = clock
        self._lock = threading.Lock()
        self._readings: dict[frozenset[str], Reading] = {}
        """By the kinds that are read together, each always from the same store. Only what changed is read again."""
        self._identity = ""
        """Of an embedded store: another one after a restore."""
        self._made = Made()
        self._seen: Seen | None = None
        self._read = _Read()
        """What ``_seen`` was made from."""
        self._refused: dict[str, tuple[float, str]] = {}
        """By kind that could not be read: until when it is left alone, and what is said of it."""
        self._run, self._number = secrets.token_hex(4), 0
        self._next = 0.0

    def latest(self) -> Seen:
        """What there is now, or was a moment ago. Raises StoreError where the store could never be read."""
        with self._lock:
            if self._seen is None or self._clock() >= self._next:
                began = time.thread_time()
                try:
                    self._seen = self._looked(self._seen)
                except StoreError as error:
                    if self._seen is None:
                        raise
                    log.warning("the page shows what was, for the store cannot be read: %s", error)
                    self._seen = replace(self._seen, trouble=str(error), version=self._version())
                self._next = self._clock() + max(LEAST_SECONDS, SHARE * (time.thread_time() - began))
            return self._seen

    def _looked(self, before: Seen | None) -> Seen:
        read = self._read_all()
        if remark := self._remarks():
            read = _Read(notes=(remark,)) + read
        trouble = "the API server does not answer" if _is_silent(self._store) else ""
        now = datetime.now(UTC)
        if before is None or not self._is_as_it_was(read):
            self._made.turn()
            current = overview(read.objects, read.notes, self._made)
            if self._namespace is not None:
                current = within(current, self._namespace)
            self._read = read
            if before is None or before.overview != current:
                return Seen(self._version(), current, now, trouble, bool(remark))
        if before.trouble == trouble:
            return replace(before, at=now)
        return Seen(self._version(), before.overview, now, trouble, before.warns)

    def _is_as_it_was(self, read: _Read) -> bool:
        """Whether these are the very same objects: a ``Reading`` gives the same mapping as long as nothing changes."""
        pairs = zip(read.looks, self._read.looks, strict=False)
        same = len(read.looks) == len(self._read.looks) and all(new.objects is old.objects for new, old in pairs)
        return same and read.notes == self._read.notes

    def _read_all(self) -> _Read:
        if self._beside is None:
            if (identity := self._store.identity()) != self._identity:
                self._identity = identity
                self._readings.clear()
            return _Read((self._look(self._store, (*KINDS, *(kind for kind in BESIDE if kind != NODE))),))
        more = self._read_beside(self._beside)
        try:
            return _Read((self._look(self._store, KINDS),)) + more
        except NotServed:
            # Nodes publish ResourceSlices only
            return _Read(notes=(NO_KINDS,)) + more
        except Forbidden:
            # Somebody who has rights in one namespace: pools and classes are the cluster's.
            ours = self._read_each(self._store, KINDS)
            if not ours.looks and len(ours.notes) == len(KINDS):
                raise
            return ours + more

    def _read_beside(self, store: Store) -> _Read:
        read = self._read_each(store, BESIDE)
        if store is not self._store and _is_silent(store):
            return read + _Read(notes=(OLD,))
        return read

    def _read_each(self, store: Store, wanted: Sequence[str]) -> _Read:
        """Each kind for itself."""
        looks: list[Look] = []
        notes: list[str] = []
        kinds = [*wanted]
        for kind in kinds:
            if (refused := self._refused.get(kind)) is None or self._clock() >= refused[0]:
                try:
                    look = self._look(store, (kind,))
                except StoreError as error:
                    refused = self._refused[kind] = self._clock() + AGAIN_SECONDS, _note(kind, error)
                else:
                    self._refused.pop(kind, None)
                    looks.append(look)
                    if kind == "ResourceClaim" and has_untold(look.objects.values()):
                        kinds.append("Event")  # which only these need
                    continue
            notes += [refused[1]] if refused[1] else []
        return _Read(tuple(looks), tuple(notes))

    def _look(self, store: Store, kinds: Sequence[str]) -> Look:
        return self._readings.setdefault(frozenset(kinds), Reading(store, kinds)).look()

    def _version(self) -> str:
        self._number += 1
        return f"{self._run}-{self._number}"


def _is_silent(store: Store) -> bool:
    """Of a cluster: what is listed is what was heard last, however long ago."""
    return float(getattr(store, "silent_seconds", 0.0)) >= SILENT_SECONDS


def _note(kind: str, error: StoreError) -> str:
    """Why a kind is not shown; "" where there can be nothing of it."""
    if isinstance(error, NotServed):
        return ""
    others = {"Event": "Why labelled ResourceClaims wait", "Node": "Which Nodes are cordoned or not ready"}
    what = others.get(kind, f"What there is of {kind}s")
    if isinstance(error, Forbidden):
        return f"{what} is not shown: list and watch of them are not allowed here."
    return f"{what} is not shown: {error}"
