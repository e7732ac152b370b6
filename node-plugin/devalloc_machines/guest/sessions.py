"""The monitor's end of the protocol: agents connect, the newest wins, and its messages are handled one at a time."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from websockets.frames import CloseCode
from websockets.http11 import Request
from websockets.server import ServerProtocol

from devalloc.scaling.messages import monitor as wire
from devalloc.scaling.versions import MONITOR_VERSIONS
from devalloc.settings import Network
from devalloc_machines.guest.settings import is_allowed
from devalloc_node.net.websocket import LIBRARY_LOGGER, WebSocket, WebSocketLimits

Handle = Callable[[wire.ToMonitor], Awaitable[wire.ToAgent | None]]
"""What to do with a message, and what to reply. Raises OSError or ValueError when it did not work."""

LIMITS = WebSocketLimits(bytes_a_second=64 * 1024, bytes_burst=256 * 1024, frames_a_second=200, frames_burst=1_000)
"""An agent that shrinks a machine step by step sends a request for each, as fast as they are answered."""
_HANDSHAKE = 4.0  # seconds
_MOST_WAITING = 16  # messages that wait for an earlier one
_MOST_STRANGERS = 8  # connections that have not said hello
_log = logging.getLogger("devalloc.guest")


class AgentSessions:
    """All connections of agents: one that counts, and some that may be about to."""

    def __init__(self, handle: Handle, greeted: Callable[[], None], allowed: Sequence[Network] = ()) -> None:
        """``greeted`` gets each new agent. ``allowed``: networks from which agents may connect; empty: all."""
        self.handle = handle
        self.greeted = greeted
        self._allowed = allowed
        self._current: _AgentSession | None = None
        self._strangers: list[_Accepted] = []
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> int:
        """Begin to listen; returns the port. Raises OSError."""
        self._server = await asyncio.get_running_loop().create_server(lambda: _Accepted(self), host, port)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """End all connections, and listen no more."""
        if self._server is not None:
            self._server.close()
        ending = [*self._strangers, *([self._current.socket] if self._current else [])]
        for socket in ending:
            socket.fail(CloseCode.GOING_AWAY, "the guest monitor ends")
        for socket in ending:
            await socket.gone()

    @property
    def is_connected(self) -> bool:
        return self._current is not None and self._current.is_agreed

    def ask_for_more(self) -> bool:
        """Ask the agent for more memory, if there is one."""
        return self._current is not None and self._current.ask_for_more()

    # What the sockets tell

    def accepts(self, socket: _Accepted, address: str) -> bool:
        """Whether an agent may come from there. The oldest of too many strangers has to go: one of them may be real."""
        if not is_allowed(self._allowed, address):
            _log.warning("refused a connection from %s, which --allow does not name", address)
            return False
        self._strangers.append(socket)
        if len(self._strangers) > _MOST_STRANGERS:
            self._strangers[0].abort("too many silent connections")
        return True

    def arrived(self, socket: _Accepted, session: _AgentSession) -> None:
        """An agent opened a WebSocket: it takes the place of the one before."""
        self._strangers.remove(socket)
        before, self._current = self._current, session
        if before is not None:
            before.socket.fail(CloseCode.NORMAL_CLOSURE, "a newer connection took this one's place")

    def left(self, socket: _Accepted, session: _AgentSession, why: str) -> None:
        if socket in self._strangers:
            self._strangers.remove(socket)
        if self._current is session:
            self._current = None
            _log.warning("the agent has left: %s", why)


class _AgentSession:
    """One agent's connection, from the WebSocket to its end."""

    def __init__(self, sessions: AgentSessions, socket: _Accepted) -> None:
        self._sessions = sessions
        self.socket = socket
        self.is_agreed = False
        self._next = wire.FIRST_MONITOR_ID
        self._waiting: deque[tuple[wire.ToMonitor, int]] = deque()
        self._work: asyncio.Task[None] | None = None

    def ask_for_more(self) -> bool:
        if not self.is_agreed:
            return False
        self.socket.send(wire.encode_to_agent(wire.UpscaleRequest(), self._next))
        self._next += wire.NEXT_ID
        return True

    def opened(self) -> None:
        self._sessions.arrived(self.socket, self)

    def closed(self, why: str) -> None:
        self._waiting.clear()
        self._sessions.left(self.socket, self, why)

    def received(self, text: str) -> None:
        try:
            if self.is_agreed:
                self._take(*wire.decode_to_monitor(text))
            else:
                self._agree(wire.decode_offer(text))
        except wire.Undecodable as error:
            self.socket.fail(CloseCode.INTERNAL_ERROR, f"it sent an unreadable message: {error}")

    def _agree(self, offer: wire.VersionOffer) -> None:
        version = MONITOR_VERSIONS.latest_shared(offer)
        if version is None:
            why = (
                f"versions {offer.min:d} to {offer.max:d} were offered; this monitor supports {MONITOR_VERSIONS.max:d}"
            )
            self.socket.send(wire.encode_choice(wire.VersionRefusal(why)))
            self.socket.fail(CloseCode.NORMAL_CLOSURE, why)
            return
        self.socket.send(wire.encode_choice(version))
        self.socket.greeted()
        self._sessions.greeted()
        self.is_agreed = True
        _log.info("an agent is connected, protocol %s", version)

    def _take(self, message: wire.ToMonitor | wire.Unrecognised, id: int) -> None:
        if isinstance(message, wire.Unrecognised):
            error = wire.InvalidMessage(f"unknown message type {message.type!r}")
            self.socket.send(wire.encode_to_agent(error, id))
        elif isinstance(message, wire.InvalidMessage | wire.InternalError):
            _log.warning("the agent reports %s about message %d: %s", type(message).__name__, id, message.error)
        elif len(self._waiting) >= _MOST_WAITING:
            self.socket.fail(CloseCode.POLICY_VIOLATION, f"more than {_MOST_WAITING} messages wait for an earlier one")
        else:
            self._waiting.append((message, id))
            if self._work is None:
                self._work = asyncio.get_running_loop().create_task(self._handle_all())

    async def _handle_all(self) -> None:
        while self._waiting:
            message, id = self._waiting.popleft()
            reply: wire.ToAgent | None
            try:
                reply = await self._sessions.handle(message)
            except (OSError, ValueError) as error:
                _log.error("%s: %s", type(message).__name__, error)
                reply = wire.InternalError(str(error))
            if reply is not None:
                self.socket.send(wire.encode_to_agent(reply, id))
        self._work = None


class _Accepted(WebSocket):
    """The monitor's end of a connection."""

    def __init__(self, sessions: AgentSessions) -> None:
        self._server = ServerProtocol(max_size=LIMITS.message, logger=LIBRARY_LOGGER)
        self._sessions = sessions
        self._deadline: asyncio.TimerHandle | None = None
        super().__init__(self._server, _AgentSession(sessions, self), LIMITS)

    def greeted(self) -> None:
        """The handshake is done."""
        if self._deadline is not None:
            self._deadline.cancel()

    def _begin(self) -> None:
        assert self._transport is not None
        peer = self._transport.get_extra_info("peername")
        if peer is None or not self._sessions.accepts(self, str(peer[0])):
            self.abort("not allowed, or gone already")
            return
        why = f"no handshake within {_HANDSHAKE:g} s"
        self._deadline = self._loop.call_later(_HANDSHAKE, self.fail, CloseCode.POLICY_VIOLATION, why)

    def connection_lost(self, exc: Exception | None) -> None:
        self.greeted()
        super().connection_lost(exc)

    def _greet(self, event: object) -> None:
        if not isinstance(event, Request):
            return
        is_ours = event.path == wire.PATH
        server = self._server
        if server.eof_sent:  # the parser has read on, and given up
            self.abort("it sent data after its request that is not WebSocket")
            return
        server.send_response(server.accept(event) if is_ours else server.reject(404, f"It is at {wire.PATH}.\n"))
        self._flush()
        if self.is_open:
            self._peer.opened()
