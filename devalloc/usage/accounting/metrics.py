"""Prometheus counters of usage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from devalloc.usage.accounting.ledger import CounterKey, UsageTotal


class UsageCollector(Collector):
    """A collector of counters as they are written down. ``MAX_LABELS`` of the ledger bounds the series."""

    def __init__(self, counters: Callable[[], Mapping[CounterKey, UsageTotal]]) -> None:
        self._read = counters

    def collect(self) -> Iterator[Metric]:
        """Device-seconds by kind of claim, namespace and class; CPU and memory of machines by namespace."""
        devices = CounterMetricFamily(
            "devalloc_usage_device_seconds",
            "Time that devices were held; each share of a device counts.",
            labels=["kind", "namespace", "device_class", "held"],
        )
        cpu = CounterMetricFamily(
            "devalloc_usage_cpu_seconds", "CPUs that machines had, times time.", labels=["namespace"]
        )
        memory = CounterMetricFamily(
            "devalloc_usage_memory_byte_seconds", "Memory that machines had, times time.", labels=["namespace"]
        )
        for (kind, namespace, device_class), total in sorted(self._read().items()):
            if kind == "VirtualMachine":
                cpu.add_metric([namespace], total.cpu / 1_000_000)
                memory.add_metric([namespace], total.memory / 1000)
                continue
            for held, amount in (("whole", total.whole), ("share", total.shared)):
                if amount:
                    devices.add_metric([kind, namespace, device_class, held], amount / 1000)
        yield devices
        yield cpu
        yield memory
