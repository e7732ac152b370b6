"""Whether somebody may read a path, as the cluster says: who a token is, and what that one may do (T31); and how often
one may guess.

Asked is what Kubernetes' own components ask: a TokenReview, then a SubjectAccessReview for ``get`` of the path, which
a role allows by ``nonResourceURLs``. Answers are kept for a few seconds, so that one who looks every second is not
three requests a second.

A token must be for an audience of devalloc's own. Whoever gets hold of it, by playing this server to somebody who does
not verify certificates for instance, can then do nothing else with it: the API server does not take it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

log = logging.getLogger(__name__)

Object = dict[str, Any]
Post = Callable[[str, Object], Object]
"""Creates an object at a path of the API server and returns what it answers. Raises whatever it raises."""

AUDIENCE = "devalloc"
"""For whom tokens are that the page and metrics take: ``kubectl create token NAME --audience devalloc``."""
KEPT_SECONDS = 10.0
MOST_KEPT = 1000
MAX_TOKEN = 16 << 10
TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
TRIES = 5
"""Wrong tokens from one address, one after the other; then one more each REFILL_SECONDS."""
REFILL_SECONDS = 3.0
MOST_ADDRESSES = 4096
MOST_WAITING = 48
"""Of 256 connections: health, by which the kubelet judges the controller, is to be asked for through the others."""
KNOWN_SECONDS = 300.0
"""A token that was good so long ago may be asked about however many wrong ones come from the same address."""


class Access:
    """Use from any thread; a call may take as long as the API server does."""

    def __init__(self, post: Post, *, audience: str = AUDIENCE, clock: Callable[[], float] = time.monotonic) -> None:
        """``audience``: for whom tokens must be; empty for the API server itself."""
        self._post = post
        self._audience = audience
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[tuple[bytes, str], tuple[int, float]] = {}

    def status(self, token: str | None, path: str) -> int:
        """Of HTTP: 200 where it may be read, 401 without a good token, 403, or 503 where nobody can tell."""
        if not token or len(token) > MAX_TOKEN:
            return 401
        key, now = (hashlib.sha256(token.encode("utf-8", "replace")).digest(), path), self._clock()
        with self._lock:
            status, since = self._known.get(key, (0, -KEPT_SECONDS))
        if now - since < KEPT_SECONDS:
            return status
        try:
            status = self._asked(token, path)
        except Exception as error:  # whatever way to the API server there is
            log.warning("the API server does not tell who may read %s: %s", path, error)
            return 503
        with self._lock:
            if len(self._known) >= MOST_KEPT:
                self._known.clear()
            self._known[key] = status, now
        return status

    def _asked(self, token: str, path: str) -> int:
        user = user_of(self._post, token, self._audience)
        if user is None:
            return 401
        return 200 if may(self._post, user, {"nonResourceAttributes": {"path": path, "verb": "get"}}) else 403


def user_of(post: Post, token: str, audience: str = "") -> Mapping[str, Any] | None:
    """Whose token it is, as TokenReviews have it; None for one that is not good. Raises what ``post`` does.

    ``audience``: for whom it must be, if not for the API server. An answer that names no audience is of a token for the
    API server, as Kubernetes has it.
    """
    asked: Object = {"token": token} | ({"audiences": [audience]} if audience else {})
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": asked}
    status = _map(post(TOKENS, review).get("status"))
    user, audiences = _map(status.get("user")), status.get("audiences")
    if audience and not (isinstance(audiences, list) and audience in audiences):
        return None
    return user if status.get("authenticated") is True and user.get("username") else None


def may(post: Post, user: Mapping[str, Any], what: Object) -> bool:
    """Whether somebody is allowed to do that. ``what``: as in the spec of SubjectAccessReviews. Raises what ``post``
    does."""
    who = {
        "user": user["username"],
        "uid": user.get("uid", ""),
        "groups": user.get("groups") or [],
        "extra": user.get("extra") or {},
    }
    asked = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {**who, **what}}
    return _map(post(ACCESS, asked).get("status")).get("allowed") is True


class Asking:
    """So many questions at once and no more, in threads: the API server may take long, and whoever waits for it has a
    connection of the door. Of one event loop."""

    def __init__(self, guard: Guard, threads: ThreadPoolExecutor) -> None:
        self._guard = guard
        self._threads = threads
        self._waiting = 0

    async def status(self, token: str | None, address: str, path: str | None = None) -> int:
        """As of ``Guard``; 503 as well where too many wait."""
        if self._waiting >= MOST_WAITING:
            return 503
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self._guard.status, token, address, path)
        finally:
            self._waiting -= 1


class Judge(Protocol):
    """Who may read what: ``Access``, or one who knows a single token."""

    def status(self, token: str | None, path: str) -> int:
        """200, 401, 403 or 503."""


class Guard:
    """Asks who may see, and not too often for those who guess. Use from any thread."""

    def __init__(self, access: Judge, path: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._access = access
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By address: how many tries were left, and when."""
        self._known: OrderedDict[bytes, float] = OrderedDict()

    def status(self, token: str | None, address: str, path: str | None = None) -> int:
        """200, 401, 403, 503, or 429 after too many wrong tokens from there. ``path``: another than the usual one."""
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
        status = self._access.status(token, self._path if path is None else path)
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


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
