"""Checks before a device is taken from the host: before the first step, and again by every binding.

The inventory publishes these devices as unavailable, so the solver does not allocate them. This module does not rely
on that.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from typing import TypeVar

from devalloc.inventory import device_users, locate, vgpu
from devalloc.inventory.cards import PciPort, kind_of, stays_in_group, with_shared_group
from devalloc.inventory.class_devices import DeviceNode
from devalloc.inventory.device_users import DeviceUsers, device_nodes, visibility_problem
from devalloc.inventory.locate import LocatedDevice, group_members, mdev_folder, read_function
from devalloc.inventory.open_nodes import Process, open_device_nodes
from devalloc.inventory.owner_data import disks_below, keeps_data
from devalloc.inventory.pci import BRIDGE, Address, IommuGroups, PciFunction
from devalloc.inventory.resets import reset_problem
from devalloc.inventory.storage_use import is_used_by_host
from devalloc.inventory.sysfs import Tree
from devalloc.inventory.vfio_nodes import BY_IOMMUFD, function_nodes
from devalloc.inventory.vfio_refusals import vfio_refusal
from devalloc.inventory.vgpu import mdev_nodes
from devalloc_node.binding.binding import BindingConfig
from devalloc_node.errors import Denied
from devalloc_node.model.grant import GrantedDevice
from devalloc_node.model.step import PreparedDevice

Wanted = TypeVar("Wanted", bound=LocatedDevice)


def locate_device(tree: Tree, config: BindingConfig, granted: GrantedDevice) -> LocatedDevice:
    """Raises Denied ``DeviceUnknown`` or ``DeviceGone``."""
    try:
        return locate.locate(tree, config.node_name, granted.pool, granted.device)
    except locate.DeviceUnknown as error:
        raise Denied("DeviceUnknown", str(error)) from error
    except locate.DeviceGone as error:
        raise Denied("DeviceGone", str(error)) from error


def locate_device_of_kind(
    tree: Tree,
    config: BindingConfig,
    granted: GrantedDevice,
    wanted: type[Wanted],
    located: LocatedDevice | None = None,
) -> Wanted:
    """As ``locate_device``, for a binding that knows one form of devices. ``located``: it was found already."""
    location = located or locate_device(tree, config, granted)
    if not isinstance(location, wanted):
        raise Denied("DeviceUnknown", f"{granted.device!r} is now another kind of device than when it was allocated")
    return location


_UDEV_PROCESSES = frozenset({"(udev-worker)", "systemd-udevd", "udevd"})
"""Names of processes that open a node that has just appeared, for a moment."""
_UDEV_SECONDS, _UDEV_POLL_SECONDS = 5.0, 0.1


def refuse_open(tree: Tree, nodes: Iterable[DeviceNode], what: str, *, certain: bool) -> None:
    """Raises Denied ``DeviceInUse`` if a process has one of the nodes open.

    ``certain``: also if that is not known for all processes (``InUseUnknown``); else the kernel has the last word.
    udev opens a node that has just appeared, for a moment: this waits until udev has closed it.
    """
    wanted = set(nodes)
    if not wanted:
        return
    blind = visibility_problem(tree)
    if blind is not None and certain:
        raise Denied("InUseUnknown", f"cannot check whether {what} is in use: {blind}")
    if users := _open_nodes(tree, wanted):
        node, processes = min(users.items())
        raise Denied("DeviceInUse", f"{what} is in use: {processes[0]} has {node} open")


def _open_nodes(tree: Tree, nodes: Collection[DeviceNode]) -> dict[str, tuple[Process, ...]]:
    """Which of the nodes processes have open, and who, once udev has closed them. udev counts like any other process
    after that: every process can give itself its name."""
    until = time.monotonic() + _UDEV_SECONDS
    while users := open_device_nodes(tree.proc, nodes):
        others = {node: rest for node, processes in users.items()
                  if (rest := tuple(each for each in processes if each.name not in _UDEV_PROCESSES))}  # fmt: skip
        if others or time.monotonic() >= until:
            return others or users
        time.sleep(_UDEV_POLL_SECONDS)
    return {}


def refuse_kernel_use(tree: Tree, block: str, what: str) -> None:
    """Raises Denied ``DeviceReserved`` when the kernel keeps a disk for itself, ``InUseUnknown`` if it cannot be
    asked."""
    try:
        is_reserved = is_used_by_host(tree.root / "dev" / block)
    except FileNotFoundError as error:
        why = f"/dev/{block} not found (does this process see the host's /dev?)"
        raise Denied("InUseUnknown", f"cannot check whether the host needs {what}: {why}") from error
    except OSError as error:
        why = f"cannot open {block}: {error.strerror}"
        raise Denied("InUseUnknown", f"cannot check whether the host needs {what}: {why}") from error
    if is_reserved:
        raise Denied("DeviceReserved", f"{what} is reserved for the host: {block} is in use")


def current_nodes(tree: Tree, device: PreparedDevice) -> set[DeviceNode]:
    """The nodes of a prepared device that are still its own: the number of an IOMMU group that went is used again."""
    if device.mdev_uuid is not None:
        folder = mdev_folder(tree, device.mdev_uuid)
        now = mdev_nodes(folder) if folder is not None else set()
    else:
        now = {node for function in _functions(tree, device.functions) for node in function_nodes(function)}
    return {node for node in now if node.path in device.nodes or node.path.startswith(BY_IOMMUFD)}


def process_using(tree: Tree, device: PreparedDevice) -> str | None:
    """Who has a prepared device open, such as ``qemu (1234)``. If others' processes cannot be seen, kernel and
    bindings have the last word."""
    nodes = current_nodes(tree, device)
    return next((str(processes[0]) for processes in _open_nodes(tree, nodes).values()), None) if nodes else None


def _functions(tree: Tree, addresses: Iterable[str]) -> Iterator[PciFunction]:
    for text in addresses:
        address = Address.parse(text)
        function = read_function(tree, address) if address is not None else None
        if function is not None:
            yield function


def vfio_nodes(functions: Iterable[PciFunction]) -> set[DeviceNode]:
    """The nodes of those functions that VFIO has."""
    return {node for function in functions if function.on_vfio for node in device_nodes(function)}


def refuse_kind(config: BindingConfig, port: PciPort, offer: str) -> None:
    """``offer``: ``vgpu``, ``vf``, or the kind of a whole port."""
    kind = port.device_kind
    if not kind.is_offered:
        raise Denied("DeviceReserved", f"the host uses {port.function.address} as a {port.kind}")
    refuse_offer(config, str(port.function.address), offer)
    if kind.needs_erasing and not config.erase_policy:
        raise Denied(
            "ErasePolicyMissing",
            f"{port.function.address} is {port.kind}, and no policy erases it between owners; set one",
        )


def refuse_disks(config: BindingConfig, port: PciPort, functions: Iterable[PciFunction]) -> None:
    """Raises Denied ``ErasePolicyMissing`` if disks go along with functions of a port, and nothing erases them."""
    if not config.erase_policy and (disks := disks_below(port.device_kind, functions)) is not None:
        raise Denied(
            "ErasePolicyMissing",
            f"{port.function.address} has {disks}, and no policy erases that between owners; set one",
        )


def refuse_offer(config: BindingConfig, what: str, offer: str) -> None:
    """Raises Denied ``KindNotAllowed`` if the admin does not allow such devices; ``what`` is on the host."""
    if offer not in config.allowed:
        raise Denied(
            "KindNotAllowed",
            f"{what}: devices of kind {offer} may not be taken from this "
            f"host (allowed: {', '.join(sorted(config.allowed)) or 'none'})",
        )


def refuse_in_use(
    tree: Tree,
    port: PciPort,
    functions: Collection[PciFunction],
    *,
    is_vf: bool = False,
    released: Collection[str] = (),
) -> None:
    """Raises Denied ``DeviceReserved`` if the host needs one of the functions itself, ``DeviceInUse`` if a process uses
    one, ``InUseUnknown`` if that is unknown.

    The host's need for the card counts for a part of it, too, but not for a vGPU of a network card, and for a virtual
    function (``is_vf``) only if that is storage: the card's driver stays. ``released``: monitors that do not count.
    """
    affected = {function.address: function for function in functions}
    kind = port.device_kind
    if keeps_data(kind, [port.function]) if is_vf else not kind.shares_with_host:
        affected |= {member.address: member for member in port.members}
    holders = DeviceUsers.read(tree, functions, released=released)
    if holders.opened and not _open_nodes(tree, holders.nodes):  # it was udev
        holders = DeviceUsers.read(tree, functions, released=released)
    for function in affected.values():
        _refuse_reserved(tree, function, holders)
    for function in affected.values():
        if (why := holders.doubt(function) or holders.doubt_of_network(function)) is not None:
            raise Denied("InUseUnknown", f"cannot check whether {function.address} is in use: {why}")
    for function in functions:
        _refuse_users(port, function, holders)


def _refuse_reserved(tree: Tree, function: PciFunction, holders: DeviceUsers) -> None:
    if function.base_class == BRIDGE:
        raise Denied(
            "DeviceReserved", f"{function.address} is a bridge in the same slot, and a machine cannot have a bridge"
        )
    need = holders.reserved(function)
    if need is not None:
        raise Denied("DeviceReserved", f"{function.address} is reserved for the host: {need}")
    blocks = device_users.block_devices(function)
    for block in blocks:
        refuse_kernel_use(tree, block.name, str(function.address))


def _refuse_users(port: PciPort, function: PciFunction, holders: DeviceUsers) -> None:
    user = holders.user(function)
    if user is not None:
        raise _in_use(function, user)
    is_companion = not port.device_kind.takes_whole_slot and kind_of(function) is None
    if is_companion and not function.leaves_group:
        raise _in_use(function, f"it is part of the card and has the driver {function.driver}")


def refuse_without_reset(config: BindingConfig, function: PciFunction) -> None:
    """Raises Denied ``NoReset`` if what one owner leaves in the function could not be removed for the next (T7)."""
    problem = None if config.allow_no_reset else reset_problem(function)
    if problem is not None:
        raise Denied("NoReset", f"{problem}, so the next owner would get it as the last one left it")


def refuse_useless(functions: Iterable[PciFunction]) -> None:
    """Raises Denied ``DeviceGone`` if a function does not respond, ``VfioRefused`` if VFIO does not take it."""
    for function in functions:
        if not function.responds:
            raise Denied(
                "DeviceGone", f"{function.address} does not respond: its configuration space reads as all ones"
            )
        if (why := vfio_refusal(function)) is not None:
            raise Denied("VfioRefused", f"{function.address} cannot be passed through: {why}")


def refuse_vgpus(function: PciFunction) -> None:
    """Raises Denied ``DeviceInUse`` if vGPUs live on the function: they would go with its driver."""
    parent = vgpu.read_parent(function)
    if parent is not None and parent.live:
        names = ", ".join(live.uuid or live.profile_id or "one" for live in parent.live[:3])
        raise _in_use(function, f"it carries {len(parent.live)} vGPUs ({names})")


def with_group(tree: Tree, config: BindingConfig, port: PciPort) -> PciPort:
    """The port with what its IOMMU group makes go along with it (``with_shared_group``)."""
    if not config.bind_shared_groups:
        return port
    members = {member.address: member for function in port.members for member in group_members(tree, function)}
    return with_shared_group(port, IommuGroups.of(members.values(), True, bound_together=True), config.allowed)


def refuse_group(tree: Tree, config: BindingConfig, functions: Collection[PciFunction]) -> None:
    """Raises Denied if the IOMMU group cannot be taken whole."""
    # A known function is as it was when this look at the host began; its peers are looked at now.
    members = {function.address: function for function in functions}
    for function in functions:
        members |= {member.address: member for member in group_members(tree, function, members)}
    groups = IommuGroups.of(
        members.values(),
        config.allow_shared_groups,
        bound_together=config.bind_shared_groups,
        stays=stays_in_group(config.allowed),
    )
    for objection in groups.objections(functions):
        code = "NoIommuGroup" if objection.startswith("no IOMMU group") else "GroupShared"
        raise Denied(code, f"{min(function.address for function in functions)} cannot be taken: {objection}")
    # Peers that VFIO has already may be a machine's, and with them the group.
    own = {function.address for function in functions}
    peers = [member for member in members.values() if member.address not in own]
    refuse_open(tree, vfio_nodes(peers), ", ".join(str(peer.address) for peer in peers), certain=True)


def _in_use(function: PciFunction, why: str) -> Denied:
    return Denied("DeviceInUse", f"{function.address} is in use: {why}")
