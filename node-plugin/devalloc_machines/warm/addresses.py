"""Networks of warm setups: what an administrator says of them, and which address a setup gets.

Pure: records of setups say which addresses are in use (`devalloc_machines.warm.builder`).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

from devalloc.settings import FOLDER, BadSetting, OneOf, setting

Uplink = Literal["none", "nat", "route"]
"""What leaves the subnet: nothing; everything, by the host's address; everything, by the guest's own."""
UPLINK = "eth0"
"""The interface in a setup's namespace that leads out of it."""
JOINT = "br0"
"""The bridge in a setup's namespace that joins the TAP interface and ``UPLINK``."""
_BRIDGE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,14}")
_WIDEST, _NARROWEST = 8, 30


def _subnet(text: str) -> ipaddress.IPv4Network:
    try:
        return ipaddress.IPv4Network(text)
    except ValueError as error:
        raise ValueError(f"must be an IPv4 network such as 10.88.0.0/16: {error}") from None


def _nameserver(text: str) -> str:
    try:
        return str(ipaddress.IPv4Address(text))
    except ValueError as error:
        raise ValueError(f"must be an IPv4 address: {error}") from None


@dataclass(frozen=True, slots=True)
class BridgeNetwork:
    """The built-in network: a bridge of devalloc's own, with a veth pair to each setup."""

    bridge: str = setting(
        "The bridge of --warm-network bridge.", flag="--warm-bridge", default="devalloc0", metavar="NAME"
    )
    """devalloc creates and removes it."""
    subnet: ipaddress.IPv4Network = setting(
        "Addresses of --warm-network bridge: the first is this host's, the others are for guests.",
        flag="--warm-subnet",
        type=_subnet,
        default="10.88.0.0/16",
        metavar="CIDR",
    )
    uplink: Uplink = setting(
        "What leaves the subnet of --warm-network bridge: nothing; all, with the address of this host (nat); all, with "
        "the guest's own (route).",
        flag="--warm-uplink",
        type=OneOf(["none", "nat", "route"]),
        default="none",
    )
    isolated: bool = setting(
        "Guests in the network of warm setups do not reach each other.", flag="--warm-isolated", default=False
    )
    reach_host: bool = setting(
        "Guests in the network of warm setups can open connections to this host, not only answer it.",
        flag="--warm-reach-host",
        default=False,
    )
    nameservers: tuple[str, ...] = setting(
        "A nameserver of guests in the network of warm setups. Repeatable.",
        flag="--warm-nameserver",
        type=_nameserver,
        default=(),
        metavar="ADDRESS",
    )
    nft: str = "nft"

    def __post_init__(self) -> None:
        """Raises BadSetting."""
        if not _BRIDGE.fullmatch(self.bridge):
            raise BadSetting(
                "--warm-bridge", f"must be a letter and up to 14 letters, digits and '_', not {self.bridge!r}"
            )
        if not _WIDEST <= self.subnet.prefixlen <= _NARROWEST:
            raise BadSetting(
                "--warm-subnet", f"must have a prefix of {_WIDEST} to {_NARROWEST} bits, not {self.subnet}"
            )
        if self.subnet.is_multicast or self.subnet.is_loopback or self.subnet.is_link_local:
            raise BadSetting("--warm-subnet", f"must not be {self.subnet}, which no guest can use")

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

    name: str = setting(
        "The network of --warm-network cni.",
        flag="--cni-network",
        default="",
        metavar="NAME",
        unset="the first in --cni-conf-dir",
    )
    conf_dir: Path = setting(
        "Folder of the lists of CNI plugins.",
        flag="--cni-conf-dir",
        type=FOLDER,
        default=Path("/etc/cni/net.d"),
        metavar="DIR",
    )
    bin_dirs: tuple[Path, ...] = setting(
        "Folder of the CNI plugins. Repeatable.",
        flag="--cni-bin-dir",
        type=FOLDER,
        default=(Path("/opt/cni/bin"),),
        metavar="DIR",
    )
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
    from hashlib import sha256

    digest = sha256(" ".join(what).encode()).digest()
    return ":".join(f"{byte:02x}" for byte in (0x02, *digest[:5]))
