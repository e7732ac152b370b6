"""What an owner leaves on a device that the next one could read, unless a policy erases it between them (T7)."""

from __future__ import annotations

from collections.abc import Iterable

from devalloc.device_kinds import DEVICE_KINDS, DeviceKind
from devalloc.inventory.device_users import block_devices
from devalloc.inventory.pci import PciFunction

_MASS_STORAGE = 0x01


def disks_below(kind: DeviceKind, functions: Iterable[PciFunction]) -> str | None:
    """The disks that go along with a device of a kind that the admin added, such as ``the disk sda``; None where there
    are none.

    Controllers show theirs only while the host's driver has them. What does not show may be there.
    """
    for function in functions if kind.name not in DEVICE_KINDS else ():
        if disks := block_devices(function):
            return f"the disk {disks[0].name}"
        if function.base_class == _MASS_STORAGE and (function.driver is None or function.on_vfio):
            return f"disks that do not show with {function.driver or 'no driver'}"
    return None


def keeps_data(kind: DeviceKind, functions: Iterable[PciFunction]) -> bool:
    """Whether a device of a kind, with these functions, may hold what its last owner wrote."""
    return kind.needs_erasing or disks_below(kind, functions) is not None
