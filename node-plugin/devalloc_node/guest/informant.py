"""The informant: what agents of before the guest monitor speak with in a guest. Its server, and its calls to agents.

Who counts, and what is asked when, is for `devalloc_node.guest.agents`; whether the machine may become smaller is for
the guest itself. One thing is done to the guest at a time, in the order in which it was asked for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from devalloc.scaling.messages import informant as wire
from devalloc.scaling.messages.monitor import DownscaleResult
from devalloc.scaling.messages.refused import Refused
from devalloc.scaling.peerjson import Unreadable
from devalloc.scaling.resources import More, Resources
from devalloc.scaling.versions import INFORMANT_VERSIONS, InformantVersion, VersionRange
from devalloc_node.errors import NodeError
from devalloc_node.guest.agents import NO_AGENT, Agents, Call, Timers
from devalloc_node.plainhttp import JSON, Limits, Request, Response, Server, call

_log = logging.getLogger("devalloc.guest")
LIMITS = Limits(body=wire.MAX_BODY, connections=32, requests_a_second=100, requests_burst=200)


class Guest(Protocol):
    """What lives in the machine. Both may raise OSError or ValueError: nobody can tell what it is now."""

    async def shrink(self, target: Resources) -> DownscaleResult:
        """Whether the machine may have so little. Not ok is *denied*: nothing was done."""

    async def grew(self, resources: Resources) -> None:
        """The machine has so much now."""


class Informant:
    """The program's part that agents see. `run` ends when it is cancelled."""

    def __init__(
        self,
        guest: Guest,
        metrics_port: int,
        timers: Timers | None = None,
        limits: Limits = LIMITS,
        *,
        allows: Callable[[str], bool] = lambda address: True,
        versions: VersionRange[InformantVersion] = INFORMANT_VERSIONS,
    ) -> None:
        """``metrics_port``: where the gauges are. ``allows``: whether an agent may come from an address."""
        self.agents = Agents(metrics_port, timers, versions)
        self.address: tuple[str, int] | None = None
        """Where it listens, once it does."""
        self._guest = guest
        self._limits = limits
        self._allows = allows
        self._server = Server(self._respond, limits, allows=allows)
        self._changed = asyncio.Event()
        self._calls: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()

    async def listen(self, host: str, port: int = wire.PORT) -> tuple[str, int]:
        """Begin to answer; the address. Raises OSError."""
        self.address = await self._server.listen(host, port)
        return self.address

    async def run(self) -> None:
        """Ask agents what they are to be asked, until cancelled."""
        try:
            while True:
                self._changed.clear()
                for one in self.agents.calls(_now()):
                    task = asyncio.create_task(self._ask(one))
                    self._calls.add(task)
                    task.add_done_callback(self._calls.discard)
                wait = self.agents.wait(_now())
                try:
                    async with asyncio.timeout(None if wait is None else wait / 1000):
                        await self._changed.wait()
                except TimeoutError:
                    pass
        finally:
            for task in list(self._calls):
                task.cancel()

    async def close(self) -> None:
        """Answer nobody any more."""
        await self._server.close()

    def want(self, more: More) -> None:
        """The guest needs more, soon."""
        self.agents.want(more)
        self._changed.set()

    async def _ask(self, one: Call) -> None:
        """Make a call, and take note of what came of it."""
        answer: wire.Numbered | str
        try:
            request = Request(one.endpoint.method, one.endpoint.path, one.body)
            response = await call(one.host, one.port, request, one.timeout / 1000, self._limits)
            if response.status == 200:
                answer = wire.decode_numbered(response.body)
            else:
                answer = f"it answers {response.status}: {response.text}"
        except (NodeError, Unreadable) as error:
            answer = str(error)
        self.agents.answered(one, answer, _now())
        self._changed.set()

    async def _respond(self, request: Request) -> Response:
        try:
            return await self._answer(wire.endpoint(wire.OF_INFORMANT, request.method, request.path), request.body)
        except Refused as refused:
            return Response(refused.status, refused.text.encode())
        except Unreadable as error:
            _log.info("%s: %s", request.path, error)
            return Response(400, wire.BAD_JSON.encode())
        except (OSError, ValueError) as error:
            _log.error("%s: %s", request.path, error)
            return Response(500, f"the guest could not tell: {error}".encode())
        finally:
            self._changed.set()

    async def _answer(self, endpoint: wire.Endpoint, body: bytes) -> Response:
        match endpoint:
            case wire.REGISTER:
                desc = wire.decode_agent(body)
                await self._ask(self.agents.register(desc, _now()))
                chosen = wire.encode_informant(self.agents.chosen(desc.agent_id))
                return Response(200, chosen, JSON, after=lambda: self._replied(desc))
            case wire.HEALTH_CHECK:
                self.agents.check_health(wire.decode_agent_id(body))
                return Response(200, wire.NOTHING, JSON)
            case wire.UNREGISTER:
                was_active = self.agents.unregister(wire.decode_agent(body))
                return Response(200, wire.encode_unregistered(was_active), JSON)
        async with self._turn:
            version = self.agents.version
            if version is None:
                raise Refused(400, NO_AGENT)
            told = wire.decode_resources(body, version)
            self.agents.heard(told)
            if endpoint == wire.DOWNSCALE:
                result = await self._guest.shrink(told.resources)
                return Response(200, wire.encode_downscale_result(result), JSON)
            await self._guest.grew(told.resources)
            self.agents.granted()
            return Response(200, wire.NOTHING, JSON)

    def _replied(self, desc: wire.AgentDesc) -> None:
        self.agents.replied(desc.agent_id)
        self._changed.set()


def _now() -> int:
    """Milliseconds of the event loop's clock."""
    return round(asyncio.get_running_loop().time() * 1000)
