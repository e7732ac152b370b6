"""Parents of devices that are no PCI functions: a class of sysfs lists them, and each makes a pool of its own.

A kind of such devices is a row of ``DEVICE_KINDS`` that names the class and what its members are here: a
``DeviceParent``. Discovery, events, names of pools and ``locate`` follow from the row.
"""

from __future__ import annotations

import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from devalloc.api.pool import DevicePool
from devalloc.device_kinds import DEVICE_KINDS, DeviceKind
from devalloc.inventory.pools import DeviceDraft, make_pool, node_scoped_name
from devalloc.inventory.sysfs import Folder, Tree
from devalloc.inventory.unavailability import UnavailabilityReasons
from devalloc.inventory.vgpu import profile_label


@dataclass(frozen=True, slots=True)
class DeviceParent(ABC):
    """One member of the class."""

    kind: DeviceKind
    name: str
    """As the kernel has it: ``mtty``."""
    folder: Folder

    @classmethod
    def counts(cls, name: str) -> bool:
        """Whether a member of that name is one, and not of a card."""
        return True

    @abstractmethod
    def devices(self, obstacles: UnavailabilityReasons) -> tuple[Sequence[DeviceDraft], Mapping[str, int]]:
        """Its devices, with the reasons against each, and the capacity of the resources that they draw on."""

    @abstractmethod
    def locate(self, device: str) -> ParentDevice:
        """The device of that name. Raises the errors of ``devalloc.inventory.locate``."""

    @property
    def label(self) -> str:
        """The name as part of a DNS name."""
        return profile_label(self.name)

    @property
    def pool(self) -> str:
        """How the name of its pool ends."""
        return f"{self.kind.name}-{self.label}"

    @property
    def numa(self) -> int | None:
        """Its NUMA node; None where the driver does not say."""
        number = self.folder.number("numa_node") if self.folder.has("numa_node") else None
        return number if number is not None and number >= 0 else None

    def build_pool(self, node_name: str, obstacles: UnavailabilityReasons) -> DevicePool | None:
        """The pool of its devices; None where it has none."""
        devices, capacity = self.devices(obstacles)
        for device in devices:
            device.mark_unavailable(obstacles.withheld_reasons(device.name))
        name = node_scoped_name(node_name, self.pool)
        return make_pool(name, node_name, self.kind.name, devices, capacity) if devices else None


@dataclass(frozen=True, slots=True)
class ParentDevice:
    """A device that ``locate`` found on a parent."""

    parent: DeviceParent


def scan_parents(tree: Tree, kinds: Collection[str]) -> Iterator[DeviceParent]:
    """The parents of these kinds, by kind and name. Of those whose names are alike as labels the first one; the others
    are faults."""
    for kind in DEVICE_KINDS.values():
        if not kind.parents or kind.name not in kinds:
            continue
        listing = tree.sys.folder("class", kind.sysfs_class) if tree.sys else None
        of_kind: type[DeviceParent] = pkgutil.resolve_name(kind.parents)
        labels: set[str] = set()
        for name in sorted(listing.names()) if listing else ():
            folder = listing.folder(name) if listing and of_kind.counts(name) else None
            if folder is None:
                continue
            parent = of_kind(kind, name, folder)
            if not parent.label or parent.label in labels:
                tree.fault(folder.path, f"its name {name!r} makes no pool name of its own, so it is left out")
                continue
            labels.add(parent.label)
            yield parent
