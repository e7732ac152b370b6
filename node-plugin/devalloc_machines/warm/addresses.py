"""Networks of warm setups: what an administrator says of them, and which address a setup gets.

Pure: records of setups say which addresses are in use (`devalloc_machines.warm.builder`).
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Collection
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

Uplink = Literal["none", "nat", "route"]
"""What leaves the subnet: nothing; everything, by the host's address; everything, by the guest's own."""
UPLINK = "eth0"
"""The interface in a setup's namespace that leads out of it."""
JOINT = "br0"
"""The bridge in a setup's namespace that joins the TAP interface and ``UPLINK``."""
_BRIDGE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,14}")
_WIDEST, _NARROWEST = 8, 30
DEFAULT_SUBNET = ipaddress.IPv4Network("10.88.0.0/16")


@dataclass(frozen=True, slots=True)
class BridgeNetwork:
    """The built-in network: a bridge of devalloc's own, with a veth pair to each setup."""

    bridge: str = "devalloc0"
    """devalloc creates and removes it."""
    subnet: ipaddress.IPv4Network = DEFAULT_SUBNET
    """Its first address is the host's, the others are for guests."""
    uplink: Uplink = "none"
    isolated: bool = False
    """Guests do not reach each other."""
    reach_host: bool = False
    """Guests can open connections to this host."""
    nameservers: tuple[str, ...] = ()
    nft: str = "nft"

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if not _BRIDGE.fullmatch(self.bridge):
            raise ValueError(
                "the bridge of warm setups must be named with a letter and up to 14 letters, digits and '_', not "
                f"{self.bridge!r}"
            )
        if not _WIDEST <= self.subnet.prefixlen <= _NARROWEST:
            raise ValueError(
                f"the subnet of warm setups must have a prefix of {_WIDEST} to {_NARROWEST} bits, not {self.subnet}"
            )
        if self.subnet.is_multicast or self.subnet.is_loopback or self.subnet.is_link_local:
            raise ValueError(f"the subnet of warm setups must not be {self.subnet}, which no guest can use")

    @property
    def gateway(self) -> ipaddress.IPv4Address:
        """The host's address."""
        return self.subnet[1]

    @property
    def size(self) -> int:
        """Addresses for guests."""
        return self.subnet.num_addresses - 3

    def free_address(self, after: int, taken: Collection[str]) -> str | None:
        """One that is not ``taken``: the first beyond number ``after`` of the subnet, so that none is used again soon;
        None if all are taken."""
        in_use = {self.number(address) for address in taken}
        first, last = 2, self.subnet.num_addresses - 2
        # Not one tuple of both: a subnet with a prefix of 8 bits has 16 million addresses
        for number in chain(range(max(first, after + 1), last + 1), range(first, min(after, last) + 1)):
            if number not in in_use:
                return str(self.subnet[number])
        return None

    def number(self, address: str) -> int:
        """Of an address, in the subnet."""
        return int(ipaddress.IPv4Address(address)) - int(self.subnet.network_address)


@dataclass(frozen=True, slots=True)
class CniNetwork:
    """A network that CNI plugins make, by a list of them that has a name."""

    name: str = ""
    """Of the network; empty: the first in ``conf_dir``."""
    conf_dir: Path = Path("/etc/cni/net.d")
    bin_dirs: tuple[Path, ...] = (Path("/opt/cni/bin"),)
    seconds: float = 60.0
    """How long all plugins of a list may take."""


def full_message(network: BridgeNetwork, setups: int) -> str:
    """Why no address is free, and what to do."""
    return (
        f"all {network.size} addresses of {network.subnet} for warm setups are in use by {setups} setups: return one, "
        "or choose a larger --warm-subnet"
    )


def derived_mac(*what: str) -> str:
    """A locally administered address that only this has."""
    digest = hashlib.sha256(" ".join(what).encode()).digest()
    return ":".join(f"{byte:02x}" for byte in (0x02, *digest[:5]))
