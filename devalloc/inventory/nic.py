"""Network cards: their interfaces, and what is published of them."""

from __future__ import annotations

import re

from devalloc.api.pool import AttributeValue
from devalloc.api.quantity import NANO, Quantity
from devalloc.device_kinds import NIC
from devalloc.inventory.class_devices import NET, ClassDevices
from devalloc.inventory.pci import PciFunction
from devalloc.inventory.sysfs import Folder

_LINK_BY_SUBCLASS = {0x0200: "ethernet", 0x0207: "infiniband"}
_LINK_BY_TYPE = {1: "ethernet", 32: "infiniband"}  # ARPHRD_ETHER, ARPHRD_INFINIBAND
_MEGABIT = 10**6
_MAC = re.compile(r"(?:[0-9a-f]{2}:){5}(?:[0-9a-f]{2}|(?:[0-9a-f]{2}:){14}[0-9a-f]{2})", re.ASCII)
_REPRESENTOR = re.compile(r"(?:c[0-9]+)?pf[0-9]+(?:(?:vf|sf)[0-9]+)?", re.ASCII)
"""What ``phys_port_name`` says of an interface that stands for another function inside the card's switch: a virtual or
scalable one, and on a DPU (``c1pf0``) the one that its host has."""
_OWN_PLACE = re.compile(r"(?:virtio[0-9]+/)?net/", re.ASCII)
"""Where a driver puts the function's own interface."""


def is_nic(function: PciFunction) -> bool:
    """True for network controllers of any sort."""
    return NIC.matches(function.subclass, function.vendor, function.device)


def network_interfaces(function: PciFunction) -> list[Folder]:
    """The network interfaces that hang below the function, in this network namespace."""
    return [device.folder for device in function.below.of_class(NET)]


def own_interface(below: ClassDevices) -> Folder | None:
    """The interface that is a function's own, and not that of a subfunction or of a device on it. A card in switchdev
    mode has one for each of its VFs beside it, and a DPU those of its host, which may come first by name. ``below``:
    what hangs below the function."""
    start = len(below.folder.path) + 1
    candidates = [each.folder for each in below.of_class(NET) if _OWN_PLACE.match(each.folder.path[start:])]
    if len(candidates) > 1:
        candidates = [each for each in candidates if not _REPRESENTOR.fullmatch(each.text("phys_port_name") or "")]
    return candidates[0] if candidates else None


def mac_address(function: PciFunction) -> str | None:
    """The hardware address of the function's own interface, as long as the host has one."""
    interface = own_interface(function.below)
    mac = None if interface is None else interface.text("address")
    return mac if mac is not None and _MAC.fullmatch(mac) else None


def _has_rdma(function: PciFunction) -> bool:
    """Whether the function can do RDMA. Ports of one card in a bond (RoCE LAG) have one RDMA device together, below the
    first of them."""
    if function.folder.names("infiniband"):
        return True
    bond, tree = _bond(own_interface(function.below)), function.folder.tree
    if bond is None or function.physfn is not None or function.driver is None or tree.sys is None:
        return False
    for number in range(8):
        place = function.address._replace(function=number)
        sibling = tree.sys.folder("bus", "pci", "devices", str(place)) if place != function.address else None
        if sibling is None or sibling.link("driver") != function.driver or not sibling.names("infiniband"):
            continue
        ports = (sibling.folder("net", name) for name in sibling.names("net"))
        if any(_bond(port) == bond for port in ports):
            return True
    return False


def _bond(interface: Folder | None) -> str | None:
    return interface.link("master") if interface is not None else None


def nic_attributes(function: PciFunction) -> dict[str, AttributeValue]:
    """linkType, linkSpeed (bit/s), mac and rdma, as far as they are known."""
    values: dict[str, AttributeValue] = {"rdma": int(_has_rdma(function))}
    link = _LINK_BY_SUBCLASS.get(function.subclass)
    if (interface := own_interface(function.below)) is not None:
        link = _LINK_BY_TYPE.get(interface.number("type") or 0, link)
        speed = interface.number("speed")
        if speed is not None and 0 < speed < 2**32 - 1:  # -1 and its unsigned form: no carrier
            values["linkSpeed"] = Quantity(speed * _MEGABIT * NANO)
        if (mac := mac_address(function)) is not None:
            values["mac"] = mac
    if link is not None:
        values["linkType"] = link
    return values
