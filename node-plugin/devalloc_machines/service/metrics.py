"""Prometheus metrics of machines.

| metric | labels | what |
|---|---|---|
| ``devalloc_node_machines`` | phase | machines in care |
| ``devalloc_node_plugged_vcpus`` | | vCPUs of all machines that run, as QEMU reports them |
| ``devalloc_node_plugged_memory_bytes`` | | their memory |
| ``devalloc_node_machine_info`` | machine, pid, tap | 1 for each machine that runs: its QEMU, its TAP interfaces |
| ``devalloc_node_machine_allocated_cpus`` | machine | CPUs whose time it may use, as QEMU and its cgroup have it |
| ``devalloc_node_machine_allocated_memory_bytes`` | machine | memory, as QEMU reports it |
| ``devalloc_node_machine_cpu_seconds_total`` | machine | CPU time that its QEMU has used |
| ``devalloc_node_machine_resident_memory_bytes`` | machine | memory of the host that its QEMU has |
| ``devalloc_node_machine_network_received_bytes_total`` | machine, tap | bytes that the host took from it |
| ``devalloc_node_machine_network_sent_bytes_total`` | machine, tap | bytes that the host sent to it |
| ``devalloc_node_guest_metric`` | machine, name | what the guest reported last (``spec.guestReports``) |
| ``devalloc_node_guest_lines_dropped_total`` | | lines of guests that were not reports |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from devalloc_machines.qemu.process import traffic, usage
from devalloc_machines.qemu.records import MachineView
from devalloc_node.metrics.registry import gauge, gauges


def machine_metrics(machines: Sequence[MachineView], proc: Path = Path("/proc")) -> Iterator[Metric]:
    """Count the machines of a node, and export what each that runs was given and uses."""
    live = [machine for machine in machines if machine.runs]
    phases = Counter(machine.shown_phase for machine in machines)
    yield gauges("devalloc_node_machines", "Machines that the plugin manages.", "phase", phases)
    yield gauge(
        "devalloc_node_plugged_vcpus", "vCPUs of running machines.", sum(each.observed.vcpus or 0 for each in live)
    )
    memory = sum(each.observed.memory_bytes or 0 for each in live)
    yield gauge("devalloc_node_plugged_memory_bytes", "Memory of running machines.", memory)
    info = GaugeMetricFamily(
        "devalloc_node_machine_info", "Running machines, with their process.", labels=["machine", "pid", "tap"]
    )
    for each in live:
        info.add_metric([each.key, str(each.pid), ",".join(each.taps)], 1)
    yield info
    cpus = [None if each.observed.cpu_milli is None else each.observed.cpu_milli / 1000 for each in live]
    memory_bytes = [each.observed.memory_bytes for each in live]
    used = [usage(each.pid, proc) if each.pid else None for each in live]
    cpu_seconds = [None if each is None else each.cpu_seconds for each in used]
    resident = [None if each is None else each.resident_bytes for each in used]
    for kind, name, what, values in (
        (GaugeMetricFamily, "allocated_cpus", "CPU limit of the machine, in CPUs.", cpus),
        (GaugeMetricFamily, "allocated_memory_bytes", "Memory of the machine.", memory_bytes),
        (CounterMetricFamily, "cpu_seconds", "CPU time that its QEMU has used.", cpu_seconds),
        (GaugeMetricFamily, "resident_memory_bytes", "Memory of its QEMU.", resident),
    ):
        family = kind(f"devalloc_node_machine_{name}", what, labels=["machine"])
        for each, value in zip(live, values, strict=True):
            if value is not None:
                family.add_metric([each.key], value)
        yield family
    counted = [traffic(each.pid, each.taps, proc) if each.pid and each.taps else {} for each in live]
    for name, what in (("received", "Bytes that the machine sent."), ("sent", "Bytes that the machine received.")):
        family = CounterMetricFamily(f"devalloc_node_machine_network_{name}_bytes", what, labels=["machine", "tap"])
        for each, by_tap in zip(live, counted, strict=True):
            for tap, bytes_of in by_tap.items():
                family.add_metric([each.key, tap], getattr(bytes_of, name))
        yield family


def guest_metrics(reported: Mapping[str, Mapping[str, float]], dropped: int) -> Iterator[Metric]:
    """Export what guests report, by machine and by name, and the number of lines that were no reports."""
    family = GaugeMetricFamily(
        "devalloc_node_guest_metric", "What the guest of the machine last reported.", labels=["machine", "name"]
    )
    for machine, metrics in reported.items():
        for name, value in metrics.items():
            family.add_metric([machine, name], value)
    yield family
    yield CounterMetricFamily(
        "devalloc_node_guest_lines_dropped",
        "Lines of guests that were not reports.",
        value=dropped,
    )
