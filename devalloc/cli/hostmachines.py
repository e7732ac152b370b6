"""Machines of this host that no object of the store stands for: the node plugin knows them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from devalloc.cli.nodesocket import connected, default_socket, word
from devalloc.cli.verb import Failed
from devalloc.inventory.capacity.machines import MachineUse

if TYPE_CHECKING:
    from devalloc_node.pb.node_pb2 import Amounts, Machine

SECONDS = 10.0
"""What the plugin may take to answer."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What the plugin tells."""

    uses: tuple[MachineUse, ...] = ()
    is_of_node: bool = False
    """The plugin is that of the node."""
    problem: str = ""
    """What could not be asked, and counts as nothing."""


def plugin_here(store: Path | None) -> Path | None:
    """Where the plugin of this host, or of that store, has its socket; None where there is none."""
    path = default_socket(store)
    try:
        return path if path.exists() else None
    except OSError:  # it is root's, which is to be said
        return path


def beside(socket: Path, node_name: str, known: Collection[str]) -> Beside:
    """The machines of a node's plugin but those ``known`` (namespace/name), which the store tells."""
    from devalloc_node.pb.node_pb2 import GetNodeRequest, ListMachinesRequest, Machine

    try:
        with connected(socket) as node:
            name = node.GetNode(GetNodeRequest(), timeout=SECONDS).node_name
            listed = list(node.ListMachines(ListMachinesRequest(), timeout=SECONDS).machines)
    except Failed as error:
        return Beside(problem=f"machines of `devalloc vm create` are not counted: {error}")
    if name != node_name:
        what = f"the node plugin at {socket} is that of node {name}, and this tells of {node_name}"
        return Beside(problem=f"{what}: its machines are not counted (--node-name {name}, or --socket)")
    phase = Machine.Phase.DESCRIPTOR
    uses = []
    for each in listed:
        key, state = f"{each.machine.namespace or 'default'}/{each.machine.name}", word(phase, each.phase)
        if key not in known:
            uses.append(_use(each, key, "Running" if state == "Unknown" and each.pid else state))
    return Beside(tuple(uses), is_of_node=True)


def _use(machine: Machine, key: str, state: str) -> MachineUse:
    spec = machine.spec
    cpu, memory = spec.cpu.min_milli, spec.memory.min_bytes
    for told in (machine.applied, machine.observed):
        cpu, memory = max(cpu, _cpu(told)), max(memory, told.memory_bytes)
    return MachineUse(key, machine.machine.name, state, cpu, memory)


def _cpu(told: Amounts) -> int:
    return told.cpu_milli if told.HasField("cpu_milli") else told.vcpus * 1000
