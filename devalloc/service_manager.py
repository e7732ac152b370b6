"""systemd's protocol for services (sd_notify): when this process is ready, and that its loops go on.

A unit with ``Type=notify`` has begun only when its process says so. With ``WatchdogSec`` systemd ends a process that
has been silent for so long, and starts it again. Without systemd nothing is sent.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from devalloc.worker import DONE, repeat

log = logging.getLogger(__name__)

Round = Callable[[], float | None]
"""When the round that a loop is in began, by ``time.monotonic``; None while it waits for something to do."""
READY_POLL_SECONDS = 0.1
_BEATS = 4
"""How often it is said within the time of the watchdog that all loops go on."""


class ServiceManager:
    """What started this process, if it is systemd."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        microseconds = environment.get("WATCHDOG_USEC", "")
        is_for_us = environment.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
        self.patience = int(microseconds) / 1e6 if is_for_us and microseconds.isdecimal() else None
        """Seconds of silence after which this process is ended; None: it never is."""

    @property
    def is_there(self) -> bool:
        """Whether anything is sent."""
        return self._address.startswith(("/", "@"))

    def send(self, message: str) -> None:
        """Send lines such as ``READY=1``. Does not raise: a service goes on without its manager."""
        if not self.is_there:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
                to.connect(address)
                to.send(message.encode())
        except OSError as error:
            log.warning("cannot notify systemd at %s: %s", self._address, error)


class Heartbeat:
    """Says that the service is ready, and then that it lives, as long as no loop is stuck in a round."""

    def __init__(
        self, manager: ServiceManager, is_ready: Callable[[], bool], rounds: Callable[[], Iterable[Round]]
    ) -> None:
        """``rounds``: of the loops that must go on. They are asked each time, since loops come and go."""
        self._manager = manager
        self._is_ready = is_ready
        self._rounds = rounds

    def run(self, stop: threading.Event) -> None:
        """Until ``stop`` is set."""
        if not self._manager.is_there:
            return
        repeat(stop, lambda: DONE if self._is_ready() else None, READY_POLL_SECONDS, "cannot see whether it is ready")
        if stop.is_set():
            return
        self._manager.send("READY=1")
        if (patience := self._manager.patience) is not None:
            pause = patience / _BEATS
            repeat(stop, lambda: self._beat(patience), pause, "cannot tell that this service lives", delay=pause)
        stop.wait()
        self._manager.send("STOPPING=1")

    def _beat(self, patience: float) -> None:
        if self._all_go_on(patience):
            self._manager.send("WATCHDOG=1")

    def _all_go_on(self, patience: float) -> bool:
        now = time.monotonic()
        began = [each() for each in self._rounds()]
        stuck = [now - since for since in began if since is not None and now - since > patience]
        if stuck:
            log.error(
                "a loop has been in one step for %.0f s: systemd will end this process and start it again", stuck[0]
            )
        return not stuck
