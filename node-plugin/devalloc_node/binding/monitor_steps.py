"""Steps of kind ``persistence``: whether ``nvidia-persistenced`` holds a GPU, 1 or 0.

It is the only monitor that can let a single GPU go. It holds the GPU again when the last step of its claim is undone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from devalloc.inventory.device_users import DeviceUsers
from devalloc.inventory.monitors import monitor_of
from devalloc.inventory.pci import PciFunction
from devalloc.inventory.sysfs import Tree
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed
from devalloc_node.host.boundary import Host
from devalloc_node.model.step import Step, Value


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
        if self.read(target) == value:
            return
        try:
            self.host.set_persistence(target, bool(value), deadline)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise Denied("DeviceGone", "nvidia-persistenced does not run any more") from error
        except OSError as error:
            raise _failure(target, error) from error


def _failure(target: str, error: OSError) -> Failed:
    return Failed("HostRefused", f"nvidia-persistenced does not change its hold of {target}: {error.strerror or error}")
