"""What the controller serves over HTTP: health for everyone, all else for those who may read it.

Pages are mounted by their path; one that ends in ``/`` is also answered for all below it. They only show: what is
not read with GET signs a user in or out.

A process is not ready while it does not do its part: others can see that, and an update waits. It is not healthy if
it should be restarted. That is reported much later, and never for a problem that another process would also have at
once (if the API server is away, a leader ends by its lease).
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from aiohttp import web

from devalloc.controller.authorization import REFILL_SECONDS, Authorizer, BoundedAuthorizer, RateLimitedAuthorizer
from devalloc.net.http_server import HttpResponse, HttpServer, ServerLimits, bearer_token, server_tls
from devalloc.net.localhost import is_loopback
from devalloc.worker import until_set

MAX_STILL_SECONDS = 60.0
"""After which a main loop that does not go round is not healthy: it does several times a second."""
MAX_ROUND_SECONDS = 900.0
"""After which what was begun and has not ended is not healthy."""
MAX_DELAY_SECONDS = 60.0
"""After which what is to be over soon is not ready."""


@dataclass(frozen=True, slots=True)
class LoopHealth:
    """A loop that answers claims, or requests for permits. Moments are of the monotonic clock."""

    name: str
    began: float | None
    """When what it is at began; None if it waits for something to do."""
    failing: float | None = None
    """Since when all that it tries fails."""
    silent_seconds: float = 0.0
    """For how long it has not been told of what changes."""


@dataclass(frozen=True, slots=True)
class ProcessHealth:
    """What one process is at."""

    state: str
    """Of ``LeaderElection``."""
    beat: float
    """When its main loop went round last."""
    taking_over: float | None
    """Since when it takes over."""
    loops: tuple[LoopHealth, ...]
    unanswered: float | None = None
    """Since when the lease can be neither read nor written; -inf: it never could."""

    def unhealthy(self, now: float) -> str | None:
        """Why it should be started again."""
        return next(self._unhealthy(now), None)

    def unready(self, now: float) -> str | None:
        """Why it does not do its part."""
        return next(self._unready(now), None)

    def _unhealthy(self, now: float) -> Iterator[str]:
        if now - self.beat > MAX_STILL_SECONDS:
            yield "the main loop is stuck"
        if _since(self.taking_over, now) > MAX_ROUND_SECONDS:
            yield "taking over from the last leader does not finish"
        for loop in self.loops:
            if _since(loop.began, now) > MAX_ROUND_SECONDS:
                yield f"a round of {loop.name} does not end"
            if self.state == "leading" and loop.silent_seconds > MAX_ROUND_SECONDS:
                yield _silent(loop)

    def _unready(self, now: float) -> Iterator[str]:
        yield from self._unhealthy(now)
        if self.state == "stopping":
            yield "stopping"
        if self.unanswered == -math.inf:
            # At once: else an update goes on to replace those that work by one that never will.
            yield "the lease has not been read yet"
        elif _since(self.unanswered, now) > MAX_DELAY_SECONDS:
            yield f"the lease could not be read for {_since(self.unanswered, now):.0f} s"
        if _since(self.taking_over, now) > MAX_DELAY_SECONDS:
            yield f"taking over from the last leader for {_since(self.taking_over, now):.0f} s"
        for loop in self.loops:
            if _since(loop.failing, now) > MAX_DELAY_SECONDS:
                yield f"{loop.name}: everything has failed for {_since(loop.failing, now):.0f} s; see the log"
            if loop.silent_seconds > MAX_DELAY_SECONDS:
                yield _silent(loop)


def _since(moment: float | None, now: float) -> float:
    return 0.0 if moment is None else now - moment


def _silent(loop: LoopHealth) -> str:
    return f"{loop.name}: no updates from the cluster for {loop.silent_seconds:.0f} s"


log = logging.getLogger(__name__)

PORT = 10301
HEALTH_CONNECTIONS = 32
"""At a port for probes alone."""
CERTIFICATE_CHECK_SECONDS = 60.0
"""How often a certificate is read again, because it may be renewed."""
_REJECTIONS = {
    401: b"a token for this server is needed (its page says how to get one): Authorization: Bearer ...",
    403: b"this user may not read this path; a ClusterRole with nonResourceURLs and the verb get allows it",
    429: b"too many wrong tokens from this address; wait some seconds",
    503: b"the API server cannot check who can read this; try again",
}
_SECURITY_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


@dataclass(frozen=True, slots=True)
class SitePage:
    """What is answered at a path."""

    respond: Callable[[web.BaseRequest], Awaitable[HttpResponse]]
    """In the site's event loop: what takes long belongs into a thread."""
    is_open: bool = False
    """Anyone may read it, or it checks callers itself."""
    methods: frozenset[str] = frozenset({"GET", "HEAD"})


class HttpSite:
    """The pages at one port. ``run`` in a thread."""

    def __init__(
        self,
        pages: Mapping[str, SitePage],
        access: Authorizer | None,
        *,
        host: str = "127.0.0.1",
        port: int = PORT,
        tls: ssl.SSLContext | None = None,
        certificate: tuple[str, str] | None = None,
        connections: int = 256,
        on_ready: Callable[[tuple[str, int]], None] = lambda address: None,
    ) -> None:
        """``access`` None: anyone who can connect may read all pages, which is for loopback. ``certificate``: the files
        that ``tls`` was made of, read again when they change; if they come later, ``tls`` counts until then.
        ``on_ready``: called with host and port in the site's thread."""
        self._pages = dict(pages)
        self._at = host, port
        self._tls = tls
        self._newest = tls
        self._certificate = certificate
        self._connections = connections
        self._on_ready = on_ready
        # Apart from the loop's own threads: what pages do there must not keep tokens from being looked at.
        self._threads = ThreadPoolExecutor(4, "access")
        self._asking = None if access is None else BoundedAuthorizer(RateLimitedAuthorizer(access, "/"), self._threads)

    def run(self, stop: threading.Event) -> None:
        """Serve until ``stop`` is set. Raises OSError if it cannot listen."""
        try:
            asyncio.run(self._run(stop))
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, stop: threading.Event) -> None:
        is_local = self._tls is None and is_loopback(self._at[0])
        door = HttpServer(self._respond, ServerLimits(connections=self._connections), for_people=is_local)
        address = await door.listen(*self._at, self._tls)
        renewing = asyncio.create_task(self._renew())
        try:
            self._on_ready(address)
            await until_set(stop)
        finally:
            renewing.cancel()
            await door.close()

    async def _renew(self) -> None:
        if self._tls is None or self._certificate is None:
            return
        # A context of its own for each certificate: in one that had another kind of key both would count.
        self._tls.sni_callback = self._use_newest
        while True:
            await asyncio.sleep(CERTIFICATE_CHECK_SECONDS)
            try:
                self._newest = server_tls(*self._certificate)
            except FileNotFoundError:
                continue  # there is none (yet): the last one counts
            except (OSError, ssl.SSLError) as error:
                log.warning("cannot read the certificate %s; keeping the last one: %s", self._certificate, error)

    def _use_newest(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Called at the begin of each connection, whether it names a host or not."""
        if self._newest is not None:
            connection.context = self._newest

    async def _respond(self, request: web.BaseRequest) -> HttpResponse:
        page = self._page(request.path)
        if page is None:
            return HttpResponse(404, b"there is nothing here", headers=_SECURITY_HEADERS)
        if request.method not in page.methods:
            return HttpResponse(
                405, b"must be GET", headers={**_SECURITY_HEADERS, "Allow": ", ".join(sorted(page.methods))}
            )
        if not page.is_open and self._asking is not None:
            status = await self._asking.status(bearer_token(request), request.remote or "", request.path)
            if status != 200:
                extra_headers = {"WWW-Authenticate": 'Bearer realm="devalloc"'} if status == 401 else {}
                extra_headers |= {"Retry-After": str(int(REFILL_SECONDS))} if status == 429 else {}
                return HttpResponse(status, _REJECTIONS[status], headers={**_SECURITY_HEADERS, **extra_headers})
        answer = await page.respond(request)
        return HttpResponse(answer.status, answer.body, answer.type, {**_SECURITY_HEADERS, **answer.headers})

    def _page(self, path: str) -> SitePage | None:
        """The one at this path, or at the longest folder that it is below."""
        if path in self._pages:
            return self._pages[path]
        below = [folder for folder in self._pages if folder.endswith("/") and path.startswith(folder)]
        return self._pages[max(below, key=len)] if below else None
