"""The budget of a search: counted steps instead of seconds, so that the same input always ends the same way.

Only a deadline may end it earlier, and not before it has done some work.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from devalloc_solver.problem.placement_score import PlacementScore

DEFAULT_STEPS = 50_000
"""Steps that placing one unit may take; a step is a few microseconds. Every question of the benchmark `hard` ends
within 10,000, but for those that CP-SAT decides."""

POLICY_STEPS = 2_000
"""The policy is a preference: it may cost so much and no more. With 500 the benchmark `hard` takes two thirds of the
steps, with 8,000 five thirds; 60 new shapes on 200 nodes get the same devices."""


class StepsExhausted(Exception):
    """The question is open: the budget is spent, or the unit has something that this search does not handle."""

    node: str | None = None
    """the node on which all of the budget was spent, if it is one: to ask about it alone would end the same way"""


class SearchTimeout(StepsExhausted):
    """The question is open: the deadline has passed."""


class SharesInterfere(StepsExhausted):
    """Shares of several requests meet in a way that this search cannot split."""

    chosen: int = 0
    """the alternatives that were looked at: all that come before cannot be had (mask)"""
    least: tuple[int, int] = (0, 0)
    """a lower bound of (pools, devices)"""
    bound: PlacementScore = PlacementScore((), 0, 0)
    """a score that cannot be beaten on the node"""


GRACE_WORK = 5_000
"""Steps and candidate groups that searches may take whatever the time is: less than 0.2 seconds."""


@dataclass(slots=True)
class SearchDeadline:
    """When searches must end, all that share it together.

    They look at the clock only after some work. So a placement that is near is found even if reading the input took all
    the time, and the answer to a small question does not depend on how busy the machine is.
    """

    ends: float | None
    """monotonic time, in seconds"""
    grace: int = GRACE_WORK

    def spend(self, work: int) -> None:
        """Count so many steps or candidate groups. Raises SearchTimeout after the deadline."""
        self.grace -= work
        if self.grace < 0 and self.ends is not None and time.monotonic() > self.ends:
            raise SearchTimeout("the search is out of time")


@dataclass(slots=True)
class StepBudget:
    """What is left of the budget."""

    left: int
    deadline: SearchDeadline | None = None

    def look_at(self, groups: int) -> None:
        """Count candidate groups that a search looks at. Raises SearchTimeout after the deadline."""
        if self.deadline is not None:
            self.deadline.spend(groups)

    def spend(self, count: int = 1) -> None:
        """Raises StepsExhausted when nothing is left, and SearchTimeout after the deadline."""
        self.left -= count
        if self.left < 0:
            raise StepsExhausted("the search is out of steps")
        if self.deadline is not None:
            self.deadline.spend(count)

    def spend_each(self, count: int) -> None:
        """The same as to spend one step so many times."""
        self.left = max(self.left - count, -1)
        if self.left < 0:
            raise StepsExhausted("the search is out of steps")
        if self.deadline is not None:
            self.deadline.spend(count)
