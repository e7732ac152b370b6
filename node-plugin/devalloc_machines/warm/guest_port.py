"""Inside a setup's namespace: the TAP interface and the way out of it on one bridge, and a filter for the guest.

The guest's frames pass only with its own MAC and address, so that it cannot pretend to be another one. The filter is in
the family ``bridge``: frames of a guest with limited bandwidth (`devalloc_node.host.traffic`) pass the earlier hooks
without being looked at.
"""

from __future__ import annotations

import errno
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from devalloc_machines.warm.addresses import JOINT, UPLINK, derived_mac
from devalloc_machines.warm.network import namespace_inode
from devalloc_machines.warm.setup import Setup, SetupPart
from devalloc_node.errors import Failed
from devalloc_node.host import firewall
from devalloc_node.host.network_namespace import has_interface, inside, interface_index, netlink
from devalloc_node.model.network_address import NetworkAddress

_TABLE = "devalloc"


@dataclass(frozen=True, slots=True)
class GuestPortPart(SetupPart):
    """The last of a network's parts: from then on the guest is in it."""

    nft: str = "nft"
    name: str = "guest-port"

    def make(self, setup: Setup) -> Setup:
        if setup.network is None:
            raise Failed("SetupFailed", "it has no address")
        join(setup, setup.network, self.nft)
        return setup

    def remove(self, setup: Setup) -> None:
        leave(setup)

    def is_whole(self, setup: Setup) -> bool:
        try:
            return inside(setup.namespace, lambda: _ports() == {setup.tap, UPLINK})
        except OSError:
            return False


def join(setup: Setup, network: NetworkAddress, nft: str) -> None:
    """Connect the guest. Raises OSError, FileExistsError."""

    def act() -> None:
        if has_interface(JOINT):
            raise FileExistsError(errno.EEXIST, f"interface {JOINT} already exists", str(setup.namespace))
        firewall.load_rules(nft, filter_rules(setup.tap, network))  # before the first frame can pass
        with netlink() as route:
            route.link("add", ifname=JOINT, kind="bridge", address=derived_mac("joint", setup.id), br_mcast_snooping=0)
            joint, uplink = interface_index(JOINT), interface_index(UPLINK)
            _strip(route, uplink)
            # A bridge keeps frames to the MAC of a port for itself, and CNI plugins gave the guest's MAC to this one.
            route.link("set", index=uplink, state="down")
            route.link("set", index=uplink, address=derived_mac("veth guest", setup.id))
            for index in (uplink, interface_index(setup.tap)):
                route.link("set", index=index, master=joint)
                route.link("set", index=index, state="up")
            route.link("set", index=joint, state="up")

    _in_own(setup, act)


def leave(setup: Setup) -> None:
    """Disconnect it. The filter goes with the namespace. Nothing to do if it is not connected. Raises OSError."""

    def act() -> None:
        if has_interface(JOINT):
            with netlink() as route:
                route.link("del", index=interface_index(JOINT))

    try:
        is_own = setup.inode is None or namespace_inode(setup.namespace) == setup.inode
    except OSError:  # without the namespace there is nothing in it either
        return
    if is_own:
        inside(setup.namespace, act)


def filter_rules(tap: str, network: NetworkAddress) -> str:
    """What may come from the guest: ARP and IPv4 with its own MAC and address. In DHCP, and while it looks whether its
    address is free, a guest has none yet."""
    mac, address = network.mac, ipaddress.IPv4Address(network.address)
    return f"""\
table bridge {_TABLE} {{
chain from_guest {{ type filter hook prerouting priority filter; policy accept;
iifname != "{tap}" accept
ether saddr != {mac} drop
ether type {{ vlan, 8021ad }} drop
ether type arp arp htype 1 arp ptype ip arp saddr ether {mac} arp saddr ip {{ 0.0.0.0, {address} }} accept
ether type ip ip saddr {address} accept
drop
}}
}}
"""


def _strip(route: Any, index: int) -> None:
    """Take away the addresses of an interface, and with them its routes: they are the guest's."""
    for each in route.get_addr(index=index, family=2):
        route.addr("del", index=index, address=each.get_attr("IFA_ADDRESS"), prefixlen=each["prefixlen"])


def _ports() -> set[str]:
    with netlink() as route:
        joint = interface_index(JOINT)
        return {link.get_attr("IFLA_IFNAME") for link in route.get_links() if link.get_attr("IFLA_MASTER") == joint}


def _in_own(setup: Setup, act: Callable[[], None]) -> None:
    if namespace_inode(setup.namespace) != setup.inode:
        raise OSError(errno.ESTALE, "is the mount of another namespace", str(setup.namespace))
    inside(setup.namespace, act)
