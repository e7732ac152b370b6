"""Background work of the pool: refill it, retry removals, reclaim forgotten setups."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from devalloc.backoff import Backoff
from devalloc_node.deadline import Deadline
from devalloc_node.errors import NodeError
from devalloc_node.journal.audit_log import audit
from devalloc_node.warm.pool import Pool

log = logging.getLogger(__name__)

_STOP_SECONDS = 0.5
"""How soon a stop is seen."""
_PAUSES = (1.0, 60.0)
"""The first and the longest back-off after setups could not be made, in seconds."""


class PoolBackground:
    """Of one pool, in one thread: ``keep``."""

    def __init__(
        self, pool: Pool, clock: Callable[[], float] = time.monotonic, sweep: Callable[[], None] = lambda: None
    ) -> None:
        """``sweep``: takes back what machines that have ended still have."""
        self._pool = pool
        self._sweep = sweep
        self._clock = clock
        self._empty_since: dict[str, float] = {}
        """The setups that had no users at the last look, and since when."""

    def keep(self, stop: threading.Event) -> None:
        """Until ``stop``."""
        look = self._pool.config.look_seconds
        backoff, looked = Backoff(*_PAUSES), float("-inf")
        while not stop.is_set():
            try:
                self._pool.refill()
                backoff.reset()
                pause = 0.0
            except Exception as error:  # what is done unasked must not end what was asked for
                pause = backoff.next_delay()
                is_expected = isinstance(error, NodeError)
                log.warning(
                    "cannot maintain the warm setups: trying again in %.0f s: %s",
                    pause,
                    error,
                    exc_info=not is_expected,
                )
            if self._clock() - looked >= look:
                looked = self._clock()
                try:
                    self._sweep()
                    self._pool.look()
                    self.take_back_forgotten()
                except Exception:
                    log.exception("cannot maintain the warm setups; trying again in %.0f s", look)
            if pause:
                stop.wait(pause)
            else:
                self._pool.await_change(min(look, _STOP_SECONDS))

    def take_back_forgotten(self) -> None:
        """Give back for their owners the setups that had no users for the configured time."""
        empty, now = self._pool.empty(), self._clock()
        before, self._empty_since = self._empty_since, {}
        for each in empty:
            name = each.setup.id
            since = before.get(name, now)
            if now - since < self._pool.config.lease_seconds:
                self._empty_since[name] = since
                continue
            with suppress(NodeError):  # in use again, or given back by its owner
                self._pool.give_back(name, Deadline.after(0))
                log.warning("reclaimed setup %s of %s: no process has used it for long", name, each.owner)
                audit("warm", setup=name, owner=each.owner, reason="no process has used it for long")
