"""The resources of a host, and what the admin decides about them: ratios of oversubscription, and limits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Literal

from devalloc.inventory.capacity.sizes import AmountError, quote_text

Resource = Literal["cpu", "memory", "disk", "network", "disk_io"]
RESOURCES: tuple[Resource, ...] = ("cpu", "memory", "disk", "network", "disk_io")
"""In the order in which requests are validated."""
UNITS: dict[Resource, str] = {
    "cpu": "thousandths of a CPU",
    "memory": "bytes",
    "disk": "bytes",
    "network": "bytes per second",
    "disk_io": "bytes per second",
}
MILLI = 1000
"""Thousandths of a CPU in a CPU."""

Source = Literal["detected", "configured", "assumed", "unknown"]
"""``detected`` on the host; ``configured`` by the admin; ``assumed`` where it cannot be detected and a default stands
for it; ``unknown``: the capacity is 0."""


class UnknownResource(LookupError):
    """A name that is none of ``RESOURCES``."""

    def __init__(self, name: str) -> None:
        super().__init__(f"unknown resource type: {name} (there are {', '.join(RESOURCES)})")


@dataclass(frozen=True, slots=True)
class Capacity:
    """How much of one resource a host has, and how much of it may be promised."""

    resource: Resource
    capacity: int
    """What there is, in the unit of the resource: see UNITS."""
    ratio: Fraction
    """Of oversubscription: how much may be promised of each unit that there is. More than zero."""
    source: Source
    """How the capacity is known."""

    def __post_init__(self) -> None:
        if self.capacity < 0 or self.ratio <= 0:
            raise ValueError(f"{self.resource}: capacity and ratio cannot be {self.capacity} and {self.ratio}")

    @property
    def effective_limit(self) -> int:
        """The most that may be promised: capacity times ratio, rounded down; for CPUs to whole ones. Exact."""
        step = MILLI if self.resource == "cpu" else 1
        return self.capacity // step * self.ratio.numerator // self.ratio.denominator * step


def resource_named(name: str) -> Resource:
    """The resource of that name. Raises UnknownResource."""
    for resource in RESOURCES:
        if resource == name:
            return resource
    raise UnknownResource(name)


DEFAULT_RATIOS: dict[Resource, Fraction] = {
    "cpu": Fraction(4),
    "memory": Fraction(1),
    "disk": Fraction(1),
    "network": Fraction(2),
    "disk_io": Fraction(2),
}
DEFAULT_DISK_IO = 10**9
"""Bytes per second that a host is assumed to have: nothing tells what its disks can do."""
DEFAULT_IMAGE_FRACTION = Fraction(1, 5)
_RATIO = re.compile(r"[+-]?[0-9]{1,9}(?:\.[0-9]{1,9})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class CapacityConfig:
    """Settings of ``discover_capacity``. The defaults take the host as it is found."""

    ratios: Mapping[Resource, Fraction] = field(default_factory=dict)
    """By resource; DEFAULT_RATIOS where nothing is said, 1 for what is not more than zero."""
    disk: int | None = None
    """Bytes of disk for machines, instead of the size of the file system of ``data_dir``."""
    network: int | None = None
    """Bytes per second, instead of the speed of the uplink."""
    disk_io: int | None = None
    """Bytes per second of reading and writing; DEFAULT_DISK_IO where nothing is said."""
    uplink: str | None = None
    """The interface through which machines reach the network; that of the first IPv4 default route otherwise."""
    data_dir: Path | None = None
    """Where machines' disks and images lie: its file system is the disk."""
    image_fraction: Fraction = DEFAULT_IMAGE_FRACTION
    """The part of the disk that images and their cache may take; the default for what is not more than zero."""

    def __post_init__(self) -> None:
        unknown = sorted(self.ratios.keys() - set(RESOURCES))
        if unknown:
            raise ValueError(f"no such resource: {', '.join(unknown)} (there are {', '.join(RESOURCES)})")
        for name in ("disk", "network", "disk_io"):
            limit = getattr(self, name)
            if limit is not None and limit < 0:
                raise ValueError(f"the limit of {name} must not be negative, and is {limit}")

    def ratio(self, resource: str) -> Fraction:
        """The ratio of a resource; 1 for a name that is none."""
        for name, default in DEFAULT_RATIOS.items():
            if name == resource:
                ratio = self.ratios.get(name, default)
                return ratio if ratio > 0 else Fraction(1)
        return Fraction(1)

    def image_limit(self, disk: int) -> int:
        """Bytes of a disk that images and their cache may take: its part of what there is, without oversubscription."""
        part = self.image_fraction if self.image_fraction > 0 else DEFAULT_IMAGE_FRACTION
        return disk * part.numerator // part.denominator


def parse_ratio(text: str) -> Fraction:
    """A ratio or fraction by its decimal text: ``4``, ``1.5``, ``0.2``. Exact. Raises AmountError."""
    stripped = text.strip()
    if _RATIO.fullmatch(stripped) is None:
        raise AmountError(f"invalid ratio {quote_text(text)}: write a decimal number such as 4 or 1.5")
    return Fraction(stripped)
