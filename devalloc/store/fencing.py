"""Fencing: a write that arrives late cannot allocate a device twice.

Each write names the resourceVersion that it is based on. Before a new leader decides anything, it writes a mark on each
object on which the previous leader may still write a grant. A late write of that leader then names an old
resourceVersion, and the API server refuses it. Objects that are created later need no mark: the previous leader reads
them only after its lease has expired by its own clock, which it checks before each write. Clocks need not agree.

If the API server refuses the mark as an annotation (an object may have the maximum of them), fencing writes a label. If
the API server refuses that as well, it would also refuse a grant, so fencing leaves the object. If rights or policies
are missing, for example because the API server has just started, a later write may be accepted; then fencing fails and
begins again.

The store fences an object in the same way if it does not know whether a write of this process will still be applied
(``UncertainWrites``).

DeviceClaims that hold devices need no mark: a write there releases the devices, reports their state, or changes
nothing. Two kinds of objects are marked although they hold devices: members of a commit that was interrupted, because
the store may still complete it; and ResourceClaims, because the previous leader may have sent a release, their pod may
be scheduled since, and no finalizer of a node protects them.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from devalloc.api import meta
from devalloc.api.kinds import ALLOCATABLE_KINDS
from devalloc.api.views import ClaimView, ObjectView
from devalloc.store.errors import REFUSALS, Conflict, Invalid, Key, NotFound, Object
from devalloc.store.metadata_rules import with_annotations, with_labels
from devalloc.store.protocol import Change, Store

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.1


class FencingInterrupted(Exception):
    """Fencing was stopped before it had marked all objects."""


def fence_objects(
    store: Store,
    stamp: str,
    stop: threading.Event,
    *,
    kinds: Sequence[str] = ALLOCATABLE_KINDS,
    is_grantable: Callable[[Object], bool] | None = None,
    pause: Callable[[float], object] | None = None,
) -> int:
    """Write ``stamp`` on all objects of the kinds on which a leader may still write a decision that is not seen yet
    (``is_grantable``; default: that of DeviceClaims and machines); how many objects that were.

    ``store`` was refreshed: what it knew before could be what the old leader knew.
    ``stamp``: a text that no leader had before. Raises StoreError, and FencingInterrupted if ``stop`` is set.
    """
    is_grantable = is_grantable or _is_grantable
    fenced = 0
    refused: dict[str, str] = {}
    """UID -> the resourceVersion at which the stamp could not be written."""
    done: set[str] = set()
    """UIDs of objects that were fenced by a label, or cannot be fenced."""
    while not stop.is_set():
        left = [
            obj
            for obj in store.list(kinds).objects
            if is_grantable(obj)
            and ObjectView(obj).annotation(meta.LEADER) != stamp
            and obj["metadata"]["uid"] not in done
        ]
        if not left:
            return fenced
        # If no writer was faster, the API server refused the stamp.
        stuck = [obj for obj in left if refused.get(obj["metadata"]["uid"]) == obj["metadata"]["resourceVersion"]]
        for obj in stuck:
            refused.pop(obj["metadata"]["uid"])
            if (is_fenced := _is_labelled(store, obj)) is not None:
                done.add(obj["metadata"]["uid"])
                fenced += is_fenced
        if stuck:
            continue
        outcomes = store.commit_each([[_stamp_change(obj, stamp)] for obj in left])
        conflicts = [
            (obj["metadata"], outcome)
            for obj, outcome in zip(left, outcomes, strict=True)
            if isinstance(outcome, Conflict)
        ]
        fenced += len(outcomes) - len(conflicts)
        if conflicts:  # another writer was faster: read what is there now
            log.debug("read again: %s", conflicts[0][1])
            refused |= {metadata["uid"]: metadata["resourceVersion"] for metadata, _ in conflicts}
            (pause or stop.wait)(RETRY_SECONDS)
    raise FencingInterrupted


def _is_labelled(store: Store, obj: Object) -> bool | None:
    """Whether it was fenced by a label; None: retry, another writer was faster. Raises StoreError."""
    try:
        return fence_by_label(store.replace, obj)
    except (Conflict, NotFound):
        return None


def fence_object(write: Callable[[Object], object], obj: Object) -> None:
    """``write`` a mark on the object, so that every write that is based on an earlier state of it is refused. An object
    that takes no mark is logged and left. Raises Conflict, NotFound, and other StoreErrors."""
    try:
        write(with_annotations(obj, {meta.LEADER: secrets.token_hex(8)}))
    except REFUSALS:  # it may have the maximum of annotations
        fence_by_label(write, obj)


def fence_by_label(write: Callable[[Object], object], obj: Object) -> bool:
    """Write the mark as a label with a new value. Returns False if the server refuses the object with it.

    Raises Forbidden if rights are missing, because a later write may then be accepted; and other StoreErrors.
    """
    try:
        write(with_labels(obj, {meta.LEADER: secrets.token_hex(8)}))
    except Invalid as error:
        log.error("cannot fence %s; its author must make it smaller: %s", Key.of(obj), error)
        return False
    return True


def _is_grantable(obj: Object) -> bool:
    """Whether a leader may still write a grant there that this process has not seen."""
    return obj["kind"] != "DeviceClaim" or not ClaimView(obj).entries or ObjectView(obj).is_unsettled


def _stamp_change(obj: Object, stamp: str) -> Change:
    version = obj["metadata"]["resourceVersion"]
    return Change(Key.of(obj), version, obj.get("status"), {meta.LEADER: stamp})


class ReadWriteApi(Protocol):
    """The requests to the API server. Raises StoreError."""

    def read(self, key: Key) -> Object: ...
    def write(self, obj: Object) -> Object: ...


class UncertainWrites:
    """Objects of which this process does not know whether its writes will still be done. Thread-safe."""

    def __init__(self, api: ReadWriteApi) -> None:
        self._api = api
        self._keys: dict[Key, object] = {}
        """The keys, each with a token that identifies the write."""
        self._noting = threading.Lock()
        self._settling = threading.Lock()

    def __bool__(self) -> bool:
        return self.concern(None)

    def concern(self, kinds: Collection[str] | None) -> bool:
        """Whether an object of these kinds is among them; None: of any kind."""
        return bool(self._of(kinds))

    def note(self, keys: Iterable[Key]) -> None:
        """A write of these objects has ended with an unknown result."""
        with self._noting:
            self._keys |= {key: object() for key in keys}

    def settle(self, kinds: Collection[str] | None = None) -> None:
        """Settle all doubts about objects of these kinds; None: of all. If it raises StoreError, call it again before
        any decision on them."""
        if not self.concern(kinds):  # another thread may wait long for objects of other kinds
            return
        with self._settling:
            for key, write in self._of(kinds):
                self._settle(key)
                with self._noting:
                    if self._keys[key] is write:  # otherwise a later write is already in doubt
                        del self._keys[key]

    def _of(self, kinds: Collection[str] | None) -> list[tuple[Key, object]]:
        with self._noting:
            return [(key, write) for key, write in self._keys.items() if kinds is None or key.kind in kinds]

    def _settle(self, key: Key) -> None:
        log.warning("cannot tell whether %s was written; writing it again", key)
        while True:
            try:
                fence_object(self._api.write, self._api.read(key))
                return
            except NotFound:
                return
            except Conflict:
                continue
