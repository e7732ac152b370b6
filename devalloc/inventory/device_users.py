"""Users of devices: what the host itself needs (reserved), and what a process has open (in use);
and the block devices of drives.

Read from /proc and sysfs below the same root. Nothing is assumed beyond what a recording contains. A file that exists
but cannot be read makes every device reserved that it could concern. These answers are for choosing; the code that
binds a device checks again and refuses when in doubt.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from devalloc.device_kinds import DEVICE_KINDS, STORAGE, find_kind
from devalloc.inventory.nic import network_interfaces
from devalloc.inventory.pci import Address, PciFunction
from devalloc.inventory.sysfs import Folder, Tree, ipv4_interfaces, open_device_nodes
from devalloc.inventory.vgpu import mdev_groups

_STORAGE = 0x01
_USB = 0x0C03
_CONTROLLER = re.compile(r"nvme[0-9]+", re.ASCII)
_NAMESPACE = re.compile(r"(nvme[0-9]+)(?:c[0-9]+)?(n[0-9]+)", re.ASCII)


def nvme_controllers(function: PciFunction) -> list[str]:
    """The names of the controllers a driver has made of the function: ``nvme0``."""
    names = function.folder.names("nvme") if "nvme" in function.entries else ()
    return [name for name in names if _CONTROLLER.fullmatch(name)]


def block_devices(function: PciFunction) -> Iterator[Folder]:
    """The disks and partitions on the function, also of a USB or disk controller. With multipath a disk of NVMe hangs
    below a virtual subsystem instead."""
    is_nvme = STORAGE.matches(function.subclass, function.vendor, function.device)
    if not is_nvme and (function.base_class == _STORAGE or function.subclass == _USB):
        yield from _block_devices_below(function)
    for controller in nvme_controllers(function):
        for name in function.folder.names("nvme", controller):
            match = _NAMESPACE.fullmatch(name)
            if match is None:
                continue
            system = function.folder.tree.sys
            head = system.folder("class", "block", match[1] + match[2]) if system else None
            disk = head or function.folder.folder("nvme", controller, name)
            if disk is not None:
                yield disk
                parts = [name for name in disk.names() if name.startswith(f"{disk.name}p")]
                yield from filter(None, map(disk.folder, parts))


def _block_devices_below(function: PciFunction) -> Iterator[Folder]:
    """Block devices whose folders lie below the function's."""
    system = function.folder.tree.sys
    listing = system.folder("class", "block") if system else None
    for name in listing.names() if listing else ():
        disk = listing.folder(name) if listing else None
        if disk is not None and disk.path.startswith(f"{function.folder.path}/"):
            yield disk


_INIT_NAMESPACE = "pid:[4026531836]"
"""The number that Linux gives the machine's own process namespace (PROC_PID_INIT_INO)."""


def visibility_problem(tree: Tree) -> str | None:
    """Why not all descriptors on this machine can be seen; None when they can (T8)."""
    proc = tree.proc
    if proc is None:
        return "there is no /proc"
    own = proc.folder("self", "ns")
    if own is None or own.link("pid") != _INIT_NAMESPACE:
        return "only the processes of this container can be seen (run it with the host's process namespace)"
    first = proc.folder("1", "fd")
    if first is None:
        return "process 1 cannot be seen (is /proc mounted with hidepid?)"
    if not first.names():  # process 1 always has some open
        return "the descriptors of other users' processes cannot be read (requires CAP_SYS_PTRACE)"
    return None


_NETWORK_FILES = frozenset({"route", "ipv6_route", "if_inet6"})
_STORAGE_FILES = frozenset({"mountinfo", "mounts", "swaps"})
_LINK_LOCAL = "20"
_NODES = (
    ("uio", "/dev"),
    ("ptp", "/dev"),
    ("accel", "/dev/accel"),
    ("infiniband_verbs", "/dev/infiniband"),
    ("infiniband_mad", "/dev/infiniband"),
)
"""Classes of the kernel's below a function's folder, and where the nodes of their devices are."""
_UEVENT_NAME = re.compile(r"^DEVNAME=([A-Za-z0-9_-][A-Za-z0-9_./!-]{0,200})$", re.MULTILINE | re.ASCII)
_DRM = re.compile(r"(?:card|renderD)[0-9]+", re.ASCII)
_VDPA = re.compile(r"vdpa[0-9]+", re.ASCII)
_VHOST_VDPA = re.compile(r"vhost-vdpa-[0-9]+", re.ASCII)
_GENERIC = re.compile(r"ng[0-9]+n[0-9]+", re.ASCII)
MONITORING_PROCESSES = frozenset(
    {"nvidia-persiste", "nvidia-vgpud", "nvidia-vgpu-mgr", "nv-hostengine", "dcgm-exporter"}
)
"""Processes (as cut off by the kernel) that keep GPUs open to watch them, not to use them."""


@dataclass(frozen=True, slots=True)
class _NetworkUse:
    """Interfaces that the host uses."""

    default_route: frozenset[str]
    """Those of a default route."""
    addressed: frozenset[str]
    """Those with an address or a route."""
    unseen: bool
    """The host's addresses and routes are not those that this process sees."""
    unread: str | None
    """What could not be read of this: the name of a file such as ``route``."""

    @classmethod
    def read(cls, tree: Tree) -> _NetworkUse:
        default_route, addressed = _routes(tree)
        addressed |= _ipv6(tree) | ipv4_interfaces(tree)
        unseen, unread = _is_in_another_network(tree), _first_unreadable(tree, _NETWORK_FILES)
        return cls(frozenset(default_route), frozenset(addressed), unseen, unread)


@dataclass(frozen=True, slots=True)
class _StorageUse:
    """Block devices that the host uses."""

    mounted: frozenset[str]
    """Those that are mounted, by name (``nvme0n1p1``) or number (``259:1``)."""
    swap: frozenset[str]
    """Those that are swapped to, by name."""
    unread: str | None
    """What could not be read of this: the name of a file such as ``mountinfo``."""

    @classmethod
    def read(cls, tree: Tree) -> _StorageUse:
        mounted = frozenset(_mounted_devices(tree))
        swap = frozenset(row[0].rpartition("/")[2] for row in _rows(tree, "swaps")[1:])
        return cls(mounted, swap, _first_unreadable(tree, _STORAGE_FILES))


@dataclass(slots=True)
class DeviceUsers:
    """What of this host is spoken for. Its routes and mounts, of which a busy host has thousands, are read when a
    function has interfaces or disks that they may concern."""

    tree: Tree
    nodes: frozenset[str]
    """The device nodes of the functions."""
    opened: Mapping[Address, str]
    """Functions that a process has open, and which process."""
    open_groups: Mapping[int, str]
    """IOMMU groups of mediated devices that a process has open, and which process."""
    _interfaces: dict[Address, list[Folder]] = field(default_factory=dict, init=False)
    _network: _NetworkUse | None = field(default=None, init=False)
    _storage: _StorageUse | None = field(default=None, init=False)

    @classmethod
    def read(
        cls,
        tree: Tree,
        functions: Collection[PciFunction],
        passed_over: Collection[str] = MONITORING_PROCESSES,
        *,
        mdevs: bool = False,
        mdev_parents: Collection[Folder] = (),
    ) -> DeviceUsers:
        """What is spoken for of the functions. ``passed_over``: names of processes that do not count as users.
        ``mdevs``: look for the users of mediated devices, too: of those on the functions and on ``mdev_parents``."""
        # One node may stand for several functions: those of an IOMMU group.
        nodes = sorted((node, function.address) for function in functions for node in device_node_paths(function))
        parents = [*(function.folder for function in functions), *mdev_parents] if mdevs else []
        groups = {node: group for parent in parents for node, group in mdev_groups(parent).items()}
        wanted = {node for node, _ in nodes} | groups.keys()
        users = open_device_nodes(tree.proc, wanted, passed_over) if wanted and tree.proc else {}
        return cls(
            tree,
            nodes=frozenset(node for node, _ in nodes),
            opened={address: users[node] for node, address in nodes if node in users},
            open_groups={group: users[node] for node, group in groups.items() if node in users},
        )

    def read_all(self) -> DeviceUsers:
        """Have everything read now, whatever it concerns: what cannot be is a fault of the tree then."""
        self._network, self._storage = _NetworkUse.read(self.tree), _StorageUse.read(self.tree)
        return self

    def reserved(self, function: PciFunction) -> str | None:
        """What the host needs the function for: ``default route``; None when it does not."""
        if function.folder.number("boot_vga") == 1:
            return "boot VGA"
        if "graphics" in function.entries and function.folder.folder("graphics", "fb0") is not None:
            return "console"
        return self._network_use(function) or self._storage_use(function)

    def interfaces(self, function: PciFunction) -> list[Folder]:
        """The function's network interfaces."""
        folders = self._interfaces.get(function.address)
        if folders is None:
            folders = self._interfaces[function.address] = network_interfaces(function)
        return folders

    def user(self, function: PciFunction) -> str | None:
        """The process that has the function open; None where none is seen."""
        return self.opened.get(function.address)

    def group_user(self, group: int | None) -> str | None:
        """The process that has the group of a mediated device open; None where none is seen."""
        return None if group is None else self.open_groups.get(group)

    def _network_use(self, function: PciFunction) -> str | None:
        own = self.interfaces(function)
        if not own:
            return None
        network = self._network = self._network or _NetworkUse.read(self.tree)
        if network.unseen:
            return "its network is not this process's (run with the host's network namespace)"
        if network.unread is not None:
            return f"{network.unread} cannot be read"
        for interface in own:
            if interface.name in network.default_route:
                return "default route"
        for interface in own:
            if interface.name in network.addressed:
                return f"address on {interface.name}"
            names = interface.names()
            if "master" in names:
                return f"member of {interface.link('master')}"
            upper = next((name for name in names if name.startswith("upper_")), None)
            if upper is not None:
                return f"carries {upper.removeprefix('upper_')}"
        return None

    def _storage_use(self, function: PciFunction) -> str | None:
        devices = list(block_devices(function))
        if not devices:
            return None
        storage = self._storage = self._storage or _StorageUse.read(self.tree)
        if storage.unread is not None:
            return f"{storage.unread} cannot be read"
        for block in devices:
            if block.name in storage.mounted or block.text("dev") in storage.mounted:
                return f"{block.name} is mounted"
            if block.name in storage.swap:
                return f"swap on {block.name}"
            holders = block.names("holders")
            if holders:
                return f"{block.name} is held by {holders[0]}"
        return None


def device_node_paths(function: PciFunction) -> Iterator[str]:
    """The device nodes through which processes use a function."""
    if function.on_vfio and function.iommu_group is not None:
        yield f"/dev/vfio/{function.iommu_group}"
        yield from (f"/dev/vfio/devices/{name}" for name in function.folder.names("vfio-dev"))
    for kind, folder in _NODES:
        if kind in function.entries:
            yield from (f"{folder}/{name}" for name in function.folder.names(kind))
    for vdpa in filter(_VDPA.fullmatch, function.entries):
        yield from (f"/dev/{name}" for name in function.folder.names(vdpa) if _VHOST_VDPA.fullmatch(name))
    device_kind = find_kind(function.subclass, function.vendor, function.device)
    if device_kind is not None and DEVICE_KINDS[device_kind].has_vendor_nodes:
        yield from _vendor_nodes(function)
    if "drm" in function.entries:
        yield from (f"/dev/dri/{name}" for name in function.folder.names("drm") if _DRM.fullmatch(name))
    for controller in nvme_controllers(function):
        yield f"/dev/{controller}"
        yield from (f"/dev/{name}" for name in function.folder.names("nvme", controller) if _GENERIC.fullmatch(name))
    yield from (f"/dev/{block.name}" for block in block_devices(function))
    yield from _nvidia_node(function)


def _vendor_nodes(function: PciFunction) -> Iterator[str]:
    """The device nodes that the driver has made, of whatever class."""
    for node_class in function.folder.folders():
        for device in node_class.folders():
            named = _UEVENT_NAME.search(device.text("uevent") or "")
            if named is not None:
                yield f"/dev/{named[1].replace('!', '/')}"


def _nvidia_node(function: PciFunction) -> Iterator[str]:
    proc = function.folder.tree.proc if function.driver == "nvidia" else None
    card = proc.folder("driver", "nvidia", "gpus", str(function.address)) if proc else None
    minor = re.search(r"^Device Minor:\s*([0-9]+)$", (card.text("information") if card else None) or "", re.MULTILINE)
    if minor:
        yield f"/dev/nvidia{minor[1]}"


def _first_unreadable(tree: Tree, files: Collection[str]) -> str | None:
    """The first of these files below /proc that is there and could not be read."""
    names = {fault.path.rpartition("/")[2] for fault in tree.faults if fault.path.startswith("/proc/")}
    return min(names & set(files), default=None)


def _rows(tree: Tree, *names: str) -> list[list[str]]:
    """The words of each line of a file below /proc."""
    *folders, name = names
    place: Folder | None = tree.proc
    if place is not None and folders:
        place = place.folder(*folders)
    return [row.split() for row in ((place.text(name) if place else None) or "").splitlines() if row.strip()]


def _routes(tree: Tree) -> tuple[set[str], set[str]]:
    """Interfaces of default routes, and of any route."""
    default: set[str] = set()
    any_route: set[str] = set()
    for row in _rows(tree, "net", "route")[1:]:
        if len(row) >= 8:
            any_route.add(row[0])
            if row[1] == "00000000" == row[7]:
                default.add(row[0])
    for row in _rows(tree, "net", "ipv6_route"):
        if len(row) == 10 and row[0] == "0" * 32 and row[1] == "00" and row[9] != "lo":
            default.add(row[9])
    return default, any_route


def _is_in_another_network(tree: Tree) -> bool:
    """Whether this process has a network namespace of its own: a container that sees the host's /sys has the names of
    its interfaces from there, and routes and addresses from elsewhere."""
    places = (tree.proc.folder(process, "ns") if tree.proc else None for process in ("self", "1"))
    own, first = (place.link("net", may_be_denied=True) if place is not None else None for place in places)
    return own is not None and first is not None and own != first


def _ipv6(tree: Tree) -> set[str]:
    """Interfaces with an IPv6 address that is not link-local: every interface that is up has one of those."""
    return {row[5] for row in _rows(tree, "net", "if_inet6") if len(row) == 6 and row[3] != _LINK_LOCAL}


def _mounted_devices(tree: Tree) -> Iterator[str]:
    for process in ("self", "1"):
        for row in _rows(tree, process, "mountinfo"):
            source = row[row.index("-") + 2 :] if "-" in row else []
            if len(row) > 2:
                yield row[2]
            if source and source[0].startswith("/dev/"):
                yield source[0].rpartition("/")[2]
    for row in _rows(tree, "mounts"):
        if row[0].startswith("/dev/"):
            yield row[0].rpartition("/")[2]
