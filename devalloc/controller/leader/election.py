"""Leader election: one of several controllers leads. It waits for the lease, fences off what the last leader may still
write, recovers what that left half-done, and only then decides. A leader that loses the lease ends at once.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Literal, Protocol

from devalloc.backoff import Backoff
from devalloc.controller.leader.lease import Lease, LeaseLost
from devalloc.program import Loop
from devalloc.store import Store, StoreError
from devalloc.store.fencing import FencingInterrupted, fence_objects
from devalloc.worker import DONE, repeat

log = logging.getLogger(__name__)

LEASE_SECONDS, RENEW_DEADLINE = 15.0, 10.0
"""How long others believe the lease without a renewal, and how long its holder does."""
LOOK_SECONDS = 0.2
"""How often the holder looks at its clock: so long after it woke up it ends at the latest."""
RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 15.0
GRACE_SECONDS = 20.0
"""How long a clean stop waits for loops to end before it leaves the lease to run out."""

LeaderState = Literal["waiting", "taking over", "leading", "stopping"]


class ClusterStore(Store, Protocol):
    """A store that several processes write to, each object by itself, and that writes only while this one leads."""

    def refresh(self) -> None:
        """Read anew all that is held in memory. Raises StoreError."""

    def recover(self) -> None:
        """Finish or undo what another process began on several objects and did not end. Raises StoreError."""


class LeaderElection:
    """One process of the controller."""

    def __init__(
        self,
        lease: Lease,
        store: ClusterStore,
        loops: Callable[[], Mapping[str, Loop]],
        *,
        on_state: Callable[[LeaderState, str], None] = lambda state, text: None,
        grace: float = GRACE_SECONDS,
    ) -> None:
        """``loops``: what runs on the store, by name, while this process leads. ``on_state`` is called with what it
        does now, as a state and a sentence."""
        self.lease = lease
        self.state: LeaderState = "waiting"
        self.summary = "the lease was not read yet"
        """The state as a sentence."""
        self.beat = time.monotonic()
        """When the main loop went round last."""
        self.unanswered: float | None = -math.inf
        """Since when the lease can be neither read nor written, by the monotonic clock; -inf: it never could."""
        self.taking_over: float | None = None
        """Since when it takes over, by the monotonic clock."""
        self._store = store
        self._loops = loops
        self._on_state = on_state
        self._grace = grace
        # Unlike an Event or a Queue, a SimpleQueue may be used in a signal handler.
        self._messages: SimpleQueue[Literal["stop"]] = SimpleQueue()
        self._failure: BaseException | None = None

    def stop(self) -> None:
        """End ``run`` soon. From any thread or signal handler."""
        self._messages.put("stop")

    def run(self) -> None:
        """Wait for the lease, then lead, until ``stop``.

        Raises LeaseLost if another process may lead: this one must end at once, its loops may be in the middle of
        something. Raises what ended a loop.
        """
        if not self._wait():
            return
        over = threading.Event()
        minded = threading.Event()
        minder = threading.Thread(target=self._mind, args=(minded,), name="lease", daemon=True)
        leader = threading.Thread(target=self._lead, args=(over,), name="leader", daemon=True)
        minder.start()
        leader.start()
        try:
            while not self._is_stopped(LOOK_SECONDS):
                self._check()
            self._say("stopping", "stopping: waiting for work in progress")
            over.set()
            until = time.monotonic() + self._grace
            while leader.is_alive() and time.monotonic() < until:
                leader.join(LOOK_SECONDS)
                self._check()
        finally:
            over.set()
            minded.set()
        minder.join(self._grace)
        if leader.is_alive() or minder.is_alive():
            log.warning("work is still in progress, so the lease is not released but left to expire")
        else:
            with suppress(StoreError):
                self.lease.give()
        if self._failure is not None:
            raise self._failure

    def _wait(self) -> bool:
        """Until the lease is ours; False if it was stopped before."""
        while True:
            try:
                taken = self.lease.take()
                self.unanswered = None
                if taken:
                    return True
                self._say("waiting", f"standing by, waiting for {self.lease.held_by or 'a lease that others take'}")
            except StoreError as error:
                self.unanswered = time.monotonic() if self.unanswered is None else self.unanswered
                self._say("waiting", f"cannot acquire the lease: {error}")
            if self._is_stopped(self.lease.seconds * 2 / 15 * random.uniform(0.8, 1.2)):
                return False

    def _mind(self, stop: threading.Event) -> None:
        """Renew the lease until ``stop`` is set, or it is lost."""

        def renew() -> float:
            try:
                self.lease.renew()
            except StoreError:
                raise
            except LeaseLost as lost:
                log.warning("%s", lost)
                return DONE  # it is not valid any more, which is seen
            except BaseException as error:
                self.fail(error)
                return DONE
            return self.lease.seconds / 3

        delay, again = self.lease.seconds / 3, self.lease.seconds / 15
        repeat(stop, renew, again, "cannot renew the lease", delay=delay, expected=(StoreError,))

    def _lead(self, over: threading.Event) -> None:
        """Take over, then run the loops until ``over`` is set and all have ended."""
        try:
            self._take_over(over)
            threads = [
                threading.Thread(target=self._guarded, args=(loop, over), name=name, daemon=True)
                for name, loop in self._loops().items()
            ]
            for thread in threads:
                thread.start()
            self._say("leading", f"leading, as {self.lease.holder}")
            for thread in threads:
                thread.join()
        except FencingInterrupted:
            return
        except BaseException as error:
            self.fail(error)

    def _take_over(self, over: threading.Event) -> None:
        """Wait until no other process grants anything on the store. Raises FencingInterrupted."""
        stamp, backoff = f"{self.lease.transitions} {self.lease.holder}", Backoff(RETRY_SECONDS, MAX_RETRY_SECONDS)
        self.taking_over = time.monotonic()
        self._say("taking over", "taking over from the last leader")
        while not over.is_set():
            try:
                self._store.refresh()
                sealed = fence_objects(self._store, stamp, over)
                self._store.recover()
                self._store.refresh()
                log.info("took over, fenced %d objects", sealed)
                self.taking_over = None
                return
            except StoreError as error:
                log.warning("cannot take over yet: %s", error)
                self.summary = f"cannot take over yet: {error}"
                over.wait(backoff.next_delay())
        raise FencingInterrupted

    def _guarded(self, loop: Loop, over: threading.Event) -> None:
        """A loop that ends before it is to ends everything."""
        try:
            loop(over)
            if not over.is_set():
                raise RuntimeError(f"the loop {threading.current_thread().name} ended")
        except BaseException as error:
            self.fail(error)

    def _check(self) -> None:
        self.beat = time.monotonic()
        if not self.lease.is_valid:
            raise LeaseLost(
                f"the lease {self.lease.namespace}/{self.lease.name} was lost, or could not be renewed in time"
            )

    def _is_stopped(self, seconds: float) -> bool:
        """Waits so long for it."""
        self.beat = time.monotonic()
        with suppress(Empty):
            self._messages.get(timeout=seconds)
            return True
        return False

    def fail(self, error: BaseException) -> None:
        """End ``run`` soon, with this error. From any thread."""
        self._failure = self._failure or error
        self.stop()

    def _say(self, state: LeaderState, text: str) -> None:
        if (state, text) != (self.state, self.summary):
            self.state, self.summary = state, text
            self._on_state(state, text)
