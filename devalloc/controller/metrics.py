"""Prometheus metrics of the controller."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from devalloc.api.meta import parse_time
from devalloc.api.quantity import NANO, Quantity, QuantityError
from devalloc.api.views import MIGRATION_ENDS, MigrationView, as_mapping
from devalloc.controller.event_recorder import EventRecorder
from devalloc.controller.fencing_program import FencingCounts
from devalloc.controller.reconcile.device_claims import DeviceClaimRound
from devalloc.controller.reconcile.resource_claims.allocator import ResourceClaimRound as ResourceRound

Object = dict[str, Any]

TYPE = "text/plain; version=0.0.4; charset=utf-8"
_WAITING_SECONDS = (0.5, 1, 2, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400)
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class ControllerMetrics:
    """Of one process; ``text`` from any thread."""

    def __init__(
        self,
        leads: Callable[[], bool],
        recorder: EventRecorder,
        requests: Callable[[], Mapping[tuple[str, int], int]],
        searched: Callable[[], Mapping[str, float]] = dict,
        *,
        parts: Iterable[Collector] = (),
        fencing: Callable[[], FencingCounts | None] = lambda: None,
    ) -> None:
        """``requests``: to the API server, by verb and status. ``searched``: seconds by namespace
        (``BackgroundSearches.seconds``). ``parts``: what else is on the page. ``fencing``: what the fencing program
        did, while this process leads and there is one."""
        self._registry = CollectorRegistry()
        self._last: DeviceClaimRound | None = None
        self._last_of_resources: ResourceRound | None = None
        own = self._registry
        ProcessCollector(registry=own)
        self._rounds = Counter("devalloc_rounds", "Rounds in which all claims were answered.", registry=own)
        self._solving = Histogram("devalloc_solve_seconds", "Solver time of a round.", buckets=_SECONDS, registry=own)
        self._granted = Counter(
            "devalloc_granted", "Claims that got devices and machines that were placed.", ["kind"], registry=own
        )
        self._stale = Counter(
            "devalloc_stale_answers", "Answers dropped because something changed meanwhile.", registry=own
        )
        self._registry.register(_RoundCollector(leads, recorder, requests, lambda: self._last))
        own.register(_FencingCollector(leads, fencing))
        self._resource_rounds = Counter(
            "devalloc_resource_claim_rounds",
            "Rounds in which all our ResourceClaims were answered.",
            registry=own,
        )
        self._resource_solving = Histogram(
            "devalloc_resource_claim_solve_seconds",
            "Solver time of such a round.",
            buckets=_SECONDS,
            registry=own,
        )
        self._registry.register(_SearchCollector(searched))
        self._registry.register(_ResourceClaimCollector(leads, lambda: self._last_of_resources))
        self._waited = Histogram(
            "devalloc_claim_allocation_seconds",
            "From the creation of a claim until it was given devices.",
            ["kind"],
            buckets=_WAITING_SECONDS,
            registry=own,
        )
        for kind in ("DeviceClaim", "ResourceClaim"):
            self._waited.labels(kind)
        self._migrations = Counter(
            "devalloc_machine_migrations", "Migrations of machines that are over.", ["result"], registry=own
        )
        for result in MIGRATION_ENDS:
            self._migrations.labels(result.lower())
        self._downtime = Histogram(
            "devalloc_machine_migration_downtime_seconds",
            "How long guests stood still while they moved.",
            buckets=_SECONDS,
            registry=own,
        )
        for part in parts:
            own.register(part)

    def count(self, done: DeviceClaimRound) -> None:
        """A round."""
        self._last = done
        self._rounds.inc()
        self._solving.observe(done.seconds)
        self._stale.inc(len(done.stale))
        for key in done.granted:
            self._granted.labels(key.kind).inc()

    def count_resources(self, done: ResourceRound) -> None:
        """A round of ResourceClaims."""
        self._last_of_resources = done
        self._resource_rounds.inc()
        self._resource_solving.observe(done.seconds)
        self._granted.labels("ResourceClaim").inc(len(done.granted))

    def allocated(self, claim: Object, now: datetime) -> None:
        """A claim was given devices."""
        with suppress(TypeError, ValueError):  # of a cluster that says no time, nothing can be told
            since = parse_time(claim["metadata"].get("creationTimestamp"))
            self._waited.labels(claim["kind"]).observe(max(0.0, (now - since).total_seconds()))

    def migrated(self, before: Object, after: Object) -> None:
        """A migration was written."""
        was, now = MigrationView(before), MigrationView(after)
        if not now.is_over or was.is_over:
            return
        self._migrations.labels(now.phase.lower()).inc()
        with suppress(QuantityError):
            if (still := as_mapping(now.status.get("progress")).get("downtimeSeconds")) is not None:
                self._downtime.observe(Quantity.parse(still).nano / NANO)

    def text(self) -> bytes:
        """The page."""
        return generate_latest(self._registry)


class _FencingCollector:
    """What a fencing program did."""

    def __init__(self, leads: Callable[[], bool], counts: Callable[[], FencingCounts | None]) -> None:
        self._leads = leads
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        if (counts := self._counts()) is None or not self._leads():
            return
        yield GaugeMetricFamily(
            "devalloc_lost_nodes", "Nodes whose kubelet does not report, and that are not fenced.", value=counts.lost
        )
        calls = CounterMetricFamily(
            "devalloc_fencing_calls",
            "Calls of the fencing program by result; withheld: times at which too many nodes were lost.",
            labels=["result"],
        )
        for result, number in counts.results.items():
            calls.add_metric([result], number)
        yield calls


class _RoundCollector:
    """A collector of the state at the time of the scrape."""

    def __init__(
        self,
        leads: Callable[[], bool],
        recorder: EventRecorder,
        requests: Callable[[], Mapping[tuple[str, int], int]],
        last: Callable[[], DeviceClaimRound | None],
    ) -> None:
        self._leads = leads
        self._recorder = recorder
        self._requests = requests
        self._last = last

    def collect(self) -> Iterator[Metric]:
        """Gauges of the last round, which only a leader has, and counters of what others count."""
        leads = self._leads()
        yield GaugeMetricFamily("devalloc_leading", "1: this process leads.", value=float(leads))
        requests = CounterMetricFamily("devalloc_api_requests", "Requests to the API server.", labels=["verb", "code"])
        for (verb, code), number in sorted(self._requests().items()):
            requests.add_metric([verb, str(code)], number)
        yield requests
        yield CounterMetricFamily("devalloc_events_written", "Kubernetes Events.", value=self._recorder.written)
        yield CounterMetricFamily("devalloc_events_dropped", "Events not written.", value=self._recorder.dropped)
        done = self._last()
        if done is None or not leads:
            return
        claims = GaugeMetricFamily("devalloc_claims", "Claims by state.", labels=["state"])
        claims.add_metric(["allocated"], done.allocated)
        claims.add_metric(["waiting"], done.waiting)
        yield claims
        yield GaugeMetricFamily("devalloc_devices", "Devices of all pools.", value=done.devices)
        yield GaugeMetricFamily(
            "devalloc_devices_available", "Devices that one more claim could get.", value=done.available
        )
        yield GaugeMetricFamily("devalloc_pools", "DevicePools.", value=done.pools)
        yield GaugeMetricFamily(
            "devalloc_problems",
            "Problems of objects: ignored ones, devices with several owners, unknown nodes.",
            value=len(done.problems),
        )


class _SearchCollector:
    """What claims that take long to answer cost."""

    def __init__(self, seconds: Callable[[], Mapping[str, float]]) -> None:
        self._seconds = seconds

    def collect(self) -> Iterator[Metric]:
        """By namespace; only a bounded number of them has its own label."""
        family = CounterMetricFamily(
            "devalloc_search_seconds",
            "Background searches for claims that found no devices.",
            labels=["namespace"],
        )
        for namespace, seconds in sorted(self._seconds().items()):
            family.add_metric([namespace], seconds)
        yield family


class _ResourceClaimCollector:
    """The same of ResourceClaims that this controller allocates, if it does."""

    def __init__(self, leads: Callable[[], bool], last: Callable[[], ResourceRound | None]) -> None:
        self._leads = leads
        self._last = last

    def collect(self) -> Iterator[Metric]:
        """As of the last round."""
        done = self._last()
        if done is None or not self._leads():
            return
        claims = GaugeMetricFamily("devalloc_resource_claims", "Our ResourceClaims by state.", labels=["state"])
        claims.add_metric(["allocated"], done.allocated)
        claims.add_metric(["waiting"], done.waiting)
        yield claims
