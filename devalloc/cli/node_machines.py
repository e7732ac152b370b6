"""Machines of this host that only the node plugin knows: no object of the store stands for them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from devalloc.cli.command import CommandFailed
from devalloc.cli.node_client import connect_plugin, default_socket, enum_text
from devalloc.inventory.capacity.machines import MachineUsage

if TYPE_CHECKING:
    from devalloc_node.pb.node_pb2 import Amounts, Machine

SECONDS = 10.0
"""Time limit for the plugin's answer, in seconds."""


@dataclass(frozen=True, slots=True)
class UnstoredMachines:
    """The plugin's answer."""

    uses: tuple[MachineUsage, ...] = ()
    is_of_node: bool = False
    """Whether the plugin serves this node."""
    problem: str = ""
    """Why the plugin's machines are not counted; "" if they are."""


def plugin_socket(store: Path | None) -> Path | None:
    """The socket of the plugin of this host, or of that store; None if there is none."""
    path = default_socket(store)
    try:
        return path if path.exists() else None
    except OSError:  # it is root's: the caller reports the error
        return path


def unstored_machines(socket: Path, node_name: str, stored: Collection[str]) -> UnstoredMachines:
    """The machines of a node's plugin, without those that the store knows (``stored``: namespace/name)."""
    from devalloc_node.pb.node_pb2 import GetNodeRequest, ListMachinesRequest, Machine

    try:
        with connect_plugin(socket) as node:
            name = node.GetNode(GetNodeRequest(), timeout=SECONDS).node_name
            listed = list(node.ListMachines(ListMachinesRequest(), timeout=SECONDS).machines)
    except CommandFailed as error:
        return UnstoredMachines(problem=f"machines of `devalloc vm create` are not counted: {error}")
    if name != node_name:
        what = f"the node plugin at {socket} serves node {name}, not {node_name}"
        return UnstoredMachines(problem=f"{what}: its machines are not counted (--node-name {name}, or --socket)")
    phase = Machine.Phase.DESCRIPTOR
    uses = []
    for each in listed:
        key, state = f"{each.machine.namespace or 'default'}/{each.machine.name}", enum_text(phase, each.phase)
        if key not in stored:
            uses.append(_use(each, key, "Running" if state == "Unknown" and each.pid else state))
    return UnstoredMachines(tuple(uses), is_of_node=True)


def _use(machine: Machine, key: str, state: str) -> MachineUsage:
    spec = machine.spec
    cpu, memory = spec.cpu.min_milli, spec.memory.min_bytes
    for amounts in (machine.applied, machine.observed):
        cpu, memory = max(cpu, _cpu(amounts)), max(memory, amounts.memory_bytes)
    return MachineUsage(key, machine.machine.name, state, cpu, memory)


def _cpu(amounts: Amounts) -> int:
    return amounts.cpu_milli if amounts.HasField("cpu_milli") else amounts.vcpus * 1000
