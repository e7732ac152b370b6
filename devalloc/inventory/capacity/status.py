"""The status of a host: what there is of each resource, may be promised, is promised and is left; and who has it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from devalloc.inventory.capacity.gpus import GpuProfile, GpuStatus, WholeGpu
from devalloc.inventory.capacity.host import HostCapacity
from devalloc.inventory.capacity.machines import MachineUse
from devalloc.inventory.capacity.resource import MILLI, RESOURCES, Capacity, Resource, resource_named
from devalloc.inventory.capacity.usage import DiskBreakdown, Stores, UsageUnknown, breakdown, listed_by, taken_by, total

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

    def to_dict(self) -> Object:
        """JSON; CPUs as a number of CPUs."""
        found, amount = self.capacity, amounts_of(self.capacity.resource)
        return {
            "type": found.resource,
            "capacity": amount(found.capacity),
            "effective_limit": amount(found.effective_limit),
            "allocated": amount(self.allocated),
            "available": amount(self.available),
            "oversub_ratio": float(found.ratio),
            "source": found.source,
        }


@dataclass(frozen=True, slots=True)
class HostStatus:
    """All of a host's resources, and who has what of them."""

    host: HostCapacity
    resources: dict[Resource, ResourceStatus]
    disk: DiskBreakdown
    gpu: GpuStatus | None
    machines: tuple[MachineUse, ...]
    """The active ones, in the order in which they were listed."""
    problems: tuple[str, ...] = ()
    """What could not be asked, and counts as nothing here."""
    counts_content: bool = True
    """Whether anybody counted images, their cache and volumes; else they are 0 in ``disk``, and not known."""

    def to_dict(self) -> Object:
        """JSON. What is beyond the five resources, ``disk_breakdown``, ``gpu`` and ``allocations`` stands last."""
        images = self.disk.images + self.disk.cache
        uncounted = {} if self.counts_content else {"counted": False}
        found: Object = {resource: self.resources[resource].to_dict() for resource in RESOURCES}
        found["disk_breakdown"] = {
            "images_bytes": self.disk.images,
            "oci_cache_bytes": self.disk.cache,
            "volumes_bytes": self.disk.volumes,
            "overlays_bytes": self.disk.overlays,
            **uncounted,
        }
        if self.gpu is not None:
            found["gpu"] = gpu_dict(self.gpu)
        found["allocations"] = [_allocation(machine) for machine in self.machines]
        limit = self.host.image_limit
        found["image_storage"] = {"limit": limit, "allocated": images, "available": max(0, limit - images)} | uncounted
        found["numa_nodes"] = [
            {"id": node.id, "cpus": sorted(node.cpus), "memory_bytes": node.memory} for node in self.host.nodes
        ]
        found["uplink"] = self.host.uplink
        found["problems"] = [*(str(problem) for problem in self.host.problems), *self.problems]
        return found


def resource_status(
    host: HostCapacity, resource: str, machines: Iterable[MachineUse], stores: Stores
) -> ResourceStatus:
    """One resource by its name. Raises UnknownResource, and UsageUnknown when what counts cannot be told."""
    known, listed = resource_named(resource), list(machines)
    allocated = total(map(taken_by, listed)).of(known)
    if known == "disk":
        content, failures = breakdown(listed, stores)
        if failures:
            raise UsageUnknown(f"get allocated disk: {'; '.join(failures)}")
        allocated = content.total
    return ResourceStatus(host.of(known), allocated)


def host_status(
    host: HostCapacity,
    machines: Callable[[], Iterable[MachineUse]] = tuple,
    stores: Stores | None = None,
    gpus: Callable[[], GpuStatus | None] = lambda: None,
) -> HostStatus:
    """The status of a host with what there is on it now. Reservations have no part in it.

    Raises UsageUnknown when the machines cannot be listed. What of the disk's content, or of the GPUs, cannot be asked
    is left out, with a problem.
    """
    try:
        listed = listed_by(machines)
    except UsageUnknown as error:
        raise UsageUnknown(f"get allocated {RESOURCES[0]}: {error}") from error
    taken = total(map(taken_by, listed))
    content, problems = breakdown(listed, stores or Stores())
    try:
        gpu = gpus()
    except Exception as error:
        gpu, problems = None, [*problems, f"GPUs: {error}"]
    resources = {
        resource: ResourceStatus(host.of(resource), content.total if resource == "disk" else taken.of(resource))
        for resource in RESOURCES
    }
    active = tuple(machine for machine in listed if machine.is_active)
    return HostStatus(host, resources, content, gpu, active, tuple(problems), stores is not None)


def gpu_dict(gpu: GpuStatus) -> Object:
    """JSON of the GPUs."""
    found: Object = {"mode": gpu.mode, "total_slots": gpu.total, "used_slots": gpu.used}
    found["allocatable_slots"] = gpu.allocatable
    if gpu.mode == "vgpu":
        found["quarantined_slots"] = gpu.quarantined
    if gpu.disabled:
        found["placement_disabled_reason"] = gpu.disabled
    if gpu.profiles:
        found["profiles"] = [_profile(profile) for profile in gpu.profiles]
    if gpu.devices:
        found["devices"] = [_device(device) for device in gpu.devices]
    return found


def amounts_of(resource: Resource) -> Callable[[int], int | float]:
    """How an amount of a resource is written in JSON."""
    return cpus if resource == "cpu" else int


def cpus(milli: int) -> int | float:
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
    found: Object = {"name": device.name, "model": device.model, "available": device.available}
    return found if device.available else {**found, "reason": device.reason}


def _allocation(machine: MachineUse) -> Object:
    return {
        "instance_id": machine.id,
        "instance_name": machine.name,
        "cpu": cpus(machine.cpu),
        "memory_bytes": machine.memory,
        "disk_bytes": machine.overlay + machine.volumes,
        "network_download_bps": machine.download,
        "network_upload_bps": machine.upload,
        "disk_io_bps": machine.disk_io,
    }
