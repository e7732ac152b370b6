"""What a host has for machines: found, or configured, with what may be promised of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from devalloc.api.problems import Problem
from devalloc.inventory.capacity.cgroups import own_limits
from devalloc.inventory.capacity.config import DEFAULT_DISK_IO, CapacityConfig
from devalloc.inventory.capacity.cpus import NumaNode, read_cpus
from devalloc.inventory.capacity.disk import file_system_size
from devalloc.inventory.capacity.memory import MemoryUnknown, read_memory
from devalloc.inventory.capacity.network import read_uplink
from devalloc.inventory.capacity.resource import MILLI, Capacity, Resource, Source, resource_named
from devalloc.inventory.sysfs import Tree

_DEFAULT = CapacityConfig()


class CapacityError(ValueError):
    """A capacity without which a host cannot be used is not known. The message says what, where, and what to do."""


@dataclass(frozen=True, slots=True)
class HostCapacity:
    """What a host has for machines."""

    cpu: Capacity
    """In thousandths of a CPU."""
    memory: Capacity
    """In bytes."""
    disk: Capacity
    """In bytes."""
    network: Capacity
    """In bytes per second."""
    disk_io: Capacity
    """In bytes per second."""
    image_limit: int
    """Bytes that images and their cache may take of the disk."""
    cpus: frozenset[int]
    """Numbers of the CPUs that machines can use; empty where only their count is known."""
    nodes: tuple[NumaNode, ...]
    """NUMA nodes with their CPUs and memory, by number; none on a host that tells of none."""
    uplink: str | None
    """The interface through which machines reach the network."""
    problems: tuple[Problem, ...] = ()
    """What could not be read, and what an admin should know of the rest: warnings all."""

    def of(self, resource: str) -> Capacity:
        """The capacity of a resource by its name. Raises UnknownResource."""
        capacity: Capacity = getattr(self, resource_named(resource))
        return capacity


def discover_capacity(root: Path | Tree = Path("/"), config: CapacityConfig = _DEFAULT) -> HostCapacity:
    """What the host has whose files are below ``root``, and what may be promised of it.

    Reads only. Raises CapacityError when CPUs or memory cannot be told, or the data folder's file system. A network
    of unknown speed has the capacity 0, and so has the disk without a data folder; a problem says why.
    """
    tree = root.again() if isinstance(root, Tree) else Tree(root)
    notes: list[Problem] = []

    def note(message: str, resource: Resource) -> None:
        notes.append(Problem(message, path=resource, source="capacity", severity="warning"))

    def capacity(resource: Resource, amount: int | None, source: Source) -> Capacity:
        return Capacity(resource, amount or 0, config.ratio(resource), "unknown" if amount is None else source)

    cpus = read_cpus(tree)
    if cpus.count is None:
        raise CapacityError(f"discover CPU: {'; '.join(cpus.notes) or 'neither /sys nor /proc lists any'}")
    for text in cpus.notes:
        note(text, "cpu")
    try:
        memory, memory_notes = read_memory(tree, cpus.nodes)
    except MemoryUnknown as error:
        raise CapacityError(f"discover memory: {error}") from None
    for text in (*memory_notes, *own_limits(tree)):
        note(text, "memory" if "memory" in text else "cpu")
    disk = _disk(tree, config)
    if disk is None:
        note("its size is unknown: name a folder (data dir), or configure a limit", "disk")
    uplink = read_uplink(tree, config.uplink)
    if uplink.bandwidth is None and config.network is None:
        note(f"its bandwidth is unknown ({uplink.reason}), so none can be promised: configure a limit", "network")
    bandwidth = uplink.bandwidth if config.network is None else config.network
    return HostCapacity(
        cpu=capacity("cpu", cpus.count * MILLI, "detected"),
        memory=capacity("memory", memory, "detected"),
        disk=capacity("disk", disk, "detected" if config.disk is None else "configured"),
        network=capacity("network", bandwidth, "detected" if config.network is None else "configured"),
        disk_io=(
            capacity("disk_io", DEFAULT_DISK_IO, "assumed")
            if config.disk_io is None
            else capacity("disk_io", config.disk_io, "configured")
        ),
        image_limit=config.image_limit(disk or 0),
        cpus=cpus.usable,
        nodes=cpus.nodes,
        uplink=uplink.interface,
        problems=(
            *(Problem(fault.reason, path=fault.path, source="capacity", severity="warning") for fault in tree.faults),
            *notes,
        ),
    )


def _disk(tree: Tree, config: CapacityConfig) -> int | None:
    if config.disk is not None:
        return config.disk
    if config.data_dir is None:
        return None
    try:
        return file_system_size(config.data_dir)
    except OSError as error:
        raise CapacityError(f"discover disk: {config.data_dir}: {error.strerror or error}") from None
