"""CPU and memory usage of this node's machines, read from their processes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devalloc.cli.node_client import connect_plugin, message_content
from devalloc.cli.render.output import print_note, print_objects

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from devalloc_node.pb.node_pb2 import Machine


def show_usage(
    namespace: str | None, watch: bool, interval: float, output: str, socket: Path, show: Callable[..., None]
) -> int:
    """Show machines with their usage during an interval, once or repeatedly. ``show`` prints the table; its argument
    says whether it should be wide."""
    from devalloc_node.pb.node_pb2 import ListMachinesRequest

    request = ListMachinesRequest(namespace=namespace or "")
    with connect_plugin(socket) as node:
        while True:
            machines = list(node.ListMachines(request, timeout=10).machines)
            before = sample_machines(machines)
            time.sleep(interval)
            uses = usage_between(before, sample_machines(machines))
            if watch and output in ("table", "wide"):
                click.clear()
            _print(machines, uses, output, show)
            if not watch:
                return 0


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """The usage counters of a process at one moment."""

    at: float
    cpu_seconds: float
    rss_bytes: int
    started: int
    """Start time in clock ticks since boot; together with the pid it identifies the process."""


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    cores: float
    """CPU seconds per second."""
    rss_bytes: int


def sample_process(pid: int, proc: Path = Path("/proc")) -> ProcessSample | None:
    """A process's usage so far; None if it is gone or cannot be read."""
    from devalloc_node.machine.process import usage

    reading = usage(pid, proc)
    return (
        None
        if reading is None
        else ProcessSample(time.monotonic(), reading.cpu_seconds, reading.resident_bytes, reading.started)
    )


def sample_machines(machines: Sequence[Machine]) -> dict[int, ProcessSample]:
    """Samples by process id."""
    taken = {machine.pid: sample_process(machine.pid) for machine in machines if machine.pid > 0}
    return {pid: one for pid, one in taken.items() if one is not None}


def usage_between(before: Mapping[int, ProcessSample], after: Mapping[int, ProcessSample]) -> dict[int, ProcessUsage]:
    """The usage of each process between two samples."""
    uses = {}
    for pid, last in after.items():
        first = before.get(pid)
        if first is not None and first.started == last.started and last.at > first.at:
            uses[pid] = ProcessUsage((last.cpu_seconds - first.cpu_seconds) / (last.at - first.at), last.rss_bytes)
    return uses


def _print(
    machines: Sequence[Machine], uses: Mapping[int, ProcessUsage], output: str, show: Callable[..., None]
) -> None:
    if output not in ("table", "wide"):
        print_objects(
            [message_content(machine) | _usage_content(uses.get(machine.pid)) for machine in machines], output
        )
        return
    if not machines:
        print_note("no machines")
        return
    show(machines, uses, output == "wide")


def _usage_content(use: ProcessUsage | None) -> dict[str, Any]:
    return {} if use is None else {"cores": round(use.cores, 3), "rssBytes": use.rss_bytes}
