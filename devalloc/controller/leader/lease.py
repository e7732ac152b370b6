"""A Lease: one process at a time does what only one may do, as in Kubernetes' leader election.

A lease is an object that its holder renews. Other processes judge by these renewals whether the holder still lives, on
their own clocks: clocks of hosts need not agree. The holder considers the lease lost some time before others may take
it (``deadline``), so that work in progress can end.

A lease keeps two processes apart only if each checks its clock before it acts. The store must refuse the late writes of
a holder that was suspended: the permit server fences its commits with the leases, the controller fences the objects
that it writes allocations on (``devalloc.store.fencing``).

Leases may be *rivals*: one for all nodes, and one for a single node. A process that sees a held rival releases its
own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from devalloc.api.meta import is_promised
from devalloc.store import AlreadyExists, Conflict, NotFound, Object, ObjectStore

KIND = "Lease"
DEFAULT_SECONDS = 15.0
MAX_SECONDS = 3600.0
"""The longest time in seconds for which a lease counts without renewal, whatever it says."""


_DELETED = "deleted"
"""Instead of a resourceVersion."""


class LeaseLost(Exception):
    """Another process has the lease, or may have it."""


@dataclass(frozen=True, slots=True)
class RivalLeases:
    """Which other leases of a namespace keep one from being taken."""

    listed: Callable[[], Iterable[Object]]
    """All leases there are, also others. Raises StoreError."""
    is_one: Callable[[str], bool]
    """Of a lease, by its name."""
    whose: Callable[[str], str]
    """What those are called, for people, who have it."""


@dataclass(frozen=True, slots=True)
class LeaseTerm:
    """For how long a lease counts without being renewed."""

    seconds: float = DEFAULT_SECONDS
    """How long others take it for held, from when they saw it change."""
    deadline: float | None = None
    """How long its holder does, from when the last renewal began; None: as long."""


class Lease:
    """Use from one thread, but for ``is_valid``."""

    kinds = frozenset({KIND})
    """What to fence a commit with that must not be made after another took it."""

    def __init__(
        self,
        store: ObjectStore,
        holder: str,
        name: str,
        *,
        namespace: str = "default",
        term: LeaseTerm = LeaseTerm(),
        rivals: RivalLeases | None = None,
        alone: bool = False,
        clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        """``holder``: a name that no other process has, not even the next one here. ``alone``: this process holds a
        lock by which it knows that no other lives, so it need not wait until the lease of the one before has run out.
        ``clock``: one that also goes while the host is suspended."""
        self.holder = holder
        self.seconds = term.seconds
        self.name = name
        self.namespace = namespace
        self.transitions = 0
        """How often it has changed hands, as of the last time that it was ours."""
        self._deadline = term.seconds if term.deadline is None else term.deadline
        self._rivals = rivals
        self._store = store
        self._alone = alone
        self._clock = clock
        self._seen: dict[str, tuple[str, float]] = {}
        """The resourceVersions of others' leases by name, and since when they have been that."""
        self.inherited: tuple[str, ...] = ()
        """Promises of the last holder that this one keeps as well, if the last one did until the end."""
        self.promises: set[str] = set()
        """Annotations that are written with the next renewal, with the number of transitions: they hold as long as the
        lease has that number."""
        self.held_by: str | None = None
        """The other holder, for people, if the last ``take`` met one."""
        self._own: Object | None = None
        """Ours, as we wrote it last."""
        self._until = 0.0

    @property
    def is_valid(self) -> bool:
        """Whether no other process can have taken it yet."""
        return self._own is not None and self._clock() < self._until

    def take(self) -> bool:
        """Have it, if it is free, has run out or is ours. Raises StoreError."""
        began = self._clock()
        leases = self._leases()
        # All are looked at, so that the time of each runs.
        are_free = {name: self._is_free(obj, began) for name, obj in leases.items()}
        self.held_by = next((self._describe_holder(leases[name]) for name, free in are_free.items() if not free), None)
        if self.held_by is None and self._was_deleted(leases, began):
            self.held_by = f"the lease {self.namespace}/{self.name}, which was deleted while it was held"
        if self.held_by is not None:
            return False
        with suppress(AlreadyExists, Conflict, NotFound):
            for name, obj in leases.items():
                if name != self.name and lease_holder(obj):
                    self._store.replace(_without_holder(obj))  # it has run out
            began = self._clock()
            lease = leases.get(self.name)
            if lease is None:
                self.promises = set()
                return self._took(self._store.create(self._object({}, 0, _now())), began)
            spec, is_ours = _spec(lease), lease_holder(lease) == self.holder
            count = before if isinstance(before := spec.get("leaseTransitions"), int) else 0
            since = str(spec.get("acquireTime")) if is_ours and spec.get("acquireTime") else _now()
            # Anew each time: what another holder promised ends if a third one gets the lease before this write.
            inherited = {name for name in self.inherited if is_promised(lease, name)}
            self.promises = inherited | self.promises if is_ours else inherited
            return self._took(self._store.replace(self._object(lease["metadata"], count + (not is_ours), since)), began)
        return False

    def renew(self) -> None:
        """Keep it. Raises LeaseLost, StoreError."""
        began = self._clock()
        if self._own is None:
            raise self._lost()
        own = self._own
        for _ in range(2):
            since = str(_spec(own).get("acquireTime") or _now())
            try:
                self._took(self._store.replace(self._object(own["metadata"], self.transitions, since)), began)
                return
            except Conflict:  # others labelled it, or the answer to our last renewal was lost
                own = self._still_ours()
            except NotFound:
                break
        raise self._lost()

    def is_meant(self, obj: Object) -> bool:
        """Whether a Lease is this one or that of a rival."""
        metadata = obj["metadata"]
        name = metadata["name"]
        return metadata.get("namespace", self.namespace) == self.namespace and (
            name == self.name or (self._rivals is not None and self._rivals.is_one(name))
        )

    def check(self, leases: Iterable[Object]) -> None:
        """That of all leases there are this one is still ours, and none a rival's. Raises LeaseLost."""
        meant = {obj["metadata"]["name"]: obj for obj in leases if self.is_meant(obj)}
        own = meant.pop(self.name, None)
        if own is None or lease_holder(own) != self.holder:
            raise self._lost()
        for obj in meant.values():
            self.check_one(obj, gone=False)

    def check_one(self, obj: Object, gone: bool) -> None:
        """What became of one that is meant. Raises LeaseLost; if a rival has its own, this one is to be given away."""
        holder = "" if gone else lease_holder(obj)
        name = obj["metadata"]["name"]
        if name == self.name:
            if holder != self.holder:
                raise self._lost()
        elif holder and self._rivals is not None:
            raise LeaseLost(f"{self._rivals.whose(name)} holds the lease {self.namespace}/{name}")

    def give(self) -> None:
        """Let another have it at once. Raises StoreError."""
        if self._own is None:
            return
        with suppress(LeaseLost, Conflict, NotFound):
            self._store.replace(_without_holder(self._still_ours()))
        self._own = None

    def _leases(self) -> dict[str, Object]:
        """This one and those of rivals, as far as they are there."""
        if self._rivals is not None:
            return {obj["metadata"]["name"]: obj for obj in self._rivals.listed() if self.is_meant(obj)}
        try:
            return {self.name: self._store.get(KIND, self.namespace, self.name)}
        except NotFound:
            return {}

    def _is_free(self, obj: Object, began: float) -> bool:
        """Whether no other process holds it, or no longer. ``began``: when the request was sent."""
        name, version = obj["metadata"]["name"], obj["metadata"]["resourceVersion"]
        if lease_holder(obj) in ("", self.holder) or self._alone:
            return True
        if self._seen.get(name, ("", 0.0))[0] != version:
            # Renewed until now for all we know: it may have been while we were waiting for the answer.
            self._seen[name] = (version, self._clock())
        return began - self._seen[name][1] > self._believed(obj)

    def _was_deleted(self, leases: Container[str], began: float) -> bool:
        """Whether the lease of another holder was deleted, which that holder may not know yet."""
        if self.name in leases or self.name not in self._seen:
            return False
        if self._seen[self.name][0] != _DELETED:
            self._seen[self.name] = (_DELETED, self._clock())
        return began - self._seen[self.name][1] <= self.seconds

    def _believed(self, obj: Object) -> float:
        """For how many seconds without renewal a lease of another holder counts as held."""
        seconds = _spec(obj).get("leaseDurationSeconds")
        duration = float(seconds) if isinstance(seconds, (int, float)) and 0 <= seconds <= MAX_SECONDS else MAX_SECONDS
        return max(duration, self.seconds)

    def _describe_holder(self, obj: Object) -> str:
        return (
            f"the lease {self.namespace}/{obj['metadata']['name']}, held by {lease_holder(obj)}, until it is released "
            f"or has not been renewed for {self._believed(obj):.0f} s"
        )

    def _still_ours(self) -> Object:
        """As it is now. Raises LeaseLost, StoreError."""
        try:
            lease = self._store.get(KIND, self.namespace, self.name)
        except NotFound:
            raise self._lost() from None
        if lease_holder(lease) != self.holder:
            raise self._lost()
        return lease

    def _lost(self) -> LeaseLost:
        self._own = None
        return LeaseLost(f"another process has taken the lease {self.namespace}/{self.name}")

    def _took(self, written: Object, began: float) -> bool:
        self._own = written
        self.transitions = int(_spec(written).get("leaseTransitions", 0))
        self._until = began + self._deadline
        self._seen = {}
        return True

    def _object(self, metadata: dict[str, Any], transitions: int, since: str) -> Object:
        promises = dict.fromkeys(self.promises, str(transitions))
        noted = {"annotations": {**(metadata.get("annotations") or {}), **promises}} if promises else {}
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": KIND,
            "metadata": {**metadata, **noted, "name": self.name, "namespace": self.namespace},
            "spec": {
                "holderIdentity": self.holder,
                "leaseDurationSeconds": max(1, round(self.seconds)),
                "leaseTransitions": transitions,
                "acquireTime": since,
                "renewTime": _now(),
            },
        }


def lease_holder(lease: Object) -> str:
    """The holder; empty if there is none."""
    holder = _spec(lease).get("holderIdentity")
    return holder if isinstance(holder, str) else ""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _spec(lease: Object) -> dict[str, Any]:
    spec = lease.get("spec")
    return spec if isinstance(spec, dict) else {}


def _without_holder(lease: Object) -> Object:
    return {**lease, "spec": {name: value for name, value in _spec(lease).items() if name != "holderIdentity"}}
