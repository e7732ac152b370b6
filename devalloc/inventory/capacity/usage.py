"""What of a host is taken: sums over its machines, and what lies on its disk whether or not a machine runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import NamedTuple

from devalloc.inventory.capacity.machines import MachineUse
from devalloc.inventory.capacity.resource import RESOURCES, Resource


class UsageUnknown(RuntimeError):
    """Something that counts could not be asked. The message says what, and why."""


def _nothing() -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Stores:
    """Who to ask for the bytes on disk that belong to no machine. Each may raise whatever it likes."""

    images: Callable[[], int] = _nothing
    """Root file systems of all images."""
    cache: Callable[[], int] = _nothing
    """Layers that images are made of."""
    volumes: Callable[[], int] = _nothing
    """All volumes, attached or not."""


_ASKED = {"images": "total image bytes", "cache": "total OCI cache bytes", "volumes": "total volume bytes"}


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


class Amounts(NamedTuple):
    """One amount of each resource, in its unit, in the order of RESOURCES."""

    cpu: int = 0
    memory: int = 0
    disk: int = 0
    network: int = 0
    disk_io: int = 0

    def of(self, resource: Resource) -> int:
        return self[RESOURCES.index(resource)]

    def most(self, other: Amounts) -> Amounts:
        """The larger of each."""
        return Amounts(*map(max, self, other))


NOTHING = Amounts()


def taken_by(machine: MachineUse) -> Amounts:
    """What a machine takes, none of it unless it is active."""
    if not machine.is_active:
        return NOTHING
    return Amounts(machine.cpu, machine.memory, machine.disk, machine.network, machine.disk_io)


def total(amounts: Iterable[Amounts]) -> Amounts:
    """The sum of each."""
    return Amounts(*map(sum, zip(*amounts, strict=True)))


def breakdown(machines: Iterable[MachineUse], stores: Stores) -> tuple[DiskBreakdown, list[str]]:
    """What takes the disk, and what could not be asked: that part is 0 then."""
    parts, failures = dict[str, int](), list[str]()
    for part in fields(stores):
        try:
            parts[part.name] = _asked(part.name, getattr(stores, part.name))
        except UsageUnknown as error:
            failures.append(str(error))
    overlays = sum(machine.disk for machine in machines if machine.is_active)
    return DiskBreakdown(**parts, overlays=overlays), failures


def stored(stores: Stores) -> int:
    """Bytes of images, cache and volumes. Raises UsageUnknown when one of them cannot be told: none is taken for 0."""
    return sum(_asked(part.name, getattr(stores, part.name)) for part in fields(stores))


def _asked(name: str, ask: Callable[[], int]) -> int:
    try:
        amount = ask()
    except Exception as error:
        raise UsageUnknown(f"{_ASKED[name]}: {error}") from error
    if amount < 0:
        raise UsageUnknown(f"{_ASKED[name]}: {amount} is no number of bytes")
    return amount


def listed_by(machines: Callable[[], Iterable[MachineUse]]) -> list[MachineUse]:
    """The machines. Raises UsageUnknown."""
    try:
        return list(machines())
    except Exception as error:
        raise UsageUnknown(f"list machine allocations: {error}") from error
