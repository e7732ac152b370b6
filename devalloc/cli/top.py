"""``devalloc top``: what the machines of this node have, and use."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devalloc.cli.nodesocket import socket_option
from devalloc.cli.options import duration, output_option
from devalloc.cli.output import Cell, note
from devalloc.cli.verb import verb

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from devalloc_node.pb.node_pb2 import Machine


@verb("top")
@click.option("-n", "--namespace", metavar="NAME", envvar="DEVALLOC_NAMESPACE", help="Only machines of this namespace.")
@click.option("-w", "--watch", is_flag=True, help="Again and again, until Ctrl-C.")
@click.option(
    "--interval",
    type=duration,
    default="1s",
    metavar="DURATION",
    help="How long use of CPU is measured; with --watch also how often.",
)
@output_option("table", "json", "yaml")
@socket_option
def top(namespace: str | None, watch: bool, interval: float, output: str, socket: Path) -> int:
    """Machines with what they have of what is wanted (VCPUS, MEMORY), and what their QEMU uses.

    CPU is in percent of one core and RSS the memory that the host gives to QEMU, both read off its process; "-" where
    it may not be read.

    \b
    devalloc top
    devalloc top --watch --interval 5s
    """
    return measured(namespace, watch, interval, output, socket, _table)


def measured(
    namespace: str | None, watch: bool, interval: float, output: str, socket: Path, show: Callable[..., None]
) -> int:
    """Show machines with what they used in an interval, once or again and again. ``show`` prints the table."""
    from devalloc.cli.nodesocket import connected
    from devalloc_node.pb.node_pb2 import ListMachinesRequest

    request = ListMachinesRequest(namespace=namespace or "")
    with connected(socket) as node:
        while True:
            found = list(node.ListMachines(request, timeout=10).machines)
            before = samples(found)
            time.sleep(interval)
            uses = used(before, samples(found))
            if watch and output == "table":
                click.clear()
            _print(found, uses, output, show)
            if not watch:
                return 0


@dataclass(frozen=True, slots=True)
class Sample:
    """What a process has used at a moment."""

    at: float
    cpu_seconds: float
    rss_bytes: int
    started: int
    """In clock ticks since boot: with its id it is this process and no later one."""


@dataclass(frozen=True, slots=True)
class Use:
    cores: float
    """CPU seconds a second."""
    rss_bytes: int


def sample(pid: int, proc: Path = Path("/proc")) -> Sample | None:
    """What a process has used so far; None when it is gone or may not be read."""
    from devalloc_node.machine.process import usage

    found = usage(pid, proc)
    return None if found is None else Sample(time.monotonic(), found.cpu_seconds, found.resident_bytes, found.started)


def samples(machines: Sequence[Machine]) -> dict[int, Sample]:
    """By process id."""
    taken = {machine.pid: sample(machine.pid) for machine in machines if machine.pid > 0}
    return {pid: one for pid, one in taken.items() if one is not None}


def used(before: Mapping[int, Sample], after: Mapping[int, Sample]) -> dict[int, Use]:
    """What each process used between two samples of the same process."""
    uses = {}
    for pid, last in after.items():
        first = before.get(pid)
        if first is not None and first.started == last.started and last.at > first.at:
            uses[pid] = Use((last.cpu_seconds - first.cpu_seconds) / (last.at - first.at), last.rss_bytes)
    return uses


def _print(machines: Sequence[Machine], uses: Mapping[int, Use], output: str, show: Callable[..., None]) -> None:
    from devalloc.cli.nodesocket import content
    from devalloc.cli.output import dump_objects

    if output != "table":
        dump_objects([content(machine) | _use(uses.get(machine.pid)) for machine in machines], output)
        return
    if not machines:
        note("no machines")
        return
    show(machines, uses)


def _table(machines: Sequence[Machine], uses: Mapping[int, Use]) -> None:
    from devalloc.cli import machines as cells
    from devalloc.cli.output import table

    rows: list[list[Cell]] = []
    for machine in machines:
        use = uses.get(machine.pid)
        rows.append(
            [
                cells.full_name(machine),
                cells.phase(machine),
                cells.vcpus(machine.wanted, machine.observed),
                "-" if use is None else f"{use.cores * 100:.0f}%",
                cells.memory(machine.wanted, machine.observed),
                "-" if use is None else cells.size(use.rss_bytes),
                ", ".join(each.name or f"{each.pool}/{each.device}" for each in machine.devices),
                ", ".join(cells.claims(machine)),
                ", ".join(machine.taps),
                str(machine.pid or ""),
            ]
        )
    table(["NAME", "PHASE", "VCPUS", "CPU", "MEMORY", "RSS", "DEVICES", "CLAIMS", "TAP", "PID"], rows)


def _use(use: Use | None) -> dict[str, Any]:
    return {} if use is None else {"cores": round(use.cores, 3), "rssBytes": use.rss_bytes}
