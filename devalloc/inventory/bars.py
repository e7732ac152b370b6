"""How much memory of its own a PCI device has a guest find addresses for: its BARs, as sysfs tells."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from devalloc.inventory.pci import BRIDGE, Address
from devalloc.inventory.sysfs import Folder, Tree

_BARS, _ROM, _VF_BARS = range(6), 6, range(7, 13)
"""Lines of the file ``resource``."""
_MEMORY, _PREFETCHABLE, _WIDE = 0x200, 0x2000, 0x100000
"""Flags of a resource of the kernel (IORESOURCE_*)."""
_MAX_RESOURCE = 1 << 52
"""Bytes; more no processor addresses, and the file lies."""


@dataclass(frozen=True, slots=True)
class BarSizes:
    """Bytes, by the kind of window of a PCI bridge that they need."""

    prefetchable: int = 0
    """Of BARs that are prefetchable and of 64 bits: their window lies anywhere."""
    other: int = 0
    """Of all others, and of the ROM: their window lies below 4 GiB."""

    def __add__(self, other: BarSizes) -> BarSizes:
        return BarSizes(self.prefetchable + other.prefetchable, self.other + other.other)

    def __or__(self, other: BarSizes) -> BarSizes:
        """The more of each."""
        return BarSizes(max(self.prefetchable, other.prefetchable), max(self.other, other.other))


NO_BARS = BarSizes()


def bar_sizes(tree: Tree, addresses: Iterable[str]) -> BarSizes:
    """Of PCI functions that are passed through together. What is not there, or cannot be read, counts as nothing."""
    folders = (tree.sys.folder("bus", "pci", "devices", address) if tree.sys else None for address in addresses)
    return sum((_sizes(folder, (*_BARS, _ROM)) for folder in folders if folder is not None), NO_BARS)


def largest_bar_sizes(tree: Tree) -> BarSizes:
    """The most that any device needs that a machine can be given of this host: a card with all of its functions, one
    of its virtual functions (also one that is not there yet), or a part of it, which has at most what its card has."""
    devices = tree.sys.folder("bus", "pci", "devices") if tree.sys else None
    cards: dict[Address, BarSizes] = {}
    most = NO_BARS
    for name in devices.names() if devices else ():
        address = Address.parse(name)
        folder = devices.folder(name) if devices and address else None
        if address is None or folder is None or (folder.number("class") or 0) >> 16 == BRIDGE:
            continue
        own = _sizes(folder, (*_BARS, _ROM))
        if folder.has("physfn"):
            most |= own
        else:
            cards[address.card] = cards.get(address.card, NO_BARS) + own
            most |= _sizes(folder, _VF_BARS, parts=folder.number("sriov_totalvfs") or 0)
    for sizes in cards.values():
        most |= sizes
    return most


def _sizes(folder: Folder, lines: Iterable[int], parts: int = 1) -> BarSizes:
    """``parts``: the resources are those of so many functions together; 0: of none."""
    rows = (folder.text("resource") or "").splitlines()
    sizes = NO_BARS
    for line in lines:
        if line >= len(rows) or not parts:
            continue
        try:
            start, end, flags = (int(word, 16) for word in rows[line].split())
        except ValueError:
            continue
        size = (end - start + 1) // parts
        if flags & _MEMORY and 0 < size <= _MAX_RESOURCE:
            is_prefetchable = flags & _PREFETCHABLE and flags & _WIDE
            sizes += BarSizes(prefetchable=size) if is_prefetchable else BarSizes(other=size)
    return sizes
