"""Checks before a device is taken from the host: before the first step, and again by every binding.

The inventory publishes these devices as unavailable, so the solver does not allocate them. This module does not rely
on that."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from devalloc.device_kinds import DEVICE_KINDS
from devalloc.inventory import nic, storage, vgpu
from devalloc.inventory.cards import PciPort, kind_of
from devalloc.inventory.device_users import DeviceUsers, visibility_problem
from devalloc.inventory.locate import group_members
from devalloc.inventory.pci import BRIDGE, Address, IommuGroups, PciFunction
from devalloc.inventory.sysfs import Tree
from devalloc_node.binding.config import BindingConfig
from devalloc_node.binding.device_users import refuse_kernel_use, refuse_open, vfio_nodes
from devalloc_node.errors import Denied


def refuse_kind(config: BindingConfig, port: PciPort, offer: str) -> None:
    """``offer``: ``vgpu``, ``vf``, or the kind of a whole port."""
    kind = DEVICE_KINDS[port.kind]
    if not kind.is_offered:
        raise Denied("DeviceReserved", f"the host uses {port.function.address} as a {port.kind}")
    if offer not in config.allowed:
        raise Denied(
            "KindNotAllowed",
            f"{port.function.address}: devices of kind {offer} may not be taken from this "
            f"host (allowed: {', '.join(sorted(config.allowed)) or 'none'})",
        )
    if kind.needs_erasing and not config.erase_policy:
        raise Denied(
            "ErasePolicyMissing",
            f"{port.function.address} is {port.kind}, and no policy erases it between owners; set one",
        )


def refuse_in_use(tree: Tree, port: PciPort, functions: Collection[PciFunction]) -> None:
    """Raises Denied ``DeviceReserved`` if the host needs one of the functions itself, ``DeviceInUse`` if a process uses
    one, ``InUseUnknown`` if that is unknown.

    For a part of a card that is no network card the need for the card counts too: its VFs do not work without it.
    """
    affected = {function.address: function for function in functions}
    if not DEVICE_KINDS[port.kind].shares_with_host:
        affected |= {member.address: member for member in port.members}
    # Monitors count as users: a driver does not leave a device that nvidia-persistenced has open.
    holders = DeviceUsers.read(tree, functions, passed_over=())
    for function in affected.values():
        _refuse_reserved(tree, function, holders)
    known_by_others = bool(holders.nodes) or any(holders.interfaces(function) for function in functions)
    if known_by_others and (blind := visibility_problem(tree)) is not None:
        names = ", ".join(str(function.address) for function in functions)
        raise Denied("InUseUnknown", f"cannot check whether {names} is in use: {blind}", retryable=True)
    for function in functions:
        _refuse_users(port, function, holders)


def _refuse_reserved(tree: Tree, function: PciFunction, holders: DeviceUsers) -> None:
    if function.base_class == BRIDGE:
        raise Denied("DeviceReserved", f"{function.address} is a bridge in the same slot")
    need = holders.reserved(function)
    if need is not None:
        raise Denied("DeviceReserved", f"{function.address} is reserved for the host: {need}")
    blocks = list(storage.block_devices(function))
    for block in blocks:
        refuse_kernel_use(tree, block.name, str(function.address))
    if holders.interfaces(function) and _is_unreadable(tree, "net", "route"):
        raise Denied(
            "InUseUnknown", f"cannot check whether the host needs {function.address}: /proc/net/route not found"
        )
    if blocks and _is_unreadable(tree, "self", "mountinfo") and _is_unreadable(tree, "mounts"):
        raise Denied("InUseUnknown", f"cannot check whether the host needs {function.address}: /proc/mounts not found")


def _is_unreadable(tree: Tree, *names: str) -> bool:
    *folders, name = names
    folder = tree.proc.folder(*folders) if tree.proc and folders else tree.proc
    return folder is None or folder.raw(name) is None


def _refuse_users(port: PciPort, function: PciFunction, holders: DeviceUsers) -> None:
    if nic.is_nic(function) and nic.is_in_other_namespace(function):
        raise _in_use(function, "its interface is in another network namespace")
    user = holders.user(function)
    if user is not None:
        raise _in_use(function, f"{user} has it open")
    is_companion = not DEVICE_KINDS[port.kind].takes_whole_slot and kind_of(function) is None
    if is_companion and function.driver is not None and not function.on_vfio:
        raise _in_use(function, f"it is part of the card and has the driver {function.driver}")


def refuse_vgpus(function: PciFunction) -> None:
    """Raises Denied ``DeviceInUse`` where vGPUs live on the function: they would go with its driver."""
    parent = vgpu.read_parent(function)
    if parent is not None and parent.live:
        names = ", ".join(live.uuid or live.profile_id or "one" for live in parent.live[:3])
        raise _in_use(function, f"it carries {len(parent.live)} vGPUs ({names})")


def refuse_group(
    tree: Tree, config: BindingConfig, functions: Collection[PciFunction], together: Iterable[Address] = ()
) -> None:
    """Raises Denied where the IOMMU group cannot be taken whole. ``together``: what comes and goes with the device."""
    # A known function is as it was when this look at the host began; its peers are looked at now.
    members = {function.address: function for function in functions}
    for function in functions:
        members |= {member.address: member for member in group_members(tree, function, members)}
    groups = IommuGroups.of(members.values(), config.allow_shared_groups)
    for objection in groups.objections(functions, frozenset(together)):
        code = "NoIommuGroup" if objection.startswith("no IOMMU group") else "GroupShared"
        raise Denied(code, f"{min(function.address for function in functions)} cannot be taken: {objection}")
    # Peers that VFIO has already may be a machine's, and with them the group.
    own = {function.address for function in functions}
    peers = [member for member in members.values() if member.address not in own]
    refuse_open(tree, vfio_nodes(peers), ", ".join(str(peer.address) for peer in peers), certain=True)


def _in_use(function: PciFunction, why: str) -> Denied:
    return Denied("DeviceInUse", f"{function.address} is in use: {why}", retryable=True)
