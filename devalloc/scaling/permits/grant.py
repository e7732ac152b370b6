"""What a machine gets of what it asks for. A decrease is granted as it is, an increase as far as there is room.

CPU and memory are judged each by itself, so a permit need not be a whole number of units.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from devalloc.scaling.permits.ledger import NO_RESOURCES, MachineKey, NodeLedger
from devalloc.scaling.resources import Resources
from devalloc.scaling.versions import ProtocolEra

WHOLE_CPU = 1000


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


def grant_step(
    unit: Resources, *, whole_cpus: bool = False, slot: int = 1, era: ProtocolEra = ProtocolEra.V0_31
) -> Resources:
    """What increases are multiples of, for a compute unit. ``whole_cpus``: the asker knows no fractions of a CPU."""
    if era is ProtocolEra.V0_12:  # it rounds to what the asker can be told, and no further
        return Resources(WHOLE_CPU if whole_cpus else 1, slot)
    return Resources(WHOLE_CPU if whole_cpus else unit.cpu, unit.memory)
