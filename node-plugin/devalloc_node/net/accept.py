"""Accept connections in an event loop without losing any."""

from __future__ import annotations

import asyncio
import errno
import os
import socket


async def wait_for_connection(door: socket.socket) -> None:
    """Wait until a connection waits at a socket that listens. The loop's own ``sock_accept`` may take one just when it
    is cancelled: then the connection is lost, and its peer waits in vain. Raises OSError if the socket is closed."""
    loop = asyncio.get_running_loop()
    waits = asyncio.Event()
    number = door.fileno()  # another thread may close it meanwhile
    if number < 0:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    loop.add_reader(number, waits.set)
    try:
        await waits.wait()
    finally:
        loop.remove_reader(number)
