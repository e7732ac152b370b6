"""``devalloc vm top``: amounts and usage of this node's machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devalloc.cli.command import parse_duration, verb
from devalloc.cli.node_client import socket_option
from devalloc.cli.options.common import all_namespaces_option, namespace_option, output_option
from devalloc.cli.process_usage import ProcessUsage, show_usage
from devalloc.cli.render.output import print_table

if TYPE_CHECKING:
    from devalloc.cli.render.output import Cell
    from devalloc_node.pb.node_pb2 import Machine

HEADERS = (
    "NAME", "PHASE", "WANTED", "PERMITTED", "APPLIED", "OBSERVED", "GUEST", "LOAD", "CPU", "USED", "RSS", "REASON",
)  # fmt: skip
WIDE = ("DEVICES", "CLAIMS", "TAP", "PID")


@verb("top")
@namespace_option
@all_namespaces_option
@click.option("-w", "--watch", is_flag=True, help="Repeat until Ctrl-C.")
@click.option(
    "--interval",
    type=parse_duration,
    default="1s",
    metavar="DURATION",
    help="How long to measure CPU usage; with --watch also how often.",
)
@output_option("table", "wide", "json", "yaml")
@socket_option
def top(namespace: str, all_namespaces: bool, watch: bool, interval: float, output: str, socket: Path) -> int:
    """Show CPU and memory of machines: wanted, permitted, set, actual, and as the guest sees them.

    LOAD and USED are the load and memory usage that the guest of a scaled machine reports. CPU (percent of one core)
    and RSS are what its QEMU uses of the host; "-" if they cannot be read. REASON: why the machine does not have what
    it wants.

    \b
    devalloc vm top -A --watch
    devalloc vm top -o wide
    """
    return show_usage(None if all_namespaces else namespace, watch, interval, output, socket, _table)


def _table(machines: Sequence[Machine], uses: Mapping[int, ProcessUsage], wide: bool) -> None:
    rows = [[*_row(machine, uses.get(machine.pid)), *(_more(machine) if wide else ())] for machine in machines]
    print_table((*HEADERS, *(WIDE if wide else ())), rows)


def _more(machine: Machine) -> list[Cell]:
    from devalloc.cli.render import machines as cells

    return [
        ", ".join(each.name or f"{each.pool}/{each.device}" for each in machine.devices),
        ", ".join(cells.claim_names(machine)),
        ", ".join(machine.taps),
        str(machine.pid or ""),
    ]


def _row(machine: Machine, use: ProcessUsage | None) -> list[Cell]:
    from devalloc.cli.render import machines as cells

    scaling = machine.scaling if machine.HasField("scaling") else None
    applied = machine.applied if scaling is None or not scaling.HasField("applied") else scaling.applied
    return [
        cells.full_name(machine),
        cells.phase_text(machine),
        cells.amounts_text(machine.wanted),
        cells.amounts_text(machine.permitted),
        cells.amounts_text(applied),
        cells.amounts_text(machine.observed),
        "-" if scaling is None else cells.amounts_text(scaling.guest_observed),
        f"{scaling.load1:.2f}" if scaling is not None and scaling.HasField("load1") else "-",
        "-" if use is None else f"{use.cores * 100:.0f}%",
        cells.format_size(scaling.memory_used_bytes)
        if scaling is not None and scaling.HasField("memory_used_bytes")
        else "-",
        "-" if use is None else cells.format_size(use.rss_bytes),
        machine.reason or ("" if scaling is None else scaling.reason),
    ]
