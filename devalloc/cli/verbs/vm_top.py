"""``devalloc vm top``: what machines and their processes use of this host."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from devalloc.cli.node_client import (
    connect_plugin,
    message_content,
)
from devalloc.cli.render.cells import format_size
from devalloc.cli.render.host import (
    amounts_text,
    claim_names,
    full_name,
    phase_text,
)
from devalloc.cli.render.output import Cell, print_objects, print_table
from devalloc.cli.terminal import print_note
from devalloc_machines.qemu.process import usage
from devalloc_node.pb.node_pb2 import ListMachinesRequest, Machine

HEADERS = (
    "NAME", "PHASE", "WANTED", "PERMITTED", "APPLIED", "OBSERVED", "GUEST", "LOAD", "CPU", "USED", "RSS", "REASON",
)  # fmt: skip
WIDE = ("DEVICES", "CLAIMS", "TAP", "PID")


def top(namespace: str, all_namespaces: bool, watch: bool, interval: float, output: str, socket: Path) -> int:
    request = ListMachinesRequest(namespace="" if all_namespaces else namespace)
    with connect_plugin(socket) as node:
        while True:
            machines = list(node.ListMachines(request, timeout=10).machines)
            before = sample_machines(machines)
            time.sleep(interval)
            uses = usage_between(before, sample_machines(machines))
            if watch and output in ("table", "wide"):
                click.clear()
            _print(machines, uses, output)
            if not watch:
                return 0


def _more(machine: Machine) -> list[Cell]:
    return [
        ", ".join(each.name or f"{each.pool}/{each.device}" for each in machine.devices),
        ", ".join(claim_names(machine)),
        ", ".join(machine.taps),
        str(machine.pid or ""),
    ]


def _row(machine: Machine, use: ProcessUsage | None) -> list[Cell]:
    scaling = machine.scaling if machine.HasField("scaling") else None
    applied = machine.applied if scaling is None or not scaling.HasField("applied") else scaling.applied
    return [
        full_name(machine),
        phase_text(machine),
        amounts_text(machine.wanted),
        amounts_text(machine.permitted),
        amounts_text(applied),
        amounts_text(machine.observed),
        "-" if scaling is None else amounts_text(scaling.guest_observed),
        f"{scaling.load1:.2f}" if scaling is not None and scaling.HasField("load1") else "-",
        "-" if use is None else f"{use.cores * 100:.0f}%",
        format_size(scaling.memory_used_bytes)
        if scaling is not None and scaling.HasField("memory_used_bytes")
        else "-",
        "-" if use is None else format_size(use.rss_bytes),
        machine.reason or ("" if scaling is None else scaling.reason),
    ]


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


def _print(machines: Sequence[Machine], uses: Mapping[int, ProcessUsage], output: str) -> None:
    if output not in ("table", "wide"):
        contents = [message_content(machine) | _usage_content(uses.get(machine.pid)) for machine in machines]
        print_objects(contents, output)
        return
    if not machines:
        print_note("no machines")
        return
    wide = output == "wide"
    rows = [[*_row(machine, uses.get(machine.pid)), *(_more(machine) if wide else ())] for machine in machines]
    print_table((*HEADERS, *(WIDE if wide else ())), rows, wide=wide)


def _usage_content(use: ProcessUsage | None) -> dict[str, Any]:
    return {} if use is None else {"cores": round(use.cores, 3), "rssBytes": use.rss_bytes}
