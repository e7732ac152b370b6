"""Names of things on a host: paths, sockets, network interfaces, and a kernel's command line."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator

from devalloc.api.fields import pattern_schema, quote_value

MAX_LINE = 2047
"""Maximum characters of a kernel's command line."""
MAX_SOCKET_PATH = 107
"""Maximum bytes of a socket's path."""

# Components other than "." and "..", in a syntax that RE2 supports, too.
_BLANK = r"\x00-\x1f\x7f"
_COMPONENT = rf"([^/.{_BLANK}][^/{_BLANK}]*|\.[^/.{_BLANK}][^/{_BLANK}]*|\.\.[^/{_BLANK}]+)"
_PATH = re.compile(rf"(/{_COMPONENT})+")
_LINE = re.compile(rf"[^{_BLANK}]*")
_INTERFACE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,14}", re.ASCII)


def _path(value: object) -> object:
    if not isinstance(value, str) or len(value) > 4096 or _PATH.fullmatch(value) is None:
        raise ValueError(f"must be an absolute path without '.', '..' and doubled '/', not {quote_value(value)}")
    return value


def _socket(value: object) -> object:
    if isinstance(value, str) and len(value.encode("utf-8", "replace")) > MAX_SOCKET_PATH:
        raise ValueError(f"must have at most {MAX_SOCKET_PATH} bytes, the maximum for a socket's path")
    return _path(value)


def _line(value: object) -> object:
    if isinstance(value, str) and len(value) > MAX_LINE:
        raise ValueError(f"must have at most {MAX_LINE} characters, but has {len(value)}")
    if isinstance(value, str) and _LINE.fullmatch(value) is None:
        raise ValueError("must be one line without control characters")
    return value


def _interface(value: object) -> object:
    if not isinstance(value, str) or _INTERFACE.fullmatch(value) is None:
        raise ValueError(f"must be the name of a network interface (at most 15 characters), not {quote_value(value)}")
    return value


_PATH_WORDS = "must be an absolute path without '.', '..' and doubled '/'"
Path = Annotated[
    str,
    BeforeValidator(_path),
    pattern_schema(_PATH.pattern, _PATH_WORDS, maxLength=4096),
]
SocketPath = Annotated[
    str,
    BeforeValidator(_socket),
    pattern_schema(_PATH.pattern, _PATH_WORDS, maxLength=MAX_SOCKET_PATH),
]
CommandLine = Annotated[
    str,
    BeforeValidator(_line),
    pattern_schema(_LINE.pattern, "must be one line without control characters", maxLength=MAX_LINE),
]
InterfaceName = Annotated[
    str,
    BeforeValidator(_interface),
    pattern_schema(_INTERFACE.pattern, "must be the name of a network interface", maxLength=15),
]
