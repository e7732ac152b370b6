"""Prometheus metrics of the permit server."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from devalloc.machines.permits.decide import PermitGrant
from devalloc.machines.permits.ledger import PermitLedgers
from devalloc.scaling.permits.ledger import is_under_pressure

TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class PermitMetrics:
    """Counters of one server, and the ledgers at the time of the scrape. Use from one thread."""

    def __init__(self, book: PermitLedgers, *more: Collector) -> None:
        """``more``: collectors of what is shown with them."""
        self._registry = CollectorRegistry()
        own = self._registry
        self.requests = Counter(
            "devalloc_permit_requests", "Requests by version and status.", ["version", "code"], registry=own
        )
        self.outcomes = Counter(
            "devalloc_permit_outcomes", "How much of a request was granted.", ["outcome"], registry=own
        )
        self.seconds = Histogram(
            "devalloc_permit_request_seconds", "From a request to its answer.", buckets=_SECONDS, registry=own
        )
        self.commits = Counter("devalloc_permit_commits", "Writes to the store by result.", ["result"], registry=own)
        self.committing = Histogram("devalloc_permit_commit_seconds", "Of a write.", buckets=_SECONDS, registry=own)
        self.migrations = Counter("devalloc_permit_migrations", "Migrations by outcome.", ["result"], registry=own)
        self.wanting = Counter(
            "devalloc_permit_migrations_wanted",
            "Machines that should move while no migrator is configured.",
            registry=own,
        )
        self.refused = Counter(
            "devalloc_permit_connections_refused", "Connections that were cut.", ["reason"], registry=own
        )
        for each in (_LedgerCollector(book), *more):
            self._registry.register(each)

    def granted(self, granted: PermitGrant) -> None:
        """Count one answer."""
        if granted.wanted.exceeds(granted.permit):
            outcome = "partly" if granted.permit.exceeds(granted.before) else "denied"
        elif granted.permit.exceeds(granted.before):
            outcome = "granted"
        else:
            outcome = "unchanged" if granted.permit == granted.before else "lowered"
        self.outcomes.labels(outcome).inc()

    def text(self) -> bytes:
        """The page."""
        return generate_latest(self._registry)


_SUMS = {
    "total": "Capacity for machines: the node's effective limit",
    "watermark": "Watermark above which machines should leave the node",
    "counted": "Total of all machines, with their overheads",
    "buffer": "Of that: reserved for machines whose permit is unknown, up to their max",
    "pressure": "What machines requested and did not get",
    "accounted": "What machines that are migrating away will give back, plus what they requested and did not get",
}


class _LedgerCollector(Collector):
    """A collector of the ledgers' sums."""

    def __init__(self, book: PermitLedgers) -> None:
        self._book = book

    def collect(self) -> Iterator[Metric]:
        """One gauge for each sum, by node and resource."""
        for name, what in _SUMS.items():
            gauge = GaugeMetricFamily(
                f"devalloc_permit_node_{name}", f"{what}; CPUs, or bytes.", labels=["node", "resource"]
            )
            for node_name, node in sorted(self._book.nodes.items()):
                amount = getattr(node, name)
                gauge.add_metric([node_name, "cpu"], amount.cpu / 1000)
                gauge.add_metric([node_name, "memory"], amount.memory)
            yield gauge
        full = GaugeMetricFamily("devalloc_permit_node_too_full", "1: machines should leave it.", labels=["node"])
        for node_name, node in sorted(self._book.nodes.items()):
            full.add_metric([node_name], float(is_under_pressure(node)))
        yield full
