"""``devalloc vm power-down``: end all machines, because the host goes down."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from devalloc.cli.command import CommandFailed
from devalloc.cli.terminal import print_line, print_note
from devalloc.programs.node_options import state_folders
from devalloc_machines.qemu.exits import power_down_all
from devalloc_machines.qemu.registry import MachineRegistry
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_node.deadline import Deadline
from devalloc_node.errors import NodeError
from devalloc_node.journal import open_journal
from devalloc_node.net.unix_sockets import has_listener


def power_down(state: Path | None, machine_dir: Path | None, socket: Path, timeout: float) -> int:
    home, run = state_folders(state, socket, machine_dir)
    if has_listener(socket):
        raise CommandFailed(f"the node plugin at {socket} is running and would start the machines again; stop it first")
    if not home.is_dir():
        return 0
    with closing(open_journal(home)) as journal:
        try:
            problems = power_down_all(
                MachineRegistry(MachineConfig(state=home / "machines", run=run), journal), Deadline.after(timeout)
            )
        except NodeError as error:
            raise CommandFailed(error.message) from error
    for name, problem in sorted(problems.items()):
        if problem:
            print_note(f"error: {name}: {problem}")
        else:
            print_line(f"{name} powered down")
    return 1 if any(problems.values()) else 0
