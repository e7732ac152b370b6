"""What is refused before a machine begins: what it could never have, and to be another one than runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from devalloc.api.virtualmachine import VirtualMachine
from devalloc_node.errors import Denied
from devalloc_node.machine.spec import MachineSpec
from devalloc_node.machine.view import Machine
from devalloc_node.prepared import Prepared


def check_slots(machine: VirtualMachine, claims: Sequence[Prepared]) -> None:
    """Raises Denied (``TooFewPciSlots``) where a machine that is to be started can never have all devices: it is not to
    be started for that, and ended again."""
    needed = sum(not device.admin for claim in claims for device in claim.devices)
    there = machine.spec.slots
    if machine.spec.adopt is None and needed > there:
        raise Denied(
            "TooFewPciSlots",
            f"the claims of machine {'/'.join(machine.key)} have {needed} devices, and it has {there} PCI slots: "
            f"each device needs one; set pciSlots to {needed} or more",
        )


def refuse_other(there: Machine, asked: MachineSpec) -> None:
    """Raises Denied (``MachineExists``) where a machine that runs was started as something else than is asked for: only
    its claims, and with them its slots, come and go while it runs."""
    if there.started is None:
        return
    then, now = (replace(spec, claims=(), pci_slots=0) for spec in (there.started, asked))
    other = [
        field.name.replace("_", " ") for field in fields(then) if getattr(then, field.name) != getattr(now, field.name)
    ]
    if other:
        raise Denied(
            "MachineExists",
            f"machine {there.key} runs already, with other {', '.join(other)}; scale it, or delete it first",
        )
