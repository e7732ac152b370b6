"""Users of devices: what the host itself needs (reserved), and what a process has open (in use);
and the block devices of drives.

Read from /proc and sysfs below the same root. Nothing is assumed beyond what a recording contains. A file that exists
but cannot be read makes every device reserved that it could concern. The inventory and the bindings get the same
answers from here, so that no device is offered and then refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from devalloc.inventory.boot_display import BootDisplay
from devalloc.inventory.class_devices import BLOCK, ClassDevice, ClassDevices, DeviceNode, DeviceNumber
from devalloc.inventory.kfd import KfdTopology
from devalloc.inventory.monitors import describe_users
from devalloc.inventory.network_use import NetworkUse, may_be_half
from devalloc.inventory.nic import network_interfaces
from devalloc.inventory.open_nodes import Process, open_device_nodes
from devalloc.inventory.pci import Address, PciFunction, read_pci_function
from devalloc.inventory.storage_use import StorageUse
from devalloc.inventory.sysfs import Folder, Tree
from devalloc.inventory.vfio_nodes import function_nodes
from devalloc.inventory.vgpu import mdev_groups

_CONTROLLER = re.compile(r"nvme[0-9]+", re.ASCII)
_HOST_PORT = re.compile(r"\bhost_traddr=nn-0x[0-9a-f]+:pn-(0x[0-9a-f]+)", re.ASCII)
_NVIDIA_DRIVER, _NVIDIA_MAJOR = "nvidia", 195
_MODESET = DeviceNode("/dev/nvidia-modeset", DeviceNumber(False, _NVIDIA_MAJOR, 254))
"""The node that all displays of NVIDIA's driver have in common. While it is open, the driver lets no GPU go that shows
something, and nothing tells which: of a process that has no GPU's own node open, all count."""
_IDXD = "dsa"
"""The bus of the work queues of DSA and IAX."""
_HIDDEN = {"infiniband": "RDMA device", "ieee80211": "wireless device"}


def nvme_controllers(function: PciFunction) -> list[str]:
    """The names of the controllers a driver has made of the function: ``nvme0``."""
    names = function.folder.names("nvme") if "nvme" in function.entries else ()
    return [name for name in names if _CONTROLLER.fullmatch(name)]


def block_devices(function: PciFunction) -> list[Folder]:
    """The disks and partitions that hang below the function. With multipath a disk of NVMe hangs below a virtual
    subsystem instead."""
    return [device.folder for device in (*function.below.of_class(BLOCK), *_disks_by_fibre_channel(function))]


def _disks_by_fibre_channel(function: PciFunction) -> list[ClassDevice]:
    """Disks of NVMe that an HBA reaches. Their controllers are virtual devices; each names the port that it goes by:
    ``traddr=nn-0x…:pn-0x…,host_traddr=nn-0x…:pn-0x100000109b3c1f2a``."""
    hosts = function.below.of_class("fc_host")
    if not hosts:
        return []
    ports = {name for host in hosts if (name := host.folder.text("port_name")) is not None}
    disks: list[ClassDevice] = []
    system = function.folder.tree.sys
    listing = system.folder("class", "nvme") if ports and system is not None else None
    for name in listing.names() if listing is not None else ():
        controller = listing.folder(name) if listing is not None else None
        match = _HOST_PORT.search((controller.text("address") if controller is not None else None) or "")
        if controller is not None and match is not None and match[1] in ports:
            disks += ClassDevices(controller).of_class(BLOCK)
    return disks


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


def _shows_own_processes(tree: Tree) -> bool:
    """Whether users that do not show may be there: not in a recording; nor for a person without the rights of root, who
    only reads what there is."""
    own = tree.proc.folder("self", "ns") if tree.proc is not None else None
    is_recording = own is None or own.link("pid") is None
    return not is_recording and not (tree.is_host and os.geteuid() != 0)


@dataclass(slots=True)
class DeviceUsers:
    """What of this host is spoken for. Its routes and mounts, of which a busy host has thousands, are read when a
    function has interfaces or disks that they may concern."""

    tree: Tree
    nodes: frozenset[DeviceNode]
    """The device nodes of the functions."""
    opened: Mapping[Address, tuple[Process, ...]]
    """Functions that processes have open, and which processes."""
    open_groups: Mapping[int, tuple[Process, ...]]
    """IOMMU groups of mediated devices that processes have open, and which processes."""
    unreadable: frozenset[Address] = frozenset()
    """Functions that may have device nodes beside those that were seen."""
    with_nodes: frozenset[Address] = frozenset()
    """Functions that have device nodes."""
    released: frozenset[str] = frozenset()
    """Names of monitors that do not count, because they let a GPU go when they are asked to."""
    _network: NetworkUse | None = field(default=None, init=False)
    _storage: StorageUse | None = field(default=None, init=False)
    _display: BootDisplay | None = field(default=None, init=False)

    @classmethod
    def read(
        cls,
        tree: Tree,
        functions: Collection[PciFunction],
        *,
        released: Collection[str] = (),
        mdevs: bool = False,
        parents: Collection[Folder] = (),
    ) -> DeviceUsers:
        """What is spoken for of the functions. ``released``: monitors that do not count. ``mdevs``: look for the users
        of mediated devices, too: of those on the functions and on other ``parents``."""
        before, of_amd = tree.fault_count, [each.address for each in functions if KfdTopology.concerns(each)]
        kfd = KfdTopology.read(tree) if of_amd else KfdTopology(tree, ())
        unreadable = {*of_amd} if tree.fault_count != before else set()
        # One node may stand for several functions: those of an IOMMU group.
        nodes: list[tuple[DeviceNode, Address]] = []
        for function in functions:
            before = tree.fault_count
            nodes += ((node, function.address) for node in (*device_nodes(function), *kfd.nodes(function)))
            if tree.fault_count != before:
                unreadable.add(function.address)
        folders = [*(function.folder for function in functions), *parents] if mdevs else []
        groups = {node: group for parent in folders for node, group in mdev_groups(parent).items()}
        wanted = {*(node for node, _ in nodes), *groups}
        common = kfd.common_node if any(kfd.of(function) for function in functions) else None
        displays = [function.address for function in functions if function.driver == _NVIDIA_DRIVER]
        wanted |= {*([common] if common is not None else []), *([_MODESET] if displays else [])}
        users = open_device_nodes(tree.proc, wanted)
        opened: dict[Address, set[Process]] = {}
        for node, address in nodes:
            opened.setdefault(address, set()).update(users.get(node.path, ()))
        computing = kfd.processes(users.get(common.path, ())) if common is not None else {}
        modeset = set(users.get(_MODESET.path, ()))
        if modeset:  # a binding reads one card; who has another GPU open shows its displays on that one
            others = {node for other in _other_gpus_of_nvidia(tree, displays) for node in device_nodes(other)}
            with_own = [opened.get(address, set()) for address in displays]
            modeset = modeset.difference(*with_own, *open_device_nodes(tree.proc, others).values())
        for address in displays:
            opened.setdefault(address, set()).update(modeset)
        for function in functions if computing else ():
            for gpu in kfd.of(function):
                opened.setdefault(function.address, set()).update(computing.get(gpu.gpu_id, ()))
        return cls(
            tree,
            nodes=frozenset(node for node, _ in nodes),
            opened={address: _by_number(processes) for address, processes in opened.items() if processes},
            open_groups={group: users[node.path] for node, group in groups.items() if node.path in users},
            unreadable=frozenset(unreadable),
            with_nodes=frozenset(address for _, address in nodes),
            released=frozenset(released),
        )

    def read_all(self) -> DeviceUsers:
        """Have everything read now, whatever it concerns: what cannot be is a fault of the tree then."""
        self._network, self._storage = NetworkUse.read(self.tree), StorageUse.read(self.tree)
        return self

    def reserved(self, function: PciFunction) -> str | None:
        """What the host needs the function for: ``default route``; None when it does not."""
        before = self.tree.fault_count
        self._display = self._display or BootDisplay(self.tree)
        if (display := self._display.need(function)) is not None:
            return display
        if any(_is_console(device) for device in function.below.of_class("graphics", "tty")):
            return "console"
        is_seen = self.tree.fault_count == before and function.below.is_complete
        is_seen &= function.address not in self.unreadable
        need = self._network_use(function) or self._storage_use(function)
        return "not all that hangs below it can be seen" if need is None and not is_seen else need

    def interfaces(self, function: PciFunction) -> list[Folder]:
        """The network interfaces that hang below the function."""
        return network_interfaces(function)

    def user(self, function: PciFunction) -> str | None:
        """Who uses the function, with what to do about it if that is a monitor; None where none is seen."""
        hidden = sorted(function.below.elsewhere)
        if hidden:
            return f"its {_HIDDEN.get(hidden[-1], 'interface')} is in another network namespace"
        for channel in function.below.of_class("dma"):
            if channel.folder.number("in_use"):
                return f"the kernel uses its DMA channel {channel.folder.name}"
        if processes := self.opened.get(function.address):
            return describe_users(processes, str(function.address), self.tree, self.released)
        busy = (device.folder.name for device in function.below.of_class(_IDXD) if _is_used_by_kernel(device.folder))
        return next((f"the kernel uses its work queue {name}" for name in busy), None)

    def group_user(self, group: int | None) -> str | None:
        """The process that has the group of a mediated device open; None where none is seen."""
        processes = () if group is None else self.open_groups.get(group, ())
        return str(processes[0]) if processes else None

    def doubt(self, function: PciFunction) -> str | None:
        """Why it cannot be seen who uses the function; None if it can. Bindings refuse it then."""
        interfaces = self.interfaces(function)
        if interfaces and is_unreadable(self.tree, "net", "route"):
            return "/proc/net/route not found"
        if (listed := _nvidia_listing(function)) is not None and next(_nvidia_node(function), None) is None:
            return f"{listed.path.removeprefix(str(self.tree.root))}/information does not name its device node"
        mounts = ("self", "mountinfo"), ("mounts",)
        if block_devices(function) and all(is_unreadable(self.tree, *place) for place in mounts):
            return "/proc/mounts not found"
        is_seen_by_processes = bool(interfaces) or function.address in self.with_nodes
        return visibility_problem(self.tree) if is_seen_by_processes else None

    def doubt_of_network(self, function: PciFunction) -> str | None:
        """Why it cannot be seen what stands on the function's interfaces, which may pass: the inventory only reports
        it, and bindings refuse."""
        interfaces = self.interfaces(function)
        return self._network_in_use().problem(interfaces) if interfaces else None

    def doubt_of_host(self, function: PciFunction) -> str | None:
        """The same, of a host whose processes should show: a recording has none."""
        return self.doubt(function) if _shows_own_processes(self.tree) else None

    def _network_in_use(self) -> NetworkUse:
        self._network = self._network or NetworkUse.read(self.tree)
        return self._network

    def _network_use(self, function: PciFunction) -> str | None:
        own = self.interfaces(function)
        if own:
            return self._network_in_use().need(own)
        return self._network_in_use().need_of_other_half(function) if may_be_half(function) else None

    def _storage_use(self, function: PciFunction) -> str | None:
        devices, controllers = block_devices(function), nvme_controllers(function)
        if not devices and not controllers:
            return None
        storage = self._storage = self._storage or StorageUse.read(self.tree)
        if storage.unread is not None:
            return f"{storage.unread} cannot be read"
        needs = (*map(storage.need, devices), *map(storage.need_of_controller, controllers))
        return next((need for need in needs if need is not None), None)


def device_nodes(function: PciFunction) -> Iterator[DeviceNode]:
    """The device nodes through which processes use a function."""
    if function.on_vfio:
        yield from function_nodes(function)
    devices = (*function.below.devices, *_disks_by_fibre_channel(function))
    yield from (device.node for device in devices if device.node is not None)
    yield from _nvidia_node(function)


def is_unreadable(tree: Tree, *names: str) -> bool:
    """Whether a file below /proc is missing or cannot be read."""
    *folders, name = names
    folder = tree.proc.folder(*folders) if tree.proc and folders else tree.proc
    return folder is None or folder.raw(name) is None


def _is_console(device: ClassDevice) -> bool:
    """Whether the host writes its messages there."""
    if device.subsystem == "graphics":
        return device.folder.name == "fb0"
    system = device.folder.tree.sys
    console = system.folder("class", "tty", "console") if system is not None else None
    return device.folder.name in ((console.text("active") if console is not None else None) or "").split()


def _is_used_by_kernel(queue: Folder) -> bool:
    """Whether a work queue has users, or is for what the kernel compresses, such as the memory that zswap keeps."""
    if queue.number("clients"):
        return True
    return (queue.text("type"), queue.text("state"), queue.text("driver_name")) == ("kernel", "enabled", "crypto")


def _by_number(processes: Collection[Process]) -> tuple[Process, ...]:
    return tuple(sorted(processes, key=lambda process: process.pid))


def _other_gpus_of_nvidia(tree: Tree, addresses: Collection[Address]) -> Iterator[PciFunction]:
    """The GPUs that NVIDIA's driver has, without those at some addresses."""
    listing = tree.proc.folder("driver", "nvidia", "gpus") if tree.proc is not None else None
    for name in listing.names() if listing is not None else ():
        address = Address.parse(name)
        if address is None or address in addresses or tree.sys is None:
            continue
        folder = tree.sys.folder("bus", "pci", "devices", str(address))
        if folder is not None and (function := read_pci_function(address, folder)) is not None:
            yield function


def _nvidia_listing(function: PciFunction) -> Folder | None:
    """What NVIDIA's driver shows of a GPU that it has."""
    proc = function.folder.tree.proc if function.driver == _NVIDIA_DRIVER else None
    return proc.folder("driver", "nvidia", "gpus", str(function.address)) if proc else None


def _nvidia_node(function: PciFunction) -> Iterator[DeviceNode]:
    """The node of NVIDIA's driver, which has no class."""
    card = _nvidia_listing(function)
    text = (card.text("information") if card else None) or ""
    minor = re.search(r"^Device Minor:\s*([0-9]{1,7})$", text, re.MULTILINE)
    if minor:
        yield DeviceNode(f"/dev/nvidia{minor[1]}", DeviceNumber(False, _NVIDIA_MAJOR, int(minor[1])))
