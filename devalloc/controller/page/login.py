"""Who may see the page: by a token, in a header or in a cookie that only this page gets and no script reads.

The cookie holds the token itself, so that each replica knows it and a restart forgets nobody; it goes with the browser.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from http.cookies import SimpleCookie
from typing import Protocol
from urllib.parse import parse_qs, urlsplit

from aiohttp import web

MAX_TOKEN = 3800
"""Characters; a browser keeps no longer cookies."""
MAX_FORM = 8192
TRIES = 5
"""Wrong tokens from one address, one after the other; then one more each REFILL_SECONDS."""
REFILL_SECONDS = 3.0
MOST_ADDRESSES = 4096
KNOWN_SECONDS = 300.0
"""A token that was good so long ago may be asked about however many wrong ones come from the same address."""

_PORT = re.compile(r":(\d{1,5})$", re.ASCII)
_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*")


class Access(Protocol):
    """Who may read what: ``devalloc.controller.access``, or ``OneToken``."""

    def status(self, token: str | None, path: str) -> int:
        """200, 401, 403 or 503."""


class OneToken:
    """Whoever has this token may read all."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    def status(self, token: str | None, path: str) -> int:
        """200 or 401."""
        return 200 if token and hmac.compare_digest(token.encode("utf-8", "replace"), self._token) else 401


class Guard:
    """Asks who may see, and not too often for those who guess. Use from any thread."""

    def __init__(self, access: Access, path: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._access = access
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By address: how many tries were left, and when."""
        self._known: OrderedDict[bytes, float] = OrderedDict()

    def status(self, token: str | None, address: str) -> int:
        """200, 401, 403, 503, or 429 after too many wrong tokens from there."""
        if not token:
            return 401
        digest = hashlib.sha256(token.encode("utf-8", "replace")).digest()
        with self._lock:
            now = self._clock()
            is_known = now - self._known.get(digest, -KNOWN_SECONDS) < KNOWN_SECONDS
            left = self._tries(address, now)
            if not is_known:
                if left < 1:
                    return 429
                self._left[address] = left - 1, now  # until it turns out to be a good one
        status = self._access.status(token, self._path)
        with self._lock:
            if not is_known and status != 401:
                self._left[address] = min(TRIES, self._tries(address, now) + 1), now
            if status == 200:
                self._known[digest] = now
            elif status == 401:
                self._known.pop(digest, None)
            for kept, most in ((self._left, MOST_ADDRESSES), (self._known, MOST_ADDRESSES)):
                while len(kept) > most:
                    kept.popitem(last=False)
        return status

    def _tries(self, address: str, now: float) -> float:
        left, since = self._left.get(address, (float(TRIES), now))
        return min(TRIES, left + (now - since) / REFILL_SECONDS)


def cookie_name(request: web.BaseRequest) -> str:
    """With TLS one that no other host and no unencrypted connection can set. Another port has another cookie."""
    port = _PORT.search(request.headers.get("Host", ""))
    return "__Host-devalloc" if request.secure else f"devalloc-{port[1] if port else 80}"


def token_of(request: web.BaseRequest) -> str | None:
    """From ``Authorization: Bearer``, else from the cookie."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip() or None
    return request.cookies.get(cookie_name(request)) or None


def kept(request: web.BaseRequest, token: str) -> str:
    """The header that has the browser keep the token; "" as token makes it forget."""
    name = cookie_name(request)
    cookie: SimpleCookie = SimpleCookie()
    cookie[name] = token
    morsel = cookie[name]
    morsel["path"], morsel["httponly"], morsel["samesite"], morsel["secure"] = "/", True, "Strict", request.secure
    if not token:
        morsel["max-age"] = 0
    return morsel.OutputString()


def is_from_here(request: web.BaseRequest) -> bool:
    """Whether a form was sent by this very page: nobody else's page signs anybody in or out."""
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("Origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("Host")


def token_in(form: bytes) -> str | None:
    """The token in a form that was sent; None where there is none that could be one."""
    try:
        fields = parse_qs(form.decode(), max_num_fields=4)
    except ValueError:
        return None
    token = fields.get("token", [""])[0].strip()
    return token if len(token) <= MAX_TOKEN and _TOKEN.fullmatch(token) else None
