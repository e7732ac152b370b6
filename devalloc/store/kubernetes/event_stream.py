"""The events of a watch, read from its connection."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from devalloc.store.kubernetes.api_error import ApiError, Object, parse_object
from devalloc.store.kubernetes.credentials import connection_errors

MAX_EVENT = 4 << 20
"""Maximum bytes of a line of a watch; objects in etcd have at most 1.5 MiB."""


def read_lines(raw: Any) -> Iterator[bytes]:
    """The lines of a stream, until it ends or the read times out. Raises ApiError."""
    from urllib3.exceptions import ReadTimeoutError

    rest = b""
    try:
        for chunk in raw.stream(1 << 16):
            rest += chunk
            *whole, rest = rest.split(b"\n")
            yield from (line for line in whole if line.strip())
            if len(rest) > MAX_EVENT:
                raise ApiError(0, "TooLarge", f"an event of the watch is larger than {MAX_EVENT >> 20} MiB")
    except ReadTimeoutError:
        return
    except connection_errors() as error:
        raise ApiError(0, "NoAnswer", f"the watch broke: {error}") from None


def parse_event(line: bytes) -> Object:
    """Parse an event whose object has metadata. Raises ApiError, also for error events of the server."""
    event = parse_object(line)
    content = event.get("object") if event else None
    if event is None or not isinstance(content, dict):
        raise ApiError(0, "NoAnswer", f"the watch sent an invalid event: {line[:80]!r}")
    if event.get("type") == "ERROR":
        code = content.get("code")
        message = str(content.get("message", ""))
        raise ApiError(code if isinstance(code, int) else 500, str(content.get("reason", "")), message)
    if not isinstance(content.get("metadata"), dict):
        raise ApiError(0, "NoAnswer", f"the watch sent an object without metadata: {line[:80]!r}")
    return event


class ConnectionCutter(threading.Thread):
    """Cuts a watch's connection to end it: otherwise the reader would wait for the next event."""

    def __init__(self, raw: Any, stop: threading.Event, over: threading.Event) -> None:
        super().__init__(name="watch-end", daemon=True)
        self._stop_asked, self._over = stop, over
        connection = getattr(raw, "connection", None)
        sock = getattr(connection, "sock", None)
        # A duplicate descriptor: the connection's own number may be reused before this is called.
        self._descriptor = os.dup(sock.fileno()) if sock is not None else None

    def run(self) -> None:
        try:
            while not self._over.is_set() and not self._stop_asked.wait(0.25):
                pass
            if self._descriptor is not None and not self._over.is_set():
                with suppress(OSError), socket.socket(fileno=os.dup(self._descriptor)) as sock:
                    sock.shutdown(socket.SHUT_RDWR)
        finally:
            if self._descriptor is not None:
                os.close(self._descriptor)
