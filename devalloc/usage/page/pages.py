"""Requests below the page's path, their authentication, and their responses.

A token comes in a header, or in a cookie that only this page gets and no script reads. The cookie holds the token
itself: each replica knows it, and a restart signs no one out. It goes with the browser.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from http.cookies import SimpleCookie
from importlib import resources
from typing import TypeVar
from urllib.parse import parse_qs, quote, urlsplit

from aiohttp import web
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from devalloc.controller.authorization import REFILL_SECONDS, Authorizer, BoundedAuthorizer, RateLimitedAuthorizer
from devalloc.controller.http_endpoints import SitePage
from devalloc.net.http_server import HttpResponse, read_body
from devalloc.store import Store, StoreError
from devalloc.usage.overview import STATES, AmountTexts, Overview
from devalloc.usage.overview.cache import CachedOverview, OverviewCache
from devalloc.usage.overview.model import count_noun, format_users
from devalloc.usage.overview.refusal_cache import NO_REFUSALS, Refusals
from devalloc.usage.page.view import MAX_SEARCH, PageQuery, holders_text, overview_view
from devalloc.version import VERSION

MAX_TOKEN = 3800
"""Characters; a browser keeps no longer cookies."""
MAX_FORM = 8192

_PORT = re.compile(r":(\d{1,5})$", re.ASCII)
_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*")


class SingleTokenAuthorizer:
    """The owner of this token may read everything."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    def status(self, token: str | None, path: str) -> int:
        """200 or 401."""
        return 200 if token and hmac.compare_digest(token.encode("utf-8", "replace"), self._token) else 401


def cookie_name(request: web.BaseRequest) -> str:
    """With TLS one that no other host and no unencrypted connection can set. Another port has another cookie."""
    port = _PORT.search(request.headers.get("Host", ""))
    return "__Host-devalloc" if request.secure else f"devalloc-{port[1] if port else 80}"


def request_token(request: web.BaseRequest) -> str | None:
    """From ``Authorization: Bearer``, else from the cookie."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip() or None
    return request.cookies.get(cookie_name(request)) or None


def token_cookie(request: web.BaseRequest, token: str) -> str:
    """The header that has the browser keep the token; "" as token makes it forget."""
    name = cookie_name(request)
    cookie: SimpleCookie = SimpleCookie()
    cookie[name] = token
    morsel = cookie[name]
    morsel["path"], morsel["httponly"], morsel["samesite"], morsel["secure"] = "/", True, "Strict", request.secure
    if not token:
        morsel["max-age"] = 0
    return morsel.OutputString()


def is_same_origin(request: web.BaseRequest) -> bool:
    """Whether a form was sent by this very page: no other page can sign a user in or out."""
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("Origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("Host")


def token_of_form(form: bytes) -> str | None:
    """The token in a form that was sent; None if there is none that could be one."""
    try:
        fields = parse_qs(form.decode(), max_num_fields=4)
    except ValueError:
        return None
    token = fields.get("token", [""])[0].strip()
    return token if len(token) <= MAX_TOKEN and _TOKEN.fullmatch(token) else None


_PHASE_STYLES = {"Running": "free", "Failed": "unavailable", "Unknown": "unavailable"}
_REFUSALS = {
    401: "This token is unknown or no longer valid.",
    403: "You have no permission to see this page: ask for a role that allows get of the path /devalloc/.",
    429: "Too many wrong tokens, or too many who sign in. Wait some seconds, then try again.",
    503: "Your permission cannot be checked now: the API server does not answer. Try again.",
}


def render_document(body: Markup, *, signed_in: bool, query: PageQuery | None = None) -> Markup:
    """The whole document around what ``render_overview``, ``login_form`` or ``render_problem`` made."""
    return _render("document", body=body, signed_in=signed_in, query=query)


def render_overview(
    overview: Overview,
    query: PageQuery,
    trouble: str = "",
    *,
    warns: bool = False,
    refusals: Refusals = NO_REFUSALS,
) -> Markup:
    """The element ``main``. ``warns``: the first note is a warning."""
    return _render("overview", view=overview_view(overview, query, refusals), trouble=trouble, warns=warns)


def login_form(status: int, hint: Markup | None) -> Markup:
    """Asks for a token; ``status``: what became of the last one (200: there was none)."""
    return _render("login", message=_REFUSALS.get(status), hint=hint)


def render_problem(title: str, text: str) -> Markup:
    """Something that is in the way of everything else."""
    return _render("problem", title=title, text=text)


def _source(name: str) -> str:
    """A template. A line break before a tag or a statement is for its readers only, and is not sent."""
    path = resources.files("devalloc.usage.page").joinpath("templates", f"{name}.html.j2")
    return re.sub(r"\s*\n\s*(?=[<{]|$)", "", path.read_text(encoding="utf-8"))


def _amounts(amounts: AmountTexts) -> str:
    return f"{amounts.cpus or '-'} / {amounts.memory or '-'}" if amounts.cpus or amounts.memory else "-"


def _phase_style(phase: str) -> str:
    return _PHASE_STYLES.get(phase, "pending")


_TEMPLATES = Environment(loader=FunctionLoader(_source), autoescape=True, undefined=StrictUndefined, auto_reload=False)
_TEMPLATES.filters.update(
    amounts=_amounts, count_noun=count_noun, holders=holders_text, phase_style=_phase_style, repr=repr
)
_TEMPLATES.globals.update(VERSION=VERSION, MAX_SEARCH=MAX_SEARCH, STATES=STATES, format_users=format_users)


def _render(name: str, **values: object) -> Markup:
    return Markup(_TEMPLATES.get_template(name).render(values))


T = TypeVar("T")

PATH = "/devalloc/"
"""What a SubjectAccessReview is about: nonResourceURLs of a role that lets a user see the page."""
HTML = "text/html; charset=utf-8"
_STATIC = {
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
FORM_SECONDS = 5.0
MAX_FORMS = 16
"""Forms that are read at once: a client that sends many slowly must not occupy all connections, because the kubelet
checks the health of the controller over the same ones."""
MIN_COMPRESSED = 1024
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


class FleetPage:
    """The page of a store; ``mounted`` goes into a ``Site``."""

    def __init__(
        self,
        store: Store,
        access: Authorizer,
        *,
        optional_store: Store | None = None,
        hint: Markup | None = None,
        remarks: Callable[[], str] = lambda: "",
        unserved: Callable[[], Mapping[str, str]] = lambda: {},
        unanswered: Callable[[], str] = lambda: "",
    ) -> None:
        """``optional_store``, ``remarks``, ``unserved`` and ``unanswered``: as of ``OverviewCache``. ``hint``: how
        those who have no token get one."""
        self._sight = OverviewCache(store, optional_store, remarks=remarks, unserved=unserved, unanswered=unanswered)
        self._hint = hint
        self._forms = 0
        """That are being read. Of the event loop alone."""
        # Apart from the loop's own threads, which others wait for
        self._work = ThreadPoolExecutor(4, "page")
        self._asking = BoundedAuthorizer(RateLimitedAuthorizer(access, PATH), self._work)

    def mounted(self) -> Mapping[str, SitePage]:
        """By path. They look at tokens themselves, because browsers cannot send headers."""
        return {
            PATH: SitePage(self._respond, is_open=True, methods=frozenset({"GET", "HEAD", "POST"})),
            "/": SitePage(self._home, is_open=True),
        }

    def close(self) -> None:
        """Give the threads back."""
        self._work.shutdown(wait=False, cancel_futures=True)

    async def _home(self, request: web.BaseRequest) -> HttpResponse:
        return (
            _redirect(PATH.lstrip("/"))
            if request.path in ("/", PATH.rstrip("/"))
            else HttpResponse(404, b"there is nothing here")
        )

    async def _respond(self, request: web.BaseRequest) -> HttpResponse:
        response = await self._answered(request, request.path.removeprefix(PATH))
        return HttpResponse(response.status, response.body, response.type, {**HEADERS, **response.headers})

    async def _answered(self, request: web.BaseRequest, path: str) -> HttpResponse:
        if request.method == "POST":
            if path not in ("login", "logout"):
                return HttpResponse(405, b"must be GET", headers={"Allow": "GET, HEAD"})
            if not is_same_origin(request):
                return HttpResponse(403, b"this form was sent by another page")
            return await self._login(request) if path == "login" else _redirect("./", token_cookie(request, ""))
        if (name := path.removeprefix("static/")) in _STATIC and name != path:
            return _static(request, name)
        if path == "login":
            return self._form(200)
        if path not in ("", "view"):
            return HttpResponse(404, b"there is nothing here")
        status = await self._status(request, request_token(request))
        if status != 200:
            return self._refused(request, status, is_page=path == "")
        query = PageQuery.of(request.query)
        return await self._off(self._shown, request, query, path == "")

    async def _login(self, request: web.BaseRequest) -> HttpResponse:
        if self._forms >= MAX_FORMS:
            return self._form(429)
        self._forms += 1
        try:
            token = token_of_form(await read_body(request, MAX_FORM, FORM_SECONDS))
        finally:
            self._forms -= 1
        status = 401 if token is None else await self._status(request, token)
        if token is not None and status == 200:
            return _redirect("./", token_cookie(request, token))
        return self._form(status)

    async def _status(self, request: web.BaseRequest, token: str | None) -> int:
        return await self._asking.status(token, request.remote or "")

    def _shown(self, request: web.BaseRequest, query: PageQuery, is_page: bool) -> HttpResponse:
        try:
            seen = self._sight.latest()
        except StoreError as error:
            return _html(
                503,
                render_document(render_problem("The store cannot be read", str(error)), signed_in=True),
            )
        asks = any(row.startswith("claim:") for row in query.open)
        refusals = self._sight.refusals(seen) if asks else NO_REFUSALS
        mark = _etag(seen, query, is_page, refusals)
        if mark in request.headers.get("If-None-Match", ""):
            return HttpResponse(304, b"", HTML, {"ETag": mark})
        body = render_overview(seen.overview, query, seen.trouble, warns=seen.warns, refusals=refusals)
        if is_page:
            body = render_document(body, signed_in=True, query=query)
        return _compressed(request, HttpResponse(200, body.encode("utf-8", "replace"), HTML, {"ETag": mark}))

    def _refused(self, request: web.BaseRequest, status: int, *, is_page: bool) -> HttpResponse:
        if status == 401 and request_token(request) is None:
            return self._form(200 if is_page else 401)  # nothing was refused
        return self._form(status)

    def _form(self, status: int) -> HttpResponse:
        headers = {"Retry-After": str(int(REFILL_SECONDS))} if status == 429 else {}
        body = render_document(login_form(status, self._hint), signed_in=status == 403)
        return _html(status, body, headers)

    async def _off(self, call: Callable[..., T], *args: object) -> T:
        """In a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._work, call, *args)


def _html(status: int, body: Markup, headers: Mapping[str, str] | None = None) -> HttpResponse:
    return HttpResponse(status, body.encode("utf-8", "replace"), HTML, dict(headers or {}))


def _redirect(where: str, cookie: str | None = None) -> HttpResponse:
    return HttpResponse(303, b"", headers={"Location": where, **({} if cookie is None else {"Set-Cookie": cookie})})


def _etag(seen: CachedOverview, query: PageQuery, is_page: bool, refusals: Refusals) -> str:
    """The ETag: of what is seen, and what is asked, and by which version."""
    opened = {tuple(row.removeprefix("claim:").split("/", 1)) for row in query.open}
    shown = [refusals[key] for key in sorted(refusals.keys() & opened)]
    of = repr((seen.version, query, is_page, shown, [_asset(name)[1] for name in _STATIC]))
    return f'W/"{hashlib.sha256(of.encode()).hexdigest()[:32]}"'


def _compressed(request: web.BaseRequest, answer: HttpResponse) -> HttpResponse:
    if len(answer.body) < MIN_COMPRESSED or "gzip" not in request.headers.get("Accept-Encoding", ""):
        return answer
    headers = {**answer.headers, "Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return HttpResponse(answer.status, gzip.compress(answer.body, 5, mtime=0), answer.type, headers)


def _static(request: web.BaseRequest, name: str) -> HttpResponse:
    body, mark = _asset(name)
    headers = {"ETag": mark, "Cache-Control": "no-cache"}
    if mark in request.headers.get("If-None-Match", ""):
        return HttpResponse(304, b"", _STATIC[name], headers)
    return _compressed(request, HttpResponse(200, body, _STATIC[name], headers))


@cache
def _asset(name: str) -> tuple[bytes, str]:
    """A file of the package, and its ETag."""
    body = resources.files("devalloc.usage.page").joinpath("static", quote(name)).read_bytes()
    return body, f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'
