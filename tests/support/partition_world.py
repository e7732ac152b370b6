"""A machine that follows its guest up and down, in virtual time, with a world in which any part can be cut off from
any other and each can be killed, at any step.

Real are the scaler, its connection to the monitor, the guest monitor with its decisions, the pages of gauges and how
they are asked for, what changes the machine, the agent's end of the permit protocol, and the book of the server of
permits. The network (`tests.support.virtual_network`), the machine (`tests.support.machine_model`), the guest's kernel,
the store, and the process around the server's book are models.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from aiohttp import web

from devalloc.scaling.config import ScalingConfig
from devalloc.scaling.health import ScalingReport
from devalloc.scaling.messages.monitor import DownscaleResult
from devalloc.scaling.messages.permits import PodName, RequestError
from devalloc.scaling.metrics import LfcMetrics, SystemMetrics
from devalloc.scaling.resources import Resources, ScalingBounds
from devalloc.scaling.state import ScalingRules
from devalloc_machines.agent.actuator import MachineActuator, MachineExecutors
from devalloc_machines.agent.channels import Channels
from devalloc_machines.agent.guest_monitor_client import MonitorConnection, MonitorStatus
from devalloc_machines.agent.http_client import HttpMetrics
from devalloc_machines.agent.permit_client import HttpPermits, StaticEndpoint
from devalloc_machines.agent.scaler import Scaler, ScalerTimeouts
from devalloc_machines.guest.monitor import GuestMonitor
from devalloc_machines.guest.settings import MonitorSettings
from devalloc_machines.guest.system import GuestSystem
from devalloc_machines.qemu.records import UNKNOWN_AMOUNTS, MachineAmounts, MachineView, State
from devalloc_node.errors import Denied, Failed, NodeError, Unknown
from tests.support.in_process_permits import InProcessPermits
from tests.support.machine_model import CPU, MIB, MachineModel
from tests.support.peer_rules import PeerRules
from tests.support.virtual_network import Address, Lockstep, NetworkLoop, run, session, waited

GIB = 2**30
UNIT = Resources(1000, GIB)
LEAST, MOST = UNIT, UNIT * 4
TOTAL = UNIT * 8
NAME, RIVAL = "a", "rival"
PERMITS: Address = ("192.0.2.254", 10299)
MONITOR: Address = ("192.0.2.2", 10301)
METRICS: Address = ("192.0.2.2", 9100)
LINKS = {
    "agent and server": (PERMITS,),
    "agent and monitor": (MONITOR,),
    "agent and metrics": (METRICS,),
    "host and guest": (MONITOR, METRICS),
    "agent and machine": (),
    "server and store": (),
    "agent and store": (),
}
"""Pairs of parties, and which links of the network are cut with them."""
PARTIES = ("agent", "server", "monitor", "machine")
LENGTHS = (2.0, 12.0, 60.0)
"""Shorter than timers, longer, and for ever as far as the parts can see."""
MOMENTS = {"ask": (0.0, 0.0025, 0.0055), "change": (0.0, 0.15, 0.9)}
"""Seconds after a step began: before it is heard, before it is done, before its end is heard."""
OTHERS = (0.0, 0.0015)
PATIENCE = 10.0
"""Seconds for which a command of the machine waits."""


@dataclass(frozen=True)
class Cut:
    """Two parties cannot hear each other for so many seconds, from a moment after the n-th step began."""

    link: str
    step: int
    after: float
    seconds: float


@dataclass(frozen=True)
class Kill:
    """A party is killed then, and comes back."""

    party: str
    step: int
    after: float


Fault = Cut | Kill


def at(now: float, course: Sequence[tuple[float, float]]) -> float:
    return [value for since, value in course if now >= since][-1]


LOAD = ((0, 1), (8, 4), (30, 1), (75, 2))
"""Compute units that the guest's processes would like to have."""
IN_USE = ((0, 0.3), (12, 2.6), (38, 0.4), (76, 1.2))
"""GiB of memory that its workload would like to use: for a while it keeps what is no load."""
WANTED = ((0, 1), (16, 7), (70, 4))
"""What the rival wants: more than there is, from when the other has all that it wanted until it wants more again."""
EXPECTED = UNIT * 2


class GuestKernel(GuestSystem):
    """/proc and /sys of the guest."""

    def __init__(self, world: PartitionWorld) -> None:
        super().__init__("/guest")
        self._world = world
        self.used = int(0.3 * GIB)
        self.cache = world.model.memory
        """The size that the workload's cache was last told: what the guest counts on."""
        self.online = 1

    def look(self) -> None:
        """The workload takes what it would like to have, as far as it was told that there is so much."""
        wants = int(at(self._world.now, IN_USE) * GIB)
        self.used = wants if wants < self.used else max(self.used, min(wants, self.cache * 7 // 10))

    def read(self, name: str) -> str:
        if name == "proc/loadavg":
            load = at(self._world.now, LOAD)
            return f"{load:.2f} {load:.2f} {load:.2f} 1/1 1"
        if name == "proc/meminfo":
            self.look()
            total = self._world.model.memory
            # What is in use is not seen in what is available, so that goals do not know of it: the guest refuses.
            return (
                f"MemTotal: {total // 1024} kB\nMemAvailable: {total * 8 // 10 // 1024} kB\nCached: 0 kB\n"
                f"Active(anon): {self.used // 1024} kB\nInactive(anon): 0 kB\n"
            )
        count = self._world.model.vcpus if name.endswith("present") else min(self.online, self._world.model.vcpus)
        return "0" if count == 1 else f"0-{count - 1}"

    def write(self, name: str, value: str) -> None:
        number = int(Path(name).parent.name.removeprefix("cpu"))
        self.online = max(self.online, number + 1) if value == "1" else min(self.online, number)

    def has(self, name: str) -> bool:
        return name.startswith("sys/devices/system/cpu/") and "cpu0" not in name

    async def fit(self, memory: int) -> str:
        """The cache follows what the monitor says."""
        self.cache = memory
        self._world.check(f"the guest hears that it has {memory / GIB:g} GiB")
        return "told"


class Platform:
    """The machine as the plugin has it: one command at a time, each of them in time of the loop."""

    def __init__(self, world: PartitionWorld) -> None:
        self._world = world

    def machine(self, key: str) -> MachineView:
        return waited(self._look(key))

    def scale(self, key: str, what: str, amount: int, due: object, *, owner: str, caller: str) -> None:
        waited(self._scale(what, amount))

    async def _look(self, key: str) -> MachineView:
        world, model = self._world, self._world.model
        await asyncio.sleep(0.001)
        if world.is_cut("agent and machine"):
            await asyncio.sleep(2)
            return MachineView(key, "uid", State.SILENT, id=world.run, message="QEMU does not answer")
        seen = MachineAmounts(**model.seen())
        return MachineView(
            key, "uid", State.RUNNING, id=world.run, applied=world.reported(memory_bytes=model.target), observed=seen
        )

    async def _scale(self, what: str, amount: int) -> None:
        world = self._world
        async with world.changing:
            model, number = world.model, world.run_number
            command = model.command(what, amount, PATIENCE)
            await self._heard(number)
            try:
                for seconds in command:
                    world.check(f"a change of {what} is under way")
                    await asyncio.sleep(seconds)
                    await self._heard(number)
            finally:
                world.check(f"a change of {what} ended")
            world.applied = world.reported(cpu_milli=model.cpu_milli, vcpus=model.vcpus)

    async def _heard(self, number: int) -> None:
        """A question of QMP and its answer. Raises Unknown, Failed."""
        began = self._world.now
        while self._world.is_cut("agent and machine"):
            if self._world.now - began >= PATIENCE:
                raise Unknown("MonitorSilent", "QEMU does not answer")
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.005)
        if number != self._world.run_number:
            raise Failed("MachineEnded", "it was started anew")


class StoreAndServer:
    """The server of permits: its book in a process that answers over the network, and the store behind it."""

    def __init__(self, world: PartitionWorld) -> None:
        self._world = world
        self.book = InProcessPermits(TOTAL, UNIT)
        self._one = asyncio.Lock()

    async def begin(self) -> None:
        loop = asyncio.get_running_loop()
        self._one = asyncio.Lock()
        await loop.create_server(web.Server(self._respond, access_log=None), *PERMITS)

    async def kill(self) -> None:
        self._world.network.kill(PERMITS)
        self._one = asyncio.Lock()
        self.book.restart()
        await asyncio.sleep(4)
        await self.begin()

    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        body, one = await request.read(), self._one
        async with one:
            await asyncio.sleep(0.002)
            if one is not self._one:
                raise ConnectionResetError  # it was killed meanwhile
            if self._world.is_cut("server and store"):
                self.book.restart()  # all is read again
                return web.Response(status=503, body=b"permits cannot be written now; ask again")
            try:
                answer = self.book.respond(body)
            except RequestError as refused:
                return web.Response(status=refused.status, body=refused.text.encode())
            self._world.check("a permit is written")
            await asyncio.sleep(0.002)
        return web.Response(body=answer, content_type="application/json")


@dataclass
class PartitionWorld:
    """``wrong`` collects what must never be."""

    loop: NetworkLoop
    faults: Sequence[Fault] = ()
    as_peers: bool = False
    steps: int = 0
    wrong: list[str] = field(default_factory=list)
    struck: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    run_number: int = 0
    applied: MachineAmounts = UNKNOWN_AMOUNTS
    denied: int = 0
    """How often the guest refused."""

    def __post_init__(self) -> None:
        self.network = self.loop.network
        self._began = self.loop.time()
        self._cuts: dict[str, float] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self.changing = asyncio.Lock()
        self.model = self._new_machine()
        self.server = StoreAndServer(self)
        self.book = self.server.book
        self.kernel = GuestKernel(self)
        self.scaler: Scaler | None = None
        self.monitor: GuestMonitor | None = None
        self._http: Any = None
        self._agent: asyncio.Task[None] | None = None
        self._monitor_task: asyncio.Task[None] | None = None
        self._reborn: asyncio.Lock = asyncio.Lock()
        self._unwritten = False

    @property
    def now(self) -> float:
        return self.loop.time() - self._began

    @property
    def has(self) -> Resources:
        return Resources(self.model.cpu_milli, self.model.memory)

    @property
    def run(self) -> str:
        """Which run of the machine it is."""
        return f"run-{self.run_number}"

    def reported(self, **amounts: Any) -> MachineAmounts:
        own = {name: getattr(self.applied, name) for name in ("cpu_milli", "vcpus", "memory_bytes")}
        return MachineAmounts(**{**own, **amounts})

    def _new_machine(self) -> MachineModel:
        self.applied = MachineAmounts(LEAST.cpu, 1, LEAST.memory)
        return MachineModel(
            lambda: self.now,
            LEAST.memory,
            MOST.memory - LEAST.memory,
            1,
            MOST.cpu // CPU,
            block=128 * MIB,
            emulated=False,
        )

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- who can be killed -------------------------------------------------------------------------------------------

    def begin_agent(self) -> None:
        """The process."""
        self._http, self._executors, self._threads = session(), MachineExecutors(1), Lockstep()
        self._executors._looks = self._executors._changes = self._executors._slow = self._threads
        self._begin_scaler()

    def _begin_scaler(self) -> None:
        waits = ScalerTimeouts(look_interval=10_000)
        config = ScalingConfig(load_average_fraction_target=1.0)
        rules = (PeerRules if self.as_peers else ScalingRules)(UNIT)
        rng = random.Random(1)
        self.scaler = Scaler(NAME, rules, ScalingBounds(LEAST, MOST), config, self._channels, waits, rng)
        self._agent = self.spawn(self._run_scaler(self.scaler))

    async def _run_scaler(self, scaler: Scaler) -> None:
        try:
            await scaler.run()
        except Exception as error:
            self.wrong.append(f"{self.now:.3f} s: the scaler ended: {error!r}")

    async def end_agent(self) -> None:
        self._threads.kill()
        await self._end_scaler()
        await self._http.close()

    async def _end_scaler(self) -> None:
        assert self._agent is not None
        self._agent.cancel()
        with suppress(asyncio.CancelledError):
            await self._agent

    def _channels(self, scaler: Scaler) -> Channels:
        return Channels(
            _Counted(
                self,
                "ask",
                HttpPermits(
                    self._http, StaticEndpoint(f"http://{PERMITS[0]}:{PERMITS[1]}/"), PodName("default", NAME), UNIT
                ),
            ),
            _Counted(self, "change", MachineActuator(Platform(self), NAME, "uid", self.run, self._executors)),
            _Counted(self, "guest", MonitorConnection(NAME, *MONITOR, scaler)),
            _Counted(self, "metrics", HttpMetrics(self._http, METRICS[0])),
        )

    async def _kill_agent(self) -> None:
        async with self._reborn:
            await self.end_agent()
            await asyncio.sleep(2)
            self.begin_agent()

    def begin_monitor(self) -> None:
        settings = MonitorSettings(MONITOR, METRICS, None, (), "system", "granted", "leave", 8, None, "disk", "/guest")
        self.monitor = GuestMonitor(settings, self.kernel)
        self.monitor.guard._cache = self.kernel  # a real one is a program
        self._monitor_task = self.spawn(self.monitor.run())

    def end_monitor(self) -> None:
        for address in (MONITOR, METRICS):
            self.network.kill(address)
        if self._monitor_task is not None:
            self._monitor_task.cancel()
            self._monitor_task = None

    async def _kill_monitor(self) -> None:
        self.end_monitor()
        await asyncio.sleep(3)
        if self._monitor_task is None:
            self.begin_monitor()

    async def _kill_machine(self) -> None:
        """The node has it run again, and begins another scaler for that run, before any part hears of it."""
        async with self._reborn:
            self.run_number += 1
            self.end_monitor()
            self.model = self._new_machine()
            self.kernel = GuestKernel(self)
            await self._end_scaler()
            self.check("it was started anew")
            self._begin_scaler()
        await asyncio.sleep(3)
        if self._monitor_task is None:
            self.begin_monitor()

    # -- what goes wrong ---------------------------------------------------------------------------------------------

    def is_cut(self, link: str) -> bool:
        return self.now < self._cuts.get(link, 0.0)

    def step(self, kind: str) -> None:
        """Something is about to be asked of another part."""
        number, self.steps = self.steps, self.steps + 1
        self.log.append(f"{number}: {kind}, {self.now:.3f} s")
        for fault in self.faults:
            if fault.step == number:
                self.struck.append(f"{fault} ({kind}, {self.now:.3f} s)")
                self.loop.call_later(fault.after, self._strike, fault) if fault.after else self._strike(fault)

    def _strike(self, fault: Fault) -> None:
        if isinstance(fault, Kill):
            kill = {"agent": self._kill_agent, "server": self.server.kill, "monitor": self._kill_monitor}
            self.spawn(kill.get(fault.party, self._kill_machine)())
            return
        self._cuts[fault.link] = self.now + fault.seconds
        for address in LINKS[fault.link]:
            self.network.cut(address)
            self.loop.call_later(fault.seconds, self.network.mend, address)

    # -- what goes on ------------------------------------------------------------------------------------------------

    async def observe(self) -> None:
        """The node writes down what its machine has, once a second."""
        reported: tuple[Resources, int] | None = None
        while True:
            await asyncio.sleep(1)
            seen = (self.has.most(Resources(0, self.model.target)), self.run_number)
            if seen != reported and not self.is_cut("agent and store"):
                self.book.observe(NAME, seen[0], self.run)
                reported = seen

    async def compete(self) -> None:
        """The rival asks for what it wants every second, and has at once what it is permitted."""
        async with session() as http:
            permits = HttpPermits(
                http, StaticEndpoint(f"http://{PERMITS[0]}:{PERMITS[1]}/"), PodName("default", RIVAL), UNIT
            )
            last: Resources | None = None
            while True:
                with suppress(NodeError, TimeoutError):
                    wants = UNIT * int(at(self.now, WANTED))
                    async with asyncio.timeout(2):
                        last = await permits.ask(last, wants, None)
                    self.book.observe(RIVAL, last, "run-0")
                    self.check("the rival has got more")
                await asyncio.sleep(1)

    async def watch(self) -> None:
        while True:
            self.check("time goes by")
            await asyncio.sleep(0.05)

    def check(self, what: str) -> None:
        """What must hold at every instant."""
        permits = {name: self.book.recorded(name) for name in (NAME, RIVAL)}
        own, its = permits[NAME] or self.has, permits[RIVAL] or LEAST
        if (own + its).exceeds(TOTAL):
            self._wrong(what, f"{own} and {its} are permitted of {TOTAL}")
        if (self.has + its).exceeds(TOTAL):
            self._wrong(what, f"{self.has} is had and {its} is permitted of {TOTAL}")
        if self.has.exceeds(self.book.permitted(NAME)):
            self._wrong(what, f"the machine has {self.has}, of {self.book.permitted(NAME)} permitted")
        if self.kernel.cache > self.model.memory:
            self._wrong(what, f"the guest counts on {self.kernel.cache}, and has {self.model.memory}")
        if self.kernel.used > self.model.memory - 100 * MIB:
            self._wrong(what, f"the guest uses {self.kernel.used}, of {self.model.memory}")

    def _wrong(self, what: str, why: str) -> None:
        if len(self.wrong) < 5:
            self.wrong.append(f"{self.now:.3f} s: {what}: {why}")


class _Counted:
    """A channel whose requests are steps."""

    def __init__(self, world: PartitionWorld, kind: str, channel: Any) -> None:
        self._world, self._kind, self._channel = world, kind, channel

    async def ask(self, last: Resources | None, target: Resources, metrics: SystemMetrics | None) -> Resources:
        self._world.step("ask")
        permit: Resources = await self._channel.ask(last, target, metrics)
        return permit

    async def change(self, target: Resources) -> Resources:
        self._world.step("change")
        reached: Resources = await self._channel.change(target)
        return reached

    async def look(self) -> Resources:
        self._world.step("look")
        seen: Resources = await self._channel.look()
        return seen

    async def run(self) -> NoReturn:
        await self._channel.run()
        raise AssertionError

    async def upscale(self, granted: Resources) -> None:
        self._world.step("upscale")
        await self._channel.upscale(granted)

    async def downscale(self, target: Resources) -> DownscaleResult:
        self._world.step("downscale")
        result: DownscaleResult = await self._channel.downscale(target)
        self._world.denied += not result.ok
        return result

    def status(self) -> MonitorStatus:
        status: MonitorStatus = self._channel.status()
        return status

    async def system(self) -> SystemMetrics:
        self._world.step("metrics")
        metrics: SystemMetrics = await self._channel.system()
        return metrics

    async def lfc(self) -> LfcMetrics:
        raise Denied("NoMetrics", "there is no cache")


@dataclass
class PartitionOutcome:
    """How a course ended."""

    steps: list[str]
    struck: list[str]
    wrong: list[str]
    report: ScalingReport | None
    has: Resources
    permit: Resources | None
    cache: int
    denied: int

    @property
    def complaints(self) -> list[str]:
        """What was wrong at any time, and what is not as it should be at the end."""
        complaints = list(self.wrong)
        if (self.has, self.permit, self.cache) != (EXPECTED, EXPECTED, EXPECTED.memory):
            complaints.append(
                f"at the end it has {self.has}, {self.permit} permitted, its guest counts on {self.cache}"
            )
        if self.report is None or self.report.reason is not None:
            complaints.append(f"at the end: {self.report}")
        return [f"{', '.join(self.struck)}: {complaint}" for complaint in complaints]


UNTIL = 64.0
"""Seconds of the course, in which it is up and down again."""
SECONDS = 100.0
"""Of a course without faults; with one, as much longer as that lasts."""


def run_course(*faults: Fault, seconds: float = SECONDS, as_peers: bool = False) -> PartitionOutcome:
    """One to four units and down again beside a rival that takes what is free, on a node of eight; then to two."""
    longest = max((fault.seconds for fault in faults if isinstance(fault, Cut)), default=0.0)

    async def main(loop: NetworkLoop) -> PartitionOutcome:
        world = PartitionWorld(loop, faults, as_peers)
        for name in (NAME, RIVAL):
            world.book.admit(name, ScalingBounds(LEAST, TOTAL))
        await world.server.begin()
        world.begin_monitor()
        world.begin_agent()
        for work in (world.observe(), world.compete(), world.watch()):
            world.spawn(work)
        await asyncio.sleep(seconds + longest)
        assert world.scaler is not None
        outcome = PartitionOutcome(
            world.log, world.struck, world.wrong, world.scaler.report(), world.has, world.book.recorded(NAME),
            world.kernel.cache, world.denied,
        )  # fmt: skip
        await world.end_agent()
        for task in list(world._tasks):
            task.cancel()
        await asyncio.gather(*world._tasks, return_exceptions=True)
        return outcome

    return run(main)


def points(steps: Sequence[str], until: float = UNTIL) -> list[Fault]:
    """Each pair cut for each length, and each party killed, at each moment of each step up to a time of the course."""
    faults: list[Fault] = []
    for line in steps:
        number, _, rest = line.partition(": ")
        kind, _, when = rest.partition(", ")
        if float(when.removesuffix(" s")) > until:
            break
        for after in MOMENTS.get(kind, OTHERS):
            faults += [Cut(link, int(number), after, seconds) for link in LINKS for seconds in LENGTHS]
            faults += [Kill(party, int(number), after) for party in PARTIES]
    return faults
