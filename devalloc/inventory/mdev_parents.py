"""Parents of mediated devices that are not PCI functions: whatever a driver registers in ``class/mdev_bus`` under a
name of its own, such as the kernel's sample ``mtty``. Those of cards are read with their card (``vgpu``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from devalloc.device_kinds import MDEV
from devalloc.inventory.attributes import Attributes, with_standard
from devalloc.inventory.device_parents import DeviceParent, ParentDevice, scan_parents
from devalloc.inventory.locate import COPY, UUID, DeviceGone, DeviceUnknown, shorten
from devalloc.inventory.pci import Address
from devalloc.inventory.pools import DeviceDraft, attributes_of_instance, attributes_of_offer, state_of
from devalloc.inventory.sysfs import Tree
from devalloc.inventory.unavailability import UnavailabilityReasons
from devalloc.inventory.vgpu import VgpuParent, profile_ids_of, read_mdev_parent, vgpu_supply


@dataclass(frozen=True, slots=True)
class MdevParent(DeviceParent):
    """One such parent."""

    @classmethod
    def counts(cls, name: str) -> bool:
        return Address.parse(name) is None

    def read(self, only: str | None = None) -> VgpuParent:
        """What it offers now. ``only``: read this type alone."""
        return read_mdev_parent(self.label, self.folder, only)

    def devices(self, obstacles: UnavailabilityReasons) -> tuple[Sequence[DeviceDraft], Mapping[str, int]]:
        """Those for PCI slots."""
        goods = vgpu_supply([self.read()], obstacles.records)
        devices = []
        for offer in goods.offers:
            attributes = self._attributes(state_of(offer)) | attributes_of_offer(offer)
            draft = DeviceDraft(offer.name, attributes, dict(offer.requests))
            draft.mark_unavailable([*filter(None, [offer.obstacle]), *obstacles.allowance(MDEV.name)])
            devices.append(draft)
        for instance in goods.foreign:
            attributes = self._attributes("exists")
            attributes |= {} if instance.iommu_group is None else {"iommuGroup": instance.iommu_group}
            attributes |= {} if instance.profile_id is None else attributes_of_instance(goods, instance.profile_id)
            draft = DeviceDraft(f"mdev-{instance.uuid}", attributes)
            draft.mark_unavailable(obstacles.live_vgpu_reasons(draft.name, instance.iommu_group))
            devices.append(draft)
        return devices, goods.capacity

    def _attributes(self, state: str) -> Attributes:
        """The attributes of a device, but for its profile."""
        attributes: Attributes = {"kind": MDEV.name, "function": "mdev", "state": state, "mdevParent": self.name}
        return attributes if (numa := self.numa) is None else attributes | with_standard({"numa": numa})

    def locate(self, device: str) -> MdevParentDevice:
        offered = self.read()
        instance = UUID.fullmatch(device)
        if instance is not None:
            live = next((each for each in offered.live if each.uuid == instance[1]), None)
            if live is None:
                raise DeviceGone(f"the mediated device {instance[1]} does not exist on {self.name}")
            return MdevParentDevice(self, live.profile_id, live.uuid)
        rest = device.removeprefix(f"{self.label}-")
        copy = COPY.fullmatch(rest)
        labels = [rest] if copy is None else [rest, copy[1]]
        ids = profile_ids_of(offered, labels) if rest != device else {}
        profile = next((ids[label] for label in labels if label in ids), None)
        if profile is None:
            raise DeviceUnknown(f"{shorten(device)}: {self.name} offers no such type of mediated devices")
        return MdevParentDevice(self, profile)


@dataclass(frozen=True, slots=True)
class MdevParentDevice(ParentDevice):
    """A mediated device on such a parent: one of some profile, or one that others made."""

    parent: MdevParent
    profile_id: str | None
    uuid: str | None = None
    """Of one that others made."""


def find_mdev_parent(tree: Tree, name: str) -> DeviceParent | None:
    """The parent of that name, which need not be one; None where there is none."""
    return next((parent for parent in scan_parents(tree, (MDEV.name,)) if parent.name == name), None)
