"""``devalloc vm power-down``: for a host that shuts down."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click

from devalloc.cli.nodeoptions import machine_dir_option, places, state_option
from devalloc.cli.nodesocket import socket_option
from devalloc.cli.options import duration
from devalloc.cli.output import note
from devalloc.cli.verb import Failed, verb


@verb("power-down")
@state_option
@machine_dir_option
@socket_option
@click.option("--timeout", type=duration, default="90s", metavar="DURATION", help="The most that all guests get.")
def power_down(state: Path | None, machine_dir: Path | None, socket: Path, timeout: float) -> int:
    """Ask the guests of all machines to power down, because the host does. Exit code 1 where one has not.

    The node plugin must not run: it would start them again. They stay wanted, and come back with the host as their
    restart policies say. Adopted machines are left alone.

    \b
    devalloc vm power-down --timeout 2m
    """
    from devalloc_node.deadline import Deadline
    from devalloc_node.errors import NodeError
    from devalloc_node.journal import open_journal
    from devalloc_node.machine.config import MachineConfig
    from devalloc_node.machine.kept import Kept
    from devalloc_node.machine.powerdown import power_down_all
    from devalloc_node.service.server import answers

    home, run = places(state, socket, machine_dir)
    if answers(socket):
        raise Failed(f"the node plugin at {socket} runs and would start the machines again; stop it first")
    if not home.is_dir():
        return 0
    with closing(open_journal(home)) as journal:
        try:
            asked = power_down_all(Kept(MachineConfig(home / "machines", run), journal), Deadline.after(timeout))
        except NodeError as error:
            raise Failed(error.message) from error
    for name, problem in sorted(asked.items()):
        if problem:
            note(f"error: {name}: {problem}")
        else:
            click.echo(f"{name} powered down")
    return 1 if any(asked.values()) else 0
