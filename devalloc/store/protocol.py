"""The protocol that all stores implement.

Its semantics are those of the Kubernetes API for custom resources, so that a cluster can implement the same protocol:

* An object is a manifest. The store knows kinds only by name, and checks only the object's identity. If another API
  group's kind has the same name as one of ours, methods, keys and listings use its full name, such as
  "DeviceClass.resource.k8s.io" (``api.kinds.qualified_kind``).
* The store owns ``metadata.uid``, ``creationTimestamp``, ``generation``, ``resourceVersion`` and
  ``deletionTimestamp``: it ignores a caller's values on create, and keeps the old ones on replace.
* ``replace`` writes everything but ``status``, ``replace_status`` only ``status``, and ``create`` drops the status.
* Every write to an existing object names the resourceVersion on which it is based, in ``metadata.resourceVersion``.
  There is no "last write wins": a missing resourceVersion is Invalid, an outdated one a Conflict.
* A write that would change nothing changes nothing, not even the resourceVersion.
* ``delete`` of an object with finalizers only sets its deletionTimestamp; the object disappears with its last
  finalizer.

A watch may report quick changes of one object as one change. In the embedded store, two API groups cannot both have an
object of the same kind, namespace and name, if the kind is not one of devalloc's. The stores differ as follows (tests
of each store verify this table):

=======================  ==========================================  ===================================================
..                       embedded (``sqlite``)                       on a cluster (``kubernetes``)
=======================  ==========================================  ===================================================
kinds                    any                                         those of devalloc's API, and Lease; ``None`` means
                                                                     those of devalloc's API
scope                    any object with a namespace or without      as the kind says; the namespace must exist
content                  any JSON                                    what the CRDs' schemas and rules, and admission,
                                                                     let pass; fields they do not know are dropped
status                   of any kind                                 of kinds that have one (not configs)
``creationTimestamp``    microseconds                                seconds
rights                   to open the file                            by verb and kind: Forbidden
place in the history     the resourceVersion of the last written     a number that is valid only in this process; the
                         object; permanent, in the file              objects of a kind that is first used later appear
                                                                     as if they had been created after it
listed objects           everything that was written                 everything that this process wrote, and changes by
                                                                     others as far as received; ``get`` asks the server
selection                all objects                                 with ``node`` and ``select`` only those of a node;
                                                                     what leaves the selection is reported as DELETED,
                                                                     and ``get`` shows that it exists
deletions                all are reported, or Expired                all are reported, even after a broken watch, except
                                                                     of objects that were created and deleted meanwhile
several objects          one transaction                             one after the other, marked until all are written
                                                                     (``kubernetes.transaction``); readers treat a mark
                                                                     as "not allocated yet"
status and metadata      one write                                   two: metadata first if a status is set, last if
of one object                                                        it is removed; after a crash between them, the
                                                                     status counts
fence                    checked and written in one transaction      checked against what this process knows, including
                                                                     its own writes, then written; the leader's lease
                                                                     and fence ensure that no other process allocates
lost answers             none                                        read back; Unknown if that fails, too
units that are refused   Invalid, and nothing is written             by ``commit_each``: Refused, for that unit alone
no space                 by ``commit_each``: LeftOut, for units      refused like any write
                         that grow
identity                 of the file                                 UID of the namespace kube-system
=======================  ==========================================  ===================================================
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from devalloc.store.errors import Conflict, Key, Object


class EventType(StrEnum):
    """The type of a watch event."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


@dataclass(frozen=True)
class Event:
    """One change; for DELETED, ``object`` is the last state."""

    type: EventType
    object: Object
    resource_version: str
    """The place in the store's history from which a later watch can resume: a growing decimal number. It is not the
    resourceVersion in the object's metadata."""


class Listing(NamedTuple):
    """Objects ordered by kind, namespace and name, and their place in the store's history, from which watches and
    fences can start."""

    objects: list[Object]
    resource_version: str


class CommitResult(NamedTuple):
    """The objects as stored by ``commit``, in the order of its changes."""

    objects: list[Object]
    resource_version: str
    """A place in the store's history: up to it, this commit is the only change that the fence forbids. The next fence
    can start from it."""


class CommitOutcomes(list[Sequence[Object] | Conflict]):
    """The results of ``commit_each``, in the order of its units: the objects as stored, or why not."""

    def __init__(self, outcomes: Iterable[Sequence[Object] | Conflict], resource_version: str) -> None:
        """``resource_version``: as in ``CommitResult``."""
        super().__init__(outcomes)
        self.resource_version = resource_version


@dataclass(frozen=True)
class Change:
    """A change of one object, for ``commit``."""

    key: Key
    resource_version: str
    """The object's resourceVersion on which the change is based."""
    status: Object | None
    """The complete new status; None removes it."""
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    """Annotations to set, or to remove if the value is None. The others stay."""
    labels: Mapping[str, str | None] = field(default_factory=dict)
    """Labels to set, or to remove if the value is None. The others stay."""
    finalizers: Sequence[str] = ()
    """Finalizers to add; the others stay. If the write is undone, they stay, too."""

    @classmethod
    def of(cls, obj: Object, status: Object | None, annotations: Mapping[str, str | None] | None = None) -> Change:
        """A change of an object as it was read."""
        return cls(Key.of(obj), obj["metadata"]["resourceVersion"], status, annotations or {})


@dataclass(frozen=True)
class Fence:
    """What else a decision has read besides the objects that it writes; it is valid only while none of it changes."""

    resource_version: str
    """The resourceVersion of the Listing that was read."""
    specs: frozenset[str] = frozenset()
    """Kinds of which no object may have been created, deleted or got a new spec since then."""
    statuses: frozenset[str] = frozenset()
    """Kinds of which no object may have got a new status since then."""
    unsettled: frozenset[str] = frozenset()
    """Kinds of which writes of this process may still be done without breaking the fence: the decision allows for
    them. Writes of any other kind with an unknown outcome are settled first."""


class ObjectStore(Protocol):
    """The part of a ``Store`` that reads and writes single objects."""

    def get(self, kind: str, namespace: str | None, name: str) -> Object:
        """The object. Raises NotFound."""

    def create(self, obj: Object) -> Object:
        """Store a new object, without its status; returns it as stored. Raises AlreadyExists."""

    def replace(self, obj: Object) -> Object:
        """Write all but status; returns the object as stored. Raises NotFound, Conflict.

        Removing the last finalizer of an object that is being deleted deletes it.
        """


class Store(ObjectStore, Protocol):
    """Storage of objects. Thread-safe. Errors: ``devalloc.store.errors``."""

    def list(self, kinds: str | Iterable[str] | None = None, namespace: str | None = None) -> Listing:
        """A consistent list of all objects of one kind, several or (None) all, in one namespace or (None) all."""

    def watch(
        self,
        kinds: str | Iterable[str] | None = None,
        since: str = "0",
        *,
        timeout: float | None = None,
        stop: threading.Event | None = None,
    ) -> Generator[Event, None, None]:
        """Changes after the resourceVersion ``since``, as they happen, in order.

        Ends after ``timeout`` seconds (0: after the changes so far; None: never) or soon after ``stop`` is set. "0"
        starts with an ADDED event for each existing object.

        It reports every deletion, but may report quick changes of one object as one, with its last state: ADDED and
        MODIFIED both mean "this is its current state", DELETED means "it does not exist", even if it is new to you.
        Iterating raises Expired if the store no longer knows all deletions since then: list, and watch from there.
        """

    def replace_status(self, obj: Object) -> Object:
        """Write only the status (none: remove it); returns the object as stored. Raises NotFound, Conflict."""

    def commit(self, changes: Sequence[Change], fence: Fence | None = None) -> CommitResult:
        """Write status, annotations, labels and finalizers of several objects, all or none.

        Raises FenceBroken with all changes that violate the fence, or else Conflict with all objects of ``changes``
        that have changed or are gone; Expired for a fence that is too old to check, or of another store. A crash never
        leaves a partial commit.
        """

    def commit_each(self, units: Sequence[Sequence[Change]], fence: Fence | None = None) -> CommitOutcomes:
        """Like ``commit`` for each unit separately: its objects as stored, or why it was not written. Units must not
        share objects. A change without effect verifies that the object has the state on which it is based.

        If it raises FenceBroken or Expired, nothing of any unit is written.
        """

    def delete(
        self,
        kind: str,
        namespace: str | None,
        name: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> Object:
        """Delete the object, or mark it if it has finalizers; returns its last state. Raises NotFound, Conflict.

        ``uid`` and ``resource_version`` are preconditions: only that very object, only in that state.
        """

    def identity(self) -> str:
        """Identifies the store: the text is constant while the store has the same history of objects, and changes if a
        new store takes its place."""

    def close(self) -> None:
        """Close files and connections. A ``watch`` closes its own when it ends or is closed."""
