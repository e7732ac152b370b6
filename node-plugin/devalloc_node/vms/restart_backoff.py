"""When a machine that ended is started again: at once, but ever more rarely where it ends soon after each start."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from devalloc.backoff import backoff_delay

QUICK_SECONDS = 60.0
"""A run that ends sooner than that after its start did not last."""
FIRST_SECONDS, MOST_SECONDS = 1.0, 300.0
"""The first and the longest pause."""
_OFTEN = 30
"""So many runs that did not last make the longest pause."""


@dataclass(frozen=True, slots=True)
class _Run:
    """The last run of a machine, or the last try to start it."""

    began: float
    ended: float | None
    """When that was noticed."""
    quick: int
    """How many runs in a row did not last, with this one once it ended."""
    generation: int | None = None
    """Of the spec that it was started by."""


class RestartBackoff:
    """The back-off of machines by their keys. Safe for threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._runs: dict[str, _Run] = {}

    def begun(self, key: str, generation: int | None = None) -> None:
        """It was started now, or that was tried, by a spec of that generation."""
        with self._mutex:
            last = self._runs.get(key)
            quick = last.quick if last is not None and last.generation == generation else 0
            self._runs[key] = _Run(self._clock(), None, quick, generation)

    def left(self, key: str, generation: int | None = None) -> float:
        """Seconds until one that is seen not to run may be started; 0 for now, and for another spec than before."""
        with self._mutex:
            last = self._runs.get(key)
            if last is None or last.generation != generation:
                return 0.0
            now = self._clock()
            if last.ended is None:
                quick = last.quick + 1 if now - last.began < QUICK_SECONDS else 0
                last = self._runs[key] = replace(last, ended=now, quick=quick)
            if not last.quick or last.ended is None:
                return 0.0
            return max(0.0, last.ended + backoff_delay(last.quick, FIRST_SECONDS, MOST_SECONDS) - now)

    def slow_down(self, key: str) -> None:
        """What is in its way does not go away by itself: after the try that begun there is the longest pause."""
        with self._mutex:
            if (last := self._runs.get(key)) is not None:
                self._runs[key] = replace(last, quick=max(last.quick, _OFTEN))

    def only(self, ended: Collection[str]) -> None:
        """Of those that were seen not to run, forget all but these: others started them, or they are gone."""
        with self._mutex:
            self._runs = {key: run for key, run in self._runs.items() if run.ended is None or key in ended}

    def forget(self, key: str) -> None:
        """Its next run is its first."""
        with self._mutex:
            self._runs.pop(key, None)
