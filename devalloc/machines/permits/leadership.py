"""Leadership for permits: one server at a time answers for a node, and late writes of one that was replaced are
refused.

A server answers for all nodes, or for one. Servers of several nodes work beside each other; one for all and one for a
node are rivals. Commits are fenced with all leases. A server inside a process that holds a lease for all it does
(``devalloc controller``) has that instead.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Iterable
from typing import Any

from devalloc.controller.leader.lease import DEFAULT_SECONDS, KIND, Lease, LeaseLost, LeaseTerm, RivalLeases
from devalloc.store import Object, Store

LEASE_NAME = "devalloc-permits"
"""Of the lease for all nodes; that for one has the node's name behind it."""


def new_holder() -> str:
    """A name for a server that no other has, not even the next one of this process."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def permits_lease(
    store: Store,
    holder: str,
    *,
    node: str | None = None,
    seconds: float = DEFAULT_SECONDS,
    alone: bool = False,
    **more: Any,
) -> Lease:
    """The lease of a server for one node, or (None) all. ``more``: as ``Lease`` has it."""
    name = LEASE_NAME if node is None else f"{LEASE_NAME}-{node}"

    def listed() -> Iterable[Object]:
        return store.list(KIND, lease.namespace).objects

    def is_rival(other: str) -> bool:
        return other.startswith(f"{LEASE_NAME}-") if node is None else other == LEASE_NAME

    def whose(other: str) -> str:
        return f"a permit server for {'all nodes' if other == LEASE_NAME else 'single nodes'}"

    rivals = RivalLeases(listed, is_rival, whose)
    lease = Lease(store, holder, name, term=LeaseTerm(seconds), rivals=rivals, alone=alone, **more)
    return lease


class ProcessLeadership:
    """The right of a server whose process holds a lease: it is neither taken nor given here."""

    kinds: frozenset[str] = frozenset()
    name = LEASE_NAME

    def __init__(self, holder: str, is_led: Callable[[], bool], seconds: float = DEFAULT_SECONDS) -> None:
        """``is_led``: whether the process still leads, asked from any thread."""
        self.holder = holder
        self.seconds = seconds
        self._is_led = is_led

    @property
    def held_by(self) -> str | None:
        return None if self._is_led() else "the lease of this process"

    @property
    def is_valid(self) -> bool:
        return self._is_led()

    def take(self) -> bool:
        """Whether it is ours."""
        return self._is_led()

    def renew(self) -> None:
        """Raises LeaseLost."""
        if not self._is_led():
            raise LeaseLost("this process no longer leads")

    def give(self) -> None:
        """The process does."""

    def check(self, leases: Iterable[Object]) -> None:
        """Raises LeaseLost."""
        self.renew()


Leadership = Lease | ProcessLeadership
"""What lets a server grant."""
