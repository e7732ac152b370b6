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
from devalloc_node.machine.translate import spec_of
from devalloc_node.platform import Platform
from devalloc_node.service.watching import Pulse
from devalloc_node.vms.backoff import Backoff

log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
WORK_SECONDS = 30.0
_BUSY_SECONDS = 0.05
"""How long another change of a machine is waited for: who makes it sees to the machine."""


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
        self._backoff = Backoff(clock)
        self._said: dict[str, str] = {}
        """Why a machine was last not brought back."""
        self._inside: dict[str, list[ClaimRef]] = {}
        """Claims that were attached to a machine while it ran: a start that fails has forgotten their plugs."""

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
        ended = {"/".join(machine.key): machine for machine in self._to_restart() if not machine.metadata.uid}
        self._backoff.only(ended)
        self._said = {key: why for key, why in self._said.items() if key in ended}
        self._inside = {key: refs for key, refs in self._inside.items() if key in ended}
        for key, machine in ended.items():
            if not self._backoff.left(key):
                self._bring_back(key, machine)

    def _bring_back(self, key: str, machine: VirtualMachine) -> None:
        try:
            refs = [
                self._platform.claims.named(ClaimRef(machine.namespace, name, ""), prepared=True)
                for name in machine.spec.claims
            ]
            self._inside[key] = inside = self._attached(key)
            refs += inside
            self._platform.create(
                machine,
                list(dict.fromkeys(refs)),
                Deadline.after(WORK_SECONDS + spec_of(machine).locking_seconds),
                caller="restart policy",
                still=partial(self._is_due, key),
                patience=_BUSY_SECONDS,
            )
        except NodeError as error:
            if error.code in ("NotWanted", "Busy"):
                return
            self._backoff.begun(key)
            if not error.retryable:
                self._backoff.rarely(key)
                if error.code.startswith("Claim"):  # gone for good: the machine does not wait for what was attached
                    self._inside.pop(key, None)
            again = self._backoff.left(key)
            if self._said.get(key) != error.message:
                self._said[key] = error.message
                log.warning("machine %s cannot be brought back; it is tried again in %.0f s: %s", key, again, error)
        else:
            self._backoff.begun(key)
            self._said.pop(key, None)
            log.info("machine %s is brought back", key)

    def _attached(self, key: str) -> list[ClaimRef]:
        """Claims that were in it when it ended, but for those that were unprepared or put into another one since."""
        known = {ref.uid for ref in self._inside.get(key, ())}
        return [
            held.record.ref
            for held in self._platform.claims.held()
            if any(plug.machine == key for plug in held.plugs)
            or (held.record.ref.uid in known and held.prepared is not None and not held.plugs)
        ]

    def _is_due(self, key: str) -> bool:
        """Whether it is still to be started: it may have been deleted or stopped since, or its first start failed."""
        return any("/".join(machine.key) == key for machine in self._to_restart())
