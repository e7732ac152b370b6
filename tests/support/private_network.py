"""A network of a test's own, with machines on it: what the thread starts in there, and the threads it starts, see it
and nothing of this host's network. Needs root."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyroute2 import IPRoute

CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
NETWORK, HOST, PREFIX = "192.0.2.0/24", "192.0.2.1", 24
_SEEN = ("class/net", "devices/virtual/net")
"""Where /sys shows interfaces: those of the network that it was mounted in."""
_C = ctypes.CDLL(None, use_errno=True)


@contextmanager
def private_network() -> Iterator[None]:
    """Put this thread into a network namespace that has no name, and back at the end. Raises OSError."""
    folder, root = os.getcwd(), os.open("/", os.O_PATH | os.O_CLOEXEC)
    namespaces = {kind: os.open(f"/proc/thread-self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for kind, name in _KINDS}
    try:
        _call(_C.unshare, CLONE_NEWNS | CLONE_NEWNET)
        try:
            _show_network()
            with IPRoute() as inside:
                inside.link("set", index=1, state="up")
            yield
        finally:
            for kind, before in namespaces.items():
                _call(_C.setns, before, kind)
            os.fchdir(root)  # a process that comes to other mounts comes to their root, and out of a chroot
            os.chroot(".")
            os.chdir(folder)
    finally:
        for before in (root, *namespaces.values()):
            os.close(before)


_KINDS = ((CLONE_NEWNET, "net"), (CLONE_NEWNS, "mnt"))


@contextmanager
def other_interfaces() -> Iterator[None]:
    """The same without a /sys of its own, so that threads which are started in there do not matter. Raises OSError."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call(_C.unshare, CLONE_NEWNET)
        try:
            yield
        finally:
            _call(_C.setns, before, CLONE_NEWNET)
    finally:
        os.close(before)


def _show_network() -> None:
    """Have /sys show the interfaces of this network, for this thread and its children."""
    _call(_C.mount, b"none", b"/sys", None, MS_REC | MS_PRIVATE, None)  # "/" is no mount in a chroot
    there, *others = _SEEN
    _call(_C.mount, b"sysfs", f"/sys/{there}".encode(), b"sysfs", 0, None)
    for part in (*others, there):  # the last one on top of the whole
        _call(_C.mount, f"/sys/{there}/{part}".encode(), f"/sys/{part}".encode(), None, MS_BIND, None)


def _call(function: Callable[..., int], *arguments: object) -> None:
    if function(*arguments):
        raise OSError(ctypes.get_errno(), f"{os.strerror(ctypes.get_errno())}: no network of its own for a test")


def add_tap(name: str, address: str = HOST) -> None:
    """A TAP interface in the network that this thread is in, with an address, that a machine's card can be put on."""
    with IPRoute() as here:
        _add(here, name, address, kind="tuntap", mode="tap")


def add_bridge(name: str, address: str = HOST) -> None:
    """A bridge in the network that this thread is in, with an address, that networks of nodes can be connected to."""
    with IPRoute() as here:
        _add(here, name, address, kind="bridge")


@contextmanager
def node_network(veth: str, bridge: str, tap: str, address: str) -> Iterator[None]:
    """Put this thread into a network like ``private_network``, with a bridge of that address and a TAP interface on it.
    A veth pair of that name connects it to a bridge of the network that the thread comes from. It lasts as long as a
    process that was started inside."""
    with IPRoute() as outside, private_network(), IPRoute() as inside:
        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            peer = {"ifname": "uplink", "net_ns_fd": here}
            _add(outside, veth, bridge=bridge, kind="veth", peer=peer)
        finally:
            os.close(here)
        _add(inside, "bridge", address, kind="bridge")
        _add(inside, tap, bridge="bridge", kind="tuntap", mode="tap")
        _set_up(inside, "uplink", bridge="bridge")
        yield


def _add(network: IPRoute, name: str, address: str | None = None, *, bridge: str | None = None, **what: Any) -> None:
    network.link("add", ifname=name, **what)
    _set_up(network, name, address, bridge=bridge)


def _set_up(network: IPRoute, name: str, address: str | None = None, *, bridge: str | None = None) -> None:
    (index,) = network.link_lookup(ifname=name)
    if address is not None:
        network.addr("add", index=index, address=address, prefixlen=PREFIX)
    if bridge is not None:
        (master,) = network.link_lookup(ifname=bridge)
        network.link("set", index=index, master=master)
    network.link("set", index=index, state="up")
