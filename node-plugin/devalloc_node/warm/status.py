"""The pool as others see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from devalloc_node.warm.cpu_pinning import CpuPinning
from devalloc_node.warm.setup import Setup


@dataclass(frozen=True, slots=True)
class TakenSetup:
    """Who has a setup."""

    setup: Setup
    owner: str
    since_ms: int
    """Since 1970 UTC."""
    request: str = ""
    """What he called the taking."""
    pin: CpuPinning | None = None
    """Where his vCPUs are to run; None where he has not said how many he has."""


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """How the pool is."""

    target: int
    most: int
    ready: int
    making: int
    removing: int
    taken: Sequence[TakenSetup]
    """Those taken longest first."""
    made: int
    """Since this plugin runs."""
    failures: int
    """Setups that could not be made or removed, since this plugin runs."""
    problem: str
    """The last of these, unless a setup was made since; else empty."""

    @property
    def total(self) -> int:
        return self.ready + self.making + self.removing + len(self.taken)
