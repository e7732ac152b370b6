"""Back-off: waiting longer after each failure in a row."""

from __future__ import annotations

import logging
import math
import random
from dataclasses import dataclass

QUICK_SECONDS = 60.0
"""What ends sooner than that after it began did not last."""
_FIRST_PAUSE, _MOST_PAUSE = 1.0, 300.0
"""Seconds: the first and the longest pause of a machine that does not last."""
_MOST_DOUBLINGS = 64
"""A larger exponent would only overflow: every maximum is reached long before."""


def backoff_delay(failures: int, first: float, maximum: float = math.inf, factor: float = 2.0) -> float:
    """The delay after that many failures in a row (1 or more).

    It is ``first`` after one failure, ``factor`` times as long after each further one, and never above ``maximum``. The
    result has the unit of ``first``.
    """
    return min(first * factor ** min(failures - 1, _MOST_DOUBLINGS), maximum)


class Backoff:
    """The delays of one thing that is tried again and again. Use it from one thread at a time."""

    def __init__(
        self,
        first: float,
        maximum: float,
        *,
        factor: float = 2.0,
        jitter: float = 0.0,
        rng: random.Random | None = None,
    ) -> None:
        """``first``, ``maximum`` and ``factor``: as of ``backoff_delay``.

        ``jitter``: the share by which ``rng`` makes a delay shorter or longer, so that many that failed together do not
        try again together.
        """
        self.failures = 0
        """In a row, up to now."""
        self._first, self._maximum, self._factor = first, maximum, factor
        self._jitter, self._uniform = jitter, random.uniform if rng is None else rng.uniform

    def next_delay(self) -> float:
        """Count a failure; the delay until the next try."""
        self.failures += 1
        delay = backoff_delay(self.failures, self._first, self._maximum, self._factor)
        return delay * self._uniform(1 - self._jitter, 1 + self._jitter) if self._jitter else delay

    def reset(self) -> None:
        """Count a success: the next failure is the first one."""
        self.failures = 0


@dataclass(slots=True)
class RestartPause:
    """How long machines are not begun anew that do not last, or of which another try fails. Times are in seconds."""

    failures: int = 0
    """In a row, up to now."""
    due: float = 0.0
    """When the pause is over; 0: there is none."""
    problem: str = ""
    """Why the last try failed."""

    def failed(self, now: float, problem: str = "") -> None:
        """Count a failure."""
        self.failures += 1
        self.due = now + backoff_delay(self.failures, _FIRST_PAUSE, _MOST_PAUSE)
        self.problem = problem or self.problem

    def ended(self, now: float, lasted: float) -> None:
        """Count an end: a failure, if it came soon."""
        if lasted < QUICK_SECONDS:
            self.failed(now)
        else:
            self.failures = 0

    def may_act(self, now: float) -> bool:
        """Whether the pause is over, or there is none."""
        if self.due and self.due <= now:
            self.due = 0.0
        return not self.due


class Retry:
    """One thing that is tried until it succeeds: how long to wait, and what the log says. Use it from one thread at a
    time."""

    def __init__(
        self,
        log: logging.Logger,
        what: str,
        first: float,
        most: float,
        *,
        expected: tuple[type[BaseException], ...] = (),
        quiet: tuple[type[BaseException], ...] = (),
    ) -> None:
        """``what``: that it cannot be done, such as "cannot watch the pools". ``first``, ``most``: of the pause, in
        seconds. ``expected``: errors that are no bugs: one line, and only once while they stay the same; other errors
        get a traceback each time. ``quiet``: errors that are none, such as a watch that ended because much has
        changed."""
        self._log, self._what = log, what
        self._expected, self._quiet = expected, quiet
        self._backoff = Backoff(first, most)
        self._logged = ""

    @property
    def failures(self) -> int:
        """In a row, up to now."""
        return self._backoff.failures

    def failed(self, error: BaseException, most: float = math.inf, *, after: float | None = None) -> float:
        """Count and log a failure; seconds until the next try: ``after``, else not more than ``most``."""
        delay = self._backoff.next_delay()
        delay = min(delay, most) if after is None else after
        is_expected = isinstance(error, self._expected)
        level = logging.DEBUG if is_expected and str(error) == self._logged else logging.ERROR
        if isinstance(error, self._quiet):
            level = logging.INFO
        trace = None if is_expected else error
        self._log.log(level, "%s; next try in %.0f s: %s", self._what, delay, error, exc_info=trace)
        self._logged = str(error) if is_expected else ""
        return delay

    def count(self) -> float:
        """Count a failure of which the log says enough; seconds until the next try."""
        return self._backoff.next_delay()

    def succeeded(self) -> None:
        """Count a success: the next failure is the first one, and is logged."""
        self._backoff.reset()
        self._logged = ""
