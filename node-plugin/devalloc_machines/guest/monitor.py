"""The guest monitor: all parts put together."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from typing import Protocol

from devalloc.scaling.messages import monitor as wire
from devalloc.scaling.resources import ResourceFlags, Resources
from devalloc_machines.guest import memory, metrics_http, system
from devalloc_machines.guest.memory import MemoryPolicy, ProgramCache, memory_measure, read_memory
from devalloc_machines.guest.metrics_http import gauges
from devalloc_machines.guest.sessions import AgentSessions
from devalloc_machines.guest.settings import MonitorSettings
from devalloc_machines.guest.system import GuestSystem
from devalloc_node.net.websocket import loop_ms

_SAMPLE = 0.1  # seconds
_PLUGGED = 1.0  # seconds between looks for what was plugged
_log = logging.getLogger("devalloc.guest")


class OlderAgents(Protocol):
    """The agents of a protocol from before the guest monitor."""

    @property
    def is_connected(self) -> bool: ...

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Begin to answer; the address. Raises OSError."""

    async def run(self) -> None:
        """Ask agents what they are to be asked, until cancelled."""

    def want(self, more: ResourceFlags) -> None:
        """The guest needs more, soon."""

    async def close(self) -> None:
        """Stop answering."""


class GuestMonitor:
    """The program. `run` ends when it is cancelled."""

    def __init__(
        self,
        settings: MonitorSettings,
        system: GuestSystem | None = None,
        make_informant: Callable[[GuestMonitor, int], OlderAgents] | None = None,
    ) -> None:
        """``make_informant``: of a monitor and the port of its metrics, where the settings have an informant. Raises
        ValueError where what is to be measured is not there, OSError where nothing can be."""
        self.settings = settings
        self._system = system or GuestSystem(settings.root)
        try:
            measure = memory_measure(self._system, settings.measure)
        except ValueError as error:
            raise ValueError(f"--measure: {error}") from None
        cache = ProgramCache(settings.cache_program, settings.cache_where) if settings.cache_program else None
        is_part = settings.measure.startswith("cgroup:")
        whole_guest = (lambda: read_memory(self._system).used) if is_part else None
        self.guard = MemoryPolicy(measure, read_memory(self._system).total, cache, whole_guest)
        self.sessions = AgentSessions(self._handle, self._greeted, settings.allow)
        self.informant: OlderAgents | None = None
        self._make_informant = make_informant
        self._granted_cpus: int | None = None
        self._policy = settings.memory
        self._look = asyncio.Event()
        self._reported: set[str] = set()

    async def run(self, listening: Callable[[int, int | None], None] = lambda port, metrics: None) -> None:
        """Until cancelled. ``listening`` gets the ports. Raises OSError if one is not available."""
        settings = self.settings
        port = await self.sessions.listen(*settings.listen)
        served = None
        try:
            metrics = settings.metrics_listen
            served = None if metrics is None else await metrics_http.serve(self._page, *metrics)
            served_at = None if served is None else served.sockets[0].getsockname()[1]
            if settings.informant is not None and served_at is not None and self._make_informant is not None:
                self.informant = self._make_informant(self, served_at)
                _, at = await self.informant.listen(*settings.informant)
                _log.info("the informant listens at %s port %d", settings.informant[0], at)
            listening(port, served_at)
            async with asyncio.TaskGroup() as group:
                if self.informant is not None:
                    group.create_task(self.informant.run())
                group.create_task(self._watch_memory())
                group.create_task(self._watch_plugs())
        finally:
            if served is not None:
                served.close()
            if self.informant is not None:
                await self.informant.close()
            await self.sessions.close()

    def _page(self) -> str:
        return gauges(self._system, self.guard, self.sessions.is_connected)

    async def _handle(self, message: wire.ToMonitor) -> wire.ToAgent | None:
        match message:
            case wire.HealthCheck():
                return wire.HealthCheck()
            case wire.UpscaleNotification(granted):
                await self.grew(granted)
                return wire.UpscaleConfirmation()
            case wire.DownscaleRequest(target):
                return await self.shrink(target)
            case _:
                return None

    def _greeted(self) -> None:
        """A new agent does not know what an earlier one said, and it may have said what never came true."""
        try:
            self.guard.has(read_memory(self._system).total)
        except (OSError, ValueError) as error:
            _log.error("cannot read memory; the threshold stays: %s", error)

    async def grew(self, resources: Resources) -> None:
        """The machine has so much now. Raises OSError where the cache does not follow."""
        self._resize(resources.cpu)
        await self.guard.grew(resources.memory)

    async def shrink(self, target: Resources) -> wire.DownscaleResult:
        """Whether the machine may have so little. Raises OSError or ValueError if the usage is unknown."""
        result = await self.guard.shrink(target.memory, loop_ms())
        if result.ok:
            self._resize(target.cpu)
        return result

    def _resize(self, cpu: int) -> None:
        """So many thousandths of a CPU are granted: a part of one needs a whole one."""
        self._granted_cpus = -(-cpu // 1000)
        self._look.set()

    async def _watch_memory(self) -> None:
        while True:
            try:
                self.guard.sample(loop_ms())
                self._report_failures("measure", [])
            except (OSError, ValueError) as error:
                self._report_failures("measure", [f"cannot measure memory: {error}"])
            informant = self.informant
            heard = self.sessions.is_connected or (informant is not None and informant.is_connected)
            if heard and self.guard.wants_more(loop_ms()):
                self.sessions.ask_for_more()
                if informant is not None:
                    informant.want(ResourceFlags(memory=True))
            await asyncio.sleep(_SAMPLE)

    async def _watch_plugs(self) -> None:
        if self.settings.cpus == self.settings.memory == "leave":
            return
        missing = self._missing_rights()
        if missing:
            _log.warning("%s", missing)
            return
        if self._policy != "leave":
            self._policy, problems = memory.set_policy(self._system, self._policy, self.settings.movable_ratio)
            for line in problems:
                _log.warning("%s", line)
        while True:
            # In a thread: bringing a block online takes the kernel a while, and samples must not wait for it.
            self._report_failures("plug", await asyncio.to_thread(self._bring_online))
            try:
                async with asyncio.timeout(_PLUGGED):
                    await self._look.wait()
            except TimeoutError:
                pass
            self._look.clear()

    def _missing_rights(self) -> str | None:
        if os.geteuid() == 0 or self.settings.root != "/":
            return None
        return (
            "not running as root: cannot bring plugged CPUs and memory online. Run it as root, or let udev do it and "
            "set `--cpus leave --memory leave`"
        )

    def _bring_online(self) -> list[str]:
        failures = []
        try:
            if self.settings.cpus != "leave":
                count = None if self.settings.cpus == "plugged" else self._granted_cpus
                if count is not None or self.settings.cpus == "plugged":
                    failures += system.scale_cpus(self._system, count)
            if self._policy != "leave" and self._system.has(memory.FOLDER):
                failures += memory.bring_online(self._system, self._policy)
        except (OSError, ValueError) as error:
            failures.append(str(error))
        return failures

    def _report_failures(self, about: str, failures: list[str]) -> None:
        """Tell each failure once, until it is over."""
        lines = {f"{about}: {line}" for line in failures}
        for line in sorted(lines - self._reported):
            _log.error("%s", line.partition(": ")[2])
        self._reported = {line for line in self._reported if not line.startswith(f"{about}: ")} | lines


def run(
    settings: MonitorSettings,
    say: Callable[[str], None],
    make_informant: Callable[[GuestMonitor, int], OlderAgents] | None = None,
) -> None:
    """Run until SIGTERM or SIGINT. ``make_informant``: as of `GuestMonitor`. Raises ValueError and OSError as it and
    its `run`."""

    def listening(port: int, metrics: int | None) -> None:
        pages = "" if metrics is None else f", metrics at port {metrics}"
        say(f"the guest monitor listens at {settings.listen[0]} port {port}{pages}")

    async def main() -> None:
        running = asyncio.current_task()
        assert running is not None
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, running.cancel)
        try:
            await GuestMonitor(settings, make_informant=make_informant).run(listening)
        except asyncio.CancelledError:
            say("stopped")

    asyncio.run(main())
