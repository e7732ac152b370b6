"""Prometheus metrics of the controller."""

from __future__ import annotations

from collections import Counter as CountOf
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from devalloc.api.cordon import is_cordon_reason
from devalloc.api.meta import parse_time
from devalloc.api.quantity import NANO, Quantity, QuantityError
from devalloc.api.reasons import find_reason
from devalloc.api.views import MIGRATION_ENDS, MigrationView, as_mapping
from devalloc.controller.fencing_program import FencingCounts
from devalloc.controller.overview import STATES, Overview
from devalloc.controller.overview.cache import CachedOverview
from devalloc.controller.overview.model import Dialect, NodeState
from devalloc.controller.reconcile.device_claims import DeviceClaimRound
from devalloc.controller.reconcile.events import EventRecorder
from devalloc.controller.reconcile.resource_claims.allocator import ResourceClaimRound as ResourceRound
from devalloc.controller.reconcile.searches import OTHER_NAMESPACES
from devalloc.controller.usage.ledger import CounterKey, UsageTotal
from devalloc.controller.usage.metrics import UsageCollector

Object = dict[str, Any]

TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_NAMESPACES = 50
"""Values that have a label of their own; all others share one, which bounds the number of series."""
MAX_NODES, OTHER_NODES = 50, "(others)"
"""Lost nodes that have a label of their own, and the label of all others."""
UNKNOWN_REASON, UNANSWERED_REASON = "Other", "Unanswered"
"""Labels of a reason that is not in the table of ``Reason``, and of no reason yet."""
CORDONED = "cordoned"
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
        ready: Callable[[], bool] = lambda: True,
        seen: Callable[[], CachedOverview | None] = lambda: None,
        usage: Callable[[], Mapping[CounterKey, UsageTotal]] = dict,
        fencing: Callable[[], FencingCounts | None] = lambda: None,
    ) -> None:
        """``requests``: to the API server, by verb and status. ``searched``: seconds by namespace
        (``BackgroundSearches.seconds``). ``ready``: whether /readyz says so. ``seen``: the fleet at the last look,
        while this process leads. ``usage``: counters of usage, as they are written down. ``fencing``: what the fencing
        program did, while this process leads and there is one."""
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
        self._registry.register(_FleetCollector(ready, leads, seen))
        self._registry.register(UsageCollector(usage))

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


class _FleetCollector:
    """What the page shows, in numbers."""

    def __init__(
        self, ready: Callable[[], bool], leads: Callable[[], bool], seen: Callable[[], CachedOverview | None]
    ) -> None:
        self._ready = ready
        self._leads = leads
        self._seen = seen

    def collect(self) -> Iterator[Metric]:
        """Of the last look; nothing but whether it is ready of one that does not lead."""
        yield GaugeMetricFamily("devalloc_ready", "1: /readyz answers 200.", value=float(self._ready()))
        seen = self._seen()
        if seen is None or not self._leads():
            return
        yield GaugeMetricFamily(
            "devalloc_seen_timestamp_seconds",
            "When the fleet was last read for these metrics.",
            value=seen.at.timestamp(),
        )
        owners = GaugeMetricFamily(
            "devalloc_devices_with_several_owners",
            "Devices that several claims hold but cannot share, or hold more of than exists. Alert on more than 0.",
            labels=["dialect"],
        )
        devices = GaugeMetricFamily(
            "devalloc_devices_by_state", "Devices of both dialects, each in one state.", labels=["dialect", "state"]
        )
        for dialect in get_args(Dialect):
            alarms = [alarm for alarm in seen.overview.alarms if alarm.dialect == dialect]
            owners.add_metric([dialect], len({device for alarm in alarms for device in alarm.devices}))
            for state, number in _states(seen.overview, dialect).items():
                devices.add_metric([dialect, state], number)
        gone = GaugeMetricFamily(
            "devalloc_lost_devices",
            "Devices that claims have and that no pool publishes any more. Alert on more than 0.",
            labels=["kind"],
        )
        for kind in ("DeviceClaim", "ResourceClaim"):
            gone.add_metric([kind], sum(len(claim.lost) for claim in seen.overview.claims if claim.kind == kind))
        yield owners
        yield devices
        yield gone
        lost = GaugeMetricFamily(
            "devalloc_lost_node_objects",
            "Machines and claims of a node whose kubelet does not report, and that is not fenced. The "
            f"{MAX_NODES} nodes with most have a label, the rest are {OTHER_NODES}.",
            labels=["node"],
        )
        unserved = GaugeMetricFamily(
            "devalloc_unserved_node_objects",
            "Machines and claims of a node whose plugin has ended, although its kubelet reports. The "
            f"{MAX_NODES} nodes with most have a label, the rest are {OTHER_NODES}.",
            labels=["node"],
        )
        by_state: tuple[tuple[NodeState, GaugeMetricFamily], ...] = (("Lost", lost), ("NotServed", unserved))
        for state, family in by_state:
            for node, number in _held_by_nodes(seen.overview, state).items():
                family.add_metric([node], number)
            yield family
        pending = GaugeMetricFamily(
            "devalloc_pending_claims",
            f"Claims without devices. The {MAX_NAMESPACES} namespaces with most have a label, "
            f"the rest are {OTHER_NAMESPACES}.",
            labels=["kind", "namespace", "reason"],
        )
        for labels, number in sorted(_pending(seen.overview).items()):
            pending.add_metric(labels, number)
        yield pending


def _states(overview: Overview, dialect: str) -> CountOf[str]:
    """Devices by state; ``cordoned`` are those that are unavailable for this reason."""
    counts: CountOf[str] = CountOf(dict.fromkeys((*STATES, CORDONED), 0))
    for card in (card for node in overview.nodes for card in node.cards if card.dialect == dialect):
        for device in card.devices:
            is_cordoned = device.state == "unavailable" and is_cordon_reason(device.why)
            counts[CORDONED if is_cordoned else device.state] += 1
    return counts


def _held_by_nodes(overview: Overview, state: NodeState) -> CountOf[str]:
    """Machines and claims by node that has a state: however many nodes have it, there are few labels."""
    held = {one.name: one.machines + one.claims for one in overview.node_statuses if one.state == state}
    counts = {name: number for name, number in held.items() if number}
    ordered = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    named = CountOf(dict(ordered[:MAX_NODES]))
    if rest := sum(number for _, number in ordered[MAX_NODES:]):
        named[OTHER_NODES] = rest
    return named


def _pending(overview: Overview) -> CountOf[tuple[str, str, str]]:
    """By kind, namespace and reason: however many namespaces and reasons people make, there are few labels."""
    claims = [claim for claim in overview.claims if claim.is_pending]
    by_namespace = sorted(CountOf(claim.namespace for claim in claims).items(), key=lambda each: (-each[1], each[0]))
    named = {namespace for namespace, _ in by_namespace[:MAX_NAMESPACES]}
    return CountOf(
        (
            claim.kind,
            claim.namespace if claim.namespace in named else OTHER_NAMESPACES,
            (find_reason(claim.reason) or UNKNOWN_REASON) if claim.reason else UNANSWERED_REASON,
        )
        for claim in claims
    )


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
