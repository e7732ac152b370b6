"""Rates: how often something happened lately, and a limit on how often it may."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class SlidingWindowCount:
    """Events of the last so many milliseconds. Instants are those of any one clock, and never go back."""

    window: int
    _instants: deque[int] = field(default_factory=deque)

    def add(self, now: int) -> None:
        """It happened now."""
        self._forget(now)
        self._instants.append(now)

    def count(self, now: int) -> int:
        """How often it happened in the window that ends now."""
        self._forget(now)
        return len(self._instants)

    def _forget(self, now: int) -> None:
        while self._instants and self._instants[0] <= now - self.window:
            self._instants.popleft()


@dataclass(slots=True)
class TokenBucket:
    """So many of something a second on average, and so many at once. Whole numbers, so that nothing drifts."""

    a_second: int
    burst: int
    _left: int = field(init=False)  # thousandths
    _since: int | None = None

    def __post_init__(self) -> None:
        self._left = self.burst * 1000

    def take(self, count: int, now: int) -> bool:
        """Take so many, if they are there. ``now`` in milliseconds."""
        if self._since is not None:
            gained = max(0, now - self._since) * self.a_second
            self._left = min(self.burst * 1000, self._left + gained)
        self._since = now
        if count * 1000 > self._left:
            return False
        self._left -= count * 1000
        return True

    def add(self, count: int) -> None:
        """Allow so many more now, because they were asked for. No more than a burst is ever saved up."""
        self._left = min(self.burst * 1000, self._left + count * 1000)
