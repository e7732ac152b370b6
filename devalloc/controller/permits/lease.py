"""One server at a time answers, and what one that was replaced would still write is refused by the store.

The lease is an object of the store, such as Kubernetes' leader election keeps. Whether its holder still lives is told
by whether it is renewed, on the clock of who looks: clocks of hosts need not agree. The holder's commits are fenced
with the lease: what it would still write after another took it, the store refuses.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from devalloc.store import AlreadyExists, Conflict, NotFound, Object, Store

KIND = "Lease"
NAME = "devalloc-permits"
NAMESPACE = "default"
SECONDS = 15.0


class Lost(Exception):
    """Another server has the lease."""


class Lease:
    """Who may grant permits. Use from one thread, but for ``is_valid``."""

    def __init__(
        self,
        store: Store,
        holder: str,
        *,
        seconds: float = SECONDS,
        alone: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``holder``: a name that no other process has, not even the next one here. ``seconds``: how long it is good
        without being renewed. ``alone``: this process holds a lock by which it knows that no other lives, so it need
        not wait until the lease of the one before has run out."""
        self.holder = holder
        self.seconds = seconds
        self._store = store
        self._alone = alone
        self._clock = clock
        self._seen: tuple[str, float] | None = None
        """The resourceVersion of somebody else's lease, and since when it has been that."""
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
        try:
            found = self._store.get(KIND, NAMESPACE, NAME)
        except NotFound:
            with suppress(AlreadyExists):
                return self._took(self._store.create(self._object({}, 0)), began)
            return False
        spec = found.get("spec") or {}
        version = found["metadata"]["resourceVersion"]
        free = not spec.get("holderIdentity") or self._alone or spec["holderIdentity"] == self.holder
        if not free:
            if self._seen is None or self._seen[0] != version:
                self._seen = (version, began)
            seconds = spec.get("leaseDurationSeconds")
            least = float(seconds) if isinstance(seconds, (int, float)) else self.seconds
            if began - self._seen[1] <= max(least, self.seconds):
                return False
        transitions = spec.get("leaseTransitions")
        new = self._object(found["metadata"], (transitions if isinstance(transitions, int) else 0) + 1)
        with suppress(Conflict, NotFound):
            return self._took(self._store.replace(new), began)
        return False

    def renew(self) -> None:
        """Keep it. Raises Lost, StoreError."""
        began = self._clock()
        found = self._ours()
        spec = found.get("spec") or {}
        try:
            self._took(self._store.replace(self._object(found["metadata"], spec.get("leaseTransitions", 0))), began)
        except (Conflict, NotFound):
            raise self._lost() from None

    def check(self, found: Object | None) -> None:
        """That this is still ours, as somebody else read it; None: there is none. Raises Lost."""
        if found is None or (found.get("spec") or {}).get("holderIdentity") != self.holder:
            raise self._lost()

    def give(self) -> None:
        """Let another server have it at once. Raises StoreError."""
        if self._version is None:
            return
        with suppress(Lost, Conflict, NotFound):
            found = self._ours()
            spec = {k: v for k, v in (found.get("spec") or {}).items() if k != "holderIdentity"}
            self._store.replace({**found, "spec": spec})
        self._version = None

    def _ours(self) -> Object:
        try:
            found = self._store.get(KIND, NAMESPACE, NAME)
        except NotFound:
            raise self._lost() from None
        if found["metadata"]["resourceVersion"] != self._version:
            raise self._lost()
        return found

    def _lost(self) -> Lost:
        self._version = None
        return Lost(f"another server of permits has taken the lease {NAMESPACE}/{NAME}")

    def _took(self, written: Object, began: float) -> bool:
        self._version = written["metadata"]["resourceVersion"]
        self._until = began + self.seconds
        self._seen = None
        return True

    def _object(self, metadata: dict[str, Any], transitions: int) -> Object:
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": KIND,
            "metadata": {**metadata, "name": NAME, "namespace": NAMESPACE},
            "spec": {
                "holderIdentity": self.holder,
                "leaseDurationSeconds": max(1, round(self.seconds)),
                "leaseTransitions": transitions,
                "renewTime": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            },
        }


def is_the_lease(obj: Object) -> bool:
    """Whether this is the one of the servers of permits."""
    metadata = obj["metadata"]
    return (metadata.get("namespace", NAMESPACE), metadata["name"]) == (NAMESPACE, NAME)
