"""The budget of a search: counted steps instead of seconds, so that the same input always ends the same way.

Only a deadline, if there is one, may end it earlier.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

DEFAULT_STEPS = 50_000
"""Steps that placing one unit may take; a step is a few microseconds."""


class StepsExhausted(Exception):
    """The question is open: the budget is spent, or the unit has something that this search does not handle."""


class SharesInterfere(StepsExhausted):
    """Shares of several requests meet in a way that this search cannot split."""


@dataclass(slots=True)
class StepBudget:
    """What is left of the budget."""

    left: int
    ends: float | None = None
    """monotonic time, in seconds"""

    def check_deadline(self) -> None:
        """Raises StepsExhausted after the deadline. A search asks before each node."""
        if self.ends is not None and time.monotonic() > self.ends:
            raise StepsExhausted("the search is out of time")

    def spend(self, count: int = 1) -> None:
        """Raises StepsExhausted when nothing is left."""
        self.left -= count
        if self.left < 0:
            raise StepsExhausted("the search is out of steps")

    def spend_each(self, count: int) -> None:
        """The same as to spend one step so many times."""
        self.left = max(self.left - count, -1)
        if self.left < 0:
            raise StepsExhausted("the search is out of steps")
