"""PCI devices in QEMU's terms: root ports, and the address windows that ports reserve for devices plugged in later.

A device's memory (its BARs) gets addresses within the windows of the port that it is on, and a guest that runs does not
make these larger. Firmware sizes them for what is there when the machine starts, and for what the port reserves.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from devalloc.api.virtual_machine import GIB
from devalloc.inventory.pci import BarSizes
from devalloc_machines.qemu.pci_layout import PortPlace, port_places
from devalloc_machines.qemu.qmp import Monitor, QmpRefused, qom_get, qom_list
from devalloc_machines.qemu.spec import MIB, MachineSpec, memory_text
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied
from devalloc_node.model.step import PreparedDevice

FIRMWARE_WINDOW = 2 * MIB
"""What SeaBIOS gives a port of each kind that reserves nothing."""
_LOW = 512 * MIB
"""Of the addresses below 4 GiB that a guest has for devices, what ports may reserve together: the rest is for devices
that are there from the start."""
_BELOW_4G = 4 * GIB


@dataclass(frozen=True, slots=True, order=True)
class WindowReserve:
    """Bytes of addresses that one port keeps; 0: what firmware gives it."""

    prefetchable: int = 0
    """Of its prefetchable window of 64 bits."""
    memory: int = 0
    """Of its window below 4 GiB."""


def window_for(size: int) -> int:
    """A window in which so much memory of a device finds room, wherever the window begins: a BAR lies at a multiple of
    its size, and firmware puts a window that nothing is in yet at any MiB. 0: what firmware gives does."""
    return 0 if 2 * size <= FIRMWARE_WINDOW else -(-2 * size // MIB) * MIB


def port_reserves(
    spec: MachineSpec, devices: BarSizes, address_bits: int | None, node_ports: int = 0
) -> tuple[WindowReserve, ...]:
    """What each root port reserves, in the order of ``port_places``.

    If its spec says nothing, as much as any of ``devices`` needs, on as many ports as its CPUs, which address memory
    with ``address_bits`` (None: unknown), have addresses for: that many one after the other, or, with UEFI firmware,
    as ``_aperture_fits`` has it. If any of ``devices`` has prefetchable memory of 32 bits, the last port of each bus
    reserves none of 64 bits, so that a machine can start with it (``hotplug.plug_device``).

    Raises Denied (``NoPciWindow``) if its CPUs have not enough addresses for as many windows as the machine has PCI
    slots, of the size that its spec says.
    """
    places = port_places(spec, node_ports)
    order = sorted(places, key=lambda port: port.window_order)
    wide = window_for(devices.prefetchable) if spec.pci_window is None else -(-spec.pci_window // MIB) * MIB
    low = window_for(devices.other)
    room = _room(spec, address_bits)
    fit = len(places) if room is None or not wide else min(len(places), room // wide)
    if spec.firmware == "uefi":
        while wide and fit and not _aperture_fits(spec, _aperture(_by_bus(order, [wide] * fit)), address_bits):
            fit -= 1
    if spec.pci_window is not None and fit < spec.pci_slots:
        raise Denied(
            "NoPciWindow",
            f"machine {spec.key} requires {spec.pci_slots} PCI slots with windows of {memory_text(wide)} each, but "
            f"its CPUs (physical addresses of {address_bits} bits) have {memory_text((room or 0) // MIB * MIB)} of "
            "addresses for them; lower spec.start.pciWindow or spec.pciSlots",
        )
    if devices.prefetchable_32 and spec.pci_window is None:
        buses = len({port.node for port in places})
        fit = min(fit, max(1, len(places) - buses))
    fit_low = min(len(places), _LOW // low) if low else 0
    rank = {port.id: number for number, port in enumerate(order)}
    return tuple(
        WindowReserve(wide if rank[port.id] < fit else 0, low if rank[port.id] < fit_low else 0) for port in places
    )


def uefi_aperture(
    spec: MachineSpec,
    reserves: Sequence[WindowReserve],
    devices: BarSizes,
    address_bits: int | None,
    node_ports: int = 0,
) -> int:
    """Bytes of addresses above 4 GiB that OVMF is to give to devices: for the windows that ports reserve, and for a
    device on each port that is there from the start, which may be as large as any of ``devices``. 0: no such firmware,
    or it needs no more than it has by itself.

    If the CPUs cannot address that much, it is for as many devices as the machine has PCI slots, or for what the ports
    reserve alone; and then devices may find no addresses when the machine starts.
    """
    if spec.firmware != "uefi":
        return 0
    places = port_places(spec, node_ports)[: len(reserves)]
    ports = sorted(zip(places, reserves, strict=False), key=lambda each: each[0].window_order)
    for count in dict.fromkeys((len(ports), min(spec.pci_slots, len(ports)), 0)):
        sizes = [
            max(reserve.prefetchable, devices.prefetchable if number < count else 0)
            for number, (_, reserve) in enumerate(ports)
        ]
        size = _aperture(_by_bus([port for port, _ in ports], sizes))
        if _aperture_fits(spec, size, address_bits):
            return size if size > _OVMF_APERTURE else 0
    return 0


_OVMF_APERTURE = 32 * GIB
"""What OVMF has by itself."""


def _by_bus(ports: Sequence[PortPlace], windows: Sequence[int]) -> dict[int | None, list[int]]:
    """The windows of ports, of which the last ones may have none, by the guest node of their bus."""
    buses: dict[int | None, list[int]] = {port.node: [] for port in ports}
    for port, window in zip(ports, windows, strict=False):
        buses[port.node].append(window)
    return buses


def _aperture(buses: Mapping[int | None, Sequence[int]]) -> int:
    """For the windows of root buses. OVMF makes each as large as the next power of two, and puts it at a multiple of
    that; a GiB is for all small ones together. What several root buses need lies one after the other, each at a
    multiple of its largest window, and each has small ones too."""
    needs = {node: [_power_of_two(size) for size in windows] for node, windows in buses.items()}
    if len(needs) < 2:
        return sum(map(sum, needs.values())) + GIB
    total = 0
    for windows in needs.values():
        largest = max(windows, default=FIRMWARE_WINDOW)
        total += -(-(sum(windows) + FIRMWARE_WINDOW) // largest) * largest
    return total + GIB


def _aperture_fits(spec: MachineSpec, size: int, address_bits: int | None) -> bool:
    """Whether CPUs reach all of it: it begins above all memory, at a multiple of the largest power of two in it."""
    if address_bits is None:
        return True
    boundary = 1 << (size.bit_length() - 1)
    start = -(-_top(spec) // boundary) * boundary
    return start + size <= 1 << address_bits


def _power_of_two(size: int) -> int:
    """The least that is not smaller; at least what firmware gives a port."""
    return 1 << (max(size, FIRMWARE_WINDOW) - 1).bit_length()


def _top(spec: MachineSpec) -> int:
    """Where all memory that the machine can have ends: QEMU keeps a GiB more for each DIMM."""
    dimms = spec.hot_memory // spec.dimm_bytes if spec.dimm_bytes else max(1, len(spec.numa_cells))
    return _BELOW_4G + spec.memory.most + (dimms + 1) * GIB


def _room(spec: MachineSpec, address_bits: int | None) -> int | None:
    """The addresses that are left above all memory that the machine can have."""
    return None if address_bits is None else max(0, (1 << address_bits) - _top(spec) - GIB)


PERIPHERAL = "/machine/peripheral"
"""Where QEMU keeps the devices that have an id."""
_PORTS = frozenset({"child<pcie-root-port>", "child<ioh3420>"})
_NO_RESERVE = 1 << 63
"""QEMU says -1 of a port that reserves nothing, as a number without a sign."""
_ID = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,62}", re.ASCII)

QmpCommand = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class QemuBackend:
    """Something of the host that a device stands on: how it comes and how it goes."""

    add: QmpCommand
    remove: QmpCommand
    fd: int | None = None
    """The descriptor that ``add`` takes with it; open until then."""


@dataclass(frozen=True, slots=True)
class PciDevice:
    """One device for one slot."""

    id: str
    functions: tuple[Mapping[str, Any], ...]
    """Arguments of device_add but for id and place, the main function first. At most eight."""
    backends: tuple[QemuBackend, ...] = ()
    """In the order in which they are added."""

    def function_id(self, number: int) -> str:
        return function_id(self.id, number)


def function_id(device: str, number: int) -> str:
    """The id of one function of a device in QEMU."""
    return f"{device}.f{number}"


def device_id(claim_uid: str, pool: str, device: str, share: str | None = None) -> str:
    """How a device of a claim is called in the machine; QEMU's ids are short and plain, names of devices are not."""
    whole = "\0".join((claim_uid, pool, device, share or ""))
    return f"claim-{hashlib.sha256(whole.encode()).hexdigest()[:16]}"


def checked_id(name: str) -> str:
    """``name`` if QEMU takes it as an id. Raises Denied."""
    if _ID.fullmatch(name) is None:
        raise Denied("DeviceIdInvalid", f"invalid QEMU id {name!r}: a letter, then letters, digits, -._")
    return name


def passthrough_device(name: str, device: PreparedDevice) -> PciDevice:
    """A prepared device as QEMU takes it. Raises Denied (``DeviceNotPluggable``)."""
    if device.sysfsdev is not None:
        path = device.sysfsdev if device.sysfsdev.startswith("/sys/") else f"/sys/{device.sysfsdev}"
        return PciDevice(checked_id(name), ({"driver": "vfio-pci", "sysfsdev": path},))
    if not device.functions or device.binding == "none":
        raise Denied(
            "DeviceNotPluggable",
            f"device {device.name} is prepared as {device.binding}, which machines cannot use",
        )
    if len(device.functions) > 8:
        raise Denied("DeviceNotPluggable", f"device {device.name} has more than 8 functions")
    main, *others = ({"driver": "vfio-pci", "host": address} for address in device.functions)
    rom = {} if device.rom_file is None else {"romfile": device.rom_file}
    return PciDevice(checked_id(name), ({**main, **rom}, *others))


@dataclass(frozen=True, slots=True)
class RootPort:
    """A root port that a device can be plugged into."""

    name: str
    bus: str
    path: str
    """Of the bus, in QEMU's object tree."""
    busy: bool
    reserve: WindowReserve
    """What it reserves for a device, from the command line; nothing if unknown."""
    node: int | None = None
    """The guest's NUMA node whose expander bus it is on; None: it is on another bus."""


_EXPANDER = "child<pxb-pcie>"
_NODES = 128
"""QEMU has fewer NUMA nodes; this is its number of an expander bus of none."""


def list_root_ports(monitor: Monitor, deadline: Deadline) -> list[RootPort]:
    """All root ports, in the order of their names; what is on them, as QEMU has it whatever the guest did yet."""
    root_ports = []
    nodes = _expander_nodes(monitor, deadline)
    for folder in (PERIPHERAL, "/machine/peripheral-anon"):
        for entry in qom_list(monitor, folder, deadline):
            if entry["type"] not in _PORTS:
                continue
            path = f"{folder}/{entry['name']}"
            properties = qom_list(monitor, path, deadline)
            reserve = _reserve(monitor, path, {p["name"] for p in properties}, deadline)
            for bus in (p["name"] for p in properties if p["type"] == "child<PCIE>"):
                inside = qom_list(monitor, f"{path}/{bus}", deadline)
                busy = any(p["name"].startswith("child[") for p in inside)
                above = str(qom_get(monitor, path, "parent_bus", deadline)).rpartition("/")[2] if nodes else ""
                root_ports.append(RootPort(entry["name"], bus, f"{path}/{bus}", busy, reserve, nodes.get(above)))
    return sorted(root_ports, key=lambda port: [int(w) if w.isdigit() else w for w in re.split(r"(\d+)", port.name)])


def _expander_nodes(monitor: Monitor, deadline: Deadline) -> dict[str, int]:
    """The guest nodes of expander buses, by the name of the bus."""
    names = [str(each["name"]) for each in qom_list(monitor, PERIPHERAL, deadline) if each["type"] == _EXPANDER]
    nodes = {name: int(qom_get(monitor, f"{PERIPHERAL}/{name}", "numa_node", deadline)) for name in names}
    return {name: node for name, node in nodes.items() if 0 <= node < _NODES}


def _reserve(monitor: Monitor, path: str, properties: Container[str], deadline: Deadline) -> WindowReserve:
    def size(name: str) -> int:
        if name not in properties:
            return 0
        value = int(qom_get(monitor, path, name, deadline))
        return value if 0 < value < _NO_RESERVE else 0

    return WindowReserve(size("pref64-reserve"), size("mem-reserve"))


def present_devices(monitor: Monitor, deadline: Deadline) -> dict[str, str]:
    """The ids of all devices that QEMU has, with their types."""
    entries = qom_list(monitor, PERIPHERAL, deadline)
    return {e["name"]: e["type"][6:-1] for e in entries if e["type"].startswith("child<")}


def bus_of(monitor: Monitor, name: str, deadline: Deadline) -> str | None:
    """The path of the bus that a device is on; None if there is no such device."""
    try:
        return str(qom_get(monitor, f"{PERIPHERAL}/{name}", "parent_bus", deadline))
    except QmpRefused:
        return None


def guest_addresses(monitor: Monitor, deadline: Deadline) -> dict[str, str]:
    """Of each device that has an id: ``0000:01:00.0`` as the guest numbers it, once its firmware or kernel did."""

    def search(devices: list[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
        for device in devices:
            if name := device.get("qdev_id"):
                yield name, f"0000:{device['bus']:02x}:{device['slot']:02x}.{device['function']}"
            yield from search(device.get("pci_bridge", {}).get("devices") or [])

    return {
        name: address
        for bus in monitor.execute("query-pci", deadline=deadline)
        for name, address in search(bus["devices"])
    }
