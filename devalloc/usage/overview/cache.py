"""A cache of the overview of a store: computed again at the next request after a change."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from devalloc.api.cordon import NODE_KIND
from devalloc.api.dedicated_pools import namespaces_for_devalloc, with_namespace_default
from devalloc.controller.reconcile.snapshot import Memo, Snapshot, SnapshotReader
from devalloc.store import Forbidden, KindNotServed, Object, Store, StoreError
from devalloc.usage.overview import Overview, build_overview, in_namespace
from devalloc.usage.overview.claims import needs_events, needs_namespaces
from devalloc.usage.overview.refusal_cache import RefusalCache, Refusals

log = logging.getLogger(__name__)

REQUIRED_KINDS = ("DevicePool", "DeviceClass", "DeviceClaim", "VirtualMachine")
OPTIONAL_KINDS = ("ResourceQuota", NODE_KIND, "ResourceSlice", "ResourceClaim", "DeviceTaintRule")
"""What is shown as well if it can be read. Of an embedded store Nodes do not count."""
MIN_SECONDS = 1.0
CPU_DIVISOR = 10
"""However many look, and however large the fleet is: no more than one part in so many of a CPU is spent.
What counts is the CPU time of the thread that looks."""
NO_KINDS_MESSAGE = (
    "There are no DevicePools, DeviceClaims or VirtualMachines: devalloc's own kinds are not installed in this cluster."
)
STALE_MESSAGE = "ResourceSlices, ResourceClaims and quotas may be out of date: updates no longer arrive."
RETRY_SECONDS = 30.0
"""After which a kind is asked for again that could not be read."""
SILENT_SECONDS = 10.0
"""For so long a cluster's watches may be begun anew before what is shown is said to be old."""


@dataclass(frozen=True, slots=True)
class CachedOverview:
    """What there was to see."""

    version: str
    """Another one whenever there is anything else to see, also in another process."""
    overview: Overview
    at: datetime
    """When the store was last read."""
    trouble: str = ""
    """Why the store cannot be read; what is shown is the last that was."""
    warns: bool = False
    """The first note is what ``remarks`` of the ``OverviewCache`` said."""


@dataclass(frozen=True, slots=True)
class _StoreRead:
    looks: tuple[Snapshot, ...] = ()
    notes: tuple[str, ...] = ()
    unread: frozenset[str] = frozenset()
    """Kinds that may not be read."""
    has_labelled: bool = False
    """A ResourceClaim waits for devalloc's controller."""

    @property
    def objects(self) -> Iterator[Object]:
        return (obj for look in self.looks for obj in look.objects.values())

    def __add__(self, more: _StoreRead) -> _StoreRead:
        return _StoreRead(
            self.looks + more.looks,
            self.notes + more.notes,
            self.unread | more.unread,
            self.has_labelled or more.has_labelled,
        )


class OverviewCache:
    """Use from any thread."""

    def __init__(
        self,
        store: Store,
        optional_store: Store | None = None,
        *,
        namespace: str | None = None,
        remarks: Callable[[], str] = lambda: "",
        unserved: Callable[[], Mapping[str, str]] = lambda: {},
        unanswered: Callable[[], str] = lambda: "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``optional_store``: where on a cluster that is read which not everybody may read, and which nothing else
        depends on: what cannot be read is said, and the rest shown. None: all is in ``store``. ``namespace``: the only
        one whose claims, machines and quotas are shown. ``remarks``: what else is to be said; "" for nothing.
        ``unserved``: nodes whose plugin has ended, and that as a sentence. ``unanswered``: why devalloc's controller
        answers no ResourceClaims; "" if it does. It is asked for labelled ones that wait."""
        self._store = store
        self._namespace = namespace
        self._remarks = remarks
        self._unserved = unserved
        self._unanswered = unanswered
        self._reports_before: tuple[Mapping[str, str], str] = {}, ""
        """Which nodes are not served, and why no ResourceClaims are answered, as of ``_seen``."""
        self._optional_store = optional_store
        self._clock = clock
        self._lock = threading.Lock()
        self._readings: dict[frozenset[str], SnapshotReader] = {}
        """By the kinds that are read together, each always from the same store. Only what changed is read again."""
        self._identity = ""
        """Of an embedded store: another one after a restore."""
        self._memo = Memo()
        self._seen: CachedOverview | None = None
        self._read = _StoreRead()
        """What ``_seen`` was made from."""
        self._refused: dict[str, tuple[float, str]] = {}
        """By kind that could not be read: until when it is left alone, and what is said of it."""
        self._refusals = RefusalCache(clock)
        self._run, self._number = secrets.token_hex(4), 0
        self._next = 0.0

    def latest(self) -> CachedOverview:
        """What there is now, or was a moment ago. Raises StoreError if the store could never be read."""
        with self._lock:
            if self._seen is None or self._clock() >= self._next:
                began = time.thread_time()
                try:
                    self._seen = self._looked(self._seen)
                except StoreError as error:
                    if self._seen is None:
                        raise
                    log.warning("the page is out of date, because the store cannot be read: %s", error)
                    self._seen = replace(self._seen, trouble=str(error), version=self._version())
                self._next = self._clock() + max(MIN_SECONDS, CPU_DIVISOR * (time.thread_time() - began))
            return self._seen

    def refusals(self, seen: CachedOverview) -> Refusals:
        """Why claims of ``latest`` wait, by namespace and name, as far as that is worked out by now. Only refusals that
        say the same as their claims; where pools may not be read, there are none."""
        with self._lock:
            documents = [*self._read.objects] if "DevicePool" not in self._read.unread else []
        among = self._refusals.latest(seen.version, documents, with_nodes=self._optional_store is not None)
        reported = {(claim.namespace, claim.name): claim.reason for claim in seen.overview.claims if claim.is_pending}
        return {key: refusal for key, refusal in among.items() if refusal.reason == reported.get(key)}

    def _looked(self, before: CachedOverview | None) -> CachedOverview:
        read = self._read_all()
        if remark := self._remarks():
            read = _StoreRead(notes=(remark,)) + read
        trouble = "the API server does not answer" if _is_silent(self._store) else ""
        now = datetime.now(UTC)
        reports = self._unserved(), self._unanswered() if read.has_labelled else ""
        if before is None or reports != self._reports_before or not self._is_as_it_was(read):
            self._memo.turn()
            current = build_overview(read.objects, read.notes, self._memo, *reports)
            self._reports_before = reports
            current = replace(current, hides_devices="DevicePool" in read.unread and not current.nodes)
            if self._namespace is not None:
                current = in_namespace(current, self._namespace)
            self._read = read
            if before is None or before.overview != current:
                return CachedOverview(self._version(), current, now, trouble, bool(remark))
        if before.trouble == trouble:
            return replace(before, at=now)
        return CachedOverview(self._version(), before.overview, now, trouble, before.warns)

    def _is_as_it_was(self, read: _StoreRead) -> bool:
        """Whether these are the very same objects: a ``SnapshotReader`` gives the same mapping as long as nothing
        changes."""
        pairs = zip(read.looks, self._read.looks, strict=False)
        same = len(read.looks) == len(self._read.looks) and all(new.objects is old.objects for new, old in pairs)
        return same and read.notes == self._read.notes

    def _read_all(self) -> _StoreRead:
        if self._optional_store is None:
            if (identity := self._store.identity()) != self._identity:
                self._identity = identity
                self._readings.clear()
            return _StoreRead(
                (self._look(self._store, (*REQUIRED_KINDS, *(kind for kind in OPTIONAL_KINDS if kind != NODE_KIND))),)
            )
        more = self._read_beside(self._optional_store)
        try:
            return _StoreRead((self._look(self._store, REQUIRED_KINDS),)) + more
        except KindNotServed:
            # Nodes publish ResourceSlices only
            return _StoreRead(notes=(NO_KINDS_MESSAGE,)) + more
        except Forbidden:
            # A caller with rights in one namespace: pools and classes belong to the cluster.
            ours = self._read_each(self._store, REQUIRED_KINDS)
            if not ours.looks and len(ours.notes) == len(REQUIRED_KINDS):
                raise
            return ours + more

    def _read_beside(self, store: Store) -> _StoreRead:
        read = self._read_each(store, OPTIONAL_KINDS)
        if store is not self._store and _is_silent(store):
            return read + _StoreRead(notes=(STALE_MESSAGE,))
        return read

    def _read_each(self, store: Store, wanted: Sequence[str]) -> _StoreRead:
        """Each kind for itself."""
        looks: dict[str, Snapshot] = {}
        notes: list[str] = []
        unread: set[str] = set()
        kinds = [*wanted]
        for kind in kinds:
            if (refused := self._refused.get(kind)) is None or self._clock() >= refused[0]:
                try:
                    look = self._look(store, (kind,))
                except StoreError as error:
                    refused = self._refused[kind] = self._clock() + RETRY_SECONDS, _read_failure(kind, error)
                else:
                    self._refused.pop(kind, None)
                    looks[kind] = look
                    kinds += [each for each in _kinds_for(kind, looks) if each not in kinds]
                    continue
            if refused[1]:
                notes.append(refused[1])
                unread.add(kind)
        return _StoreRead(tuple(looks.values()), tuple(notes), frozenset(unread), "Event" in kinds)

    def _look(self, store: Store, kinds: Sequence[str]) -> Snapshot:
        return self._readings.setdefault(frozenset(kinds), SnapshotReader(store, kinds)).look()

    def _version(self) -> str:
        self._number += 1
        return f"{self._run}-{self._number}"


def _is_silent(store: Store) -> bool:
    """Of a cluster: what is listed is what was heard last, however long ago."""
    return float(getattr(store, "silent_seconds", 0.0)) >= SILENT_SECONDS


def _kinds_for(kind: str, looks: Mapping[str, Snapshot]) -> list[str]:
    """What only ResourceClaims that wait need beside this kind, which was read last of ``looks``, by kind."""
    if kind not in ("ResourceClaim", "Namespace"):
        return []
    spaces = looks["Namespace"].objects.values() if "Namespace" in looks else ()
    waiting = looks["ResourceClaim"].objects.values()
    chosen = namespaces_for_devalloc(spaces)
    is_labelled = needs_events(with_namespace_default(claim, chosen) for claim in waiting)
    return [*(["Namespace"] if needs_namespaces(waiting) else []), *(["Event"] if is_labelled else [])]


def _read_failure(kind: str, error: StoreError) -> str:
    """Why a kind is not shown; "" if there can be nothing of it."""
    if isinstance(error, KindNotServed):
        return ""
    if kind == "Namespace" and isinstance(error, Forbidden):
        return ""  # then only the labels of claims count
    others = {"Event": "Why labelled ResourceClaims wait", "Node": "Which Nodes are cordoned or not ready"}
    what = others.get(kind, f"The list of {kind}{'es' if kind.endswith('s') else 's'}")
    if isinstance(error, Forbidden):
        return f"{what} is not shown: list and watch are not allowed here."
    return f"{what} is not shown: {error}"
