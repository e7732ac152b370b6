"""Health and readiness of a controller process on a cluster: nothing that it began takes for ever.

A process is not ready while it does not do its part: others can see that, and an update waits. It is not healthy if it
should be restarted. That is reported much later, and never for a problem that another process would also have at once
(if the API server is away, a leader ends by its lease).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

MAX_STILL_SECONDS = 60.0
"""After which a main loop that does not go round is not healthy: it does several times a second."""
MAX_ROUND_SECONDS = 900.0
"""After which what was begun and has not ended is not healthy."""
MAX_DELAY_SECONDS = 60.0
"""After which what is to be over soon is not ready."""


@dataclass(frozen=True, slots=True)
class LoopHealth:
    """A loop that answers claims, or requests for permits. Moments are of the monotonic clock."""

    name: str
    began: float | None
    """When what it is at began; None where it waits for something to do."""
    failing: float | None = None
    """Since when all that it tries fails."""
    silent_seconds: float = 0.0
    """For how long it has not been told of what changes."""


@dataclass(frozen=True, slots=True)
class ProcessHealth:
    """What one process is at."""

    state: str
    """Of ``leading.Controller``."""
    beat: float
    """When its main loop went round last."""
    taking_over: float | None
    """Since when it takes over."""
    loops: tuple[LoopHealth, ...]
    unanswered: float | None = None
    """Since when the lease can be neither read nor written; -inf: it never could."""

    def unhealthy(self, now: float) -> str | None:
        """Why it should be started again."""
        return next(self._unhealthy(now), None)

    def unready(self, now: float) -> str | None:
        """Why it does not do its part."""
        return next(self._unready(now), None)

    def _unhealthy(self, now: float) -> Iterator[str]:
        if now - self.beat > MAX_STILL_SECONDS:
            yield "the main loop is stuck"
        if _since(self.taking_over, now) > MAX_ROUND_SECONDS:
            yield "taking over from the last leader does not finish"
        for loop in self.loops:
            if _since(loop.began, now) > MAX_ROUND_SECONDS:
                yield f"a round of {loop.name} does not end"
            if self.state == "leading" and loop.silent_seconds > MAX_ROUND_SECONDS:
                yield _silent(loop)

    def _unready(self, now: float) -> Iterator[str]:
        yield from self._unhealthy(now)
        if self.state == "stopping":
            yield "stopping"
        if self.unanswered == -math.inf:
            # At once: else an update goes on to replace those that work by one that never will.
            yield "the lease has not been read yet"
        elif _since(self.unanswered, now) > MAX_DELAY_SECONDS:
            yield f"the lease could not be read for {_since(self.unanswered, now):.0f} s"
        if _since(self.taking_over, now) > MAX_DELAY_SECONDS:
            yield f"taking over from the last leader for {_since(self.taking_over, now):.0f} s"
        for loop in self.loops:
            if _since(loop.failing, now) > MAX_DELAY_SECONDS:
                yield f"{loop.name}: everything has failed for {_since(loop.failing, now):.0f} s; see the log"
            if loop.silent_seconds > MAX_DELAY_SECONDS:
                yield _silent(loop)


def _since(moment: float | None, now: float) -> float:
    return 0.0 if moment is None else now - moment


def _silent(loop: LoopHealth) -> str:
    return f"{loop.name}: no updates from the cluster for {loop.silent_seconds:.0f} s"
