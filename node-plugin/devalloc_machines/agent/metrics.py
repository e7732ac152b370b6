"""Prometheus metrics of the agent, in the node plugin's registry: totals over all machines, never per machine.

| metric | labels | what |
|---|---|---|
| ``devalloc_node_scaling_requests_total`` | request, result | what it asked of whom; see ``REQUESTS``, ``RESULTS`` |
| ``devalloc_node_scaling_seconds`` | | how long it took until a machine had what was decided for it |
| ``devalloc_node_scaled_machines`` | | machines that are scaled |
| ``devalloc_node_scaled_cpus`` | amount | their CPUs: wanted (the goals), permitted, applied, observed, guest |
| ``devalloc_node_scaled_memory_bytes`` | amount | their memory |
| ``devalloc_node_scaling_waits`` | reason | machines that have not what they should have, by why |
| ``devalloc_node_scaling_stuck`` | reason | machines whose scaling is stuck, by why; one may have several reasons |
"""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Callable, Collection, Iterable
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from devalloc.scaling.health import ScalingReport
from devalloc.scaling.resources import Resources

Request = Literal["permit", "change", "look", "upscale", "downscale", "metrics", "lfc"]
Result = Literal["done", "short", "denied", "failed", "unknown"]
"""``short``: less was permitted, or reached, than was asked for, or the guest refused."""
REQUESTS, RESULTS = get_args(Request), get_args(Result)
_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300)
_MILLI = 1000


class ScalingMetrics:
    """The counters of one agent. Safe for threads."""

    def __init__(self, registry: CollectorRegistry, reports: Callable[[], Collection[ScalingReport]]) -> None:
        """``reports``: of all machines, called for each scrape."""
        self._requests = Counter(
            "devalloc_node_scaling_requests",
            "Requests of the agent, by receiver and result.",
            ("request", "result"),
            registry=registry,
        )
        self._seconds = Histogram(
            "devalloc_node_scaling_seconds",
            "Seconds until a machine reached the amounts that were decided for it.",
            buckets=_SECONDS,
            registry=registry,
        )
        registry.register(_ReportCollector(reports))

    def counted(self, request: Request, result: Result) -> None:
        """A request ended."""
        self._requests.labels(request, result).inc()

    def came_through(self, milliseconds: int) -> None:
        """A machine has what was decided for it."""
        self._seconds.observe(milliseconds / _MILLI)


class _ReportCollector(Collector):
    def __init__(self, reports: Callable[[], Collection[ScalingReport]]) -> None:
        self._reports = reports

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        reports = self._reports()
        yield GaugeMetricFamily("devalloc_node_scaled_machines", "Machines that are scaled.", value=len(reports))
        cpus = _family("scaled_cpus", "CPUs of machines that are scaled.", "amount")
        memory = _family("scaled_memory_bytes", "Memory of machines that are scaled.", "amount")
        for name in ("wanted", "permitted", "applied", "observed"):
            reported: list[Resources] = [amount for each in reports if (amount := getattr(each, name)) is not None]
            cpus.add_metric([name], sum(amount.cpu for amount in reported) / _MILLI)
            memory.add_metric([name], sum(amount.memory for amount in reported))
        guests = [each.guest for each in reports if each.guest is not None]
        cpus.add_metric(["guest"], sum(guest.cpus or 0 for guest in guests))
        memory.add_metric(["guest"], sum(guest.memory or 0 for guest in guests))
        yield from (cpus, memory)
        waits = Count(each.reason.code for each in reports if each.reason is not None)
        stuck = Count(reason.code for each in reports for reason in each.stuck)
        for name, what, counts in (
            ("scaling_waits", "Machines whose amounts differ from what they should be.", waits),
            ("scaling_stuck", "Machines whose scaling is stuck.", stuck),
        ):
            family = _family(name, what, "reason")
            for reason, count in sorted(counts.items()):
                family.add_metric([reason], count)
            yield family


def _family(name: str, what: str, label: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"devalloc_node_{name}", what, labels=[label])
