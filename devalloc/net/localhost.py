"""HTTP requests that arrive over loopback: whether they are meant for this host.

A browser on this host can be led here by the DNS of a page that it shows (rebinding): it then asks in the name of that
page's site, and the page reads the answer. Such a request has the site's name as its host; those of people and programs
of this host have an address, or ``localhost``.
"""

from __future__ import annotations

import ipaddress

MISDIRECTED = 421
"""The status for requests that name another host."""
MISDIRECTED_MESSAGE = b"ask by an address or as localhost: this is shown to this host only"


def is_loopback(host: str) -> bool:
    """Whether only this host can connect there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_local_host_header(header: str | None) -> bool:
    """Whether a request with this ``Host`` is meant for a server on this host. Browsers never leave it out."""
    if not header:
        return True
    host = header.strip().lower()
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return True
