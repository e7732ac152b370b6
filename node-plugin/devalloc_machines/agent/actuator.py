"""Change a machine's memory, CPUs and CPU time on behalf of its scaler.

A machine has whole CPUs. What is less than that is bounded by its cgroup: 1500 thousandths are two CPUs with the time
of one and a half. So it can have less also where its guest or its QEMU keeps a CPU that is to go.

A slow guest delays neither the event loop nor other machines: changes and observations run in thread pools. A change
cannot be cancelled: it continues even if no caller waits for it any more. The next change of that machine begins when
it has ended.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from devalloc.api.virtual_machine import MEMORY_BLOCK
from devalloc.scaling.resources import Resources
from devalloc_machines.agent.channels import ChangeRefused
from devalloc_machines.qemu.records import MachineAmounts, MachineView
from devalloc_machines.qemu.spec import CPU, MachineSpec, whole_cpus
from devalloc_machines.service.operations import MachineOperations
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError, Unknown

_Result = TypeVar("_Result")


class MachineExecutors:
    """Used in one event loop."""

    def __init__(self, threads: int) -> None:
        """``threads``: for changes, and as many for looks. Those that are slow have a quarter of that, of their own."""
        self._looks = ThreadPoolExecutor(threads, thread_name_prefix="scaling-look")
        self._changes = ThreadPoolExecutor(threads, thread_name_prefix="scaling")
        self._slow = ThreadPoolExecutor(max(1, threads // 4), thread_name_prefix="scaling-slow")
        self._under_way: dict[str, Future[Any]] = {}
        """The change of each machine."""

    async def look(self, key: str, work: Callable[[], _Result]) -> _Result:
        """Have it done by another thread, once the machine is not being changed."""
        await self._turn(key)
        return await asyncio.wrap_future(self._looks.submit(work))

    async def change(self, key: str, work: Callable[[], _Result], *, slow: bool) -> _Result:
        """The same with what changes the machine. Cancelled before it was begun it never is; else it ends by itself."""
        await self._turn(key)
        future = (self._slow if slow else self._changes).submit(work)
        self._under_way[key] = future
        self._when_done(future, lambda: self._ended(key, future))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """What is under way ends by itself; what waits for a thread is not begun any more."""
        for executor in (self._looks, self._changes, self._slow):
            executor.shutdown(wait=False, cancel_futures=True)

    async def _turn(self, key: str) -> None:
        while (future := self._under_way.get(key)) is not None and not future.done():
            ended = asyncio.Event()
            self._when_done(future, ended.set)
            await ended.wait()

    def _ended(self, key: str, future: Future[Any]) -> None:
        if self._under_way.get(key) is future:
            del self._under_way[key]

    @staticmethod
    def _when_done(future: Future[Any], then: Callable[[], object]) -> None:
        loop = asyncio.get_running_loop()

        def tell(_: Future[Any]) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(then)

        future.add_done_callback(tell)


log = logging.getLogger(__name__)

CALLER = "scaling"
STEP_SECONDS = 10.0
"""For one amount. A guest that needs longer is asked again."""
SLOW_SECONDS = STEP_SECONDS / 2
"""A machine whose change took longer is changed with the slow ones from then on, until one is quick again."""
_PERMANENT = ("CpusEmulated", "CpuSlotsExhausted", "OutOfBounds")
"""Why there will be no more CPUs in this run of a machine."""


class MachineActuator:
    """One run of a machine of the platform. What is asked of the platform waits in other threads."""

    def __init__(
        self, operations: MachineOperations, key: str, owner: str, run: str, executors: MachineExecutors
    ) -> None:
        """``owner``: the UID of the machine's object; empty for one that was made through the service."""
        self._operations = operations
        self._key, self._owner, self._run = key, owner, run
        self._executors = executors
        self._slow = False
        """Whether its last change took long: its guest may be one that never does what it is asked."""
        self._logged: frozenset[str] = frozenset()
        """How its last change failed: what stays so is logged once."""

    async def change(self, target: Resources) -> Resources | ChangeRefused:
        """Have it come to ``target``, and read back what it has then: another amount where its guest or its QEMU
        refused. Raises Failed, Unknown."""
        given_up = threading.Event()
        try:
            return await self._executors.change(self._key, lambda: self._change(target, given_up), slow=self._slow)
        finally:
            given_up.set()

    async def look(self) -> Resources:
        """What it has, or may come to have by an earlier request. Raises NodeError."""
        return await self._executors.look(self._key, self._look)

    def _change(self, target: Resources, given_up: threading.Event) -> Resources | ChangeRefused:
        """``given_up``: set when no caller waits any longer. Then no further step begins."""
        errors: list[tuple[str, NodeError]] = []
        machine, is_bounded, began = self._seen(), True, time.monotonic()
        for what, amount in scaling_steps(machine.observed, target, machine.started):
            if given_up.is_set():
                break
            if what != "memory":  # what came before may have taken long
                self._seen()
            if what == "vcpus" and not is_bounded:
                amount = max(1, target.cpu // CPU)  # whole ones, and not more time than is meant
            try:
                due = Deadline.after(STEP_SECONDS)
                self._operations.scale(self._key, what, amount, due, owner=self._owner, caller=CALLER)
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
        return _first_refusal(errors, target, self._look()) if errors else self._look()

    def _look(self) -> Resources:
        machine = self._seen()
        cpu, memory = machine.observed.cpu_milli, machine.observed.memory_bytes
        if cpu is None or memory is None:
            raise Unknown("MachineUnclear", f"cannot observe what machine {self._key} has")
        return Resources(cpu, max(memory, machine.applied.memory_bytes or 0))

    def _seen(self) -> MachineView:
        return running_machine(self._operations, self._key, self._owner, self._run)


def running_machine(operations: MachineOperations, key: str, owner: str, run: str) -> MachineView:
    """The machine, if it is still that one and runs. ``owner``: the UID of its object. Raises NodeError."""
    machine = operations.machine(key)
    if machine.uid != owner:
        raise Denied("MachineExists", f"another machine now has the name {key}")
    if machine.id != run:
        raise Denied("MachineExists", f"machine {key} has been restarted since (another run)")
    if not machine.is_active:
        raise Failed("MachineNotRunning", f"machine {key} is {machine.phase.lower()}: {machine.message}")
    return machine


def _first_refusal(errors: list[tuple[str, NodeError]], target: Resources, reached: Resources) -> ChangeRefused:
    """The first that will not change while the machine runs, or the first."""
    permanent = [error for what, error in errors if what == "vcpus" and error.code in _PERMANENT]
    is_bounded = bool(permanent) and reached.cpu < target.cpu and all(what != "cpu" for what, _ in errors)
    error = permanent[0] if is_bounded else errors[0][1]
    return ChangeRefused(reached, error.code, error.message, reached.cpu if is_bounded else None)


def scaling_steps(has: MachineAmounts, target: Resources, spec: MachineSpec | None) -> Iterator[tuple[str, int]]:
    """What to ask of the platform, in order, so that a machine that has this comes to the target.

    The time of its CPUs is bounded before there are more of them. CPUs leave last: that is what guests and hypervisors
    survive worst.
    """
    cpus = whole_cpus(target.cpu)
    memory = target.memory if spec is None else memory_rounded_down(target.memory, spec)
    if has.memory_bytes != memory:
        yield "memory", memory
    if has.cpu_milli != target.cpu:
        yield "cpu", target.cpu
    if has.vcpus != cpus:
        yield "vcpus", cpus


def memory_rounded_down(amount: int, spec: MachineSpec) -> int:
    """The most that the machine can be made to have and that is not more."""
    least, block = spec.memory.least, spec.dimm_bytes or MEMORY_BLOCK
    return least + max(0, amount - least) // block * block
