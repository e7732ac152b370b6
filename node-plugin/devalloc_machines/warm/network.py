"""Network namespaces, and what is inside them, by netlink."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import threading
from pathlib import Path

from devalloc_machines.warm.setup import Inode
from devalloc_node.host.network_namespace import has_interface as _has
from devalloc_node.host.network_namespace import in_a_thread as _in_a_thread
from devalloc_node.host.network_namespace import inside as _inside
from devalloc_node.host.network_namespace import interface_index as _index
from devalloc_node.host.network_namespace import libc as _libc
from devalloc_node.host.network_namespace import netlink as _route

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET; os.unshare comes with Python 3.12
_naming = threading.Lock()
"""The folder of names is made a mount of its own by who comes first, and two who come at once would both do it."""


class ForeignNameError(OSError):
    """Something under our name has another owner. Unlike PermissionError, the kernel never raises it."""


def make_namespace(name: Path) -> Inode:
    """A new network namespace, kept by a file of that name, with its loopback up. Raises OSError, FileExistsError."""

    def act() -> Inode:
        from pyroute2 import netns

        if _libc.unshare(_NEW_NETWORK) != 0:
            raise OSError(ctypes.get_errno(), "cannot create a network namespace", str(name))
        with _naming:
            # As `ip netns add` does it. This thread's namespace, and not the process's.
            netns.attach(str(name), threading.get_native_id(), _libc)
        with _route() as route:
            route.link("set", index=_index("lo"), state="up")
        return namespace_inode(name)

    return _in_a_thread(act)


def namespace_inode(name: Path) -> Inode:
    """Which namespace a file keeps. Raises OSError; EINVAL if it keeps none."""
    there = os.stat(name, follow_symlinks=False)
    if not _is_namespace(there):
        raise OSError(errno.EINVAL, "is not the mount of a namespace", str(name))
    return there.st_dev, there.st_ino


def remove_namespace(name: Path, inode: Inode | None) -> None:
    """Let go of a namespace; it ends with the last process in it. Nothing to do if there is no such file.

    ``inode``: which it must be, None for one that was being made. Raises OSError, and ForeignNameError if it is another
    one or if the file is not that of a namespace.
    """
    from pyroute2 import netns

    try:
        there = os.stat(name, follow_symlinks=False)
    except FileNotFoundError:
        if _is_mounted(name):
            raise OSError(errno.EBUSY, "is hidden by another file system that is mounted over it", str(name)) from None
        return
    if _is_namespace(there):
        if inode is not None and (there.st_dev, there.st_ino) != inode:
            raise ForeignNameError(
                errno.EPERM, "is the mount of another namespace than the one that was created", str(name)
            )
    elif not stat.S_ISREG(there.st_mode) or there.st_size:
        raise ForeignNameError(errno.EPERM, "was not created for a namespace", str(name))
    netns.remove(str(name), _libc)


def make_tap(name: Path, tap: str, user: int | None) -> None:
    """A persistent TAP interface, up, in a namespace. Raises OSError, FileExistsError."""

    def act() -> None:
        if _has(tap):
            raise FileExistsError(errno.EEXIST, f"interface {tap} already exists", str(name))
        with _route() as route:
            owner = {} if user is None else {"uid": user}
            route.link("add", ifname=tap, kind="tuntap", mode="tap", **owner)
            route.link("set", index=_index(tap), state="up")

    _inside(name, act)


def remove_tap(name: Path, tap: str) -> None:
    """Nothing to do if there is none. Raises OSError."""

    def act() -> None:
        if _has(tap):
            with _route() as route:
                route.link("del", index=_index(tap))

    _inside(name, act)


def has_tap(name: Path, tap: str) -> bool:
    """Whether there is an interface of that name in a namespace. Raises OSError."""
    return _inside(name, lambda: _has(tap))


def is_tap_used(name: Path, tap: str) -> bool:
    """Whether a process has it open, wherever that is. Raises OSError."""

    def act() -> bool:
        if not _has(tap):
            return False
        with _route() as route:  # and not by opening it, which would keep a machine from it that just starts
            return any(link.get_attr("IFLA_CARRIER") == 1 for link in route.link("get", index=_index(tap)))

    return _inside(name, act)


def _is_namespace(there: os.stat_result) -> bool:
    """Files of nsfs, all on one device, differ from a plain file in that device."""
    return there.st_dev == os.stat("/proc/self/ns/net").st_dev


def _is_mounted(name: Path) -> bool:
    """Whether something is mounted there, also if it cannot be seen. Raises OSError."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as lines:
        return any(line.split(" ", 5)[4] == str(name) for line in lines)
