"""PCI cards: which functions belong together, and which parts of a card can be allocated separately."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from devalloc.device_kinds import NIC, DeviceKind, find_kind, kinds_by_name
from devalloc.inventory.pci import NVIDIA, Address, IommuGroups, PciFunction


def kind_of(function: PciFunction) -> str | None:
    """The kind of a function, None for everything that is not published."""
    return find_kind(function.subclass, function.vendor, function.device, function.folder.tree.kinds)


@dataclass(frozen=True, slots=True)
class VirtualFunction:
    """A VF of a port: one that exists, or one that can be created."""

    pf: PciFunction
    index: int
    address: Address
    function: PciFunction | None
    """None while it does not exist."""


@dataclass(frozen=True, slots=True)
class PciPort:
    """A physical function that can be given away by itself, with what goes with it."""

    function: PciFunction
    kind: str
    members: tuple[PciFunction, ...]
    """The functions that are given away with it, itself included (a GPU and its audio function)."""
    vfs: tuple[VirtualFunction, ...]
    role: str
    """``whole`` (the card, or a NIC without SR-IOV) or ``pf`` (one of several independent ports)."""

    @property
    def functions_to_reset(self) -> list[PciFunction]:
        """Those that must be reset between owners: the main one, and those of our kinds that come from other slots."""
        slot = self.function.address.card
        others = [member for member in self.members if member.address.card != slot and kind_of(member)]
        return [self.function, *others]

    @property
    def device_kind(self) -> DeviceKind:
        """What is special about its kind."""
        return kinds_by_name(self.function.folder.tree.kinds)[self.kind]


@dataclass(frozen=True, slots=True)
class PciCard:
    """One slot: its ports in the order of their addresses."""

    slot: Address
    ports: tuple[PciPort, ...]


def group_cards(by_address: Mapping[Address, PciFunction], max_vfs: int | None = None) -> Iterator[PciCard]:
    """The cards of a host, in the order of their addresses. ``max_vfs`` caps the VFs that can be created per port."""
    functions = _link_vfs(by_address)
    slots: dict[Address, list[PciFunction]] = {}
    vfs: dict[Address, list[PciFunction]] = {}
    for function in functions.values():
        if function.physfn is None:
            slots.setdefault(function.address.card, []).append(function)
        elif function.physfn in functions:
            vfs.setdefault(function.physfn, []).append(function)
        elif kind_of(function):
            reason = f"is a VF of {function.physfn}, which cannot be read, so it is left out"
            function.folder.tree.fault(function.folder.path, reason)
    taken = set(functions)
    for slot, members in slots.items():
        if any(kind_of(member) for member in members):
            virtual = {
                pf.address: list(_existing_vfs(pf, vfs.get(pf.address, ()))) or list(_creatable_vfs(pf, taken, max_vfs))
                for pf in members
                if kind_of(pf)
            }
            yield PciCard(slot, tuple(_ports(members, virtual)))


def with_shared_group(port: PciPort, groups: IommuGroups, allowed: Collection[str] | None) -> PciPort:
    """The port with all devices of its IOMMU group as its members, if they go together: it is the first of them, and
    each of the others may be taken from its driver, or has none. ``allowed``: see ``InventoryConfig``."""
    peers = groups.peers(port.members) if groups.bound_together else []
    if not peers or min(peer.address for peer in peers) < min(member.address for member in port.members):
        return port
    by_slot: dict[Address, list[PciFunction]] = {}
    for peer in peers:
        by_slot.setdefault(peer.address.card, []).append(peer)
    if not all(_goes_along(function, slot, allowed) for slot in by_slot.values() for function in slot):
        return port
    return replace(port, members=(*port.members, *peers))


def stays_in_group(allowed: Collection[str] | None) -> Callable[[PciFunction, Collection[PciFunction]], bool]:
    """Whether a function keeps its driver, and so its group from going to a claim (``IommuGroups.stays``)."""

    def stays(function: PciFunction, members: Collection[PciFunction]) -> bool:
        slot = [member for member in members if member.address.card == function.address.card]
        return not function.leaves_group and not _goes_along(function, slot, allowed)

    return stays


def _goes_along(function: PciFunction, slot: Iterable[PciFunction], allowed: Collection[str] | None) -> bool:
    """Whether a function of another slot can be taken together with a device of its group."""
    by_name = kinds_by_name(function.folder.tree.kinds)
    kinds = [by_name[kind] for mate in slot if (kind := kind_of(mate)) is not None]
    has_own_parts = function.sriov is not None and function.vendor != NVIDIA  # VFs are offered by themselves
    if has_own_parts or any(not kind.is_offered or kind.needs_erasing for kind in kinds):
        return False
    taken = [kind for kind in kinds if allowed is None or kind.name in allowed]
    is_taken = kind_of(function) in {kind.name for kind in taken} or any(kind.takes_whole_slot for kind in taken)
    return is_taken or (not kinds and function.leaves_group)


def _link_vfs(functions: Mapping[Address, PciFunction]) -> dict[Address, PciFunction]:
    """With each VF knowing its PF, also where only the PF tells."""
    linked = dict(functions)
    for pf in functions.values():
        for _, address in pf.virtfns:
            vf = linked.get(address)
            if vf is not None and vf.physfn is None and address != pf.address:
                linked[address] = replace(vf, physfn=pf.address)
    return linked


def _ports(slot: list[PciFunction], vfs: Mapping[Address, list[VirtualFunction]]) -> Iterator[PciPort]:
    typed = [(function, kind) for function in slot if (kind := kind_of(function)) is not None]
    groups = [function.iommu_group for function, _ in typed]
    # Ports are independent when the IOMMU can tell them apart. Where it is off nothing is offered anyway.
    independent = len(set(groups)) == len(groups) or set(groups) == {None}
    if len(typed) == 1 or not independent:
        function, kind = typed[0]
        all_vfs = tuple(vf for pf, _ in typed for vf in vfs[pf.address])
        yield PciPort(function, kind, tuple(_members([pf for pf, _ in typed], kind, slot)), all_vfs, "whole")
        return
    for function, kind in typed:
        role = "whole" if kind == NIC.name and function.sriov is None else "pf"
        yield PciPort(function, kind, tuple(_members([function], "", slot)), tuple(vfs[function.address]), role)


def _members(own: list[PciFunction], kind: str, slot: list[PciFunction]) -> Iterator[PciFunction]:
    """The functions that go away together: all of a GPU's slot, else what the IOMMU cannot keep apart."""
    groups = {function.iommu_group for function in own} - {None}
    kinds = kinds_by_name(own[0].folder.tree.kinds)
    takes_all = kind in kinds and kinds[kind].takes_whole_slot
    for function in slot:
        is_part = takes_all and any(one.has_companion(function) for one in own)
        if function in own or is_part or function.iommu_group in groups:
            yield function


def _existing_vfs(pf: PciFunction, vfs: Iterable[PciFunction]) -> Iterator[VirtualFunction]:
    """The VFs that there are, in the order of their index."""
    indexes = {address: index for index, address in pf.virtfns}
    routed: dict[Address | None, int] | None = None
    numbered = []
    for vf in vfs:
        index = indexes.get(vf.address)
        if index is None and pf.sriov is not None:
            if routed is None:
                routed = {pf.sriov.address(pf.address, i): i for i in range(pf.sriov.total)}
            index = routed.get(vf.address)
        if index is None:
            vf.folder.tree.fault(vf.folder.path, f"is a VF of {pf.address} without an index, so it is left out")
        else:
            numbered.append(VirtualFunction(pf, index, vf.address, vf))
    return iter(sorted(numbered, key=lambda vf: (vf.index, vf.address)))


def _creatable_vfs(pf: PciFunction, taken: set[Address], max_vfs: int | None) -> Iterator[VirtualFunction]:
    """VFs come all at once and only from none, and it is the PF's host driver that makes them."""
    if pf.sriov is None or pf.has_vfs or pf.driver is None or pf.on_vfio:
        return
    tree, path = pf.folder.tree, pf.folder.path
    if pf.sriov.address(pf.address, 0) is None:
        tree.fault(path, "reports neither offset nor stride of its VFs, so none can be offered")
        return
    misplaced: list[int] = []
    for index in range(pf.sriov.total if max_vfs is None else min(pf.sriov.total, max_vfs)):
        address = pf.sriov.address(pf.address, index)
        if address is None or address in taken:
            misplaced.append(index)
            continue
        taken.add(address)
        yield VirtualFunction(pf, index, address, None)
    if misplaced:
        others, are = (f" and {len(misplaced) - 1} more", "they are") if misplaced[1:] else ("", "it is")
        tree.fault(path, f"would have its VF {misplaced[0]}{others} where another function is, so {are} left out")
