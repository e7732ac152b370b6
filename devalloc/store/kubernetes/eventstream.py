"""The events of a watch, as they come over its connection."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from devalloc.store.kubernetes.apierror import ApiError, Object, parsed
from devalloc.store.kubernetes.credentials import broken

MAX_EVENT = 4 << 20
"""Bytes of a line of a watch; etcd holds 1.5 MiB an object."""


def lines(raw: Any) -> Iterator[bytes]:
    """The lines of a stream, until it ends or is silent for as long as is waited for it. Raises ApiError."""
    from urllib3.exceptions import ReadTimeoutError

    rest = b""
    try:
        for chunk in raw.stream(1 << 16):
            rest += chunk
            *whole, rest = rest.split(b"\n")
            yield from (line for line in whole if line.strip())
            if len(rest) > MAX_EVENT:
                raise ApiError(0, "TooLarge", f"an event of the watch has more than {MAX_EVENT >> 20} MiB")
    except ReadTimeoutError:
        return
    except broken() as error:
        raise ApiError(0, "NoAnswer", f"the watch broke: {error}") from None


def event_of(line: bytes) -> Object:
    """An event whose object has metadata. Raises ApiError, also for what the server says is an error."""
    event = parsed(line)
    content = event.get("object") if event else None
    if event is None or not isinstance(content, dict):
        raise ApiError(0, "NoAnswer", f"the watch says what is no event: {line[:80]!r}")
    if event.get("type") == "ERROR":
        code = content.get("code")
        message = str(content.get("message", ""))
        raise ApiError(code if isinstance(code, int) else 500, str(content.get("reason", "")), message)
    if not isinstance(content.get("metadata"), dict):
        raise ApiError(0, "NoAnswer", f"the watch tells of an object without metadata: {line[:80]!r}")
    return event


class Cutter(threading.Thread):
    """Cuts a watch's connection when it is to end: who reads it would else wait for the next event."""

    def __init__(self, raw: Any, stop: threading.Event, over: threading.Event) -> None:
        super().__init__(name="watch-end", daemon=True)
        self._stop_asked, self._over = stop, over
        connection = getattr(raw, "connection", None)
        sock = getattr(connection, "sock", None)
        # A descriptor of our own: that of the connection may be another's by the time this one is used.
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
