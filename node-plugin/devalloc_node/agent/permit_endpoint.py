"""Where a node asks for permits: a configured server, or the controller of its cluster, wherever that runs now."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from devalloc.scaling.permits.endpoint import PublishedEndpoint
from devalloc_node.errors import Failed

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
        """Raises Failed: nobody knows (``Unreachable``)."""

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
        Failed."""
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
                context = self._cached[1].tls if self._cached and self._cached[0] == place else _trusting(place)
            except Failed as error:
                self._error, self._since, self._until = error, clock(), clock() + LEAST_SECONDS
                raise
            server = PermitServerAddress(place.url, token, context)
            self._cached, self._error = (place, server), None
            self._since, self._until = clock(), clock() + KEPT_SECONDS
            return server

    def doubt(self) -> None:
        """Read it again for the next request, if that was not just now."""
        self._until = min(self._until, self._since + LEAST_SECONDS)


def _trusting(place: PublishedEndpoint) -> ssl.SSLContext:
    """This server's certificate, and no other."""
    try:
        context = ssl.create_default_context(cadata=place.certificate)
    except (ssl.SSLError, ValueError) as error:
        raise Failed("Unreachable", f"cannot read the certificate of the cluster's permit server: {error}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
