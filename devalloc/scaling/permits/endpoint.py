"""The endpoint of a cluster's permit server: a ConfigMap that the controller writes and nodes read.

The certificate is the server's own, made when its process began to lead, and its key is nowhere but in that process.
Anyone who may write the ConfigMap is trusted as the controller.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

NAME = "devalloc-permits"
"""Of the ConfigMap, in the namespace of devalloc."""
_URL, _CERTIFICATE = "url", "ca.crt"


@dataclass(frozen=True, slots=True)
class PublishedEndpoint:
    """One server."""

    url: str
    """By HTTPS."""
    certificate: str
    """PEM; that of the server, or of who signed it."""

    @property
    def data(self) -> dict[str, str]:
        """Of the ConfigMap."""
        return {_URL: self.url, _CERTIFICATE: self.certificate}

    def tls_context(self) -> ssl.SSLContext:
        """A client's context that trusts this server's certificate, and no other. Raises ValueError."""
        try:
            context = ssl.create_default_context(cadata=self.certificate)
        except (ssl.SSLError, ValueError) as error:
            raise ValueError(f"cannot read the certificate of the cluster's permit server: {error}") from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context


def parse_endpoint(config_map: Mapping[str, Any]) -> PublishedEndpoint:
    """Raises ValueError for what says no place."""
    data = config_map.get("data")
    url, certificate = (data.get(name) if isinstance(data, dict) else None for name in (_URL, _CERTIFICATE))
    if not isinstance(url, str) or not isinstance(certificate, str):
        raise ValueError(f"data must have {_URL} and {_CERTIFICATE}")
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname or not url.isascii() or not url.isprintable():
        raise ValueError(f"data.{_URL} must be an https URL, not {url[:100]!r}")
    return PublishedEndpoint(url, certificate)
