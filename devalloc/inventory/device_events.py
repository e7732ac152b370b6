"""Events that a host's devices may have changed, from udev through pyudev.

An event is only a hint to look again, so what it says is read no further than needed to drop noise. Whatever may have
swallowed events (a full receive buffer, a monitor that died and was opened again) counts as an event itself.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import logging
import os
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

log = logging.getLogger(__name__)

SUBSYSTEMS = ("pci", "mdev", "net", "block", "nvme", "infiniband", "vfio", "drm", "accel")
"""Kernel subsystems whose events can change an inventory."""

NOISE = ("/devices/virtual/net/", "/devices/virtual/block/loop", "/devices/virtual/block/ram")
"""Device paths that come and go with containers and images, and are never part of an inventory."""

RECEIVE_BUFFER = 16 << 20
"""Bytes of kernel buffer for events that come while we look at the host: about 8,000 of them. Needs CAP_NET_ADMIN."""

DRAIN_LIMIT = 10_000
"""Events read in one go, so that an endless storm cannot keep the reader from its other work."""

REOPEN_SECONDS = 30.0
"""Seconds between attempts to open a monitor that could not be opened."""

MIN_LIFE_SECONDS = 1.0
"""Seconds from opening one monitor to opening the next, so that one that fails at once does not make us spin."""

MAX_WAIT_SECONDS = 86_400.0
"""Seconds of one wait; poll(2) takes no more than 24 days, and one look a day costs nothing."""


class EventSource(Protocol):
    """Tells when to look again."""

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds, maybe less; True when devices may have changed."""

    def wake(self) -> None:
        """End a running `wait`, or the next one. From any thread or signal handler."""


class UdevEvent(Protocol):
    """What we read of a pyudev.Device."""

    @property
    def device_path(self) -> str: ...


class UdevMonitor(Protocol):
    """What we use of a pyudev.Monitor."""

    def fileno(self) -> int: ...

    def poll(self, timeout: float) -> UdevEvent | None:
        """The next event; None when there is none, or none that passes the filter. Raises OSError."""


def open_monitor() -> UdevMonitor:
    """A started monitor of `SUBSYSTEMS`. Raises ImportError without pyudev or libudev, OSError without netlink.

    Events come from udevd, thus after its rules have run and interfaces have their final names; where no udevd runs,
    from the kernel itself.
    """
    with _library_search_path():
        import pyudev

    source = "udev" if Path("/run/udev/control").exists() else "kernel"
    monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source)
    for subsystem in SUBSYSTEMS:
        monitor.filter_by(subsystem)
    with contextlib.suppress(OSError):  # without CAP_NET_ADMIN it stays at net.core.rmem_default: overruns come earlier
        monitor.set_receive_buffer_size(RECEIVE_BUFFER)
    monitor.start()
    opened: UdevMonitor = monitor
    return opened


@contextlib.contextmanager
def _library_search_path() -> Iterator[None]:
    """What is imported in here finds its libraries also where there is no ldconfig and no compiler to ask, as in an
    image that holds nothing but what runs."""
    ask = ctypes.util.find_library

    def find(name: str) -> str | None:
        if path := ask(name):
            return path
        with contextlib.suppress(OSError):
            ctypes.CDLL(soname := f"lib{name}.so.1")
            return soname
        return None

    ctypes.util.find_library = find
    try:
        yield
    finally:
        ctypes.util.find_library = ask


class UdevSource:
    """Events of udev. Without pyudev or netlink it says so once, and then only waits."""

    def __init__(
        self, open_monitor: Callable[[], UdevMonitor] = open_monitor, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._open_monitor = open_monitor
        self._clock = clock
        self._monitor: UdevMonitor | None = None
        self._reopen_at = self._opened_at = clock()
        self._deaf = False  # and said so
        self._wake_fd: int | None = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def wait(self, timeout: float) -> bool:
        """See `EventSource`. Opens the monitor, at first and again, and returns True as soon as it listens."""
        if self._monitor is None and self._clock() >= self._reopen_at and self._open():
            return True
        if self._monitor is None:
            timeout = min(timeout, max(0.0, self._reopen_at - self._clock()))
        poll = select.poll()
        for fd in (self._wake_fd, self._monitor.fileno() if self._monitor else None):
            if fd is not None:
                poll.register(fd, select.POLLIN)
        # Milliseconds, rounded up, so that the rest of one is not spent spinning.
        ready = {fd for fd, _ in poll.poll(int(min(timeout, MAX_WAIT_SECONDS) * 1000) + 1 if timeout > 0 else 0)}
        if self._wake_fd in ready:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake_fd)
        return self._monitor is not None and self._monitor.fileno() in ready and self._drain(self._monitor)

    def wake(self) -> None:
        """See `EventSource`."""
        if self._wake_fd is not None:
            os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        """Stop listening. No call may follow, and no `wait` may be running."""
        self._monitor = None  # the last reference: libudev closes the socket
        if self._wake_fd is not None:
            fd, self._wake_fd = self._wake_fd, None
            os.close(fd)

    def _open(self) -> bool:
        try:
            self._monitor = self._open_monitor()
        except (ImportError, OSError) as error:
            # What is not installed does not come by itself; a refusal may end.
            self._reopen_at = float("inf") if isinstance(error, ImportError) else self._clock() + REOPEN_SECONDS
            if not self._deaf:
                log.warning("no device events (%s): changes are found only by the periodic resync", error)
            self._deaf = True
            return False
        if self._deaf:
            log.info("device events arrive again")
        self._deaf, self._opened_at = False, self._clock()
        return True

    def _drain(self, monitor: UdevMonitor) -> bool:
        """Read what is there; True when any of it matters."""
        news = False
        for _ in range(DRAIN_LIMIT):
            try:
                event = monitor.poll(0)
                if event is None:
                    break
                news = news or not event.device_path.startswith(NOISE)
            except InterruptedError:
                continue
            except (OSError, ValueError) as error:  # ValueError: a path that is no text
                # Most likely an overrun: the kernel had no room and dropped events. pyudev stumbles over the socket's
                # error state before the read that would clear it, with an OSError without errno, and would for ever.
                # So the monitor is replaced, whatever happened, and whatever was missed is found by looking.
                log.info("device events were lost (%s): looking at all devices again", error)
                self._monitor = None
                self._reopen_at = self._opened_at + MIN_LIFE_SECONDS
                return True
        return news
