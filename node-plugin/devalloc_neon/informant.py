"""The informant: the older protocol, with which agents speak in a guest. Its server, and its calls to agents.

`devalloc_neon.informant` decides which agent counts and what to ask when; the guest itself decides whether
the machine may become smaller. The guest is changed by one request at a time, in the order of the requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Protocol
from uuid import UUID

from devalloc.scaling.messages.monitor import DownscaleResult
from devalloc.scaling.peer_json import RequestError, Unreadable
from devalloc.scaling.resources import ResourceFlags, Resources
from devalloc.scaling.versions import VersionRange
from devalloc_neon import informant_messages as wire
from devalloc_neon.informant_messages import INFORMANT_VERSIONS, InformantVersion
from devalloc_node.errors import NodeError
from devalloc_node.net.http import JSON, HttpLimits, HttpRequest, HttpResponse, HttpServer, http_request
from devalloc_node.net.websocket import loop_ms

_log = logging.getLogger("devalloc.guest")
MOST_AGENTS = 16
"""Agents that are known at a time. One more drops the oldest that is not active."""
NO_AGENT = "not the active agent"


@dataclass(frozen=True, slots=True)
class AgentTimeouts:
    """All in milliseconds: how long each call may take, and how often an agent is checked."""

    check: int = 250
    check_every: int = 10_000
    suspend: int = 5_000
    resume: int = 100
    try_upscale: int = 400


@dataclass(frozen=True, slots=True)
class AgentCall:
    """Something to ask an agent, within ``timeout`` milliseconds."""

    agent_id: UUID
    host: str
    port: int
    endpoint: wire.Endpoint
    body: bytes
    timeout: int


@dataclass(slots=True)
class _Agent:
    desc: wire.AgentDesc
    host: str
    port: int
    version: InformantVersion
    number: int
    """The how many-th to register."""
    check_at: int
    is_registered: bool = False
    is_running: bool = False
    last_sequence: int = 0
    pending: wire.Endpoint | None = None
    """What it is being asked."""
    was_notified: bool = False
    """It has heard of the wish for more."""


class AgentRegistry:
    """All of them. Instants are milliseconds of any one clock."""

    def __init__(
        self,
        metrics_port: int,
        timers: AgentTimeouts | None = None,
        versions: VersionRange[InformantVersion] = INFORMANT_VERSIONS,
    ) -> None:
        """``metrics_port``: where the guest serves its gauges."""
        self._metrics_port = metrics_port
        self._timers = timers or AgentTimeouts()
        self._versions = versions
        self._agents: dict[UUID, _Agent] = {}
        self._registered = 0
        self._wish = ResourceFlags()
        self.overtaken = 0
        """Messages of agents that came after a later one, ever."""

    @property
    def active(self) -> UUID | None:
        """The agent that may scale the machine."""
        agent = self._active()
        return None if agent is None else agent.desc.agent_id

    @property
    def version(self) -> InformantVersion | None:
        """That of the active agent."""
        agent = self._active()
        return None if agent is None else agent.version

    # What agents ask

    def register(self, desc: wire.AgentDesc, now: int) -> AgentCall:
        """An agent wants to be known. It is, once it has answered this call: then ``chosen``. Raises RequestError."""
        version = self._versions.latest_shared(desc.versions)
        if version is None:
            raise RequestError(400, f"no shared protocol version: {self._versions} here, {desc.versions} there")
        if desc.agent_id in self._agents:
            raise RequestError(409, f"the agent {desc.agent_id} is already registered")
        host, port = _address(desc.address)
        self._registered += 1
        agent = _Agent(desc, host, port, version, self._registered, now)
        self._make_room()
        self._agents[desc.agent_id] = agent
        return self._begin(agent, wire.ID)

    def chosen(self, agent_id: UUID) -> wire.InformantDesc:
        """The reply to an agent that wanted to be known, and has been asked. Raises RequestError for a wrong answer."""
        agent = self._agents.get(agent_id)
        if agent is None:
            raise RequestError(400, "cannot check the id at the address")
        return wire.InformantDesc(agent.version, self._metrics_port)

    def replied(self, agent_id: UUID) -> None:
        """The agent has been told so. Only now it may be resumed: before, it would not expect it."""
        agent = self._agents.get(agent_id)
        if agent is not None:
            agent.is_registered = True

    def check_health(self, agent_id: UUID) -> None:
        """An agent asks whether all is well. Raises RequestError."""
        agent = self._require(agent_id)
        if not agent.version.has_health_check:
            raise RequestError(400, f"protocol version {agent.version} has no health check")

    def unregister(self, desc: wire.AgentDesc) -> bool:
        """An agent goes; whether it was the active one. Raises RequestError."""
        agent = self._require(desc.agent_id)
        if agent.desc.address != desc.address:
            raise RequestError(400, f"the agent has another address: {agent.desc.address}")
        was_active = agent is self._active()
        del self._agents[desc.agent_id]
        return was_active

    def heard(self, message: wire.ResourcesMessage) -> None:
        """An agent tells amounts. Raises RequestError where it is not the active one."""
        agent = self._active()
        if agent is None or (message.by is not None and message.by.agent_id != agent.desc.agent_id):
            raise RequestError(400, NO_AGENT)
        if message.by is not None:
            self._count(agent, message.by.sequence)

    def granted(self) -> None:
        """The machine has got more: nothing more is wished for."""
        self._wish = ResourceFlags()

    # What is asked of agents

    def want(self, more: ResourceFlags) -> None:
        """The guest needs more. Ask the active agent, and each of its successors, until ``granted``."""
        self._wish = ResourceFlags(self._wish.cpu or more.cpu, self._wish.memory or more.memory)
        for agent in self._agents.values():
            agent.was_notified = False

    def calls(self, now: int) -> list[AgentCall]:
        """The calls to begin now: each is given once, and waits for its ``answered``."""
        begun = []
        step = self._next_step()
        if step is not None:
            begun.append(self._begin(*step))
        for agent in self._agents.values():
            if agent.is_registered and agent.pending is None and agent.check_at <= now:
                begun.append(self._begin(agent, wire.ID))
        return begun

    def wait(self, now: int) -> int | None:
        """Milliseconds until there may be calls though nothing happens; None: not before something does."""
        waits = [
            max(0, agent.check_at - now) for agent in self._agents.values() if agent.is_registered and not agent.pending
        ]
        return min(waits, default=None)

    def answered(self, call: AgentCall, answer: wire.SequenceStamp | str, now: int) -> None:
        """What came of a call: the agent's reply, or why there is none as it should be."""
        agent = self._agents.get(call.agent_id)
        if agent is None or agent.pending != call.endpoint:
            return  # it went meanwhile
        agent.pending = None
        if isinstance(answer, wire.SequenceStamp) and answer.agent_id != call.agent_id:
            answer = f"its id is {answer.agent_id}"
        if isinstance(answer, str):
            _log.warning(
                "agent %s at %s, asked for %s: %s", call.agent_id, agent.desc.address, call.endpoint.path, answer
            )
            if call.endpoint != wire.TRY_UPSCALE:  # whether it is still there is found when it is checked
                del self._agents[call.agent_id]
            return
        self._count(agent, answer.sequence)
        agent.check_at = now + self._timers.check_every
        if call.endpoint == wire.RESUME:
            agent.is_running, agent.was_notified = True, False
        elif call.endpoint == wire.SUSPEND:
            agent.is_running = False

    def _next_step(self) -> tuple[_Agent, wire.Endpoint] | None:
        """What brings the newest agent nearer to being the active one, and the wish to it."""
        if any(agent.pending in (wire.SUSPEND, wire.RESUME) for agent in self._agents.values()):
            return None  # until it is known whether that one runs
        newest = max((agent for agent in self._agents.values() if agent.is_registered), key=_number, default=None)
        running = next((agent for agent in self._agents.values() if agent.is_running), None)
        concerned = running or newest
        if newest is None or concerned is None or concerned.pending is not None:
            return None
        if running is None:
            return newest, wire.RESUME
        if running is not newest:
            return running, wire.SUSPEND
        if self._wish and not newest.was_notified and newest.version.has_try_upscale:
            newest.was_notified = True
            return newest, wire.TRY_UPSCALE
        return None

    def _begin(self, agent: _Agent, endpoint: wire.Endpoint) -> AgentCall:
        agent.pending = endpoint
        agent_id, timers = agent.desc.agent_id, self._timers
        body, timeout = {
            wire.ID: (wire.EMPTY_BODY, timers.check),
            wire.SUSPEND: (wire.encode_expected_agent(agent_id), timers.suspend),
            wire.RESUME: (wire.encode_expected_agent(agent_id), timers.resume),
            wire.TRY_UPSCALE: (wire.encode_try_upscale(self._wish, agent_id), timers.try_upscale),
        }[endpoint]
        return AgentCall(agent_id, agent.host, agent.port, endpoint, body, timeout)

    def _active(self) -> _Agent | None:
        return next((a for a in self._agents.values() if a.is_running and a.pending != wire.SUSPEND), None)

    def _require(self, agent_id: UUID) -> _Agent:
        agent = self._agents.get(agent_id)
        if agent is None:
            raise RequestError(404, f"agent {agent_id} not found")
        return agent

    def _count(self, agent: _Agent, sequence: int) -> None:
        if sequence <= agent.last_sequence:
            self.overtaken += 1
            _log.info("agent %s: message %d came after %d", agent.desc.agent_id, sequence, agent.last_sequence)
        agent.last_sequence = max(agent.last_sequence, sequence)

    def _make_room(self) -> None:
        if len(self._agents) >= MOST_AGENTS:
            oldest = min((agent for agent in self._agents.values() if not agent.is_running), key=_number)
            del self._agents[oldest.desc.agent_id]


def _number(agent: _Agent) -> int:
    return agent.number


def _address(text: str) -> tuple[str, int]:
    """An address to connect to: never a name, for an agent is where it says that it is."""
    host, colon, port = text.rpartition(":")
    try:
        address = ip_address(host.removeprefix("[").removesuffix("]"))
        if not colon or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise ValueError
    except ValueError:
        raise RequestError(400, f"agentServeAddr must be an IP address and a port, not {text[:60]!r}") from None
    return str(address), int(port)


LIMITS = HttpLimits(body=wire.MAX_BODY, connections=32, requests_a_second=100, requests_burst=200)


class GuestResources(Protocol):
    """The guest of the machine. Both may raise OSError or ValueError: its state is unknown now."""

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

    @property
    def is_connected(self) -> bool:
        """Whether an agent may scale the machine."""
        return self.agents.active is not None

    async def listen(self, host: str, port: int = wire.PORT) -> tuple[str, int]:
        """Begin to answer; the address. Raises OSError."""
        self.address = await self._server.listen(host, port)
        return self.address

    async def run(self) -> None:
        """Ask agents what they are to be asked, until cancelled."""
        try:
            while True:
                self._changed.clear()
                for one in self.agents.calls(loop_ms()):
                    task = asyncio.create_task(self._ask(one))
                    self._calls.add(task)
                    task.add_done_callback(self._calls.discard)
                wait = self.agents.wait(loop_ms())
                try:
                    async with asyncio.timeout(None if wait is None else wait / 1000):
                        await self._changed.wait()
                except TimeoutError:
                    pass
        finally:
            for task in list(self._calls):
                task.cancel()

    async def close(self) -> None:
        """Stop answering."""
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
        self.agents.answered(one, answer, loop_ms())
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
                await self._ask(self.agents.register(desc, loop_ms()))
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
