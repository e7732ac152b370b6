"""Send Python objects over a socket between the processes of one test."""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any


def send(line: socket.socket, message: Any) -> None:
    content = pickle.dumps(message)
    line.sendall(struct.pack("!I", len(content)) + content)


def receive(line: socket.socket) -> Any:
    """None at the end."""
    head = _exactly(line, 4)
    return None if head is None else pickle.loads(_exactly(line, struct.unpack("!I", head)[0]) or b"")


def _exactly(line: socket.socket, size: int) -> bytes | None:
    content = b""
    while len(content) < size:
        try:
            more = line.recv(size - len(content))
        except ConnectionResetError:
            return None
        if not more:
            return None
        content += more
    return content
