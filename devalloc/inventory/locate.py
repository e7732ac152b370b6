"""From the name of a device in a pool to what it is on this host, reading that one card only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from devalloc.api.dedicated_pools import base_pool_name
from devalloc.device_kinds import DEVICE_KINDS
from devalloc.inventory import vgpu
from devalloc.inventory.cards import PciCard, PciPort, VirtualFunction, group_cards
from devalloc.inventory.device_parents import DeviceParent, ParentDevice, scan_parents
from devalloc.inventory.pci import Address, PciFunction, read_pci_function
from devalloc.inventory.pools import node_scoped_name, pool_name
from devalloc.inventory.sysfs import Folder, Tree

_SLOT = re.compile(r".*-([0-9a-f]{4,8})-([0-9a-f]{2})-([0-9a-f]{2})", re.ASCII)
_NAME = re.compile(r"([0-9a-f]{4,8})-([0-9a-f]{2})-([0-9a-f]{2})-([0-7])(?:-(.{1,80}))?", re.ASCII)
UUID = re.compile(r"mdev-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.ASCII)
"""The name of a mediated device that others made."""
COPY = re.compile(r"(.+)-[1-9][0-9]{0,5}", re.ASCII)
"""The end of a name with a number that tells copies of a profile apart."""
_NVIDIA = re.compile(r"(nvidia-[0-9]{1,9})(?:-[1-9][0-9]{0,5})?", re.ASCII)
_SHOWN = 80


class DeviceUnknown(LookupError):
    """No device of this host has such a name, or the pool is not its card's."""


class DeviceGone(LookupError):
    """The name is right, and the hardware behind it is not there at present."""


@dataclass(frozen=True, slots=True)
class PortDevice:
    """The card, or one of its independent ports."""

    port: PciPort


@dataclass(frozen=True, slots=True)
class VfDevice:
    """A VF, which may still have to be created. Of the port's existing VFs it lists only those of the card's slot."""

    port: PciPort
    vf: VirtualFunction


@dataclass(frozen=True, slots=True)
class ProfileDevice:
    """A vGPU of some profile; ``parent`` is the function in its name."""

    port: PciPort
    parent: PciFunction
    profile_id: str


@dataclass(frozen=True, slots=True)
class InstanceDevice:
    """A mediated device that others made."""

    port: PciPort
    parent: PciFunction
    uuid: str
    profile_id: str | None
    iommu_group: int | None


LocatedDevice = PortDevice | VfDevice | ProfileDevice | InstanceDevice | ParentDevice


def locate(tree: Tree, node_name: str, pool: str, device: str) -> LocatedDevice:
    """The device of that name, in a pool that may be set aside (``devalloc.api.dedicated_pools``).

    Raises DeviceUnknown or DeviceGone, with a sentence for people. Names are never used as paths unchecked.
    """
    slot = _slot(base_pool_name(pool))
    if (parent := _parent(tree, node_name, base_pool_name(pool))) is not None:
        return parent.locate(device)
    if slot is None or pool_name(node_name, slot) != base_pool_name(pool):
        raise DeviceUnknown(f"{shorten(pool)} is not a pool of node {node_name}")
    instance, name = UUID.fullmatch(device), _NAME.fullmatch(device)
    if instance is not None:
        return _instance(tree, slot, instance[1])
    if name is None:
        raise DeviceUnknown(f"{shorten(device)} is not a device name")
    address = Address(*(int(part, 16) for part in name.groups()[:4]))
    if address.device_name != device[: len(address.device_name)]:
        raise DeviceUnknown(f"{shorten(device)} is not a device name")
    card, functions = _card(tree, slot, address)
    located = _on_card(card, functions.get(address), address)
    if located is None:
        raise _not_found_error(card, address, pool, device)
    if name[5] is None:
        return located
    function = located.vf.function if isinstance(located, VfDevice) else functions.get(address)
    if function is None:
        raise DeviceGone(f"{address} does not exist at present, so no vGPU can be made on it")
    return ProfileDevice(located.port, function, _profile(function, name[5], device))


def existing_vf(tree: Tree, device: str) -> PciFunction | None:
    """The VF of that name, by its own folder alone; None where the name is another thing's, or nothing is there now.

    Whether it is on a card that is published, and in which pool, ``locate`` tells.
    """
    name = _NAME.fullmatch(device)
    address = Address(*(int(part, 16) for part in name.groups()[:4])) if name is not None and name[5] is None else None
    if address is None or address.device_name != device:
        return None
    folder = function_folder(tree, address)
    return read_pci_function(address, folder) if folder is not None and folder.link("physfn") is not None else None


def group_members(
    tree: Tree, function: PciFunction, cached: Mapping[Address, PciFunction] | None = None
) -> list[PciFunction]:
    """The functions of its IOMMU group, itself included, in the order of their addresses. ``cached``: those that were
    read just now."""
    system = tree.sys
    if function.iommu_group is None or system is None:
        return [function]
    names = system.names("kernel", "iommu_groups", str(function.iommu_group), "devices")
    addresses = [address for name in names if (address := Address.parse(name)) not in (None, function.address)]
    members = [
        (cached or {}).get(address) or read_function(tree, address) for address in addresses if address is not None
    ]
    others = [member for member in members if member is not None]
    return sorted([function, *others], key=lambda member: member.address)


def function_folder(tree: Tree, address: Address) -> Folder | None:
    """The folder of a function; None when it is not there."""
    return tree.sys.folder("bus", "pci", "devices", str(address)) if tree.sys else None


def read_function(tree: Tree, address: Address, *, with_vfs: bool = True) -> PciFunction | None:
    """One function; None when it is not there. ``with_vfs``: see ``read_pci_function``."""
    folder = function_folder(tree, address)
    return read_pci_function(address, folder, with_vfs=with_vfs) if folder else None


def existing_vfs(tree: Tree, port: PciPort) -> Iterator[PciFunction]:
    """The VFs of a port that exist, read one at a time."""
    for pf in port.members:
        for _, address in pf.virtfns:
            function = read_function(tree, address)
            if function is not None:
                yield function


def mdev_folder(tree: Tree, uuid: str) -> Folder | None:
    """A live mediated device; ``uuid`` in lower case."""
    return tree.sys.folder("bus", "mdev", "devices", uuid) if tree.sys else None


def _parent(tree: Tree, node_name: str, pool: str) -> DeviceParent | None:
    """The parent that a pool is of, if it is of no card. Names of parents come from the kernel, never from the pool."""
    kinds = [kind for kind in DEVICE_KINDS.values() if kind.parents and f"-{kind.name}-" in pool]
    for parent in scan_parents(tree, [kind.name for kind in kinds]):
        if node_scoped_name(node_name, parent.pool) == pool:
            return parent
    for kind in kinds if _slot(pool) is None else ():
        if pool.startswith(node_scoped_name(node_name, f"{kind.name}-")):
            raise DeviceGone(f"the parent of {kind.plural} of pool {shorten(pool)} does not exist at present")
    return None


def _slot(pool: str) -> Address | None:
    match = _SLOT.fullmatch(pool)
    slot = Address.parse(f"{match[1]}:{match[2]}:{match[3]}.0") if match else None
    return slot if slot is not None and match is not None and pool.endswith(slot.slot_name) else None


def _card(tree: Tree, slot: Address, address: Address) -> tuple[PciCard, dict[Address, PciFunction]]:
    """The card in a slot, with the functions of the slot and the one that is asked for."""
    listing = tree.sys.folder("bus", "pci", "devices") if tree.sys else None
    functions = {}
    if listing is not None:
        for place in dict.fromkeys([*(Address(*slot[:3], number) for number in range(8)), address]):
            folder = listing.folder(str(place))
            function = read_pci_function(place, folder) if folder is not None else None
            if function is not None:
                functions[place] = function
    card = next((card for card in group_cards(functions) if card.slot == slot), None)
    if card is None and address in functions and address._replace(function=0) == slot:
        raise DeviceUnknown(f"{address} is of a kind that is not published")
    if card is None:
        raise DeviceGone(f"there is no card in slot {slot.slot_name}")
    return card, functions


def _on_card(card: PciCard, function: PciFunction | None, address: Address) -> PortDevice | VfDevice | None:
    for port in card.ports:
        for vf in port.vfs:
            if vf.address == address:
                return VfDevice(port, vf)
        if port.function.address == address:
            return PortDevice(port)
    return None


def _not_found_error(card: PciCard, address: Address, pool: str, device: str) -> LookupError:
    for port in card.ports:
        for pf in port.members:
            possible = range(pf.sriov.total) if pf.sriov else ()
            if pf.sriov and address in [pf.sriov.address(pf.address, index) for index in possible]:
                why = (
                    "has its driver no longer" if pf.driver is None or pf.on_vfio else f"has {pf.sriov.active} VFs now"
                )
                return DeviceGone(f"{address} does not exist: {pf.address} {why}")
    return DeviceUnknown(f"{shorten(device)} is not a device of pool {shorten(pool)}")


def _profile(function: PciFunction, rest: str, device: str) -> str:
    """The id of the profile whose label is the end of a name, where a number may follow that tells copies apart."""
    copy = COPY.fullmatch(rest)
    ids = vgpu.profile_ids_by_label(function, [rest] if copy is None else [rest, copy[1]])
    if ids and rest in ids:
        return ids[rest]
    if ids and copy is not None and copy[1] in ids:
        return ids[copy[1]]
    nvidia = _NVIDIA.fullmatch(rest)  # its vendor VFIO layout lists only what can be created at the moment
    if ids is not None and nvidia is not None:
        return nvidia[1]
    if ids is None:
        raise DeviceGone(f"{function.address} offers no vGPUs at present (driver: {function.driver or 'none'})")
    raise DeviceUnknown(f"{shorten(device)}: {function.address} offers no such profile")


def _instance(tree: Tree, slot: Address, uuid: str) -> InstanceDevice:
    folder = mdev_folder(tree, uuid)
    parent = Address.parse(folder.path.rpartition("/")[0].rpartition("/")[2]) if folder else None
    if parent is None:
        raise DeviceGone(f"the mediated device {uuid} does not exist")
    card, functions = _card(tree, slot, parent)
    located = _on_card(card, functions.get(parent), parent)
    offered = vgpu.read_parent(functions[parent]) if located is not None and parent in functions else None
    live = next((live for live in offered.live if live.uuid == uuid), None) if offered else None
    if located is None or live is None:
        raise DeviceUnknown(f"the mediated device {uuid} is not on the card in slot {slot.slot_name}")
    return InstanceDevice(located.port, functions[parent], uuid, live.profile_id, live.iommu_group)


def shorten(text: str) -> str:
    """A name from outside, as a message quotes it."""
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")
