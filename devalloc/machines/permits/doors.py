"""The ports of a permit server while it serves: who asks, and what is answered and shown."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiohttp import web

from devalloc.machines.permits.caller_auth import ANYONE, PROXY, Caller, CallerRejected
from devalloc.machines.permits.decide import PermitGrant, PermitRefused
from devalloc.machines.permits.metrics import TYPE, PermitMetrics
from devalloc.machines.permits.migration import MigrationTracker
from devalloc.machines.permits.settings import Settings
from devalloc.machines.permits.writer import PermitWriter
from devalloc.net.http_server import (
    JSON,
    ClientLog,
    HttpResponse,
    HttpServer,
    ServerLimits,
    bearer_token,
    is_disconnected,
    read_body,
)
from devalloc.net.localhost import is_loopback
from devalloc.scaling.messages.permits import MAX_BODY, RequestError, decode_request

log = logging.getLogger(__name__)
DUMP_RETRY_SECONDS = 30.0
"""How long after a port other than that for requests was in use it is tried again."""
PLAIN_HTTP = "%s speaks plain HTTP to the permit server, which serves TLS%s"
"""What is logged of a client, with places for its address and how many more there were."""


@dataclass(frozen=True, slots=True)
class ServerAddresses:
    """Where it listens: host and port."""

    requests: tuple[str, int]
    dump: tuple[str, int] | None
    plain: tuple[str, int] | None = None
    """For agents that speak plain HTTP."""


class PermitDoors:
    """All ports of one server. Use from one event loop."""

    def __init__(
        self,
        settings: Settings,
        writer: PermitWriter,
        moves: MigrationTracker,
        metrics: PermitMetrics,
        shown: Callable[..., bytes],
        plain_http: str,
    ) -> None:
        """``shown``: what people see, with more of it by name. ``plain_http``: as of ``PLAIN_HTTP``."""
        self._settings = s = settings
        self._writer = writer
        self._moves = moves
        self._metrics = metrics
        self._shown = shown
        # Apart from the threads of the store, which write while tokens are looked at.
        self._asking = None if s.callers is None else ThreadPoolExecutor(4, "permits-callers")
        bounds = ServerLimits(s.max_connections, s.request_seconds, s.idle_seconds)
        self._requests = HttpServer(
            self._respond, bounds, token=s.token, refused=self._refused, plain_http=ClientLog(plain_http).note
        )
        self._dump = HttpServer(
            self._show,
            bounds,
            token=None if s.shown_to_all else s.token,
            for_people=s.tls is None and is_loopback(s.host),
            refused=self._refused,
        )
        strangers = None if s.plain is None else ClientLog(s.plain.stranger)
        self._plain = HttpServer(
            partial(self._respond, by_pod=True),
            bounds,
            refused=partial(self._refused, strangers=strangers),
            networks=() if s.plain is None else s.plain.networks,
        )

    async def open(self, begin: Callable[[Coroutine[Any, Any, None]], None]) -> ServerAddresses:
        """Listen; where. ``begin``: goes on with what cannot listen yet. Raises OSError for the port of requests."""
        s = self._settings
        address, dump, plain = await self._requests.listen(s.host, s.port, s.tls), None, None
        if s.dump_port is not None:
            listen = partial(self._dump.listen, s.host, s.dump_port, s.tls)
            what = f"the permit ledgers at {s.host} port {s.dump_port} (--permits-dump-port)"
            dump = await _listen_beside(listen, what, begin)
        if s.plain is not None:
            listen = partial(self._plain.listen, s.plain.host, s.plain.port)
            what = f"permits by plain HTTP at {s.plain.host} port {s.plain.port} ({s.plain.option})"
            plain = await _listen_beside(listen, what, begin)
        return ServerAddresses(address, dump, plain)

    async def close(self) -> None:
        """No more connections, and none left."""
        for door in (self._requests, self._dump, self._plain):
            await door.close()
        if self._asking is not None:
            self._asking.shutdown(wait=False, cancel_futures=True)

    def _refused(self, reason: str, address: str, *, strangers: ClientLog | None = None) -> None:
        self._metrics.refused.labels(reason).inc()
        if strangers is not None and reason == "address":
            strangers.note(address)

    async def _respond(self, request: web.BaseRequest, *, by_pod: bool = False) -> HttpResponse:
        """``by_pod``: the caller is known by nothing but its address, and names machines by their runner pods."""
        began, version = time.perf_counter(), "none"
        try:
            caller = PROXY if by_pod else await self._caller_of(request)
            posted = request.method == "POST"
            body = await read_body(request, MAX_BODY, self._settings.request_seconds) if posted else b""
            decoded = decode_request(body, request.method)
            version = str(decoded.version)
            answer = await self._writer.ask(
                decoded, lambda: is_disconnected(request), caller.node, by_pod=caller.by_pod
            )
            if isinstance(answer, PermitGrant):
                answer = await self._moves.answered(answer)
        except RequestError as refused:
            log.debug("refused: %s", refused)
            answer = PermitRefused(refused.status, refused.text)
        response = (
            HttpResponse(200, answer.body, JSON)
            if isinstance(answer, PermitGrant)
            else HttpResponse(answer.status, answer.text.encode("utf-8", "replace"))
        )
        self._metrics.requests.labels(version, str(response.status)).inc()
        self._metrics.seconds.observe(time.perf_counter() - began)
        return response

    async def _caller_of(self, request: web.BaseRequest) -> Caller:
        """Raises RequestError."""
        callers = self._settings.callers
        if callers is None:
            return ANYONE
        lookup = partial(callers.caller_of, bearer_token(request), request.remote or "")
        caller = await asyncio.get_running_loop().run_in_executor(self._asking, lookup)
        if isinstance(caller, CallerRejected):
            raise RequestError(caller.status, caller.text, caller.text)
        return caller

    async def _show(self, request: web.BaseRequest) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            return HttpResponse(405, b"must be GET")
        if request.path == "/metrics":
            return HttpResponse(200, self._metrics.text(), TYPE)
        return HttpResponse(200, self._shown(waiting=self._writer.waiting), JSON)


async def _listen_beside(
    listen: Callable[[], Coroutine[Any, Any, tuple[str, int]]],
    what: str,
    begin: Callable[[Coroutine[Any, Any, None]], None],
) -> tuple[str, int] | None:
    """Where it listens; None if it cannot yet. Machines do not wait for that: a busy port is logged once, and tried
    again."""
    try:
        return await listen()
    except OSError as error:
        log.warning("cannot serve %s: %s; trying again", what, os.strerror(error.errno or 0))
    begin(_keep_trying(listen))
    return None


async def _keep_trying(listen: Callable[[], Coroutine[Any, Any, tuple[str, int]]]) -> None:
    while True:
        await asyncio.sleep(DUMP_RETRY_SECONDS)
        with suppress(OSError):
            await listen()
            await asyncio.Event().wait()  # so that a wait for the first task to end goes on
