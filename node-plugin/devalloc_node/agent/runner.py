"""Serve the CPU time of one machine to controllers that speak the runner protocol."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from devalloc.scaling.messages import runner as wire
from devalloc.scaling.messages.request_error import RequestError
from devalloc.scaling.peer_json import Unreadable
from devalloc_node.errors import Denied, NodeError
from devalloc_node.net.http import JSON, HttpLimits, HttpRequest, HttpResponse, HttpServer

_log = logging.getLogger("devalloc.agent.runner")
Allows = Callable[[str], bool]
LIMITS = HttpLimits(body=wire.MAX_BODY, connections=8)


class CpuShare(Protocol):
    """The CPU time of a machine, in thousandths of a CPU. Both are called from a thread, one at a time."""

    def set(self, milli: int) -> None:
        """It has so much once this returns. Raises Denied where it cannot have that, NodeError."""

    def get(self) -> int:
        """What it has. Raises NodeError."""


class Runner:
    """The server. Listen where only the machine's controller gets to: it asks nobody who he is (T28)."""

    def __init__(
        self, machine: str, share: CpuShare, limits: HttpLimits = LIMITS, allows: Allows = lambda peer: True
    ) -> None:
        """``machine``: what log lines call it. ``allows``: whether a controller may come from an address."""
        self._machine = machine
        self._share = share
        self._turn = asyncio.Lock()
        self._server = HttpServer(self._respond, limits, allows=allows)

    async def listen(self, host: str, port: int = wire.PORT) -> tuple[str, int]:
        """Begin to answer; the address. Raises OSError."""
        return await self._server.listen(host, port)

    async def close(self) -> None:
        await self._server.close()

    async def _respond(self, request: HttpRequest) -> HttpResponse:
        try:
            wire.check_endpoint(request.method, request.path)
            wanted = wire.decode_cpu(request.body) if request.path == wire.CHANGE_PATH else None
            async with self._turn:
                if wanted is None:
                    return HttpResponse(200, wire.encode_cpu(await asyncio.to_thread(self._share.get)), JSON)
                await asyncio.to_thread(self._share.set, wanted)
            return HttpResponse(200)
        except RequestError as refused:
            return HttpResponse(refused.status, refused.text.encode())
        except (Unreadable, Denied) as error:
            _log.info("%s: %s: %s", self._machine, request.path, error)
            return HttpResponse(400, str(error).encode())
        except NodeError as error:
            _log.error("%s: %s: %s", self._machine, request.path, error)
            return HttpResponse(500, str(error).encode())
