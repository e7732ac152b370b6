"""``devalloc vm top``: machines of this node, from what they should have to what they use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devalloc.cli.machineuse import Use, measured
from devalloc.cli.nodesocket import socket_option
from devalloc.cli.options import all_namespaces_option, duration, namespace_option, output_option
from devalloc.cli.verb import verb

if TYPE_CHECKING:
    from devalloc.cli.output import Cell
    from devalloc_node.pb.node_pb2 import Machine

HEADERS = (
    "NAME", "PHASE", "WANTED", "PERMITTED", "APPLIED", "OBSERVED", "GUEST", "LOAD", "CPU", "USED", "RSS", "REASON",
)  # fmt: skip
WIDE = ("DEVICES", "CLAIMS", "TAP", "PID")


@verb("top")
@namespace_option
@all_namespaces_option
@click.option("-w", "--watch", is_flag=True, help="Again and again, until Ctrl-C.")
@click.option(
    "--interval",
    type=duration,
    default="1s",
    metavar="DURATION",
    help="How long use of CPU is measured; with --watch also how often.",
)
@output_option("table", "wide", "json", "yaml")
@socket_option
def top(namespace: str, all_namespaces: bool, watch: bool, interval: float, output: str, socket: Path) -> int:
    """CPU time and memory of machines: what they should have, may have, were given, have, and what their guests see.

    LOAD and USED are what the guest of a machine that is scaled tells of its load and memory; CPU (percent of one core)
    and RSS are what its QEMU takes of the host, "-" where that may not be read. REASON: why it has not what it should
    have.

    \b
    devalloc vm top -A --watch
    devalloc vm top -o wide
    """
    return measured(None if all_namespaces else namespace, watch, interval, output, socket, _table)


def _table(machines: Sequence[Machine], uses: Mapping[int, Use], wide: bool) -> None:
    from devalloc.cli.output import table

    rows = [[*_row(machine, uses.get(machine.pid)), *(_more(machine) if wide else ())] for machine in machines]
    table((*HEADERS, *(WIDE if wide else ())), rows)


def _more(machine: Machine) -> list[Cell]:
    from devalloc.cli import machines as cells

    return [
        ", ".join(each.name or f"{each.pool}/{each.device}" for each in machine.devices),
        ", ".join(cells.claims(machine)),
        ", ".join(machine.taps),
        str(machine.pid or ""),
    ]


def _row(machine: Machine, use: Use | None) -> list[Cell]:
    from devalloc.cli import machines as cells

    scaling = machine.scaling if machine.HasField("scaling") else None
    applied = machine.applied if scaling is None or not scaling.HasField("applied") else scaling.applied
    return [
        cells.full_name(machine),
        cells.phase(machine),
        cells.amounts(machine.wanted),
        cells.amounts(machine.permitted),
        cells.amounts(applied),
        cells.amounts(machine.observed),
        "-" if scaling is None else cells.amounts(scaling.guest_observed),
        f"{scaling.load1:.2f}" if scaling is not None and scaling.HasField("load1") else "-",
        "-" if use is None else f"{use.cores * 100:.0f}%",
        cells.size(scaling.memory_used_bytes) if scaling is not None and scaling.HasField("memory_used_bytes") else "-",
        "-" if use is None else cells.size(use.rss_bytes),
        machine.reason or ("" if scaling is None else scaling.reason),
    ]
