"""How many random examples a test draws: a few with each change, more each night."""

from __future__ import annotations

import os

VARIABLE = "DEVALLOC_FUZZ_EXAMPLES"
IS_FUZZ = VARIABLE in os.environ
"""Whether ``make fuzz`` runs the tests."""


def examples(few: int, share: float = 1.0) -> int:
    """Return ``few``, or the given share of as many as ``make fuzz`` asks for, where these are more."""
    return max(few, int(float(os.environ.get(VARIABLE, 0)) * share))
