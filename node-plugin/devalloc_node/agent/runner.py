"""The CPU time of one machine, for controllers that speak the protocol of runners."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from fractions import Fraction
from typing import Protocol

from devalloc.scaling.messages import runner as wire
from devalloc.scaling.messages.refused import Refused
from devalloc.scaling.peerjson import Unreadable
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.machine.cgroup import LEAST, CpuGroup, limit, limit_of
from devalloc_node.plainhttp import JSON, Limits, Request, Response, Server

_log = logging.getLogger("devalloc.agent.runner")
Allows = Callable[[str], bool]
LIMITS = Limits(body=wire.MAX_BODY, connections=8)


class Share(Protocol):
    """The CPU time of a machine, in thousandths of a CPU. Both are called from a thread, one at a time."""

    def set(self, milli: int) -> None:
        """It has so much once this returns. Raises Denied where it cannot have that, NodeError."""

    def get(self) -> int:
        """What it has. Raises NodeError."""


class CgroupShare:
    """By the kernel's bandwidth control: ``factor`` times what is asked for, and told as it was asked for (T19)."""

    def __init__(self, group: CpuGroup, factor: Fraction = Fraction(1)) -> None:
        """``factor``: for hosts that promise more CPUs than they have, and let each take more while others idle."""
        if factor <= 0:
            raise ValueError(f"the factor must be more than zero, not {factor}")
        self._group = group
        self._factor = factor
        self._asked: int | None = None

    def set(self, milli: int) -> None:
        given = self._given(milli)
        if given < LEAST:
            least = -(-LEAST // self._factor)
            raise Denied("CpuAmountInvalid", f"a machine has at least {least}m of CPU time here, not {milli}m")
        limit(self._group, given)
        self._asked = milli

    def get(self) -> int:
        given = limit_of(self._group)
        if given is None:
            raise Failed("CgroupUnavailable", f"{self._group.folder} has no bound of CPU time")
        # Below a factor of 1 several amounts have one bound: then the one that was asked for is meant.
        if self._asked is not None and given == self._given(self._asked):
            return self._asked
        return round(given / self._factor)

    def _given(self, milli: int) -> int:
        return round(milli * self._factor)


class Runner:
    """The server. Listen where only the machine's controller gets to: it asks nobody who he is (T28)."""

    def __init__(self, machine: str, share: Share, limits: Limits = LIMITS, allows: Allows = lambda peer: True) -> None:
        """``machine``: what log lines call it. ``allows``: whether a controller may come from an address."""
        self._machine = machine
        self._share = share
        self._turn = asyncio.Lock()
        self._server = Server(self._respond, limits, allows=allows)

    async def listen(self, host: str, port: int = wire.PORT) -> tuple[str, int]:
        """Begin to answer; the address. Raises OSError."""
        return await self._server.listen(host, port)

    async def close(self) -> None:
        await self._server.close()

    async def _respond(self, request: Request) -> Response:
        try:
            wire.check(request.method, request.path)
            wanted = wire.decode_cpu(request.body) if request.path == wire.CHANGE else None
            async with self._turn:
                if wanted is None:
                    return Response(200, wire.encode_cpu(await asyncio.to_thread(self._share.get)), JSON)
                await asyncio.to_thread(self._share.set, wanted)
            return Response(200)
        except Refused as refused:
            return Response(refused.status, refused.text.encode())
        except (Unreadable, Denied) as error:
            _log.info("%s: %s: %s", self._machine, request.path, error)
            return Response(400, str(error).encode())
        except NodeError as error:
            _log.error("%s: %s: %s", self._machine, request.path, error)
            return Response(500, str(error).encode())
