"""Bringing back machines that were made through the service: after they ended, and after a reboot of the host (T17).

Those of VirtualMachine objects are brought back by the loop of these objects.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from devalloc.api.virtualmachine import VirtualMachine
from devalloc_node.deadline import Deadline
from devalloc_node.errors import NodeError
from devalloc_node.grant import ClaimRef
from devalloc_node.platform import Platform
from devalloc_node.service.watching import Pulse

log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
WORK_SECONDS = 30.0
QUICK_SECONDS = 60.0
"""One that ends sooner after its start is started again ever more rarely, at least every"""
MOST_SECONDS = 300.0


class Restarts:
    """Run it in a thread of its own."""

    def __init__(
        self,
        platform: Platform,
        pulse: Pulse,
        to_restart: Callable[[], Sequence[VirtualMachine]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``to_restart``: the machines that do not run and should, by their own policy."""
        self._platform = platform
        self._pulse = pulse
        self._to_restart = to_restart
        self._clock = clock
        self._tries: dict[str, tuple[float, int]] = {}
        """When a machine was last started, and how often in a row that did not last."""

    def run(self, stop: threading.Event) -> None:
        """Until ``stop`` is set."""
        while not stop.is_set():
            seen = self._pulse.count
            try:
                self.round()
            except Exception:
                log.exception("could not look which machines are to be brought back")
            self._pulse.wait(seen, LOOK_SECONDS)
            stop.wait(0.2)

    def round(self) -> None:
        """Start what is due. Raises NodeError where that cannot be told."""
        for machine in self._to_restart():
            key = "/".join(machine.key)
            if machine.metadata.uid or self._clock() < self._due(key):
                continue
            began, quick = self._tries.get(key, (float("-inf"), 0))
            now = self._clock()
            self._tries[key] = (now, quick + 1 if now - began < max(QUICK_SECONDS, 2 * _pause(quick)) else 0)
            try:
                refs = [
                    self._platform.named(ClaimRef(machine.namespace, name, ""), prepared=True)
                    for name in machine.spec.claims
                ]
                due = Deadline.after(WORK_SECONDS)
                self._platform.create(machine, refs, due, caller="restart policy", still=partial(self._is_due, key))
                log.info("machine %s is brought back", key)
            except NodeError as error:
                if error.code == "NotWanted":
                    self._tries.pop(key, None)
                    continue
                log.warning("machine %s cannot be brought back yet: %s", key, error)

    def _is_due(self, key: str) -> bool:
        """Whether it is still to be started: it may have been deleted or stopped since, or its first start failed."""
        return any("/".join(machine.key) == key for machine in self._to_restart())

    def _due(self, key: str) -> float:
        began, quick = self._tries.get(key, (float("-inf"), 0))
        return began + _pause(quick)


def _pause(quick: int) -> float:
    return min(2.0**quick, MOST_SECONDS)
