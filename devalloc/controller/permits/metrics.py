"""What the server tells of itself in Prometheus' form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from devalloc.controller.permits.book import Book
from devalloc.controller.permits.draft import Granted
from devalloc.controller.permits.usage import Total
from devalloc.scaling.permits.pressure import is_too_full

TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class Metrics:
    """Counters of one server, and the ledgers as they are when somebody looks. Use from one thread."""

    def __init__(self, book: Book, usage: Callable[[], Mapping[str, Total]] = dict) -> None:
        """``usage``: what was kept for each billing id."""
        self._registry = CollectorRegistry()
        made = self._registry
        self.requests = Counter(
            "devalloc_permit_requests", "Requests by version and status.", ["version", "code"], registry=made
        )
        self.outcomes = Counter(
            "devalloc_permit_outcomes", "What was granted of what was asked for.", ["outcome"], registry=made
        )
        self.seconds = Histogram(
            "devalloc_permit_request_seconds", "From a request to its answer.", buckets=_SECONDS, registry=made
        )
        self.commits = Counter("devalloc_permit_commits", "Writes to the store by result.", ["result"], registry=made)
        self.committing = Histogram("devalloc_permit_commit_seconds", "Of a write.", buckets=_SECONDS, registry=made)
        self.migrations = Counter(
            "devalloc_permit_migrations", "Migrations by what became of them.", ["result"], registry=made
        )
        self.wanting = Counter(
            "devalloc_permit_migrations_wanted",
            "Machines that should move, where no migrator is configured.",
            registry=made,
        )
        self.refused = Counter(
            "devalloc_permit_connections_refused", "Connections that were cut.", ["reason"], registry=made
        )
        self._registry.register(_Ledgers(book))
        self._registry.register(_Usage(usage))

    def granted(self, granted: Granted) -> None:
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
    "total": "What there is for machines: the node's effective limit",
    "watermark": "From where on machines should leave the node",
    "counted": "What all machines count for, with their overheads",
    "buffer": "Of that: kept for machines whose permit is not known, in case it is their max",
    "pressure": "What machines asked for and did not get",
    "accounted": "What machines that are on their way to other nodes will give back, and asked for and did not get",
}


class _Ledgers:
    """A collector of the ledgers' sums."""

    def __init__(self, book: Book) -> None:
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
            full.add_metric([node_name], float(is_too_full(node)))
        yield full


class _Usage:
    """A collector of what was kept for billing ids."""

    def __init__(self, told: Callable[[], Mapping[str, Total]]) -> None:
        self._told = told

    def collect(self) -> Iterator[Metric]:
        """Two counters."""
        cpu = CounterMetricFamily(
            "devalloc_permitted_cpu_seconds", "CPU time that was kept for it.", labels=["billing_id"]
        )
        memory = CounterMetricFamily(
            "devalloc_permitted_memory_byte_seconds",
            "Memory that was kept for it, times time.",
            labels=["billing_id"],
        )
        for name, total in sorted(self._told().items()):
            cpu.add_metric([name], total.cpu / 1_000_000)
            memory.add_metric([name], total.memory / 1000)
        yield cpu
        yield memory
