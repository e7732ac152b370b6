"""Devices of claims in machines that move: which hardware they are, and on which root ports.

QEMU sends the state of a device to the one on the same port, of which it needs the same hardware and VFIO driver.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from devalloc_machines.qemu import hotplug, pci
from devalloc_machines.qemu.migration_offer import MovedDevice
from devalloc_machines.qemu.qmp import Monitor
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied
from devalloc_node.model.step import PreparedDevice

_FACTS = ("vendor", "device", "subsystem_vendor", "subsystem_device", "revision", "class")
_MOST = 253


def identify(device: PreparedDevice, sys: Path) -> tuple[str, ...]:
    """Which hardware the functions of a prepared device are, one text each: their VFIO driver, then the type of a
    mediated device, or the ids of a PCI function. ``sys``: where the host's sysfs is. Unknown facts are left out."""
    if device.sysfsdev is not None:
        path = device.sysfsdev.removeprefix("/sys/")
        return (_facts(sys / path),)
    return tuple(_facts(sys / "bus/pci/devices" / address) for address in device.functions)


def _facts(folder: Path) -> str:
    words = [_link(folder / "driver")]
    if kind := _link(folder / "mdev_type"):
        words.append(kind)
    else:
        for name in _FACTS:
            with suppress(OSError):
                words.append(f"{name}={(folder / name).read_text().strip()}")
    return " ".join(words)[:_MOST]


def _link(path: Path) -> str:
    with suppress(OSError):
        return os.readlink(path).rpartition("/")[2]
    return ""


def with_ports(
    key: str, devices: Mapping[str, MovedDevice], monitor: Monitor, deadline: Deadline
) -> tuple[MovedDevice, ...]:
    """The devices of claims in a machine that runs, by their ids, with the ports that they are on. Raises Denied
    (``MachineNotMovable``) if QEMU has other ones."""
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
        placed.append(replace(device, port=port))
    return tuple(placed)


def check_same(key: str, there: MovedDevice, here: MovedDevice) -> None:
    """Whether the guest finds the device that it has. Raises Denied (``DeviceDiffers``)."""
    if there.functions != here.functions:
        raise Denied(
            "DeviceDiffers",
            f"machine {key} cannot move here while it runs: device {here.index} of claim {here.claim} is "
            f"{', '.join(there.functions)} on its node, and {', '.join(here.functions)} here",
        )
