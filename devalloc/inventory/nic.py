"""Network cards: their interfaces, and what is published of them."""

from __future__ import annotations

import re

from devalloc.api.pool import AttributeValue
from devalloc.api.quantity import NANO, Quantity
from devalloc.device_kinds import NIC
from devalloc.inventory.pci import PciFunction
from devalloc.inventory.sysfs import Folder

_LINK_BY_SUBCLASS = {0x0200: "ethernet", 0x0207: "infiniband"}
_LINK_BY_TYPE = {1: "ethernet", 32: "infiniband"}  # ARPHRD_ETHER, ARPHRD_INFINIBAND
_MEGABIT = 10**6
_MAC = re.compile(r"(?:[0-9a-f]{2}:){5}(?:[0-9a-f]{2}|(?:[0-9a-f]{2}:){14}[0-9a-f]{2})", re.ASCII)
_REPRESENTOR = re.compile(r"(?:c[0-9]+)?pf[0-9]+(?:vf|sf)[0-9]+", re.ASCII)
"""What ``phys_port_name`` says of an interface that stands for a virtual function inside the card's switch."""
_VIRTIO = re.compile(r"virtio[0-9]+", re.ASCII)


def is_nic(function: PciFunction) -> bool:
    """True for network controllers of any sort."""
    return NIC.matches(function.subclass, function.vendor, function.device)


def network_interfaces(function: PciFunction) -> list[Folder]:
    """The network interfaces that drivers have made of the function, in this network namespace."""
    places = [function.folder] if "net" in function.entries else []
    places += filter(None, map(function.folder.folder, _virtio(function)))
    return [folder for place in places for name in place.names("net") if (folder := place.folder("net", name))]


def own_interface(function: PciFunction) -> Folder | None:
    """The interface that is the function's own: a card in switchdev mode has one for each of its VFs beside it, which
    may come first by name."""
    candidates = network_interfaces(function)
    if len(candidates) > 1:
        candidates = [each for each in candidates if not _REPRESENTOR.fullmatch(each.text("phys_port_name") or "")]
    return candidates[0] if candidates else None


def is_in_other_namespace(function: PciFunction) -> bool:
    """True when the interface exists but in another network namespace: the kernel shows an empty ``net`` folder."""
    return function.folder.folder("net") is not None and not function.folder.names("net")


def mac_address(function: PciFunction) -> str | None:
    """The hardware address of the function's own interface, as long as the host has one."""
    interface = own_interface(function)
    mac = None if interface is None else interface.text("address")
    return mac if mac is not None and _MAC.fullmatch(mac) else None


def nic_attributes(function: PciFunction) -> dict[str, AttributeValue]:
    """linkType, linkSpeed (bit/s), mac and rdma, as far as they are known."""
    values: dict[str, AttributeValue] = {"rdma": int(bool(function.folder.names("infiniband")))}
    link = _LINK_BY_SUBCLASS.get(function.subclass)
    if (interface := own_interface(function)) is not None:
        link = _LINK_BY_TYPE.get(interface.number("type") or 0, link)
        speed = interface.number("speed")
        if speed is not None and 0 < speed < 2**32 - 1:  # -1 and its unsigned form: no carrier
            values["linkSpeed"] = Quantity(speed * _MEGABIT * NANO)
        if (mac := mac_address(function)) is not None:
            values["mac"] = mac
    if link is not None:
        values["linkType"] = link
    return values


def _virtio(function: PciFunction) -> list[str]:
    return sorted(name for name in function.entries if name.startswith("virtio") and _VIRTIO.fullmatch(name))
