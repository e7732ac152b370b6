"""Hosts, machines and stores as the tests of host capacity need them: by what matters to the test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from devalloc.inventory.capacity import Capacity, CapacityConfig, HostCapacity, parse_bandwidth, parse_ratio, parse_size
from devalloc.inventory.capacity.config import DEFAULT_DISK_IO
from devalloc.inventory.capacity.machines import MachineUsage
from devalloc.inventory.capacity.status import DiskUsageSources


def host(
    *,
    cpu: int = 16,
    memory: str = "64Gi",
    disk: str | None = None,
    network: str | None = None,
    disk_io: str | None = None,
    ratios: dict[str, str] | None = None,
    config: CapacityConfig | None = None,
) -> HostCapacity:
    """A host with so many CPUs, and limits as they are configured; what is left out is not known."""
    if cpu > 1 << 16:
        raise ValueError(f"no host has {cpu} CPUs")
    config = config or CapacityConfig(**{f"oversub_{name}": parse_ratio(text) for name, text in (ratios or {}).items()})

    def capacity(resource: Any, amount: int | None, otherwise: Any = "unknown", instead: int = 0) -> Capacity:
        origin = "configured" if amount is not None else otherwise
        return Capacity(resource, instead if amount is None else amount, config.ratio(resource), origin)

    size = parse_size(disk) if disk else None
    return HostCapacity(
        cpu=Capacity("cpu", 1000 * cpu, config.ratio("cpu"), "detected"),
        memory=Capacity("memory", parse_size(memory), config.ratio("memory"), "detected"),
        disk=capacity("disk", size),
        network=capacity("network", parse_bandwidth(network) if network else None),
        disk_io=capacity("disk_io", parse_bandwidth(disk_io) if disk_io else None, "assumed", DEFAULT_DISK_IO),
        image_limit=config.image_limit(size or 0),
        cpus=frozenset(range(cpu)),
        nodes=(),
        uplink=None,
    )


def machine(cpu: float = 0, id: str | None = None, state: str = "Running", **amounts: int) -> MachineUsage:
    """A machine with so many CPUs."""
    name = id or f"machine-{next(_numbers)}"
    return MachineUsage(id=name, name=name, state=state, cpu=int(1000 * cpu), **amounts)


_numbers = iter(range(1 << 60))


def stores(**parts: str) -> DiskUsageSources:
    """Stores that hold so much, or, for ``fails``, cannot be asked."""
    return DiskUsageSources(**{name: _disk_reader(text) for name, text in parts.items()})


def _disk_reader(text: str) -> Callable[[], int]:
    def ask() -> int:
        if text == "fails":
            raise OSError("the disk does not answer")
        return parse_size(text)

    return ask
