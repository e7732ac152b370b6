"""``devalloc vm power-down``: power down guests when the host shuts down."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click

from devalloc.cli.command import CommandFailed, parse_duration, verb
from devalloc.cli.node_client import socket_option
from devalloc.cli.options.node import PluginOptions, state_folders
from devalloc.cli.options.settings import option_of
from devalloc.cli.render.output import print_note
from devalloc_node.deadline import Deadline
from devalloc_node.errors import NodeError


@verb("power-down")
@option_of(PluginOptions, "state")
@option_of(PluginOptions, "machine_dir")
@socket_option
@click.option(
    "--timeout", type=parse_duration, default="90s", metavar="DURATION", help="Time limit for all guests together."
)
def power_down(state: Path | None, machine_dir: Path | None, socket: Path, timeout: float) -> int:
    """Ask the guests of all machines to power down, because the host does. Exit code 1 if one does not.

    The node plugin must not run, because it would start them again. When the host comes back, the machines start again
    by their restart policies. Adopted machines are left alone.

    \b
    devalloc vm power-down --timeout 2m
    """
    from devalloc_node.journal import open_journal
    from devalloc_node.machine.paths import MachineConfig
    from devalloc_node.machine.powerdown import power_down_all
    from devalloc_node.machine.registry import MachineRegistry
    from devalloc_node.net.unix_sockets import has_listener

    home, run = state_folders(state, socket, machine_dir)
    if has_listener(socket):
        raise CommandFailed(f"the node plugin at {socket} is running and would start the machines again; stop it first")
    if not home.is_dir():
        return 0
    with closing(open_journal(home)) as journal:
        try:
            problems = power_down_all(
                MachineRegistry(MachineConfig(home / "machines", run), journal), Deadline.after(timeout)
            )
        except NodeError as error:
            raise CommandFailed(error.message) from error
    for name, problem in sorted(problems.items()):
        if problem:
            print_note(f"error: {name}: {problem}")
        else:
            click.echo(f"{name} powered down")
    return 1 if any(problems.values()) else 0
