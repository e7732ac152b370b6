"""When scaling of a machine counts as stuck, and why. A guest that refuses to have less is not stuck: it answered."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
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
class Health:
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
class Reason:
    """Why scaling is stuck: a stable code, and a sentence for people."""

    code: str
    message: str


def stuck(health: Health, now: int, limits: Limits | None = None) -> list[Reason]:
    """Every reason, the most telling first; empty where scaling works. The sentences stay the same for as long as the
    state lasts, because they are written down wherever they change."""
    limits = limits or Limits()
    window = f"in the last {limits.window // 1000} s"
    reasons = []
    if health.machine_failures > limits.machine_failures:
        what = f"changing the machine failed more than {limits.machine_failures} times {window}"
        reasons.append(Reason("MachineFailing", what))
    if health.plugin_failures + health.plugin_denials > limits.plugin_failures:
        failing = health.plugin_failures >= health.plugin_denials
        code, way = ("PermitFailing", "failed") if failing else ("PermitShort", "were not permitted in full")
        what = f"of the requests for permits {window} more than {limits.plugin_failures} had no success, most {way}"
        reasons.append(Reason(code, what))
    if health.monitor_failures > limits.monitor_failures:
        what = f"more than {limits.monitor_failures} requests to the monitor in the guest failed {window}"
        reasons.append(Reason("GuestMonitorFailing", what))
    for code, who, success in (
        ("GuestMonitorQuiet", "the monitor in the guest has", health.monitor_success),
        ("MetricsMissing", "the metrics of the guest have", health.metrics_success),
    ):
        if now - (health.since if success is None else success) > limits.silence:
            reasons.append(Reason(code, f"{who} not been heard of for more than {limits.silence // 1000} s"))
    return reasons
