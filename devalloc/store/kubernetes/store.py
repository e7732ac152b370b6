"""A cluster as a store.

Lists and watches use ``informer_cache``, which reads a kind at its first use; kinds that are requested together are
read consistently. Reads and writes of single objects go to the API server.
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

from devalloc.api.kinds import ALLOCATABLE_KINDS
from devalloc.store import metadata_rules
from devalloc.store.errors import (
    REFUSALS,
    Conflict,
    FenceBroken,
    Invalid,
    Key,
    NotFound,
    Object,
    Unavailable,
    UnknownOutcome,
    WriteRejected,
)
from devalloc.store.fencing import UncertainWrites
from devalloc.store.kubernetes import object_writer, transaction
from devalloc.store.kubernetes.api_error import ApiError, translate_error
from devalloc.store.kubernetes.client import Client
from devalloc.store.kubernetes.informer_cache import InformerCache
from devalloc.store.kubernetes.object_writer import ObjectWriter
from devalloc.store.kubernetes.reflector import Reflectors
from devalloc.store.kubernetes.resources import (
    CORE_KINDS,
    DISPLAY_KINDS,
    OWN_KINDS,
    ApiResource,
    ResourceRegistry,
    lease_resource,
)
from devalloc.store.kubernetes.transaction import RECORDS, OpenTransactions
from devalloc.store.metadata_rules import changed_message, parse_version
from devalloc.store.protocol import Change, CommitOutcomes, CommitResult, Event, Fence, Listing

NAMESPACE = "devalloc-system"
DELETIONS_KEPT = 10_000
WRITER_THREADS = 8
"""How many units are written concurrently."""
"""Kinds whose objects can be written several at a time."""
_STOP_SECONDS = 0.2
"""How long a watch may take to stop, in seconds."""


class KubernetesStore:
    """``devalloc.store.Store`` on an API server. Thread-safe."""

    def __init__(
        self,
        client: Client,
        *,
        namespace: str = NAMESPACE,
        node: str | None = None,
        within: str | None = None,
        resources: Sequence[ApiResource] = (),
        may_write: Callable[[], bool] | None = None,
        deletions_kept: int = DELETIONS_KEPT,
    ) -> None:
        """``namespace``: devalloc's own, with Leases and records of transactions. ``node``: list and watch only this
        node's DevicePools; default: those of all nodes. ``within``: list and watch only this namespace's objects;
        default: all. ``resources``: more kinds, or the same in another form. ``may_write``: called just before each
        write of ``commit``, ``commit_each`` and ``recover``, which raise NotLeader if it returns False."""
        self.client = client
        self.namespace = namespace
        self._mirror = InformerCache(deletions_kept)
        fields = f"spec.nodeName={node}" if node is not None else ""
        ours = [replace(each, fields=fields) if each.kind == "DevicePool" else each for each in OWN_KINDS]
        listed = [
            replace(each, namespace=within) if each.namespaced and within is not None else each
            for each in (*ours, *CORE_KINDS, *DISPLAY_KINDS)
        ]
        self._resources = ResourceRegistry((*listed, lease_resource(namespace), *resources))
        writable = ResourceRegistry((*ours, *CORE_KINDS, lease_resource(namespace), RECORDS, *resources))
        self._plain = ObjectWriter(client, self._resources, self._heard)
        self._granting = ObjectWriter(client, writable, self._heard, may_write)
        self._reflectors = Reflectors(client, self._resources, self._mirror, on_cut=self._forget_identity)
        self._writers = ThreadPoolExecutor(WRITER_THREADS, thread_name_prefix="commit")
        self._identity: str | None = None
        self._in_flight: Counter[str] = Counter()
        """Kinds whose objects ``commit`` and ``commit_each`` are writing, with or without a fence."""
        self._landed = threading.Condition()
        self._underway = OpenTransactions(client, self._granting, namespace)
        self._doubts = UncertainWrites(self._granting)

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
        wanted, place = self._resources.named(kinds), parse_version(since)
        until = None if timeout is None else time.monotonic() + timeout
        self._reflectors.hold(wanted)
        looked = False
        while stop is None or not stop.is_set():
            # A watch from 0 gets the existing objects, and deletions only from then on.
            events, place = self._mirror.events(wanted, place, deletions=place > 0 or looked)
            looked = True
            yield from events
            left = _STOP_SECONDS if until is None else min(_STOP_SECONDS, until - time.monotonic())
            if left <= 0:
                return
            with self._mirror.changed:
                if self._mirror.newest == place:
                    self._mirror.changed.wait(left)

    def select(self, kinds: Iterable[str], labels: str) -> None:
        """List and watch only objects of these kinds that have a label, such as ``devalloc.io/allocated-node=a``; with
        "" all. An object that leaves the selection is reported as deleted, as the API server does: ``get`` shows
        whether it exists. What is held is soon read again."""
        for kind in kinds:
            resource = replace(self._resources.of(kind), labels=labels)
            self._resources.put(resource)
            self._reflectors.reselect(resource)

    def refresh(self) -> None:
        """Read all held kinds again, so that later lists are not older than this call. Raises StoreError."""
        self._reflectors.refresh()

    def identity(self) -> str:
        """The UID of the namespace kube-system, which exists as long as the cluster. Needs the right to get it."""
        if self._identity is None:
            try:
                namespace = self.client.get("/api/v1/namespaces/kube-system")
                self._identity = str(namespace["metadata"]["uid"])
            except ApiError as error:
                raise translate_error(
                    error, "get the namespace kube-system, whose UID identifies the cluster"
                ) from error
            except (KeyError, TypeError):
                raise Unavailable("the API server's answer contains no UID of the namespace kube-system") from None
        return self._identity

    @property
    def silent_seconds(self) -> float:
        """Seconds without a watch, for the kind with the longest time; 0 if all have one."""
        return self._reflectors.silent_seconds

    def close(self) -> None:
        self._reflectors.refuse()
        self._writers.shutdown(wait=True)
        self._reflectors.end()

    # Writing one object.

    def create(self, obj: Object) -> Object:
        self._resources.at(Key.of(obj))
        made = metadata_rules.as_stored(metadata_rules.new_object(obj, "", ""))
        metadata = {k: v for k, v in made["metadata"].items() if k not in ("uid", "generation", "creationTimestamp")}
        sent = {**made, "metadata": metadata}
        return self._plain.create(sent)

    def replace(self, obj: Object) -> Object:
        old = self._base(obj)
        sent = metadata_rules.as_stored(metadata_rules.replace_all_but_status(old, obj))
        return old if sent == old else self._plain.write(sent)

    def replace_status(self, obj: Object) -> Object:
        old = self._base(obj)
        sent = metadata_rules.as_stored(metadata_rules.with_status(old, obj.get("status")))
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
            metadata_rules.check_state(key, old, uid, resource_version)
            if metadata_rules.is_deleting(old) and metadata_rules.finalizers(old):
                return old
            try:
                left = self._plain.delete(old)
            except Conflict:
                if resource_version is not None:
                    raise
                continue  # delete it in any state
            if left is not None:
                return left
            if metadata_rules.finalizers(old):  # the answer does not contain the remaining object
                with suppress(NotFound):
                    return self._plain.read(key)
            self._mirror.lose(old)
            return old

    def _base(self, obj: Object) -> Object:
        """The state on which a write is based. Raises Invalid, NotFound, Conflict."""
        key = Key.of(obj)
        self._resources.at(key)
        base = metadata_rules.base_version(key, obj)
        old = self._mirror.find(key)
        if old is None or old["metadata"]["resourceVersion"] != base:
            old = self._plain.read(key)
        metadata_rules.check_state(key, old, obj["metadata"].get("uid") or None, base)
        return old

    def _heard(self, obj: Object) -> None:
        if obj["kind"] == transaction.KIND or not self._resources.of(obj["kind"]).covers(obj):
            return
        if metadata_rules.is_deleting(obj) and not metadata_rules.finalizers(obj):
            self._mirror.lose(obj)
        else:
            self._mirror.see(obj)

    # Writing several.

    def commit(self, changes: Sequence[Change], fence: Fence | None = None) -> CommitResult:
        with self._fenced([changes], fence):
            done = self._unit(changes)
            return CommitResult(done, self._place([changes], fence))

    def _place(self, written: Iterable[Sequence[Change]], fence: Fence | None) -> str:
        """The place from which the next fence can start. Changes by others to the written objects are held back
        meanwhile; changes to other objects must not be skipped."""
        keys = frozenset(change.key for unit in written for change in unit)
        with self._mirror.changed:
            if fence is not None and self._mirror.broken(fence, keys):
                return fence.resource_version
            return str(self._mirror.newest)

    def commit_each(self, units: Sequence[Sequence[Change]], fence: Fence | None = None) -> CommitOutcomes:
        with self._fenced(units, fence):
            futures = [self._writers.submit(self._each, unit) for unit in units]
            outcomes: builtins.list[Sequence[Object] | Conflict] = []
            failed: BaseException | None = None
            for future in futures:
                try:
                    outcomes.append(future.result())
                except BaseException as error:
                    # Unknown results take precedence over other errors.
                    failed = error if failed is None or isinstance(error, UnknownOutcome) else failed
            if failed is not None:
                raise failed
            done = [unit for unit, outcome in zip(units, outcomes, strict=True) if not isinstance(outcome, Conflict)]
            return CommitOutcomes(outcomes, self._place(done, fence))

    def recover(self) -> None:
        """Finish transactions that this or another process left unfinished, and remove marks without a transaction. The
        leader calls it before it decides anything; if it raises StoreError, it must not decide."""
        self._underway.finish_all()
        for obj in self.list(ALLOCATABLE_KINDS).objects:
            self._underway.remove_stray_mark(obj)

    @contextmanager
    def _fenced(self, units: Sequence[Sequence[Change]], fence: Fence | None) -> Iterator[None]:
        """While inside, no other commit of this process starts that these writes would affect."""
        self._underway.finish_abandoned()  # decisions must not be based on half-written transactions
        writes = Counter({change.key.kind for unit in units for change in unit})
        depends = fence.specs | fence.statuses if fence is not None else frozenset()
        self._reflectors.hold(self._resources.named(depends))
        keys = [change.key for unit in units for change in unit]
        # A decision does not wait for objects of kinds that it neither read nor writes: the API server may have to ask
        # another program's webhook before it accepts a write there, and that can be down for long.
        unsettled = frozenset[str]() if fence is None else fence.unsettled
        concerned = None if fence is None else (depends | writes.keys()) - unsettled
        while True:
            self._doubts.settle(concerned)
            with self._landed:
                while any(self._in_flight[kind] for kind in depends - unsettled):
                    self._landed.wait()
                if self._doubts.concern(concerned):  # writes that ended meanwhile
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
        """Check the current state, because the cache may be outdated and no write would reveal it. Raises Conflict."""
        for key, version in ((change.key, change.resource_version) for change in changes):
            try:
                now = self._plain.read(key)
            except NotFound:
                raise Conflict({key: f"{key} is gone"}) from None
            metadata_rules.check_state(key, now, None, version)

    def _each(self, unit: Sequence[Change]) -> Sequence[Object] | Conflict:
        try:
            return self._unit(unit)
        except Conflict as conflict:
            return conflict
        except REFUSALS as refused:
            message = str(refused)
            return WriteRejected({change.key: message for change in unit}, message)

    def _unit(self, changes: Sequence[Change]) -> builtins.list[Object]:
        """Write one unit, all or none."""
        changes = [
            replace(change, status=change.status and metadata_rules.as_stored(change.status)) for change in changes
        ]
        olds = self._olds(changes)
        news = [
            metadata_rules.as_stored(metadata_rules.with_change(old, change))
            for old, change in zip(olds, changes, strict=True)
        ]
        for old, change, new in zip(olds, changes, news, strict=True):
            if new.get("status") != old.get("status") and not self._resources.at(change.key).has_status:
                raise Invalid(f"{change.key}: a {change.key.kind} has no status")
        due = [at for at, (old, new) in enumerate(zip(olds, news, strict=True)) if old != new]
        written = [*olds]
        if len(due) == 1:
            try:
                written[due[0]] = object_writer.write_both(self._granting, olds[due[0]], news[due[0]])
            except NotFound:
                key = changes[due[0]].key
                raise Conflict({key: f"{key} is gone"}) from None
            except UnknownOutcome:
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
        """The states on which the changes are based. Raises Conflict with all objects that have changed."""
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
                conflicts[change.key] = changed_message(change.key, old, change.resource_version)
            elif (mark := transaction.transaction_of(old)) and (len(changes) > 1 or change.status != old.get("status")):
                # Its content may still be undone. Annotations can be written: then the other writer gets the conflict.
                self._underway.remove_stray_mark(old)
                conflicts[change.key] = f"{change.key} is part of a running transaction ({mark}); try again"
            olds.append(old)
        if conflicts:
            raise Conflict(conflicts)
        return olds

    def _forget_identity(self) -> None:
        self._identity = None


__all__ = ["NAMESPACE", "KubernetesStore"]
