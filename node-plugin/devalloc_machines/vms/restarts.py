"""Restart machines that were created through the service: after they ended, and after a reboot of the host (T17).

Those of VirtualMachine objects are brought back by the loop of these objects.

The node restarts a machine that ended at once, and with growing delays if it ends soon after each start.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

from devalloc.api.virtual_machine import VirtualMachine
from devalloc.backoff import backoff_delay
from devalloc.worker import Again, Pace, Why, Worker, in_thread
from devalloc_machines.qemu.spec import locking_seconds, spec_of
from devalloc_machines.service.operations import FIRMWARE_SECONDS, MachineOperations
from devalloc_node.deadline import Deadline
from devalloc_node.errors import NodeError
from devalloc_node.model.grant import ClaimRef
from devalloc_node.operations.change_feed import ChangeNotifier

QUICK_SECONDS = 60.0
"""A run that ends sooner than that after its start did not last."""
FIRST_SECONDS, MOST_SECONDS = 1.0, 300.0
"""The first and the longest pause."""
_OFTEN = 30
"""So many runs that did not last make the longest pause."""


@dataclass(frozen=True, slots=True)
class _Run:
    """The last run of a machine, or the last try to start it."""

    began: float
    ended: float | None
    """When that was noticed."""
    quick: int
    """How many runs in a row did not last, with this one once it ended."""
    generation: int | None = None
    """Of the spec that it was started by."""


class RestartBackoff:
    """The back-off of machines by their keys. Safe for threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._runs: dict[str, _Run] = {}

    def begun(self, key: str, generation: int | None = None) -> None:
        """It was started now, or that was tried, by a spec of that generation."""
        with self._mutex:
            last = self._runs.get(key)
            quick = last.quick if last is not None and last.generation == generation else 0
            self._runs[key] = _Run(self._clock(), None, quick, generation)

    def left(self, key: str, generation: int | None = None) -> float:
        """Seconds until one that is seen not to run may be started; 0 for now, and for another spec than before."""
        with self._mutex:
            last = self._runs.get(key)
            if last is None or last.generation != generation:
                return 0.0
            now = self._clock()
            if last.ended is None:
                quick = last.quick + 1 if now - last.began < QUICK_SECONDS else 0
                last = self._runs[key] = replace(last, ended=now, quick=quick)
            if not last.quick or last.ended is None:
                return 0.0
            return max(0.0, last.ended + backoff_delay(last.quick, FIRST_SECONDS, MOST_SECONDS) - now)

    def slow_down(self, key: str) -> None:
        """What is in its way does not go away by itself: after the try that begun there is the longest pause."""
        with self._mutex:
            if (last := self._runs.get(key)) is not None:
                self._runs[key] = replace(last, quick=max(last.quick, _OFTEN))

    def only(self, ended: Collection[str]) -> None:
        """Of those that were seen not to run, forget all but these: others started them, or they are gone."""
        with self._mutex:
            self._runs = {key: run for key, run in self._runs.items() if run.ended is None or key in ended}

    def forget(self, key: str) -> None:
        """Its next run is its first."""
        with self._mutex:
            self._runs.pop(key, None)


log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
WORK_SECONDS = 30.0
WORKERS = 8
"""Machines that are brought back at the same time."""
_BATCH_SECONDS = 0.2
"""What ends together is looked up together."""
_BUSY_SECONDS = 0.05
"""How long another change of a machine is waited for: who makes it sees to the machine."""


class MachineRestarts:
    """Run it in a thread of its own."""

    def __init__(
        self,
        operations: MachineOperations,
        notifier: ChangeNotifier,
        to_restart: Callable[[], Sequence[VirtualMachine]],
        *,
        clock: Callable[[], float] = time.monotonic,
        spawn: Callable[[Callable[[], None]], None] = in_thread,
    ) -> None:
        """``to_restart``: the machines that do not run and should, by their own policy. ``spawn`` has something done in
        another thread."""
        self._operations = operations
        self._to_restart = to_restart
        self._backoff = RestartBackoff(clock)
        self._ended: dict[str, VirtualMachine] = {}
        """Those machines, as they were last looked up, by their keys."""
        self._inside: dict[str, list[ClaimRef]] = {}
        """Claims that were attached to a machine while it ran: a start that fails has forgotten their plugs."""
        # One that takes its time, such as for an image on a file system that hangs, holds up no other.
        pace = Pace(batch=_BATCH_SECONDS, threads=WORKERS, expected=(NodeError,))
        self.worker: Worker[str | None, object] = Worker(
            "cannot restart machines", self._work, pace=pace, clock=clock, spawn=spawn
        )
        notifier.follow(lambda changed: self.look())

    def run(self, stop: threading.Event) -> None:
        """Until ``stop`` is set."""
        self.look()
        self.worker.run(stop)

    def look(self) -> None:
        """Look soon which machines are to be started. From any thread."""
        self.worker.add(None)

    def _work(self, key: str | None, why: Why) -> Again | None:
        """Start a machine, or look which ones are to be started. Raises NodeError."""
        if key is not None:
            return self._bring_back(key)
        self._ended = ended = {"/".join(machine.key): machine for machine in self._to_restart()}
        self._backoff.only(ended)
        for each in list(self._inside):  # others are written to meanwhile
            if each not in ended and not self.worker.is_busy(each):
                self._inside.pop(each, None)
        for each in ended:
            if not self.worker.is_busy(each):
                self.worker.add(each, self._backoff.left(each))
        return Again(LOOK_SECONDS)

    def _bring_back(self, key: str) -> Again | None:
        """Start a machine again if it is time. None also if another component does it and reports it."""
        if (machine := self._ended.get(key)) is None:
            return None
        if left := self._backoff.left(key):
            return Again(left)
        try:
            self._start(key, machine)
        except NodeError as error:
            if error.code in ("NotWanted", "Busy"):
                return None
            self._backoff.begun(key)
            if not error.retryable:
                self._backoff.slow_down(key)
                if error.code.startswith("Claim"):  # gone for good: the machine does not wait for what was attached
                    self._inside.pop(key, None)
            return Again(self._backoff.left(key), failed=error)
        except Exception:
            self._backoff.begun(key)
            raise
        self._backoff.begun(key)
        log.info("restarted machine %s", key)
        return None

    def _start(self, key: str, machine: VirtualMachine) -> None:
        """Raises NodeError."""
        refs = [
            self._operations.claims.named(ClaimRef(machine.namespace, name, ""), prepared=True)
            for name in machine.spec.claims
        ]
        self._inside[key] = inside = self._attached(key)
        refs += inside
        there = self._operations.machines.get(key)
        wanted = None if there is None else there.wanted.memory_bytes
        spec = spec_of(machine)
        memory = spec.memory.use if wanted is None else wanted
        seconds = WORK_SECONDS + (locking_seconds(memory) if refs or spec.huge_page_bytes else 0.0)
        if refs and there is not None and there.is_paused:  # its start was cut off: its guest may still boot
            seconds += FIRMWARE_SECONDS
        self._operations.create(
            machine,
            list(dict.fromkeys(refs)),
            Deadline.after(seconds),
            caller="restart policy",
            still=partial(self._is_due, key),
            patience=_BUSY_SECONDS,
            as_it_was=True,
        )

    def _attached(self, key: str) -> list[ClaimRef]:
        """Claims that were in it when it ended, but for those that were unprepared or put into another one since."""
        uids = {ref.uid for ref in self._inside.get(key, ())}
        return [
            held.record.ref
            for held in self._operations.claims.held()
            if any(plug.machine == key for plug in held.plugs)
            or (held.record.ref.uid in uids and held.prepared is not None and not held.plugs)
        ]

    def _is_due(self, key: str) -> bool:
        """Whether it is still to be started: it may have been deleted or stopped since, or its first start failed."""
        return any("/".join(machine.key) == key for machine in self._to_restart())
