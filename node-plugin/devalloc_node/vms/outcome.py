"""The result of reconciling one machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from devalloc_node.errors import NodeError

BUSY_SECONDS = 5.0
"""The pause before what others hold is asked for again: there is no event when they release it."""
_BUSY = frozenset({"Busy", "ClaimBusy", "DiskInUse", "LockUnavailable", "MachineBusy", "SharedBusy", "TapInUse"})


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is in the way of the object's wish; empty when nothing is."""

    reason: str = ""
    message: str = ""
    after: float | None = None
    """Seconds until it is worth trying again though nothing changed; None: as often as the loop likes."""
    at_rest: bool = False
    """Nothing of the machine runs, and it is not started again as things are."""
    is_unchanged: Callable[[], bool] | None = None
    """Whether what it waits for on the host, without an event, is as it was when it was tried; None: it waits for
    nothing like that. Does not raise, and may take its time."""


def retry_delay(error: NodeError) -> float | None:
    """As ``Outcome.after``."""
    return BUSY_SECONDS if error.code in _BUSY else None
