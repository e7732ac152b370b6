"""The deadline of a call: how many seconds are left, and whether a value is a valid deadline."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from numbers import Real

ALLOCATE_SECONDS = 60.0
"""The deadline of calls for one claim, unless the caller gives another one: such a call takes milliseconds, and minutes
only if the caller wants it to.
"""

GRACE_SECONDS = 0.1
"""Seconds beyond the deadline in which a first fit is sought where the search was cut short, and in which it is
explained why claims are left out; and that a state space may take if less time is left."""

CHECK_SECONDS = 0.5
"""How long the check of an answer may take beyond the deadline; an answer that is not checked by then is not given."""

UNLIMITED_SECONDS = 1e6
"""A solver's limit for a deadline that is later: it takes no more."""

MAX_STRETCH = 4.0
"""How many times its seconds a quick search may take on a busy machine."""

_MIN_CPU_SECONDS = 1e-3
"""Seconds of CPU, taken as the least: after less the ratio says little."""

_NEVER = float("inf")
_WHAT = "deadline must be a number of seconds, 0 (take the first answer) or more, or None for no limit"


@dataclass(frozen=True, slots=True)
class Call:
    """The time of a call."""

    deadline: float | None = None
    """seconds, as for ``end_time``"""
    started: float = field(default_factory=lambda: time.monotonic())
    """monotonic time from which they count"""
    is_quick: bool = False
    """what takes long is left for later, see ``search_parts``; then the search has ``deadline`` for itself"""
    _began: tuple[float, float] = field(default_factory=lambda: (time.monotonic(), time.thread_time()), init=False)

    @property
    def ends(self) -> float | None:
        """The monotonic time at which it has to answer."""
        return end_time(self.deadline, self.started)

    def search_end(self) -> float | None:
        """Return the monotonic time at which a search that begins now has to end."""
        return quick_search_end(self.deadline, *self._began) if self.is_quick else self.ends


NO_DEADLINE = Call()
"""The time of a call that may take any time."""


def seconds_left(ends: float | None) -> float | None:
    """Seconds until a monotonic time; 0 when it is over, None for never."""
    return None if ends is None else max(0.0, ends - time.monotonic())


def limit_in_milliseconds(ends: float) -> int:
    """What is left until then (monotonic time), as a solver's limit: 1 at least, for it takes 0 for no limit."""
    return 1 + int(1000 * min(max(0.0, ends - time.monotonic()), UNLIMITED_SECONDS))


def quick_search_end(deadline: float | None, started: float, cpu_started: float) -> float | None:
    """The monotonic time at which a quick search that begins now is to end.

    The search gets all of ``deadline``, whatever the preparation took: the first call reads the whole fleet, and a
    search that is cut short before it has looked at anything is wasted. On a busy machine it gets more, by the ratio of
    the preparation's time to the CPU time that this thread had for it, up to ``MAX_STRETCH`` times.

    Args:
        deadline: seconds that the search may take on an idle machine, as for ``end_time``.
        started: monotonic time at which the preparation began.
        cpu_started: what ``time.thread_time`` was then.
    """
    now, cpu = time.monotonic(), time.thread_time()
    if deadline is None:
        return None
    busy = (now - started) / max(cpu - cpu_started, _MIN_CPU_SECONDS)
    return end_time(deadline * min(max(busy, 1.0), MAX_STRETCH), now)


def end_time(deadline: object, started: float) -> float | None:
    """The monotonic time at which a deadline is over, None for never.

    Args:
        deadline: seconds from ``started``; None or infinity for no limit.
        started: monotonic time.

    Raises:
        TypeError: if it is not a number.
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
        raise ValueError(f"{_WHAT}; a number with that many digits is too large: use None") from None
    if not seconds >= 0:
        raise ValueError(f"{_WHAT}, not {seconds}")
    return None if seconds == _NEVER else started + seconds
