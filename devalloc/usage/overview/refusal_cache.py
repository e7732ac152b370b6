"""Why claims wait, as pictures: the refusals of a store, worked out on request, and seldom."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from devalloc.api.views import ClaimKey
from devalloc.controller.reconcile.stored_claims import solver_documents
from devalloc.controller.refusals import Refusal, refusal_of
from devalloc.machines.schedule.what_if import solve_with_machines
from devalloc.store import Object

log = logging.getLogger(__name__)

MAX_OBJECTS = 5000
"""In a larger fleet nothing is worked out here: `devalloc explain` does it."""
DEADLINE = 5.0
"""Seconds of one search."""
CPU_DIVISOR = 20
"""No more than one part in so many of a CPU is spent."""

Refusals = Mapping[ClaimKey, Refusal]
NO_REFUSALS: Refusals = MappingProxyType({})


class RefusalCache:
    """Use from any thread. While one thread works, others get what there was before."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._version = ""
        self._refusals = NO_REFUSALS
        self._next = 0.0

    def latest(self, version: str, documents: Sequence[Object], *, with_nodes: bool) -> Refusals:
        """The refusals among the documents, whose ``version`` is another one whenever they changed; or those of a
        moment ago. ``with_nodes``: Nodes of Kubernetes count."""
        if not self._lock.acquire(blocking=False):
            return self._refusals
        try:
            if version != self._version and self._clock() >= self._next and len(documents) <= MAX_OBJECTS:
                began = time.thread_time()
                self._refusals, self._version = _refusals(documents, with_nodes=with_nodes), version
                self._next = self._clock() + CPU_DIVISOR * (time.thread_time() - began)
            return self._refusals if len(documents) <= MAX_OBJECTS else NO_REFUSALS
        finally:
            self._lock.release()


def _refusals(documents: Sequence[Object], *, with_nodes: bool) -> Refusals:
    try:
        answer = solve_with_machines(solver_documents(documents, with_nodes=with_nodes), deadline=DEADLINE)
    except Exception:  # a picture less, and the page all the same
        log.exception("why claims wait cannot be worked out")
        return NO_REFUSALS
    return MappingProxyType(
        {
            (one["namespace"], one["name"]): refusal_of(one, is_cluster=with_nodes)
            for one in answer["claims"]
            if not one["allocated"]
        }
    )
