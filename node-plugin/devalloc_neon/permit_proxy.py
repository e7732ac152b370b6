"""A proxy of the permit server for agents that speak plain HTTP, send no token, and look for their server among pods.

Such an agent asks the pod that a label names, whichever process of the controller leads. This process is that pod: it
admits the agents' addresses only, forwards each request with its own token to the controller that leads, and is ready
only while that one answers. The controller lets it ask for machines by their runner pods only.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import aiohttp
from aiohttp import web

from devalloc.net.http_server import ClientLog, HttpResponse, HttpServer, ServerLimits, is_disconnected, read_body
from devalloc.scaling.messages.permits import MAX_BODY
from devalloc.scaling.permits.endpoint import PublishedEndpoint
from devalloc.worker import until_set
from devalloc_neon.plain_port import PlainListener

log = logging.getLogger(__name__)

KEPT_SECONDS = 60.0
"""How long the address and the token are believed; tokens are replaced long before they run out."""
LEAST_SECONDS = 1.0
"""How long they are believed at least: many agents may find at once that another controller leads."""
CHECK_SECONDS = 2.0
"""How often it is looked whether the controller answers."""
ANSWER_SECONDS = 10.0
"""Time limit of the controller for an answer."""
GONE_SECONDS = 0.1
"""How often it is looked whether an agent that waits has gone."""
REFUSALS = frozenset({401, 403, 429})
"""Answers about this process's token, which no agent can change."""
LIMITS = ServerLimits()
UNANSWERED = HttpResponse(503, b"no controller grants permits now; ask again")

ReadEndpoint = Callable[[], tuple[PublishedEndpoint, str]]
"""Asks the API server where the permit server is, and what this process's token is now. Called in a thread; raises
ValueError, with a text that says what is unknown."""


class _NoAnswer(Exception):
    """The controller did not answer; the text says why."""


@dataclass(frozen=True, slots=True)
class _Server:
    endpoint: PublishedEndpoint
    token: str
    tls: ssl.SSLContext


class PermitProxy:
    """Everything of one proxy. ``run`` in a thread, once."""

    def __init__(
        self,
        read: ReadEndpoint,
        listen: PlainListener,
        health: tuple[str, int] | None = None,
        *,
        on_ready: Callable[[tuple[str, int]], None] = lambda address: None,
    ) -> None:
        """``health``: where ``/readyz`` and ``/healthz`` are served; None: nowhere. ``on_ready``: called with the
        address for agents once it listens."""
        self._read = read
        self._listen = listen
        self._health = self.health = health
        self._on_ready = on_ready
        self._server: _Server | str = "the address was not read yet"
        """As it was read last, or why it could not be read."""
        self._since = self._until = 0.0
        self._reading: asyncio.Task[None] | None = None
        self._stop = threading.Event()
        self._problem: str | None = "the proxy has just started"
        """Why the controller does not answer; None: it does."""

    def run(self) -> None:
        """Forward until ``stop``. Raises OSError if it cannot listen."""
        asyncio.run(self._run())

    def stop(self) -> None:
        """End soon. From any thread."""
        self._stop.set()

    def rescan(self) -> None:
        """Read the address of the permit server again for the next request. From any thread."""
        self._until = 0.0

    async def _run(self) -> None:
        strangers = ClientLog(self._listen.stranger)
        connector = aiohttp.TCPConnector(limit=0, use_dns_cache=False)
        async with aiohttp.ClientSession(
            connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
        ) as session:
            door = HttpServer(
                lambda request: self._forward(session, request),
                LIMITS,
                networks=self._listen.networks,
                refused=lambda reason, address: strangers.note(address) if reason == "address" else None,
            )
            probes = HttpServer(self._show_health, LIMITS)
            address = await door.listen(self._listen.host, self._listen.port)
            if self._health is not None:
                self.health = await probes.listen(*self._health)
            checking = asyncio.create_task(self._check(session))
            stopped = asyncio.create_task(until_set(self._stop))
            try:
                self._on_ready(address)
                await asyncio.wait({checking, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if checking.done():
                    checking.result()
            finally:
                stopped.cancel()
                checking.cancel()
                with suppress(asyncio.CancelledError):
                    await checking
                await door.close()
                await probes.close()

    # -- requests ------------------------------------------------------------------------------------------------------

    async def _forward(self, session: aiohttp.ClientSession, request: web.BaseRequest) -> HttpResponse:
        if request.method != "POST":
            return HttpResponse(400, b"must be POST")
        body = await read_body(request, MAX_BODY, LIMITS.request_seconds)
        asking = asyncio.create_task(self._ask(session, "POST", body))
        try:
            # An agent that has gone may have asked anew. The controller does not decide what is cut off.
            while not (await asyncio.wait({asking}, timeout=GONE_SECONDS))[0]:
                if is_disconnected(request):
                    return UNANSWERED
            answer = asking.result()
        except _NoAnswer as error:
            self._note(str(error))
            return UNANSWERED
        finally:
            asking.cancel()
        if answer.status in REFUSALS:
            self._note(f"the controller refuses this proxy: {answer.body.decode(errors='replace')}")
            return UNANSWERED
        if answer.status != 503:  # whether that is about the token, only ``_check`` can see
            self._note(None)
        return answer

    async def _ask(self, session: aiohttp.ClientSession, method: str, body: bytes | None = None) -> HttpResponse:
        """Raises _NoAnswer."""
        server = await self._current_server()
        headers = {"Authorization": f"Bearer {server.token}", "Content-Type": "application/json"}
        try:
            async with (
                asyncio.timeout(ANSWER_SECONDS),
                session.request(
                    method, server.endpoint.url, data=body, headers=headers, ssl=server.tls, allow_redirects=False
                ) as response,
            ):
                content = bytearray()
                while len(content) < MAX_BODY and (part := await response.content.read(MAX_BODY - len(content))):
                    content += part
                answer = HttpResponse(response.status, bytes(content), response.content_type)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._doubt()
            why = "it does not answer in time" if isinstance(error, TimeoutError) else str(error)
            raise _NoAnswer(f"cannot ask the controller at {server.endpoint.url}: {why}") from None
        if answer.status in (*REFUSALS, 503):
            self._doubt()
        return answer

    async def _current_server(self) -> _Server:
        """As it was read last, or is now. Raises _NoAnswer."""
        if asyncio.get_running_loop().time() >= self._until:
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read_server())
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    await asyncio.shield(self._reading)
            except TimeoutError:
                raise _NoAnswer("the API server does not answer in time") from None
        if isinstance(self._server, str):
            raise _NoAnswer(self._server)
        return self._server

    async def _read_server(self) -> None:
        """Once for all that wait for it."""
        clock = asyncio.get_running_loop().time
        before, self._since = self._server, clock()
        try:
            endpoint, token = await asyncio.to_thread(self._read)
            tls = before.tls if isinstance(before, _Server) and before.endpoint == endpoint else endpoint.tls_context()
        except ValueError as error:
            self._server, self._until = str(error), clock() + LEAST_SECONDS
        else:
            self._server, self._until = _Server(endpoint, token, tls), clock() + KEPT_SECONDS

    def _doubt(self) -> None:
        """Another controller may lead by now."""
        self._until = min(self._until, self._since + LEAST_SECONDS)

    # -- readiness -----------------------------------------------------------------------------------------------------

    async def _check(self, session: aiohttp.ClientSession) -> None:
        """Look whether the controller answers: a request that asks for nothing is refused, after its token counted."""
        while True:
            try:
                answer = await self._ask(session, "GET")
            except _NoAnswer as error:
                self._note(str(error))
            else:
                admitted = answer.status == 400
                refusal = f"{answer.status}: {answer.body.decode(errors='replace')[:200]}"
                self._note(None if admitted else f"the controller refuses this proxy with {refusal}")
            await asyncio.sleep(CHECK_SECONDS)

    def _note(self, problem: str | None) -> None:
        if (problem is None) != (self._problem is None):
            if problem is None:
                log.info("the controller answers; agents are admitted")
            else:
                log.warning("not ready: %s", problem)
        self._problem = problem

    async def _show_health(self, request: web.BaseRequest) -> HttpResponse:
        if request.path == "/healthz":
            return HttpResponse(200, b"ok")
        if request.path != "/readyz":
            return HttpResponse(404, b"there is /healthz and /readyz")
        return HttpResponse(200, b"ok") if self._problem is None else HttpResponse(503, self._problem.encode()[:500])
