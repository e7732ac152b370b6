"""Scale machines that were created through the service, open their runners, and hold them to their rates.

The loop of VirtualMachine objects does this for those. These machines have none, so what they were created as counts.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from devalloc.api.virtual_machine import VirtualMachine
from devalloc.worker import Again, Pace, Why, Worker
from devalloc_machines.qemu.rates import is_limited
from devalloc_machines.qemu.records import MachineView
from devalloc_machines.service.operations import MachineOperations
from devalloc_machines.vms.objects import Outcome
from devalloc_machines.vms.scaling import RunnerControl, ScalingControl, hold_to_rates, offer_cpu_control, scale_by_load
from devalloc_node.errors import NodeError
from devalloc_node.operations.change_feed import ChangeNotifier

log = logging.getLogger(__name__)
PAUSE_SECONDS = 0.1
"""Between two rounds, however often machines change."""
RETRY_SECONDS = 5.0
"""How soon a machine that cannot be scaled is looked at again: routes and addresses change without an event."""


class ServiceMachines:
    """``run`` in a thread; ``problem`` is for any thread."""

    def __init__(
        self,
        operations: MachineOperations,
        notifier: ChangeNotifier,
        *,
        scaling: ScalingControl | None,
        runners: RunnerControl | None,
        resync: float,
    ) -> None:
        """None: this node does not do that. ``resync``: seconds after which all are looked at again."""
        self._operations = operations
        self._scaling, self._runners, self._resync = scaling, runners, resync
        # What a round itself changes, and changes one after the other, are one round more.
        pace = Pace(RETRY_SECONDS, max(RETRY_SECONDS, resync), batch=PAUSE_SECONDS, expected=(NodeError,))
        self._worker: Worker[None, object] = Worker("cannot look at the machines of the service", self._look, pace=pace)
        self._problems: dict[str, Outcome] = {}
        self._cared_for: set[str] = set()
        """Keys of machines that were given to the scalers or runners."""
        operations.offers = frozenset(
            name for name, who in (("scaling", scaling), ("runner", runners)) if who is not None
        )
        operations.service_problem = self.problem
        notifier.follow(self._hear)

    def problem(self, key: str) -> tuple[str, str] | None:
        """Why a machine is not scaled or limited as it was created: a code and a sentence."""
        outcome = self._problems.get(key)
        return None if outcome is None else (outcome.reason, outcome.message)

    def run(self, stop: threading.Event) -> None:
        """Until ``stop`` is set. Machines stay as they are then."""
        self._worker.add(None)
        self._worker.run(stop)

    def _look(self, key: None, why: Why) -> Again:
        self.round()
        return Again(min(RETRY_SECONDS, self._resync) if self._problems else self._resync)

    def round(self) -> None:
        """Bring scalers and runners in line with what the machines are now. Raises NodeError."""
        owners = self._operations.machines.owners()
        for key in [key for key, owner in owners.items() if not owner]:
            try:
                machine = self._operations.machines.get(key)
                if machine is not None and machine.created_as is not None:
                    self._match(machine, machine.created_as)
            except Exception:  # one bad machine must not hide the others
                log.exception("cannot look at machine %s of the service", key)
        for key in self._cared_for - owners.keys():
            self._leave(key)
        # An object has the name now, and its loop cares for that.
        self._cared_for -= {key for key, owner in owners.items() if owner}
        for key in self._problems.keys() - {key for key, owner in owners.items() if not owner}:
            del self._problems[key]

    def _match(self, machine: MachineView, vm: VirtualMachine) -> None:
        if vm.spec.scaling is None and vm.spec.runner is None and not is_limited(machine.rates):
            return
        key = machine.key
        if machine.phase == "Unknown":  # a QEMU that is silent for a moment is no other machine afterwards
            return
        if machine.phase != "Running" or machine.is_paused:
            self._leave(key)
            self._problems.pop(key, None)
            return
        self._cared_for.add(key)
        outcomes = []
        if self._scaling is not None:
            outcomes = scale_by_load(self._scaling, self._operations, vm, machine)
        elif vm.spec.scaling is not None:
            why = "it was created to scale by load, but this node does not scale (--scaling)"
            outcomes = [Outcome("ScalingOff", why)]
        outcomes += offer_cpu_control(self._runners, vm, machine)
        if is_limited(machine.rates):
            outcomes += hold_to_rates(self._operations, machine, machine.rates)
        if outcomes:
            self._problems[key] = outcomes[0]
        else:
            self._problems.pop(key, None)

    def _leave(self, key: str) -> None:
        self._cared_for.discard(key)
        others: Sequence[Callable[[str], None]] = [
            each.drop for each in (self._scaling, self._runners) if each is not None
        ]
        for drop in others:
            drop(key)

    def _hear(self, changed: Sequence[str]) -> None:
        if any(each.startswith("machine ") for each in changed):
            self._worker.add(None)
