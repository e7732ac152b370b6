"""The state of the agent at a port of this host, for people who want to know why (T28, T29)."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from devalloc_node.agent.agent import Agent
from devalloc_node.plainhttp import JSON, Limits, Request, Response, Server

_log = logging.getLogger("devalloc.agent")
LIMITS = Limits(body=0, connections=4, requests_a_second=1, requests_burst=4)
"""All of 500 machines take a tenth of a second."""
HOST = "127.0.0.1"
AGAIN_SECONDS = 30.0
"""Where somebody else has the port it is tried again: machines do not wait for that."""


@asynccontextmanager
async def dumped(agent: Agent, port: int | None) -> AsyncIterator[None]:
    """While inside, all that the agent knows can be had with ``GET /``. ``port``: None for nowhere."""
    if port is None:
        yield
        return
    task = asyncio.create_task(_serve(agent, port), name="dump")
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _serve(agent: Agent, port: int) -> None:
    server = Server(lambda request: _respond(agent, request), LIMITS)
    told = False
    try:
        while True:
            try:
                await server.listen(HOST, port)
                break
            except OSError as error:
                if not told:
                    _log.warning("the agent's state is not shown at %s port %d (--dump-port): %s", HOST, port, error)
                told = True
            await asyncio.sleep(AGAIN_SECONDS)
        await asyncio.Event().wait()
    finally:
        await server.close()


async def _respond(agent: Agent, request: Request) -> Response:
    """One machine after the other, so that those of a large node do not wait until all are written."""
    if request.path != "/":
        return Response(404, b"the agent's state is at /")
    if request.method not in ("GET", "HEAD"):
        return Response(405, b"GET it")
    parts = []
    for key in agent.keys:
        parts.append(f"{json.dumps(key)}: {json.dumps(agent.dump(key))}")
        await asyncio.sleep(0)
    return Response(200, ("{\n" + ",\n".join(parts) + "\n}\n").encode(), JSON)
