"""One server at a time answers for a node, and what one that was replaced would still write is refused by the store.

A lease is an object of the store, such as Kubernetes' leader election keeps. Whether its holder still lives is told by
whether it is renewed, on the clock of who looks: clocks of hosts need not agree. The holder's commits are fenced with
all leases: what it would still write after another took one, the store refuses.

A server answers for all nodes, or for one. Servers of several nodes work beside each other; one for all and one for a
node are *rivals*, and whoever sees that a rival holds its lease does not answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from devalloc.store import AlreadyExists, Conflict, NotFound, Object, Store

KIND = "Lease"
NAME = "devalloc-permits"
"""Of the lease for all nodes; that for one has the node's name behind it."""
NAMESPACE = "default"
SECONDS = 15.0
LONGEST = 3600.0
"""Seconds for which a lease that nobody renews is believed at most, whatever it says."""


class Lost(Exception):
    """Another server answers."""


class Lease:
    """Who may grant permits. Use from one thread, but for ``is_valid``."""

    def __init__(
        self,
        store: Store,
        holder: str,
        *,
        node: str | None = None,
        seconds: float = SECONDS,
        alone: bool = False,
        clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        """``holder``: a name that no other process has, not even the next one here. ``node``: for which it is; None:
        for all. ``seconds``: how long it is good without being renewed. ``alone``: this process holds a lock by which
        it knows that no other lives, so it need not wait until the lease of the one before has run out. ``clock``: one
        that also goes while the host is suspended."""
        self.holder = holder
        self.seconds = seconds
        self.name = NAME if node is None else f"{NAME}-{node}"
        self._store = store
        self._alone = alone
        self._clock = clock
        self._seen: dict[str, tuple[str, float]] = {}
        """The resourceVersions of others' leases by name, and since when they have been that."""
        self.held_by: str | None = None
        """Whose it is instead, for people, where the last ``take`` found that somebody else has it."""
        self._version: str | None = None
        """Of our own."""
        self._until = 0.0

    @property
    def is_valid(self) -> bool:
        """Whether nobody else can have taken it yet."""
        return self._version is not None and self._clock() < self._until

    def take(self) -> bool:
        """Have it, if it is free, has run out or is ours. Raises StoreError."""
        began = self._clock()
        leases = {obj["metadata"]["name"]: obj for obj in self._store.list(KIND, NAMESPACE).objects}
        # All are looked at, so that the time of each runs.
        are_free = {
            name: self._is_free(obj, began) for name, obj in leases.items() if name == self.name or self._is_rival(name)
        }
        self.held_by = next((self._told(leases[name]) for name, free in are_free.items() if not free), None)
        if self.held_by is not None:
            return False
        with suppress(AlreadyExists, Conflict, NotFound):
            for name in are_free:
                if name != self.name and _holder(leases[name]):
                    self._store.replace(_without_holder(leases[name]))  # it has run out
            if (found := leases.get(self.name)) is None:
                return self._took(self._store.create(self._object({}, 0)), began)
            transitions = _spec(found).get("leaseTransitions")
            count = transitions if isinstance(transitions, int) else 0
            return self._took(self._store.replace(self._object(found["metadata"], count + 1)), began)
        return False

    def renew(self) -> None:
        """Keep it. Raises Lost, StoreError."""
        began = self._clock()
        found = self._ours()
        transitions = _spec(found).get("leaseTransitions", 0)
        try:
            self._took(self._store.replace(self._object(found["metadata"], transitions)), began)
        except (Conflict, NotFound):
            raise self._lost() from None

    def is_meant(self, obj: Object) -> bool:
        """Whether a Lease is this one or that of a rival."""
        metadata = obj["metadata"]
        name = metadata["name"]
        return metadata.get("namespace", NAMESPACE) == NAMESPACE and (name == self.name or self._is_rival(name))

    def check(self, leases: Iterable[Object]) -> None:
        """That of all leases there are this one is still ours, and none a rival's. Raises Lost."""
        meant = {obj["metadata"]["name"]: obj for obj in leases if self.is_meant(obj)}
        own = meant.pop(self.name, None)
        if own is None or _holder(own) != self.holder:
            raise self._lost()
        for obj in meant.values():
            self.check_one(obj, gone=False)

    def check_one(self, obj: Object, gone: bool) -> None:
        """What became of one that is meant. Raises Lost; where a rival has its own, this one is to be given away."""
        holder = "" if gone else _holder(obj)
        if obj["metadata"]["name"] == self.name:
            if holder != self.holder:
                raise self._lost()
        elif holder:
            whose = "all nodes" if obj["metadata"]["name"] == NAME else "single nodes"
            raise Lost(f"a server of permits for {whose} holds the lease {NAMESPACE}/{obj['metadata']['name']}")

    def give(self) -> None:
        """Let another server have it at once. Raises StoreError."""
        if self._version is None:
            return
        with suppress(Lost, Conflict, NotFound):
            self._store.replace(_without_holder(self._ours()))
        self._version = None

    def _is_rival(self, name: str) -> bool:
        return name.startswith(f"{NAME}-") if self.name == NAME else name == NAME

    def _is_free(self, obj: Object, now: float) -> bool:
        """Whether nobody holds it, nobody else at least, or not any more."""
        name, version = obj["metadata"]["name"], obj["metadata"]["resourceVersion"]
        if _holder(obj) in ("", self.holder) or self._alone:
            return True
        if self._seen.get(name, ("", 0.0))[0] != version:
            self._seen[name] = (version, now)
        return now - self._seen[name][1] > self._believed(obj)

    def _believed(self, obj: Object) -> float:
        """For how many seconds that nobody renews it somebody else's is taken for held."""
        seconds = _spec(obj).get("leaseDurationSeconds")
        told = float(seconds) if isinstance(seconds, (int, float)) and 0 <= seconds <= LONGEST else LONGEST
        return max(told, self.seconds)

    def _told(self, obj: Object) -> str:
        return (
            f"the lease {NAMESPACE}/{obj['metadata']['name']}, held by {_holder(obj)}, until that is given back or has "
            f"not been renewed for {self._believed(obj):.0f} s"
        )

    def _ours(self) -> Object:
        try:
            found = self._store.get(KIND, NAMESPACE, self.name)
        except NotFound:
            raise self._lost() from None
        if found["metadata"]["resourceVersion"] != self._version:
            raise self._lost()
        return found

    def _lost(self) -> Lost:
        self._version = None
        return Lost(f"another server of permits has taken the lease {NAMESPACE}/{self.name}")

    def _took(self, written: Object, began: float) -> bool:
        self._version = written["metadata"]["resourceVersion"]
        self._until = began + self.seconds
        self._seen = {}
        return True

    def _object(self, metadata: dict[str, Any], transitions: int) -> Object:
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": KIND,
            "metadata": {**metadata, "name": self.name, "namespace": NAMESPACE},
            "spec": {
                "holderIdentity": self.holder,
                "leaseDurationSeconds": max(1, round(self.seconds)),
                "leaseTransitions": transitions,
                "renewTime": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            },
        }


def _spec(lease: Object) -> dict[str, Any]:
    spec = lease.get("spec")
    return spec if isinstance(spec, dict) else {}


def _holder(lease: Object) -> str:
    holder = _spec(lease).get("holderIdentity")
    return holder if isinstance(holder, str) else ""


def _without_holder(lease: Object) -> Object:
    return {**lease, "spec": {name: value for name, value in _spec(lease).items() if name != "holderIdentity"}}
