"""The informant: the older protocol, with which agents speak in a guest. Its server, and its calls to agents.

`devalloc_node.guest.agent_registry` decides which agent counts and what to ask when; the guest itself decides whether
the machine may become smaller. The guest is changed by one request at a time, in the order of the requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from devalloc.scaling.messages import informant as wire
from devalloc.scaling.messages.monitor import DownscaleResult
from devalloc.scaling.messages.request_error import RequestError
from devalloc.scaling.peer_json import Unreadable
from devalloc.scaling.resources import ResourceFlags, Resources
from devalloc.scaling.versions import INFORMANT_VERSIONS, InformantVersion, VersionRange
from devalloc_node.errors import NodeError
from devalloc_node.guest.agent_registry import NO_AGENT, AgentCall, AgentRegistry, AgentTimeouts
from devalloc_node.net.http import JSON, HttpLimits, HttpRequest, HttpResponse, HttpServer, http_request

_log = logging.getLogger("devalloc.guest")
LIMITS = HttpLimits(body=wire.MAX_BODY, connections=32, requests_a_second=100, requests_burst=200)


class GuestResources(Protocol):
    """What lives in the machine. Both may raise OSError or ValueError: nobody can tell what it is now."""

    async def shrink(self, target: Resources) -> DownscaleResult:
        """Whether the machine may have so little. Not ok is *denied*: nothing was done."""

    async def grew(self, resources: Resources) -> None:
        """The machine has so much now."""


class Informant:
    """The program's part that agents see. `run` ends when it is cancelled."""

    def __init__(
        self,
        guest: GuestResources,
        metrics_port: int,
        timers: AgentTimeouts | None = None,
        limits: HttpLimits = LIMITS,
        *,
        allows: Callable[[str], bool] = lambda address: True,
        versions: VersionRange[InformantVersion] = INFORMANT_VERSIONS,
    ) -> None:
        """``metrics_port``: where the gauges are. ``allows``: whether an agent may come from an address."""
        self.agents = AgentRegistry(metrics_port, timers, versions)
        self.address: tuple[str, int] | None = None
        """Where it listens, once it does."""
        self._guest = guest
        self._limits = limits
        self._allows = allows
        self._server = HttpServer(self._respond, limits, allows=allows)
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

    def want(self, more: ResourceFlags) -> None:
        """The guest needs more, soon."""
        self.agents.want(more)
        self._changed.set()

    async def _ask(self, one: AgentCall) -> None:
        """Make a call, and take note of what came of it."""
        answer: wire.SequenceStamp | str
        try:
            request = HttpRequest(one.endpoint.method, one.endpoint.path, one.body)
            response = await http_request(one.host, one.port, request, one.timeout / 1000, self._limits)
            if response.status == 200:
                answer = wire.decode_stamp(response.body)
            else:
                answer = f"it answers {response.status}: {response.text}"
        except (NodeError, Unreadable) as error:
            answer = str(error)
        self.agents.answered(one, answer, _now())
        self._changed.set()

    async def _respond(self, request: HttpRequest) -> HttpResponse:
        try:
            return await self._answer(
                wire.find_endpoint(wire.INFORMANT_ENDPOINTS, request.method, request.path), request.body
            )
        except RequestError as refused:
            return HttpResponse(refused.status, refused.text.encode())
        except Unreadable as error:
            _log.info("%s: %s", request.path, error)
            return HttpResponse(400, wire.BAD_JSON.encode())
        except (OSError, ValueError) as error:
            _log.error("%s: %s", request.path, error)
            return HttpResponse(500, f"the guest cannot measure: {error}".encode())
        finally:
            self._changed.set()

    async def _answer(self, endpoint: wire.Endpoint, body: bytes) -> HttpResponse:
        match endpoint:
            case wire.REGISTER:
                desc = wire.decode_agent(body)
                await self._ask(self.agents.register(desc, _now()))
                chosen = wire.encode_informant(self.agents.chosen(desc.agent_id))
                return HttpResponse(200, chosen, JSON, after=lambda: self._replied(desc))
            case wire.HEALTH_CHECK:
                self.agents.check_health(wire.decode_agent_id(body))
                return HttpResponse(200, wire.EMPTY_BODY, JSON)
            case wire.UNREGISTER:
                was_active = self.agents.unregister(wire.decode_agent(body))
                return HttpResponse(200, wire.encode_unregistered(was_active), JSON)
        async with self._turn:
            version = self.agents.version
            if version is None:
                raise RequestError(400, NO_AGENT)
            message = wire.decode_resources(body, version)
            self.agents.heard(message)
            if endpoint == wire.DOWNSCALE:
                result = await self._guest.shrink(message.resources)
                return HttpResponse(200, wire.encode_downscale_result(result), JSON)
            await self._guest.grew(message.resources)
            self.agents.granted()
            return HttpResponse(200, wire.EMPTY_BODY, JSON)

    def _replied(self, desc: wire.AgentDesc) -> None:
        self.agents.replied(desc.agent_id)
        self._changed.set()


def _now() -> int:
    """Milliseconds of the event loop's clock."""
    return round(asyncio.get_running_loop().time() * 1000)
