"""Which function the host came up on: its boot display, and the one in whose memory it still draws.

Linux marks a VGA device (class 0300) with ``boot_vga``. Of a GPU of another class (0380, such as that of a processor),
only ``boot_display`` tells, with Linux 6.17 and later. Until a native driver takes the GPU over, a driver for the
framebuffer of the firmware draws in its memory; then the list of memory ranges tells, with any kernel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from devalloc.inventory.pci import Address, PciFunction
from devalloc.inventory.proc_tables import first_unreadable
from devalloc.inventory.sysfs import Tree

_DISPLAY = 0x03
_RANGES = "iomem"
_RANGE = re.compile(r"(?P<indent> *)[0-9a-f]+-[0-9a-f]+ : (?P<name>\S.*)", re.ASCII)
_DRIVERS = frozenset({"efidrm", "efifb", "simpledrm", "simplefb", "vesadrm", "vesafb"})
"""Drivers for a framebuffer of the firmware."""
_FIRMWARE = "BOOTFB"
"""That framebuffer itself, also without a driver: it keeps the memory until a native driver comes, and from VFIO."""
_OF_FIRMWARE = f"boot display, in whose memory the firmware's framebuffer ({_FIRMWARE}) still is"


@dataclass(slots=True)
class BootDisplay:
    """Of one host."""

    tree: Tree
    _drivers: Mapping[Address, str] | None = field(default=None, init=False)

    def need(self, function: PciFunction) -> str | None:
        """What the host shows its screen on the function as; None if it does not."""
        if "boot_vga" in function.entries and function.folder.number("boot_vga") == 1:
            return "boot VGA"
        if function.base_class != _DISPLAY:
            return None
        # Linux 6.18 and later show it at the card, 6.17 at the function.
        cards = (device.folder for device in function.below.of_class("drm"))
        if any(folder.number("boot_display") == 1 for folder in (function.folder, *cards)):
            return "boot display"
        if self._drivers is None:
            self._drivers = _framebuffer_drivers(self.tree)
        if (driver := self._drivers.get(function.address)) is not None:
            return f"boot display, which {driver} draws on" if driver != _FIRMWARE else _OF_FIRMWARE
        unread = first_unreadable(self.tree, {_RANGES})
        return f"{unread} cannot be read" if unread is not None else None


def _framebuffer_drivers(tree: Tree) -> dict[Address, str]:
    """Functions in whose memory a driver for the framebuffer of the firmware draws, and which driver."""
    text = (tree.proc.text(_RANGES) if tree.proc is not None else None) or ""
    drivers: dict[Address, str] = {}
    above: list[tuple[int, Address | None]] = []  # the ranges around the current one: their depths and functions
    for line in text.splitlines():
        match = _RANGE.fullmatch(line.rstrip())
        if match is None:
            continue
        depth, name = len(match["indent"]), match["name"]
        while above and above[-1][0] >= depth:
            above.pop()
        if name in {*_DRIVERS, _FIRMWARE}:
            drivers |= {address: name for _, address in above if address is not None}
        above.append((depth, Address.parse(name)))
    return drivers
