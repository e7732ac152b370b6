"""How long it takes from deciding what a machine should have to its having it: decisions are numbered."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

MAX_PENDING = 64
"""Decisions whose end is waited for; older ones are forgotten."""


@dataclass(slots=True)
class DecisionRevisions:
    """Instants in milliseconds of any one clock. ``last`` is the number of the last decision, 0 before the first."""

    last: int = 0
    _began: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=MAX_PENDING))

    def next(self, now: int) -> int:
        """A new decision is made now; its number."""
        self.last += 1
        self._began.append((self.last, now))
        return self.last

    def observed(self, revision: int, now: int) -> int | None:
        """How long it took until this one was seen to be so; None where it, or a later one, was before."""
        while self._began and self._began[0][0] < revision:
            self._began.popleft()
        if not self._began or self._began[0][0] != revision:
            return None
        return now - self._began.popleft()[1]
