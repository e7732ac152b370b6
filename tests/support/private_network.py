"""A network of a test's own, with machines on it: what the thread starts in there, and the threads it starts, see it
and nothing of this host's network. Needs root."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

from pyroute2 import IPRoute

CLONE_NEWNET = 0x40000000
HOST, PREFIX = "192.0.2.1", 24


@contextmanager
def private_network() -> Iterator[None]:
    """Put this thread into a network namespace that has no name, and back at the end. Raises OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if library.unshare(CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "no network namespace could be made")
        try:
            with IPRoute() as inside:
                inside.link("set", index=1, state="up")
            yield
        finally:
            if library.setns(before, CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "the way back to the host's network failed")
    finally:
        os.close(before)


def add_tap(name: str, address: str = HOST) -> None:
    """A TAP interface in the network that this thread is in, with an address, that a machine's card can be put on."""
    with IPRoute() as here:
        here.link("add", ifname=name, kind="tuntap", mode="tap")
        (index,) = here.link_lookup(ifname=name)
        here.addr("add", index=index, address=address, prefixlen=PREFIX)
        here.link("set", index=index, state="up")
