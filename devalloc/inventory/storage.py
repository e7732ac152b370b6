"""NVMe drives, and the block devices on them and on other controllers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from devalloc.device_kinds import STORAGE
from devalloc.inventory.pci import PciFunction
from devalloc.inventory.sysfs import Folder

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
