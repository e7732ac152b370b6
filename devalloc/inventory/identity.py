"""What the host shows of a device that identifies it (``devalloc.api.device_identity``), and which slot it is in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from devalloc.api.device_identity import KIND, SUBSYSTEM
from devalloc.device_kinds import STORAGE
from devalloc.inventory.device_users import nvme_controllers
from devalloc.inventory.pci import NVIDIA, Address, PciFunction, device_serial_number
from devalloc.inventory.pci_ids import hex_id
from devalloc.inventory.sysfs import Folder, Tree

_AMD = 0x1002
_MOST = 64
"""Characters of a serial number: what a device reports is never trusted to be short."""
_LONGEST_NQN = 223
_UNPRINTABLE = re.compile(r"[^ -~]+", re.ASCII)
_GPU_UUID = re.compile(r"^GPU UUID:\s*(GPU-[0-9a-f-]{36})$", re.MULTILINE | re.ASCII)
_NAMESPACE = re.compile(r"nvme[0-9]+(?:c[0-9]+)?n[0-9]+", re.ASCII)
_SLOT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,62}", re.ASCII)


def function_identity(function: PciFunction, pf: PciFunction | None = None) -> dict[str, str]:
    """The identity of a PCI function. ``pf``: the physical function of a VF, which knows board, serial and UUID."""
    identity = {"vendorID": hex_id(function.vendor)}
    if function.device is not None:
        identity["deviceID"] = hex_id(function.device)
    if pf is None and STORAGE.matches(function.subclass, function.vendor, function.device):
        identity[KIND] = STORAGE.name
        if (subsystem := _subsystem(function)) is not None:
            identity[SUBSYSTEM] = subsystem
    return identity | unit_identity(pf or function)


def unit_identity(function: PciFunction) -> dict[str, str]:
    """What tells a card from others of its chip, as its physical function shows it: ``subsystemID`` (the board, by the
    IDs of its maker, such as ``0x10de:0x16ca``), ``serial`` and ``uuid``."""
    if function.physfn is not None:
        return {}
    vendor, device = function.folder.number("subsystem_vendor"), function.folder.number("subsystem_device")
    board = f"{hex_id(vendor)}:{hex_id(device)}" if vendor and device and vendor != 0xFFFF else None
    values = {"subsystemID": board, "serial": _serial(function), "uuid": _uuid(function)}
    return {name: value for name, value in values.items() if value is not None}


def physical_slots(tree: Tree) -> dict[tuple[int, int, int], str]:
    """The names of the host's slots for cards, by domain, bus and slot of what is in them."""
    listing = tree.sys.folder("bus", "pci", "slots") if tree.sys else None
    slots: dict[tuple[int, int, int], str] = {}
    for name in listing.names() if listing else ():
        folder = listing.folder(name) if listing else None
        address = Address.parse(f"{(folder.text('address') or '').strip()}.0") if folder else None
        if address is not None and _SLOT_NAME.fullmatch(name):
            slots.setdefault(address[:3], name)
    return slots


def _serial(function: PciFunction) -> str | None:
    """Always from one source for one kind of device: another one would look like another device."""
    if STORAGE.matches(function.subclass, function.vendor, function.device):
        return _drive_serial(function)
    if function.vendor == _AMD:
        return _text(function.folder, "unique_id")
    return device_serial_number(function)


def _drive_serial(function: PciFunction) -> str | None:
    """The serial number of a drive; None where another drive of the host has the same one: then it identifies none.

    The controllers of one drive with several ports have its subsystem name in common, too.
    """
    place = function.folder.folder("nvme")
    own = next(_controllers(place, nvme_controllers(function)), None) if place is not None else None
    serial = _text(own, "serial") if own is not None else None
    if own is None or serial is None:
        return None
    listing = own.tree.sys.folder("class", "nvme") if own.tree.sys is not None else None
    others = _controllers(listing, listing.names()) if listing is not None else ()
    is_shared = any(_text(other, "serial") == serial and _is_other_drive(own, other) for other in others)
    return None if is_shared else serial


def _subsystem(function: PciFunction) -> str | None:
    """The name of a drive's NVM subsystem, as its driver shows it."""
    place = function.folder.folder("nvme")
    own = next(_controllers(place, nvme_controllers(function)), None) if place is not None else None
    return _text(own, "subsysnqn", _LONGEST_NQN) if own is not None else None


def _controllers(folder: Folder, names: Iterable[str]) -> Iterator[Folder]:
    return (controller for name in names if (controller := folder.folder(name)) is not None)


def _is_other_drive(one: Folder, other: Folder) -> bool:
    """Whether two controllers are those of two drives in this host."""
    if one.path == other.path or other.text("transport") not in (None, "pcie"):
        return False
    subsystem = one.text("subsysnqn")
    return subsystem is None or other.text("subsysnqn") != subsystem


def _uuid(function: PciFunction) -> str | None:
    if function.driver == "nvidia" and function.vendor == NVIDIA:
        proc = function.folder.tree.proc
        card = proc.folder("driver", "nvidia", "gpus", str(function.address)) if proc else None
        match = _GPU_UUID.search((card.text("information") if card else None) or "")
        return match[1] if match else None
    return next(_namespace_ids(function), None)


def _namespace_ids(function: PciFunction) -> Iterator[str]:
    """The identifiers of a drive's namespaces, which are unique in the world."""
    for controller in nvme_controllers(function):
        for name in sorted(filter(_NAMESPACE.fullmatch, function.folder.names("nvme", controller))):
            folder = function.folder.folder("nvme", controller, name)
            if folder is not None and (text := _text(folder, "wwid")) is not None:
                yield text


def _text(folder: Folder, name: str, most: int = _MOST) -> str | None:
    text = _UNPRINTABLE.sub(" ", folder.text(name) or "").strip()
    return text[:most] if text.strip("0 ") else None
