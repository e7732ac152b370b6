"""What the controller tells of itself in Prometheus' form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from devalloc.controller.allocate import Round
from devalloc.controller.recorder import Recorder
from devalloc.controller.resourceclaims.allocator import Round as ResourceRound

TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """Of one process; ``text`` from any thread."""

    def __init__(
        self,
        leads: Callable[[], bool],
        recorder: Recorder,
        requests: Callable[[], Mapping[tuple[str, int], int]],
        searched: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        """``requests``: to the API server, by verb and status. ``searched``: seconds by namespace (``Searches``)."""
        self._registry = CollectorRegistry()
        self._last: Round | None = None
        self._last_of_resources: ResourceRound | None = None
        made = self._registry
        ProcessCollector(registry=made)
        self._rounds = Counter("devalloc_rounds", "Rounds in which all claims were answered.", registry=made)
        self._solving = Histogram(
            "devalloc_solve_seconds", "What the solver thought about a round.", buckets=_SECONDS, registry=made
        )
        self._granted = Counter(
            "devalloc_granted", "Claims that got devices and machines that were placed.", ["kind"], registry=made
        )
        self._stale = Counter(
            "devalloc_stale_answers", "Answers dropped because something changed meanwhile.", registry=made
        )
        self._registry.register(_Now(leads, recorder, requests, lambda: self._last))
        self._resource_rounds = Counter(
            "devalloc_resource_claim_rounds", "Rounds in which all ResourceClaims of ours were answered.", registry=made
        )
        self._resource_solving = Histogram(
            "devalloc_resource_claim_solve_seconds",
            "What the solver thought about such a round.",
            buckets=_SECONDS,
            registry=made,
        )
        self._registry.register(_Searched(searched))
        self._registry.register(_Resources(leads, lambda: self._last_of_resources))

    def count(self, done: Round) -> None:
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
        self._granted.labels("ResourceClaim").inc(done.granted)

    def text(self) -> bytes:
        """The page."""
        return generate_latest(self._registry)


class _Now:
    """A collector of how things stand when somebody looks."""

    def __init__(
        self,
        leads: Callable[[], bool],
        recorder: Recorder,
        requests: Callable[[], Mapping[tuple[str, int], int]],
        last: Callable[[], Round | None],
    ) -> None:
        self._leads = leads
        self._recorder = recorder
        self._requests = requests
        self._last = last

    def collect(self) -> Iterator[Metric]:
        """Gauges of the last round, which only a leader has, and counters of what others count."""
        leads = self._leads()
        yield GaugeMetricFamily("devalloc_leading", "1: this process leads.", value=float(leads))
        asked = CounterMetricFamily("devalloc_api_requests", "Requests to the API server.", labels=["verb", "code"])
        for (verb, code), number in sorted(self._requests().items()):
            asked.add_metric([verb, str(code)], number)
        yield asked
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
            "devalloc_devices_available", "Of them, those that one more claim could get.", value=done.available
        )
        yield GaugeMetricFamily("devalloc_pools", "DevicePools.", value=done.pools)
        yield GaugeMetricFamily("devalloc_problems", "Objects that are left out.", value=len(done.problems))


class _Searched:
    """What claims that take long to answer cost."""

    def __init__(self, seconds: Callable[[], Mapping[str, float]]) -> None:
        self._seconds = seconds

    def collect(self) -> Iterator[Metric]:
        """By namespace; how many of these are told apart has a bound."""
        found = CounterMetricFamily(
            "devalloc_search_seconds",
            "What was searched beside the loop for claims that found no devices.",
            labels=["namespace"],
        )
        for namespace, seconds in sorted(self._seconds().items()):
            found.add_metric([namespace], seconds)
        yield found


class _Resources:
    """The same of ResourceClaims that this controller allocates, where it does."""

    def __init__(self, leads: Callable[[], bool], last: Callable[[], ResourceRound | None]) -> None:
        self._leads = leads
        self._last = last

    def collect(self) -> Iterator[Metric]:
        """As of the last round."""
        done = self._last()
        if done is None or not self._leads():
            return
        claims = GaugeMetricFamily("devalloc_resource_claims", "ResourceClaims of ours by state.", labels=["state"])
        claims.add_metric(["allocated"], done.allocated)
        claims.add_metric(["waiting"], done.waiting)
        yield claims
