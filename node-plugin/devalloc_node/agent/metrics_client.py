"""Fetch metrics from a guest. The guest is not trusted: see `devalloc.scaling.metrics`."""

from __future__ import annotations

from collections.abc import Callable

import aiohttp

from devalloc.scaling.metrics import (
    MAX_TEXT,
    LfcMetrics,
    MetricsError,
    SystemMetrics,
    read_lfc_metrics,
    read_system_metrics,
)
from devalloc.scaling.versions import ProtocolEra
from devalloc_node.agent.http_client import fetch_bounded
from devalloc_node.errors import Failed, NodeError


class HttpMetrics:
    """The metrics of one machine's guest. Many share a session."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        host: str,
        *,
        system_port: int | Callable[[], int] = 9100,
        lfc_port: int = 9499,
        era: ProtocolEra = ProtocolEra.NEWEST,
        prefix: str = "host_",
    ) -> None:
        """``host``: the address of its guest, never a name. ``system_port``: asked each time where it may change."""
        self._place = f"[{host}]" if ":" in host else host
        self._session, self._era, self._prefix = session, era, prefix
        self._system_port: Callable[[], int] = (lambda: system_port) if isinstance(system_port, int) else system_port
        self._lfc_port = lfc_port

    async def system(self) -> SystemMetrics:
        """Load and memory. Raises Failed (``MetricsUnavailable``)."""
        url = self._url(self._system_port())
        text = await self._text(url)
        try:
            return read_system_metrics(text, self._era, self._prefix)
        except MetricsError as error:
            raise Failed("MetricsUnavailable", f"{url}: {error}") from None

    async def lfc(self) -> LfcMetrics:
        """The cache's. Raises Failed (``MetricsUnavailable``)."""
        url = self._url(self._lfc_port)
        text = await self._text(url)
        try:
            return read_lfc_metrics(text, self._era)
        except MetricsError as error:
            raise Failed("MetricsUnavailable", f"{url}: {error}") from None

    def _url(self, port: int) -> str:
        return f"http://{self._place}:{port}/metrics"

    async def _text(self, url: str) -> bytes:
        try:
            answer = await fetch_bounded(self._session, "GET", url, MAX_TEXT)
        except NodeError as error:
            raise Failed("MetricsUnavailable", error.message) from None
        if answer.status != 200:
            raise Failed("MetricsUnavailable", f"{url} answers {answer.status}")
        return answer.body
