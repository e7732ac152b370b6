"""Why a device is unavailable: reserved for the host, in use, inseparable from others, or withheld by policy.

Each reason is a short text for ``devalloc.io/unavailable``. *Uses* are separate: what a process uses without
a claim is also taken off the pool's capacities.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from devalloc.api.device_identity import drive_of
from devalloc.inventory.cards import PciPort, VirtualFunction, kind_of
from devalloc.inventory.config import DevicePolicy, DeviceRecords
from devalloc.inventory.device_users import DeviceUsers, block_devices
from devalloc.inventory.identity import function_identity
from devalloc.inventory.owner_data import disks_below, keeps_data
from devalloc.inventory.pci import BRIDGE, Address, IommuGroups, PciFunction
from devalloc.inventory.resets import NO_RESET, reset_problem
from devalloc.inventory.storage_use import kernel_use
from devalloc.inventory.vf_creation import creation_problem, use_problem
from devalloc.inventory.vfio_refusals import pf_driver_problem, silence, vf_refusal, vfio_refusal
from devalloc.inventory.vgpu import VgpuParent

_NO_POLICY = "withheld: no erase policy for storage is set"


@dataclass(frozen=True, slots=True)
class UnavailabilityReasons:
    """What stands against the devices of one host."""

    groups: IommuGroups
    holders: DeviceUsers
    records: DeviceRecords
    policy: DevicePolicy
    allowed: Collection[str] | None = None
    """See InventoryConfig."""

    def port_reasons(self, port: PciPort) -> Iterator[str]:
        """Why the port as a whole is not offered, uses aside."""
        if not port.device_kind.is_offered:
            yield f"reserved: {port.kind} of the host"
        else:
            yield from self.allowance(port.kind)
        is_needed = False
        for member in port.members:
            if member.base_class == BRIDGE:
                yield f"reserved: the bridge {member.address} is in the same slot"
            if (need := self.holders.reserved(member) or self._kernel_use(port, member)) is not None:
                is_needed = True
                yield f"reserved: {need}{_elsewhere(port, member)}"
            if (problem := silence(member)) is not None:
                yield f"unhealthy: {problem}"
            if (refused := vfio_refusal(member)) is not None:
                yield f"withheld: {refused}"
        yield from self._unseen(port.members)
        if (owned := self._moved_drive(port)) is not None:
            yield f"in use: {owned}"
        yield from self._policy(port, () if is_needed else port.members)
        yield from self.groups.objections(port.members, {vf.address for vf in port.vfs})
        for function in port.functions_to_reset:
            yield from self._no_reset(function)

    def _moved_drive(self, port: PciPort) -> str | None:
        """That a claim has the drive under another name: it was plugged in elsewhere, or the buses were renumbered."""
        if not (port.device_kind.needs_erasing and self.records.drives):
            return None
        drive = drive_of(function_identity(port.function))
        owner = self.records.drives.get(drive) if drive is not None else None
        if owner is None or owner.device == port.function.address.device_name:
            return None
        return f"it is the drive that claim {owner.claim} got as {owner.device}; release that claim"

    def whole_port_reasons(self, port: PciPort, parts: Iterable[str]) -> Iterator[str]:
        """Why the port as a whole is not offered although its parts are unused. ``parts``: names of all devices
        on it."""
        if port.function.address.device_name in self.records.claim_users:
            return
        for pf in port.members:
            if pf.has_vfs and pf.address.device_name not in self.records.made:
                count = len(pf.virtfns)
                yield f"in use: it has {count} VF{'' if count == 1 else 's'} that were not made for a claim"
        for name in parts:
            if name in self.records.withheld and name not in self.records.held:  # what is held keeps it by itself
                yield f"withheld: {name}, which is part of it: {self.records.withheld[name]}"
                break

    def port_users(self, port: PciPort) -> Iterator[str]:
        """Who uses the port itself."""
        if self._is_held(port.function.address):
            return
        takes_whole_slot = port.device_kind.takes_whole_slot
        for member in port.members:
            yield from (f"{user}{_elsewhere(port, member)}" for user in self._users(member))
            # A GPU's audio function is free to go with it; a controller beside a network card may run the host's disks.
            if not takes_whole_slot and kind_of(member) is None and not member.leaves_group:
                yield f"in use: {member.address} of its IOMMU group has the driver {member.driver}"

    def vf_reasons(self, port: PciPort, vf: VirtualFunction) -> Iterator[str]:
        """Why a VF is not offered, uses aside. One that does not exist yet will have a group if its PF has one.

        What the host needs of the card does not matter, as its driver stays, but for storage, which the VFs have in
        common (T4).
        """
        yield from self.allowance("vf")
        yield from self._policy(port, [port.function])
        if keeps_data(port.device_kind, [port.function]):
            yield from self._needed_below(port)
        if vf.function is not None:
            yield from self._unseen([vf.function])
            yield from self.groups.objections([vf.function])
            yield from self._no_reset(vf.function)
        elif vf.pf.iommu_group is None:
            yield from self.groups.objections([vf.pf])

    def vf_doubt(self, port: PciPort, vf: VirtualFunction) -> str | None:
        """Why a VF that nothing else keeps back is of no use, or cannot be made."""
        if (useless := use_problem(vf.pf, port.kind)) is not None:
            return f"withheld: {useless}"
        if (refused := pf_driver_problem(vf) or vf_refusal(vf)) is not None:
            return f"withheld: {refused}"
        if vf.function is not None:
            return None
        if (problem := creation_problem(vf.pf, port.kind, self.policy.creatable_vfs)) is not None:
            return f"withheld: {problem}"
        refusal = self.records.refused_vfs.get(vf.pf.address.device_name)
        count = self.policy.vf_count(vf.pf.sriov.total if vf.pf.sriov else 0)
        return f"withheld: {refusal.reason}" if refusal and refusal.holds_for(vf.pf.driver, count) else None

    def vf_users(self, port: PciPort, vf: VirtualFunction) -> Iterator[str]:
        """Who uses a VF: the host, or a process."""
        if vf.function is None or self._is_held(vf.address):
            return
        if (need := self.holders.reserved(vf.function)) is not None:
            yield f"reserved: {need}"
        yield from self._users(vf.function)

    def vgpu_reasons(self, port: PciPort, parent: VgpuParent) -> Iterator[str]:
        """Why no vGPU on a function is offered.

        A card that makes many itself gives each an IOMMU group of its own, and its users are no obstacle: its driver
        stays.
        """
        yield from self.allowance("vgpu")
        yield from self._needed_below(port)
        if parent.holds_one and parent.function is not None:
            yield from self._unseen([parent.function])
            yield from self.groups.objections([parent.function])
            if not self._is_held(parent.function.address):
                yield from self._users(parent.function)

    def live_vgpu_reasons(self, name: str, group: int | None) -> Iterator[str]:
        """Why a vGPU that devalloc did not make is not offered. ``group``: its IOMMU group."""
        if name in self.records.held or name in self.records.prepared:
            return
        user = self.holders.group_user(group)
        if name not in self.policy.adopt or group is None:
            yield "in use: a vGPU that no claim holds"
        elif user is not None:
            yield f"in use: {user}"

    def withheld_reasons(self, name: str, port: PciPort | None = None) -> Iterator[str]:
        """Why a device is withheld: it, or the port that it is on."""
        for each in dict.fromkeys((name, port.function.address.device_name if port is not None else name)):
            if each in self.records.withheld:
                yield self.records.withheld[each]

    def _needed_below(self, port: PciPort) -> Iterator[str]:
        """What the host needs of the card under a part of it. The VFs of a network card stay usable (T4)."""
        for member in () if port.device_kind.shares_with_host else port.members:
            if (need := self.holders.reserved(member)) is not None:
                yield f"reserved: {need}"

    def allowance(self, offer: str) -> Iterator[str]:
        """Why nothing of a kind is offered: the admin does not allow it."""
        if self.allowed is not None and offer not in self.allowed:
            yield f"withheld: {offer} is not allowed on this node ({', '.join(sorted(self.allowed)) or 'nothing'} is)"

    def _no_reset(self, function: PciFunction) -> Iterator[str]:
        if not self.policy.allow_no_reset and (problem := reset_problem(function)) is not None:
            yield f"{NO_RESET}: {problem}"

    def _policy(self, port: PciPort, functions: Collection[PciFunction]) -> Iterator[str]:
        if self.policy.erase_policy:
            return
        if port.device_kind.needs_erasing:
            yield _NO_POLICY
        elif (
            not self._is_held(port.function.address) and (disks := disks_below(port.device_kind, functions)) is not None
        ):
            yield f"{_NO_POLICY}, and it has {disks}"

    def _kernel_use(self, port: PciPort, member: PciFunction) -> str | None:
        """What only the kernel knows of disks. Asking means opening them for a moment, so nothing is asked of drives
        that are withheld."""
        kind = port.device_kind
        is_withheld = kind.needs_erasing and not self.policy.erase_policy
        if is_withheld or not kind.is_offered or (self.allowed is not None and port.kind not in self.allowed):
            return None
        needs = (kernel_use(disk.tree, disk) for disk in block_devices(member))
        return next((need for need in needs if need is not None), None)

    def _unseen(self, functions: Iterable[PciFunction]) -> Iterator[str]:
        """That it cannot be seen who uses one of the functions, so that every claim for them would be refused."""
        for function in functions:
            if not self._is_held(function.address) and (why := self.holders.doubt_of_host(function)) is not None:
                yield f"withheld: it cannot be seen who uses {function.address}: {why}"
                return

    def _users(self, function: PciFunction) -> Iterator[str]:
        if (user := self.holders.user(function)) is not None:
            yield f"in use: {user}"

    def _is_held(self, address: Address) -> bool:
        name = address.device_name
        return any(held == name or held.startswith(f"{name}-") for held in self.records.claim_users)


def _elsewhere(port: PciPort, member: PciFunction) -> str:
    """Which member of a port it is, if it comes from another slot: those of a shared IOMMU group do."""
    return "" if member.address.card == port.function.address.card else f" ({member.address})"
