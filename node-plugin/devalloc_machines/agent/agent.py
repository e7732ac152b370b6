"""Run one scaler for each scaled machine of this node, in one event loop. A failure of one does not reach another. A
debug server shows their state to people on this host (T28, T29).
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from devalloc.scaling.config import ScalingConfig
from devalloc.scaling.health import ScalingReport
from devalloc.scaling.resources import ScalingBounds
from devalloc.scaling.state import ScalingRules
from devalloc_machines.agent.channels import Channels
from devalloc_machines.agent.metrics import ScalingMetrics
from devalloc_machines.agent.scaler import Scaler, ScalerTimeouts
from devalloc_node.errors import NodeError
from devalloc_node.net.http import JSON, HttpLimits, HttpRequest, HttpResponse, HttpServer, RequestHandler
from devalloc_node.net.unix_sockets import listening_socket

_log = logging.getLogger("devalloc.agent")
RESTART_SECONDS = (5.0, 10.0)
"""After a fault of ours a machine's scaler is begun anew, at a random instant so that not all come at once."""


@dataclass(frozen=True, slots=True)
class ScalingTarget:
    """A machine that is to be scaled."""

    key: str
    """``namespace/name``."""
    run: str
    """Which run of it: with another one nothing counts that was known of the last."""
    bounds: ScalingBounds
    config: ScalingConfig
    channels: Callable[[Scaler], Channels]
    """Called once for each scaler. It is compared with nothing: what changes in it needs another ``run``."""


class Agent:
    """Created and used in one event loop; other threads must schedule their calls there."""

    def __init__(
        self,
        rules: ScalingRules,
        waits: ScalerTimeouts | None = None,
        rng: random.Random | None = None,
        meter: ScalingMetrics | None = None,
    ) -> None:
        self._meter = meter
        self._rules, self._waits = rules, waits or ScalerTimeouts()
        self._rng = rng or random.Random()
        self._machines: dict[str, ScalingTarget] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: dict[str, set[asyncio.Task[None]]] = {}
        """Those that were told to end: a machine never has two scalers at work."""
        self._scalers: dict[str, Scaler] = {}

    @property
    def keys(self) -> list[str]:
        """The machines that are scaled, in order."""
        return sorted(self._machines)

    async def scale(self, machine: ScalingTarget) -> None:
        """Scale it from now on; what is new of one that is scaled already is taken over, in its state."""
        current = self._machines.get(machine.key)
        if current is not None and current.run != machine.run:
            self.drop(machine.key)
            current = None
        if current is None:
            self._machines[machine.key] = machine
            before = frozenset(self._ending.get(machine.key, ()))
            task = asyncio.create_task(self._keep(machine.key, before), name=f"scaler {machine.key}")
            self._tasks[machine.key] = task
            return
        self._machines[machine.key] = replace(current, bounds=machine.bounds, config=machine.config)
        scaler = self._scalers.get(machine.key)
        if scaler is not None and (current.bounds, current.config) != (machine.bounds, machine.config):
            scaler.bounded(machine.bounds, machine.config)

    def drop(self, key: str) -> None:
        """Leave it as it is, and wait for nothing: a guest may take its time to let a connection go. A change of it
        that is under way goes on. Its next scaler begins when this one has ended."""
        self._machines.pop(key, None)
        self._scalers.pop(key, None)
        if (task := self._tasks.pop(key, None)) is not None:
            task.cancel()
            self._ending.setdefault(key, set()).add(task)
            task.add_done_callback(lambda ended: self._ended(key, ended))

    async def leave(self, key: str) -> None:
        """The same, and wait until its scaler has ended."""
        self.drop(key)
        if ending := self._ending.get(key):
            await asyncio.wait(frozenset(ending))

    async def close(self) -> None:
        """Leave all of them as they are."""
        for key in self.keys:
            self.drop(key)
        if ending := [task for tasks in self._ending.values() for task in tasks]:
            await asyncio.wait(ending)

    def _ended(self, key: str, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s: the scaler failed while it ended", key, exc_info=error)
        self._ending[key].discard(task)
        if not self._ending[key]:
            del self._ending[key]

    def report(self, key: str) -> ScalingReport | None:
        """How far a machine is; None where it is not scaled, or has not been seen yet."""
        scaler = self._scalers.get(key)
        return None if scaler is None else scaler.report()

    def dump(self, key: str) -> dict[str, Any] | None:
        """All that is known of a machine, as JSON; None of one whose scaler is about to begin anew."""
        scaler = self._scalers.get(key)
        return None if scaler is None else scaler.dump()

    async def _keep(self, key: str, before: frozenset[asyncio.Task[None]]) -> None:
        if before:
            await asyncio.wait(before)
        while True:
            try:
                await self._scaler(key).run()
            except Exception:
                _log.exception("%s: the scaler ended; it restarts in a few seconds", key)
            self._scalers.pop(key, None)
            await asyncio.sleep(self._rng.uniform(*RESTART_SECONDS))

    def _scaler(self, key: str) -> Scaler:
        machine = self._machines[key]
        self._scalers[key] = scaler = Scaler(
            key,
            self._rules,
            machine.bounds,
            machine.config,
            machine.channels,
            self._waits,
            self._rng,
            self._meter,
        )
        return scaler


LIMITS = HttpLimits(body=0, connections=4, requests_a_second=1, requests_burst=4)
"""All of 500 machines take a tenth of a second."""
HOST = "127.0.0.1"
AGAIN_SECONDS = 30.0
"""If another process has the port, the server retries. Machines do not wait for that."""


class WakeableRounds:
    """Rounds in an event loop, one after the other, that callers in any thread can bring forward."""

    def __init__(self, what: str, seconds: float) -> None:
        """``what``: what each round reconciles, for the log. ``seconds``: the longest pause between two."""
        self._what, self._seconds = what, seconds
        self._wake: Callable[[], object] = lambda: None

    def wake(self) -> None:
        """Begin the next round at once. From any thread."""
        with suppress(RuntimeError):  # the loop has ended
            self._wake()

    async def run(self, stop: threading.Event, act: Callable[[], Awaitable[None]]) -> None:
        """``act`` until ``stop`` is set, which is looked at after each pause. What it raises is logged."""
        news = asyncio.Event()
        self._wake = partial(asyncio.get_running_loop().call_soon_threadsafe, news.set)
        while not stop.is_set():
            try:
                await act()
            except Exception:
                _log.exception("cannot reconcile the %s; trying again", self._what)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds):
                    await news.wait()
            news.clear()


@asynccontextmanager
async def agent_dump_served(agent: Agent, at: Path | int | None) -> AsyncIterator[None]:
    """While inside, all that the agent knows can be had with ``GET /``."""
    async with page_served(lambda request: _respond(agent, request), at, "the agent's state", "--dump-port"):
        yield


@asynccontextmanager
async def page_served(respond: RequestHandler, at: Path | int | None, what: str, option: str) -> AsyncIterator[None]:
    """While inside, serve it at a unix socket of this user's, or at a port of loopback. None: nowhere.

    If another process has the port, the server retries, and logs that once. ``option``: the option that sets the port.
    """
    if at is None:
        yield
        return
    task = asyncio.create_task(_serve(respond, at, what, option), name="dump")
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _serve(respond: RequestHandler, at: Path | int, what: str, option: str) -> None:
    has_warned = False
    while True:
        server = HttpServer(respond, LIMITS, for_people=True)
        try:
            with ExitStack() as stack:
                if isinstance(at, Path):
                    server.take(stack.enter_context(listening_socket(at, LIMITS.connections))[0])
                else:
                    await server.listen(HOST, at)
                await asyncio.Event().wait()
        except (OSError, NodeError) as error:
            where = f"at {at}" if isinstance(at, Path) else f"at {HOST} port {at} ({option})"
            if not has_warned:
                _log.warning("cannot serve %s %s: %s", what, where, error)
            has_warned = True
        finally:
            await server.close()
        await asyncio.sleep(AGAIN_SECONDS)


async def _respond(agent: Agent, request: HttpRequest) -> HttpResponse:
    """One machine after the other, so that those of a large node do not wait until all are written."""
    if request.path != "/":
        return HttpResponse(404, b"the agent's state is at /")
    if request.method not in ("GET", "HEAD"):
        return HttpResponse(405, b"GET it")
    parts = []
    for key in agent.keys:
        parts.append(f"{json.dumps(key)}: {json.dumps(agent.dump(key))}")
        await asyncio.sleep(0)
    return HttpResponse(200, ("{\n" + ",\n".join(parts) + "\n}\n").encode(), JSON)
