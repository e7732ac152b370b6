"""AMD's compute driver: which nodes its partitions of a GPU have, and which GPUs its processes use.

A partitioned Instinct has a platform device (``amdgpu_xcp``) for each partition but the first, with device nodes of its
own, that nothing in its folder ties to the card. The topology does: ``location_id`` and ``domain`` say where the card
is, ``drm_render_minor`` which node is the partition's.

All processes of the driver have ``/dev/kfd`` open, whatever they use. The driver lists what each has of a GPU in
``class/kfd/kfd/proc``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from devalloc.inventory.class_devices import ClassDevices, DeviceNode, DeviceNumber, device_number
from devalloc.inventory.open_nodes import Process
from devalloc.inventory.pci import Address, PciFunction
from devalloc.inventory.sysfs import Folder, Tree

_AMD = 0x1002
_GPU_CLASSES = frozenset({0x03, 0x12})
_DRM_MAJOR = 226
_KFD_NODE = "/dev/kfd"
_FACT = re.compile(r"^([a-z_]{1,40}) ([0-9]{1,20})$", re.MULTILINE | re.ASCII)
_OF_GPU = re.compile(r"(?:vram|sdma|queues)_([0-9]{1,10})", re.ASCII)


@dataclass(frozen=True, slots=True)
class KfdGpu:
    """A GPU, or a partition of one, as the driver sees it."""

    gpu_id: int
    address: Address
    """Its function; where its last digit counts partitions, one that does not exist."""
    render_minor: int


@dataclass(frozen=True, slots=True)
class KfdTopology:
    """The GPUs of the driver."""

    tree: Tree
    gpus: tuple[KfdGpu, ...]

    @classmethod
    def read(cls, tree: Tree) -> KfdTopology:
        top = _kfd(tree)
        nodes = top.folder("topology", "nodes") if top is not None else None
        folders = (nodes.folder(name) for name in nodes.names()) if nodes is not None else ()
        return cls(tree, tuple(gpu for folder in folders if folder is not None and (gpu := _gpu(folder)) is not None))

    @staticmethod
    def concerns(function: PciFunction) -> bool:
        """Whether the driver may have the function."""
        return function.vendor == _AMD and function.base_class in _GPU_CLASSES

    def of(self, function: PciFunction) -> list[KfdGpu]:
        """The GPUs that a function carries."""
        return [gpu for gpu in self.gpus if self._place(gpu) == function.address] if self.concerns(function) else []

    def nodes(self, function: PciFunction) -> Iterator[DeviceNode]:
        """The device nodes of the partitions of a function."""
        gpus = self.of(function)
        drm = self.tree.sys.folder("class", "drm") if gpus and self.tree.sys is not None else None
        for gpu in gpus:
            render = drm.folder(f"renderD{gpu.render_minor}") if drm is not None else None
            if render is None:
                number = DeviceNumber(is_block=False, major=_DRM_MAJOR, minor=gpu.render_minor)
                yield DeviceNode(f"/dev/dri/renderD{gpu.render_minor}", number)
            elif not render.path.startswith(f"{function.folder.path}/"):
                device = Folder(self.tree, render.path.rpartition("/")[0].rpartition("/")[0])
                below = ClassDevices(device)
                yield from (each.node for each in below.devices if each.node is not None)

    @property
    def common_node(self) -> DeviceNode | None:
        """The node that all processes of the driver have open; None where there is no such driver."""
        top = _kfd(self.tree)
        return DeviceNode(_KFD_NODE, device_number(top)) if top is not None and self.gpus else None

    def processes(self, opened: Collection[Process]) -> dict[int, list[Process]]:
        """Who uses a GPU, by its ID. ``opened``: the processes that have the common node open. Of one that the driver
        does not list, the GPUs are unknown, so it counts for all."""
        top = _kfd(self.tree)
        listing = top.folder("proc") if top is not None else None
        users: dict[int, list[Process]] = {}
        for process in opened:
            folder = listing.folder(str(process.pid)) if listing is not None else None
            used = {gpu.gpu_id for gpu in self.gpus} if folder is None else set(_used(folder))
            for gpu_id in used:
                users.setdefault(gpu_id, []).append(process)
        return users

    def _place(self, gpu: KfdGpu) -> Address:
        """The function that a GPU is on: the one it names, if that is a GPU, else the first one of its card."""
        system = self.tree.sys
        exact = system.folder("bus", "pci", "devices", str(gpu.address)) if system is not None else None
        is_gpu = exact is not None and (exact.number("class") or 0) >> 16 in _GPU_CLASSES
        return gpu.address if is_gpu else gpu.address.card


def _kfd(tree: Tree) -> Folder | None:
    if tree.sys is None:
        return None
    return tree.sys.folder("class", "kfd", "kfd") or tree.sys.folder("devices", "virtual", "kfd", "kfd")


def _gpu(folder: Folder) -> KfdGpu | None:
    facts = {name: int(value) for name, value in _FACT.findall(folder.text("properties") or "")}
    minor, location = facts.get("drm_render_minor", 0), facts.get("location_id", 0)
    if not minor:  # a CPU
        return None
    # Bits 28 and up, or the function's, count partitions, depending on the kernel.
    address = Address(facts.get("domain", 0), location >> 8 & 0xFF, location >> 3 & 0x1F, location & 7)
    return KfdGpu(folder.number("gpu_id") or 0, address, minor)


def _used(process: Folder) -> Iterator[int]:
    """The GPUs of which a process has memory or queues."""
    for place in (process, *(Folder(process.tree, f"{process.path}/{name}") for name in process.listing()[1]
                             if name.startswith("context_"))):  # fmt: skip
        for name in place.names():
            match = _OF_GPU.fullmatch(name)
            if match and place.number(name):
                yield int(match[1])
        queues = place.folder("queues")
        for name in queues.names() if queues is not None else ():
            queue = queues.folder(name) if queues is not None else None
            if queue is not None and (gpu_id := queue.number("gpuid")) is not None:
                yield gpu_id
