"""Two machines that scale on one node, in virtual time, with a world in which everything can go wrong once.

The agent, its state machine, and the server of permits' decisions and messages are the real ones. The network, the
machines and the monitors in their guests are models, small enough to see that they are right: each call of a channel is
numbered, and at one number something happens. What must never be is looked at whenever anything changes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from devalloc.scaling.config import ScalingConfig
from devalloc.scaling.health import ScalingReport
from devalloc.scaling.messages.monitor import DownscaleResult
from devalloc.scaling.metrics import LfcMetrics, SystemMetrics
from devalloc.scaling.resources import Resources, ScalingBounds
from devalloc.scaling.state import ScalingRules
from devalloc_machines.agent.channels import Channels
from devalloc_machines.agent.guest_monitor_client import MonitorStatus
from devalloc_machines.agent.scaler import Scaler, ScalerTimeouts
from devalloc_node.errors import Failed, Unknown
from tests.support.in_process_permits import InProcessPermits
from tests.support.peer_rules import PeerRules

Result = TypeVar("Result")
GIB = 2**30
UNIT = Resources(250, GIB)
NOTHING = Resources(0, 0)
CONFIG = ScalingConfig(load_average_fraction_target=1.0)
LINKS = ("permits", "body", "guest")
FAULTS = (
    "lost request",
    "lost reply",
    "partition",
    "restart of the plugin",
    "restart of the machine",
    "restart of the monitor",
    "restart of the agent",
)
ANSWER = 0.05
"""Seconds of a call that works, but for changes of a machine, which take"""
CHANGE = 0.4
"""of them, unless a course says otherwise."""
PARTITION = 20.0


@dataclass(frozen=True)
class Fault:
    """What happens at the n-th call of any channel of any machine, counted from 0."""

    kind: str
    at: int


@dataclass
class Load:
    """What a guest needs: compute units from an instant on, ``[(seconds, units), ...]``."""

    steps: list[tuple[float, float]]

    def at(self, now: float) -> float:
        return [units for since, units in self.steps if now >= since][-1]


class Vm:
    """A machine with its guest and monitor, and this node's scaler for it."""

    def __init__(self, world: ScalingWorld, name: str, bounds: ScalingBounds, load: Load) -> None:
        self.world, self.name, self.bounds, self.load = world, name, bounds, load
        self.has = bounds.min
        self.run_number = 0
        self.agreed = NOTHING
        """What the monitor knows that its guest has, at most; it knows nothing after it started."""
        self.listener: Scaler | None = None
        self.scaler: Scaler | None = None
        self.task: asyncio.Task[None] | None = None
        self.connection: asyncio.Event | None = None
        self.asked_down = 0
        self.restarting = asyncio.Lock()
        world.plugin.admit(name, bounds)

    # Who can be restarted.

    def begin(self) -> None:
        waits = ScalerTimeouts(look_interval=10_000)
        rng = random.Random(self.name)
        rules = (PeerRules if self.world.as_peers else ScalingRules)(UNIT)
        self.scaler = Scaler(self.name, rules, self.bounds, CONFIG, self._channels, waits, rng)
        self.task = asyncio.get_running_loop().create_task(self.scaler.run())

    async def restart_agent(self) -> None:
        async with self.restarting:
            await self.end()
            self.begin()

    async def end(self) -> None:
        assert self.task is not None
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task

    def restart_machine(self) -> None:
        self.run_number += 1
        self.has = self.bounds.min
        self.restart_monitor()
        self.world.check(f"{self.name} started anew")
        self.world.spawn(self._begin_run())

    async def _begin_run(self) -> None:
        """The node begins another scaler for another run of a machine, before any part hears of that run."""
        await self.restart_agent()
        self._write()

    def restart_monitor(self) -> None:
        self.agreed = NOTHING
        if self.connection is not None:
            self.connection.set()

    # Channels.

    def _channels(self, scaler: Scaler) -> Channels:
        self.listener = scaler
        return Channels(permits=self, body=self, guest=self, metrics=self)

    async def ask(self, last: Resources | None, target: Resources, metrics: SystemMetrics | None) -> Resources:
        async def answer() -> Resources:
            await asyncio.sleep(ANSWER)
            permit = self.world.plugin.answer(self.name, last, target, metrics)
            self.world.check(f"{self.name} asked for {target}")
            return permit

        return await self.world.call("permits", self, answer)

    async def change(self, target: Resources) -> Resources:
        async def change() -> Resources:
            run_number = self.run_number
            # It goes on though the agent ends: the machine is another process.
            return await asyncio.shield(self.world.spawn(self._come_to(target, run_number)))

        return await self.world.call("body", self, change)

    async def _come_to(self, target: Resources, run_number: int) -> Resources:
        # CPU first, memory later: what is half done is seen.
        await asyncio.sleep(self.world.change / 2)
        if run_number == self.run_number:
            self.has = Resources(target.cpu, self.has.memory)
            self.world.check(f"{self.name} changes its CPUs")
        await asyncio.sleep(self.world.change / 2)
        if run_number != self.run_number:
            raise Failed("MachineEnded", "it was started anew")
        self.has = target
        self.world.check(f"{self.name} came to {target}")
        self._write()
        return target

    def _write(self) -> None:
        """The node writes down what the machine has, a second later."""
        has, run = self.has, f"run-{self.run_number}"
        later = asyncio.get_running_loop()
        later.call_later(1, lambda: self.world.plugin.observe(self.name, has, run))

    async def look(self) -> Resources:
        async def look() -> Resources:
            await asyncio.sleep(ANSWER)
            await self.world.settled(self)
            return self.has

        return await self.world.call("body", self, look)

    async def run(self) -> NoReturn:
        """The connection to the monitor: had again a second after it was lost."""
        listener = self.listener
        assert listener is not None
        while True:
            await asyncio.sleep(1)
            if self.world.is_cut("guest", self):
                listener.monitor_disconnected("no answer")
                continue
            self.connection = asyncio.Event()
            listener.monitor_connected()
            await self.connection.wait()
            listener.monitor_disconnected("the connection was lost")

    async def upscale(self, granted: Resources) -> None:
        async def agree() -> None:
            await asyncio.sleep(ANSWER)
            self.agreed = self.agreed.most(granted)
            self.world.check(f"{self.name}'s monitor hears of {granted}")

        await self.world.call("guest", self, agree)

    async def downscale(self, target: Resources) -> DownscaleResult:
        async def answer() -> DownscaleResult:
            await asyncio.sleep(ANSWER)
            self.asked_down += 1
            if self.asked_down % 4 == 2:  # now and then it does not agree
                return DownscaleResult(False, "not now")
            self.agreed = self.agreed.least(target)
            return DownscaleResult(True, "ok")

        return await self.world.call("guest", self, answer)

    def status(self) -> MonitorStatus:
        connected = self.connection is not None and not self.connection.is_set()
        return MonitorStatus(connected, "", 0, int(asyncio.get_running_loop().time() * 1000), 0, 0)

    async def system(self) -> SystemMetrics:
        await asyncio.sleep(0)
        return SystemMetrics(self.load.at(self.world.now) * UNIT.cpu / 1000)

    async def lfc(self) -> LfcMetrics:
        raise Failed("NoMetrics", "there is no cache")


@dataclass
class ScalingWorld:
    """``faults`` are what happens; ``wrong`` collects what must never be."""

    total: Resources
    faults: Sequence[Fault] = ()
    as_peers: bool = False
    change: float = CHANGE
    calls: int = 0
    wrong: list[str] = field(default_factory=list)
    vms: list[Vm] = field(default_factory=list)
    cuts: list[tuple[str, Vm | None, float]] = field(default_factory=list)
    background: set[asyncio.Task[Any]] = field(default_factory=set)
    struck: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.began = asyncio.get_running_loop().time()
        self.plugin = InProcessPermits(self.total, UNIT)

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time() - self.began

    def spawn(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        task = asyncio.get_running_loop().create_task(work)
        self.background.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.background.discard(task)
        if not task.cancelled() and not isinstance(task.exception(), Failed):
            assert task.exception() is None, task.exception()

    async def settled(self, vm: Vm) -> None:
        """Who looks at a machine waits for what it was told before (as the machine layer does, one at a time)."""
        while self.background:
            await asyncio.wait(self.background)

    def is_cut(self, link: str, vm: Vm) -> bool:
        return any(self.now < until for name, whose, until in self.cuts if name == link and whose in (None, vm))

    async def call(self, link: str, vm: Vm, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """One call of a channel: counted, and struck by the fault when it is its turn."""
        kinds = [fault.kind for fault in self.faults if fault.at == self.calls]
        for kind in kinds:
            self.struck.append(f"{kind} at call {self.calls} ({link} of {vm.name}, {self.now:.2f} s)")
            self._strike(kind, link, vm)
        self.calls += 1
        if self.is_cut(link, vm):
            await asyncio.sleep(5)
            raise Unknown("NoAnswer", "no answer")
        result = await work()
        if "lost reply" in kinds:
            await asyncio.sleep(1)
            raise Unknown("NoAnswer", "the reply was lost")
        return result

    def _strike(self, kind: str, link: str, vm: Vm) -> None:
        loop = asyncio.get_running_loop()
        if kind == "lost request":
            self.cuts.append((link, vm, self.now + 0.001))
        elif kind == "partition":
            self.cuts.append((link, vm, self.now + PARTITION))
            if link == "guest":
                vm.restart_monitor()
        elif kind == "restart of the plugin":
            self.cuts.append(("permits", None, self.now + 4))
            self.plugin.restart()
        elif kind == "restart of the machine":
            loop.call_later(self.change * 0.6, vm.restart_machine)
        elif kind == "restart of the monitor":
            loop.call_later(0.01, vm.restart_monitor)
        elif kind == "restart of the agent":
            loop.call_later(self.change * 0.6, lambda: self.spawn(vm.restart_agent()))

    def check(self, what: str) -> None:
        """What must hold at every instant."""
        # A machine that nothing is recorded of counts for more than it has, so that no other machine gets it.
        permitted = sum((self.plugin.recorded(vm.name) or vm.has for vm in self.vms), NOTHING)
        if permitted.exceeds(self.total):
            self.wrong.append(f"{self.now:.2f} s: {what}: {permitted} are permitted of {self.total}")
        for vm in self.vms:
            permit = self.plugin.permitted(vm.name)
            if vm.has.exceeds(permit):
                self.wrong.append(f"{self.now:.2f} s: {what}: {vm.name} has {vm.has}, of {permit} permitted")
            if vm.agreed.exceeds(vm.has):
                self.wrong.append(f"{self.now:.2f} s: {what}: {vm.name} has {vm.has}, its guest counts on {vm.agreed}")


@dataclass
class ScalingOutcome:
    """How a course ended."""

    calls: int
    struck: list[str]
    wrong: list[str]
    reports: dict[str, ScalingReport | None]
    has: dict[str, Resources]

    @property
    def complaints(self) -> list[str]:
        """What was wrong on the way, and what is not as it should be in the end."""
        complaints = list(self.wrong)
        for name, amounts in EXPECTED.items():
            report = self.reports[name]
            if report is None:
                complaints.append(f"{name} was never seen")
            elif {report.wanted, report.permitted, report.applied, report.observed, self.has[name]} != {amounts}:
                complaints.append(f"{name} has {self.has[name]}, not {amounts}: {report}")
            elif report.reason is not None:
                complaints.append(f"{name} has what it should have, and a reason why not: {report.reason}")
        return [f"{', '.join(self.struck) or 'no fault'}: {complaint}" for complaint in complaints]


EXPECTED = {"a": UNIT * 2, "b": UNIT * 5}
"""What the machines of a course have in the end."""


CALM = Load([(0, 1), (8, 5), (35, 2)]), Load([(0, 1), (20, 5)])
"""One rises and falls, the other rises when the node is full."""


def restless(rng: random.Random, until: float) -> tuple[Load, Load]:
    """Loads that never stay as they are, until they end like those that are calm."""
    ways = []
    for last in (2, 5):
        steps, now = [(0.0, 1.0)], 0.0
        while (now := now + rng.uniform(2, 12)) < until:
            steps.append((now, rng.uniform(0, 7)))
        ways.append(Load([*steps, (until, last)]))
    return ways[0], ways[1]


async def run_scaling_course(
    faults: Sequence[Fault] = (),
    seconds: float = 130.0,
    *,
    loads: tuple[Load, Load] = CALM,
    change: float = CHANGE,
    as_peers: bool = False,
) -> ScalingOutcome:
    """Two machines of one to six units on a node of eight."""
    world = ScalingWorld(UNIT * 8, faults, as_peers, change)
    bounds = ScalingBounds(UNIT, UNIT * 6)
    for name, load in zip("ab", loads, strict=True):
        world.vms.append(Vm(world, name, bounds, load))
    for vm in world.vms:
        vm.begin()
    await asyncio.sleep(seconds)
    ended = [vm.name for vm in world.vms if vm.task is None or vm.task.done()]
    if ended:
        world.wrong.append(f"the scalers of {ended} ended")
    reports = {vm.name: None if vm.scaler is None else vm.scaler.report() for vm in world.vms}
    for vm in world.vms:
        await vm.end()
    for task in list(world.background):
        with suppress(Failed):
            await task
    return ScalingOutcome(world.calls, world.struck, world.wrong, reports, {vm.name: vm.has for vm in world.vms})
