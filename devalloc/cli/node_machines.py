"""What machines use of this host: those of the store, those that only the node plugin knows, and their processes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from devalloc.api.decode import decode
from devalloc.api.virtual_machine import VirtualMachine
from devalloc.cli.command import CommandFailed
from devalloc.cli.node_client import connect_plugin
from devalloc.cli.options.places import default_socket
from devalloc.cli.render.output import enum_text
from devalloc.cli.storage import open_embedded_store
from devalloc.controller.reconcile.availability import device_names_held_on
from devalloc.inventory.capacity import CapacityConfig, read_capacity
from devalloc.inventory.capacity.gpus import gpu_status
from devalloc.inventory.capacity.machines import MachineUsage, booking_usage, machine_usage
from devalloc.inventory.capacity.status import HostStatus, host_status
from devalloc.inventory.capacity.stored import stored_of_machine, stores_of
from devalloc.inventory.config import DeviceRecords, InventoryConfig
from devalloc.inventory.discover import discover
from devalloc.store import StoreError
from devalloc_node.pb.node_pb2 import Amounts, GetNodeRequest, ListMachinesRequest, Machine

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
    network = sum(nic.bandwidth_bytes_per_second for nic in spec.nics)
    return MachineUsage(
        key,
        machine.machine.name,
        state,
        cpu,
        memory,
        overlay=spec.disk_bytes,
        download=network,
        upload=network,
        disk_io=spec.disk_io_bytes_per_second,
    )


def _cpu(amounts: Amounts) -> int:
    return amounts.cpu_milli if amounts.HasField("cpu_milli") else amounts.vcpus * 1000


def capacity_status(
    root: Path, node_name: str, store: Path, config: CapacityConfig, plugin: Path | None = None
) -> HostStatus:
    """The host's status, with the machines and claims of the store if there is one, and the other machines of the node
    plugin at this socket. What cannot be read is among its problems."""
    host = read_capacity(root, config)
    problems = []
    try:
        machines, coming, held, elsewhere = _machines_in_store(store, node_name)
    except (CommandFailed, StoreError) as error:
        machines, coming, held, elsewhere = [], [], frozenset(), []
        problems.append(f"machines and claims of the store are not counted: {error}")
    discovery = discover(root, node_name=node_name, config=InventoryConfig(records=DeviceRecords(held)))
    problems += [f"devices: {problem}" for problem in discovery.problems if problem.is_error]
    pools = discovery.pools
    uses = [replace(machine_usage(machine), stored=stored_of_machine(host, machine)) for machine in machines]
    uses += [use for use in map(booking_usage, coming) if use is not None]
    others = UnstoredMachines() if plugin is None else unstored_machines(plugin, node_name, {use.id for use in uses})
    problems += [others.problem] if others.problem else []
    if elsewhere and not machines and not others.is_of_node:
        what = f"the store has machines of {', '.join(elsewhere)} but none of {node_name}"
        problems.append(f"{what}; if this host is one of them, name it with --node-name")
    uses += others.uses
    reported = host_status(host, lambda: uses, stores_of(host), gpus=lambda: gpu_status(pools, held=held))
    return replace(reported, problems=(*reported.problems, *problems))


def _machines_in_store(
    path: Path, node_name: str
) -> tuple[list[VirtualMachine], list[VirtualMachine], frozenset[str], list[str]]:
    """The node's machines, those that are moving to it, its devices that claims have, and the other nodes that have
    machines; empty without a store."""
    if not path.exists():
        return [], [], frozenset(), []
    with open_embedded_store(path) as objects:
        listed = list(objects.list(["VirtualMachine", "DeviceClaim", "DeviceClass"]).objects)
    decoded = (decode(obj).object for obj in listed if obj["kind"] == "VirtualMachine")
    placed = [each for each in decoded if isinstance(each, VirtualMachine) and each.node]
    machines = [each for each in placed if each.node == node_name]
    moving = ((each, each.status.migration_state) for each in placed if each.status is not None)
    return (
        machines,
        [each for each, state in moving if state is not None and state.target_node == node_name],
        device_names_held_on(node_name, listed),
        sorted({each.node for each in placed if each.node} - {node_name}),
    )
