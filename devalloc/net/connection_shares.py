"""Who has how many of a port's connections: each source address has a share, so that no one keeps others out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Generic, TypeVar

Connection = TypeVar("Connection")


def source_of(address: str) -> str:
    """What an address is counted as: the addresses of one IPv6 network of 64 bits count as one."""
    try:
        client = ip_address(address)
    except ValueError:
        return address
    if not isinstance(client, IPv6Address):
        return address
    return str(client.ipv4_mapped or IPv6Network((client, 64), strict=False))


def share_of(most: int) -> int:
    """How much of something one address can have: three quarters, so that others always get in."""
    return max(1, most * 3 // 4)


@dataclass(slots=True)
class ConnectionShares(Generic[Connection]):
    """The open connections of a port."""

    most: Callable[[], int]
    """How many there may be, of all addresses together."""
    is_busy: Callable[[Connection], bool]
    """Whether one is being answered."""
    open: dict[str, dict[Connection, None]] = field(default_factory=dict)
    """By source address, from the one that has been idle for longest."""
    count: int = 0
    """Of all of them."""

    def admit(self, source: str, connection: Connection) -> None:
        """It is open."""
        self.open.setdefault(source, {})[connection] = None
        self.count += 1

    def forget(self, source: str, connection: Connection) -> None:
        """It is closed; fine if it was before."""
        of_source = self.open.get(source, {})
        if connection in of_source:
            del of_source[connection]
            self.count -= 1
            if not of_source:
                del self.open[source]

    def was_used(self, source: str, connection: Connection) -> None:
        """It is idle from now on."""
        of_source = self.open.get(source, {})
        if connection in of_source:  # the longest idle come first
            of_source[connection] = of_source.pop(connection)

    def has_room(self, source: str) -> bool:
        """Whether one more fits in from an address, without another going."""
        most = self.most()
        return self.count < most and len(self.open.get(source, ())) < share_of(most)

    def displaced_by(self, source: str) -> Connection | None:
        """The connection that makes room for one more from an address: the one that has been idle for longest among
        those of the address that has most; so an address that floods displaces only its own. None: there is none, and
        the new one is refused."""
        largest = source
        if self.count >= self.most():
            largest = max(self.open, key=lambda each: (len(self.open[each]), each == source), default=source)
            if len(self.open.get(source, ())) >= len(self.open.get(largest, ())):
                largest = source
        return next((each for each in self.open.get(largest, ()) if not self.is_busy(each)), None)
