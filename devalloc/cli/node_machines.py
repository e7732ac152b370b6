"""What machines use of this host: those of the store, those that only the node plugin knows, and their processes."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devalloc.api.decode import decode
from devalloc.api.virtual_machine import VirtualMachine
from devalloc.cli.command import CommandFailed
from devalloc.cli.node_client import connect_plugin, default_socket, message_content
from devalloc.cli.render.output import enum_text, print_objects
from devalloc.cli.storage import open_embedded_store
from devalloc.cli.terminal import print_note
from devalloc.controller.reconcile.availability import device_names_held_on
from devalloc.inventory.capacity import read_capacity
from devalloc.inventory.capacity.gpus import gpu_status
from devalloc.inventory.capacity.machines import MachineUsage, booking_usage, machine_usage
from devalloc.inventory.capacity.status import host_status
from devalloc.inventory.capacity.stored import stored_of_machine, stores_of
from devalloc.inventory.config import DeviceRecords, InventoryConfig
from devalloc.inventory.discover import discover
from devalloc.store import StoreError
from devalloc_machines.qemu.process import usage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from devalloc.api.virtual_machine import VirtualMachine
    from devalloc.inventory.capacity import CapacityConfig
    from devalloc.inventory.capacity.machines import MachineUsage
    from devalloc.inventory.capacity.status import HostStatus
    from devalloc_node.pb.node_pb2 import Amounts, Machine


def show_usage(
    namespace: str | None, watch: bool, interval: float, output: str, socket: Path, show: Callable[..., None]
) -> int:
    """Show machines with their usage during an interval, once or repeatedly. ``show`` prints the table; its argument
    says whether it should be wide."""
    from devalloc_node.pb.node_pb2 import ListMachinesRequest

    request = ListMachinesRequest(namespace=namespace or "")
    with connect_plugin(socket) as node:
        while True:
            machines = list(node.ListMachines(request, timeout=10).machines)
            before = sample_machines(machines)
            time.sleep(interval)
            uses = usage_between(before, sample_machines(machines))
            if watch and output in ("table", "wide"):
                click.clear()
            _print(machines, uses, output, show)
            if not watch:
                return 0


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


def _print(
    machines: Sequence[Machine], uses: Mapping[int, ProcessUsage], output: str, show: Callable[..., None]
) -> None:
    if output not in ("table", "wide"):
        print_objects(
            [message_content(machine) | _usage_content(uses.get(machine.pid)) for machine in machines], output
        )
        return
    if not machines:
        print_note("no machines")
        return
    show(machines, uses, output == "wide")


def _usage_content(use: ProcessUsage | None) -> dict[str, Any]:
    return {} if use is None else {"cores": round(use.cores, 3), "rssBytes": use.rss_bytes}


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
