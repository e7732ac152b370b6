"""URLs, read as Go's ``net/url`` does: ``url("https://host:443/path?q=1").getPort()``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv6Address
from typing import ClassVar
from urllib.parse import unquote_to_bytes

from devalloc_solver.cel.errors import EvaluationError
from devalloc_solver.cel.registry import STRING, Overload
from devalloc_solver.cel.values import PARSING_COST, Frame

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):", re.ASCII)
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_HOST = re.compile(r"(?:[A-Za-z0-9\-_.~!$&'()*+,;=:<>\"]|[^\x00-\x7f]|%[89A-Fa-f][0-9A-Fa-f])*", re.ASCII)
_USER = re.compile(r"[A-Za-z0-9\-._:~!$&'()*+,;=%@]*", re.ASCII)
_PATH = re.compile(r"[A-Za-z0-9\-._~!$&'()*+,;=:@\[\]/%]*", re.ASCII)
_PORT = re.compile(r"(?::[0-9]*)?", re.ASCII)
_KEPT_IN_PATH = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~$&+,/:;=@")


@dataclass(frozen=True, slots=True)
class URL:
    """A URL in its parts; equal to another when it is written the same, but for the case of the scheme.

    Some parts count for that only: no function gives them.
    """

    type_name: ClassVar[str] = "kubernetes.URL"
    scheme: str
    opaque: str
    user: str | None
    host: str
    path: str
    query: str
    force_query: bool
    fragment: str


def parse(text: str, request: bool = False) -> URL:
    """Read a URL; one for a ``request`` is absolute and keeps a fragment in its path. Raises EvaluationError."""
    rest, fragment = text, ""
    if not request:
        rest, _, fragment = text.partition("#")
    if _CONTROL.search(rest) or (request and not rest) or _BAD_ESCAPE.search(fragment):
        raise _bad(text)
    scheme, rest = _scheme(rest, text)
    force = rest.endswith("?") and rest.count("?") == 1
    rest, _, query = rest.partition("?")
    if not rest.startswith("/"):
        if scheme:
            return URL(scheme, rest, None, "", "", query, force, fragment)
        if (request and rest != "*") or ":" in rest.partition("/")[0]:
            raise _bad(text)
    user, host = None, ""
    if rest.startswith("//") and (scheme or (not request and not rest.startswith("///"))):
        authority, slash, path = rest[2:].partition("/")
        user, host = _authority(scheme, authority, text)
        rest = slash + path
    if _BAD_ESCAPE.search(rest):
        raise _bad(text)
    return URL(scheme, "", user, host, _escaped_path(rest), query, force, fragment)


def _bad(text: str) -> EvaluationError:
    return EvaluationError(f"{text[:60]!r} is not a URL")


def _scheme(rest: str, text: str) -> tuple[str, str]:
    if rest.startswith(":"):
        raise _bad(text)
    match = _SCHEME.match(rest)
    return (match[1].lower(), rest[match.end() :]) if match else ("", rest)


def _authority(scheme: str, authority: str, text: str) -> tuple[str | None, str]:
    user, at, host = authority.rpartition("@")
    if at and (not _USER.fullmatch(user) or _BAD_ESCAPE.search(user)):
        raise _bad(text)
    if host.startswith("["):
        bracket = host.rfind("]")
        if bracket < 0 or not _PORT.fullmatch(host[bracket + 1 :]):
            raise _bad(text)
        host = host.replace("%25", "%", 1)  # the zone of an address
        try:
            IPv6Address(host[1 : host.rindex("]")])
        except AddressValueError:
            raise _bad(text) from None
    else:
        colon = host.find(":") if scheme in ("http", "https") else host.rfind(":")
        if colon >= 0 and not _PORT.fullmatch(host[colon:]):
            raise _bad(text)
        if not _HOST.fullmatch(host):
            raise _bad(text)
        host = unquote_to_bytes(host).decode(errors="replace")
    return (user if at else None), host


def _escaped_path(path: str) -> str:
    if _PATH.fullmatch(path):
        return path
    plain = unquote_to_bytes(path)
    return "".join(chr(byte) if byte in _KEPT_IN_PATH else f"%{byte:02X}" for byte in plain)


def _hostname(frame: Frame, url: URL) -> str:
    frame.pass_over(len(url.host))
    host = url.host
    if host.startswith("[") and "]" in host:
        return host[1 : host.index("]")]
    return host.rpartition(":")[0] if ":" in host else host


def _port(frame: Frame, url: URL) -> str:
    frame.pass_over(len(url.host))
    _host, colon, port = url.host.rpartition("]")[2].rpartition(":")
    return port if colon else ""


def _query(frame: Frame, url: URL) -> dict[str, list[str]]:
    frame.spend(1 + len(url.query))
    parameters: dict[str, list[str]] = {}
    for pair in url.query.split("&"):
        if not pair or ";" in pair:
            continue
        key, _equals, value = pair.partition("=")
        if _BAD_ESCAPE.search(key) or _BAD_ESCAPE.search(value):
            continue
        parameters.setdefault(_unescaped(key), []).append(_unescaped(value))
    return parameters


def _unescaped(text: str) -> str:
    return unquote_to_bytes(text.replace("+", " ")).decode(errors="replace")


def _url(frame: Frame, text: str) -> URL:
    frame.spend(2 * PARSING_COST + len(text))
    parse(text, request=True)
    return parse(text)


def _is_url(frame: Frame, text: str) -> bool:
    frame.spend(2 * PARSING_COST + len(text))
    return is_request(text)


def is_request(text: str) -> bool:
    """Whether ``text`` is a URL such as can be asked for: absolute, or a path from the root."""
    try:
        parse(text, request=True)
    except EvaluationError:
        return False
    return True


FUNCTIONS: tuple[Overload, ...] = (
    ("url", (STRING,), _url),
    ("isURL", (STRING,), _is_url),
    ("getScheme", (URL,), lambda _, url: url.scheme),
    ("getHost", (URL,), lambda _, url: url.host),
    ("getHostname", (URL,), _hostname),
    ("getPort", (URL,), _port),
    ("getEscapedPath", (URL,), lambda _, url: url.path),
    ("getQuery", (URL,), _query),
)
