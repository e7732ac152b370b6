"""Make one change on the host, and report the kernel's answer in words."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from types import MappingProxyType

from devalloc.inventory.locate import function_folder, read_function
from devalloc.inventory.pci import Address, PciFunction
from devalloc.inventory.sysfs import Folder, Tree
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, Unknown
from devalloc_node.host.boundary import Host


def write(
    host: Host, path: str, text: str, deadline: Deadline, meanings: Mapping[int, str] = MappingProxyType({})
) -> None:
    """Write to a file below sys. Raises Failed ``HostRefused`` with what the kernel said, or Unknown.

    ``meanings``: what an errno means for this file, and what to do.
    """
    try:
        host.write(path, text, deadline)
    except OSError as error:
        refusal = refused_by_kernel(f"writing {text.strip() or 'nothing'!r} to /sys/{path}", error)
        if meaning := meanings.get(error.errno or 0):
            refusal = Failed(refusal.code, f"{refusal.message}: {meaning}")
        raise refusal from error


def refuse_unanswered(host: Host, device: str) -> None:
    """Raises Unknown while a write that concerns the device may still happen: what is read now may not last."""
    if host.unanswered(device):
        raise Unknown("HostNotAnswering", f"the kernel has not completed an earlier write for {device} yet")


def number(folder: Folder, name: str) -> int | None:
    """The number in a file of a device's; None if it has no such file. Raises Failed ``HostUnreadable`` if it has
    one that cannot be read, or says something else: that is no reason to believe that nothing is there."""
    value = folder.number(name)
    if value is None and name in folder.names():
        raise Failed("HostUnreadable", f"{name} of {folder.name} is not readable as a number at present")
    return value


def refused_by_kernel(what: str, error: OSError) -> Failed:
    """The kernel's no, for people."""
    code = errno.errorcode.get(error.errno or 0, "?")
    return Failed("HostRefused", f"the kernel refused {what}: {os.strerror(error.errno or 0)} ({code})")


def function(tree: Tree, target: str) -> PciFunction:
    """The function of that address. Raises Denied ``DeviceGone``."""
    address = Address.parse(target)
    pci_function = read_function(tree, address) if address is not None else None
    if pci_function is None:
        raise Denied("DeviceGone", f"{target} no longer exists")
    return pci_function


def folder(tree: Tree, target: str) -> Folder:
    """The folder of that function, which is quicker than all of it. Raises Denied ``DeviceGone``."""
    address = Address.parse(target)
    directory = function_folder(tree, address) if address is not None else None
    if directory is None:
        raise Denied("DeviceGone", f"{target} no longer exists")
    return directory
