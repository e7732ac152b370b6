"""Parents of mediated devices that are not PCI functions: whatever a driver registers in ``class/mdev_bus`` under a
name of its own, such as the kernel's sample ``mtty``. Those of cards are read with their card (``vgpu``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from devalloc.device_kinds import MDEV
from devalloc.inventory.pci import Address
from devalloc.inventory.sysfs import Folder, Tree
from devalloc.inventory.vgpu import VgpuParent, profile_label, read_mdev_parent


@dataclass(frozen=True, slots=True)
class MdevParent:
    """One such parent."""

    name: str
    """As the kernel has it: ``mtty``."""
    folder: Folder

    @property
    def label(self) -> str:
        """The name as part of a DNS name."""
        return profile_label(self.name)

    @property
    def pool(self) -> str:
        """How the name of its pool ends."""
        return f"{MDEV.name}-{self.label}"

    @property
    def numa(self) -> int | None:
        """Its NUMA node; None where the driver does not say."""
        number = self.folder.number("numa_node") if self.folder.has("numa_node") else None
        return number if number is not None and number >= 0 else None

    def read(self, only: str | None = None) -> VgpuParent:
        """What it offers now. ``only``: read this type alone."""
        return read_mdev_parent(self.label, self.folder, only)


def scan_mdev_parents(tree: Tree) -> Iterator[MdevParent]:
    """All parents, by name. Of those whose names are alike as labels the first one; the others are faults."""
    listing = tree.sys.folder("class", "mdev_bus") if tree.sys else None
    labels: set[str] = set()
    for name in sorted(listing.names()) if listing else ():
        folder = listing.folder(name) if listing and Address.parse(name) is None else None
        if folder is None:
            continue
        parent = MdevParent(name, folder)
        if not parent.label or parent.label in labels:
            tree.fault(folder.path, f"its name {name!r} makes no pool name of its own, so it is left out")
            continue
        labels.add(parent.label)
        yield parent


def find_mdev_parent(tree: Tree, name: str) -> MdevParent | None:
    """The parent of that name, which need not be one; None where there is none."""
    return next((parent for parent in scan_mdev_parents(tree) if parent.name == name), None)
