"""The agent's side of the guest monitor protocol: keep one connection to a machine's monitor while the machine runs.

A guest is not trusted (T28). `devalloc_node.net.websocket` limits all that it sends; requests for more memory are
passed on at most twice a second; each request of ours has our own timeout, whatever the guest does; and an unreadable
message ends the connection, never the agent. All machines of a node share one event loop, whose clock is
the only one.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Any, NoReturn, Protocol, TypeVar

from websockets.client import ClientProtocol
from websockets.frames import CloseCode
from websockets.http11 import Response
from websockets.uri import parse_uri

from devalloc.net.rate import SlidingWindowCount
from devalloc.scaling.messages import monitor as wire
from devalloc.scaling.resources import ResourceFlags, Resources
from devalloc.scaling.versions import MONITOR_VERSIONS, MonitorVersion
from devalloc_node.errors import Failed, NodeError, Unknown
from devalloc_node.net.websocket import LIBRARY_LOGGER, WEBSOCKET_LIMITS, WebSocket, WebSocketLimits, loop_ms, one_line

_log = logging.getLogger("devalloc.agent.monitor")
SHOWN = 200
"""Bytes of a guest's own words that are written down."""
_MORE_MEMORY = ResourceFlags(memory=True)
"""What an UpscaleRequest means: the protocol has no way to say what of."""

Reply = TypeVar("Reply", wire.HealthCheck, wire.UpscaleConfirmation, wire.DownscaleResult)


class MonitorListener(Protocol):
    """Callbacks about a machine's monitor. All calls come from the event loop, and must not block it."""

    def monitor_connected(self) -> None:
        """A connection stands. Whatever was known from earlier ones (requests, denials, approvals) is void."""

    def monitor_disconnected(self, why: str) -> None:
        """It has ended, or could not be had. Requests that waited have raised `Unknown` by now. ``why``: for people."""

    def upscale_requested(self, more: ResourceFlags) -> None:
        """The guest wants more."""


@dataclass(frozen=True, slots=True)
class MonitorTimeouts:
    """All in milliseconds."""

    connect: int = 4_000
    """For all of the handshake, up to the version."""
    response: int = 5_000
    health_check: int = 5_000
    """Between health checks, from start to start."""
    unhealthy: int = 30_000
    """The connection is given up when health checks have failed for longer than this."""
    reconnect: int = 5_000
    """From one attempt to the next, at least."""
    upscale_requested: int = 500
    """Requests for more that come sooner after another are dropped. A monitor sends one a second at most."""
    failures: int = 120_000
    """Failed requests are counted over this time."""


@dataclass(frozen=True, slots=True)
class MonitorStatus:
    """How a machine's monitor is, at one instant. Instants are milliseconds of the event loop's clock."""

    connected: bool
    why: str
    """Why it is not connected; empty when it is."""
    since: int
    """Since when it is connected, or is not."""
    last_success: int | None
    """When it last replied to anything; None: never."""
    failures: int
    """Requests, health checks too, that failed in the last `MonitorTimeouts.failures`. Denials do not count."""
    dropped: int
    """Requests for more that came too often, ever."""


class MonitorConnection:
    """The monitor of one machine, as the agent sees it. `run` keeps it connected until it is cancelled."""

    def __init__(
        self,
        machine: str,
        host: str,
        port: int,
        listener: MonitorListener,
        timers: MonitorTimeouts | None = None,
        limits: WebSocketLimits = WEBSOCKET_LIMITS,
    ) -> None:
        """``machine``: what log lines call it. ``host``: the address that its guest has; a name raises ValueError, for
        looking it up would ask others than the guest, and take its time."""
        ip_address(host)
        self._machine = machine
        self._host, self._port = host, port
        self._listener = listener
        self._timers = timers or MonitorTimeouts()
        self._limits = limits
        self._session: _MonitorSession | None = None
        self._passed_on: int | None = None
        self._failures = SlidingWindowCount(self._timers.failures)
        self._status = MonitorStatus(False, "not tried yet", loop_ms(), None, 0, 0)
        self._warned = False

    async def run(self) -> NoReturn:
        """Connect, check, and connect again, until cancelled; then the connection is closed."""
        while True:
            began = loop_ms()
            session = _MonitorSession(self._timers.response, self._wants_more)
            try:
                await self._connect(session)
                await self._watch(session)
            except NodeError as error:
                self._lost(error.message)
            except asyncio.CancelledError:
                session.fail(CloseCode.GOING_AWAY, "the agent ends")
                self._lost("the agent no longer watches it", is_wrong=False)
                raise
            finally:
                await session.gone()
            await asyncio.sleep(max(0, began + self._timers.reconnect - loop_ms()) / 1000)

    async def upscale(self, granted: Resources) -> None:
        """Tell the monitor what the machine has now, in all.

        Raises:
            Failed: it is not connected, or says that it could not.
            Unknown: it does not answer, or the connection ended meanwhile.
        """
        await self._ask(wire.UpscaleNotification(granted), wire.UpscaleConfirmation)

    async def downscale(self, target: Resources) -> wire.DownscaleResult:
        """Ask the monitor whether the machine may be made this small. Not ok is *denied*: nothing was done.

        Raises:
            Failed: it is not connected, or says that it could not.
            Unknown: it does not answer, or the connection ended meanwhile. The guest may be prepared, or not.
        """
        return await self._ask(wire.DownscaleRequest(target), wire.DownscaleResult)

    def status(self) -> MonitorStatus:
        """How it is now."""
        return replace(self._status, failures=self._failures.count(loop_ms()))

    async def _connect(self, session: _MonitorSession) -> None:
        seconds = self._timers.connect / 1000
        try:
            async with asyncio.timeout(seconds):
                await session.dial(self._host, self._port, self._limits)
                await session.agreed
        except TimeoutError:
            session.abort(f"no handshake within {seconds:g} s")
        except OSError as error:
            session.abort(os.strerror(error.errno) if error.errno else str(error))
        if session.ended is not None:
            raise Failed("GuestMonitorUnreachable", self._sentence(session.ended))
        self._session = session
        self._status = replace(self._status, connected=True, why="", since=loop_ms(), last_success=loop_ms())
        # Who reads that it cannot be reached is to read that it can again.
        level = logging.WARNING if self._warned else logging.INFO
        _log.log(level, "%s: connected to the monitor in its guest", self._machine)
        self._warned = False
        self._listener.monitor_connected()

    async def _watch(self, session: _MonitorSession) -> NoReturn:
        """Check that it answers, until it has not done so for too long, or the connection ends."""
        failing: int | None = None
        while True:
            began = loop_ms()
            try:
                await self._ask(wire.HealthCheck(), wire.HealthCheck)
                failing = None
            except NodeError as error:
                failing = loop_ms() if failing is None else failing
                if session.ended is None and loop_ms() - failing > self._timers.unhealthy:
                    session.fail(CloseCode.INTERNAL_ERROR, "health checks fail")
                    why = f"health checks have failed for {(loop_ms() - failing) / 1000:g} s; last error: {error}"
                    raise Failed("GuestMonitorUnhealthy", self._sentence(why)) from None
            await session.until(began + self._timers.health_check)
            if session.ended is not None:
                await asyncio.sleep(0)  # requests that waited raise first, and then the listener is called
                raise Failed("GuestMonitorLost", self._sentence(session.ended))

    async def _ask(self, message: wire.ToMonitor, reply: type[Reply]) -> Reply:
        if self._session is None:
            raise Failed("GuestMonitorNotConnected", self._status.why)
        try:
            answer = await self._session.ask(message, reply)
        except Unknown as error:
            self._failures.add(loop_ms())
            raise Unknown(error.code, self._sentence(error.message)) from None
        except Failed as error:
            self._failures.add(loop_ms())
            raise Failed(error.code, self._sentence(error.message)) from None
        self._status = replace(self._status, last_success=loop_ms())
        return answer

    def _lost(self, why: str, *, is_wrong: bool = True) -> None:
        """``is_wrong``: it was not this agent that ended it."""
        self._session = None
        since = loop_ms() if self._status.connected else self._status.since
        if why != self._status.why:
            _log.log(logging.WARNING if is_wrong else logging.INFO, "%s: %s", self._machine, why)
            self._warned |= is_wrong
        self._status = replace(self._status, connected=False, why=why, since=since)
        self._listener.monitor_disconnected(why)

    def _wants_more(self) -> None:
        now = loop_ms()
        if self._passed_on is not None and now - self._passed_on < self._timers.upscale_requested:
            self._status = replace(self._status, dropped=self._status.dropped + 1)
            return
        self._passed_on = now
        self._listener.upscale_requested(_MORE_MEMORY)

    def _sentence(self, why: str) -> str:
        return f"the monitor in the guest ({self._host} port {self._port}): {why}"


class _MonitorSession:
    """One connection, from its handshake to its end: which requests wait for which replies."""

    def __init__(self, response: int, wants_more: Callable[[], None]) -> None:
        self._response = response
        self._wants_more = wants_more
        self._socket: _OutgoingSocket | None = None
        self._is_agreed = False
        self._next = wire.FIRST_AGENT_ID
        self._waiting: dict[int, tuple[type, asyncio.Future[Any]]] = {}
        self._over = asyncio.Event()
        self.agreed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the handshake is, or the connection."""
        self.ended: str | None = None
        """Why there is no connection any more."""

    async def dial(self, host: str, port: int, limits: WebSocketLimits) -> None:
        """Connect. Raises OSError."""
        socket = self._socket = _OutgoingSocket(host, port, self, limits)
        await asyncio.get_running_loop().create_connection(lambda: socket, host, port)

    async def ask(self, message: wire.ToMonitor, reply: type[Reply]) -> Reply:
        """Send a request and wait for its reply."""
        if self._socket is None or self.ended is not None:
            raise Failed("GuestMonitorLost", self.ended or "not connected")
        id, self._next = self._next, self._next + wire.NEXT_ID
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[id] = (reply, answer)
        self._socket.send(wire.encode_to_monitor(message, id))
        self._socket.expect_reply()
        try:
            async with asyncio.timeout(self._response / 1000):
                return await answer
        except TimeoutError:
            what = f"no reply to a {type(message).__name__} within {self._response / 1000:g} s"
            raise Unknown("GuestMonitorSilent", what) from None
        finally:
            self._waiting.pop(id, None)

    async def until(self, deadline: int) -> None:
        """Wait until then, or until the connection ends."""
        try:
            async with asyncio.timeout_at(deadline / 1000):
                await self._over.wait()
        except TimeoutError:
            pass

    def fail(self, code: int, why: str) -> None:
        """End it, and tell the monitor why."""
        if self._socket is not None:
            self._socket.fail(code, why)
        self.closed(why)

    def abort(self, why: str) -> None:
        """End it without a word."""
        if self._socket is not None:
            self._socket.abort(why)
        self.closed(why)

    async def gone(self) -> None:
        """Wait until the socket is closed."""
        if self._socket is not None:
            await self._socket.gone()

    # What the WebSocket tells

    def opened(self) -> None:
        self._send(wire.encode_offer())

    def closed(self, why: str) -> None:
        if self.ended is not None:
            return
        self.ended = why
        self._over.set()
        if not self.agreed.done():
            self.agreed.set_result(None)
        for _, answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(Unknown("GuestMonitorLost", f"the connection ended before it answered: {why}"))

    def received(self, text: str) -> None:
        try:
            if self._is_agreed:
                self._heard(*wire.decode_to_agent(text))
            else:
                self._agree(wire.decode_choice(text))
        except wire.Undecodable as error:
            _log.info("a monitor sent an unreadable message: %s", error)
            self.fail(CloseCode.INTERNAL_ERROR, "it sent an unreadable message")

    def _agree(self, choice: MonitorVersion | wire.VersionRefusal) -> None:
        if isinstance(choice, wire.VersionRefusal):
            _log.info("a monitor refuses %s: %s", MONITOR_VERSIONS, one_line(choice.error, SHOWN))
            self.fail(CloseCode.NORMAL_CLOSURE, f"it refuses {MONITOR_VERSIONS}")
        elif choice not in MONITOR_VERSIONS:
            self.fail(CloseCode.INTERNAL_ERROR, f"it chose version {choice}, and was offered {MONITOR_VERSIONS}")
        else:
            self._is_agreed = True
            self.agreed.set_result(None)

    def _heard(self, message: wire.ToAgent | wire.Unrecognised, id: int) -> None:
        if isinstance(message, wire.UpscaleRequest):
            self._wants_more()
        elif isinstance(message, wire.Unrecognised):
            self._object(id, f"unknown message type {one_line(message.type, SHOWN)!r}")
        else:
            self._replied(message, id)

    def _replied(self, message: wire.ToAgent, id: int) -> None:
        reply, answer = self._waiting.get(id, (None, None))
        if isinstance(message, wire.InvalidMessage | wire.InternalError):
            if answer is not None and not answer.done():
                _log.info("a monitor reports %s: %s", type(message).__name__, one_line(message.error, SHOWN))
                answer.set_exception(Failed("GuestMonitorFailed", f"it reports {type(message).__name__}"))
        elif reply is None or answer is None or answer.done():
            self._object(id, f"no request waits for a reply with id {id}; it may be too late")
        elif not isinstance(message, reply):
            self._object(id, f"expected a {reply.__name__} as reply")
            answer.set_exception(Failed("GuestMonitorFailed", f"it replies with a {type(message).__name__}"))
        else:
            answer.set_result(message)

    def _object(self, id: int, error: str) -> None:
        self._send(wire.encode_to_monitor(wire.InvalidMessage(error), id))

    def _send(self, text: str) -> None:
        if self._socket is not None:
            self._socket.send(text)


class _OutgoingSocket(WebSocket):
    """The agent's end. No proxy and no redirect is ever followed: the guest could redirect us to another host."""

    def __init__(self, host: str, port: int, session: _MonitorSession, limits: WebSocketLimits) -> None:
        at = f"[{host}]" if ":" in host else host
        uri = parse_uri(f"ws://{at}:{port}{wire.PATH}")
        self._client = ClientProtocol(uri, max_size=limits.message, logger=LIBRARY_LOGGER)
        super().__init__(self._client, session, limits)

    def _begin(self) -> None:
        self._client.send_request(self._client.connect())

    def _greet(self, event: object) -> None:
        if isinstance(event, Response) and self._client.handshake_exc is None:
            self._peer.opened()
