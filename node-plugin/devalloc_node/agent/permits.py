"""The agent's end of the permit protocol: one machine asks what it may have."""

from __future__ import annotations

from collections.abc import Callable

import aiohttp

from devalloc.scaling.messages.plugin import (
    MAX_BODY,
    Metrics,
    PodName,
    Request,
    WireResources,
    decode_reply,
    encode_request,
)
from devalloc.scaling.metrics import SystemMetrics
from devalloc.scaling.peerjson import Unreadable
from devalloc.scaling.resources import Resources
from devalloc.scaling.versions import PluginVersion
from devalloc_node.agent.fetch import fetch
from devalloc_node.errors import Denied, Failed

VERSION = PluginVersion(7)
"""v5.0, the newest: an agent sends one version, and a server that does not know it refuses."""


class HttpPermits:
    """Asks for one machine. Many share a session."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        pod: PodName,
        unit: Resources,
        token: str | None = None,
        may_ask: Callable[[], bool] = lambda: True,
    ) -> None:
        """``url``: of the server, such as ``http://127.0.0.1:10299/``; ``pod``: what the machine is called there;
        ``may_ask``: whether who listens there is that server."""
        self._session, self._url, self._pod, self._may_ask = session, url, pod, may_ask
        self._unit = WireResources(unit.cpu, unit.memory)
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"

    async def ask(self, last: Resources | None, target: Resources, metrics: SystemMetrics | None) -> Resources:
        """What the machine may have in all.

        Raises:
            Denied: the server refuses the request (``PermitRefused``), or migrates the machine (``MachineMigrating``).
            Failed: it cannot be reached, or another one is there (``Unreachable``), or it failed itself or answers
                nonsense (``PermitFailed``).
            Unknown: no answer came (``NoAnswer``).
        """
        if not self._may_ask():
            raise Failed("Unreachable", f"the server of permits of this node does not serve at {self._url}")
        request = Request(
            VERSION,
            self._pod,
            _wire(target),
            self._unit,
            None if last is None else _wire(last),
            None if metrics is None else Metrics(metrics.load1),
        )
        body = encode_request(request)
        answer = await fetch(self._session, "POST", self._url, MAX_BODY, body=body, headers=self._headers)
        if answer.status >= 500:
            raise Failed("PermitFailed", f"{self._url} answers {answer.status}: {answer.shown}")
        if answer.status != 200:
            raise Denied("PermitRefused", f"{self._url} answers {answer.status}: {answer.shown}", retryable=True)
        try:
            reply = decode_reply(answer.body)
        except Unreadable as error:
            raise Failed("PermitFailed", f"{self._url} answers what cannot be read: {error}") from None
        if reply.migrate:
            raise Denied("MachineMigrating", f"{self._pod} is about to be migrated and stays as it is", retryable=True)
        return Resources(reply.permit.cpu, reply.permit.memory)


def _wire(amounts: Resources) -> WireResources:
    return WireResources(amounts.cpu, amounts.memory)
