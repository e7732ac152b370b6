"""What became of bringing a machine nearer to its object."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is in the way of the object's wish; empty when nothing is."""

    reason: str = ""
    message: str = ""
    after: float | None = None
    """Seconds until it is worth trying again though nothing changed; None: as often as the loop likes."""
    at_rest: bool = False
    """Nothing of the machine runs, and it is not started again as things are."""
