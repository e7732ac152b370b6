"""The deadline that a caller gives: how many seconds there are, and what is none."""

from __future__ import annotations

import time
from numbers import Real

ALLOCATE_SECONDS = 60.0
"""The deadline of calls for one claim, unless the caller gives another one: such a call takes milliseconds, and minutes
only where somebody wants it to.
"""

CHECK_SECONDS = 0.5
"""How long the check of an answer may take beyond the deadline; an answer that is not checked by then is not given."""

_NEVER = float("inf")
_WHAT = "deadline must be a number of seconds, 0 (the first answer that is found) or more, or None for no limit"


def left_of(ends: float | None) -> float | None:
    """Seconds until a monotonic time; 0 when it is over, None for never."""
    return None if ends is None else max(0.0, ends - time.monotonic())


def end_of(deadline: object, started: float) -> float | None:
    """The monotonic time at which a deadline is over, None for never.

    Args:
        deadline: seconds from ``started``; None or infinity for no limit.
        started: monotonic time.

    Raises:
        TypeError: when it is no number.
        ValueError: when it is negative or not a number (NaN), or too large for a floating-point number.
    """
    if deadline is None:
        return None
    if type(deadline) is float and 0.0 <= deadline < _NEVER:
        return started + deadline  # what follows takes longer
    if isinstance(deadline, bool) or not isinstance(deadline, Real):
        raise TypeError(f"{_WHAT}, not a {type(deadline).__name__}")
    try:
        seconds = float(deadline)
    except OverflowError:
        raise ValueError(f"{_WHAT}; a whole number of so many digits is too large: use None") from None
    if not seconds >= 0:
        raise ValueError(f"{_WHAT}, not {seconds}")
    return None if seconds == _NEVER else started + seconds
