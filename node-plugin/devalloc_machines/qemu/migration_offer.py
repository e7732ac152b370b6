"""What the source of a live migration offers, and whether the target can have a machine that is the same for its guest.

The source reads it from its QEMU and its host; it comes to the target by the store. Devices of claims are named in it,
too: QEMU sends the state of a device to the one on the same port, of which it needs the same hardware and VFIO driver.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from devalloc.api.meta import RESTART
from devalloc.api.virtual_machine import MEMORY_BLOCK, VirtualMachine
from devalloc.api.virtual_machine_migration import (
    MigrationCell,
    MigrationDevice,
    MigrationOffer,
    MigrationPlatform,
    MigrationQueues,
    MigrationRootPort,
)
from devalloc_machines.qemu import guest_numa, hotplug, memory, migrated_firmware, pci, preflight, vcpu
from devalloc_machines.qemu.command_line import MAX_PCI_SLOTS, MAX_QUEUES
from devalloc_machines.qemu.launch import queues_of_cards
from devalloc_machines.qemu.pci_layout import port_places, ports_per_node
from devalloc_machines.qemu.qmp import Monitor, checked_text, qom_get
from devalloc_machines.qemu.records import MachineAmounts, MachineRecord
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_machines.qemu.spec import MachineSpec, NumaCell, spec_of, whole_cpus
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied
from devalloc_node.model.step import PreparedDevice

_MACHINE_TYPE = re.compile(r"(pc-q35-[0-9]{1,3}\.[0-9]{1,3}(?:\.[0-9]{1,3})?)-machine", re.ASCII)


def restart_digest(machine: VirtualMachine) -> str:
    """Which request for a restart a machine has, or that it has none. The text itself is a user's, of any length."""
    request = machine.metadata.annotations.get(RESTART)
    return hashlib.sha256(b"" if request is None else f"={request}".encode()).hexdigest()


def as_started(machine: VirtualMachine, offered: MigrationOffer) -> VirtualMachine:
    """The machine without a request for a restart that came after its run began: its source does not restart it any
    more, so this node does when it has the machine."""
    if offered.restart_digest in (None, restart_digest(machine)):
        return machine
    others = {name: text for name, text in machine.metadata.annotations.items() if name != RESTART}
    return machine.model_copy(update={"metadata": machine.metadata.model_copy(update={"annotations": others})})


def amounts_of(record: MachineRecord, monitor: Monitor, deadline: Deadline) -> MachineAmounts:
    """What it has. Its memory is what QEMU asks its guest to have: that is where it goes on."""
    goal = memory.requested_total(monitor, deadline) or memory.observe_memory(monitor, deadline).total
    goal = min(max(goal, record.spec.memory.least), record.spec.memory.most)
    milli = record.requested.cpu_milli if record.requested.cpu_milli is not None else record.applied.cpu_milli
    return MachineAmounts(milli, vcpu.count(monitor, deadline), goal)


def platform_of(
    record: MachineRecord, config: MachineConfig, accel: Literal["kvm", "tcg"], monitor: Monitor, deadline: Deadline
) -> MigrationPlatform:
    """What its guest sees that follows from this node."""
    spec = record.spec
    by_name = {port.name: port.reserve for port in pci.list_root_ports(monitor, deadline)}
    # As QEMU has them: devices of this node may have changed since it was started.
    reserves = [by_name[port.id] for port in port_places(spec, record.node_ports)]
    rows = guest_numa.read_distances(spec.numa_cells, preflight.NODES)
    return MigrationPlatform(
        machine_type=_machine_type(monitor, deadline),
        root_ports=[MigrationRootPort(prefetchable=one.prefetchable, memory=one.memory) for one in reserves],
        queues=[MigrationQueues(nic=number, count=count) for number, count in sorted(queues_of_cards(spec).items())],
        cells=[MigrationCell(cpu_milli=cell.cpus, memory=cell.memory) for cell in spec.numa_cells],
        distances=[value for row in rows for value in row],
        address_bits=preflight.address_bits(accel),
        cpu_flags=list(preflight.cpu_flags()) if accel == "kvm" else [],
        firmware=migrated_firmware.identity_of(record, config),
    )


def _machine_type(monitor: Monitor, deadline: Deadline) -> str:
    text = checked_text(qom_get(monitor, "/machine", "type", deadline))
    if (match := _MACHINE_TYPE.fullmatch(text)) is None:
        raise Denied("MachineNotMovable", f"QEMU reports the machine type {text[:80]!r}, which has no version")
    return match[1]


def with_offered_slots(machine: VirtualMachine, offered: MigrationOffer) -> VirtualMachine:
    """With the PCI slots that it was started with, if its spec says no number: it has spare ones for the claims that
    it had then, and may have others by now."""
    spec = spec_of(machine)
    if machine.spec.pci_slots is not None or node_ports(spec, offered) >= 0:
        return machine
    for slots in range(len(spec.claims), MAX_PCI_SLOTS + 1):
        then = replace(spec, pci_slots=slots)
        if len(port_places(then, ports_per_node(then))) == len(offered.platform.root_ports):
            return machine.model_copy(update={"spec": machine.spec.model_copy(update={"pci_slots": slots})})
    return machine


def node_ports(spec: MachineSpec, offered: MigrationOffer) -> int:
    """How many root ports are on the expander bus of each NUMA node of its guest; -1: none that could be."""
    cells, more = len(offered.platform.cells), len(offered.platform.root_ports) - spec.pci_slots
    if not cells:
        return 0 if more == 0 else -1
    return more // cells if more % cells == 0 and 0 <= more // cells <= spec.pci_slots else -1


def check_offer(spec: MachineSpec, offered: MigrationOffer) -> None:
    """Raises Denied (``OfferInvalid``) if the machine cannot be what an offer says, whose form is right."""
    amounts, most = offered.amounts, whole_cpus(spec.cpus.most)
    vcpus, memory_bytes, milli = amounts.vcpus or 0, amounts.memory_bytes or 0, amounts.cpu_milli or 0
    faults = [
        (whole_cpus(spec.cpus.least) <= vcpus <= most, "number of vCPUs"),
        (0 <= milli <= most * 1000, "CPU time"),
        (spec.memory.least <= memory_bytes <= spec.memory.most and memory_bytes % MEMORY_BLOCK == 0, "memory"),
        (node_ports(spec, offered) >= 0, "number of root ports"),
        (
            all(one.nic < len(spec.nics) and one.count <= MAX_QUEUES for one in offered.platform.queues),
            "number of queues of a card",
        ),
    ]
    if wrong := [what for is_right, what in faults if not is_right]:
        raise Denied(
            "OfferInvalid",
            f"machine {spec.key} cannot be received: the source offers another {', '.join(wrong)} than its spec allows",
        )


def check_cpu(spec: MachineSpec, accel: Literal["kvm", "tcg"], offered: MigrationOffer) -> None:
    """Whether the guest finds the CPUs that it began with. Raises Denied (``AcceleratorDiffers``, ``CpuDiffers``)."""
    if accel != offered.accel:
        raise Denied("AcceleratorDiffers", f"machine {spec.key} runs with {offered.accel}, and this node has {accel}")
    if accel != "kvm":
        return
    here, there = preflight.address_bits(accel), offered.platform.address_bits
    differ = sorted(set(preflight.cpu_flags()) ^ set(offered.platform.cpu_flags))
    if here != there:
        why = f"its CPUs have {there} bits of addresses, and those of this node {here}"
    elif differ:
        why = f"only the CPUs of one of its two nodes have {', '.join(differ[:8])}" + (" ..." if differ[8:] else "")
    else:
        return
    raise Denied("CpuDiffers", f"machine {spec.key} cannot move here while it runs: {why}")


def cells_here(spec: MachineSpec, offered: MigrationOffer) -> tuple[NumaCell, ...]:
    """NUMA nodes of this host for those of the guest, in its order. Raises Denied (``NumaDiffers``)."""
    free, cells = list(spec.numa_cells), []
    for there in offered.platform.cells:
        place = next((cell for cell in free if (cell.cpus, cell.memory) == (there.cpu_milli, there.memory)), None)
        if place is not None:
            free.remove(place)
            cells.append(place)
    if free or len(cells) != len(offered.platform.cells):
        count = len(offered.platform.cells) or 1
        raise Denied(
            "NumaDiffers",
            f"machine {spec.key} cannot move here while it runs: its guest has {count} NUMA nodes of the sizes that "
            "were reserved on its node, and other ones are reserved for it here",
        )
    return tuple(cells)


_FACTS = ("vendor", "device", "subsystem_vendor", "subsystem_device", "revision", "class")
_MOST_FACTS = 253


def identify(device: PreparedDevice, sys: Path) -> list[str]:
    """Which hardware the functions of a prepared device are, one text each: their VFIO driver, then the type of a
    mediated device, or the ids of a PCI function. ``sys``: where the host's sysfs is. Unknown facts are left out."""
    if device.sysfsdev is not None:
        path = device.sysfsdev.removeprefix("/sys/")
        return [_facts(sys / path)]
    return [_facts(sys / "bus/pci/devices" / address) for address in device.functions]


def _facts(folder: Path) -> str:
    words = [_link(folder / "driver")]
    if kind := _link(folder / "mdev_type"):
        words.append(kind)
    else:
        for name in _FACTS:
            with suppress(OSError):
                words.append(f"{name}={(folder / name).read_text().strip()}")
    return " ".join(words)[:_MOST_FACTS]


def _link(path: Path) -> str:
    with suppress(OSError):
        return os.readlink(path).rpartition("/")[2]
    return ""


def with_ports(
    key: str, devices: Mapping[str, Mapping[str, Any]], monitor: Monitor, deadline: Deadline
) -> list[MigrationDevice]:
    """What is offered of the devices of claims in a machine that runs. ``devices``: that but for their ports, by their
    ids. Raises Denied (``MachineNotMovable``) if QEMU has other ones, or a target could not read that."""
    there = hotplug.plugged_names(list(pci.present_devices(monitor, deadline)))
    if differ := sorted(there ^ set(devices)):
        why = f"the devices of its claims are not those that QEMU has ({', '.join(differ)}); wait until they are"
        raise Denied("MachineNotMovable", f"machine {key} cannot move while it runs: {why}")
    ports = {port.path: port.name for port in pci.list_root_ports(monitor, deadline)}
    placed = []
    for name, device in sorted(devices.items()):
        port = ports.get(pci.bus_of(monitor, pci.function_id(name, 0), deadline) or "")
        if port is None:
            raise Denied("MachineNotMovable", f"machine {key} cannot move while it runs: {name} is on no root port")
        try:
            placed.append(MigrationDevice(**device, port=port))
        except ValidationError as error:
            why = f"what this host tells of {name} cannot be offered: {error.errors()[0]['msg']}"
            raise Denied("MachineNotMovable", f"machine {key} cannot move while it runs: {why}") from None
    return placed


def check_same(key: str, there: MigrationDevice, functions: Sequence[str]) -> None:
    """Whether the guest finds the device that it has. Raises Denied (``DeviceDiffers``)."""
    if there.functions != functions:
        raise Denied(
            "DeviceDiffers",
            f"machine {key} cannot move here while it runs: device {there.index} of claim {there.claim} is "
            f"{', '.join(there.functions)} on its node, and {', '.join(functions)} here",
        )
