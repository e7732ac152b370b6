"""The reset of all functions on a bus by VFIO, as QEMU does it for the machines that it runs.

The kernel resets a bus only for someone who has opened all that is on it: the groups of these functions, of which a
group has one owner at a time. So no machine can have any of them meanwhile. Constants and structures are those of
linux/vfio.h.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Collection, Sequence
from contextlib import ExitStack

_IO = ord(";") << 8
_SET_IOMMU, _SET_CONTAINER, _GET_DEVICE = _IO | 102, _IO | 104, _IO | 106
_RESET_INFO, _RESET = _IO | 112, _IO | 113
_TYPE1V2 = 3
_MAX_FUNCTIONS = 256
"""A bus has no more, and no bus is below one whose functions are reset here."""
_INFO, _FUNCTION = struct.Struct("III"), struct.Struct("IHBB")


def hot_reset(folder: str, address: str, groups: Sequence[int], expected: Collection[str]) -> None:
    """Reset the bus of a function that a VFIO driver has.

    ``folder``: where VFIO's nodes are (/dev/vfio). ``groups``: IOMMU groups of all functions on the bus, that of
    ``address`` first. ``expected``: the addresses of these functions. Raises OSError: EBUSY if a machine has one of
    them, EPERM if something else would be reset, too.
    """
    with ExitStack() as stack:

        def opened(name: str) -> int:
            fd = os.open(f"{folder}/{name}", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            return fd

        fds = []
        for group in groups:  # each in a container of its own: they may be behind different IOMMUs
            fd, container = opened(str(group)), opened("vfio")
            fcntl.ioctl(fd, _SET_CONTAINER, bytearray(struct.pack("i", container)))
            fcntl.ioctl(container, _SET_IOMMU, _TYPE1V2)
            fds.append(fd)
        device = fcntl.ioctl(fds[0], _GET_DEVICE, bytearray(address.encode() + b"\0"))
        stack.callback(os.close, device)
        affected = _affected(device)
        if affected != set(expected):
            others = ", ".join(sorted(affected ^ set(expected)))
            raise OSError(errno.EPERM, f"a reset of the bus of {address} does not concern exactly its card: {others}")
        request = _INFO.pack(_INFO.size + 4 * len(fds), 0, len(fds)) + struct.pack(f"{len(fds)}i", *fds)
        fcntl.ioctl(device, _RESET, bytearray(request))


def _affected(device: int) -> set[str]:
    """The addresses of all functions that a reset of the bus would reset."""
    size = _INFO.size + _MAX_FUNCTIONS * _FUNCTION.size
    answer = bytearray(_INFO.pack(size, 0, 0).ljust(size, b"\0"))
    fcntl.ioctl(device, _RESET_INFO, answer)
    count = min(_INFO.unpack_from(answer)[2], _MAX_FUNCTIONS)
    functions = (_FUNCTION.unpack_from(answer, _INFO.size + number * _FUNCTION.size) for number in range(count))
    return {f"{segment:04x}:{bus:02x}:{devfn >> 3:02x}.{devfn & 7}" for _, segment, bus, devfn in functions}
