"""What drivers have made of a function: network interfaces, disks and device nodes, wherever they hang below it.

A driver puts a device of a class (``net``, ``block``, ``drm``, ``tty``, …) into a folder of that name below its own.
Its own may be that of the function, or of an auxiliary, USB, vdpa, virtio or platform device below it, at any depth.
So all folders below the function's count. Mediated devices do not: they are devices of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from devalloc.inventory.sysfs import Folder

NET, BLOCK = "net", "block"
_BY_NAMESPACE = frozenset({NET, "infiniband", "ieee80211"})
"""Classes whose devices Linux shows only in the network namespace that they are in: elsewhere their folder is empty."""
_NOT_DEVICES = frozenset(
    {
        "aer_stats", "counters", "gid_attrs", "gids", "hw_counters", "ip_discovery", "link", "mdev_supported_types",
        "msi_irqs", "pkeys", "ports", "power", "queues", "ras", "statistics", "vfio-dev",
    }
)  # fmt: skip
"""Folders that hold attributes; and the nodes of VFIO, which go by the driver of the function."""
_MDEV = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)
_MOST = 20_000
"""Folders below one function that are looked at."""
_NODE_FOLDERS = {
    "accel": "accel/",
    "block": "",
    "drm": "dri/",
    "graphics": "",
    "infiniband_mad": "infiniband/",
    "infiniband_verbs": "infiniband/",
    "nvme": "",
    "nvme-generic": "",
    "ptp": "",
    "sound": "snd/",
    "tty": "",
    "uio": "",
    "vhost-vdpa": "",
}
"""Where the nodes of a class are below /dev, for a tree whose ``uevent`` files do not tell."""
_CLASS_BY_NAME = (
    (re.compile(r"nvme[0-9]+(?:c[0-9]+)?n[0-9]+(?:p[0-9]+)?", re.ASCII), BLOCK),
    (re.compile(r"ng[0-9]+n[0-9]+", re.ASCII), "nvme-generic"),
    (re.compile(r"vhost-vdpa-[0-9]+", re.ASCII), "vhost-vdpa"),
)
"""Classes of devices that have no folder of their class above them, for a tree without ``subsystem`` links."""
_NVME_PATH = re.compile(r"(nvme[0-9]+)(?:c[0-9]+)?(n[0-9]+)", re.ASCII)
_NUMBER = re.compile(r"([0-9]{1,7}):([0-9]{1,7})", re.ASCII)
_DEVNAME = re.compile(r"^DEVNAME=(?:/dev/)?([A-Za-z0-9_-][A-Za-z0-9_.:@+/!-]{0,200})$", re.MULTILINE | re.ASCII)


class DeviceNumber(NamedTuple):
    """How the kernel identifies an open device node, whatever its name is."""

    is_block: bool
    major: int
    minor: int


class DeviceNode(NamedTuple):
    """A device node: its name on the host, and its number."""

    path: str
    """``/dev/dri/renderD128``; containers may have it under any other name."""
    number: DeviceNumber | None
    """None where the tree does not tell: then only the name counts."""


@dataclass(frozen=True, slots=True)
class ClassDevice:
    """A device that a driver has made."""

    folder: Folder
    subsystem: str
    """Its class: ``net``, ``block``, ``drm``; the name of the folder above it where nothing tells."""
    node: DeviceNode | None


@dataclass(slots=True)
class ClassDevices:
    """All of them below a folder, read when they are asked for first."""

    folder: Folder
    top: tuple[str, ...] | None = None
    """The folders directly in it that count; None for all."""
    is_listed: bool = True
    """False if the folder cannot be listed: then those count whose names are known."""
    is_readable: bool = True
    """False if something else of the folder could not be read that says what is there, such as its driver."""
    _devices: list[ClassDevice] | None = field(default=None, init=False)
    _elsewhere: set[str] = field(default_factory=set, init=False)
    _is_complete: bool = field(default=True, init=False)

    @property
    def devices(self) -> list[ClassDevice]:
        """In the order of their paths."""
        if self._devices is None:
            before = self.folder.tree.fault_count
            self._devices = [*self._below()]
            self._is_complete &= self.is_readable and self.folder.tree.fault_count == before
        return self._devices

    def of_class(self, *subsystems: str) -> Sequence[ClassDevice]:
        """Those of some classes."""
        devices = self.devices
        return [device for device in devices if device.subsystem in subsystems] if devices else ()

    @property
    def elsewhere(self) -> frozenset[str]:
        """Classes of which the function has a device that only another network namespace shows."""
        assert self.devices is not None
        return frozenset(self._elsewhere)

    @property
    def is_complete(self) -> bool:
        """False where something of it cannot be read, or more hangs below it than is looked at."""
        assert self.devices is not None
        return self._is_complete

    def _below(self) -> Iterator[ClassDevice]:
        self._is_complete = self.is_listed
        if not self.is_listed:
            top = [name for name in (*_BY_NAMESPACE, *_NODE_FOLDERS) if self.folder.folder(name) is not None]
        else:
            top = self.folder.listing()[1] if self.top is None else [*self.top]
        # Each with the class and the name of what it is in; the function itself has no class.
        stack = [(f"{self.folder.path}/{name}", "", "") for name in sorted(top, reverse=True)
                 if _may_hold_devices(name)]  # fmt: skip
        seen = 0
        while stack:
            path, above_class, above = stack.pop()
            seen += 1
            if seen > _MOST:
                self._is_complete = False
                self.folder.tree.fault(self.folder.path, f"has more than {_MOST} folders below it")
                return
            folder = Folder(self.folder.tree, path)
            names, folders = folder.listing()
            if not names and folder.name in _BY_NAMESPACE:
                self._elsewhere.add(folder.name)
            subsystem = _subsystem(folder, names, above_class, above)
            if subsystem:
                shared = self._shared_disk(folder) if subsystem == BLOCK else []
                yield from shared or [ClassDevice(folder, subsystem, _node(folder, names, subsystem))]
            stack += [(f"{path}/{name}", subsystem, folder.name) for name in reversed(folders)
                      if _may_hold_devices(name)]  # fmt: skip

    def _shared_disk(self, path: Folder) -> list[ClassDevice]:
        """The disk of NVMe, and its partitions, that this is a path to: with multipath they hang below a virtual
        subsystem. Nothing for any other disk."""
        match = _NVME_PATH.fullmatch(path.name)
        system = self.folder.tree.sys
        disk = system.folder("class", "block", match[1] + match[2]) if system is not None and match else None
        if disk is None or disk.path.startswith(f"{self.folder.path}/"):
            return []
        parts = [name for name in disk.listing()[1] if name.startswith(f"{disk.name}p")]
        folders = [disk, *(Folder(disk.tree, f"{disk.path}/{name}") for name in parts)]
        return [ClassDevice(folder, BLOCK, _node(folder, folder.names(), BLOCK)) for folder in folders]


def _may_hold_devices(name: str) -> bool:
    return name not in _NOT_DEVICES and not (len(name) == 36 and _MDEV.fullmatch(name))


def _subsystem(folder: Folder, names: list[str], above_class: str, above: str) -> str:
    """The class of the device in a folder; empty where it is none of a class, or no device."""
    if "subsystem" in names:
        return folder.link("subsystem") or ""
    for pattern, subsystem in _CLASS_BY_NAME:
        if pattern.fullmatch(folder.name):
            return subsystem
    if above_class == BLOCK and folder.name.startswith(above):
        return BLOCK
    # Without a link: whatever is in a folder of a class's name; and what has a node.
    if above in _NODE_FOLDERS or above in _BY_NAMESPACE:
        return above
    return above if "dev" in names or "uevent" in names else ""


def _node(folder: Folder, names: list[str], subsystem: str) -> DeviceNode | None:
    """The device node of a device; None where it has none."""
    number = device_number(folder, is_block=subsystem == BLOCK) if "dev" in names else None
    if number is None and (subsystem in _BY_NAMESPACE or folder.tree.is_host):
        return None
    name = _DEVNAME.search(folder.text("uevent") or "") if "uevent" in names else None
    if name is not None:
        return DeviceNode(f"/dev/{name[1].replace('!', '/')}", number)
    if number is None and subsystem not in _NODE_FOLDERS:
        return None
    return DeviceNode(f"/dev/{_NODE_FOLDERS.get(subsystem, '')}{folder.name.replace('!', '/')}", number)


def device_number(folder: Folder | None, *, is_block: bool = False) -> DeviceNumber | None:
    """The number of the device in a folder; None where it does not tell."""
    match = _NUMBER.fullmatch((folder.text("dev") if folder is not None else None) or "")
    return DeviceNumber(is_block, int(match[1]), int(match[2])) if match else None
