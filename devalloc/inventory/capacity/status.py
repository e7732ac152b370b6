"""The status of a host: what there is of each resource, may be promised, is promised and is left; and who has it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from devalloc.inventory.capacity.config import HUGE_PAGES, MILLI, RESOURCES, Capacity, Resource
from devalloc.inventory.capacity.gpus import GpuProfile, GpuStatus, WholeGpu
from devalloc.inventory.capacity.host import HostCapacity
from devalloc.inventory.capacity.machines import MachineUsage


class UsageUnknown(RuntimeError):
    """Something that counts could not be asked. The message says what, and why."""


def _zero_bytes() -> int:
    return 0


@dataclass(frozen=True, slots=True)
class DiskUsageSources:
    """Who to ask for the bytes on disk that belong to no machine. Each may raise whatever it likes."""

    images: Callable[[], int] = _zero_bytes
    """Root file systems of all images."""
    cache: Callable[[], int] = _zero_bytes
    """Layers that images are made of."""
    volumes: Callable[[], int] = _zero_bytes
    """All volumes, attached or not."""


_SOURCE_NAMES = {"images": "total image bytes", "cache": "total OCI cache bytes", "volumes": "total volume bytes"}


@dataclass(frozen=True, slots=True)
class DiskBreakdown:
    """What takes the disk, in bytes."""

    images: int = 0
    cache: int = 0
    volumes: int = 0
    overlays: int = 0
    """What active machines' disks and volumes may take beyond the images and volumes below them."""

    @property
    def total(self) -> int:
        return self.images + self.cache + self.volumes + self.overlays


class ResourceAmounts(NamedTuple):
    """One amount of each resource, in its unit, in the order of RESOURCES."""

    cpu: int = 0
    memory: int = 0
    disk: int = 0
    network: int = 0
    disk_io: int = 0
    hugepages_2mi: int = 0
    hugepages_1gi: int = 0

    def of(self, resource: Resource) -> int:
        return self[RESOURCES.index(resource)]

    def most(self, other: ResourceAmounts) -> ResourceAmounts:
        """The larger of each."""
        return ResourceAmounts(*map(max, self, other))


NO_AMOUNTS = ResourceAmounts()


def machine_amounts(machine: MachineUsage) -> ResourceAmounts:
    """What a machine takes, none of it unless it is active."""
    if not machine.is_active:
        return NO_AMOUNTS
    memory, *pages = (machine.memory if machine.pages == name else 0 for name in ("memory", *HUGE_PAGES))
    return ResourceAmounts(machine.cpu, memory, machine.disk, machine.network, machine.disk_io, *pages)


def sum_amounts(amounts: Iterable[ResourceAmounts]) -> ResourceAmounts:
    """The sum of each."""
    return ResourceAmounts(*map(sum, zip(*amounts, strict=True)))


def disk_breakdown(machines: Iterable[MachineUsage], stores: DiskUsageSources) -> tuple[DiskBreakdown, list[str]]:
    """What takes the disk, and what could not be asked: that part is 0 then."""
    parts, failures = dict[str, int](), list[str]()
    for part in fields(stores):
        try:
            parts[part.name] = _query_source(part.name, getattr(stores, part.name))
        except UsageUnknown as error:
            failures.append(str(error))
    overlays = sum(machine.disk for machine in machines if machine.is_active)
    return DiskBreakdown(**parts, overlays=overlays), failures


def stored_bytes(stores: DiskUsageSources) -> int:
    """Bytes of images, cache and volumes. Raises UsageUnknown when one of them cannot be told: none is taken for 0."""
    return sum(_query_source(part.name, getattr(stores, part.name)) for part in fields(stores))


def _query_source(name: str, ask: Callable[[], int]) -> int:
    try:
        amount = ask()
    except Exception as error:
        raise UsageUnknown(f"{_SOURCE_NAMES[name]}: {error}") from error
    if amount < 0:
        raise UsageUnknown(f"{_SOURCE_NAMES[name]}: {amount} is not a number of bytes")
    return amount


def list_machines(machines: Callable[[], Iterable[MachineUsage]]) -> list[MachineUsage]:
    """The machines. Raises UsageUnknown."""
    try:
        return list(machines())
    except Exception as error:
        raise UsageUnknown(f"list machine allocations: {error}") from error


_MIB = 1 << 20
Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ResourceStatus:
    """One resource of a host, in its unit."""

    capacity: Capacity
    allocated: int
    """What active machines were promised; it may be beyond the limit."""

    @property
    def available(self) -> int:
        return max(0, self.capacity.effective_limit - self.allocated)

    @property
    def is_there(self) -> bool:
        """Whether the host has any of it, or a machine was promised some."""
        return self.capacity.capacity > 0 or self.allocated > 0

    def to_dict(self) -> Object:
        """JSON; CPUs as a number of CPUs."""
        capacity, amount = self.capacity, amount_formatter(self.capacity.resource)
        return {
            "type": capacity.resource,
            "capacity": amount(capacity.capacity),
            "effective_limit": amount(capacity.effective_limit),
            "allocated": amount(self.allocated),
            "available": amount(self.available),
            "oversub_ratio": float(capacity.ratio),
            "source": capacity.source,
        }


@dataclass(frozen=True, slots=True)
class HostStatus:
    """All of a host's resources, and who has what of them."""

    host: HostCapacity
    resources: dict[Resource, ResourceStatus]
    disk: DiskBreakdown
    gpu: GpuStatus | None
    machines: tuple[MachineUsage, ...]
    """The active ones, in the order in which they were listed."""
    problems: tuple[str, ...] = ()
    """What could not be asked, and counts as nothing here."""
    counts_content: bool = True
    """Whether images, their cache and volumes were counted; else they are 0 in ``disk``, and unknown."""
    uncounted: tuple[str, ...] = ()
    """Which of these could not be asked; they are among the problems, too."""

    def to_dict(self) -> Object:
        """JSON. What is beyond the five resources, ``disk_breakdown``, ``gpu`` and ``allocations`` stands last."""
        images = self.disk.images + self.disk.cache
        uncounted = {} if self.counts_content else {"counted": False}
        content: Object = {
            resource: self.resources[resource].to_dict() for resource in RESOURCES if resource not in HUGE_PAGES
        }
        content["disk_breakdown"] = {
            "images_bytes": self.disk.images,
            "oci_cache_bytes": self.disk.cache,
            "volumes_bytes": self.disk.volumes,
            "overlays_bytes": self.disk.overlays,
            **uncounted,
        }
        if self.gpu is not None:
            content["gpu"] = gpu_json(self.gpu)
        content["allocations"] = [_allocation(machine) for machine in self.machines]
        limit = self.host.image_limit
        content["image_storage"] = {
            "limit": limit,
            "allocated": images,
            "available": max(0, limit - images),
        } | uncounted
        content["numa_nodes"] = [
            {"id": node.id, "cpus": sorted(node.cpus), "memory_bytes": node.memory}
            | ({"huge_pages_bytes": {str(size): count for size, count in pages.items()}} if pages else {})
            for node in self.host.nodes
            for pages in [node.huge_pages]
        ]
        if huge := [self.resources[name].to_dict() for name in HUGE_PAGES if self.resources[name].is_there]:
            content["huge_pages"] = huge
        content["uplink"] = self.host.uplink
        content["problems"] = [*(str(problem) for problem in self.host.problems), *self.problems]
        return content


def host_status(
    host: HostCapacity,
    machines: Callable[[], Iterable[MachineUsage]] = tuple,
    stores: DiskUsageSources | None = None,
    gpus: Callable[[], GpuStatus | None] = lambda: None,
) -> HostStatus:
    """The status of a host with what there is on it now. Reservations have no part in it.

    Raises UsageUnknown when the machines cannot be listed. What of the disk's content, or of the GPUs, cannot be asked
    is left out, with a problem.
    """
    try:
        listed = list_machines(machines)
    except UsageUnknown as error:
        raise UsageUnknown(f"get allocated {RESOURCES[0]}: {error}") from error
    taken = sum_amounts(map(machine_amounts, listed))
    content, uncounted = disk_breakdown(listed, stores or DiskUsageSources())
    problems = list(uncounted)
    try:
        gpu = gpus()
    except Exception as error:
        gpu = None
        problems.append(f"GPUs: {error}")
    resources = {
        resource: ResourceStatus(host.of(resource), content.total if resource == "disk" else taken.of(resource))
        for resource in RESOURCES
    }
    active = tuple(machine for machine in listed if machine.is_active)
    is_counted = stores is not None
    return HostStatus(host, resources, content, gpu, active, tuple(problems), is_counted, tuple(uncounted))


def gpu_json(gpu: GpuStatus) -> Object:
    """JSON of the GPUs."""
    content: Object = {"mode": gpu.mode, "total_slots": gpu.total, "used_slots": gpu.used}
    content["allocatable_slots"] = gpu.allocatable
    if gpu.memory is not None:
        content["memory_bytes"] = gpu.memory.total
        content["memory_used_bytes"] = gpu.memory.used
        content["memory_available_bytes"] = gpu.memory.available
    if gpu.mode == "vgpu":
        content["quarantined_slots"] = gpu.quarantined
    if gpu.disabled:
        content["placement_disabled_reason"] = gpu.disabled
    if gpu.profiles:
        content["profiles"] = [_profile(profile) for profile in gpu.profiles]
    if gpu.devices:
        content["devices"] = [_device(device) for device in gpu.devices]
    return content


def amount_formatter(resource: Resource) -> Callable[[int], int | float]:
    """How an amount of a resource is written in JSON."""
    return cpu_number if resource == "cpu" else int


def cpu_number(milli: int) -> int | float:
    """Thousandths of a CPU as a number of CPUs."""
    return milli // MILLI if milli % MILLI == 0 else milli / MILLI


def _profile(profile: GpuProfile) -> Object:
    return {
        "id": profile.id,
        "name": profile.name,
        "framebuffer_mb": (profile.framebuffer or 0) // _MIB,
        "available": profile.available,
    }


def _device(device: WholeGpu) -> Object:
    content: Object = {"name": device.name, "model": device.model, "available": device.available}
    return content if device.available else {**content, "reason": device.reason}


def _allocation(machine: MachineUsage) -> Object:
    return {
        "instance_id": machine.id,
        "instance_name": machine.name,
        "cpu": cpu_number(machine.cpu),
        "memory_bytes": machine.memory,
        "disk_bytes": machine.overlay + machine.volumes,
        "network_download_bps": machine.download,
        "network_upload_bps": machine.upload,
        "disk_io_bps": machine.disk_io,
    }
