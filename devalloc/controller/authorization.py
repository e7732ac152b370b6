"""Authorization by the cluster: whose token it is, whether that user may read a path (T31), and a limit on guesses.

It sends what Kubernetes' own components send: a TokenReview, then a SubjectAccessReview for ``get`` of the path, which
a role allows by ``nonResourceURLs``. Answers are cached for a few seconds, so that a client that reads every second
does not cause three requests a second.

A token must be for an audience of devalloc's own. Someone who steals it, for example by posing as this server to a
client that does not verify certificates, cannot use it elsewhere: the API server does not accept it.
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

from devalloc.api.views import as_mapping

log = logging.getLogger(__name__)

Object = dict[str, Any]
PostRequest = Callable[[str, Object], Object]
"""Creates an object at a path of the API server and returns what it answers. Raises whatever it raises."""

AUDIENCE = "devalloc"
"""For whom tokens are that the page and metrics take: ``kubectl create token NAME --audience devalloc``."""
CACHE_SECONDS = 10.0
MAX_CACHED = 1000
MAX_TOKEN = 16 << 10
TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
WRONG_TOKEN_BURST = 5
"""Wrong tokens from one address, one after the other; then one more each REFILL_SECONDS."""
REFILL_SECONDS = 3.0
MAX_ADDRESSES = 4096
MAX_WAITING = 48
"""Of 256 connections: the others stay free for the health checks by which the kubelet judges the controller."""
REMEMBER_SECONDS = 300.0
"""For so long after a token was good, it is reviewed however many wrong ones come from the same address."""


class ClusterAuthorizer:
    """Use from any thread; a call may take as long as the API server does."""

    def __init__(
        self, post: PostRequest, *, audience: str = AUDIENCE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``audience``: the audience that tokens must have; empty for the API server itself."""
        self._post = post
        self._audience = audience
        self._clock = clock
        self._lock = threading.Lock()
        self._statuses: dict[tuple[bytes, str], tuple[int, float]] = {}

    def status(self, token: str | None, path: str) -> int:
        """HTTP status: 200 if the caller may read it, 401 without a good token, 403, or 503 if the check failed."""
        if not token or len(token) > MAX_TOKEN:
            return 401
        key, now = (hashlib.sha256(token.encode("utf-8", "replace")).digest(), path), self._clock()
        with self._lock:
            status, since = self._statuses.get(key, (0, -CACHE_SECONDS))
        if now - since < CACHE_SECONDS:
            return status
        try:
            status = self._review(token, path)
        except Exception as error:  # whatever way to the API server there is
            log.warning("the API server cannot check who can read %s: %s", path, error)
            return 503
        with self._lock:
            if len(self._statuses) >= MAX_CACHED:
                self._statuses.clear()
            self._statuses[key] = status, now
        return status

    def _review(self, token: str, path: str) -> int:
        user = token_user(self._post, token, self._audience)
        if user is None:
            return 401
        return 200 if is_allowed(self._post, user, {"nonResourceAttributes": {"path": path, "verb": "get"}}) else 403


def token_user(post: PostRequest, token: str, audience: str = "") -> Mapping[str, Any] | None:
    """Whose token it is, as TokenReviews have it; None for one that is not good. Raises what ``post`` does.

    ``audience``: for whom it must be, if not for the API server. An answer that names no audience is of a token for the
    API server, as Kubernetes has it.
    """
    spec: Object = {"token": token} | ({"audiences": [audience]} if audience else {})
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
    status = as_mapping(post(TOKEN_REVIEWS, review).get("status"))
    user, audiences = as_mapping(status.get("user")), status.get("audiences")
    if audience and not (isinstance(audiences, list) and audience in audiences):
        return None
    return user if status.get("authenticated") is True and user.get("username") else None


def is_allowed(post: PostRequest, user: Mapping[str, Any], what: Object) -> bool:
    """Whether a user is allowed to do that. ``what``: as in the spec of SubjectAccessReviews. Raises what ``post``
    does."""
    who = {
        "user": user["username"],
        "uid": user.get("uid", ""),
        "groups": user.get("groups") or [],
        "extra": user.get("extra") or {},
    }
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {**who, **what}}
    return as_mapping(post(ACCESS_REVIEWS, review).get("status")).get("allowed") is True


class BoundedAuthorizer:
    """Bounds how many reviews run at once, in threads: the API server may be slow, and each caller that waits for it
    uses a connection of the HTTP server. Belongs to one event loop."""

    def __init__(self, guard: RateLimitedAuthorizer, threads: ThreadPoolExecutor) -> None:
        self._guard = guard
        self._threads = threads
        self._waiting = 0

    async def status(self, token: str | None, address: str, path: str | None = None) -> int:
        """As of ``RateLimitedAuthorizer``; 503 as well if too many wait."""
        if self._waiting >= MAX_WAITING:
            return 503
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self._guard.status, token, address, path)
        finally:
            self._waiting -= 1


class Authorizer(Protocol):
    """Who may read what: ``ClusterAuthorizer``, or one that accepts a single token."""

    def status(self, token: str | None, path: str) -> int:
        """200, 401, 403 or 503."""


class RateLimitedAuthorizer:
    """Limits how often a client can guess tokens. Use from any thread."""

    def __init__(self, access: Authorizer, path: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._access = access
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By address: how many tries were left, and when."""
        self._good_tokens: OrderedDict[bytes, float] = OrderedDict()

    def status(self, token: str | None, address: str, path: str | None = None) -> int:
        """200, 401, 403, 503, or 429 after too many wrong tokens from there. ``path``: another than the usual one."""
        if not token:
            return 401
        digest = hashlib.sha256(token.encode("utf-8", "replace")).digest()
        with self._lock:
            now = self._clock()
            is_known = now - self._good_tokens.get(digest, -REMEMBER_SECONDS) < REMEMBER_SECONDS
            left = self._tries(address, now)
            if not is_known:
                if left < 1:
                    return 429
                self._left[address] = left - 1, now  # until it turns out to be a good one
        status = self._access.status(token, self._path if path is None else path)
        with self._lock:
            if not is_known and status != 401:
                self._left[address] = min(WRONG_TOKEN_BURST, self._tries(address, now) + 1), now
            if status == 200:
                self._good_tokens[digest] = now
            elif status == 401:
                self._good_tokens.pop(digest, None)
            for entries, most in ((self._left, MAX_ADDRESSES), (self._good_tokens, MAX_ADDRESSES)):
                while len(entries) > most:
                    entries.popitem(last=False)
        return status

    def _tries(self, address: str, now: float) -> float:
        left, since = self._left.get(address, (float(WRONG_TOKEN_BURST), now))
        return min(WRONG_TOKEN_BURST, left + (now - since) / REFILL_SECONDS)
