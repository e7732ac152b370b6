"""What this host uses its disks for: file systems, swap, volumes, journals, and what it exports of them.

Lists of mounts name only the first disk of a file system of several, and none of a volume. So the kernel's lists of
members count, too; and the kernel is asked who keeps a disk for itself, which also shows those of ZFS.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from devalloc.inventory.proc_tables import first_unreadable, table
from devalloc.inventory.sysfs import Folder, Tree

_FILES = frozenset({"mountinfo", "mounts", "swaps"})
_JOURNAL = re.compile(r"(.+?)(-[0-9]+)?", re.ASCII)
"""Of a journal of jbd2: its device, and the inode of one that is inside the file system itself."""
_DEVICE_OPTIONS = ("logdev=", "rtdev=", "journal_path=")
"""Options of mounts that name another device."""
_BACKSTORE = re.compile(
    r"iBlock device: (?P<disk>[\w-]+)|Major: (?P<major>[0-9]+) Minor: (?P<minor>[0-9]+)|File: (?P<file>/dev/[^\s]+)",
    re.ASCII,
)
"""In the ``info`` of a backstore of LIO: its disk."""
_MOST = 4096
"""Entries of a folder that are looked at."""


@dataclass(frozen=True, slots=True)
class StorageUse:
    """Block devices that the host uses."""

    tree: Tree
    mounted: frozenset[str]
    """Those that are mounted, by name (``nvme0n1p1``) or number (``259:1``)."""
    swap: frozenset[str]
    """Those that are swapped to, by name."""
    members: Mapping[str, str]
    """Those that are a part of something, by name (controllers of NVMe, too) or number, and what of."""
    unread: str | None
    """What could not be read of this: the name of a file such as ``mountinfo``, or in words."""

    @classmethod
    def read(cls, tree: Tree) -> StorageUse:
        before = tree.fault_count
        mounted = frozenset(_mounted_devices(tree))
        swap = frozenset(row[0].rpartition("/")[2] for row in table(tree, "swaps")[1:])
        members, unread = dict(_members(tree)), first_unreadable(tree, _FILES)
        if unread is None and tree.fault_count != before:
            unread = "what the host uses its disks for"
        return cls(tree, mounted, swap, members, unread)

    def need(self, block: Folder) -> str | None:
        """What the host needs a disk or a partition for; None for nothing that is seen."""
        if block.name in self.mounted or block.text("dev") in self.mounted:
            return f"{block.name} is mounted"
        if block.name in self.swap:
            return f"swap on {block.name}"
        before = self.tree.fault_count
        if holders := block.names("holders"):
            return f"{block.name} is held by {holders[0]}"
        if self.tree.fault_count != before:
            return f"what holds {block.name} cannot be read"
        if block.folder("bcache") is not None:
            return f"{block.name} is part of bcache"
        part = self.members.get(block.name) or self.members.get(block.text("dev") or "")
        return f"{block.name} is {part}" if part is not None else None

    def need_of_controller(self, name: str) -> str | None:
        """The same for a controller of NVMe, such as ``nvme0``: it can be exported with all that is on it."""
        return f"{name} is {self.members[name]}" if name in self.members else None


def kernel_use(tree: Tree, block: Folder) -> str | None:
    """That the kernel keeps a disk for itself, as for ZFS, or does not say; None if it does not, or if this process may
    not ask."""
    if tree.folder("dev") is None:
        return None  # a recording
    try:
        return f"{block.name} is in use" if is_used_by_host(tree.root / "dev" / block.name) else None
    except FileNotFoundError:
        return f"it is not known who uses {block.name}, because /dev/{block.name} is not there"
    except PermissionError:
        return None  # only root can ask, and only root can take it
    except OSError as error:
        return f"it is not known who uses {block.name}: {error.strerror}"


def is_used_by_host(node: Path) -> bool:
    """Whether the kernel keeps a block device or a part of it for itself, also if no list of mounts shows it: for a
    file system, swap, LVM, md, ZFS. Raises OSError if that is not known."""
    try:
        # Nothing is read: exclusive opening is how the kernel answers who has it.
        os.close(os.open(node, os.O_RDONLY | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC))
    except OSError as error:
        if error.errno == errno.EBUSY:
            return True
        raise
    return False


def _mounted_devices(tree: Tree) -> Iterator[str]:
    for process in ("self", "1"):
        for row in table(tree, process, "mountinfo"):
            source = row[row.index("-") + 2 :] if "-" in row else []
            if len(row) > 2:
                yield row[2]
            if source and source[0].startswith("/dev/"):
                yield source[0].rpartition("/")[2]
            for option in source[1].split(",") if len(source) > 1 else ():
                if option.startswith(_DEVICE_OPTIONS):
                    yield _device_name(tree, option.partition("=")[2])
    for row in table(tree, "mounts"):
        if row[0].startswith("/dev/"):
            yield row[0].rpartition("/")[2]


def _members(tree: Tree) -> Iterator[tuple[str, str]]:
    for name in _names(tree.sys, "fs", "btrfs"):
        for member in _names(tree.sys, "fs", "btrfs", name, "devices"):
            yield member, "part of a btrfs file system"
    for name in _names(tree.sys, "fs", "bcachefs"):
        for device in _names(tree.sys, "fs", "bcachefs", name):
            folder = tree.sys.folder("fs", "bcachefs", name, device) if tree.sys is not None else None
            if folder is not None and (disk := folder.link("block")):
                yield disk, "part of a bcachefs file system"
    for name in _names(tree.proc, "fs", "jbd2"):
        match = _JOURNAL.fullmatch(name)
        if match is not None and match[2] is None:
            yield name.rpartition("!")[2], "the journal of a file system"
    for name in _names(tree.sys, "class", "block"):
        loop = tree.sys.folder("class", "block", name, "loop") if tree.sys and name.startswith("loop") else None
        file = loop.text("backing_file") if loop is not None else None
        if file and file.startswith("/dev/"):
            yield _device_name(tree, file), f"the file of {name}"
    yield from _exported(tree)


def _exported(tree: Tree) -> Iterator[tuple[str, str]]:
    """Disks that the host offers to others, by its network or a USB port."""
    top = ("kernel", "config")
    for gadget in _names(tree.sys, *top, "usb_gadget"):
        for function in _names(tree.sys, *top, "usb_gadget", gadget, "functions"):
            place = (*top, "usb_gadget", gadget, "functions", function)
            for unit in _names(tree.sys, *place) if function.startswith("mass_storage.") else ():
                if unit.startswith("lun.") and (path := _path(tree, *place, unit, "file")) is not None:
                    yield _device_name(tree, path), "exported by a USB gadget"
    for subsystem in _names(tree.sys, *top, "nvmet", "subsystems"):
        path = _path(tree, *top, "nvmet", "subsystems", subsystem, "passthru", "device_path")
        if path is not None:
            yield _device_name(tree, path), "exported by nvmet"
        spaces = (*top, "nvmet", "subsystems", subsystem, "namespaces")
        for number in _names(tree.sys, *spaces):
            if (path := _path(tree, *spaces, number, "device_path")) is not None:
                yield _device_name(tree, path), "exported by nvmet"
    for backend in _names(tree.sys, *top, "target", "core"):
        for store in _names(tree.sys, *top, "target", "core", backend):
            place = (*top, "target", "core", backend, store)
            if (path := _path(tree, *place, "udev_path")) is not None:
                yield _device_name(tree, path), "exported by LIO"
            for match in _BACKSTORE.finditer(_text(tree, *place, "info")):
                device = f"{match['major']}:{match['minor']}" if match["major"] else match["disk"]
                yield device or _device_name(tree, match["file"]), "exported by LIO"


def _text(tree: Tree, *names: str) -> str:
    *folders, name = names
    folder = tree.sys.folder(*folders) if tree.sys is not None else None
    return (folder.text(name) if folder is not None else None) or ""


def _path(tree: Tree, *names: str) -> str | None:
    """The path of a device that a file of sysfs names; None where it names none."""
    path = _text(tree, *names)
    return path if path.startswith("/dev/") else None


def _device_name(tree: Tree, path: str) -> str:
    """The kernel's name of a block device by a path such as ``/dev/disk/by-id/nvme-X``."""
    real = os.path.realpath(tree.root / path.lstrip("/"))
    return os.path.basename(real)


def _names(top: Folder | None, *names: str) -> list[str]:
    folder = top.folder(*names) if top is not None else None
    return sorted(folder.names())[:_MOST] if folder is not None else []
