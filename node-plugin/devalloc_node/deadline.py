"""A moment by which an answer is due, passed down so that waits inside add up to less than the caller waits."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment of the monotonic clock."""

    at: float
    cancelled: threading.Event | None = field(default=None, compare=False)
    """Set when the caller of a service has gone; None: no caller. Then work in progress goes on, but none begins."""

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        return cls(time.monotonic() + seconds)

    @property
    def seconds(self) -> float:
        """What is left, never negative."""
        return max(0.0, self.at - time.monotonic())

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self.at

    def before(self, seconds: float) -> Deadline:
        """This deadline less so many seconds, for what comes after the work; a quarter of what is left at most."""
        return replace(self, at=self.at - min(seconds, self.seconds / 4))

    def at_least(self, seconds: float) -> Deadline:
        """This deadline, or one in so many seconds if that is later."""
        return replace(self, at=max(self.at, time.monotonic() + seconds))

    def capped(self, seconds: float) -> Deadline:
        """This deadline, or one in so many seconds if that is sooner."""
        return replace(self, at=min(self.at, time.monotonic() + seconds))
