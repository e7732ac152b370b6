"""Authentication for the page: a token in a header, or in a cookie that only this page gets and no script reads.

The cookie holds the token itself: each replica knows it, and a restart signs no one out. It goes with the browser.
"""

from __future__ import annotations

import hmac
import re
from http.cookies import SimpleCookie
from urllib.parse import parse_qs, urlsplit

from aiohttp import web

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
    """The token in a form that was sent; None where there is none that could be one."""
    try:
        fields = parse_qs(form.decode(), max_num_fields=4)
    except ValueError:
        return None
    token = fields.get("token", [""])[0].strip()
    return token if len(token) <= MAX_TOKEN and _TOKEN.fullmatch(token) else None
