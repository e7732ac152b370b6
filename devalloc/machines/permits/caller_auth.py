"""Authentication of permit requests on a cluster: the plugin of a node, for the machines of that node only, and the
proxy of agents that have no token, for machines that they name by their runner pods.

A request comes with the token that the plugin has for the API server. The API server says whose token it is
(TokenReview) and whether that user may ``prepare`` machines, as the policies check too; the token itself names the node
on which it is used. So a thief of the token gets the machines of one node only (T30).
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from devalloc.controller.authorization import MAX_TOKEN, PostRequest, RateLimitedAuthorizer, is_allowed, token_user

log = logging.getLogger(__name__)

CACHE_SECONDS = 60.0
"""How long a token that was good is believed: machines ask every few seconds."""
REJECTED_CACHE_SECONDS = 10.0
MAX_CACHED = 10_000
NODE_NAME_KEY = "authentication.kubernetes.io/node-name"
_MACHINES = {"group": "devalloc.io", "resource": "virtualmachines", "verb": "prepare"}
_BY_POD = {"group": "devalloc.io", "resource": "virtualmachines", "subresource": "permits", "verb": "proxy"}


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks."""

    node: str | None = None
    """The one for whose machines he may ask; None: for those of all."""
    by_pod: bool = False
    """He may name machines by their runner pods only."""


ANYONE = Caller()
"""A caller whom nothing limits."""
PROXY = Caller(by_pod=True)


@dataclass(frozen=True, slots=True)
class CallerRejected:
    """Why a caller may not ask."""

    status: int
    text: str


_REJECTIONS = {
    401: "a token that the API server knows is required: Authorization: Bearer ...",
    403: "the token must be that of a node's plugin: bound to a pod or Node, of an account that may prepare "
    "virtualmachines; or that of a pod that may proxy virtualmachines/permits",
    429: "too many wrong tokens from this address; wait some seconds",
    503: "the API server cannot check this token now; try again",
}


class NodeTokenAuthenticator:
    """Knows by what the API server says who those are that ask. Use from any thread; answers are kept for a while."""

    def __init__(self, post: PostRequest, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``post``: creates reviews, as for ``RateLimitedAuthorizer``."""
        self._post = post
        self._clock = clock
        self._lock = threading.Lock()
        self._callers: OrderedDict[bytes, tuple[int, Caller | None, float]] = OrderedDict()
        """By the digest of a token: the status, whose it is, until when that is believed."""
        self._guard = RateLimitedAuthorizer(self, "", clock=clock)

    def caller_of(self, token: str | None, address: str) -> Caller | CallerRejected:
        """Whose token it is; a call may take as long as the API server does."""
        status = self._guard.status(token, address)
        if status != 200 or token is None:
            return CallerRejected(status, _REJECTIONS[status])
        _, caller = self._looked_up(token)
        return caller or CallerRejected(503, _REJECTIONS[503])

    def status(self, token: str | None, path: str) -> int:
        """For the guard: 200, 401, 403 or 503."""
        return 401 if not token or len(token) > MAX_TOKEN else self._looked_up(token)[0]

    def _looked_up(self, token: str) -> tuple[int, Caller | None]:
        key, now = hashlib.sha256(token.encode("utf-8", "replace")).digest(), self._clock()
        with self._lock:
            status, caller, until = self._callers.get(key, (0, None, now))
        if now < until:
            return status, caller
        try:
            status, caller = self._review(token)
        except Exception as error:  # whatever way to the API server there is
            log.warning("cannot check who requests permits: %s", error)
            return 503, None
        with self._lock:
            self._callers[key] = status, caller, now + (CACHE_SECONDS if status == 200 else REJECTED_CACHE_SECONDS)
            while len(self._callers) > MAX_CACHED:
                self._callers.popitem(last=False)
        return status, caller

    def _review(self, token: str) -> tuple[int, Caller | None]:
        user = token_user(self._post, token)
        if user is None:
            return 401, None
        extra = user.get("extra")
        nodes = extra.get(NODE_NAME_KEY) if isinstance(extra, dict) else None
        node = nodes[0] if isinstance(nodes, list) and len(nodes) == 1 else None
        if not isinstance(node, str) or not node:  # an administrator's, who may do everything and runs nowhere
            return 403, None
        if is_allowed(self._post, user, {"resourceAttributes": dict(_MACHINES)}):
            return 200, Caller(node)
        return (200, PROXY) if is_allowed(self._post, user, {"resourceAttributes": dict(_BY_POD)}) else (403, None)
