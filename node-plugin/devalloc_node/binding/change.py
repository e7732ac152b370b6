"""Single changes of the host, with its answers in words."""

from __future__ import annotations

import errno
import os

from devalloc.inventory.locate import function_folder, read_function
from devalloc.inventory.pci import Address, PciFunction
from devalloc.inventory.sysfs import Folder, Tree
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, Unknown
from devalloc_node.host.boundary import Host


def write(host: Host, path: str, text: str, deadline: Deadline) -> None:
    """Write to a file below sys. Raises Failed ``HostRefused`` with what the kernel said, or Unknown."""
    try:
        host.write(path, text, deadline)
    except OSError as error:
        raise refused(f"writing {text.strip() or 'nothing'!r} to /sys/{path}", error) from error


def refuse_unanswered(host: Host, device: str) -> None:
    """Raises Unknown while a write that concerns the device may still happen: what is read now may not last."""
    if host.unanswered(device):
        raise Unknown("HostNotAnswering", f"the kernel has not answered an earlier write for {device} yet")


def number(folder: Folder, name: str) -> int | None:
    """The number in a file of a device's; None where it has no such file. Raises Failed ``HostUnreadable`` where it has
    one that cannot be read, or says something else: that is no reason to believe that nothing is there."""
    found = folder.number(name)
    if found is None and name in folder.names():
        raise Failed("HostUnreadable", f"{name} of {folder.name} cannot be read as a number at present")
    return found


def refused(what: str, error: OSError) -> Failed:
    """The kernel's no, for people."""
    code = errno.errorcode.get(error.errno or 0, "?")
    return Failed("HostRefused", f"{what} was refused: {os.strerror(error.errno or 0)} ({code})")


def function(tree: Tree, target: str) -> PciFunction:
    """The function of that address. Raises Denied ``DeviceGone``."""
    address = Address.parse(target)
    found = read_function(tree, address) if address is not None else None
    if found is None:
        raise Denied("DeviceGone", f"{target} is not there any more")
    return found


def folder(tree: Tree, target: str) -> Folder:
    """The folder of that function, which is quicker than all of it. Raises Denied ``DeviceGone``."""
    address = Address.parse(target)
    found = function_folder(tree, address) if address is not None else None
    if found is None:
        raise Denied("DeviceGone", f"{target} is not there any more")
    return found
