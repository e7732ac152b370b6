"""Events of a node's machines other than permit requests, and what each does to the ledger."""

from __future__ import annotations

from dataclasses import replace

from devalloc.scaling.compat import ProtocolEra
from devalloc.scaling.permits.ledger import NO_RESOURCES, MachineAccount, MachineKey, NodeLedger
from devalloc.scaling.resources import Resources


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
