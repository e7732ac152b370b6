"""What the machines of this node use, read off their processes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devalloc.cli.output import note

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from devalloc_node.pb.node_pb2 import Machine


def measured(
    namespace: str | None, watch: bool, interval: float, output: str, socket: Path, show: Callable[..., None]
) -> int:
    """Show machines with what they used in an interval, once or again and again. ``show`` prints the table, told
    whether it is to be a wide one."""
    from devalloc.cli.nodesocket import connected
    from devalloc_node.pb.node_pb2 import ListMachinesRequest

    request = ListMachinesRequest(namespace=namespace or "")
    with connected(socket) as node:
        while True:
            found = list(node.ListMachines(request, timeout=10).machines)
            before = samples(found)
            time.sleep(interval)
            uses = used(before, samples(found))
            if watch and output in ("table", "wide"):
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

    if output not in ("table", "wide"):
        dump_objects([content(machine) | _use(uses.get(machine.pid)) for machine in machines], output)
        return
    if not machines:
        note("no machines")
        return
    show(machines, uses, output == "wide")


def _use(use: Use | None) -> dict[str, Any]:
    return {} if use is None else {"cores": round(use.cores, 3), "rssBytes": use.rss_bytes}
