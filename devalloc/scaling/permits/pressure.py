"""When a node is too full, and which machine should leave it."""

from __future__ import annotations

from devalloc.scaling.permits.ledger import NO_RESOURCES, MachineAccount, MachineKey, NodeLedger
from devalloc.scaling.resources import Resources


def is_under_pressure(node: NodeLedger) -> bool:
    """Whether more is taken and asked for than is free below the watermark, or expected back."""
    taken, mark = node.counted, node.watermark
    if taken.cpu <= mark.cpu and taken.memory < mark.memory:
        return False
    above = taken.excess_over(mark) + node.pressure
    slack = node.accounted + node.buffer + mark.excess_over(taken)
    return above.exceeds(slack)


def next_to_migrate(node: NodeLedger) -> MachineKey | None:
    """The machine that is next to be migrated: that with the lowest load of all that can move; None without one.

    A machine that cannot move never stands in the way of those that can. Where the load of none is known, or two have
    the same, it is the first by name.
    """
    waiting = [(_load(machine), key) for key, machine in node.machines.items() if _can_move(machine)]
    return min(waiting)[1] if waiting else None


def should_migrate(node: NodeLedger, key: MachineKey) -> bool:
    """Whether the machine is to be migrated, seen before anything else of its request is done. Raises KeyError."""
    machine = node.machines[key]
    if not _can_move(machine):
        return False
    if machine.must_move and machine.load is not None:
        return True
    return is_under_pressure(node) and next_to_migrate(node) == key


def all_to_migrate(node: NodeLedger) -> list[MachineKey]:
    """The newest form: all that have to leave until the rest is below the watermark, the oldest first.

    One that takes more than a watermark all by itself would find no other node, and stays.
    """
    over = node.counted.excess_over(_migrating_resources(node)).excess_over(node.watermark)
    leaving: list[MachineKey] = []
    for key, machine in sorted(node.machines.items(), key=lambda item: (item[1].since, item[0])):
        if over == NO_RESOURCES:
            break
        share = machine.counted + machine.overhead
        if _can_move(machine) and not share.exceeds(node.watermark):
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
