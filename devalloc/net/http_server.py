"""An HTTP server for untrusted clients: connections, requests and bodies are bounded in number, size and time, and each
source address has a share of the connections.

aiohttp reads and writes the protocol; what stands in front of it here is what it has no settings for: how long a
request may take to come in, and how many connections there may be.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import resource
import select
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from typing import cast

from aiohttp import ClientError, web
from aiohttp.http_exceptions import BadHttpMessage

from devalloc.net.connection_shares import ConnectionShares, source_of
from devalloc.net.localhost import MISDIRECTED, MISDIRECTED_MESSAGE, is_local_host_header
from devalloc.settings import Network

log = logging.getLogger(__name__)
_quiet = logging.getLogger(f"{__name__}.protocol")
_quiet.setLevel(logging.CRITICAL)  # aiohttp tells of each malformed request with a traceback

JSON = "application/json"
PLAIN = "text/plain; charset=utf-8"
CLOSE_SECONDS = 1.0
"""Seconds for which an unwanted body is read on, so that its sender can read the answer."""
MAX_LINE = 4096
MAX_HEADER = 4096
"""Bytes of one header's value. How many there can be is aiohttp's own bound."""
CLIENT_SECONDS = 60.0
"""The log has at most one line in this time about clients of one kind."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """What is answered."""

    status: int
    body: bytes
    type: str = PLAIN
    headers: Mapping[str, str] = field(default_factory=dict)
    """More of them."""


RequestHandler = Callable[[web.BaseRequest], Awaitable[HttpResponse]]


def is_within(address: str, networks: Sequence[Network]) -> bool:
    """Whether a client's address is in one of the networks. An IPv4 address counts also if IPv6 spells it."""
    try:
        client = ip_address(address)
    except ValueError:
        return False
    if isinstance(client, IPv6Address) and client.ipv4_mapped is not None:
        client = client.ipv4_mapped
    return any(client.version == network.version and client in network for network in networks)


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """How much of a door a stranger can have. Seconds."""

    connections: int = 1024
    """Of all addresses together. One address can have three quarters of them, so that others always get in."""
    request_seconds: float = 5.0
    idle_seconds: float = 75.0


class HttpServer:
    """A port, and all who came through it."""

    def __init__(
        self,
        respond: RequestHandler,
        bounds: ServerLimits,
        *,
        token: str | None = None,
        for_people: bool = False,
        refused: Callable[[str, str], None] = lambda reason, address: None,
        networks: Sequence[Network] | None = None,
        plain_http: Callable[[str], None] = lambda address: None,
    ) -> None:
        """``for_people``: it is for people of this host, one of whom may have a browser, so that only requests that
        name this host are answered. ``refused`` is called for each connection that is cut, with the reason as a word
        and the client's address. ``networks``: connections from other addresses are cut before a byte is read; None:
        all may connect. ``plain_http`` is called with the address of a client that speaks plain HTTP where TLS is
        served."""
        self.bounds = bounds
        self.shares: ConnectionShares[_ConnectionGuard] = ConnectionShares(
            lambda: min(self.bounds.connections, _max_connections()), lambda guard: guard.busy
        )
        self.refused = refused
        self.networks = networks
        self.plain_http = plain_http
        self._respond = respond
        self._is_local = for_people
        self._token = None if token is None else token.encode()
        self._guards: dict[asyncio.BaseProtocol, _ConnectionGuard] = {}
        self._http = web.Server(
            self._handle,
            logger=_quiet,
            access_log=None,
            keepalive_timeout=bounds.idle_seconds,
            max_line_size=MAX_LINE,
            max_field_size=MAX_HEADER,
            lingering_time=CLOSE_SECONDS,
            read_bufsize=2**14,
            auto_decompress=False,
        )
        self.tls: ssl.SSLContext | None = None
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> tuple[str, int]:
        """Open it; where it is. Raises OSError."""
        # Guards begin TLS themselves: they are counted from the first byte on.
        self.tls = tls
        self._server = await asyncio.get_running_loop().create_server(self._guard, host, port, backlog=512)
        address = self._server.sockets[0].getsockname()
        return address[0], address[1]

    async def close(self) -> None:
        """No more connections, and none left after those who are being answered had a moment."""
        if self._server is not None:
            self._server.close()
        await self._http.shutdown(1.0)
        for guard in [guard for guards in self.shares.open.values() for guard in guards]:
            guard.cut()
        if self._server is not None:
            await self._server.wait_closed()

    def _guard(self) -> asyncio.Protocol:
        inner = self._http()
        return _ConnectionGuard(self, cast("asyncio.Protocol", inner))

    def admit(self, guard: _ConnectionGuard) -> None:
        """It is open."""
        self.shares.admit(guard.source, guard)
        self._guards[guard.inner] = guard

    def forget(self, guard: _ConnectionGuard) -> None:
        """It is closed."""
        self.shares.forget(guard.source, guard)
        self._guards.pop(guard.inner, None)

    def make_room(self, source: str) -> bool:
        """Whether one more may come in from an address. If there are too many, another one goes for it."""
        if self.shares.has_room(source):
            return True
        self.refused("too many", source)
        idle = self.shares.displaced_by(source)
        if idle is None:
            return False
        idle.cut()
        return True

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        guard = self._guards.get(request.protocol)
        if guard is not None:
            guard.begin()
        try:
            response = await self._answered(request)
        finally:
            if guard is not None:
                guard.end()
        headers = {**response.headers, "Content-Type": response.type, "Server": "devalloc"}
        return web.Response(status=response.status, body=response.body, headers=headers)

    async def _answered(self, request: web.BaseRequest) -> HttpResponse:
        if self._is_local and not is_local_host_header(request.headers.get("Host")):
            return HttpResponse(MISDIRECTED, MISDIRECTED_MESSAGE)
        if not self._knows(request):
            return HttpResponse(401, b"a token is needed: Authorization: Bearer ...")
        try:
            return await self._respond(request)
        except (ConnectionError, ClientError, BadHttpMessage):
            return HttpResponse(400, b"the body cannot be read")
        except TimeoutError:
            return HttpResponse(408, b"the request did not come in time")
        except Exception:
            log.exception("could not answer a request")
            return HttpResponse(500, b"internal error")

    def _knows(self, request: web.BaseRequest) -> bool:
        if self._token is None:
            return True
        sent = (bearer_token(request) or "").encode("utf-8", "surrogateescape")  # whatever bytes they were
        return hmac.compare_digest(sent, self._token)


def bearer_token(request: web.BaseRequest) -> str | None:
    """The token that was sent along."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


async def read_body(request: web.BaseRequest, most: int, seconds: float) -> bytes:
    """The first ``most`` bytes of a body. Raises TimeoutError; what is cut off in the middle is what there is."""
    parts, size = [], 0
    if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")  # else it is sent after a while, or never
    async with asyncio.timeout(seconds):
        while size < most:
            part = await request.content.read(most - size)
            if not part:
                break
            parts.append(part)
            size += len(part)
    return b"".join(parts)


def is_disconnected(request: web.BaseRequest) -> bool:
    """Whether the client has closed the connection, and so gets no answer."""
    transport = request.transport
    if transport is None or transport.is_closing():
        return True
    connection = transport.get_extra_info("socket")
    if connection is None:
        return False
    poll = select.poll()  # the end of what was sent may be there and not read yet
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


def _peer(transport: asyncio.BaseTransport) -> str:
    """The client's address; empty if it has gone."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) and peer else ""


def _max_connections() -> int:
    """How many connections leave enough to the rest of the process, which has machines to keep."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 2**31 if soft == resource.RLIM_INFINITY else soft // 4


class _ConnectionGuard(asyncio.Protocol):
    """Stands between a connection and what reads it, with an eye on the time."""

    def __init__(self, door: HttpServer, inner: asyncio.Protocol) -> None:
        self.inner = inner
        self.busy = False
        """A request is being answered."""
        self.source = ""
        """The address that it comes from, as it is counted."""
        self._door = door
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._connected = False
        """What reads it was told of the connection."""
        self._early: list[bytes] = []
        """What came with the end of the TLS handshake."""
        self._greeting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = _peer(self._transport)
        if self._door.networks is not None and not is_within(peer, self._door.networks):
            self._door.refused("address", peer)
            self._transport.abort()
            return
        self.source = source_of(peer)
        if not self._door.make_room(self.source):
            self._transport.abort()
            return
        self._door.admit(self)
        self._await_request()
        if self._door.tls is None:
            self._connect(self._transport)
        else:
            self._greeting = asyncio.get_running_loop().create_task(self._greet(self._transport, self._door.tls))

    def data_received(self, data: bytes) -> None:
        if not self._connected:
            self._early.append(data)
            return
        if not self.busy:
            self._await_request()
        self.inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self.inner.eof_received() if self._connected else None

    def pause_writing(self) -> None:
        if self._connected:
            self.inner.pause_writing()

    def resume_writing(self) -> None:
        if self._connected:
            self.inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_timer()
        self._door.forget(self)
        if self._connected:
            self._connected = False
            self.inner.connection_lost(error)

    async def _greet(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        """The TLS handshake, within the time of a request."""
        loop, seconds = asyncio.get_running_loop(), self._door.bounds.request_seconds
        try:
            secure = await loop.start_tls(transport, self, tls, server_side=True, ssl_handshake_timeout=seconds)
            if secure is not None and not secure.is_closing():
                self._connect(secure)
                return
        except ssl.SSLError as error:
            if error.reason in (
                "HTTP_REQUEST",
                "HTTPS_PROXY_REQUEST",
            ):  # OpenSSL knows a method of HTTP when it sees one
                self._door.plain_http(_peer(transport))
        except OSError:
            pass
        self.connection_lost(None)
        transport.abort()

    def _connect(self, transport: asyncio.Transport) -> None:
        self._transport, self._connected = transport, True
        self.inner.connection_made(transport)
        early, self._early = self._early, []
        for data in early:
            self.data_received(data)

    def begin(self) -> None:
        """The head of a request is there."""
        self.busy = True
        self._stop_timer()

    def end(self) -> None:
        """It is answered."""
        self.busy = False
        self._stop_timer()
        self._door.shares.was_used(self.source, self)

    def cut(self) -> None:
        """Close the connection now."""
        self._stop_timer()
        self._door.forget(self)
        if self._transport is not None:
            self._transport.abort()

    def _await_request(self) -> None:
        """From the first byte on a request has so long to come, however slowly the others do."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._door.bounds.request_seconds, self._too_slow)

    def _too_slow(self) -> None:
        self._door.refused("too slow", self.source)
        self.cut()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def server_tls(certificate: str, key: str, clients: str | None = None) -> ssl.SSLContext:
    """A TLS context from PEM files. ``clients``: the authorities whose certificates those who ask must have.

    Raises OSError and ssl.SSLError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients)
    return context


class ClientLog:
    """Warns of clients that learn nothing themselves of what is wrong; at most one line in ``CLIENT_SECONDS``."""

    def __init__(self, message: str, clock: Callable[[], float] = time.monotonic) -> None:
        """``message``: with places for the address and for how many there were that have no line."""
        self._message = message
        self._clock = clock
        self._next = -math.inf
        self._skipped = 0

    def note(self, address: str) -> None:
        """A client came."""
        if (now := self._clock()) < self._next:
            self._skipped += 1
            return
        more = f" ({self._skipped} more since the last such line)" if self._skipped else ""
        self._next, self._skipped = now + CLIENT_SECONDS, 0
        log.warning(self._message, address or "a client", more)
