"""Who asks for permits on a cluster: the plugin of a node, for the machines of that node only.

A request comes with the token that the plugin has for the API server. This is asked whose it is (TokenReview), and
whether that one may ``prepare`` machines, as the policies ask too; the token itself says on which node it is used. So
whoever steals it has the machines of one node (T30).
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from devalloc.controller.access import MAX_TOKEN, Guard, Post, may, user_of

log = logging.getLogger(__name__)

KEPT_SECONDS = 60.0
"""How long a token that was good is believed: machines ask every few seconds."""
BAD_SECONDS = 10.0
MOST_KEPT = 10_000
NODE = "authentication.kubernetes.io/node-name"
_MACHINES = {"group": "devalloc.io", "resource": "virtualmachines", "verb": "prepare"}


@dataclass(frozen=True, slots=True)
class NotKnown:
    """Why somebody may not ask."""

    status: int
    text: str


_REFUSED = {
    401: "a token is needed that the API server knows: Authorization: Bearer ...",
    403: "the token must be that of a node's plugin: bound to a pod or Node, of an account that may prepare "
    "virtualmachines",
    429: "too many wrong tokens from this address; wait some seconds",
    503: "the API server does not tell whose token this is; ask again",
}


class Callers(Protocol):
    """Who those are that ask. Use from any thread; a call may take as long as the API server does."""

    def node_of(self, token: str | None, address: str) -> str | NotKnown:
        """The node whose machines he may ask for."""


class NodeTokens:
    """``Callers`` by what the API server says. Answers are kept for a while."""

    def __init__(self, post: Post, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``post``: creates reviews, as for ``Access``."""
        self._post = post
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, tuple[int, str, float]] = OrderedDict()
        """By the digest of a token: the status, the node, until when that is believed."""
        self._guard = Guard(self, "", clock=clock)

    def node_of(self, token: str | None, address: str) -> str | NotKnown:
        status = self._guard.status(token, address)
        if status != 200 or token is None:
            return NotKnown(status, _REFUSED[status])
        _, node = self._looked_up(token)
        return node or NotKnown(503, _REFUSED[503])

    def status(self, token: str | None, path: str) -> int:
        """For the guard: 200, 401, 403 or 503."""
        return 401 if not token or len(token) > MAX_TOKEN else self._looked_up(token)[0]

    def _looked_up(self, token: str) -> tuple[int, str]:
        key, now = hashlib.sha256(token.encode("utf-8", "replace")).digest(), self._clock()
        with self._lock:
            status, node, until = self._known.get(key, (0, "", now))
        if now < until:
            return status, node
        try:
            status, node = self._asked(token)
        except Exception as error:  # whatever way to the API server there is
            log.warning("the API server does not tell who asks for permits: %s", error)
            return 503, ""
        with self._lock:
            self._known[key] = status, node, now + (KEPT_SECONDS if status == 200 else BAD_SECONDS)
            while len(self._known) > MOST_KEPT:
                self._known.popitem(last=False)
        return status, node

    def _asked(self, token: str) -> tuple[int, str]:
        user = user_of(self._post, token)
        if user is None:
            return 401, ""
        extra = user.get("extra")
        nodes = extra.get(NODE) if isinstance(extra, dict) else None
        node = nodes[0] if isinstance(nodes, list) and len(nodes) == 1 else None
        if not isinstance(node, str) or not node:
            return 403, ""
        return (200, node) if may(self._post, user, {"resourceAttributes": dict(_MACHINES)}) else (403, "")
