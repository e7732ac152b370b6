"""All of the guest monitor put together, until it is told to end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable

from devalloc.scaling.messages import monitor as wire
from devalloc_node.guest import blocks, cpus, pages
from devalloc_node.guest.cache import ProgramCache
from devalloc_node.guest.gauges import gauges
from devalloc_node.guest.guard import Guard
from devalloc_node.guest.memory import measure_of, memory
from devalloc_node.guest.sessions import Sessions
from devalloc_node.guest.settings import Settings
from devalloc_node.guest.system import System

_SAMPLE = 0.1  # seconds
_PLUGGED = 1.0  # seconds between looks for what was plugged
_log = logging.getLogger("devalloc.guest")


class GuestMonitor:
    """The program. `run` ends when it is cancelled."""

    def __init__(self, settings: Settings, system: System | None = None) -> None:
        """Raises ValueError where what is to be measured is not there, OSError where nothing can be."""
        self._settings = settings
        self._system = system or System(settings.root)
        measure = measure_of(self._system, settings.measure)
        cache = ProgramCache(settings.cache_program, settings.cache_where) if settings.cache_program else None
        self.guard = Guard(measure, memory(self._system).total, cache)
        self.sessions = Sessions(self._handle, self._greeted, settings.allow)
        self._granted_cpus: int | None = None
        self._policy = settings.memory
        self._look = asyncio.Event()
        self._told: set[str] = set()

    async def run(self, listening: Callable[[int, int | None], None] = lambda port, metrics: None) -> None:
        """Until cancelled. ``listening`` is told the ports. Raises OSError where one cannot be had."""
        port = await self.sessions.listen(*self._settings.listen)
        served = None
        try:
            metrics = self._settings.metrics_listen
            served = None if metrics is None else await pages.serve(self._page, *metrics)
            listening(port, None if served is None else served.sockets[0].getsockname()[1])
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch_memory())
                group.create_task(self._watch_plugs())
        finally:
            if served is not None:
                served.close()
            await self.sessions.close()

    def _page(self) -> str:
        return gauges(self._system, self.guard, self.sessions.is_connected)

    async def _handle(self, message: wire.ToMonitor) -> wire.ToAgent | None:
        match message:
            case wire.HealthCheck():
                return wire.HealthCheck()
            case wire.UpscaleNotification(granted):
                self._resize(granted.cpu)
                await self.guard.grew(granted.memory)
                return wire.UpscaleConfirmation()
            case wire.DownscaleRequest(target):
                result = await self.guard.shrink(target.memory, _now())
                if result.ok:
                    self._resize(target.cpu)
                return result
            case _:
                return None

    def _greeted(self) -> None:
        """A new agent does not know what an earlier one said, and it may have said what never came true."""
        try:
            self.guard.has(memory(self._system).total)
        except (OSError, ValueError) as error:
            _log.error("memory cannot be read, and the threshold stays: %s", error)

    def _resize(self, cpu: int) -> None:
        """So many thousandths of a CPU are granted: a part of one needs a whole one."""
        self._granted_cpus = -(-cpu // 1000)
        self._look.set()

    async def _watch_memory(self) -> None:
        while True:
            try:
                self.guard.sample(_now())
                self._found("measure", [])
            except (OSError, ValueError) as error:
                self._found("measure", [f"memory cannot be measured: {error}"])
            if self.sessions.is_connected and self.guard.wants_more(_now()):
                self.sessions.ask_for_more()
            await asyncio.sleep(_SAMPLE)

    async def _watch_plugs(self) -> None:
        if self._settings.cpus == self._settings.memory == "leave":
            return
        missing = self._missing_rights()
        if missing:
            _log.warning("%s", missing)
            return
        if self._policy != "leave":
            self._policy, told = blocks.set_policy(self._system, self._policy, self._settings.movable_ratio)
            for line in told:
                _log.warning("%s", line)
        while True:
            # In a thread: bringing a block online takes the kernel a while, and samples must not wait for it.
            self._found("plug", await asyncio.to_thread(self._bring_online))
            try:
                async with asyncio.timeout(_PLUGGED):
                    await self._look.wait()
            except TimeoutError:
                pass
            self._look.clear()

    def _missing_rights(self) -> str | None:
        if os.geteuid() == 0 or self._settings.root != "/":
            return None
        return (
            "not running as root: plugged CPUs and memory are not brought online here. Run it as root, or let udev "
            "do it and say `--cpus leave --memory leave`"
        )

    def _bring_online(self) -> list[str]:
        failures = []
        try:
            if self._settings.cpus != "leave":
                count = None if self._settings.cpus == "plugged" else self._granted_cpus
                if count is not None or self._settings.cpus == "plugged":
                    failures += cpus.scale(self._system, count)
            if self._policy != "leave" and self._system.has(blocks.FOLDER):
                failures += blocks.bring_online(self._system, self._policy)
        except (OSError, ValueError) as error:
            failures.append(str(error))
        return failures

    def _found(self, about: str, failures: list[str]) -> None:
        """Tell each failure once, until it is over."""
        lines = {f"{about}: {line}" for line in failures}
        for line in sorted(lines - self._told):
            _log.error("%s", line.partition(": ")[2])
        self._told = {line for line in self._told if not line.startswith(f"{about}: ")} | lines


def run(settings: Settings, say: Callable[[str], None]) -> None:
    """Run until SIGTERM or SIGINT. Raises ValueError and OSError as `GuestMonitor` and its `run`."""

    def listening(port: int, metrics: int | None) -> None:
        pages = "" if metrics is None else f", gauges at port {metrics}"
        say(f"the guest monitor listens at {settings.listen[0]} port {port}{pages}")

    async def main() -> None:
        running = asyncio.current_task()
        assert running is not None
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, running.cancel)
        try:
            await GuestMonitor(settings).run(listening)
        except asyncio.CancelledError:
            say("stopped")

    asyncio.run(main())


def _now() -> int:
    """Milliseconds of the event loop's clock."""
    return round(asyncio.get_running_loop().time() * 1000)
