"""The port of a permit server for agents that speak plain HTTP and send no token."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address

from devalloc.machines.permits.settings import PodPort, UnsafeSettings

PLAIN_HTTP = (
    "%s speaks plain HTTP to the permit server, which serves TLS%s; agents that know no TLS need a port of "
    "their own (--neon-permits)"
)
NOT_ADMITTED = (
    "%s asked for permits at --neon-permits and was cut off%s: its address is in no network of --neon-agents; if it "
    "is an agent's, add it"
)


@dataclass(frozen=True, slots=True)
class PlainListener(PodPort):
    """That of Neon's agents. Raises UnsafeSettings if it would be open to everyone."""

    option: str = "--neon-permits"
    stranger: str = NOT_ADMITTED

    def __post_init__(self) -> None:
        try:
            is_every_address = ip_address(self.host).is_unspecified
        except ValueError:
            raise UnsafeSettings(f"plain HTTP needs one IP address to listen at, not {self.host!r}") from None
        if is_every_address:
            raise UnsafeSettings(f"plain HTTP needs one address to listen at; {self.host} stands for all of this host")
        if not self.networks:
            raise UnsafeSettings("plain HTTP needs the networks from which agents may ask")
        if (everyone := next((each for each in self.networks if each.prefixlen == 0), None)) is not None:
            raise UnsafeSettings(f"plain HTTP would be open to everyone: {everyone} contains every address")
