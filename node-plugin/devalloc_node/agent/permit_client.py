"""The agent's side of the permit protocol: ask what one machine may have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp

from devalloc.scaling.messages.plugin import (
    MAX_BODY,
    LoadMetrics,
    PermitRequest,
    PodName,
    WireResources,
    decode_reply,
    encode_request,
)
from devalloc.scaling.metrics import SystemMetrics
from devalloc.scaling.peer_json import Unreadable
from devalloc.scaling.resources import Resources
from devalloc.scaling.versions import PluginVersion
from devalloc_node.agent.http_client import fetch_bounded
from devalloc_node.agent.permit_endpoint import PermitEndpoint
from devalloc_node.errors import Denied, Failed, Unknown

VERSION = PluginVersion(7)
"""v5.0, the newest: an agent sends one version, and a server that does not know it refuses."""


class HttpPermits:
    """Asks for one machine. Many share a session."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        endpoint: PermitEndpoint,
        pod: PodName,
        unit: Resources,
        may_ask: Callable[[], bool] = lambda: True,
    ) -> None:
        """``pod``: what the machine is called there; ``may_ask``: whether who listens there is that server."""
        self._session, self._endpoint, self._pod, self._may_ask = session, endpoint, pod, may_ask
        self._unit = WireResources(unit.cpu, unit.memory)

    async def ask(self, last: Resources | None, target: Resources, metrics: SystemMetrics | None) -> Resources:
        """What the machine may have in all.

        Raises:
            Denied: the server refuses the request (``PermitRefused``), or migrates the machine (``MachineMigrating``).
            Failed: it cannot be reached, or another one is there (``Unreachable``), or it failed itself or answers
                nonsense (``PermitFailed``).
            Unknown: no answer came (``NoAnswer``).
        """
        server = await self._endpoint.server()
        if not self._may_ask():
            raise Failed("Unreachable", f"the permit server of this node does not listen at {server.url}")
        request = PermitRequest(
            VERSION,
            self._pod,
            _wire(target),
            self._unit,
            None if last is None else _wire(last),
            None if metrics is None else LoadMetrics(metrics.load1),
        )
        headers = {"Content-Type": "application/json"}
        if server.token is not None:
            headers["Authorization"] = f"Bearer {server.token}"
        body = encode_request(request)
        try:
            answer = await fetch_bounded(
                self._session, "POST", server.url, MAX_BODY, body=body, headers=headers, tls=server.tls
            )
        except (Failed, Unknown, asyncio.CancelledError):
            self._endpoint.doubt()
            raise
        if answer.status in (401, 403) or answer.status >= 500:
            self._endpoint.doubt()
        if answer.status >= 500:
            raise Failed("PermitFailed", f"{server.url} answers {answer.status}: {answer.shown}")
        if answer.status != 200:
            raise Denied("PermitRefused", f"{server.url} answers {answer.status}: {answer.shown}", retryable=True)
        try:
            reply = decode_reply(answer.body)
        except Unreadable as error:
            raise Failed("PermitFailed", f"unreadable answer of {server.url}: {error}") from None
        if reply.migrate:
            raise Denied("MachineMigrating", f"{self._pod} is about to be migrated and stays as it is", retryable=True)
        return Resources(reply.permit.cpu, reply.permit.memory)


def _wire(amounts: Resources) -> WireResources:
    return WireResources(amounts.cpu, amounts.memory)
