"""Whether a controller on a cluster is at what it is there for: nothing that it began takes for ever.

Not ready is who does not do its part now: others may see it, and an update waits. Not healthy is who should be started
again: so that is told much later, and never of what another process would fare no better with at once (an API server
that is away ends a leader by its lease).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

STILL_SECONDS = 60.0
"""After which a main loop that does not go round is not healthy: it does several times a second."""
ROUND_SECONDS = 900.0
"""After which what was begun and has not ended is not healthy."""
LATE_SECONDS = 60.0
"""After which what is to be over soon is not ready."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop that answers claims, or requests for permits. Moments are of the monotonic clock."""

    name: str
    began: float | None
    """When what it is at began; None where it waits for something to do."""
    failing: float | None = None
    """Since when all that it tries fails."""
    silent_seconds: float = 0.0
    """For how long it has not been told of what changes."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one process is at."""

    state: str
    """Of ``leading.Controller``."""
    beat: float
    """When its main loop went round last."""
    taking_over: float | None
    """Since when it takes over."""
    loops: tuple[Loop, ...]
    unanswered: float | None = None
    """Since when the lease can be neither read nor written; -inf: it never could."""

    def unhealthy(self, now: float) -> str | None:
        """Why it should be started again."""
        return next(self._unhealthy(now), None)

    def unready(self, now: float) -> str | None:
        """Why it does not do its part."""
        return next(self._unready(now), None)

    def _unhealthy(self, now: float) -> Iterator[str]:
        if now - self.beat > STILL_SECONDS:
            yield "the main loop stands still"
        if _since(self.taking_over, now) > ROUND_SECONDS:
            yield "taking over from the last leader does not end"
        for loop in self.loops:
            if _since(loop.began, now) > ROUND_SECONDS:
                yield f"a round of {loop.name} does not end"
            if self.state == "leading" and loop.silent_seconds > ROUND_SECONDS:
                yield _silent(loop)

    def _unready(self, now: float) -> Iterator[str]:
        yield from self._unhealthy(now)
        if self.state == "stopping":
            yield "stopping"
        if self.unanswered == -math.inf:
            # At once: else an update goes on to replace those that work by one that never will.
            yield "the lease could not be looked at yet"
        elif _since(self.unanswered, now) > LATE_SECONDS:
            yield f"the lease cannot be looked at for {_since(self.unanswered, now):.0f} s"
        if _since(self.taking_over, now) > LATE_SECONDS:
            yield f"taking over from the last leader for {_since(self.taking_over, now):.0f} s"
        for loop in self.loops:
            if _since(loop.failing, now) > LATE_SECONDS:
                yield f"{loop.name}: all that is tried fails, for {_since(loop.failing, now):.0f} s; the log says why"
            if loop.silent_seconds > LATE_SECONDS:
                yield _silent(loop)


def _since(moment: float | None, now: float) -> float:
    return 0.0 if moment is None else now - moment


def _silent(loop: Loop) -> str:
    return f"{loop.name}: what changes in the cluster is not heard of, for {loop.silent_seconds:.0f} s"
