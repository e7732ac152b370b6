"""Back-off: waiting longer after each failure in a row."""

from __future__ import annotations

import math
import random

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
