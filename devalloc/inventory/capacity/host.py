"""What a host has for machines, found or configured: CPUs, memory, disk and bandwidth, and how much may be promised.

The limits of this process's cgroup do not bind machines, which get cgroups of their own. They are reported because they
would bind them if that fails, and because the admin who set them may have meant machines, too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from devalloc.api.host_pool_names import (
    CLASS,
    CPU,
    DISK,
    DISK_IO,
    DRIVER,
    FOR_OTHERS,
    FUNCTION_COMPUTE,
    FUNCTION_IO,
    KIND,
    LIVE_MIGRATION,
    LIVE_MIGRATION_ON,
    MEMORY,
    NETWORK,
    SHARED_STORAGE,
    SHARED_STORAGE_SEPARATOR,
    SUFFIX,
)
from devalloc.api.meta import ONLY_CLASS
from devalloc.api.object_meta import ObjectMeta
from devalloc.api.pool import Attribute, Device, DevicePool, DevicePoolSpec, ResourceCapacity
from devalloc.api.problems import Problem
from devalloc.api.quantity import NANO, Format, Quantity
from devalloc.inventory.capacity.config import (
    DEFAULT_DISK_IO,
    HUGE_PAGES,
    MILLI,
    Capacity,
    CapacityConfig,
    Resource,
    Source,
    resource_named,
)
from devalloc.inventory.capacity.cpus import NumaNode, read_cpus, read_huge_pages
from devalloc.inventory.pools import node_scoped_name
from devalloc.inventory.sysfs import Folder, Tree


def file_system_size(folder: Path) -> int:
    """Bytes of the file system that a folder is on, or will be on once it is made: all of them, not the free ones.

    Raises OSError with the folder's name.
    """
    place = folder.absolute()
    while True:
        try:
            status = os.statvfs(place)
        except (FileNotFoundError, NotADirectoryError):
            if place == place.parent:
                raise
            place = place.parent
        else:
            return status.f_blocks * status.f_frsize


_KIB = 1024
_DIGITS = re.compile(r"[0-9]{1,16}", re.ASCII)


class MemoryUnknown(ValueError):
    """The host's memory cannot be told. The message says which file is wrong, and how."""


def read_memory(tree: Tree, nodes: Sequence[NumaNode]) -> tuple[int, tuple[str, ...]]:
    """Bytes for machines, and what an admin should know of them. Without /proc they are those of the NUMA nodes.

    Raises MemoryUnknown.
    """
    text = tree.proc.text("meminfo") if tree.proc else None
    on_nodes = sum(node.memory for node in nodes)
    if text is None:
        if on_nodes:
            return on_nodes, ()
        raise MemoryUnknown("cannot read the host's memory: there is no readable /proc/meminfo")
    total = parse_mem_total(text)
    # The two differ by what the kernel keeps to itself, unless this process, and so its machines, may not have the
    # memory of some nodes.
    if on_nodes < total and any(node.forbidden for node in nodes):
        return on_nodes, (f"this process, and so its machines, may use {on_nodes} of {total} bytes of memory",)
    if on_nodes and abs(total - on_nodes) > total // 16:
        return total, (f"/proc/meminfo reports {total} bytes of memory, its NUMA nodes of {on_nodes}",)
    return total, ()


def parse_mem_total(meminfo: str) -> int:
    """Bytes by the text of /proc/meminfo. Raises MemoryUnknown."""
    for line in meminfo.splitlines():
        words = line.split()
        if words and words[0] == "MemTotal:":
            amount = words[1] if len(words) > 1 else ""
            if _DIGITS.fullmatch(amount) is None:
                raise MemoryUnknown(f"parse MemTotal: {amount[:20]!r} in /proc/meminfo is not a number")
            return int(amount) * _KIB
    raise MemoryUnknown("MemTotal not found in /proc/meminfo")


_BITS_OF_MEGABIT = 10**6
_INTERFACE = re.compile(r"[^/\s\x00]{1,15}", re.ASCII)
_MAX_SPEED = 2**32 - 1
"""-1 as an unsigned number, which some drivers give for "unknown"."""
_DEFAULT_ROUTE = "00000000"
_REJECT_INTERFACE = "*"
"""The interface of a route that only refuses."""


@dataclass(frozen=True, slots=True)
class Uplink:
    """Where machines reach the network."""

    interface: str | None
    """None where there is no IPv4 default route."""
    bandwidth: int | None
    """Bytes per second; None where nothing tells."""
    reason: str = ""
    """Why the bandwidth is not known."""


def read_uplink(tree: Tree, configured: str | None = None) -> Uplink:
    """The configured interface, or that of the first IPv4 default route, and its speed."""
    name = configured or default_interface(tree)
    if name is None:
        return Uplink(None, None, "there is no IPv4 default route; name the interface with --uplink")
    if _INTERFACE.fullmatch(name) is None or name in (".", ".."):
        return Uplink(None, None, f"invalid interface name {name[:40]!r}")
    place = tree.sys.folder("class", "net", name) if tree.sys else None
    if place is None:
        return Uplink(name, None, f"there is no interface {name}")
    speed = place.number("speed")
    if speed is None or not 0 < speed < _MAX_SPEED:
        problem = "does not report its speed" if speed is None else f"has the speed {speed} (no carrier, or virtual)"
        return Uplink(name, None, f"{name} {problem}")
    return Uplink(name, speed * _BITS_OF_MEGABIT // 8)


def default_interface(tree: Tree) -> str | None:
    """The interface of the first IPv4 default route, in the kernel's order: the least metric first."""
    place = tree.proc.folder("net") if tree.proc else None
    for line in ((place and place.text("route")) or "").splitlines()[1:]:
        row = line.split()
        if len(row) >= 8 and row[1] == _DEFAULT_ROUTE == row[7] and row[0] != _REJECT_INTERFACE:
            return row[0]
    return None


_MAX = re.compile(r"([0-9]{1,15})\s+([0-9]{1,15})", re.ASCII)
_UNLIMITED = 1 << 60
"""What version 1 shows for "no limit" is a little below 2^63."""


def own_limits(tree: Tree) -> list[str]:
    """A sentence for each limit of this process's cgroup; none in a recording without /proc."""
    place = tree.proc.folder("self") if tree.proc else None
    top = tree.sys.folder("fs", "cgroup") if tree.sys else None
    cpus: list[float] = []
    memory: list[int] = []
    for folder in _folders((place and place.text("cgroup")) or "", top):
        cpus += _quota(folder)
        memory += _memory(folder)
    sentences = []
    if cpus:
        sentences.append(f"this process's cgroup has a quota of {min(cpus):g} CPUs, a limit not counted for machines")
    if memory:
        sentences.append(f"this process's cgroup has {min(memory)} bytes of memory, a limit not counted for machines")
    return sentences


def _folders(text: str, top: Folder | None) -> Iterator[Folder]:
    """The cgroups that the process is in, each with those above it: ``<id>:<controllers>:<path>`` a line."""
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3 or top is None:
            continue
        controllers = parts[1].split(",")
        mounts = [top, top.folder("unified")] if parts[1] == "" else [top.folder(name) for name in controllers[:1]]
        names = [name for name in parts[2].split("/") if name and name not in (".", "..")]
        for mount in filter(None, mounts):
            for depth in range(len(names) + 1):
                folder = mount.folder(*names[:depth]) if depth else mount
                if folder is not None and (parts[1] == "" or {"cpu", "memory"} & set(controllers)):
                    yield folder


def _quota(folder: Folder) -> Iterator[float]:
    if folder.has("cpu.max"):
        match = _MAX.fullmatch(folder.text("cpu.max") or "")
        if match and int(match[2]):
            yield int(match[1]) / int(match[2])
    elif folder.has("cpu.cfs_quota_us"):
        quota, period = folder.number("cpu.cfs_quota_us"), folder.number("cpu.cfs_period_us")
        if quota and period and quota > 0 and period > 0:
            yield quota / period


def _memory(folder: Folder) -> Iterator[int]:
    for name in ("memory.max", "memory.limit_in_bytes"):
        text = folder.text(name) if folder.has(name) else None
        if text is not None and text.isascii() and text.isdigit() and len(text) < 20 and int(text) < _UNLIMITED:
            yield int(text)


_DEFAULT = CapacityConfig()


class CapacityError(ValueError):
    """A capacity without which a host cannot be used is not known. The message says what, where, and what to do."""


@dataclass(frozen=True, slots=True)
class HostCapacity:
    """What a host has for machines."""

    cpu: Capacity
    """In thousandths of a CPU."""
    memory: Capacity
    """In bytes, of ordinary pages."""
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
    missing: tuple[str, ...] = ()
    """Why CPUs, memory or disk are not known; their capacities are 0 then, and unknown."""
    data_dir: Path | None = None
    """Where machines' disks and images lie; None: nowhere on this host."""
    huge_pages: tuple[Capacity, ...] = ()
    """In bytes, of those sizes of huge pages of which there are some."""

    def of(self, resource: str) -> Capacity:
        """The capacity of a resource by its name. Raises UnknownResource."""
        name = resource_named(resource)
        if name in HUGE_PAGES:
            none = Capacity(name, 0, Fraction(1), "detected")
            return next((pages for pages in self.huge_pages if pages.resource == name), none)
        capacity: Capacity = getattr(self, name)
        return capacity


def discover_capacity(root: Path | Tree = Path("/"), config: CapacityConfig = _DEFAULT) -> HostCapacity:
    """What the host has whose files are below ``root``, and what may be promised of it.

    Reads only. Raises CapacityError when CPUs or memory cannot be told, or the data folder's file system. A network
    of unknown speed has the capacity 0, and so has the disk without a data folder; a problem says why.
    """
    host = read_capacity(root, config)
    if host.missing:
        raise CapacityError(host.missing[0])
    return host


def read_capacity(root: Path | Tree = Path("/"), config: CapacityConfig = _DEFAULT) -> HostCapacity:
    """As ``discover_capacity``, but what cannot be told has the capacity 0, and ``missing`` and a problem say why."""
    tree = root.again() if isinstance(root, Tree) else Tree(root)
    notes: list[Problem] = []
    missing: list[str] = []

    def lacks(message: str, resource: Resource) -> None:
        missing.append(message)
        note(message, resource)

    def note(message: str, resource: Resource) -> None:
        notes.append(Problem(message, path=resource, source="capacity", severity="warning"))

    def capacity(resource: Resource, amount: int | None, source: Source) -> Capacity:
        return Capacity(resource, amount or 0, config.ratio(resource), "unknown" if amount is None else source)

    cpus = read_cpus(tree)
    if cpus.count is None:
        lacks(f"discover CPU: {'; '.join(cpus.notes) or 'neither /sys nor /proc lists any'}", "cpu")
    else:
        for text in cpus.notes:
            note(text, "cpu")
    memory, memory_notes = None, tuple[str, ...]()
    try:
        memory, memory_notes = read_memory(tree, cpus.nodes)
    except MemoryUnknown as error:
        lacks(f"discover memory: {error}", "memory")
    huge = _huge_pages(tree, cpus.nodes)
    if memory is not None:
        memory = max(0, memory - sum(huge.values()))
    for text in (*memory_notes, *_huge_page_notes(huge), *own_limits(tree)):
        note(text, "memory" if "memory" in text else "cpu")
    disk = None
    try:
        disk = _disk(config)
    except OSError as error:
        lacks(f"discover disk: {config.data_dir}: {error.strerror or error}", "disk")
    if disk is None and config.data_dir is None:
        note("its size is unknown: name a folder (--data-dir), or configure a limit (--disk-limit)", "disk")
    uplink = read_uplink(tree, config.uplink)
    if uplink.bandwidth is None and config.network is None:
        note(
            f"its bandwidth is unknown ({uplink.reason}), so none can be promised: configure a limit (--network-limit)",
            "network",
        )
    bandwidth = uplink.bandwidth if config.network is None else config.network
    return HostCapacity(
        cpu=capacity("cpu", None if cpus.count is None else cpus.count * MILLI, "detected"),
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
        missing=tuple(missing),
        data_dir=config.data_dir,
        huge_pages=tuple(capacity(name, huge[size], "detected") for name, size in HUGE_PAGES.items() if huge.get(size)),
    )


def _huge_pages(tree: Tree, nodes: Sequence[NumaNode]) -> dict[int, int]:
    """Bytes in huge pages by the size of a page, on all NUMA nodes, or on a host without any."""
    if not nodes:
        place = tree.sys.folder("kernel", "mm") if tree.sys else None
        return {} if place is None else read_huge_pages(place)
    sizes = {size for node in nodes for size in node.huge_pages}
    return {size: sum(node.huge_pages.get(size, 0) for node in nodes) for size in sorted(sizes)}


def _huge_page_notes(huge: Mapping[int, int]) -> list[str]:
    others = {size: count for size, count in huge.items() if size not in HUGE_PAGES.values()}
    return [
        f"{count} bytes of memory are in huge pages of {size} bytes, which machines cannot use"
        for size, count in others.items()
    ]


def _disk(config: CapacityConfig) -> int | None:
    if config.disk is not None:
        return config.disk
    return None if config.data_dir is None else file_system_size(config.data_dir)


_MILLI = NANO // 1000
_MEMORY_BLOCK = 2 << 20
"""Bytes in which machines have memory."""
_STORED_STEP = 64 << 20


def host_pool_name(node_name: str) -> str:
    """``<node>-host``."""
    return node_scoped_name(node_name, SUFFIX)


def host_pool(
    capacity: HostCapacity,
    node_name: str,
    stored: int = 0,
    shared_storage: Sequence[str] = (),
    *,
    live_migration: bool = False,
    for_others: tuple[int, int] = (0, 0),
) -> DevicePool:
    """The pool of a node with this capacity, so that the solver places machines as it places claims. ``stored``: bytes
    of the disk that images, their cache and volumes take. ``shared_storage``: folders that are the same on all nodes
    that name them. ``live_migration``: whether the node receives machines that move to it while they run.
    ``for_others``: thousandths of a CPU and bytes that placement leaves to machines of others.

    A device for each NUMA node has its part of the CPUs and of the memory; machines take shares of them. If a machine
    does not mind, its share may lie on several. What belongs to no NUMA node is one more device. The amounts are the
    effective limits: oversubscription is in them.
    """
    common = [Attribute.of("kind", KIND), Attribute.of(ONLY_CLASS, CLASS)]
    if shared_storage:
        common.append(Attribute.of(SHARED_STORAGE, SHARED_STORAGE_SEPARATOR.join(sorted({*shared_storage}))))
    if live_migration:
        common.append(Attribute.of(LIVE_MIGRATION, LIVE_MIGRATION_ON))
    devices = [*_compute(capacity, for_others), _io(capacity, stored)]
    return DevicePool(
        metadata=ObjectMeta(name=host_pool_name(node_name)),
        spec=DevicePoolSpec(node_name=node_name, driver=DRIVER, attributes=common, devices=devices),
    )


def _compute(capacity: HostCapacity, for_others: tuple[int, int]) -> Iterator[Device]:
    nodes = [node for node in capacity.nodes if node.cpus or node.memory]
    cpus, memories = [len(node.cpus) for node in nodes], [node.ordinary_memory for node in nodes]
    limits = capacity.cpu.effective_limit, capacity.memory.effective_limit
    left = min(for_others[0], limits[0]), min(for_others[1], limits[1])
    function = Attribute.of("function", FUNCTION_COMPUTE)
    if not sum(cpus) or not sum(memories):  # a host that tells of no NUMA nodes, or not what they have
        pages = [_page_amount(each.resource, each.effective_limit) for each in capacity.huge_pages]
        amounts = _amounts(limits[0] - left[0], limits[1] - left[1])
        yield Device(
            name=FUNCTION_COMPUTE, attributes=[function, *_left_to_others(*left)], resources=[*amounts, *pages]
        )
        return
    for node, cpu, memory, others_cpu, others_memory in zip(
        nodes,
        _split_by_weight(limits[0], cpus),
        _split_by_weight(limits[1], memories),
        _split_by_weight(left[0], cpus),
        _split_by_weight(left[1], memories),
        strict=True,
    ):
        attributes = [function, Attribute.of("numa", node.id), *_left_to_others(others_cpu, others_memory)]
        pages = [_page_amount(name, total) for name, size in HUGE_PAGES.items() if (total := node.huge_pages.get(size))]
        amounts = _amounts(max(0, cpu - others_cpu), max(0, memory - others_memory))
        yield Device(name=f"numa{node.id}", attributes=attributes, resources=[*amounts, *pages])


def _left_to_others(cpu: int, memory: int) -> list[Attribute]:
    amounts = {CPU: Quantity(cpu * _MILLI), MEMORY: Quantity(memory * NANO, Format.BINARY_SI)}
    return [Attribute.of(FOR_OTHERS[name], str(each)) for name, each in amounts.items() if each.nano]


def _io(capacity: HostCapacity, stored: int) -> Device:
    # In steps, so that a file that grows does not have the pool written each time.
    taken = -(-stored // _STORED_STEP) * _STORED_STEP
    amounts = {
        NETWORK: capacity.network.effective_limit,
        DISK_IO: capacity.disk_io.effective_limit,
        DISK: max(0, capacity.disk.effective_limit - taken),
    }
    resources = [ResourceCapacity(name=name, capacity=Quantity(limit * NANO)) for name, limit in amounts.items()]
    return Device(name=FUNCTION_IO, attributes=[Attribute.of("function", FUNCTION_IO)], resources=resources)


def _amounts(cpu: int, memory: int) -> list[ResourceCapacity]:
    """Thousandths of a CPU, and bytes."""
    return [
        ResourceCapacity(name=CPU, capacity=Quantity(cpu * _MILLI), block_size=Quantity(_MILLI)),
        ResourceCapacity(
            name=MEMORY,
            capacity=Quantity(memory * NANO, Format.BINARY_SI),
            block_size=Quantity(_MEMORY_BLOCK * NANO, Format.BINARY_SI),
        ),
    ]


def _page_amount(resource: Resource, size: int) -> ResourceCapacity:
    """Bytes in huge pages, given out in whole pages."""
    return ResourceCapacity(
        name=resource,
        capacity=Quantity(size * NANO, Format.BINARY_SI),
        block_size=Quantity(HUGE_PAGES[resource] * NANO, Format.BINARY_SI),
    )


def _split_by_weight(limit: int, weights: Sequence[int]) -> Iterator[int]:
    """The limit by weights; the parts sum up to it."""
    total, before, given = sum(weights), 0, 0
    for weight in weights:
        before += weight
        upto = limit * before // total
        yield upto - given
        given = upto
