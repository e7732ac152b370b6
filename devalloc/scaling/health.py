"""How far the scaling of a machine is, and when it counts as stuck, and why. A guest that refuses to shrink is not
stuck: it answered."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from devalloc.scaling.metrics import GuestReport, SystemMetrics
from devalloc.scaling.resources import Resources


@dataclass(frozen=True, slots=True)
class HealthLimits:
    """When it is too much. Times in milliseconds."""

    silence: int = 20_000
    """Without a success of the monitor or of the metrics; and as long as that at the start."""
    window: int = 120_000
    """Over which failures are counted. More than these of"""
    monitor_failures: int = 2
    plugin_failures: int = 5
    """(failed, or permitted less than was asked for)"""
    machine_failures: int = 2


@dataclass(frozen=True, slots=True)
class ChannelHealth:
    """How the channels of one machine did: instants of last successes (None: never), and counts over the window."""

    since: int
    """When the agent began with the machine."""
    monitor_success: int | None = None
    metrics_success: int | None = None
    monitor_failures: int = 0
    plugin_failures: int = 0
    plugin_denials: int = 0
    machine_failures: int = 0


@dataclass(frozen=True, slots=True)
class StuckReason:
    """Why scaling is stuck: a stable code, and a sentence for people."""

    code: str
    message: str


def stuck_reasons(health: ChannelHealth, now: int, limits: HealthLimits | None = None) -> list[StuckReason]:
    """Every reason, the most specific first; empty if scaling works. The sentences stay the same for as long as the
    state lasts, because each change of them is written down."""
    limits = limits or HealthLimits()
    window = f"in the last {limits.window // 1000} s"
    reasons = []
    if health.machine_failures > limits.machine_failures:
        what = f"changing the machine failed more than {limits.machine_failures} times {window}"
        reasons.append(StuckReason("MachineFailing", what))
    if health.plugin_failures + health.plugin_denials > limits.plugin_failures:
        failing = health.plugin_failures >= health.plugin_denials
        code, way = ("PermitFailing", "failed") if failing else ("PermitShort", "were not granted in full")
        what = f"more than {limits.plugin_failures} requests for permits {way} {window}"
        reasons.append(StuckReason(code, what))
    if health.monitor_failures > limits.monitor_failures:
        what = f"more than {limits.monitor_failures} requests to the monitor in the guest failed {window}"
        reasons.append(StuckReason("GuestMonitorFailing", what))
    for code, missing, success in (
        ("GuestMonitorQuiet", "no answer from the monitor", health.monitor_success),
        ("MetricsMissing", "no metrics from the guest", health.metrics_success),
    ):
        if now - (health.since if success is None else success) > limits.silence:
            reasons.append(StuckReason(code, f"{missing} for more than {limits.silence // 1000} s"))
    return reasons


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
    """The amounts that the guest reported last. They vary with each report, so a difference alone does not count."""


MAX_PENDING = 64
"""Decisions whose end is waited for; older ones are forgotten."""


@dataclass(slots=True)
class DecisionRevisions:
    """Instants in milliseconds of any one clock. ``last`` is the number of the last decision, 0 before the first."""

    last: int = 0
    _began: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=MAX_PENDING))

    def next(self, now: int) -> int:
        """A new decision is made now; its number."""
        self.last += 1
        self._began.append((self.last, now))
        return self.last

    def observed(self, revision: int, now: int) -> int | None:
        """How long it took until this one was seen to be so; None where it, or a later one, was before."""
        while self._began and self._began[0][0] < revision:
            self._began.popleft()
        if not self._began or self._began[0][0] != revision:
            return None
        return now - self._began.popleft()[1]
