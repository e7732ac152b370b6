"""The working set of a database's cache, estimated from how much was touched in the last 1, 2, 3 ... minutes.

What is touched in ever longer times grows fast until it holds the working set, then slowly. Where it begins to grow
fast again, the longer times reach back to another workload, which is gone and should not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

INCREASE_FACTOR = 3.0
"""A window that grows by more than this many times the one before it reaches another workload."""
LOOK_AHEAD = 0.5
"""Minutes by which the latest growth is drawn on."""


def estimate_working_set(series: Sequence[float], offset: int, window: int, factor: float = INCREASE_FACTOR) -> float:
    """The working set, in the unit of the series: the last value before growth speeds up, or the last of all.

    ``series[t]`` is what was touched in the last t+1 minutes. Values before ``offset`` always belong to the working
    set. Growth is compared between two windows of ``window`` values that share one. Raises ValueError for a series or
    an offset that is too short for that.
    """
    if window < 2 or offset < window - 1 or len(series) < offset + window:
        raise ValueError(f"{len(series)} values are too few for windows of {window} from {offset} on")
    step = window - 1
    for t in range(offset, len(series) - step):
        before = max(0.0, series[t] - series[t - step])
        after = max(0.0, series[t + step] - series[t])
        if after > factor * before:
            return series[t]
    return series[-1]


def values_of_estimate(series: Sequence[float], offset: int, estimated: float) -> Sequence[float]:
    """The values that belong to an estimate: up to the first from ``offset`` on that exceeds it."""
    end = offset
    while end < len(series) and series[end] <= estimated:
        end += 1
    return series[:end]


def projected_growth(series: Sequence[float], ahead: float = LOOK_AHEAD) -> float:
    """The most that will have been touched in ``ahead`` minutes, if a growth seen goes on. 0 for an empty series."""
    highest = series[0] if series else 0.0
    for earlier, later in pairwise(series):
        reached = max(earlier, later)
        highest = max(highest, reached + ahead * (reached - earlier))
    return highest
