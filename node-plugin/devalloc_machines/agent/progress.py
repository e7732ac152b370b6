"""Track one scaler's progress: how its requests ended, whether it is stuck and how long its decisions take."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Literal

from devalloc.net.rate import SlidingWindowCount
from devalloc.scaling.health import ChannelHealth, DecisionRevisions, HealthLimits, StuckReason, stuck_reasons
from devalloc.scaling.metrics import GuestReport
from devalloc.scaling.peer_json import bytes_to_json, cpu_to_json
from devalloc.scaling.resources import Resources
from devalloc_machines.agent.guest_monitor_client import MonitorStatus
from devalloc_machines.agent.metrics import Request, Result, ScalingMetrics
from devalloc_machines.qemu.spec import whole_cpus
from devalloc_node.errors import Denied, Failed, NodeError


class GuestLag:
    """Of one machine. Instants and durations in milliseconds."""

    def __init__(self, patience: int, silence: int) -> None:
        """``patience``: how long a guest may be behind before it is reported. A report counts for ``silence``."""
        self._patience, self._silence = patience, silence
        self._reported: tuple[int, GuestReport] | None = None
        self._behind: tuple[int, Resources] | None = None
        """Since when, and behind what."""

    def says(self, observed: GuestReport | None, has: Resources, now: int) -> None:
        """Record the guest's report and what its machine has now. CPUs count whole, even if their time is limited."""
        self._reported = None if observed is None else (now, observed)
        if observed is None or not observed.is_behind(whole_cpus(has.cpu), has.memory):
            self._behind = None
        elif self._behind is None or has != self._behind[1]:
            self._behind = (now, has)  # to bring more online takes time again

    def observed(self, now: int) -> GuestReport | None:
        """What it said lately."""
        return self._reported[1] if self._reported is not None and now - self._reported[0] <= self._silence else None

    def behind(self, now: int) -> StuckReason | None:
        """Why it has less than its machine, where it stays so."""
        seen = self.observed(now)
        if seen is None or self._behind is None or now - self._behind[0] < self._patience:
            return None
        has = self._behind[1]
        cpus = "" if seen.cpus is None else f"{seen.cpus} CPUs"
        memory = "" if seen.memory is None else f"{seen.memory >> 20}Mi of memory"
        uses = " and ".join(each for each in (cpus, memory) if each)
        what = f"{whole_cpus(has.cpu)} CPUs ({cpu_to_json(has.cpu)} of CPU time) and {bytes_to_json(has.memory)}"
        return StuckReason("GuestBehind", f"its guest uses {uses}, and the machine has {what}")


_log = logging.getLogger("devalloc.agent.scaler")
Channel = Literal["permits", "machine", "monitor"]
Metrics = Literal["metrics", "lfc"]
_METRICS: dict[Metrics, str] = {"metrics": "metrics of the guest", "lfc": "metrics of the guest's cache"}


class ScalerProgress:
    """Of one machine. Instants in milliseconds."""

    def __init__(
        self,
        machine: str,
        limits: HealthLimits,
        meter: ScalingMetrics | None,
    ) -> None:
        """``machine``: its name in log lines. ``meter``: counts what scalers do."""
        self._machine, self._limits, self._meter = machine, limits, meter
        self._warned: tuple[str, ...] = ()
        self._revisions = DecisionRevisions()
        self._wanted: Resources | None = None
        self.since = 0
        """When the scaler began."""
        self._measured_at: int | None = None
        self._unmeasured: dict[Metrics, str] = {}
        """Why they could not be read when they were asked for last, where they could not."""
        self.errors: dict[str, str] = {}
        """How the last request of a channel failed, where it did."""
        self._unseen: str | None = None
        self._failures = {name: SlidingWindowCount(limits.window) for name in ("permits", "machine", "denied")}

    def ended(self, request: Request, result: Result | NodeError = "done") -> None:
        """A request ended so, or with this error."""
        if isinstance(result, NodeError):
            result = "denied" if isinstance(result, Denied) else "failed" if isinstance(result, Failed) else "unknown"
        if self._meter is not None:
            self._meter.counted(request, result)

    def well(self, channel: Channel) -> None:
        """The last request of the channel did not fail."""
        self.errors.pop(channel, None)

    def ill(self, channel: Channel, why: str) -> None:
        """It did."""
        self.errors[channel] = why

    def failed(self, channel: Literal["permits", "machine"], why: str, now: int) -> None:
        """The same, and it counts."""
        if self.errors.get(channel) != why:
            _log.warning("%s: %s: %s", self._machine, channel, why)
        self.ill(channel, why)
        self._failures[channel].add(now)

    def measured(self, what: Metrics, now: int) -> None:
        """Its metrics, or its cache's, were read."""
        self.ended(what)
        if what == "metrics":
            self._measured_at = now
        if self._unmeasured.pop(what, None) is not None:
            _log.warning("%s: the %s are available again", self._machine, _METRICS[what])

    def unmeasured(self, what: Metrics, error: NodeError) -> None:
        """They could not be. Told once, until they are again."""
        self.ended(what, error)
        if what not in self._unmeasured:
            _log.warning("%s: the %s are missing: %s", self._machine, _METRICS[what], error)
        self._unmeasured[what] = error.message

    def unseen(self, why: str | None) -> None:
        """It could not be looked at; None: it could. Told once, not with each look."""
        if why is not None and why != self._unseen:
            _log.warning("%s: cannot be observed: %s", self._machine, why)
        self._unseen = why

    def warned(self, warnings: tuple[str, ...]) -> None:
        """What deciding warns of now. Told once, not with each turn."""
        for warning in warnings:
            if warning not in self._warned:
                _log.info("%s: %s", self._machine, warning)
        self._warned = warnings

    def decided(self, wanted: Resources, using: Resources, now: int) -> None:
        """Each decision has a number, so that the time until it came through is reported."""
        if wanted != self._wanted:
            first, self._wanted = self._wanted is None, wanted
            if not first:
                self._revisions.next(now)
        took = self._revisions.observed(self._revisions.last, now) if using == wanted else None
        if took is not None and self._meter is not None:
            self._meter.came_through(took)

    def denied(self, now: int) -> None:
        """Less was permitted than was asked for."""
        self._failures["denied"].add(now)

    def stuck(self, monitor: MonitorStatus, now: int) -> list[StuckReason]:
        """Why scaling does not come on, if it does not."""
        health = ChannelHealth(
            self.since,
            monitor.last_success,
            self._measured_at,
            monitor_failures=monitor.failures,
            plugin_failures=self._failures["permits"].count(now),
            plugin_denials=self._failures["denied"].count(now),
            machine_failures=self._failures["machine"].count(now),
        )
        why = {"GuestMonitorQuiet": self.errors.get("monitor"), "MetricsMissing": self._unmeasured.get("metrics")}
        return [
            replace(each, message=f"{each.message}: {what}") if (what := why.get(each.code)) else each
            for each in stuck_reasons(health, now, self._limits)
        ]
