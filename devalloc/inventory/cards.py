"""Cards: which PCI functions belong together, and what of a card can be given away by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from devalloc.inventory.accelerator import is_accelerator
from devalloc.inventory.gpu import is_display, is_gpu
from devalloc.inventory.nic import is_nic
from devalloc.inventory.pci import Address, PciFunction
from devalloc.inventory.storage import is_nvme

_KINDS: dict[str, Callable[[PciFunction], bool]] = {
    "gpu": is_gpu,
    "display": is_display,
    "nic": is_nic,
    "accelerator": is_accelerator,
    "storage": is_nvme,
}
KINDS = frozenset(_KINDS)
"""The kinds of devices: gpu, display (never offered), nic, accelerator, storage."""


def kind_of(function: PciFunction) -> str | None:
    """The kind of a function, None for everything that is not published."""
    return next((kind for kind, test in _KINDS.items() if test(function)), None)


@dataclass(frozen=True, slots=True)
class VirtualFunction:
    """A VF of a port: one that exists, or one that can be created."""

    pf: PciFunction
    index: int
    address: Address
    function: PciFunction | None
    """None while it does not exist."""


@dataclass(frozen=True, slots=True)
class Port:
    """A physical function that can be given away by itself, with what goes with it."""

    function: PciFunction
    kind: str
    members: tuple[PciFunction, ...]
    """The functions that are given away with it, itself included (a GPU and its audio function)."""
    vfs: tuple[VirtualFunction, ...]
    role: str
    """``whole`` (the card, or a NIC without SR-IOV) or ``pf`` (one of several independent ports)."""


@dataclass(frozen=True, slots=True)
class Card:
    """One slot: its ports in the order of their addresses."""

    slot: Address
    ports: tuple[Port, ...]


def cards(functions: Mapping[Address, PciFunction], max_vfs: int | None = None) -> Iterator[Card]:
    """The cards of a host, in the order of their addresses. ``max_vfs`` caps the VFs that can be created per port."""
    slots: dict[Address, list[PciFunction]] = {}
    for function in functions.values():
        if function.physfn is None:
            slots.setdefault(function.address.card, []).append(function)
        elif function.physfn not in functions and kind_of(function):
            function.folder.tree.fault(
                function.folder.path, f"is a VF of {function.physfn}, which cannot be read, so it is left out"
            )
    for slot, members in slots.items():
        if any(kind_of(member) for member in members):
            yield Card(slot, tuple(_ports(members, functions, max_vfs)))


def _ports(
    slot: list[PciFunction], functions: Mapping[Address, PciFunction], max_vfs: int | None
) -> Iterator[Port]:
    known = [(function, kind) for function in slot if (kind := kind_of(function)) is not None]
    groups = [function.iommu_group for function, _ in known]
    # Ports are independent when the IOMMU can tell them apart. Where it is off nothing is offered anyway.
    independent = len(set(groups)) == len(groups) or set(groups) == {None}
    if len(known) == 1 or not independent:
        function, kind = known[0]
        vfs = [vf for pf, _ in known for vf in _vfs(pf, functions, max_vfs)]
        yield Port(function, kind, tuple(_members([pf for pf, _ in known], kind, slot)), tuple(vfs), "whole")
        return
    for function, kind in known:
        role = "whole" if kind == "nic" and function.sriov is None else "pf"
        vfs = list(_vfs(function, functions, max_vfs))
        yield Port(function, kind, tuple(_members([function], "", slot)), tuple(vfs), role)


def _members(own: list[PciFunction], kind: str, slot: list[PciFunction]) -> Iterator[PciFunction]:
    """The functions that go away together: all of a GPU's slot, else what the IOMMU cannot keep apart."""
    groups = {function.iommu_group for function in own} - {None}
    for function in slot:
        if function in own or kind in ("gpu", "display") or function.iommu_group in groups:
            yield function


def _vfs(
    pf: PciFunction, functions: Mapping[Address, PciFunction], max_vfs: int | None
) -> Iterator[VirtualFunction]:
    present = dict(pf.virtfns)
    for function in functions.values():  # a VF names its PF even where the PF does not name it
        if function.physfn == pf.address and function.address not in present.values():
            index = _index(pf, function.address)
            if index is not None and index not in present:
                present[index] = function.address
    for index, address in sorted(present.items()):
        function_there = functions.get(address)
        if function_there is not None:
            yield VirtualFunction(pf, index, address, function_there)
    if not present:
        yield from _creatable(pf, functions, max_vfs)


def _creatable(
    pf: PciFunction, functions: Mapping[Address, PciFunction], max_vfs: int | None
) -> Iterator[VirtualFunction]:
    """VFs come all at once and only from none, and it is the PF's host driver that makes them."""
    if pf.sriov is None or pf.sriov.active or pf.driver is None or pf.on_vfio:
        return
    if pf.sriov.address(pf.address, 0) is None:
        pf.folder.tree.fault(pf.folder.path, "tells neither offset nor stride of its VFs, so none can be offered")
        return
    for index in range(pf.sriov.total if max_vfs is None else min(pf.sriov.total, max_vfs)):
        address = pf.sriov.address(pf.address, index)
        if address is not None and address not in functions:
            yield VirtualFunction(pf, index, address, None)


def _index(pf: PciFunction, address: Address) -> int | None:
    if pf.sriov is None:
        return None
    return next((i for i in range(pf.sriov.total) if pf.sriov.address(pf.address, i) == address), None)
