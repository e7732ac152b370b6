"""Steps of kind ``persistence``: whether ``nvidia-persistenced`` holds a GPU, 1 or 0.

It is the only monitor that can let a single GPU go. It holds the GPU again when the last step of its claim is undone.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from devalloc.inventory.device_users import DeviceUsers
from devalloc.inventory.locate import function_folder
from devalloc.inventory.monitors import monitor_of
from devalloc.inventory.pci import Address, PciFunction
from devalloc.inventory.sysfs import Tree
from devalloc_node.binding import host_changes
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed
from devalloc_node.host.boundary import Host
from devalloc_node.model.step import Step, Value

_DRIVER = "nvidia"
"""The only driver whose GPUs the daemon holds."""


def release_steps(host: Host, tree: Tree, functions: Sequence[PciFunction]) -> Iterator[Step]:
    """The steps by which the daemon lets functions go that it holds."""
    users = DeviceUsers.read(tree, functions)
    for function in functions:
        for process in users.opened.get(function.address, ()):
            monitor = monitor_of(process)
            if monitor is not None and monitor.socket is not None:
                address = str(function.address)
                yield Step("persistence", address, PersistenceKind(host).read(address), 0)
                break


@dataclass(frozen=True, slots=True)
class PersistenceKind:
    """Reads and sets it by the daemon."""

    host: Host

    def read(self, target: str) -> Value:
        try:
            return int(self.host.persistence(target))
        except (FileNotFoundError, ConnectionRefusedError):  # it has ended, and holds nothing
            return 0
        except OSError as error:
            raise _failure(target, error) from error

    def apply(self, target: str, value: Value, deadline: Deadline) -> None:
        """See ``StepKind``. Raises Denied ``DeviceGone`` if there is no more to hold, or no daemon that could."""
        host_changes.folder(self.host.tree(), target)
        try:
            if self.host.persistence(target) != bool(value):
                self.host.set_persistence(target, bool(value), deadline)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            if value:
                raise Denied("DeviceGone", "nvidia-persistenced does not run any more") from error
        except OSError as error:
            if error.errno == errno.ENODEV:  # it looks for GPUs when it starts, and that was while a claim had this one
                raise Denied("DeviceGone", f"nvidia-persistenced does not have {target} any more") from error
            raise _failure(target, error) from error

    def taken_over(self, step: Step, *, finished: bool) -> str | None:
        """Another program gave the GPU another driver, so that the daemon cannot hold it."""
        address = Address.parse(step.target)
        folder = function_folder(self.host.tree(), address) if address is not None else None
        driver = folder.link("driver") if folder is not None else _DRIVER
        return None if driver == _DRIVER else f"{step.target} has the driver {driver or 'none'}"


def _failure(target: str, error: OSError) -> Failed:
    return Failed("HostRefused", f"nvidia-persistenced does not change its hold of {target}: {error.strerror or error}")
