"""Amounts of CPU and memory, and what can be done with two of them: always for each of the two by itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ResourceFlags:
    """For each resource a yes or no: whether more is asked for, or whether it grew."""

    cpu: bool = False
    memory: bool = False

    def __bool__(self) -> bool:
        return self.cpu or self.memory

    def __and__(self, other: ResourceFlags) -> ResourceFlags:
        return ResourceFlags(self.cpu and other.cpu, self.memory and other.memory)

    def __invert__(self) -> ResourceFlags:
        return ResourceFlags(not self.cpu, not self.memory)


@dataclass(frozen=True, slots=True)
class Resources:
    """CPU and memory of one machine, or of a part or many of them. Never negative."""

    cpu: int
    """Thousandths of a CPU."""
    memory: int
    """Bytes."""

    def __post_init__(self) -> None:
        if self.cpu < 0 or self.memory < 0:
            raise ValueError(f"resources cannot be negative: {self.cpu}m CPU, {self.memory} bytes")

    def __add__(self, other: Resources) -> Resources:
        return Resources(self.cpu + other.cpu, self.memory + other.memory)

    def __mul__(self, times: int) -> Resources:
        return Resources(self.cpu * times, self.memory * times)

    def least(self, other: Resources) -> Resources:
        """The smaller of each."""
        return Resources(min(self.cpu, other.cpu), min(self.memory, other.memory))

    def most(self, other: Resources) -> Resources:
        """The larger of each."""
        return Resources(max(self.cpu, other.cpu), max(self.memory, other.memory))

    def excess_over(self, other: Resources) -> Resources:
        """By how much this is more, in each; 0 where it is not."""
        return Resources(max(0, self.cpu - other.cpu), max(0, self.memory - other.memory))

    def apart(self, other: Resources) -> Resources:
        """The difference of each, without its sign."""
        return Resources(abs(self.cpu - other.cpu), abs(self.memory - other.memory))

    def exceeds(self, other: Resources) -> bool:
        """Whether there is more of either."""
        return self.cpu > other.cpu or self.memory > other.memory

    def times(self, unit: Resources) -> int | None:
        """The number of units that this is, both resources alike; None where there is none such."""
        if unit.cpu == 0 or unit.memory == 0:
            raise ValueError("a unit of resources has some of each")
        count = self.cpu // unit.cpu
        return count if unit * count == self else None


NO_RESOURCES = Resources(0, 0)
NO_OVERCOMMIT = Resources(1000, 1000)
"""An overcommit of 1: all that is reserved counts."""
DEFAULT_COMPUTE_UNIT = Resources(250, 2**30)
"""One compute unit, as agents and servers of permits are shipped with."""


ANNOTATION = "autoscaling.neon.tech/bounds"
"""The annotation with a machine's bounds that peers read; devalloc reads ``spec`` instead."""
OVERCOMMIT = "vm.neon.tech/overcommit"
"""An annotation: JSON with ``cpu`` and ``memory``, times 1 if one is missing."""
USAGE = "vm.neon.tech/usage"
"""An annotation: JSON with ``cpu`` and ``memory``, what the machine has, as those tell who run it by other means."""
ANNOTATION_BILLING = "autoscaling.neon.tech/billing-endpoint-id"
LABEL_SCALING = "autoscaling.neon.tech/enabled"
LABEL_MIGRATION = "autoscaling.neon.tech/auto-migration-enabled"
LABEL_ALWAYS_MIGRATE = "autoscaling.neon.tech/testing-only-always-migrate"


@dataclass(frozen=True, slots=True)
class ScalingBounds:
    min: Resources
    max: Resources
