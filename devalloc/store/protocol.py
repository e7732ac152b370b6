"""What every store offers, whatever is behind it.

The semantics are those of the Kubernetes API for custom resources, so that a cluster can stand behind the same
protocol:

* an object is a manifest; the store knows kinds by their name only and checks nothing but identity. A kind of another
  API group that has the name of one of ours has its full name, such as "DeviceClass.resource.k8s.io"
  (``api.kinds.kind_in_store``): in methods, in keys, and in what is listed;
* ``metadata.uid``, ``creationTimestamp``, ``generation``, ``resourceVersion`` and ``deletionTimestamp`` are the
  store's: what a caller puts there is ignored on create, and kept as it was on replace;
* ``replace`` writes everything but ``status``, ``replace_status`` nothing but ``status``, ``create`` drops it;
* every write to an existing object names the resourceVersion it is based on, in ``metadata.resourceVersion``. There
  is no "last write wins": a missing resourceVersion is Invalid, an outdated one a Conflict;
* a write that would change nothing changes nothing, the resourceVersion included;
* ``delete`` of an object with finalizers only sets its deletionTimestamp; it goes with its last finalizer.

A watch may show quick changes to one object as one. Of a kind that devalloc does not have, two API groups cannot both
have an object of one namespace and name in the embedded store. Where the stores differ (the tests of the contract that
are one's own hold this table to be true):

=======================  ==========================================  ===================================================
..                       embedded (``sqlite``)                       on a cluster (``kubernetes``)
=======================  ==========================================  ===================================================
kinds                    any                                         those of devalloc's API, and Lease; ``None`` means
                                                                     those of devalloc's API
scope                    any object with a namespace or without      as the kind says; the namespace must exist
content                  any JSON                                    what the CRDs' schemas and rules, and admission,
                                                                     let pass; fields they do not know are dropped
status                   of any kind                                 of kinds that have one (not classes and configs)
``creationTimestamp``    microseconds                                seconds
rights                   who may open the file                       by verb and kind: Forbidden
place in the history     the resourceVersion of the object that was  a number of this process, which no other knows; a
                         written last; lasts with the file           kind that is first asked for after a place is told
                                                                     as if all of it came after that
what is listed           all that was written                        all that this process wrote, and of others what it
                                                                     has heard; ``get`` asks the server
deletions                all are told, or Expired                    also after a watch was cut off, but of objects that
                                                                     came and went meanwhile, of which nobody heard
several objects          one transaction                             one after the other, marked until all are written
                                                                     (``kubernetes.transaction``); to readers a mark is
                                                                     "not yet given"
status and annotations   one write                                   two, annotations first where a status is set and
of one object                                                        last where it is removed; after a crash between
                                                                     them the status is what counts
fence                    checked and written in one transaction      checked against what this process knows, its own
                                                                     writes included, then written; that nobody else
                                                                     grants meanwhile is for the leader's lease and seal
lost answers             none                                        read back; Unknown where that fails as well
units that are refused   Invalid, and nothing is written             of ``commit_each``: Refused, of that unit alone
no space                 of ``commit_each``: LeftOut, of units that  refused as any write is
                         grow
identity                 of the file                                 UID of the namespace kube-system
=======================  ==========================================  ===================================================
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from devalloc.store.errors import Conflict
from devalloc.store.key import Key, Object


class EventType(StrEnum):
    """What a watch says about an object."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


@dataclass(frozen=True)
class Event:
    """One change; for DELETED, ``object`` is the last state."""

    type: EventType
    object: Object
    resource_version: str
    """The place in the store's history where a later watch resumes: a decimal number that grows. Which state of the
    object this is its own metadata say."""


class Listing(NamedTuple):
    """Objects ordered by kind, namespace and name, and the place in the store's history that they are of: from it a
    watch tells later changes, and a fence holds."""

    objects: list[Object]
    resource_version: str


class Written(NamedTuple):
    """Objects as ``commit`` stored them, in the order of its changes."""

    objects: list[Object]
    resource_version: str
    """A place in the store's history up to which nothing that the fence forbids happened but this commit: the next
    fence may be of it."""


class Outcomes(list[Sequence[Object] | Conflict]):
    """What ``commit_each`` made of its units, in their order: the objects as stored, or why they were not written."""

    def __init__(self, outcomes: Iterable[Sequence[Object] | Conflict], resource_version: str) -> None:
        """``resource_version``: as that of ``Written``."""
        super().__init__(outcomes)
        self.resource_version = resource_version


@dataclass(frozen=True)
class Change:
    """What ``commit`` writes on one object."""

    key: Key
    resource_version: str
    """The object's resourceVersion that the change is based on."""
    status: Object | None
    """The whole new status; None for none."""
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    """Annotations to set, or to remove where the value is None. The others stay."""


@dataclass(frozen=True)
class Fence:
    """A decision read more than the objects it writes; it holds only while nothing of this changed."""

    resource_version: str
    """The Listing that was read."""
    specs: frozenset[str] = frozenset()
    """Kinds of which no object was created, deleted or got another spec since."""
    statuses: frozenset[str] = frozenset()
    """Kinds of which no object got another status since."""


class Store(Protocol):
    """Where objects live. Safe to share between threads. Errors: ``devalloc.store.errors``."""

    def get(self, kind: str, namespace: str | None, name: str) -> Object:
        """The object. Raises NotFound."""

    def list(self, kinds: str | Iterable[str] | None = None, namespace: str | None = None) -> Listing:
        """All objects of one kind, several or (None) all, in one namespace or (None) everywhere, as of one moment."""

    def watch(
        self,
        kinds: str | Iterable[str] | None = None,
        since: str = "0",
        *,
        timeout: float | None = None,
        stop: threading.Event | None = None,
    ) -> Generator[Event, None, None]:
        """Changes after the resourceVersion ``since``, as they happen, in their order.

        Ends after ``timeout`` seconds (0: with what is there already; None: never) or soon after ``stop`` is set.
        "0" starts with an ADDED for each object there is.

        Every deletion is told, but quick changes to one object may be told as one, its last state: take ADDED and
        MODIFIED alike for "this is it now", and DELETED for "it is not there", heard of before or not.
        Iterating raises Expired when the store no longer remembers all deletions since then: list, and watch from that.
        """

    def create(self, obj: Object) -> Object:
        """Store a new object, without its status; returns it as stored. Raises AlreadyExists."""

    def replace(self, obj: Object) -> Object:
        """Write all but status; returns the object as stored. Raises NotFound, Conflict.

        Removing the last finalizer of an object that is being deleted deletes it.
        """

    def replace_status(self, obj: Object) -> Object:
        """Write status only (without one: remove it); returns the object as stored. Raises NotFound, Conflict."""

    def commit(self, changes: Sequence[Change], fence: Fence | None = None) -> Written:
        """Write status and annotations of several objects, all or none.

        Raises FenceBroken that lists what the fence forbids and happened, or else Conflict that lists every object of
        ``changes`` that has changed or is gone; Expired for a fence that is too old to tell, or of another store. No
        crash leaves a part.
        """

    def commit_each(self, units: Sequence[Sequence[Change]], fence: Fence | None = None) -> Outcomes:
        """As ``commit`` for each unit by itself: its objects as stored, or why it was not written. No two units change
        one object. A change that changes nothing makes sure that the object is as it says.

        Raises FenceBroken and Expired, and then nothing of any unit is written.
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
        """Delete the object, or mark it where it has finalizers; returns its last state. Raises NotFound, Conflict.

        ``uid`` and ``resource_version`` are preconditions: only that very object, only in that state.
        """

    def identity(self) -> str:
        """Which store this is: the same text for as long as it holds the same history of objects, another for a new one
        at the same place."""

    def close(self) -> None:
        """Give back files and connections. Those of a ``watch`` go when it ends or is closed."""
