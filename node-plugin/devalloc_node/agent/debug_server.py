"""Serve the agent's state to people on this host (T28, T29)."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

from devalloc_node.agent.agent import Agent
from devalloc_node.errors import NodeError
from devalloc_node.net.http import JSON, HttpLimits, HttpRequest, HttpResponse, HttpServer, RequestHandler
from devalloc_node.net.unix_sockets import listening_socket

_log = logging.getLogger("devalloc.agent")
LIMITS = HttpLimits(body=0, connections=4, requests_a_second=1, requests_burst=4)
"""All of 500 machines take a tenth of a second."""
HOST = "127.0.0.1"
AGAIN_SECONDS = 30.0
"""If another process has the port, the server retries. Machines do not wait for that."""


@asynccontextmanager
async def agent_dump_served(agent: Agent, at: Path | int | None) -> AsyncIterator[None]:
    """While inside, all that the agent knows can be had with ``GET /``."""
    async with page_served(lambda request: _respond(agent, request), at, "the agent's state", "--dump-port"):
        yield


@asynccontextmanager
async def page_served(respond: RequestHandler, at: Path | int | None, what: str, option: str) -> AsyncIterator[None]:
    """While inside, serve it at a unix socket of this user's, or at a port of loopback. None: nowhere.

    If another process has the port, the server retries, and logs that once. ``option``: the option that sets the port.
    """
    if at is None:
        yield
        return
    task = asyncio.create_task(_serve(respond, at, what, option), name="dump")
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _serve(respond: RequestHandler, at: Path | int, what: str, option: str) -> None:
    has_warned = False
    while True:
        server = HttpServer(respond, LIMITS, for_people=True)
        try:
            with ExitStack() as stack:
                if isinstance(at, Path):
                    server.take(stack.enter_context(listening_socket(at, LIMITS.connections))[0])
                else:
                    await server.listen(HOST, at)
                await asyncio.Event().wait()
        except (OSError, NodeError) as error:
            where = f"at {at}" if isinstance(at, Path) else f"at {HOST} port {at} ({option})"
            if not has_warned:
                _log.warning("cannot serve %s %s: %s", what, where, error)
            has_warned = True
        finally:
            await server.close()
        await asyncio.sleep(AGAIN_SECONDS)


async def _respond(agent: Agent, request: HttpRequest) -> HttpResponse:
    """One machine after the other, so that those of a large node do not wait until all are written."""
    if request.path != "/":
        return HttpResponse(404, b"the agent's state is at /")
    if request.method not in ("GET", "HEAD"):
        return HttpResponse(405, b"GET it")
    parts = []
    for key in agent.keys:
        parts.append(f"{json.dumps(key)}: {json.dumps(agent.dump(key))}")
        await asyncio.sleep(0)
    return HttpResponse(200, ("{\n" + ",\n".join(parts) + "\n}\n").encode(), JSON)
