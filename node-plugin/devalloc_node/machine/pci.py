"""PCI devices as QEMU is told of them, and where in a machine they are plugged in."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied
from devalloc_node.machine.monitor import Monitor, Refused
from devalloc_node.machine.windows import Reserve
from devalloc_node.prepared import PreparedDevice

PERIPHERAL = "/machine/peripheral"
"""Where QEMU keeps the devices that have an id."""
_PORTS = frozenset({"child<pcie-root-port>", "child<ioh3420>"})
_NO_RESERVE = 1 << 63
"""QEMU says -1 of a port that reserves nothing, as a number without a sign."""
_ID = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,62}", re.ASCII)

Command = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Backend:
    """Something of the host that a device stands on: how it comes and how it goes."""

    add: Command
    remove: Command
    fd: int | None = None
    """The descriptor that ``add`` takes with it; open until then."""


@dataclass(frozen=True, slots=True)
class PciDevice:
    """One device for one slot."""

    id: str
    functions: tuple[Mapping[str, Any], ...]
    """Arguments of device_add but for id and place, the main function first. At most eight."""
    backends: tuple[Backend, ...] = ()
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
    """``name`` where QEMU takes it as an id. Raises Denied."""
    if _ID.fullmatch(name) is None:
        raise Denied("DeviceIdInvalid", f"{name!r} is not an id that QEMU takes: a letter, then letters, digits, -._")
    return name


def passed_through(name: str, device: PreparedDevice) -> PciDevice:
    """A prepared device as QEMU takes it. Raises Denied (``DeviceNotPluggable``)."""
    if device.sysfsdev is not None:
        path = device.sysfsdev if device.sysfsdev.startswith("/sys/") else f"/sys/{device.sysfsdev}"
        return PciDevice(checked_id(name), ({"driver": "vfio-pci", "sysfsdev": path},))
    if not device.functions or device.binding == "none":
        raise Denied(
            "DeviceNotPluggable",
            f"device {device.name} is prepared as {device.binding}, which no machine can be given",
        )
    if len(device.functions) > 8:
        raise Denied("DeviceNotPluggable", f"device {device.name} has more than 8 functions")
    return PciDevice(checked_id(name), tuple({"driver": "vfio-pci", "host": address} for address in device.functions))


@dataclass(frozen=True, slots=True)
class Port:
    """A root port that a device can be plugged into."""

    name: str
    bus: str
    path: str
    """Of the bus, in QEMU's object tree."""
    busy: bool
    reserve: Reserve
    """What it keeps for a device, as it was started; nothing where nobody tells."""


def ports(monitor: Monitor, deadline: Deadline) -> list[Port]:
    """All root ports, in the order of their names; what is on them, as QEMU has it whatever the guest did yet."""
    found = []
    for folder in (PERIPHERAL, "/machine/peripheral-anon"):
        for entry in monitor.execute("qom-list", {"path": folder}, deadline=deadline):
            if entry["type"] not in _PORTS:
                continue
            path = f"{folder}/{entry['name']}"
            properties = monitor.execute("qom-list", {"path": path}, deadline=deadline)
            reserve = _reserve(monitor, path, {p["name"] for p in properties}, deadline)
            for bus in (p["name"] for p in properties if p["type"] == "child<PCIE>"):
                inside = monitor.execute("qom-list", {"path": f"{path}/{bus}"}, deadline=deadline)
                busy = any(p["name"].startswith("child[") for p in inside)
                found.append(Port(entry["name"], bus, f"{path}/{bus}", busy, reserve))
    return sorted(found, key=lambda port: [int(w) if w.isdigit() else w for w in re.split(r"(\d+)", port.name)])


def _reserve(monitor: Monitor, path: str, properties: Container[str], deadline: Deadline) -> Reserve:
    def size(name: str) -> int:
        if name not in properties:
            return 0
        value = int(monitor.execute("qom-get", {"path": path, "property": name}, deadline=deadline))
        return value if 0 < value < _NO_RESERVE else 0

    return Reserve(size("pref64-reserve"), size("mem-reserve"))


def present(monitor: Monitor, deadline: Deadline) -> dict[str, str]:
    """The ids of all devices that QEMU has, with their types."""
    entries = monitor.execute("qom-list", {"path": PERIPHERAL}, deadline=deadline)
    return {e["name"]: e["type"][6:-1] for e in entries if e["type"].startswith("child<")}


def place(monitor: Monitor, name: str, deadline: Deadline) -> str | None:
    """The path of the bus that a device is on; None where there is no such device."""
    try:
        where = monitor.execute(
            "qom-get", {"path": f"{PERIPHERAL}/{name}", "property": "parent_bus"}, deadline=deadline
        )
    except Refused:
        return None
    return str(where)


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
