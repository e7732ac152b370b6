"""Every way in which the plugin changes the host, and a host on which every change is reported and refused (T17). One
call is one change, which can be watched, refused or failed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

from devalloc.inventory.sysfs import Tree
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied
from devalloc_node.model.step import Value

VfSettings = Mapping[str, Value]
"""Settings of a VF as its PF enforces them, with the field names of VfConfig: ``mac``, ``vlan``, ``vlanQos``,
``minTxRate``, ``maxTxRate`` (Mbit/s), ``trust``, ``spoofCheck``, ``linkState``. Only what is named is set."""


class Host(Protocol):
    """The host as bindings see it. Raises OSError with the kernel's errno; Unknown when the kernel does not answer."""

    def tree(self) -> Tree:
        """A reader of the host's files; a fresh one each time, for a reader collects faults."""

    def write(self, path: str, text: str, deadline: Deadline) -> None:
        """Write to a file below /sys, such as ``bus/pci/drivers_probe``; components of the path are checked."""

    def hot_reset(self, address: str, groups: Sequence[int], expected: Collection[str], deadline: Deadline) -> None:
        """Reset the bus of a function that a VFIO driver has, by VFIO: ``devalloc_node.host.vfio_reset``."""

    def unanswered(self, device: str) -> bool:
        """Whether the kernel still owes the answer to a write that concerns a device (its address or UUID): what was
        written may yet happen."""

    def vf_settings(self, interface: str, index: int) -> VfSettings:
        """What the PF's network interface says of its VF number ``index``. Reads only."""

    def set_vf(self, interface: str, index: int, settings: VfSettings) -> None:
        """Set them by netlink."""

    def persistence(self, address: str) -> bool:
        """Whether ``nvidia-persistenced`` holds a GPU. Reads only."""

    def set_persistence(self, address: str, enabled: bool, deadline: Deadline) -> None:
        """Have it hold a GPU, or let it go."""

    def own(self, node: str, uid: int, gid: int) -> None:
        """Give a device node below /dev to a user."""

    def put_file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """Write a file whole (beside it, synced, renamed) below one of the plugin's own folders."""

    def remove_file(self, path: str) -> None:
        """Remove such a file; it is no error that it is gone."""


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DryRun:
    """Reads go to ``host``; changes go to ``tell``, one sentence each, and are then refused: Denied ``DryRun``."""

    host: Host
    tell: Callable[[str], None] = log.warning

    def tree(self) -> Tree:
        return self.host.tree()

    def write(self, path: str, text: str, deadline: Deadline) -> None:
        self._refuse(f"would write {text.strip()!r} to /sys/{path}")

    def hot_reset(self, address: str, groups: Sequence[int], expected: Collection[str], deadline: Deadline) -> None:
        self._refuse(f"would reset {', '.join(sorted(expected))} with their bus")

    def unanswered(self, device: str) -> bool:
        return self.host.unanswered(device)

    def vf_settings(self, interface: str, index: int) -> VfSettings:
        return self.host.vf_settings(interface, index)

    def set_vf(self, interface: str, index: int, settings: VfSettings) -> None:
        wanted = ", ".join(f"{name}={value}" for name, value in sorted(settings.items()))
        self._refuse(f"would set {wanted} of VF {index} of {interface}")

    def persistence(self, address: str) -> bool:
        return self.host.persistence(address)

    def set_persistence(self, address: str, enabled: bool, deadline: Deadline) -> None:
        self._refuse(f"would have nvidia-persistenced {'hold' if enabled else 'let go'} {address}")

    def own(self, node: str, uid: int, gid: int) -> None:
        self._refuse(f"would give {node} to user {uid}, group {gid}")

    def put_file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        self._refuse(f"would write {len(content)} bytes to {path}")

    def remove_file(self, path: str) -> None:
        self._refuse(f"would remove {path}")

    def _refuse(self, what: str) -> NoReturn:
        self.tell(what)
        raise Denied("DryRun", f"dry run: nothing was changed: {what}")
