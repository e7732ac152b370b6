"""What happens to the machines of a node beside their requests."""

from __future__ import annotations

from dataclasses import replace

from devalloc.scaling.eras import Era
from devalloc.scaling.permits.ledger import NOTHING, Key, Machine, Node
from devalloc.scaling.resources import Resources


def lacking(node: Node, machine: Machine) -> Resources:
    """What a node is short of for one more machine; nothing where it fits."""
    return (node.counted + machine.counted + machine.overhead).above(node.total)


def admitted(machine: Machine) -> Machine:
    """A machine that begins: it counts for its lower bound, or its upper one where it is to have that up front."""
    return replace(machine, reserved=machine.floor, permit=None, buffer=NOTHING, pressure=NOTHING)


def recorded(machine: Machine, permit: Resources) -> Machine:
    """A machine whose permit is written down: nothing has to be guessed."""
    return replace(machine, reserved=permit.most(machine.floor), permit=permit, buffer=NOTHING, pressure=NOTHING)


def found(machine: Machine, *, era: Era = Era.V0_31) -> Machine:
    """A running machine that nothing is written down of, when the server starts.

    It may have been permitted as much as its upper bound, so it counts for that until it asks; what is above its use is
    buffer. The newest form trusts what is in use.
    """
    using = machine.floor
    if era is Era.NEWEST or not machine.scaled or machine.migrating:
        return replace(machine, reserved=using, permit=None, buffer=NOTHING, pressure=NOTHING)
    reserved = machine.most.most(using)
    return replace(machine, reserved=reserved, permit=None, buffer=reserved.above(using), pressure=NOTHING)


def bounded(machine: Machine, least: Resources, most: Resources) -> Machine:
    """Other bounds. Only who has not asked yet may have been permitted as much as an upper bound."""
    changed = replace(machine, least=least, most=most)
    if machine.permit is not None or machine.buffer == NOTHING:
        return _settled(changed)
    using = machine.reserved.above(machine.buffer).most(changed.floor)
    reserved = using.most(machine.reserved if most == machine.most else most)
    return replace(changed, reserved=reserved, buffer=reserved.above(using))


def observed(machine: Machine, use: Resources) -> Machine:
    """What was read back of it has changed: it counts for that at least, and for its permit as before."""
    changed = replace(machine, use=use)
    if machine.permit is not None or machine.buffer == NOTHING:
        return _settled(changed)
    # What it uses of its buffer is none any more, and what it uses less is.
    reserved = machine.reserved.most(changed.floor)
    return replace(changed, reserved=reserved, buffer=reserved.above(changed.floor))


def leaving(machine: Machine) -> Machine:
    """Its migration begins. What it counts for is taken to be given back soon."""
    reserved = machine.reserved.above(machine.buffer).most(machine.floor)
    return replace(machine, migrating=True, reserved=reserved, buffer=NOTHING, pressure=NOTHING)


def changed(node: Node, key: Key, machine: Machine) -> Node:
    """The ledger with what an event made of a machine; the same where that is nothing new."""
    return node if node.machines.get(key) == machine else node.with_machine(key, machine)


def _settled(machine: Machine) -> Machine:
    permit = NOTHING if machine.permit is None else machine.permit
    return replace(machine, reserved=permit.most(machine.floor))
