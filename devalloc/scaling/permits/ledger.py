"""The ledger of a node: what each of its machines counts for, the sums of that, when the node is too full, and which
machine should leave it.

A ledger is a value. A decision on one that is not stored yet is just forgotten if the write fails.

A machine gets a decrease as it asks for it, and an increase as far as there is room. CPU and memory are judged each by
itself, so a permit need not be a whole number of units.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from devalloc.scaling.resources import NO_OVERCOMMIT, NO_RESOURCES, Resources
from devalloc.scaling.versions import ProtocolEra

MachineKey = tuple[str, str]
"""Namespace and name of a machine."""


@dataclass(frozen=True, slots=True)
class MachineAccount:
    """What the ledger has of one machine."""

    least: Resources
    """Its lower bound, which it was admitted with."""
    most: Resources
    """Its upper bound. A permit may be above it: no bound is checked when one is asked for."""
    reserved: Resources
    """What it counts for, the buffer included."""
    permit: Resources | None = None
    """What it was told last that it may have; None before it asked for the first time."""
    use: Resources = NO_RESOURCES
    """What was read back of it."""
    previous: Resources = NO_RESOURCES
    """What it was told it may have before its permit, and may go by still; nothing where it knows its permit."""
    buffer: Resources = NO_RESOURCES
    """The part of ``reserved`` that covers a permit from before this server knew the machine."""
    pressure: Resources = NO_RESOURCES
    """What it asked for and did not get."""
    overhead: Resources = NO_RESOURCES
    """What it costs the node beside what it is permitted: its devices, its hypervisor."""
    overcommit: Resources = NO_OVERCOMMIT
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
        floor = self.least.most(self.use).most(self.previous)
        return floor.most(self.most) if self.reserve_max else floor

    @property
    def counted(self) -> Resources:
        """What is taken of the node for what it has reserved, without its overhead."""
        return Resources(
            self.reserved.cpu * 1000 // self.overcommit.cpu, self.reserved.memory * 1000 // self.overcommit.memory
        )

    @property
    def assumed(self) -> Resources:
        """What it may take itself to have."""
        return self.reserved if self.permit is None else self.permit


@dataclass(frozen=True, slots=True)
class NodeLedger:
    """The ledger of one node. Made by ``make_ledger``; the sums are always those of the machines."""

    total: Resources
    """What there is for machines: the effective limit."""
    watermark: Resources
    """From where on machines should move away."""
    machines: Mapping[MachineKey, MachineAccount] = field(default_factory=lambda: MappingProxyType({}))
    counted: Resources = NO_RESOURCES
    """What all machines take, with their overheads."""
    buffer: Resources = NO_RESOURCES
    pressure: Resources = NO_RESOURCES
    accounted: Resources = NO_RESOURCES
    """What those who are on their way to another node will give back, and what they asked for and did not get."""

    @property
    def free(self) -> Resources:
        """What is free; nothing if too much is taken."""
        return self.total.excess_over(self.counted)

    def with_machine(self, key: MachineKey, machine: MachineAccount) -> NodeLedger:
        """With this machine, in the place of what was known of it."""
        machines = dict(self.machines)
        before = machines.get(key)
        machines[key] = machine
        return self._summed(machines, before, machine)

    def without(self, key: MachineKey) -> NodeLedger:
        """Without this machine: it gives back all it had. The same where there is none."""
        if key not in self.machines:
            return self
        machines = dict(self.machines)
        before = machines.pop(key)
        return self._summed(machines, before, None)

    def with_limits(self, total: Resources, watermark: Resources) -> NodeLedger:
        """With other limits. What the machines have stays theirs, also where it is too much now."""
        return NodeLedger(total, watermark, self.machines, self.counted, self.buffer, self.pressure, self.accounted)

    def _summed(
        self, machines: dict[MachineKey, MachineAccount], before: MachineAccount | None, after: MachineAccount | None
    ) -> NodeLedger:
        old, new = _ledger_share(before), _ledger_share(after)
        sums = [
            Resources(total.cpu - o.cpu + n.cpu, total.memory - o.memory + n.memory)
            for total, o, n in zip((self.counted, self.buffer, self.pressure, self.accounted), old, new, strict=True)
        ]
        return NodeLedger(self.total, self.watermark, MappingProxyType(machines), *sums)


def make_ledger(
    total: Resources, watermark: Resources, machines: Mapping[MachineKey, MachineAccount] | None = None
) -> NodeLedger:
    """The ledger of a node with these machines."""
    node = NodeLedger(total, watermark)
    for key, machine in (machines or {}).items():
        node = node.with_machine(key, machine)
    return node


def _ledger_share(machine: MachineAccount | None) -> tuple[Resources, Resources, Resources, Resources]:
    """What a machine adds to the sums of its node, in their order."""
    if machine is None:
        return NO_RESOURCES, NO_RESOURCES, NO_RESOURCES, NO_RESOURCES
    counted = machine.counted
    leaving = counted + machine.pressure if machine.migrating else NO_RESOURCES
    return counted + machine.overhead, machine.buffer, machine.pressure, leaving


def admit(machine: MachineAccount) -> MachineAccount:
    """A machine that begins: it counts for its lower bound, or its upper one where it is to have that up front."""
    return replace(machine, reserved=machine.floor, permit=None, buffer=NO_RESOURCES, pressure=NO_RESOURCES)


def restore_recorded(machine: MachineAccount, permit: Resources) -> MachineAccount:
    """A machine whose permit is written down: nothing has to be guessed."""
    return replace(
        machine, reserved=permit.most(machine.floor), permit=permit, buffer=NO_RESOURCES, pressure=NO_RESOURCES
    )


def assume_unrecorded(machine: MachineAccount, *, era: ProtocolEra = ProtocolEra.V0_31) -> MachineAccount:
    """A running machine that nothing is written down of, when the server starts.

    It may have been permitted as much as its upper bound, so it counts for that until it asks; what is above its use is
    buffer. The newest form trusts what is in use.
    """
    using = machine.floor
    if era is ProtocolEra.NEWEST or not machine.scaled or machine.migrating:
        return replace(machine, reserved=using, permit=None, buffer=NO_RESOURCES, pressure=NO_RESOURCES)
    reserved = machine.most.most(using)
    return replace(machine, reserved=reserved, permit=None, buffer=reserved.excess_over(using), pressure=NO_RESOURCES)


def change_bounds(machine: MachineAccount, least: Resources, most: Resources) -> MachineAccount:
    """Other bounds. Only who has not asked yet may have been permitted as much as an upper bound."""
    changed = replace(machine, least=least, most=most)
    if machine.permit is not None or machine.buffer == NO_RESOURCES:
        return _settle_amounts(changed)
    using = machine.reserved.excess_over(machine.buffer).most(changed.floor)
    reserved = using.most(machine.reserved if most == machine.most else most)
    return replace(changed, reserved=reserved, buffer=reserved.excess_over(using))


def observe_use(machine: MachineAccount, use: Resources) -> MachineAccount:
    """What was read back of it has changed: it counts for that at least, and for its permit as before."""
    changed = replace(machine, use=use)
    if machine.permit is not None or machine.buffer == NO_RESOURCES:
        return _settle_amounts(changed)
    # What it uses of its buffer is none any more, and what it uses less is.
    reserved = machine.reserved.most(changed.floor)
    return replace(changed, reserved=reserved, buffer=reserved.excess_over(changed.floor))


def begin_migration(machine: MachineAccount) -> MachineAccount:
    """Its migration begins. What it counts for is taken to be given back soon."""
    reserved = machine.reserved.excess_over(machine.buffer).most(machine.floor)
    return replace(machine, migrating=True, reserved=reserved, buffer=NO_RESOURCES, pressure=NO_RESOURCES)


def replace_machine(node: NodeLedger, key: MachineKey, machine: MachineAccount) -> NodeLedger:
    """The ledger with what an event made of a machine; the same where that is nothing new."""
    return node if node.machines.get(key) == machine else node.with_machine(key, machine)


def _settle_amounts(machine: MachineAccount) -> MachineAccount:
    permit = NO_RESOURCES if machine.permit is None else machine.permit
    return replace(machine, reserved=permit.most(machine.floor))


def is_under_pressure(node: NodeLedger) -> bool:
    """Whether more is taken and asked for than is free below the watermark, or expected back."""
    taken, mark = node.counted, node.watermark
    if taken.cpu <= mark.cpu and taken.memory < mark.memory:
        return False
    above = taken.excess_over(mark) + node.pressure
    slack = node.accounted + node.buffer + mark.excess_over(taken)
    return above.exceeds(slack)


def next_to_migrate(node: NodeLedger, backed_off: Container[MachineKey] = ()) -> MachineKey | None:
    """The machine that is next to be migrated: that with the lowest load of all that can move; None without one.

    ``backed_off``: machines that stay for now, because they could not move. A machine that cannot move never stands in
    the way of those that can. If the load of none is known, or two have the same, it is the first by name.
    """
    movable = ((key, machine) for key, machine in node.machines.items() if _can_move(machine) and key not in backed_off)
    waiting = [(_load(machine), key) for key, machine in movable]
    return min(waiting)[1] if waiting else None


def should_migrate(node: NodeLedger, key: MachineKey, backed_off: Container[MachineKey] = ()) -> bool:
    """Whether the machine is to be migrated, seen before anything else of its request is done. ``backed_off``: machines
    that stay for now. Raises KeyError."""
    machine = node.machines[key]
    if not _can_move(machine) or key in backed_off:
        return False
    if machine.must_move and machine.load is not None:
        return True
    return is_under_pressure(node) and next_to_migrate(node, backed_off) == key


def all_to_migrate(node: NodeLedger, backed_off: Container[MachineKey] = ()) -> list[MachineKey]:
    """The newest form: all that have to leave until the rest is below the watermark, the oldest first.

    One that takes more than a watermark all by itself would find no other node, and stays. ``backed_off``: as of
    ``next_to_migrate``.
    """
    over = node.counted.excess_over(_migrating_resources(node)).excess_over(node.watermark)
    leaving: list[MachineKey] = []
    for key, machine in sorted(node.machines.items(), key=lambda item: (item[1].since, item[0])):
        if over == NO_RESOURCES:
            break
        share = machine.counted + machine.overhead
        if _can_move(machine) and key not in backed_off and not share.exceeds(node.watermark):
            leaving.append(key)
            over = over.excess_over(share)
    return leaving


def _migrating_resources(node: NodeLedger) -> Resources:
    total = NO_RESOURCES
    for machine in node.machines.values():
        if machine.migrating:
            total = total + machine.counted + machine.overhead
    return total


def _can_move(machine: MachineAccount) -> bool:
    return machine.movable and not machine.migrating


def _load(machine: MachineAccount) -> tuple[bool, float]:
    return machine.load is None, 0.0 if machine.load is None else machine.load


@dataclass(frozen=True, slots=True)
class ResourceGrant:
    """What one machine has of one resource."""

    reserved: int
    permit: int
    pressure: int = 0


def grant_resource(
    reserved: int,
    wanted: int,
    free: int,
    factor: int = 1,
    *,
    last: int = 0,
    floor: int = 0,
    overcommit: int = 1000,
    leaving: bool = False,
) -> ResourceGrant:
    """One resource of one request.

    ``free``: what is free on the node. ``factor``: increases are multiples of it, however much was reserved before.
    ``last``: what the machine was permitted once, which it gets again whether there is room or not. ``floor``: what it
    counts for whatever it is permitted. ``overcommit``: thousandths by which more of it can be given than there is.
    ``leaving``: it is about to be migrated, and gets nothing more here.
    """
    if wanted <= reserved:
        return ResourceGrant(max(wanted, floor), wanted)
    more = wanted - reserved
    if leaving:
        return ResourceGrant(reserved, reserved, more)
    room = free * overcommit // 1000 // factor * factor
    given = min(more, max(room, last - reserved))
    return ResourceGrant(reserved + given, reserved + given, more - given)


def answer_request(
    node: NodeLedger,
    key: MachineKey,
    wanted: Resources,
    factor: Resources,
    *,
    last: Resources | None = None,
    leaving: bool = False,
    era: ProtocolEra = ProtocolEra.V0_31,
) -> NodeLedger:
    """The ledger after one request of a machine that is on it; the permit is the machine's.

    ``last`` is used as it is; whether it can be believed is for the caller (``credible_permit``). Raises KeyError.
    """
    machine = node.machines[key]
    forced = NO_RESOURCES if last is None or era is not ProtocolEra.V0_31 else last
    free, floor = node.free, machine.floor
    cpu, memory = (
        grant_resource(
            getattr(machine.reserved, name),
            getattr(wanted, name),
            getattr(free, name),
            getattr(factor, name),
            last=getattr(forced, name),
            floor=getattr(floor, name),
            overcommit=getattr(machine.overcommit, name),
            leaving=leaving,
        )
        for name in ("cpu", "memory")
    )
    # The newest form knows no pressure: it asks again by itself.
    pressure = NO_RESOURCES if era is ProtocolEra.NEWEST else Resources(cpu.pressure, memory.pressure)
    after = replace(
        machine,
        reserved=Resources(cpu.reserved, memory.reserved),
        permit=Resources(cpu.permit, memory.permit),
        pressure=pressure,
        buffer=NO_RESOURCES,
    )
    return node.with_machine(key, after)


def after_first_request(node: NodeLedger, key: MachineKey, last: Resources | None) -> NodeLedger:
    """The ledger when a machine that nothing is recorded of asks for the first time: its buffer goes.

    What it says it was permitted counts as far as there is room for it beside what all others count for; what was read
    back of it counts in any case. The same ledger where it asked before.
    """
    machine = node.machines[key]
    if machine.permit is not None:
        return node
    reserved = machine.floor.most(credible_permit(node, key, last))
    return node.with_machine(key, replace(machine, reserved=reserved, buffer=NO_RESOURCES))


def credible_permit(node: NodeLedger, key: MachineKey, last: Resources | None) -> Resources:
    """As much of what a machine says it was permitted as there is room for beside all others."""
    if last is None:
        return NO_RESOURCES
    room = node.without(key)
    machine = node.machines[key]
    free = room.total.excess_over(room.counted + machine.overhead)
    over = machine.overcommit
    return last.least(Resources(free.cpu * over.cpu // 1000, free.memory * over.memory // 1000))
