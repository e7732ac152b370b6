"""The bandwidth of a host: the speed of the interface through which machines reach the network."""

from __future__ import annotations

import re
from dataclasses import dataclass

from devalloc.inventory.sysfs import Tree

_BITS_OF_MEGABIT = 10**6
_INTERFACE = re.compile(r"[^/\s\x00]{1,15}", re.ASCII)
_MAX_SPEED = 2**32 - 1
"""-1 as an unsigned number, which some drivers give for "unknown"."""
_DEFAULT = "00000000"
_REJECT_INTERFACE = "*"
"""The interface of a route that only refuses."""


@dataclass(frozen=True, slots=True)
class Uplink:
    """Where machines reach the network."""

    interface: str | None
    """None where there is no IPv4 default route."""
    bandwidth: int | None
    """Bytes per second; None where nothing tells."""
    reason: str = ""
    """Why the bandwidth is not known."""


def read_uplink(tree: Tree, configured: str | None = None) -> Uplink:
    """The configured interface, or that of the first IPv4 default route, and its speed."""
    name = configured or default_interface(tree)
    if name is None:
        return Uplink(None, None, "there is no IPv4 default route; name the interface with --uplink")
    if _INTERFACE.fullmatch(name) is None or name in (".", ".."):
        return Uplink(None, None, f"invalid interface name {name[:40]!r}")
    place = tree.sys.folder("class", "net", name) if tree.sys else None
    if place is None:
        return Uplink(name, None, f"there is no interface {name}")
    speed = place.number("speed")
    if speed is None or not 0 < speed < _MAX_SPEED:
        problem = "does not report its speed" if speed is None else f"has the speed {speed} (no carrier, or virtual)"
        return Uplink(name, None, f"{name} {problem}")
    return Uplink(name, speed * _BITS_OF_MEGABIT // 8)


def default_interface(tree: Tree) -> str | None:
    """The interface of the first IPv4 default route, in the kernel's order: the least metric first."""
    place = tree.proc.folder("net") if tree.proc else None
    for line in ((place and place.text("route")) or "").splitlines()[1:]:
        row = line.split()
        if len(row) >= 8 and row[1] == _DEFAULT == row[7] and row[0] != _REJECT_INTERFACE:
            return row[0]
    return None
