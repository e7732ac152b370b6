"""A cluster as a store.

Lists and watches are answered from memory (``mirror``), which begins to hold a kind when it is first asked for; all
kinds asked for at once are read as of one moment. Single objects are read from the API server, and writes go there.
"""

from __future__ import annotations

import builtins
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace

from devalloc.store import lifecycle
from devalloc.store.errors import (
    Conflict,
    FenceBroken,
    Forbidden,
    Invalid,
    NotFound,
    Refused,
    Unavailable,
    Unknown,
)
from devalloc.store.key import Key, Object
from devalloc.store.kubernetes import pair, transaction
from devalloc.store.kubernetes.answers import explained
from devalloc.store.kubernetes.apierror import ApiError
from devalloc.store.kubernetes.client import Client
from devalloc.store.kubernetes.doubts import Doubts
from devalloc.store.kubernetes.mirror import Mirror
from devalloc.store.kubernetes.reflectors import Reflectors
from devalloc.store.kubernetes.resources import AROUND, OURS, Resources, lease
from devalloc.store.kubernetes.shown import SHOWN
from devalloc.store.kubernetes.underway import RECORDS, Underway
from devalloc.store.kubernetes.writing import Writing
from devalloc.store.protocol import Change, Event, Fence, Listing, Outcomes, Written
from devalloc.store.versions import another, changed, version_of

NAMESPACE = "devalloc-system"
DELETIONS_KEPT = 10_000
WRITERS = 8
"""Units written side by side."""
_GRANTED = ("DeviceClaim", "VirtualMachine")
"""Kinds whose objects are written several at once."""
_STOP_SECONDS = 0.2
"""How long a watch may take to see that it is to stop."""


class KubernetesStore:
    """``devalloc.store.Store`` on an API server. Safe to share between threads."""

    def __init__(
        self,
        client: Client,
        *,
        namespace: str = NAMESPACE,
        node: str | None = None,
        within: str | None = None,
        may_write: Callable[[], bool] | None = None,
        deletions_kept: int = DELETIONS_KEPT,
    ) -> None:
        """``namespace``: of devalloc itself, where Leases and records of transactions are. ``node``: the one whose
        DevicePools are listed and watched; else those of all nodes. ``within``: the namespace whose objects are listed
        and watched; else those of all. ``may_write``: asked just before each write of
        ``commit``, ``commit_each`` and ``recover``, which raise Deposed when it says no."""
        self.client = client
        self.namespace = namespace
        self._mirror = Mirror(deletions_kept)
        fields = f"spec.nodeName={node}" if node is not None else ""
        ours = [replace(each, fields=fields) if each.kind == "DevicePool" else each for each in OURS]
        listed = [
            replace(each, namespace=within) if each.namespaced and within is not None else each
            for each in (*ours, *AROUND, *SHOWN)
        ]
        self._resources = Resources((*listed, lease(namespace)))
        known = Resources((*ours, *AROUND, lease(namespace), RECORDS))
        self._plain = Writing(client, self._resources, self._heard)
        self._granting = Writing(client, known, self._heard, may_write)
        self._reflectors = Reflectors(client, self._resources, self._mirror, on_cut=self._forget_identity)
        self._writers = ThreadPoolExecutor(WRITERS, thread_name_prefix="commit")
        self._identity: str | None = None
        self._in_flight: Counter[str] = Counter()
        """Kinds of which objects are being written under a fence, or without one, by ``commit`` and ``commit_each``."""
        self._landed = threading.Condition()
        self._underway = Underway(client, self._granting, namespace)
        self._doubts = Doubts(self._granting)

    # Reading.

    def get(self, kind: str, namespace: str | None, name: str) -> Object:
        return self._plain.read(Key.checked(kind, namespace, name))

    def list(self, kinds: str | Iterable[str] | None = None, namespace: str | None = None) -> Listing:
        wanted = self._resources.named(kinds)
        self._reflectors.hold(wanted)
        return self._mirror.select(wanted, namespace)

    def watch(
        self,
        kinds: str | Iterable[str] | None = None,
        since: str = "0",
        *,
        timeout: float | None = None,
        stop: threading.Event | None = None,
    ) -> Generator[Event, None, None]:
        wanted, place = self._resources.named(kinds), version_of(since)
        until = None if timeout is None else time.monotonic() + timeout
        self._reflectors.hold(wanted)
        looked = False
        while stop is None or not stop.is_set():
            # One who starts from 0 is told what there is, and from then on also what goes.
            events, place = self._mirror.events(wanted, place, deletions=place > 0 or looked)
            looked = True
            yield from events
            left = _STOP_SECONDS if until is None else min(_STOP_SECONDS, until - time.monotonic())
            if left <= 0:
                return
            with self._mirror.changed:
                if self._mirror.newest == place:
                    self._mirror.changed.wait(left)

    def refresh(self) -> None:
        """Read anew all kinds that are held: what is listed from here on is no older than this call. Raises
        StoreError."""
        self._reflectors.refresh()

    def identity(self) -> str:
        """The UID of the namespace kube-system, which lives as long as the cluster. Needs the right to get it."""
        if self._identity is None:
            try:
                found = self.client.get("/api/v1/namespaces/kube-system")
                self._identity = str(found["metadata"]["uid"])
            except ApiError as error:
                raise explained(error, "get the namespace kube-system, whose UID says which cluster this is") from error
            except (KeyError, TypeError):
                raise Unavailable("the API server's answer has no UID of the namespace kube-system") from None
        return self._identity

    @property
    def silent_seconds(self) -> float:
        """For how long the API server cannot be heard, for the kind of which that is longest; 0 while it can."""
        return self._reflectors.silent_seconds

    def close(self) -> None:
        self._reflectors.refuse()
        self._writers.shutdown(wait=True)
        self._reflectors.end()

    # Writing one object.

    def create(self, obj: Object) -> Object:
        self._resources.at(Key.of(obj))
        made = lifecycle.plain(lifecycle.created(obj, "", ""))
        metadata = {k: v for k, v in made["metadata"].items() if k not in ("uid", "generation", "creationTimestamp")}
        sent = {**made, "metadata": metadata}
        return self._plain.create(sent)

    def replace(self, obj: Object) -> Object:
        old = self._base(obj)
        sent = lifecycle.plain(lifecycle.replaced(old, obj))
        return old if sent == old else self._plain.write(sent)

    def replace_status(self, obj: Object) -> Object:
        old = self._base(obj)
        sent = lifecycle.plain(lifecycle.with_status(old, obj.get("status")))
        return old if sent == old else self._plain.write_status(sent)

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
        with self._mirror.holding([key]):
            return self._delete(key, uid, resource_version)

    def _delete(self, key: Key, uid: str | None, resource_version: str | None) -> Object:
        while True:
            old = self._plain.read(key)
            if uid is not None and old["metadata"]["uid"] != uid:
                raise Conflict({key: another(key, old, uid)})
            if resource_version is not None and old["metadata"]["resourceVersion"] != resource_version:
                raise Conflict({key: changed(key, old, resource_version)})
            if lifecycle.is_deleting(old) and lifecycle.finalizers(old):
                return old
            try:
                left = self._plain.delete(old)
            except Conflict:
                if resource_version is not None:
                    raise
                continue  # any state of it is to be deleted
            if left is not None:
                return left
            if lifecycle.finalizers(old):  # the answer does not show what is left
                with suppress(NotFound):
                    return self._plain.read(key)
            self._mirror.lose(old)
            return old

    def _base(self, obj: Object) -> Object:
        """The state that a write is based on. Raises Invalid, NotFound, Conflict."""
        key = Key.of(obj)
        self._resources.at(key)
        base = obj["metadata"].get("resourceVersion")
        if not base:
            raise Invalid(f"{key}: metadata.resourceVersion must say which state the write is based on; get it first")
        old = self._mirror.find(key)
        if old is None or old["metadata"]["resourceVersion"] != base:
            old = self._plain.read(key)
        if (uid := obj["metadata"].get("uid")) and old["metadata"]["uid"] != uid:
            raise Conflict({key: another(key, old, uid)})
        if old["metadata"]["resourceVersion"] != base:
            raise Conflict({key: changed(key, old, base)})
        return old

    def _heard(self, obj: Object) -> None:
        if obj["kind"] == transaction.KIND or not self._resources.of(obj["kind"]).covers(obj):
            return
        if lifecycle.is_deleting(obj) and not lifecycle.finalizers(obj):
            self._mirror.lose(obj)
        else:
            self._mirror.see(obj)

    # Writing several.

    def commit(self, changes: Sequence[Change], fence: Fence | None = None) -> Written:
        with self._fenced([changes], fence):
            done = self._unit(changes)
            return Written(done, self._place([changes], fence))

    def _place(self, written: Iterable[Sequence[Change]], fence: Fence | None) -> str:
        """Where the next fence may begin. What others do to the objects that are written is held back meanwhile; what
        they did to others must not be passed over."""
        keys = frozenset(change.key for unit in written for change in unit)
        with self._mirror.changed:
            if fence is not None and self._mirror.broken(fence, keys):
                return fence.resource_version
            return str(self._mirror.newest)

    def commit_each(self, units: Sequence[Sequence[Change]], fence: Fence | None = None) -> Outcomes:
        with self._fenced(units, fence):
            futures = [self._writers.submit(self._each, unit) for unit in units]
            outcomes: builtins.list[Sequence[Object] | Conflict] = []
            failed: BaseException | None = None
            for future in futures:
                try:
                    outcomes.append(future.result())
                except BaseException as error:
                    # Whether all is known that was sent counts more than anything else.
                    failed = error if failed is None or isinstance(error, Unknown) else failed
            if failed is not None:
                raise failed
            done = [unit for unit, outcome in zip(units, outcomes, strict=True) if not isinstance(outcome, Conflict)]
            return Outcomes(outcomes, self._place(done, fence))

    def recover(self) -> None:
        """Bring transactions to their end that were left, by this process or another, and take away marks that belong
        to none. For the one who decides, before he does: raises StoreError, and then nothing is to be decided."""
        self._underway.end_all()
        for obj in self.list(_GRANTED).objects:
            self._underway.unmark_stray(obj)

    @contextmanager
    def _fenced(self, units: Sequence[Sequence[Change]], fence: Fence | None) -> Iterator[None]:
        """While this writes, no other commit of this process that its writes would matter to begins."""
        self._underway.end_left()  # what is read half written must not be decided on
        writes = Counter({change.key.kind for unit in units for change in unit})
        depends = fence.specs | fence.statuses if fence is not None else frozenset()
        self._reflectors.hold(self._resources.named(depends))
        keys = [change.key for unit in units for change in unit]
        while True:
            self._doubts.settle()
            with self._landed:
                while any(self._in_flight[kind] for kind in depends):
                    self._landed.wait()
                if self._doubts:  # what ended meanwhile
                    continue
                if fence is not None and (broken := self._mirror.broken(fence)):
                    raise FenceBroken(broken)
                self._in_flight += writes
                break
        try:
            with self._mirror.holding(keys):
                yield
        finally:
            with self._landed:
                self._in_flight -= writes
                self._landed.notify_all()

    def _make_sure(self, changes: Sequence[Change]) -> None:
        """What is known here may be behind, and nothing is written that would tell. Raises Conflict."""
        for key, version in ((change.key, change.resource_version) for change in changes):
            try:
                now = self._plain.read(key)
            except NotFound:
                raise Conflict({key: f"{key} is gone"}) from None
            if now["metadata"]["resourceVersion"] != version:
                raise Conflict({key: changed(key, now, version)})

    def _each(self, unit: Sequence[Change]) -> Sequence[Object] | Conflict:
        try:
            return self._unit(unit)
        except Conflict as conflict:
            return conflict
        except (Invalid, Forbidden) as refused:  # of this unit's objects; the others are not to wait for it
            said = str(refused)
            return Refused({change.key: said for change in unit}, said)

    def _unit(self, changes: Sequence[Change]) -> builtins.list[Object]:
        """All or none."""
        changes = [replace(change, status=change.status and lifecycle.plain(change.status)) for change in changes]
        olds = self._olds(changes)
        news = [
            lifecycle.plain(lifecycle.annotated(lifecycle.with_status(old, change.status), change.annotations))
            for old, change in zip(olds, changes, strict=True)
        ]
        for old, change, new in zip(olds, changes, news, strict=True):
            if new.get("status") != old.get("status") and not self._resources.at(change.key).has_status:
                raise Invalid(f"{change.key}: a {change.key.kind} has no status")
        due = [at for at, (old, new) in enumerate(zip(olds, news, strict=True)) if old != new]
        written = [*olds]
        if len(due) == 1:
            try:
                written[due[0]] = pair.write(self._granting, olds[due[0]], news[due[0]])
            except NotFound:
                key = changes[due[0]].key
                raise Conflict({key: f"{key} is gone"}) from None
            except Unknown:
                self._doubts.note([changes[due[0]].key])
                raise
        elif not due:
            self._make_sure(changes)
        else:
            some = self._underway.perform([olds[at] for at in due], [changes[at] for at in due])
            for at, obj in zip(due, some, strict=True):
                written[at] = obj
        return written

    def _olds(self, changes: Sequence[Change]) -> builtins.list[Object]:
        """What the changes are based on. Raises Conflict that names all that are not so any more."""
        conflicts, olds = {}, []
        for change in changes:
            self._resources.at(change.key)
            old = self._mirror.find(change.key)
            if old is None or old["metadata"]["resourceVersion"] != change.resource_version:
                try:
                    old = self._plain.read(change.key)
                except NotFound:
                    conflicts[change.key] = f"{change.key} is gone"
                    continue
            if old["metadata"]["resourceVersion"] != change.resource_version:
                conflicts[change.key] = changed(change.key, old, change.resource_version)
            elif (mark := transaction.mark_of(old)) and (len(changes) > 1 or change.status != old.get("status")):
                # What it says may be put back. An annotation may be written: then it is the other that conflicts.
                self._underway.unmark_stray(old)
                conflicts[change.key] = f"{change.key} is being written together with others ({mark}); try again"
            olds.append(old)
        if conflicts:
            raise Conflict(conflicts)
        return olds

    def _forget_identity(self) -> None:
        self._identity = None


__all__ = ["NAMESPACE", "KubernetesStore"]
