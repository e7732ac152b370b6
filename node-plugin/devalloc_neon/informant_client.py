"""A machine's informant, as its agent sees it: register, stay registered, and ask it to shrink or report growth.

It is used like `devalloc_machines.agent.guest_monitor_client.MonitorConnection`, with the same listener: an agent is
connected while the informant lets it scale. A guest is not trusted (T28): only its own address is accepted, bodies
and rates are limited, and each request of ours has our own timeout.

An informant knows an agent by the UUID and the address of its server. When either breaks a rule of the other's, or
the informant has forgotten it, the server's life ends, and the agent begins another with a new UUID and a new port.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import NoReturn
from uuid import UUID, uuid4

from devalloc.net.rate import SlidingWindowCount
from devalloc.scaling.messages.monitor import DownscaleResult
from devalloc.scaling.peer_json import RequestError, Unreadable
from devalloc.scaling.resources import ResourceFlags, Resources
from devalloc.scaling.versions import VersionRange
from devalloc_machines.agent.channels import ScaledMachine
from devalloc_machines.agent.guest_monitor_client import MonitorListener, MonitorStatus
from devalloc_neon import informant_messages as wire
from devalloc_neon.informant_messages import INFORMANT_VERSIONS, InformantVersion
from devalloc_node.errors import Failed, NodeError, Unknown
from devalloc_node.net.http import JSON, HttpLimits, HttpRequest, HttpResponse, HttpServer, http_request
from devalloc_node.net.websocket import loop_ms


class SessionPhase(Enum):
    UNCONFIRMED = "not registered yet"
    SUSPENDED = "suspended: the informant has not allowed it to scale yet, or has another agent"
    RUNNING = "running"
    ENDED = "ended"


class RestartDelay(Enum):
    """When to begin another life."""

    AT_ONCE = "at once"
    """The informant has forgotten us, or both do not agree on where we are."""
    LATER = "later"


class InformantSession:
    """One of them. What an informant asks raises RequestError; the reply to everything else is the number given."""

    def __init__(self, agent_id: UUID) -> None:
        self.agent_id = agent_id
        self.phase = SessionPhase.UNCONFIRMED
        self.chosen: wire.InformantDesc | None = None
        self.again = RestartDelay.LATER
        self.why = ""
        """Why it has ended."""
        self.was_asked = False
        """The informant has asked for the id: it knows us, or tried to."""
        self._sequence = 0

    @property
    def version(self) -> InformantVersion | None:
        return None if self.chosen is None else self.chosen.version

    def number(self) -> wire.SequenceStamp:
        """The next number, for a 200 reply or a signed message."""
        self._sequence += 1
        return wire.SequenceStamp(self.agent_id, self._sequence)

    def end(self, why: str, again: RestartDelay) -> None:
        """It is over. Only the first reason counts."""
        if self.phase is not SessionPhase.ENDED:
            self.phase, self.why, self.again = SessionPhase.ENDED, why, again

    def registered(self, chosen: wire.InformantDesc) -> None:
        """The informant has taken us. One that has not asked for the id has not looked where we are."""
        if self.phase is not SessionPhase.UNCONFIRMED:
            return
        if not self.was_asked:
            self.end("it registered us without asking for the id", RestartDelay.LATER)
            return
        self.phase, self.chosen = SessionPhase.SUSPENDED, chosen

    # What the informant asks

    def identify(self) -> wire.SequenceStamp:
        self._check_alive()
        self.was_asked = True
        return self.number()

    def resume(self, expected: UUID) -> wire.SequenceStamp:
        self._check_id(expected)
        if self.phase is not SessionPhase.SUSPENDED:
            raise self._out_of_turn("resumed")
        self.phase = SessionPhase.RUNNING
        return self.number()

    def suspend(self, expected: UUID) -> None:
        """Nothing more is begun from now on. The reply waits for what is under way."""
        self._check_id(expected)
        if self.phase is not SessionPhase.RUNNING:
            raise self._out_of_turn("suspended")
        self.phase = SessionPhase.SUSPENDED

    def try_upscale(self, expected: UUID) -> wire.SequenceStamp:
        self._check_id(expected)
        if self.phase is not SessionPhase.RUNNING:
            raise RequestError(400, f"cannot upscale: {self.phase.value}")
        if self.version is None or not self.version.has_try_upscale:
            raise RequestError(400, f"protocol version {self.version} has no {wire.TRY_UPSCALE.path}")
        return self.number()

    def _check_alive(self) -> None:
        if self.phase is SessionPhase.ENDED:
            raise RequestError(404, "this server has ended")

    def _check_id(self, expected: UUID) -> None:
        self._check_alive()
        if expected != self.agent_id:
            raise RequestError(404, f"this is not {expected}")

    def _out_of_turn(self, action: str) -> RequestError:
        was = self.phase.value
        self.end(f"the informant {action} us while we were: {was}", RestartDelay.AT_ONCE)
        return RequestError(400, f"cannot be {action}: {was}")


def next_start(started: int, ended: int, again: RestartDelay, least: int) -> int:
    """When the next life begins: not sooner than ``least`` milliseconds after the last one began."""
    return max(started + least, ended + (least if again is RestartDelay.LATER else 0))


_log = logging.getLogger("devalloc.agent.informant")
LIMITS = HttpLimits(body=wire.MAX_BODY, connections=8)


@dataclass(frozen=True, slots=True)
class InformantTimeouts:
    """All in milliseconds."""

    register: int = 2_000
    request: int = 1_000
    scaling: int = 2_000
    """For a downscale or an upscale."""
    health_check: int = 5_000
    """Between health checks, from start to start."""
    suspend: int = 4_000
    """How long a suspension waits for what is under way. An informant waits 5 seconds."""
    restart: int = 5_000
    """From one registration to the next, at least."""
    upscale_requested: int = 500
    """Requests for more that come sooner after another are dropped."""
    failures: int = 120_000
    """Failed requests are counted over this time."""


class InformantConnection:
    """The informant of one machine. `run` keeps registered with it until it is cancelled."""

    def __init__(
        self,
        machine: str,
        host: str,
        port: int,
        listener: MonitorListener,
        serve_host: str | None = None,
        timers: InformantTimeouts | None = None,
        limits: HttpLimits = LIMITS,
        versions: VersionRange[InformantVersion] = INFORMANT_VERSIONS,
    ) -> None:
        """``machine``: what log lines call it. ``host``: the address that its guest has, never a name.
        ``serve_host``: our address, which only the guest should reach; None: the one on the way to it."""
        self._machine = machine
        self._host, self._port = host, port
        self._listener = listener
        self._serve_host = serve_host
        self._timers = timers or InformantTimeouts()
        self._limits = limits
        self._versions = versions
        self._life = InformantSession(uuid4())
        self._changed = asyncio.Event()
        self._turn = asyncio.Lock()
        self._registering = asyncio.Event()
        """Set while no registration waits for its reply."""
        self._passed_on: int | None = None
        self._failures = SlidingWindowCount(self._timers.failures)
        self._status = MonitorStatus(False, "not tried yet", loop_ms(), None, 0, 0)

    async def run(self) -> NoReturn:
        """Register, stay registered, and begin again, until cancelled; then unregister."""
        while True:
            began = loop_ms()
            life = self._life = InformantSession(uuid4())
            self._changed.clear()
            self._registering.clear()
            server = HttpServer(partial(self._respond, life), self._limits, allows=self._allows)
            try:
                await self._live(life, server)
            except NodeError as error:
                life.end(error.message, RestartDelay.LATER)
            except OSError as error:
                where = self._serve_host or f"an address that {self._host} reaches"
                life.end(f"cannot listen for it at {where}: {error}", RestartDelay.LATER)
            except asyncio.CancelledError:
                life.end("the agent no longer watches it", RestartDelay.LATER)
                raise
            finally:
                self._registering.set()
                self._note()
                await asyncio.shield(self._leave(life, server))
            start = next_start(began, loop_ms(), life.again, self._timers.restart)
            await asyncio.sleep(max(0, start - loop_ms()) / 1000)

    async def upscale(self, granted: Resources) -> None:
        """Tell the informant what the machine has now, in all. Raises Failed, Unknown: as `downscale`."""
        await self._scale(wire.UPSCALE, granted)

    async def downscale(self, target: Resources) -> DownscaleResult:
        """Ask the informant whether the machine may be made this small. Not ok is *denied*: nothing was done.

        Raises:
            Failed: it does not let us scale, or says that it could not.
            Unknown: it does not answer. The guest may be prepared, or not.
        """
        body = await self._scale(wire.DOWNSCALE, target)
        try:
            return wire.decode_downscale_result(body)
        except Unreadable as error:
            self._failures.add(loop_ms())
            why = self._unreadable(wire.DOWNSCALE, error)
            self._end(why, RestartDelay.LATER)
            raise Unknown("PeerUnreadable", self._sentence(why)) from None

    def status(self) -> MonitorStatus:
        """How it is now. Connected: it lets us scale."""
        return replace(self._status, failures=self._failures.count(loop_ms()))

    @property
    def chosen(self) -> wire.InformantDesc | None:
        """What it chose: the version, and where its metrics are. None: not registered."""
        return self._life.chosen

    # One life

    async def _live(self, life: InformantSession, server: HttpServer) -> None:
        address, port = await server.listen(self._serve_host or local_address_to(self._host))
        at = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        self._desc = wire.AgentDesc(life.agent_id, at, self._versions)
        body = await self._ask(life, wire.REGISTER, wire.encode_agent(self._desc), self._timers.register)
        try:
            life.registered(wire.decode_informant(body, self._versions))
        except Unreadable as error:
            life.end(self._unreadable(wire.REGISTER, error), RestartDelay.LATER)
        self._registering.set()
        while life.phase is not SessionPhase.ENDED:
            self._note()
            began = loop_ms()
            if life.version is not None and life.version.has_health_check:
                async with self._turn:
                    await self._ask(life, wire.HEALTH_CHECK, wire.encode_agent_id(life.agent_id), self._timers.request)
            self._note()
            await self._until(began + self._timers.health_check, life)

    async def _until(self, deadline: int, life: InformantSession) -> None:
        try:
            async with asyncio.timeout_at(deadline / 1000):
                while life.phase is not SessionPhase.ENDED:
                    await self._changed.wait()
                    self._changed.clear()
        except TimeoutError:
            pass

    async def _leave(self, life: InformantSession, server: HttpServer) -> None:
        """Tell the informant that we go, where it may know us, and close the port."""
        if life.was_asked:
            request = HttpRequest(wire.UNREGISTER.method, wire.UNREGISTER.path, wire.encode_agent(self._desc))
            try:
                response = await http_request(
                    self._host, self._port, request, self._timers.request / 1000, self._limits
                )
                if response.status not in (200, 404):
                    _log.info("%s: it answers %d to our unregistration", self._machine, response.status)
            except NodeError as error:
                _log.info("%s: cannot unregister: %s", self._machine, error)
        await server.close()

    # What we ask

    async def _scale(self, endpoint: wire.Endpoint, resources: Resources) -> bytes:
        life = self._life
        async with self._turn:
            version = life.version
            if version is None or life.phase is not SessionPhase.RUNNING:
                raise Failed("InformantNotRunning", self._sentence(life.why or life.phase.value))
            by = life.number() if version.signs_resources else wire.SequenceStamp(life.agent_id, 0)
            body = wire.encode_resources(resources, version, by)
            return await self._ask(life, endpoint, body, self._timers.scaling)

    async def _ask(self, life: InformantSession, endpoint: wire.Endpoint, body: bytes, timeout: int) -> bytes:
        """The body of a 200. Anything else ends the life, and is raised."""
        try:
            request = HttpRequest(endpoint.method, endpoint.path, body)
            response = await http_request(self._host, self._port, request, timeout / 1000, self._limits)
        except NodeError as error:
            self._failures.add(loop_ms())
            if endpoint != wire.REGISTER:
                self._end(str(error), RestartDelay.LATER, life)
            raise
        if response.status != 200:
            self._failures.add(loop_ms())
            # Not its body: a user who names an address would read what another server answers there.
            why = f"it answers {endpoint.path} with {response.status}"
            forgotten = response.status == 404 and endpoint != wire.REGISTER
            self._end(why, RestartDelay.AT_ONCE if forgotten else RestartDelay.LATER, life)
            raise Failed("InformantRefused", self._sentence(why))
        self._status = replace(self._status, last_success=loop_ms())
        return response.body

    def _unreadable(self, endpoint: wire.Endpoint, error: Unreadable) -> str:
        """For those who may read the machine's status; the log of the node has more."""
        _log.info("%s: its answer to %s: %s", self._machine, endpoint.path, error)
        return f"its answer to {endpoint.path} is not that of an informant"

    # What it asks

    def _allows(self, address: str) -> bool:
        return address == self._host

    async def _respond(self, life: InformantSession, request: HttpRequest) -> HttpResponse:
        try:
            by = await self._answer(
                life, wire.find_endpoint(wire.AGENT_ENDPOINTS, request.method, request.path), request.body
            )
        except RequestError as refused:
            return HttpResponse(refused.status, refused.text.encode())
        except Unreadable as error:
            _log.info("%s: %s: %s", self._machine, request.path, error)
            return HttpResponse(400, wire.BAD_JSON.encode())
        finally:
            self._note()
            self._changed.set()
        return HttpResponse(200, wire.encode_stamp(by), JSON)

    async def _answer(self, life: InformantSession, endpoint: wire.Endpoint, body: bytes) -> wire.SequenceStamp:
        if endpoint == wire.ID:
            wire.check_json(body)
            return life.identify()
        if endpoint == wire.TRY_UPSCALE:
            more, expected = wire.decode_try_upscale(body)
            by = life.try_upscale(expected)
            self._wants(more)
            return by
        expected = wire.decode_expected_agent(body)
        # It has answered our registration before it asks this, but what it sent first need not arrive first.
        await self._registering.wait()
        if endpoint == wire.RESUME:
            return life.resume(expected)
        life.suspend(expected)
        self._note()
        try:
            async with asyncio.timeout(self._timers.suspend / 1000), self._turn:
                return life.number()
        except TimeoutError:
            raise RequestError(500, "timed out waiting for the request in progress") from None

    def _wants(self, more: ResourceFlags) -> None:
        now = loop_ms()
        if self._passed_on is not None and now - self._passed_on < self._timers.upscale_requested:
            self._status = replace(self._status, dropped=self._status.dropped + 1)
            return
        self._passed_on = now
        self._listener.upscale_requested(more)

    # Reports

    def _end(self, why: str, again: RestartDelay, life: InformantSession | None = None) -> None:
        (life or self._life).end(why, again)
        self._changed.set()

    def _note(self) -> None:
        """Tell the listener where we are, where that is new."""
        life, status = self._life, self._status
        connected = life.phase is SessionPhase.RUNNING
        why = "" if connected else life.why or life.phase.value
        if connected is status.connected and why == status.why:
            return
        since = status.since if connected is status.connected else loop_ms()
        self._status = replace(status, connected=connected, why=why, since=since)
        if connected:
            self._listener.monitor_connected()
        else:
            _log.log(logging.WARNING if life.why else logging.INFO, "%s: %s", self._machine, why)
            self._listener.monitor_disconnected(why)

    def _sentence(self, why: str) -> str:
        return f"the informant in the guest ({self._host} port {self._port}): {why}"


def informant_channel(
    scaled: ScaledMachine, listener: MonitorListener
) -> tuple[InformantConnection, Callable[[], int]]:
    """Make the channel to a machine's informant, and what tells the port of its metrics: the informant chooses it."""
    informant = InformantConnection(scaled.key, scaled.address, scaled.monitor_port, listener)

    def metrics_port() -> int:
        return scaled.metrics_port if informant.chosen is None else informant.chosen.metrics_port

    return informant, metrics_port


def local_address_to(host: str) -> str:
    """Our address on the way to another one, by the host's routes; nothing is sent. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as door:
        door.connect((host, 9))
        return str(door.getsockname()[0])
