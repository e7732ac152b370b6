"""What is answered at the page's path."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import resources
from typing import TypeVar
from urllib.parse import quote

from aiohttp import web

from devalloc.controller.access import REFILL_SECONDS, Asking, Guard, Judge
from devalloc.controller.http import Response, read_some
from devalloc.controller.page import login, render
from devalloc.controller.page.html import Markup
from devalloc.controller.page.parts import Asked
from devalloc.controller.sight import Seen, Sight
from devalloc.controller.site import Page
from devalloc.store import Store, StoreError

T = TypeVar("T")

PATH = "/devalloc/"
"""What a SubjectAccessReview is about: nonResourceURLs of a role that lets somebody see the page."""
HTML = "text/html; charset=utf-8"
_STATIC = {
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
FORM_SECONDS = 5.0
MOST_FORMS = 16
"""Forms that are read at once: whoever sends many slowly must not have all connections of the door, through which the
kubelet asks how the controller is."""
SMALL = 1024
"""Bytes that are not worth packing."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "same-origin",  # without any the browser would not say whose form is sent
    "X-Frame-Options": "DENY",
}


class Pages:
    """The page of a store; ``mounted`` goes into a ``Site``."""

    def __init__(
        self,
        store: Store,
        access: Judge,
        *,
        beside: Store | None = None,
        hint: Markup | None = None,
        remarks: Callable[[], str] = lambda: "",
    ) -> None:
        """``beside`` and ``remarks``: as of ``Sight``. ``hint``: how those who have no token get one."""
        self._sight = Sight(store, beside, remarks=remarks)
        self._hint = hint
        self._forms = 0
        """That are being read. Of the event loop alone."""
        # Apart from the loop's own threads, which others wait for
        self._work = ThreadPoolExecutor(4, "page")
        self._asking = Asking(Guard(access, PATH), self._work)

    def mounted(self) -> Mapping[str, Page]:
        """By path. They look at tokens themselves, because browsers cannot send headers."""
        return {
            PATH: Page(self._respond, is_open=True, methods=frozenset({"GET", "HEAD", "POST"})),
            "/": Page(self._home, is_open=True),
        }

    def close(self) -> None:
        """Give the threads back."""
        self._work.shutdown(wait=False, cancel_futures=True)

    async def _home(self, request: web.BaseRequest) -> Response:
        return (
            _moved(PATH.lstrip("/"))
            if request.path in ("/", PATH.rstrip("/"))
            else Response(404, b"there is nothing here")
        )

    async def _respond(self, request: web.BaseRequest) -> Response:
        found = await self._answered(request, request.path.removeprefix(PATH))
        return Response(found.status, found.body, found.type, {**HEADERS, **found.headers})

    async def _answered(self, request: web.BaseRequest, path: str) -> Response:
        if request.method == "POST":
            if path not in ("login", "logout"):
                return Response(405, b"must be GET", headers={"Allow": "GET, HEAD"})
            if not login.is_from_here(request):
                return Response(403, b"this form was sent by another page")
            return await self._login(request) if path == "login" else _moved("./", login.kept(request, ""))
        if (name := path.removeprefix("static/")) in _STATIC and name != path:
            return _static(request, name)
        if path == "login":
            return self._form(200)
        if path not in ("", "view"):
            return Response(404, b"there is nothing here")
        status = await self._status(request, login.token_of(request))
        if status != 200:
            return self._refused(request, status, is_page=path == "")
        asked = Asked.of(request.query)
        return await self._off(self._shown, request, asked, path == "")

    async def _login(self, request: web.BaseRequest) -> Response:
        if self._forms >= MOST_FORMS:
            return self._form(429)
        self._forms += 1
        try:
            token = login.token_in(await read_some(request, login.MAX_FORM, FORM_SECONDS))
        finally:
            self._forms -= 1
        status = 401 if token is None else await self._status(request, token)
        if token is not None and status == 200:
            return _moved("./", login.kept(request, token))
        return self._form(status)

    async def _status(self, request: web.BaseRequest, token: str | None) -> int:
        return await self._asking.status(token, request.remote or "")

    def _shown(self, request: web.BaseRequest, asked: Asked, is_page: bool) -> Response:
        try:
            seen = self._sight.latest()
        except StoreError as error:
            return _html(503, render.page(render.problem("The store cannot be read", str(error)), signed_in=True))
        mark = _mark(seen, asked, is_page)
        if mark in request.headers.get("If-None-Match", ""):
            return Response(304, b"", HTML, {"ETag": mark})
        body = render.view(seen.overview, asked, seen.trouble, warns=seen.warns)
        if is_page:
            body = render.page(body, signed_in=True, asked=asked)
        return _packed(request, Response(200, body.encode("utf-8", "replace"), HTML, {"ETag": mark}))

    def _refused(self, request: web.BaseRequest, status: int, *, is_page: bool) -> Response:
        if status == 401 and login.token_of(request) is None:
            return self._form(200 if is_page else 401)  # nobody was refused anything
        return self._form(status)

    def _form(self, status: int) -> Response:
        headers = {"Retry-After": str(int(REFILL_SECONDS))} if status == 429 else {}
        body = render.page(render.login_form(status, self._hint), signed_in=status == 403)
        return _html(status, body, headers)

    async def _off(self, call: Callable[..., T], *args: object) -> T:
        """In a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._work, call, *args)


def _html(status: int, body: Markup, headers: Mapping[str, str] | None = None) -> Response:
    return Response(status, body.encode("utf-8", "replace"), HTML, dict(headers or {}))


def _moved(where: str, cookie: str | None = None) -> Response:
    return Response(303, b"", headers={"Location": where, **({} if cookie is None else {"Set-Cookie": cookie})})


def _mark(seen: Seen, asked: Asked, is_page: bool) -> str:
    """The ETag: of what is seen, and what is asked, and by which version."""
    of = repr((seen.version, asked, is_page, [_asset(name)[1] for name in _STATIC]))
    return f'W/"{hashlib.sha256(of.encode()).hexdigest()[:32]}"'


def _packed(request: web.BaseRequest, answer: Response) -> Response:
    if len(answer.body) < SMALL or "gzip" not in request.headers.get("Accept-Encoding", ""):
        return answer
    headers = {**answer.headers, "Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return Response(answer.status, gzip.compress(answer.body, 5, mtime=0), answer.type, headers)


def _static(request: web.BaseRequest, name: str) -> Response:
    body, mark = _asset(name)
    headers = {"ETag": mark, "Cache-Control": "no-cache"}
    if mark in request.headers.get("If-None-Match", ""):
        return Response(304, b"", _STATIC[name], headers)
    return _packed(request, Response(200, body, _STATIC[name], headers))


@cache
def _asset(name: str) -> tuple[bytes, str]:
    """A file of the package, and its ETag."""
    body = resources.files("devalloc.controller.page").joinpath("static", quote(name)).read_bytes()
    return body, f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'
