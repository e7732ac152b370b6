"""The address of a guest in the network of its sandbox."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")


@dataclass(frozen=True, slots=True)
class NetworkAddress:
    """Who a guest is in its network."""

    address: str
    """IPv4, without its prefix."""
    prefix: int
    mac: str
    """Of the guest's card; frames from other ones are dropped."""
    gateway: str = ""
    """Empty: there is no way out of its subnet."""
    nameservers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises ValueError: all of it becomes a part of rules and of a kernel's command line."""
        ipaddress.IPv4Interface(self.interface)
        for each in (*self.nameservers, *filter(None, (self.gateway,))):
            ipaddress.IPv4Address(each)
        if not _MAC.fullmatch(self.mac):
            raise ValueError(f"invalid MAC address {self.mac!r}")

    @property
    def interface(self) -> str:
        """With its prefix, such as ``10.88.0.2/16``."""
        return f"{self.address}/{self.prefix}"

    def to_content(self) -> dict[str, Any]:
        """For records."""
        return {
            "address": self.interface,
            "mac": self.mac,
            "gateway": self.gateway,
            "nameservers": list(self.nameservers),
        }


def from_content(content: Mapping[str, Any]) -> NetworkAddress:
    """What ``to_content`` returned. Raises ValueError, LookupError, TypeError."""
    address, _, prefix = str(content["address"]).partition("/")
    servers = tuple(map(str, content.get("nameservers", ())))
    return NetworkAddress(address, int(prefix), str(content["mac"]), str(content.get("gateway", "")), servers)
