"""The loop from the requests of the service to the machines of this node (T17).

Such a machine has no object: what it was created as is its object. After it ended, and after a reboot of the host, it
is started again by its policy; while it runs, it is scaled, its runner is open, and its rates are held.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from devalloc.worker import UNTRIED, Again, Pace, Why, Worker, in_thread
from devalloc_machines.service.operations import MachineOperations
from devalloc_machines.vms.objects import Outcome
from devalloc_machines.vms.steps import MachineControls, MachineReconciler
from devalloc_node.errors import NodeError
from devalloc_node.operations.change_feed import ChangeNotifier

WORKERS = 8
"""Machines that are worked on at the same time: one that takes its time, such as for an image on a file system that
hangs, holds up no other."""
BATCH_SECONDS = 0.2
"""What changes together is looked at together, however often machines change."""
RETRY_SECONDS = 5.0
"""How soon a machine that cannot be scaled is looked at again: routes and addresses change without an event."""


class RequestLoop:
    """``run`` in a thread; ``problem`` is for any thread."""

    def __init__(
        self,
        operations: MachineOperations,
        notifier: ChangeNotifier,
        *,
        resync: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        spawn: Callable[[Callable[[], None]], None] = in_thread,
    ) -> None:
        """``resync``: seconds after which all are looked at again. ``spawn`` has something done in another thread."""
        self._operations, self._resync, self._clock = operations, resync, clock
        self._problems: dict[str, Outcome] = {}
        self.control(MachineControls())
        self.worker: Worker[str | None, str] = Worker(
            "cannot keep machines of the service",
            self._work,
            self._take,
            pace=Pace(batch=BATCH_SECONDS, threads=WORKERS, expected=(NodeError,)),
            clock=clock,
            spawn=spawn,
        )
        operations.service_problem = self.problem
        notifier.follow(self._hear)

    def control(self, controls: MachineControls) -> None:
        """Say who scales such machines and opens their runners. Call it before ``run``."""
        self._keeper = MachineReconciler(None, self._operations, clock=self._clock, controls=controls)
        offers = {"scaling": controls.scaling, "runner": controls.runners}
        self._operations.offers = frozenset(name for name, who in offers.items() if who is not None)

    def problem(self, key: str) -> tuple[str, str] | None:
        """Why a machine is not scaled or limited as it was created: a code and a sentence."""
        outcome = self._problems.get(key)
        return None if outcome is None else (outcome.reason, outcome.message)

    def run(self, stop: threading.Event) -> None:
        """Until ``stop`` is set. Machines stay as they are then."""
        self.worker.add(None)
        self.worker.run(stop)

    def _hear(self, changed: Sequence[str]) -> None:
        self.worker.tell(*(key for kind, _, key in (one.partition(" ") for one in changed) if kind == "machine"))

    def _take(self, keys: Sequence[str]) -> None:
        """Have machines that changed looked at."""
        self._look_at({key: self._operations.machines.owner(key) for key in keys})

    def _look_at(self, owners: Mapping[str, str | None]) -> None:
        """Have machines looked at, but for those of objects: their loop cares for them. ``owners``: by key."""
        for key, uid in owners.items():
            if uid:
                self._problems.pop(key, None)
            else:
                self.worker.add(key)

    def _work(self, key: str | None, why: Why) -> Again | None:
        """Bring a machine nearer to its request, or have all of them looked at."""
        if key is None:
            self._look_at(self._operations.machines.owners())
            return Again(self._resync)
        try:
            outcome = self._keeper.keep_request(key)
        except Exception as error:
            self._problems.pop(key, None)
            return Again(self._keeper.pause(key) or None, failed=error)
        if not outcome.reason:
            self._problems.pop(key, None)
            is_too_early = outcome.after is not None and why is Why.ADDED and self.worker.failures(key)
            return UNTRIED if is_too_early else Again(outcome.after)
        self._problems[key] = outcome
        return Again(min(RETRY_SECONDS, self._resync))
