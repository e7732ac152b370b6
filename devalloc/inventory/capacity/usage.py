"""Resource usage of a host: sums over its machines, and what its disk contains whether or not a machine runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import NamedTuple

from devalloc.inventory.capacity.machines import MachineUsage
from devalloc.inventory.capacity.resource import RESOURCES, Resource


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
    return ResourceAmounts(machine.cpu, machine.memory, machine.disk, machine.network, machine.disk_io)


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
