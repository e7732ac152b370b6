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
    """Every reason, the most telling first; empty where scaling works."""
    limits = limits or Limits()
    seconds = limits.window // 1000
    reasons = []
    if health.machine_failures > limits.machine_failures:
        what = f"the machine could not be changed {health.machine_failures} times in {seconds} s"
        reasons.append(Reason("MachineFailing", what))
    asked = health.plugin_failures + health.plugin_denials
    if asked > limits.plugin_failures:
        parts = f"{health.plugin_failures} failed and {health.plugin_denials} were not permitted in full"
        code = "PermitFailing" if health.plugin_failures >= health.plugin_denials else "PermitShort"
        reasons.append(Reason(code, f"of the requests for permits of the last {seconds} s {parts}"))
    if health.monitor_failures > limits.monitor_failures:
        what = f"{health.monitor_failures} requests to the monitor in the guest failed in {seconds} s"
        reasons.append(Reason("GuestMonitorFailing", what))
    for code, who, success in (
        ("GuestMonitorQuiet", "the monitor in the guest has", health.monitor_success),
        ("MetricsMissing", "the metrics of the guest have", health.metrics_success),
    ):
        silence = now - (health.since if success is None else success)
        if silence > limits.silence:
            reasons.append(Reason(code, f"{who} not been heard of for {silence // 1000} s"))
    return reasons
