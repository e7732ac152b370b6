"""Deadlines for tests: for what answers soon, and for what never does.

The one for what never answers begins when the thing has been asked. A machine with other work is slow to ask; how slow
is not what such a test is about. A deadline of 0.4 seconds from the beginning would pass before, and the test would see
another error than the one that it waits for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast

from devalloc_node.deadline import Deadline
from tests.support.waiting import LONG


def soon(seconds: float = LONG) -> Deadline:
    """A deadline for what is done at once, however busy this machine is."""
    return Deadline.after(seconds)


class _Patience:
    def __init__(self, condition: Callable[[], object], seconds: float) -> None:
        self._condition, self._seconds = condition, seconds
        self._end = time.monotonic() + LONG
        self._begun = False
        self.cancelled = None

    @property
    def at(self) -> float:
        if not self._begun and self._condition():
            self._begun, self._end = True, time.monotonic() + self._seconds
        return self._end

    @property
    def seconds(self) -> float:
        return max(0.0, self.at - time.monotonic())

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self.at

    def at_least(self, seconds: float) -> Deadline:
        return Deadline(max(self.at, time.monotonic() + seconds))

    def capped(self, seconds: float) -> Deadline:
        return Deadline(min(self.at, time.monotonic() + seconds))


def deadline_after(condition: Callable[[], object], seconds: float = 0.2) -> Deadline:
    """A deadline that passes so many seconds after ``condition`` has become true."""
    return cast(Deadline, _Patience(condition, seconds))
