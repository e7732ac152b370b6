"""Notices when processes end: one thread waits for all of them."""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable

from devalloc_node.machine.process import Process, pidfd

LOG = logging.getLogger(__name__)


class Deaths:
    """Calls ``ended(name)`` once for each process that was watched under that name and ended."""

    def __init__(self, ended: Callable[[str], None]) -> None:
        self._ended = ended
        self._mutex = threading.Lock()
        self._watched: dict[str, tuple[Process, int]] = {}
        self._names: dict[int, str] = {}
        self._poll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._wake, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name="deaths", daemon=True)
        self._thread.start()

    def watch(self, name: str, process: Process) -> None:
        """Another process under the same name replaces the first. One that has ended is told at once."""
        with self._mutex:
            known = self._watched.get(name)
            if known is not None and known[0] == process:
                return
            self._drop(name)
            if self._poll.closed:  # the plugin ends, and another one watches
                return
            fd = pidfd(process)
            if fd is not None:
                self._watched[name], self._names[fd] = (process, fd), name
                self._poll.register(fd, select.EPOLLIN)
                return
        self._tell(name)

    def watches(self, name: str) -> bool:
        """Whether the process that is watched under a name lives: its end is still to be told."""
        with self._mutex:
            return name in self._watched

    def leave(self, name: str) -> None:
        """Watch it no more."""
        with self._mutex:
            self._drop(name)

    def close(self) -> None:
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        with self._mutex:
            for name in list(self._watched):
                self._drop(name)
            self._poll.close()
            os.close(self._wake)

    def _drop(self, name: str) -> None:
        if name in self._watched:
            _, fd = self._watched.pop(name)
            del self._names[fd]
            self._poll.unregister(fd)
            os.close(fd)

    def _run(self) -> None:
        while True:
            for fd, _ in self._poll.poll():
                if fd == self._wake:
                    return
                with self._mutex:
                    name = self._names.get(fd)
                    if name is not None:
                        self._drop(name)
                if name is not None:
                    self._tell(name)

    def _tell(self, name: str) -> None:
        try:
            self._ended(name)
        except Exception:  # whoever is told must not end the watch over all the others
            LOG.exception("telling that %s ended", name)
