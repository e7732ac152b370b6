"""An HTTP server and client for small bodies and untrusted peers, one request per connection.

h11 parses and writes the protocol; this is the I/O around it, with bounds: how many connections there are, how long a
request may take to come and a reply to be taken, how large either is, and how often a peer may ask. No redirect is
followed and no proxy used: a peer could send us to another host.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import h11

from devalloc.net.connection_shares import ConnectionShares, share_of, source_of
from devalloc.net.localhost import MISDIRECTED, MISDIRECTED_MESSAGE, is_local_host_header
from devalloc.net.rate import TokenBucket
from devalloc_node.errors import Failed, Unknown


async def wait_for_connection(door: socket.socket) -> None:
    """Wait until a connection waits at a socket that listens. The loop's own ``sock_accept`` may take one just when it
    is cancelled: then the connection is lost, and its peer waits in vain. Raises OSError if the socket is closed."""
    loop = asyncio.get_running_loop()
    waits = asyncio.Event()
    number = door.fileno()  # another thread may close it meanwhile
    if number < 0:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    loop.add_reader(number, waits.set)
    try:
        await waits.wait()
    finally:
        loop.remove_reader(number)


_log = logging.getLogger(__name__)
PLAIN = "text/plain; charset=utf-8"
JSON = "application/json"
_Role = type[h11.CLIENT] | type[h11.SERVER]
_READ = 8192
_SOURCES = 256  # source addresses whose rates are counted
_PAUSE = 0.05  # seconds before it is looked again whether one more connection is allowed


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What a peer can have of us."""

    head: int = 8 * 1024
    """Bytes of a request's or a reply's line and headers."""
    body: int = 16 * 1024
    seconds: float = 5.0
    """For a request to come, and for its reply to be taken."""
    connections: int = 16
    """Of all addresses together; one can have three quarters of them, and of the requests a second."""
    requests_a_second: int = 20
    requests_burst: int = 60


@dataclass(frozen=True, slots=True)
class HttpRequest:
    method: str
    path: str
    """Without a query."""
    body: bytes
    host: str | None = None
    """Whom it names as its host."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    status: int
    body: bytes = b""
    type: str = PLAIN
    after: Callable[[], None] | None = None
    """Called once it has been sent, or could not be."""

    @property
    def text(self) -> str:
        """The body for people, on one line."""
        line = self.body[:200].decode("utf-8", "replace")
        return " ".join("".join(c if c.isprintable() else " " for c in line).split())


RequestHandler = Callable[[HttpRequest], Awaitable[HttpResponse]]


@dataclass(eq=False, slots=True)
class _Client:
    """A connection that was taken."""

    source: str
    connection: socket.socket
    is_served: bool = False
    is_busy: bool = False
    """Its request is there, and is being answered."""
    task: asyncio.Task[None] | None = None


class HttpServer:
    """A port. What is answered must not take long: connections that wait for an answer count as well."""

    def __init__(
        self,
        respond: RequestHandler,
        limits: HttpLimits | None = None,
        *,
        allows: Callable[[str], bool] = lambda address: True,
        for_people: bool = False,
    ) -> None:
        """``allows``: whether a connection from an address is taken. ``for_people``: it is for people of this host, one
        of whom may have a browser, so that only requests that name this host are answered."""
        self._is_local = for_people
        self._respond = respond
        self._limits = limits or HttpLimits()
        self._allows = allows
        self._allowance = TokenBucket(self._limits.requests_a_second, self._limits.requests_burst)
        self._tasks: set[asyncio.Task[None]] = set()
        self._allowances: dict[str, TokenBucket] = {}
        """By source address."""
        self._shares: ConnectionShares[_Client] = ConnectionShares(
            lambda: self._limits.connections, lambda client: client.is_busy
        )
        self._accepting: asyncio.Task[None] | None = None
        self._door: socket.socket | None = None

    async def listen(self, host: str, port: int = 0) -> tuple[str, int]:
        """Open it; its address, with the port that was found where ``port`` is 0. Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        address = self.take(socket.create_server((host, port), family=family, backlog=self._limits.connections))
        return address[0], address[1]

    def take(self, door: socket.socket) -> Any:
        """Serve at a socket that listens, which is closed with the server; its address."""
        door.setblocking(False)
        self._door = door
        self._accepting = asyncio.create_task(self._accept(door))
        return door.getsockname()

    async def close(self) -> None:
        """Close the port, and the connections that are still open."""
        ending = [*self._tasks, *([self._accepting] if self._accepting else [])]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        if self._door is not None:
            self._door.close()

    async def _accept(self, door: socket.socket) -> None:
        """Take one connection after the other."""
        while True:
            await wait_for_connection(door)
            try:
                connection, peer = door.accept()
                connection.setblocking(False)
            except (BlockingIOError, ConnectionAbortedError):  # it has gone again
                continue
            except OSError as error:
                _log.warning("cannot accept connections: %s", error)
                await asyncio.sleep(1.0)
                continue
            # A peer that may not connect uses nothing of the limits of those that may.
            if peer and not self._allows(peer[0]):
                connection.close()
                continue
            self._admit(connection, source_of(peer[0]) if peer else "")

    def _admit(self, connection: socket.socket, source: str) -> None:
        """Serve a connection; if there are too many, another one goes for it, or it does."""
        if not self._shares.has_room(source):
            idle = self._shares.displaced_by(source)
            if idle is None:
                connection.close()
                return
            self._shares.forget(idle.source, idle)
            if idle.task is not None:
                idle.task.cancel()
        client = _Client(source, connection)
        self._shares.admit(source, client)
        client.task = asyncio.create_task(self._serve(client))
        self._tasks.add(client.task)
        client.task.add_done_callback(lambda task: self._ended(client, task))

    def _ended(self, client: _Client, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._shares.forget(client.source, client)
        if not client.is_served:  # its task ended before it began
            client.connection.close()

    async def _turn(self, source: str) -> None:
        """Wait until one more request is allowed: of an address no more than its share, so that others are heard."""
        loop, limits = asyncio.get_running_loop(), self._limits
        own = self._allowances.pop(source, None)
        own = own or TokenBucket(share_of(limits.requests_a_second), limits.requests_burst)
        self._allowances[source] = own
        if len(self._allowances) > _SOURCES:
            del self._allowances[next(iter(self._allowances))]
        for bucket in (own, self._allowance):
            while not bucket.take(1, round(loop.time() * 1000)):
                await asyncio.sleep(_PAUSE)

    async def _serve(self, client: _Client) -> None:
        client.is_served, connection = True, client.connection
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_READ)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            await self._turn(client.source)
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection)
        except OSError:
            connection.close()
            return
        except asyncio.CancelledError:
            connection.close()
            raise
        try:
            await self._exchange(client, reader, asyncio.StreamWriter(transport, protocol, reader, loop))
        except (OSError, h11.ProtocolError, TimeoutError) as error:
            _log.debug("gave up a connection: %s", error)
        finally:
            transport.abort()

    async def _exchange(self, client: _Client, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = _Connection(h11.SERVER, self._limits.head, reader, writer)
        try:
            async with asyncio.timeout(self._limits.seconds):
                request, body = await line.receive(self._limits.body)
            client.is_busy = True
            assert isinstance(request, h11.Request)
            path = request.target.decode("ascii", "replace").partition("?")[0]
            host = next((value.decode("ascii", "replace") for name, value in request.headers if name == b"host"), None)
            if self._is_local and not is_local_host_header(host):
                response = HttpResponse(MISDIRECTED, MISDIRECTED_MESSAGE)
            else:
                response = await self._answer(HttpRequest(request.method.decode("ascii", "replace"), path, body, host))
        except _TooLarge as error:
            response = HttpResponse(413, str(error).encode())
        except h11.RemoteProtocolError as error:
            if line.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
                raise
            response = HttpResponse(error.error_status_hint, str(error).encode())
        size = str(len(response.body))
        headers = [("Content-Type", response.type), ("Content-Length", size), ("Connection", "close")]
        head = h11.Response(status_code=response.status, headers=headers)
        async with asyncio.timeout(self._limits.seconds):
            try:
                await line.send(head, b"" if line.head_only else response.body)
            finally:
                if response.after is not None:
                    response.after()
            client.is_busy = False
            await line.finish()

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        try:
            return await self._respond(request)
        except Exception:
            _log.exception("%s %s could not be answered", request.method[:20], request.path[:80])
            return HttpResponse(500, b"internal error")


async def http_request(
    host: str, port: int, request: HttpRequest, seconds: float, limits: HttpLimits | None = None
) -> HttpResponse:
    """Ask a server at an address, and take its whole reply, within so many seconds.

    Raises:
        Failed: it was not asked (``PeerUnreachable``).
        Unknown: it may have heard, and has not replied (``PeerSilent``), or what it replies is no HTTP
            (``PeerUnreadable``).
    """
    limits = limits or HttpLimits()
    where = f"{host} port {port}"
    is_sent = False
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(host, port, limit=_READ)
            line = _Connection(h11.CLIENT, limits.head, reader, writer)
            at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            headers = [("Host", at), ("Content-Length", str(len(request.body))), ("Connection", "close")]
            if request.body:
                headers.append(("Content-Type", JSON))
            is_sent = True
            await line.send(h11.Request(method=request.method, target=request.path, headers=headers), request.body)
            head, body = await line.receive(limits.body)
    except TimeoutError:
        if is_sent:
            raise Unknown("PeerSilent", f"{where} did not answer within {seconds:g} s") from None
        raise Failed("PeerUnreachable", f"{where} cannot be reached within {seconds:g} s") from None
    except OSError as error:
        if is_sent:
            raise Unknown("PeerSilent", f"{where} broke the connection: {error}") from None
        raise Failed("PeerUnreachable", f"{where} cannot be reached: {error}") from None
    except _TooLarge as error:
        raise Unknown("PeerUnreadable", f"{where} answers too much: {error}") from None
    except h11.RemoteProtocolError as error:
        _log.info("%s does not answer in HTTP: %s", where, error)  # with its words, which are not everybody's to read
        raise Unknown("PeerUnreadable", f"{where} does not answer in HTTP") from None
    finally:
        if writer is not None:
            writer.transport.abort()
    assert isinstance(head, h11.Response)
    return HttpResponse(head.status_code, body)


class _TooLarge(Exception):
    """A message beyond its bounds."""


class _Connection:
    """One connection and its parser."""

    def __init__(self, role: _Role, head: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """``head``: most bytes of a line and headers."""
        self.http = h11.Connection(role, max_incomplete_event_size=head)
        self.head_only = False
        self._head = head
        self._reader, self._writer = reader, writer

    async def receive(self, most: int) -> tuple[h11.Request | h11.Response, bytes]:
        """A whole message; informational replies are passed over."""
        head: h11.Request | h11.Response | None = None
        body = bytearray()
        came, bound = 0, 4 * (self._head + most)  # what comes around a body, such as the sizes of its chunks, costs too
        while True:
            match self.http.next_event():
                case h11.NEED_DATA:
                    if self.http.they_are_waiting_for_100_continue:
                        self._write(h11.InformationalResponse(status_code=100, headers=[]))
                    data = await self._reader.read(_READ)
                    came += len(data)
                    if came > bound:
                        raise _TooLarge(f"a message has at most {bound} bytes")
                    self.http.receive_data(data)
                case (h11.Request() | h11.Response()) as head:
                    self.head_only = isinstance(head, h11.Request) and head.method == b"HEAD"
                case h11.Data(data=part):
                    body += part
                    if len(body) > most:
                        raise _TooLarge(f"a body has at most {most} bytes")
                case h11.EndOfMessage():
                    assert head is not None
                    return head, bytes(body)
                case h11.InformationalResponse():
                    pass
                case _:
                    raise h11.RemoteProtocolError("the connection ended before the message did")

    async def send(self, head: h11.Request | h11.Response, body: bytes) -> None:
        self._write(head)
        if body:
            self._write(h11.Data(data=body))
        self._write(h11.EndOfMessage())
        await self._writer.drain()

    async def finish(self) -> None:
        """Say that no more comes, and let the peer read to the end: closing over unread bytes would cut the reply."""
        if self._writer.can_write_eof():
            self._writer.write_eof()
        for _ in range(8):
            if not await self._reader.read(_READ):
                return

    def _write(self, event: h11.Event) -> None:
        data = self.http.send(event)
        if data:
            self._writer.write(data)
