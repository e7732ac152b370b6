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
from dataclasses import dataclass, field
from typing import Protocol

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from devalloc_machines.qemu.process import NetworkTraffic, traffic, usage
from devalloc_machines.qemu.records import MachineView
from devalloc_node.metrics.registry import gauge, gauges


class GuestMetrics(Protocol):
    """What guests report."""

    @property
    def dropped(self) -> int: ...

    def metrics(self) -> Mapping[str, Mapping[str, float]]: ...


@dataclass(frozen=True, slots=True)
class MachineUsage:
    """What a machine that runs was given, and what it uses; None: not known."""

    machine: str
    """``namespace/name``"""
    pid: int
    taps: Sequence[str] = ()
    cpus: float | None = None
    memory_bytes: int | None = None
    cpu_seconds: float | None = None
    resident_bytes: int | None = None
    traffic: Mapping[str, NetworkTraffic] = field(default_factory=dict)
    """By TAP interface."""


def machine_metrics(machines: Sequence[MachineView]) -> Iterator[Metric]:
    """Count the machines of a node."""
    live = [machine for machine in machines if machine.runs]
    phases = Counter(machine.shown_phase for machine in machines)
    yield gauges("devalloc_node_machines", "Machines that the plugin manages.", "phase", phases)
    yield gauge(
        "devalloc_node_plugged_vcpus", "vCPUs of running machines.", sum(each.observed.vcpus or 0 for each in live)
    )
    memory = sum(each.observed.memory_bytes or 0 for each in live)
    yield gauge("devalloc_node_plugged_memory_bytes", "Memory of running machines.", memory)
    yield from usage_metrics([machine_usage(machine) for machine in live])


def machine_usage(machine: MachineView) -> MachineUsage:
    """Read the usage of a machine that runs."""
    used = usage(machine.pid) if machine.pid else None
    milli = machine.observed.cpu_milli
    return MachineUsage(
        machine=machine.key,
        pid=machine.pid,
        taps=machine.taps,
        cpus=None if milli is None else milli / 1000,
        memory_bytes=machine.observed.memory_bytes,
        cpu_seconds=None if used is None else used.cpu_seconds,
        resident_bytes=None if used is None else used.resident_bytes,
        traffic=traffic(machine.pid, machine.taps) if machine.pid and machine.taps else {},
    )


def usage_metrics(machines: Sequence[MachineUsage]) -> Iterator[Metric]:
    """Export what machines that run were given, and what they use."""
    info = GaugeMetricFamily(
        "devalloc_node_machine_info", "Running machines, with their process.", labels=["machine", "pid", "tap"]
    )
    for each in machines:
        info.add_metric([each.machine, str(each.pid), ",".join(each.taps)], 1)
    yield info
    for kind, name, what, values in (
        (GaugeMetricFamily, "allocated_cpus", "CPU limit of the machine, in CPUs.", [m.cpus for m in machines]),
        (GaugeMetricFamily, "allocated_memory_bytes", "Memory of the machine.", [m.memory_bytes for m in machines]),
        (CounterMetricFamily, "cpu_seconds", "CPU time that its QEMU has used.", [m.cpu_seconds for m in machines]),
        (GaugeMetricFamily, "resident_memory_bytes", "Memory of its QEMU.", [m.resident_bytes for m in machines]),
    ):
        family = kind(f"devalloc_node_machine_{name}", what, labels=["machine"])
        for each, value in zip(machines, values, strict=True):
            if value is not None:
                family.add_metric([each.machine], value)
        yield family
    for name, what in (("received", "Bytes that the machine sent."), ("sent", ("Bytes that the machine received."))):
        family = CounterMetricFamily(f"devalloc_node_machine_network_{name}_bytes", what, labels=["machine", "tap"])
        for each in machines:
            for tap, counted in each.traffic.items():
                family.add_metric([each.machine, tap], getattr(counted, name))
        yield family


def guest_metrics(guests: GuestMetrics) -> Iterator[Metric]:
    """Export what guests report, by machine and by name."""
    family = GaugeMetricFamily(
        "devalloc_node_guest_metric", "What the guest of the machine last reported.", labels=["machine", "name"]
    )
    for machine, metrics in guests.metrics().items():
        for name, value in metrics.items():
            family.add_metric([machine, name], value)
    yield family
    yield CounterMetricFamily(
        "devalloc_node_guest_lines_dropped",
        "Lines of guests that were not reports.",
        value=guests.dropped,
    )
