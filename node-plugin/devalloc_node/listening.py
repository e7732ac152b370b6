"""Taking connections in an event loop without losing one."""

from __future__ import annotations

import asyncio
import socket


async def comes(door: socket.socket) -> None:
    """Wait until a connection waits at a socket that listens. The loop's own ``sock_accept`` may take one just when it
    is cancelled: then nobody has it, and who made it waits in vain."""
    loop = asyncio.get_running_loop()
    waits = asyncio.Event()
    number = door.fileno()  # another thread may close it meanwhile
    loop.add_reader(number, waits.set)
    try:
        await waits.wait()
    finally:
        loop.remove_reader(number)
