"""Keep the published devices of this host up to date: discover again when something may have changed.

Events of udev are debounced into one discovery. There is also a periodic resync, which finds what sends no event (a NIC
that got an address, an event that was lost), and a manual rescan. Only a discovery whose pools differ from the
published ones is published.

An event is only a hint to look again, so its content is read no further than needed to drop noise. Whatever may have
swallowed events (a full receive buffer, a monitor that died and was opened again) counts as an event itself.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from devalloc.api.pool import DevicePool
from devalloc.backoff import Retry
from devalloc.device_kinds import DEVICE_KINDS
from devalloc.worker import when_set

if TYPE_CHECKING:
    from devalloc.inventory.discover import Discovery

log = logging.getLogger(__name__)

_SUBSYSTEMS = ("pci", "mdev", "net", "block", "nvme", "infiniband", "vfio", "drm", "accel")

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


def subsystems() -> tuple[str, ...]:
    """Kernel subsystems whose events can change an inventory."""
    return (*_SUBSYSTEMS, *(kind.sysfs_class for kind in DEVICE_KINDS.values() if kind.sysfs_class))


def open_monitor() -> UdevMonitor:
    """A started monitor of `subsystems`. Raises ImportError without pyudev or libudev, OSError without netlink.

    Events come from udevd, thus after its rules have run and interfaces have their final names; where no udevd runs,
    from the kernel itself.
    """
    with _library_search_path():
        import pyudev

    source = "udev" if Path("/run/udev/control").exists() else "kernel"
    monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source)
    for subsystem in subsystems():
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


@dataclass(frozen=True)
class WatchSettings:
    """When to look again. All in seconds, all more than 0."""

    quiet: float = 0.2
    """Look when no event came for this long. Creating VFs sends a few events each over about half a second; half
    created cards are not worth publishing."""

    longest_delay: float = 2.0
    """Look this long after the first event even if more keep coming, so that a storm delays news but never stops it."""

    min_interval: float = 1.0
    """From the start of one discovery to the start of the next. A discovery of a big host costs some 0.3 s of CPU:
    this bounds the share of a core that a storm of events can take."""

    resync: float = 60.0
    """Look this long after the last discovery without any event. What sends no event is seen at the latest then."""

    retry: float = 5.0
    """Try again this long after a discovery or a publication failed, twice as long after each further failure, up to
    `resync`. An event or a rescan tries again at once."""

    def __post_init__(self) -> None:
        for setting in fields(self):
            if not getattr(self, setting.name) > 0:
                raise ValueError(f"watch setting {setting.name} must be more than 0 seconds")


DEFAULT_SETTINGS = WatchSettings()


@dataclass(frozen=True)
class PoolChanges:
    """What differs between two sets of pools; false when nothing does."""

    added: tuple[DevicePool, ...] = ()
    changed: tuple[DevicePool, ...] = ()
    """As they are now."""
    removed: tuple[DevicePool, ...] = ()
    """As they were."""

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)

    def __str__(self) -> str:
        parts = {"added": self.added, "changed": self.changed, "removed": self.removed}
        named = (f"{how} {', '.join(p.metadata.name for p in pools)}" for how, pools in parts.items() if pools)
        return "; ".join(named) or "no change"


def diff_pools(old: Sequence[DevicePool], new: Sequence[DevicePool]) -> PoolChanges:
    """What became of the pools, by name, in the order of `new` (removed ones in the order of `old`)."""
    before = {pool.metadata.name: pool for pool in old}
    after = {pool.metadata.name: pool for pool in new}
    return PoolChanges(
        added=tuple(pool for name, pool in after.items() if name not in before),
        changed=tuple(pool for name, pool in after.items() if name in before and pool != before[name]),
        removed=tuple(pool for name, pool in before.items() if name not in after),
    )


class InventoryWatcher:
    """Discovers now, publishes, and goes on doing so whenever it may be needed, until it is stopped.

    `discover` and `publish` run in the thread that calls `run`, never at the same time. Whatever they raise is logged
    and tried again; only what was published without an error counts as published. The first discovery is always
    published, an empty one too: a host that lost its last device has to say so.
    """

    def __init__(
        self,
        discover: Callable[[], Discovery],
        publish: Callable[[Discovery], None],
        *,
        source: EventSource,
        settings: WatchSettings = DEFAULT_SETTINGS,
        clock: Callable[[], float] = time.monotonic,
        failed: Callable[[], None] = lambda: None,
        expected: tuple[type[Exception], ...] = (),
    ) -> None:
        """``failed`` is called for each discovery or publication that raised. ``expected``: errors that are logged
        without a traceback, and once for as long as they stay the same."""
        self._discover = discover
        self._failed = failed
        self._publish = publish
        self._source = source
        self._settings = settings
        self._clock = clock
        self._published: Sequence[DevicePool] | None = None
        self._problems: frozenset[str] = frozenset()
        self._first_event: float | None = None
        self._last_event = 0.0
        self._started = float("-inf")
        self._resync_at = float("-inf")
        what = "could not bring the inventory up to date"
        self._retry = Retry(log, what, settings.retry, settings.resync, expected=expected)
        self._rescans: deque[bool] = deque()  # rescans asked for, each with or without republishing
        self._owed = False  # a republication that failed

    def rescan(self, *, republish: bool = False) -> None:
        """Discover soon (after `min_interval`); with `republish` publish also if nothing changed.

        From any thread or signal handler, such as one for SIGHUP: it takes no lock.
        """
        self._rescans.append(republish)  # atomic
        self._source.wake()

    def run(self, stop: threading.Event) -> None:
        """Watch until `stop` is set. A discovery or publication that is running then is finished first."""
        waker = when_set(stop, self._source.wake)
        self._source.wait(0)  # listen before the first look, so that nothing falls between the two
        while not stop.is_set():
            now = self._clock()
            due = self._due(now)
            if due <= now:
                self._look(now)
            elif self._source.wait(due - now):
                self._last_event = self._clock()
                if self._first_event is None:
                    self._first_event = self._last_event
        waker.join()  # it must not wake a source that our caller has closed

    def _due(self, now: float) -> float:
        """When the next discovery is to start."""
        due = self._resync_at
        if self._first_event is not None:
            settled = min(self._last_event + self._settings.quiet, self._first_event + self._settings.longest_delay)
            due = min(due, settled)
        if self._rescans:
            due = now
        return max(due, self._started + self._settings.min_interval)

    def _look(self, now: float) -> None:
        """Discover, and publish what changed. What happens from here on is for the next discovery."""
        self._started, self._first_event = now, None
        while self._rescans:
            self._owed |= self._rescans.popleft()
        try:
            discovery = self._discover()
            self._report(discovery)
            changes = diff_pools(self._published or (), discovery.pools)
            if changes or self._owed or self._published is None:
                self._publish(discovery)
                log.info("published %d pools: %s", len(discovery.pools), changes)
        except Exception as error:
            self._resync_at = self._clock() + self._retry.failed(error)
            self._failed()
        else:
            self._published, self._owed = list(discovery.pools), False
            self._retry.succeeded()
            self._resync_at = self._clock() + self._settings.resync

    def _report(self, discovery: Discovery) -> None:
        """Log each problem when it comes, not every time it is seen."""
        problems = {str(problem): problem for problem in discovery.problems}
        for text, problem in problems.items():
            if text not in self._problems:
                log.log(logging.ERROR if problem.is_error else logging.WARNING, "%s", problem.text)
        self._problems = frozenset(problems)
