"""The machine as a scaler changes it: its memory, its CPUs, and the time that they get.

A machine has whole CPUs. What is less than that is bounded by its cgroup: 1500 thousandths are two CPUs with the time
of one and a half. So it can have less also where its guest or its QEMU keeps a CPU that is to go.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator

from devalloc.api.machinebounds import MEMORY_BLOCK
from devalloc.scaling.resources import Resources
from devalloc_node.agent.channels import Refused
from devalloc_node.agent.lanes import Lanes
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError, Unknown
from devalloc_node.machine.spec import CPU, MachineSpec, whole_cpus
from devalloc_node.machine.view import Amounts, Machine
from devalloc_node.platform import Platform

log = logging.getLogger(__name__)

CALLER = "scaling"
STEP_SECONDS = 10.0
"""For one amount. A guest that needs longer is asked again."""
SLOW_SECONDS = STEP_SECONDS / 2
"""A machine whose change took longer is changed with the slow ones from then on, until one is quick again."""
_LASTING = ("CpusEmulated", "CpuSlotsExhausted", "OutOfBounds")
"""Why there will be no more CPUs in this run of a machine."""


class MachineBody:
    """One run of a machine of the platform. What is asked of the platform waits in other threads."""

    def __init__(self, platform: Platform, key: str, owner: str, run: str, lanes: Lanes) -> None:
        """``owner``: the UID of the machine's object; empty for one that was made through the service."""
        self._platform = platform
        self._key, self._owner, self._run = key, owner, run
        self._lanes = lanes
        self._slow = False
        """Whether its last change took long: its guest may be one that never does what it is asked."""
        self._logged: frozenset[str] = frozenset()
        """How its last change failed: what stays so is logged once."""

    async def change(self, target: Resources) -> Resources | Refused:
        """Have it come to ``target``, and read back what it has then: another amount where its guest or its QEMU
        refused. Raises Failed, Unknown."""
        given_up = threading.Event()
        try:
            return await self._lanes.change(self._key, lambda: self._change(target, given_up), slow=self._slow)
        finally:
            given_up.set()

    async def look(self) -> Resources:
        """What it has, or may come to have by what it was told before. Raises NodeError."""
        return await self._lanes.look(self._key, self._look)

    def _change(self, target: Resources, given_up: threading.Event) -> Resources | Refused:
        """``given_up``: set when nobody waits for it any more. Then no further step is begun."""
        errors: list[tuple[str, NodeError]] = []
        machine, is_bounded, began = self._seen(), True, time.monotonic()
        for what, amount in steps(machine.observed, target, machine.started):
            if given_up.is_set():
                break
            if what != "memory":  # what came before may have taken long
                self._seen()
            if what == "vcpus" and not is_bounded:
                amount = max(1, target.cpu // CPU)  # whole ones, and not more time than is meant
            try:
                due = Deadline.after(STEP_SECONDS)
                self._platform.scale(self._key, what, amount, due, owner=self._owner, caller=CALLER)
            except NodeError as error:
                if str(error) not in self._logged and not given_up.is_set():  # who gave up may have closed the journal
                    log.warning("machine %s: %s", self._key, error)
                errors.append((what, error))
                is_bounded = is_bounded and what != "cpu"
        self._slow = time.monotonic() - began > SLOW_SECONDS
        self._logged = frozenset(str(error) for _, error in errors)
        for _, problem in errors:
            if not isinstance(problem, Denied):  # what became of it only a look tells
                raise problem
        return _refused(errors, target, self._look()) if errors else self._look()

    def _look(self) -> Resources:
        machine = self._seen()
        cpu, memory = machine.observed.cpu_milli, machine.observed.memory_bytes
        if cpu is None or memory is None:
            raise Unknown("MachineUnclear", f"it cannot be seen what machine {self._key} has")
        return Resources(cpu, max(memory, machine.applied.memory_bytes or 0))

    def _seen(self) -> Machine:
        machine = self._platform.machine(self._key)
        if machine.uid != self._owner:
            raise Denied("MachineExists", f"another machine is called {self._key} now")
        if machine.id != self._run:
            raise Denied("MachineExists", f"another run of machine {self._key} lives now")
        if machine.phase != "Running":
            raise Failed("MachineNotRunning", f"machine {self._key} is {machine.phase.lower()}: {machine.message}")
        return machine


def _refused(errors: list[tuple[str, NodeError]], target: Resources, reached: Resources) -> Refused:
    """The first that will not change while the machine runs, or the first."""
    lasting = [error for what, error in errors if what == "vcpus" and error.code in _LASTING]
    is_bounded = bool(lasting) and reached.cpu < target.cpu and all(what != "cpu" for what, _ in errors)
    error = lasting[0] if is_bounded else errors[0][1]
    return Refused(reached, error.code, error.message, reached.cpu if is_bounded else None)


def steps(has: Amounts, target: Resources, spec: MachineSpec | None) -> Iterator[tuple[str, int]]:
    """What to ask of the platform, in order, so that a machine that has this comes to the target.

    The time of its CPUs is bounded before there are more of them. CPUs leave last: that is what guests and hypervisors
    survive worst.
    """
    cpus = whole_cpus(target.cpu)
    memory = target.memory if spec is None else whole_memory(target.memory, spec)
    if has.memory_bytes != memory:
        yield "memory", memory
    if has.cpu_milli != target.cpu:
        yield "cpu", target.cpu
    if has.vcpus != cpus:
        yield "vcpus", cpus


def whole_memory(amount: int, spec: MachineSpec) -> int:
    """The most that the machine can be made to have and that is not more."""
    least, block = spec.memory.least, spec.dimm_bytes or MEMORY_BLOCK
    return least + max(0, amount - least) // block * block
