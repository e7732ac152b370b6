"""IOMMU groups: what cannot be separated, and why that keeps a device from being offered."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from devalloc.inventory.pci import BRIDGE, Address, PciFunction

_PORT_DRIVERS = frozenset({None, "pcieport", "shpchp"})


@dataclass(frozen=True, slots=True)
class IommuGroups:
    """Which functions are in which IOMMU group."""

    members: Mapping[int, tuple[PciFunction, ...]]
    shared_allowed: bool
    """The admin lets devices go that share a group with another slot."""

    @classmethod
    def of(cls, functions: Collection[PciFunction], shared_allowed: bool) -> IommuGroups:
        members: dict[int, list[PciFunction]] = {}
        for function in functions:
            if function.iommu_group is not None and not _is_passive(function):
                members.setdefault(function.iommu_group, []).append(function)
        return cls({group: tuple(group_members) for group, group_members in members.items()}, shared_allowed)

    def objections(self, device: Collection[PciFunction], together: Collection[Address] = frozenset()) -> Iterator[str]:
        """Why functions that are given away as one device cannot be.

        ``together``: addresses that may be in the same group because they come and go with the device.
        """
        for function in device:
            if function.iommu_group is None:
                yield f"no IOMMU group for {function.address} (is the IOMMU switched on?)"
        own = {function.address for function in device}
        for group in sorted({function.iommu_group for function in device if function.iommu_group is not None}):
            members = self.members.get(group, ())
            peers = [peer for peer in members if peer.address not in own and peer.address not in together]
            if peers and (objection := self._objection(group, peers, min(own))) is not None:
                yield objection

    def _objection(self, group: int, peers: list[PciFunction], first: Address) -> str | None:
        if not self.shared_allowed:
            names = ", ".join(str(peer.address) for peer in peers[:3]) + (", …" if len(peers) > 3 else "")
            return f"IOMMU group {group} is shared with {names}"
        busy = next((peer for peer in peers if peer.driver is not None and not peer.on_vfio), None)
        if busy is not None:
            return f"in use: {busy.address} of its IOMMU group {group} has the driver {busy.driver}"
        # One group goes to one machine: of the devices in it only the first is offered, and takes the others along.
        head = min(peer.address for peer in peers)
        return f"IOMMU group {group} goes with {head}" if head < first else None


def _is_passive(function: PciFunction) -> bool:
    """A bridge without a driver of its own: VFIO lets it stay with the host."""
    return function.base_class == BRIDGE and function.driver in _PORT_DRIVERS
