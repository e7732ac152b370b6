"""Peers of the guest monitor protocol: a listener that remembers, a monitor that plays a script, raw bytes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from devalloc.scaling.resources import ResourceFlags
from devalloc_machines.agent.guest_monitor_client import MonitorConnection, MonitorTimeouts
from devalloc_node.net.websocket import loop_ms as now


def sockets_to(port: int) -> int:
    """How many sockets of this machine are connected, or half so, to that port."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[2].endswith(f":{port:04X}") and row[9] != "0" for row in rows)


async def are_closed(port: int) -> bool:
    """Whether no socket stays connected to that port, once the kernel and the loop have closed what is to be closed:
    that takes a moment, in which no time passes for the tests."""
    ends = time.monotonic() + 10.0
    while sockets_to(port) and time.monotonic() < ends:
        await asyncio.sleep(0)
    return not sockets_to(port)


class RecordingListener:
    """A listener that remembers what it was told, and when: milliseconds since it was made."""

    def __init__(self) -> None:
        self.began = now()
        self.events: list[tuple[int, str]] = []

    def _tell(self, what: str) -> None:
        self.events.append((now() - self.began, what))

    def monitor_connected(self) -> None:
        self._tell("connected")

    def monitor_disconnected(self, why: str) -> None:
        self._tell(f"disconnected: {why}")

    def upscale_requested(self, more: ResourceFlags) -> None:
        self._tell(f"wants {'cpu ' if more.cpu else ''}{'memory' if more.memory else ''}")

    def times(self, beginning: str) -> list[int]:
        return [instant for instant, what in self.events if what.startswith(beginning)]


class ScriptedConnection:
    """One connection as a scripted monitor has it: the handshake is done, and JSON goes both ways."""

    def __init__(self, socket: ServerConnection) -> None:
        self.socket = socket
        self.received: list[dict[str, Any]] = []

    async def next(self, *, kind: str | None = None) -> dict[str, Any]:
        """The next message, or the next of a kind; health checks before that are answered."""
        while True:
            message: dict[str, Any] = json.loads(await self.socket.recv())
            self.received.append(message)
            if kind is None or message["type"] == kind:
                return message
            if message["type"] == "HealthCheck":
                await self.say({"type": "HealthCheck", "id": message["id"]})

    async def say(self, message: dict[str, Any] | str | bytes) -> None:
        await self.socket.send(json.dumps(message) if isinstance(message, dict) else message)

    async def healthy(self) -> None:
        """Answer health checks until the connection ends."""
        try:
            await self.next(kind="nothing")
        except ConnectionClosed:
            return


Script = Callable[[ScriptedConnection], Awaitable[None]]


@asynccontextmanager
async def scripted_monitor(script: Script, answer: str = '{"version":1}') -> AsyncIterator[int]:
    """A monitor on a port of its own that shakes hands and then plays the script, anew for each connection."""

    async def handler(socket: ServerConnection) -> None:
        assert socket.request is not None
        assert socket.request.path == "/monitor"
        try:
            assert json.loads(await socket.recv()) == {"min": 1, "max": 1}
            await socket.send(answer)
            await script(ScriptedConnection(socket))
        except ConnectionClosed:
            pass

    async with serve(handler, "127.0.0.1", 0, ping_interval=None, close_timeout=0.5) as server:
        yield next(iter(server.sockets)).getsockname()[1]


@asynccontextmanager
async def raw_server(
    talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """A TCP server that does with each connection what it was given."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@asynccontextmanager
async def watched(
    port: int, timers: MonitorTimeouts | None = None
) -> AsyncIterator[tuple[MonitorConnection, RecordingListener]]:
    """An agent's connection to that port, kept up meanwhile."""
    heard = RecordingListener()
    connection = MonitorConnection("default/vm-1", "127.0.0.1", port, heard, timers)
    task = asyncio.create_task(connection.run())
    try:
        yield connection, heard
    finally:
        task.cancel()
        await asyncio.wait([task])


async def connected(connection: MonitorConnection) -> None:
    """Wait until it stands."""
    while not connection.status().connected:
        await asyncio.sleep(0.001)
