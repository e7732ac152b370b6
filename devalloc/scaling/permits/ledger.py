"""The ledger of a node: what each of its machines counts for, and the sums of that.

A ledger is a value. Whoever decides on one that is not written down yet just forgets it where the write fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType

from devalloc.scaling.resources import Resources

Key = tuple[str, str]
"""Namespace and name of a machine."""

NOTHING = Resources(0, 0)
ONCE = Resources(1000, 1000)
"""An overcommit of 1: all that is reserved counts."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the ledger has of one machine."""

    least: Resources
    """Its lower bound, which it was admitted with."""
    most: Resources
    """Its upper bound. A permit may be above it: no bound is checked when one is asked for."""
    reserved: Resources
    """What it counts for, the buffer included."""
    permit: Resources | None = None
    """What it was told last that it may have; None before it asked for the first time."""
    use: Resources = NOTHING
    """What was read back of it."""
    kept: Resources = NOTHING
    """What it was told it may have before its permit, and may go by still; nothing where it knows its permit."""
    buffer: Resources = NOTHING
    """The part of ``reserved`` that is there in case it was permitted that much before anybody here knew of it."""
    pressure: Resources = NOTHING
    """What it asked for and did not get."""
    overhead: Resources = NOTHING
    """What it costs the node beside what it is permitted: its devices, its hypervisor."""
    overcommit: Resources = ONCE
    """Thousandths by which what it has reserved is divided before it counts."""
    reserve_max: bool = False
    """Counts for its whole upper bound, from its admission on."""
    scaled: bool = True
    """Whether it asks for permits at all."""
    movable: bool = False
    """Whether it may be migrated by itself: its owner allows it, and no device is bound to it that cannot move."""
    must_move: bool = False
    """Migrated as soon as its load is known (for tests of migration); counts only where it is movable."""
    migrating: bool = False
    """It is on its way to another node."""
    load: float | None = None
    """Its load of the last minute; None where that is not known."""
    since: int = 0
    """When it came to be, in milliseconds."""

    @property
    def floor(self) -> Resources:
        """What it counts for at least, whatever it is permitted."""
        floor = self.least.most(self.use).most(self.kept)
        return floor.most(self.most) if self.reserve_max else floor

    @property
    def counted(self) -> Resources:
        """What is taken of the node for what it has reserved, without its overhead."""
        return Resources(
            self.reserved.cpu * 1000 // self.overcommit.cpu, self.reserved.memory * 1000 // self.overcommit.memory
        )

    @property
    def told(self) -> Resources:
        """What it may take itself to have."""
        return self.reserved if self.permit is None else self.permit


@dataclass(frozen=True, slots=True)
class Node:
    """The ledger of one node. Made by ``ledger``; the sums are always those of the machines."""

    total: Resources
    """What there is for machines: the effective limit."""
    watermark: Resources
    """From where on machines should move away."""
    machines: Mapping[Key, Machine] = field(default_factory=lambda: MappingProxyType({}))
    counted: Resources = NOTHING
    """What all machines take, with their overheads."""
    buffer: Resources = NOTHING
    pressure: Resources = NOTHING
    accounted: Resources = NOTHING
    """What those who are on their way to another node will give back, and what they asked for and did not get."""

    @property
    def free(self) -> Resources:
        """What nobody has; nothing where too much is taken."""
        return self.total.above(self.counted)

    def with_machine(self, key: Key, machine: Machine) -> Node:
        """With this machine, in the place of what was known of it."""
        machines = dict(self.machines)
        before = machines.get(key)
        machines[key] = machine
        return self._summed(machines, before, machine)

    def without(self, key: Key) -> Node:
        """Without this machine: it gives back all it had. The same where there is none."""
        if key not in self.machines:
            return self
        machines = dict(self.machines)
        before = machines.pop(key)
        return self._summed(machines, before, None)

    def limited(self, total: Resources, watermark: Resources) -> Node:
        """With other limits. What the machines have stays theirs, also where it is too much now."""
        return Node(total, watermark, self.machines, self.counted, self.buffer, self.pressure, self.accounted)

    def _summed(self, machines: dict[Key, Machine], before: Machine | None, after: Machine | None) -> Node:
        old, new = _share(before), _share(after)
        sums = [
            Resources(total.cpu - o.cpu + n.cpu, total.memory - o.memory + n.memory)
            for total, o, n in zip((self.counted, self.buffer, self.pressure, self.accounted), old, new, strict=True)
        ]
        return Node(self.total, self.watermark, MappingProxyType(machines), *sums)


def ledger(total: Resources, watermark: Resources, machines: Mapping[Key, Machine] | None = None) -> Node:
    """The ledger of a node with these machines."""
    node = Node(total, watermark)
    for key, machine in (machines or {}).items():
        node = node.with_machine(key, machine)
    return node


def fraction_of(total: Resources, cpu: float, memory: float) -> Resources:
    """Parts of a total, such as a watermark of 0.9; rounded down, exact for the decimal number that is written."""
    return Resources(int(total.cpu * Fraction(str(cpu))), int(total.memory * Fraction(str(memory))))


def _share(machine: Machine | None) -> tuple[Resources, Resources, Resources, Resources]:
    """What a machine adds to the sums of its node, in their order."""
    if machine is None:
        return NOTHING, NOTHING, NOTHING, NOTHING
    counted = machine.counted
    leaving = counted + machine.pressure if machine.migrating else NOTHING
    return counted + machine.overhead, machine.buffer, machine.pressure, leaving
