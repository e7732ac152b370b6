"""Waiting for what others do: a thread, a process, a machine."""

from __future__ import annotations

import time
from collections.abc import Callable

LONG = 120.0
"""Seconds after which something is taken to hang: others may use this machine as well."""


def until(true: Callable[[], object], what: str, seconds: float = LONG, *, told: Callable[[], object] = str) -> None:
    """Look again and again. AssertionError with what never came, and with what ``told`` says then."""
    deadline, pause = time.monotonic() + seconds, 0.001
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}\n{told()}"
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
