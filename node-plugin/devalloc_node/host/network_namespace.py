"""Run a function in a network namespace of the host.

A thread is put into a namespace, never the process, and it ends there: no thread that does anything else is ever in
another namespace than the host's. Nothing is forked, which a process with gRPC in it must not be.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

libc = ctypes.CDLL(None, use_errno=True)

Answer = TypeVar("Answer")


def inside(name: Path, act: Callable[[], Answer]) -> Answer:
    """What ``act`` returns in the namespace that the file ``name`` keeps. Raises OSError, and what ``act`` raises."""

    def entered() -> Answer:
        from pyroute2 import netns

        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            netns.setns(descriptor, libc=libc)
        finally:
            os.close(descriptor)
        return act()

    return in_a_thread(entered)


def in_a_thread(act: Callable[[], Answer]) -> Answer:
    """What ``act`` returns in a thread of its own. Errors of netlink are raised as OSError."""
    answers: list[Answer] = []
    errors: list[BaseException] = []

    def run() -> None:
        from pyroute2.netlink.exceptions import NetlinkError

        try:
            answers.append(act())
        except NetlinkError as error:
            errors.append(OSError(error.code, os.strerror(error.code)))
        except struct.error as error:  # a number that a message of netlink has no room for
            errors.append(OSError(errno.ERANGE, str(error)))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="namespace", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # no thread can be had
        raise OSError(errno.EAGAIN, str(error)) from error
    thread.join()
    if errors:
        raise errors[0]
    return answers[0]


def has_interface(interface: str) -> bool:
    """Whether the namespace of this thread has it."""
    return any(name == interface for _, name in socket.if_nameindex())


def interface_index(interface: str) -> int:
    """Its number in the namespace of this thread. Raises OSError."""
    return socket.if_nametoindex(interface)


@contextmanager
def netlink() -> Iterator[Any]:
    """Of the namespace that this thread is in."""
    from pyroute2 import IPRoute

    with IPRoute() as route:
        yield route
