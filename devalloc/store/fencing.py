"""Fencing: why a late write cannot allocate a device twice, whether a leader stood still or an answer was lost.

Each write names the state of its object that it is based on. A new leader therefore writes on each object that grants
are written on, before it decides anything: what the one before still sends is then based on a state that is over, and
the API server refuses it. Objects that are made later the old leader can only have read after its lease had run out by
its own clock, which it asks before each write. In between, clocks need not agree.

What refuses the annotation (an object that has as many of them as the API server takes) gets a label instead. What
refuses that as well is left: it refuses the leader before the same, and nothing may wait for one object. That goes for
what is refused because of the object. Where an API server that was just started knows no rights and policies yet, or
the rights are missing, it is unknown what it will let through later: then this fails, and begins anew.

The store does the same to an object of which it does not know whether what this process sent will still be done
(``UncertainWrites``).

Not sealed is a DeviceClaim that holds devices already: a write there takes them back, says how they are, or leaves
them. Only where a commit of several objects was cut off (a mark of the store) it may still be finished, so that is
sealed as well. Of ResourceClaims those that hold devices are sealed, too: the leader before may have sent that they are
taken back, since when their pod may have been scheduled, and no finalizer of a node on the claim refuses it.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from devalloc.api import meta
from devalloc.api.kinds import ALLOCATABLE_KINDS
from devalloc.api.views import ClaimView, ObjectView
from devalloc.store.errors import Conflict, Forbidden, Invalid, Key, NotFound, Object
from devalloc.store.metadata_rules import with_annotations, with_labels
from devalloc.store.protocol import Change, Store

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.1


class FencingInterrupted(Exception):
    """It was to stop before all was sealed."""


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
    ``stamp``: a text that no leader had before. Raises StoreError, and Interrupted once ``stop`` is set.
    """
    is_grantable = is_grantable or _is_grantable
    sealed = 0
    refused: dict[str, str] = {}
    """By UID, the states on which the stamp was not to be written."""
    done: set[str] = set()
    """UIDs of what is sealed otherwise, or cannot be."""
    while not stop.is_set():
        left = [
            obj
            for obj in store.list(kinds).objects
            if is_grantable(obj)
            and ObjectView(obj).annotation(meta.LEADER) != stamp
            and obj["metadata"]["uid"] not in done
        ]
        if not left:
            return sealed
        # If no writer was faster, the API server refused the stamp.
        stuck = [obj for obj in left if refused.get(obj["metadata"]["uid"]) == obj["metadata"]["resourceVersion"]]
        for obj in stuck:
            refused.pop(obj["metadata"]["uid"])
            if (is_sealed := _is_labelled(store, obj)) is not None:
                done.add(obj["metadata"]["uid"])
                sealed += is_sealed
        if stuck:
            continue
        outcomes = store.commit_each([[_stamp_change(obj, stamp)] for obj in left])
        conflicts = [
            (obj["metadata"], outcome)
            for obj, outcome in zip(left, outcomes, strict=True)
            if isinstance(outcome, Conflict)
        ]
        sealed += len(outcomes) - len(conflicts)
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
    except (Invalid, Forbidden):  # it may have the maximum of annotations
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
        return bool(self._keys)

    def note(self, keys: Iterable[Key]) -> None:
        """A write of these objects has ended with an unknown result."""
        with self._noting:
            self._keys |= {key: object() for key in keys}

    def settle(self) -> None:
        """Settle all doubts. If it raises StoreError, call it again before any decision."""
        with self._settling:
            with self._noting:
                noted = [*self._keys.items()]
            for key, write in noted:
                self._settle(key)
                with self._noting:
                    if self._keys[key] is write:  # otherwise a later write is already in doubt
                        del self._keys[key]

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
