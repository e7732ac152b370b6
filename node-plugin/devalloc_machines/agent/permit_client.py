"""The agent's side of the permit protocol: where a node asks, and what one machine may have."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import aiohttp

from devalloc.scaling.messages.permits import (
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
from devalloc.scaling.permits.endpoint import PublishedEndpoint
from devalloc.scaling.resources import Resources, ScalingBounds
from devalloc.scaling.versions import PluginVersion
from devalloc_machines.agent.http_client import fetch_bounded
from devalloc_node.errors import Denied, Failed, Unknown

KEPT_SECONDS = 60.0
"""How long what was read of the cluster is believed; tokens are replaced long before they run out."""
LEAST_SECONDS = 2.0
"""How long it is believed at least: many machines may find at once that another one leads."""


@dataclass(frozen=True, slots=True)
class PermitServerAddress:
    """One to ask."""

    url: str
    token: str | None = None
    tls: ssl.SSLContext | None = None
    """By whose certificates it is known; None: by the host's."""


class PermitEndpoint(Protocol):
    """Use from one event loop."""

    async def server(self) -> PermitServerAddress:
        """Raises Failed (``Unreachable``) if the address is unknown."""

    def doubt(self) -> None:
        """It did not answer as it should: it may be another one by now."""


@dataclass(frozen=True, slots=True)
class StaticEndpoint:
    """Always the same."""

    url: str
    token: str | None = None

    async def server(self) -> PermitServerAddress:
        """As it was told."""
        return PermitServerAddress(self.url, self.token)

    def doubt(self) -> None:
        """There is no other."""


class ClusterEndpoint:
    """As the cluster's controller says, with this node's token for the cluster."""

    def __init__(self, read: Callable[[], tuple[PublishedEndpoint, str]]) -> None:
        """``read``: asks the API server where it is, and what this node's token is now; called in a thread. Raises
        ValueError."""
        self._read = read
        self._reading = asyncio.Lock()
        self._cached: tuple[PublishedEndpoint, PermitServerAddress] | None = None
        self._error: Failed | None = None
        self._since = self._until = 0.0

    async def server(self) -> PermitServerAddress:
        """As it was read last, or is now."""
        clock = asyncio.get_running_loop().time
        async with self._reading:
            if clock() < self._until:
                if self._error is not None:
                    raise self._error
                if self._cached is not None:
                    return self._cached[1]
            try:
                place, token = await asyncio.to_thread(self._read)
                context = self._cached[1].tls if self._cached and self._cached[0] == place else place.tls_context()
            except ValueError as error:
                self._error = Failed("Unreachable", str(error))
                self._since, self._until = clock(), clock() + LEAST_SECONDS
                raise self._error from None
            server = PermitServerAddress(place.url, token, context)
            self._cached, self._error = (place, server), None
            self._since, self._until = clock(), clock() + KEPT_SECONDS
            return server

    def doubt(self) -> None:
        """Read it again for the next request, if that was not just now."""
        self._until = min(self._until, self._since + LEAST_SECONDS)


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
            raise Denied("PermitRefused", f"{server.url} answers {answer.status}: {answer.shown}")
        try:
            reply = decode_reply(answer.body)
        except Unreadable as error:
            raise Failed("PermitFailed", f"unreadable answer of {server.url}: {error}") from None
        if reply.migrate:
            raise Denied("MachineMigrating", f"{self._pod} is about to be migrated and stays as it is")
        return Resources(reply.permit.cpu, reply.permit.memory)


@dataclass(frozen=True, slots=True)
class OwnPermits:
    """Of a machine without an object, about which permit servers decide nothing: as much as it asks for, within its
    bounds. Whether the host has room for that is checked when QEMU gets the change."""

    bounds: ScalingBounds

    async def ask(self, last: Resources | None, target: Resources, metrics: SystemMetrics | None) -> Resources:
        """What the machine may have in all."""
        return target.least(self.bounds.max).most(self.bounds.min)


def _wire(amounts: Resources) -> WireResources:
    return WireResources(amounts.cpu, amounts.memory)
