"""What this host uses its network interfaces for: default routes, addresses, bridges, and what stands on them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from devalloc.inventory.class_devices import NET
from devalloc.inventory.network_namespaces import StackedInterfaces, stacked_interfaces
from devalloc.inventory.nic import network_interfaces
from devalloc.inventory.pci import Address, PciFunction, read_pci_function
from devalloc.inventory.proc_tables import first_unreadable, table
from devalloc.inventory.sysfs import Folder, Tree, ipv4_interfaces

_LINK_PROTOCOLS = frozenset({"8863", "8864", "8892", "88a2", "88a4", "888e", "88f7", "8906", "8914"})
"""PPPoE, PROFINET, ATA over Ethernet, EtherCAT, 802.1X, PTP, FCoE: a host service that stands on the link. Not those of
all protocols, of IPv4 or of LLDP: ``lldpd`` and DHCP clients listen on every interface, and need none of them. What
captures packets shows by promiscuity (``network_namespaces``).
"""
_WITHOUT_ADDRESS = {280: "CAN", 803: "frames of Wi-Fi", 804: "IEEE 802.15.4", 805: "IEEE 802.15.4"}
"""By type (``ARPHRD``): networks that need no address of IP. The host uses such an interface if it is up."""
_IS_UP = 0x1
_OF_PROGRAMS = "packet_rcv"
"""In the names of the kernel's functions that take packets for the sockets of programs (``packet``)."""
_FILES = frozenset({"route", "ipv6_route", "if_inet6", "pppoe", "packet", "ptype"})
_LINK_LOCAL = "20"
_SOCKET_DIRECT_DRIVER = "mlx5_core"
_MOST_OF_NAME = 40
_VPD_SIZE = 1 << 15
_VPD_READ_ONLY = 0x90


@dataclass(slots=True)
class NetworkUse:
    """Interfaces that the host uses."""

    tree: Tree
    default_route: frozenset[str]
    """Those of a default route."""
    addressed: frozenset[str]
    """Those with an address or a route."""
    pppoe: frozenset[str]
    """Those that connections of PPPoE go through: they need no address, and nothing in sysfs tells."""
    packets: frozenset[int]
    """The numbers of those on which programs speak a protocol of the link, which needs no address of the host."""
    handlers: Mapping[str, str]
    """By interface: the kernel's function that takes packets of just this one, as of TIPC or FCoE."""
    unseen: bool
    """The host's addresses and routes are not those that this process sees."""
    unread: str | None
    """What could not be read of this: the name of a file such as ``route``, or in words."""
    _stacked: StackedInterfaces | None = field(default=None, init=False)

    @classmethod
    def read(cls, tree: Tree) -> NetworkUse:
        before = tree.fault_count
        default_route, addressed = _routes(tree)
        addressed |= _ipv6(tree) | ipv4_interfaces(tree)
        pppoe, packets = frozenset(_pppoe(tree)), frozenset(_packet_sockets(tree))
        handlers = dict(_packet_handlers(tree))
        unread = first_unreadable(tree, _FILES)
        if unread is None and tree.fault_count != before:
            unread = "what the host uses its network for"
        unseen = _is_in_another_network(tree)
        return cls(tree, frozenset(default_route), frozenset(addressed), pppoe, packets, handlers, unseen, unread)

    @property
    def stacked(self) -> StackedInterfaces:
        """What stands on interfaces, also in other network namespaces."""
        if self._stacked is None:
            self._stacked = stacked_interfaces(self.tree)
            if self._stacked.problem is not None:
                self.tree.fault("/proc", f"may not show all that stands on interfaces: {self._stacked.problem}")
        return self._stacked

    def need(self, interfaces: Collection[Folder]) -> str | None:
        """What the host needs one of the interfaces for; None for nothing that is known."""
        if not interfaces:
            return None
        if self.unseen:
            return "its network is not this process's (run with the host's network namespace)"
        if self.unread is not None:
            return f"{self.unread} cannot be read"
        for interface in interfaces:
            if interface.name in self.default_route:
                return "default route"
        for interface in interfaces:
            if (own := self._traffic(interface)) is not None:
                return own
            before = self.tree.fault_count
            names = interface.names()
            if self.tree.fault_count != before:
                return f"{interface.name} cannot be read"
            if "master" in names:
                return f"member of {interface.link('master')}"
            upper = next((name for name in names if name.startswith("upper_")), None)
            if upper is not None:
                return f"carries {upper.removeprefix('upper_')}"
        for interface in interfaces:
            if (standing := self.stacked.by_parent.get(interface.name)) is not None:
                return f"carries {standing}"
            if (capture := self.stacked.captured.get(interface.name)) is not None:
                return f"{capture} {interface.name}"
        return None

    def _traffic(self, interface: Folder) -> str | None:
        if interface.name in self.addressed:
            return f"address on {interface.name}"
        if interface.name in self.pppoe:
            return f"carries PPPoE on {interface.name}"
        if self.packets and interface.number("ifindex") in self.packets:
            return f"a program speaks a link protocol on {interface.name}"
        if (handler := self.handlers.get(interface.name)) is not None:
            return f"the kernel speaks a link protocol on {interface.name} ({handler})"
        kind = _WITHOUT_ADDRESS.get(interface.number("type") or 0)
        if kind is not None and (interface.number("flags") or 0) & _IS_UP:
            return f"carries {kind} on {interface.name}"
        return None

    def problem(self, interfaces: Collection[Folder]) -> str | None:
        """Why it is not certain that nothing stands on the interfaces; None where it is."""
        return self.stacked.problem if interfaces else None

    def need_of_other_half(self, function: PciFunction) -> str | None:
        """What the host needs the interface for that is made of this function and another one; None for nothing."""
        if not may_be_half(function):
            return None
        others = socket_direct_partners(function)
        if others is None:
            return "it cannot be seen which interfaces use it, too"
        for other in others:
            interfaces = network_interfaces(other)
            if (need := self.need(interfaces)) is not None:
                return f"{interfaces[0].name} of {other.address} uses it, too: {need}"
            if NET in other.below.elsewhere:
                return f"the interface of {other.address} uses it, too, and is in another network namespace"
            if not other.below.is_complete:
                return f"an interface of {other.address} may use it, too, and cannot be read"
        return None


def may_be_half(function: PciFunction) -> bool:
    """Whether an interface of another function may also send and receive by this one, which has none (mlx5 Socket
    Direct)."""
    if function.driver != _SOCKET_DIRECT_DRIVER or function.physfn is not None:
        return False
    return NET not in function.below.elsewhere and not network_interfaces(function)


def socket_direct_partners(function: PciFunction) -> list[PciFunction] | None:
    """The functions whose interface may also send and receive by a half. The driver tells in debugfs. Where that cannot
    be read, it is any function of the same model, and of the same card as far as the serial numbers tell. None where
    not all functions can be read.
    """
    tree, system = function.folder.tree, function.folder.tree.sys
    debug = system.folder("kernel", "debug", "mlx5") if system is not None else None
    before = tree.fault_count
    if debug is not None and str(function.address) in debug.names():
        groups = (set(_group(debug, name)) for name in debug.names())
        addresses = next((group for group in groups if function.address in group), set())
        others = [*_functions(system, addresses - {function.address})]
        return others if tree.fault_count == before else None
    drivers = system.folder("bus", "pci", "drivers", _SOCKET_DIRECT_DRIVER) if system is not None else None
    bound = {address for name in (drivers.names() if drivers else ()) if (address := Address.parse(name))}
    others = [*_functions(system, bound - {function.address})]
    if tree.fault_count != before or function.device is None:
        return None
    serial = _board_serial(function)
    return [
        other
        for other in others
        if other.physfn is None
        and (other.vendor, other.device) == (function.vendor, function.device)
        and (serial is None or _board_serial(other) in (None, serial))
    ]


def _functions(system: Folder | None, addresses: Collection[Address]) -> Iterator[PciFunction]:
    for address in sorted(addresses):
        folder = system.folder("bus", "pci", "devices", str(address)) if system is not None else None
        function = read_pci_function(address, folder) if folder is not None else None
        if function is not None:
            yield function


def _group(debug: Folder, name: str) -> Iterator[Address]:
    """The functions of a group, whose files are below its primary function: ``0000:08:00.0 vhca 0x0``."""
    folder = debug.folder(name, "multi-pf")
    for file in folder.names() if folder is not None else ():
        if folder is not None and (file == "primary" or file.startswith("secondary_")):
            address = Address.parse((folder.text(file) or "").partition(" ")[0])
            if address is not None:
                yield address


def _board_serial(function: PciFunction) -> bytes | None:
    """The serial number of the board in its vital product data, which only root can read."""
    data = function.folder.raw("vpd", _VPD_SIZE) if "vpd" in function.entries else None
    at = 0
    while data and at + 3 <= len(data) and data[at] & 0x80:
        end = at + 3 + int.from_bytes(data[at + 1 : at + 3], "little")
        if data[at] == _VPD_READ_ONLY:
            return _keyword(data[at + 3 : end], b"SN")
        at = end
    return None


def _keyword(data: bytes, wanted: bytes) -> bytes | None:
    at = 0
    while at + 3 <= len(data):
        value = data[at + 3 : at + 3 + data[at + 2]]
        if data[at : at + 2] == wanted:
            return value.strip() or None
        at += 3 + data[at + 2]
    return None


def _routes(tree: Tree) -> tuple[set[str], set[str]]:
    """Interfaces of default routes, and of any route: those without an address are used, too, where
    routers find each other by link-local addresses (BGP unnumbered)."""
    default: set[str] = set()
    any_route: set[str] = set()
    for row in table(tree, "net", "route")[1:]:
        if len(row) >= 8:
            any_route.add(row[0])
            if row[1] == "00000000" == row[7]:
                default.add(row[0])
    for row in table(tree, "net", "ipv6_route"):
        if len(row) == 10 and row[9] != "lo" and not _is_on_every_link(row[0]):
            any_route.add(row[9])
            if row[0] == "0" * 32 and row[1] == "00":
                default.add(row[9])
    return default, any_route


def _is_on_every_link(destination: str) -> bool:
    """Whether the kernel makes such a route of IPv6 for each interface that is up: link-local, or multicast."""
    return destination.startswith(("fe8", "fe9", "fea", "feb", "ff"))


def _is_in_another_network(tree: Tree) -> bool:
    """Whether this process has a network namespace of its own: a container that sees the host's /sys has the names of
    its interfaces from there, and routes and addresses from elsewhere."""
    places = (tree.proc.folder(process, "ns") if tree.proc else None for process in ("self", "1"))
    own, first = (place.link("net", may_be_denied=True) if place is not None else None for place in places)
    return own is not None and first is not None and own != first


def _ipv6(tree: Tree) -> set[str]:
    """Interfaces with an IPv6 address that is not link-local: every interface that is up has one of those."""
    return {row[5] for row in table(tree, "net", "if_inet6") if len(row) == 6 and row[3] != _LINK_LOCAL}


def _pppoe(tree: Tree) -> set[str]:
    """Interfaces under ``ppp0`` and the like, also if a default route goes by that one."""
    return {row[2] for row in table(tree, "net", "pppoe")[1:] if len(row) == 3}


def _packet_sockets(tree: Tree) -> Iterator[int]:
    """The numbers of the interfaces on which programs speak a protocol of the link by a packet socket; a socket of all
    interfaces has none."""
    for row in table(tree, "net", "packet")[1:]:
        is_number = len(row) >= 5 and row[4].isascii() and row[4].isdigit() and len(row[4]) < 10
        if is_number and int(row[4]) and row[3].lower() in _LINK_PROTOCOLS:
            yield int(row[4])


def _packet_handlers(tree: Tree) -> Iterator[tuple[str, str]]:
    """Interfaces of which the kernel itself takes packets for a protocol, and the function that does; a protocol of all
    interfaces, such as IPv4, names none."""
    for row in table(tree, "net", "ptype")[1:]:
        if len(row) >= 3 and not row[2].startswith("[") and _OF_PROGRAMS not in row[2]:
            yield row[1], row[2][:_MOST_OF_NAME]
