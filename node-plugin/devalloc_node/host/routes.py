"""How this host gets to an address: by which interface, and whether it is the host's own."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

_LOCAL = 2
"""RTN_LOCAL of rtnetlink(7)."""


@dataclass(frozen=True, slots=True)
class Route:
    """The way that the kernel would take now."""

    interface: str | None
    """None: there is no way there."""
    by_gateway: bool = False
    """Another host passes it on."""
    is_own: bool = False
    """It ends in this host."""
    is_tap: bool = False
    """Only a machine is behind the interface."""


NO_ROUTE = Route(None)


def route_to(address: str) -> Route:
    """The way to an address; NO_WAY where the kernel knows none. Raises OSError where it does not say."""
    from pyroute2 import IPRoute  # 0.2 s, which only hosts with machines that are scaled need
    from pyroute2.netlink.exceptions import NetlinkError

    family = {4: 2, 6: 10}[ipaddress.ip_address(address).version]
    with IPRoute() as routes:
        try:
            (answer,) = routes.route("get", dst=address, family=family)
            index = answer.get_attr("RTA_OIF")
            (link,) = routes.link("get", index=index)
        except (NetlinkError, ValueError):
            return NO_ROUTE
    name = str(link.get_attr("IFLA_IFNAME"))
    gateway = answer.get_attr("RTA_GATEWAY") or answer.get_attr("RTA_VIA")
    is_own = answer["type"] == _LOCAL or name == "lo"
    return Route(name, gateway is not None, is_own, Path(f"/sys/class/net/{name}/tun_flags").exists())
