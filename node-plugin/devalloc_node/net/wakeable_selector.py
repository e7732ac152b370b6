"""A selector on which one thread waits, and which other threads can wake."""

from __future__ import annotations

import os
import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class WakeableSelector:
    """Sockets to wait for, each with a name. ``wake`` from any thread, all else from one."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._wake: int | None = None
        """A descriptor that wakes the thread; None while it is not open."""
        self._selector: selectors.BaseSelector

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Inside, it can be used."""
        wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        with selectors.DefaultSelector() as self._selector:
            self._selector.register(wake, selectors.EVENT_READ)
            with self._mutex:
                self._wake = wake
            try:
                yield
            finally:
                with self._mutex:
                    self._wake = None
                os.close(wake)

    def add(self, connection: socket.socket, name: str) -> None:
        """Wait for what can be read from it."""
        self._selector.register(connection, selectors.EVENT_READ, name)

    def remove(self, connection: socket.socket) -> None:
        """Before it is closed."""
        self._selector.unregister(connection)

    def wait(self, seconds: float) -> list[str]:
        """The names of those that can be read, after at most so many seconds, or as soon as one wakes it."""
        ready = []
        for selected, _ in self._selector.select(seconds):
            if selected.data is None:
                with suppress(BlockingIOError):
                    os.eventfd_read(selected.fd)
            else:
                ready.append(selected.data)
        return ready

    def wake(self) -> None:
        """Have ``wait`` return now, or the next one at once. Nothing to do while it is not open."""
        with self._mutex:
            if self._wake is not None:
                os.eventfd_write(self._wake, 1)
