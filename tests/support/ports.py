"""Ports for programs that get theirs when they are started."""

from __future__ import annotations

import random
import socket
from contextlib import closing

_FROM, _TO = 10400, 32767
"""Below those that the kernel gives to connections (32768 to 60999 by default), which may take one at any time, and
above those of our programs."""


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 where no program listens now, and none is likely to before they are used: drawn at random, for
    others on this machine draw theirs at the same time."""
    draw, ports = random.SystemRandom(), list[int]()
    while len(ports) < count:
        port = draw.randrange(_FROM, _TO)
        with closing(socket.socket()) as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in ports:
            ports.append(port)
    return ports
