"""The resources of a host, and how much of one may be promised to machines."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

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
