"""An HTTP client with bounds on size and time and without redirects. It keeps denied, failed and unknown apart. Metrics
of guests are fetched with it.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass

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
from devalloc_node.errors import Failed, NodeError, Unknown

_log = logging.getLogger(__name__)
MAX_SHOWN = 200
"""Characters of an answer that are shown in an error."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What came back."""

    status: int
    body: bytes

    @property
    def shown(self) -> str:
        """The body for people, cut."""
        text = self.body[:MAX_SHOWN].decode(errors="replace").strip()
        return "".join(each if each.isprintable() else " " for each in text)


def new_session() -> aiohttp.ClientSession:
    """What requests go out by: no cookies, no proxies of the environment, and nothing is unpacked that could swell.

    There is no limit of connections but that of those who ask, each of whom waits for one answer: of a limit that is
    shared, hosts that do not answer would use up what the others need.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, use_dns_cache=False),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        headers={"Accept-Encoding": "identity", "User-Agent": "devalloc"},
        timeout=aiohttp.ClientTimeout(total=None),
    )


async def fetch_bounded(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    most: int,
    *,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> HttpAnswer:
    """One request. ``most``: bytes of the answer. ``tls``: by which the server is known; None: the host's. The caller
    bounds the time.

    Raises:
        Failed: no answer (``Unreachable``), or the answer is too long (``AnswerTooLong``).
        Unknown: it was sent, and no whole answer came (``NoAnswer``).
    """
    try:
        async with session.request(
            method, url, data=body, headers=headers, allow_redirects=False, ssl=tls or True
        ) as response:
            answer = bytearray()
            async for part in response.content.iter_chunked(1 << 16):
                answer += part
                if len(answer) > most:
                    raise Failed("AnswerTooLong", f"{url} answers with more than {most} bytes")
            return HttpAnswer(response.status, bytes(answer))
    except aiohttp.ClientConnectorCertificateError as error:
        why = getattr(error.certificate_error, "verify_message", "") or error.certificate_error
        todo = "it must be for that name, and signed by an authority that is trusted here"
        raise Failed("Unreachable", f"the certificate of {url} cannot be verified: {why}; {todo}") from None
    except aiohttp.ClientSSLError as error:
        raise Failed(
            "Unreachable", f"{url} is another server than the one expected, or does not speak TLS: {error}"
        ) from None
    except aiohttp.ClientConnectorError as error:
        raise Failed("Unreachable", f"{url} cannot be reached: {error.os_error.strerror or error}") from None
    except aiohttp.ClientResponseError as error:  # its text has what was answered
        _log.info("%s does not answer in HTTP: %s", url, error)
        raise Unknown("NoAnswer", f"{url} does not answer in HTTP") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise Unknown("NoAnswer", f"{url} did not answer: {error or type(error).__name__}") from None


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
    ) -> None:
        """``host``: the address of its guest, never a name. ``system_port``: asked each time where it may change."""
        self._place = f"[{host}]" if ":" in host else host
        self._session, self._era = session, era
        self._system_port: Callable[[], int] = (lambda: system_port) if isinstance(system_port, int) else system_port
        self._lfc_port = lfc_port

    async def system(self) -> SystemMetrics:
        """Load and memory. Raises Failed (``MetricsUnavailable``)."""
        url = self._url(self._system_port())
        text = await self._text(url)
        try:
            return read_system_metrics(text, self._era)
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
