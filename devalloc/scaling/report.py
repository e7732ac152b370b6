"""How far the scaling of one machine is: its amounts, and why they differ."""

from __future__ import annotations

from dataclasses import dataclass, field

from devalloc.scaling.health import GuestReport, StuckReason
from devalloc.scaling.metrics import SystemMetrics
from devalloc.scaling.resources import Resources


@dataclass(frozen=True, slots=True)
class ScalingReport:
    """How far one machine is. The reason is None where it has what it should have."""

    wanted: Resources
    """By its goal, its guest's own words and its bounds."""
    permitted: Resources | None
    """None: no server was asked yet."""
    applied: Resources
    """What it was last brought to."""
    observed: Resources | None
    """What was last read back; None: it could not be, since something may have changed it."""
    reason: StuckReason | None
    stuck: tuple[StuckReason, ...] = ()
    guest: GuestReport | None = None
    """What its guest says that it has; None: it has not said so lately."""
    load: SystemMetrics | None = field(default=None, compare=False)
    """What its guest told last. It is always another one, which is no news."""
