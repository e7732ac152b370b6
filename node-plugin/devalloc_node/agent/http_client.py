"""An HTTP client with bounds on size and time and without redirects. It keeps denied, failed and unknown apart."""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass

import aiohttp

from devalloc_node.errors import Failed, Unknown

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


def new_session(connections: int = 0) -> aiohttp.ClientSession:
    """What requests go out by: no cookies, no proxies of the environment, and nothing is unpacked that could swell.

    ``connections``: the most at the same time; 0 for no bound but that of those who ask, each of whom waits for one
    answer: of a bound that is shared, hosts that do not answer would use up what the others need.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections, use_dns_cache=False),
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
