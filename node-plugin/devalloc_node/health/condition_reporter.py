"""Write device health to claims as soon as it changes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from devalloc_node.deadline import Deadline
from devalloc_node.health.snapshot import HealthSnapshot
from devalloc_node.health.watch import HealthWatch
from devalloc_node.model.prepared import Prepared

log = logging.getLogger(__name__)

STATUS_SECONDS = 5.0
"""How often it is looked whether claims are to be told something about their devices."""
_TICK_SECONDS = 0.5


class ConditionReporter:
    """Run it in a thread of its own."""

    def __init__(
        self,
        tell: Callable[[Iterable[Prepared], HealthSnapshot], None],
        prepared: Callable[[], Iterable[Prepared]],
        health: HealthWatch,
    ) -> None:
        self._tell = tell
        self._prepared = prepared
        self._health = health
        self._soon = threading.Event()

    def soon(self) -> None:
        """Other claims are prepared than before, or their devices are otherwise."""
        self._soon.set()

    def run(self, stop: threading.Event) -> None:
        """Until ``stop`` is set."""
        while not stop.is_set():
            self._soon.clear()
            checkup = self._health.snapshot()
            try:
                self._tell(self._prepared(), checkup)
            except Exception:
                log.exception("cannot write the health of devices to claims; trying again")
            until = Deadline.after(STATUS_SECONDS)
            while not (stop.is_set() or until.passed or self._health.wait(checkup.version, 0.0)):
                if self._soon.wait(_TICK_SECONDS):
                    break
