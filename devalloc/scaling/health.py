"""Health of scaling: when scaling of a machine counts as stuck, and why. A guest that refuses to shrink is not stuck:
it answered."""

from __future__ import annotations

from dataclasses import dataclass

CPUS = "devalloc_guest_cpus_online"
MEMORY = "host_memory_total_bytes"
"""The gauges by which the guest monitor reports them."""
_MAX_DIFFERENCE = 128 * 2**20
"""Bytes: a block of memory, the least that a kernel brings online."""


@dataclass(frozen=True, slots=True)
class GuestReport:
    """What a guest uses: ``cpus`` that are online, and ``memory`` in bytes, without what its kernel keeps from boot.
    None: it does not say."""

    cpus: int | None
    memory: int | None

    def is_behind(self, cpus: int, memory: int) -> bool:
        """Whether it has not brought online what its machine has. A kernel keeps a 64th of its memory for the table of
        its pages, and some more for itself; what is within twice that is not told apart from it."""
        overhead = min(memory // 8, _MAX_DIFFERENCE) + memory // 32
        few = self.cpus is not None and self.cpus < cpus
        return few or (self.memory is not None and self.memory + overhead < memory)


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
