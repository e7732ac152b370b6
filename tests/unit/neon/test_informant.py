"""Agent and informant over the loopback: both ours, and each against a peer that sends exactly what the test says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest

from devalloc.programs.guest_monitor import make_informant
from devalloc.scaling.messages.monitor import DownscaleResult
from devalloc.scaling.metrics import LfcMetrics, SystemMetrics
from devalloc.scaling.resources import ResourceFlags, Resources, ScalingBounds
from devalloc.scaling.state import ScalingRules
from devalloc.scaling.versions import VersionRange
from devalloc_machines.agent.channels import Channels
from devalloc_machines.agent.scaler import Scaler, ScalerTimeouts
from devalloc_machines.guest.monitor import GuestMonitor
from devalloc_machines.guest.settings import settings_from
from devalloc_neon.informant import Informant
from devalloc_neon.informant_client import InformantConnection, InformantTimeouts, RestartDelay, next_start
from devalloc_neon.informant_messages import INFORMANT_VERSIONS, InformantDesc, InformantVersion
from devalloc_node.errors import Failed, NodeError, Unknown
from devalloc_node.net.http import JSON, HttpRequest, HttpResponse, HttpServer, http_request
from tests.support.fake_guest_tree import GuestTree
from tests.support.node_errors import raises
from tests.support.scaling_world import CONFIG, UNIT
from tests.support.virtual_time import run
from tests.support.waiting import until_async

HOST = "127.0.0.1"
STANDARD = InformantTimeouts()
SLOW = InformantTimeouts(restart=3_600_000, health_check=3_600_000)
"""Nothing happens by itself."""
GIB = 2**30


class Heard:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.wishes: list[ResourceFlags] = []

    def monitor_connected(self) -> None:
        self.events.append("connected")

    def monitor_disconnected(self, why: str) -> None:
        self.events.append(why)

    def upscale_requested(self, more: ResourceFlags) -> None:
        self.wishes.append(more)


class Guest:
    """A guest with a mind of its own."""

    def __init__(self) -> None:
        self.done: list[tuple[str, Resources]] = []
        self.least = 0
        self.breaks = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def shrink(self, target: Resources) -> DownscaleResult:
        await self.gate.wait()
        if self.breaks:
            raise OSError("the cache does not answer")
        self.done.append(("shrink", target))
        return DownscaleResult(target.memory >= self.least, "as you see")

    async def grew(self, resources: Resources) -> None:
        self.done.append(("grew", resources))


class World:
    """An informant and any number of agents."""

    def __init__(self, versions: VersionRange[InformantVersion]) -> None:
        self.guest = Guest()
        self.informant = Informant(self.guest, 9100, versions=versions)
        self.running: list[asyncio.Task[Any]] = []
        self.port = 0

    async def __aenter__(self) -> World:
        _, self.port = await self.informant.listen(HOST, 0)
        self.running.append(asyncio.create_task(self.informant.run()))
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in reversed(self.running):
            await self.stop(task)
        await self.informant.close()

    async def stop(self, task: asyncio.Task[Any]) -> None:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    def agent(
        self, heard: Heard | None = None, timers: InformantTimeouts = STANDARD
    ) -> tuple[InformantConnection, asyncio.Task[Any]]:
        connection = InformantConnection("vm1", HOST, self.port, heard or Heard(), HOST, timers)
        task = asyncio.create_task(connection.run())
        self.running.append(task)
        return connection, task


def only(version: int) -> VersionRange[InformantVersion]:
    return VersionRange(InformantVersion(version), InformantVersion(version))


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_every_version_from_registration_to_the_end(version: int) -> None:
    async def scenario() -> None:
        async with World(only(version)) as world:
            heard = Heard()
            agent, task = world.agent(heard)
            await until_async(lambda: agent.status().connected)
            assert agent.chosen is not None
            assert (agent.chosen.version, agent.chosen.metrics_port) == (version, 9100)
            world.guest.least = GIB
            assert await agent.downscale(Resources(250, GIB)) == DownscaleResult(True, "as you see")
            assert await agent.downscale(Resources(250, GIB - 1)) == DownscaleResult(False, "as you see")
            await agent.upscale(Resources(1500, 3 * GIB))
            assert world.guest.done[-1] == ("grew", Resources(1500, 3 * GIB))
            world.informant.want(ResourceFlags(memory=True))
            if version >= 2:
                await until_async(lambda: heard.wishes == [ResourceFlags(memory=True)])
            await asyncio.sleep(60)  # health checks and checks of the id go on meanwhile
            assert (agent.status().connected, agent.status().failures) == (True, 0)
            await world.stop(task)
            assert world.informant.agents.active is None
            assert heard.events[-2:] == ["connected", "the agent no longer watches it"]
            assert heard.wishes == ([ResourceFlags(memory=True)] if version >= 2 else [])
            assert world.informant.agents.overtaken == 0

    run(scenario())


def test_a_new_agent_takes_over_and_when_it_goes_the_old_one_does() -> None:
    async def scenario() -> None:
        async with World(INFORMANT_VERSIONS) as world:
            old, _ = world.agent()
            await until_async(lambda: old.status().connected)
            new, task = world.agent()
            await until_async(lambda: new.status().connected)
            assert not old.status().connected
            with raises(Failed, "InformantNotRunning", match="has another agent"):
                await old.upscale(Resources(1000, GIB))
            await new.upscale(Resources(2000, GIB))
            await world.stop(task)
            await until_async(lambda: old.status().connected)
            await old.upscale(Resources(3000, GIB))
            assert [resources.cpu for _, resources in world.guest.done] == [2000, 3000]

    run(scenario())


def test_a_suspension_waits_for_what_is_under_way() -> None:
    async def scenario() -> None:
        async with World(INFORMANT_VERSIONS) as world:
            old, _ = world.agent()
            await until_async(lambda: old.status().connected)
            world.guest.gate.clear()
            shrinking = asyncio.create_task(old.downscale(Resources(250, GIB)))
            await asyncio.sleep(0.05)
            new, _ = world.agent()
            await until_async(lambda: not old.status().connected)
            assert world.informant.agents.active is None
            world.guest.gate.set()
            assert (await shrinking).ok
            await until_async(lambda: new.status().connected)

    run(scenario())


def test_a_guest_that_cannot_tell_is_a_failure_and_the_agent_comes_back() -> None:
    async def scenario() -> None:
        async with World(INFORMANT_VERSIONS) as world:
            agent, _ = world.agent()
            await until_async(lambda: agent.status().connected)
            world.guest.breaks = True
            with raises(Failed, "InformantRefused", match=r"it answers /downscale with 500$"):
                await agent.downscale(Resources(250, GIB))
            assert agent.status().failures == 1
            await until_async(lambda: not agent.status().connected)
            await until_async(lambda: agent.status().connected)

    run(scenario())


def test_a_guest_that_does_not_answer_is_unknown() -> None:
    async def scenario() -> None:
        async with World(INFORMANT_VERSIONS) as world:
            agent, _ = world.agent()
            await until_async(lambda: agent.status().connected)
            world.guest.gate.clear()
            with pytest.raises(Unknown, match=r"did not answer within 2 s"):
                await agent.downscale(Resources(250, GIB))
            world.guest.gate.set()

    run(scenario())


async def ask(port: int, method: str, path: str, body: object = b"") -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = await http_request(HOST, port, HttpRequest(method, path, data), 5)
    return response.status, json.loads(response.body) if response.status == 200 else response.text


def test_what_an_informant_answers_to_each_agent() -> None:
    me = str(UUID(int=7))

    async def scenario() -> None:
        async def agent(request: HttpRequest) -> HttpResponse:
            requests.append((request.method, request.path, request.body))
            answer = {"data": {"agentID": me}, "sequenceNumber": len(requests)}
            return HttpResponse(200, json.dumps(answer).encode(), JSON)

        requests: list[tuple[str, str, bytes]] = []
        server = HttpServer(agent)
        _, agent_port = await server.listen(HOST)
        desc = {"agentID": me, "agentServeAddr": f"{HOST}:{agent_port}", "minProtoVersion": 3, "maxProtoVersion": 9}
        signed = {"data": {"cpu": "1", "memory": "1Gi", "id": {"agentID": me}}, "sequenceNumber": 99}
        async with World(INFORMANT_VERSIONS) as world:
            port = world.port
            assert await ask(port, "GET", "/register", desc) == (405, "/register must be POST")
            assert (await ask(port, "GET", "/"))[0] == 404
            assert await ask(port, "POST", "/register", b"") == (400, "bad JSON")
            assert await ask(port, "PUT", "/downscale", signed) == (400, "not the active agent")
            assert (await ask(port, "POST", "/register", {**desc, "minProtoVersion": 5}))[0] == 400
            unreachable = {**desc, "agentServeAddr": f"{HOST}:1"}
            assert await ask(port, "POST", "/register", unreachable) == (
                400,
                "cannot check the id at the address",
            )
            other = {**desc, "agentID": str(UUID(int=8))}
            assert (await ask(port, "POST", "/register", other))[0] == 400
            chosen = {"protoVersion": 4, "metricsMethod": {"prometheus": {"port": 9100}}}
            assert await ask(port, "POST", "/register", desc) == (200, chosen)
            await until_async(lambda: world.informant.agents.active == UUID(int=7))
            expected = b'{"expectedID":"%s"}' % me.encode()
            assert requests[-2:] == [("GET", "/id", b"{}"), ("POST", "/resume", expected)]
            assert (await ask(port, "POST", "/register", desc))[0] == 409
            assert await ask(port, "PUT", "/health-check", {"agentID": me}) == (200, {})
            assert (await ask(port, "PUT", "/health-check", {}))[0] == 404
            assert await ask(port, "PUT", "/downscale", signed) == (200, {"Ok": True, "Status": "as you see"})
            assert await ask(port, "PUT", "/upscale", {**signed, "sequenceNumber": 1}) == (200, {})
            assert await ask(port, "PUT", "/upscale", {**signed, "sequenceNumber": 0}) == (400, "bad JSON")
            assert await ask(port, "PUT", "/upscale", signed["data"]) == (400, "bad JSON")
            assert world.informant.agents.overtaken == 1
            world.guest.breaks = True
            assert (await ask(port, "PUT", "/downscale", signed))[0] == 500
            assert (await ask(port, "DELETE", "/unregister", {**desc, "agentServeAddr": "127.0.0.1:2"}))[0] == 400
            assert await ask(port, "DELETE", "/unregister", desc) == (200, {"wasActive": True})
            assert (await ask(port, "DELETE", "/unregister", desc))[0] == 404
        await server.close()

    run(scenario())


class Script:
    """An informant that answers as the test says, and can ask the agent that registered last."""

    def __init__(self) -> None:
        self.answers: dict[str, Callable[[], tuple[int, Any]]] = {
            "/register": lambda: (200, {"protoVersion": 4, "metricsMethod": {"prometheus": {"port": 9100}}}),
            "/health-check": lambda: (200, {}),
            "/downscale": lambda: (200, {"Ok": True, "Status": ""}),
            "/upscale": lambda: (200, {}),
            "/unregister": lambda: (200, {"wasActive": True}),
        }
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.asks_for_id = True
        self.agent: dict[str, Any] = {}

    async def respond(self, request: HttpRequest) -> HttpResponse:
        body = json.loads(request.body)
        self.requests.append((request.path, body))
        if request.path == "/register":
            self.agent = body
            if self.asks_for_id:
                await self.ask("GET", "/id", {})
        status, answer = self.answers[request.path]()
        return HttpResponse(status, answer if isinstance(answer, bytes) else json.dumps(answer).encode(), JSON)

    @property
    def identity(self) -> dict[str, str]:
        return {"expectedID": self.agent["agentID"]}

    async def ask(self, method: str, path: str, body: object) -> tuple[int, Any]:
        return await ask(int(self.agent["agentServeAddr"].rpartition(":")[2]), method, path, body)

    def bodies_of(self, path: str) -> list[dict[str, Any]]:
        return [body for called_path, body in self.requests if called_path == path]


def scripted(
    scenario: Callable[[Script, InformantConnection, Heard], Awaitable[None]],
    script: Script,
    timers: InformantTimeouts = STANDARD,
) -> None:
    async def conversation() -> None:
        server, heard = HttpServer(script.respond), Heard()
        _, port = await server.listen(HOST)
        agent = InformantConnection("vm1", HOST, port, heard, HOST, timers)
        task = asyncio.create_task(agent.run())
        try:
            await until_async(lambda: bool(script.agent))
            await until_async(lambda: agent.chosen is not None or len(script.bodies_of("/register")) > 1)
            await scenario(script, agent, heard)
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await server.close()

    run(conversation())


def test_what_an_agent_says_on_the_wire() -> None:
    async def scenario(script: Script, agent: InformantConnection, heard: Heard) -> None:
        me = script.agent["agentID"]
        assert script.agent == {
            "agentID": me,
            "agentServeAddr": script.agent["agentServeAddr"],
            "minProtoVersion": 1,
            "maxProtoVersion": 4,
        }
        # The reply to /id was the first of the numbered messages; each one has the next number.
        assert await script.ask("POST", "/resume", script.identity) == (
            200,
            {"data": {"agentID": me}, "sequenceNumber": 2},
        )
        assert agent.status().connected
        await agent.downscale(Resources(250, GIB))
        signed = {"data": {"cpu": "250m", "memory": "1Gi", "id": {"agentID": me}}, "sequenceNumber": 3}
        assert script.bodies_of("/downscale") == [signed]
        more = {"cpu": True, "memory": True, **script.identity}
        assert (await script.ask("POST", "/try-upscale", more))[1]["sequenceNumber"] == 4
        assert (await script.ask("POST", "/try-upscale", more))[0] == 200
        assert (heard.wishes, agent.status().dropped) == ([ResourceFlags(True, True)], 1)
        assert (await script.ask("POST", "/suspend", script.identity))[1]["sequenceNumber"] == 6
        assert (await script.ask("POST", "/try-upscale", more))[0] == 400
        assert not agent.status().connected
        assert heard.events[-2:] == ["connected", agent.status().why]

    scripted(scenario, Script(), SLOW)


def test_what_an_agent_refuses() -> None:
    async def scenario(script: Script, agent: InformantConnection, heard: Heard) -> None:
        stranger = {"expectedID": str(UUID(int=1))}
        assert await script.ask("POST", "/id", {}) == (405, "/id must be GET")
        assert await script.ask("GET", "/id", b"") == (400, "bad JSON")
        assert (await script.ask("GET", "/other", {}))[0] == 404
        for path in ("/resume", "/suspend", "/try-upscale"):
            assert (await script.ask("POST", path, stranger))[0] == 404
            assert await script.ask("POST", path, {"expectedID": "x"}) == (400, "bad JSON")
        assert (await script.ask("POST", "/try-upscale", script.identity))[0] == 400
        assert agent.chosen is not None

    scripted(scenario, Script(), SLOW)


@pytest.mark.parametrize("path", ["/suspend", "/resume"])
def test_an_informant_out_of_turn_ends_it_and_another_server_registers(path: str) -> None:
    async def scenario(script: Script, agent: InformantConnection, heard: Heard) -> None:
        before = dict(script.agent)
        if path == "/resume":
            assert (await script.ask("POST", path, script.identity))[0] == 200
        assert (await script.ask("POST", path, script.identity))[0] == 400
        await until_async(lambda: len(script.bodies_of("/register")) == 2)
        assert script.bodies_of("/unregister") == [before]
        assert script.agent["agentID"] != before["agentID"]
        assert script.agent["agentServeAddr"] != before["agentServeAddr"]

    scripted(scenario, Script(), replace(SLOW, restart=1))


def test_an_agent_that_is_asked_early_is_not_early_when_the_reply_is_under_way() -> None:
    async def scenario() -> None:
        script = Script()
        server, heard = HttpServer(script.respond), Heard()
        _, port = await server.listen(HOST)
        gate = asyncio.Event()
        plain = script.respond

        async def slow(request: HttpRequest) -> HttpResponse:
            response = await plain(request)
            if request.path == "/register":
                await gate.wait()
            return response

        server._respond = slow
        agent = InformantConnection("vm1", HOST, port, heard, HOST, SLOW)
        task = asyncio.create_task(agent.run())
        await until_async(lambda: bool(script.agent))
        resume = asyncio.create_task(script.ask("POST", "/resume", script.identity))
        await asyncio.sleep(0.05)
        assert not resume.done()
        gate.set()
        assert (await resume)[0] == 200
        assert agent.status().connected
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await server.close()

    run(scenario())


BAD_REGISTRATIONS: list[tuple[int, Any]] = [
    (409, b"known"),
    (200, b"{"),
    (200, {"protoVersion": 5, "metricsMethod": {"prometheus": {"port": 1}}}),
    (200, {"protoVersion": 4, "metricsMethod": {}}),
    (201, {"protoVersion": 4, "metricsMethod": {"prometheus": {"port": 1}}}),
]


@pytest.mark.parametrize("answer", [*BAD_REGISTRATIONS, None])
def test_an_invalid_registration_is_tried_again_with_another_server(answer: tuple[int, Any] | None) -> None:
    script = Script()
    if answer is None:
        script.asks_for_id = False
    else:
        script.answers["/register"] = lambda: answer

    async def scenario(script: Script, agent: InformantConnection, heard: Heard) -> None:
        await until_async(lambda: len(script.bodies_of("/register")) >= 2)
        ids = [body["agentID"] for body in script.bodies_of("/register")]
        assert len(set(ids)) == len(ids)
        assert not agent.status().connected
        with pytest.raises(Failed):
            await agent.upscale(Resources(1000, GIB))
        left = [body["agentID"] for body in script.bodies_of("/unregister")]
        if answer is None:
            assert left == [], "it must forget what it may not know"
        else:
            assert left in (ids[:-1], ids)

    scripted(scenario, script)


def test_what_the_informant_asks_while_it_registers_is_answered_though_the_registration_fails() -> None:
    asking: list[asyncio.Task[tuple[int, Any]]] = []

    class Busy(Script):
        async def respond(self, request: HttpRequest) -> HttpResponse:
            response = await super().respond(request)
            if request.path == "/register":
                asking.append(asyncio.create_task(self.ask("POST", "/resume", self.identity)))
                await asyncio.sleep(0.5)
                return HttpResponse(500, b"broken")
            return response

    async def scenario(script: Script, agent: InformantConnection, heard: Heard) -> None:
        status, answer = await asking[0]
        assert (status, answer) == (404, "this server has ended")

    scripted(scenario, Busy())


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/downscale", (404, b"who?")),
        ("/downscale", (500, b"broken")),
        ("/downscale", (200, b"[]")),
        ("/upscale", (204, b"")),
        ("/health-check", (404, b"who?")),
    ],
)
def test_any_answer_but_200_ends_it(path: str, answer: tuple[int, Any]) -> None:
    async def scenario(script: Script, agent: InformantConnection, heard: Heard) -> None:
        assert (await script.ask("POST", "/resume", script.identity))[0] == 200
        script.answers[path] = lambda: answer
        if path != "/health-check":
            ask = agent.downscale if path == "/downscale" else agent.upscale
            with pytest.raises(NodeError) as raised:
                await ask(Resources(1000, GIB))
            assert isinstance(raised.value, Unknown) is (answer[0] == 200)
        await until_async(lambda: len(script.bodies_of("/register")) >= 2)
        assert "connected" in heard.events[:-1]
        assert agent.status().failures >= 1

    scripted(scenario, Script())


def test_one_request_at_a_time() -> None:
    async def scenario(script: Script, agent: InformantConnection, heard: Heard) -> None:
        under_way = most = 0

        async def slow(request: HttpRequest) -> HttpResponse:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0.15)
            under_way -= 1
            return await respond(request)

        respond, script.respond = script.respond, slow  # type: ignore[method-assign]
        await script.ask("POST", "/resume", script.identity)
        await asyncio.gather(*(agent.upscale(Resources(1000 + n, GIB)) for n in range(5)))
        assert most <= 1
        assert [body["sequenceNumber"] for body in script.bodies_of("/upscale")] == [3, 4, 5, 6, 7]

    scripted(scenario, Script(), replace(SLOW, health_check=200))


def test_when_the_next_server_begins() -> None:
    assert next_start(0, 100, RestartDelay.AT_ONCE, 5000) == 5000
    assert next_start(0, 9000, RestartDelay.AT_ONCE, 5000) == 9000
    assert next_start(0, 100, RestartDelay.LATER, 5000) == 5100


def test_only_the_guest_is_heard() -> None:
    async def scenario(script: Script, agent: InformantConnection, heard: Heard) -> None:
        port = int(script.agent["agentServeAddr"].rpartition(":")[2])
        reader, writer = await asyncio.open_connection(HOST, port, local_addr=("127.0.0.2", 0))
        writer.write(b"GET /id HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        with suppress(ConnectionError):
            assert await reader.read() == b""
        writer.transport.abort()
        assert (await script.ask("GET", "/id", {}))[0] == 200

    scripted(scenario, Script(), SLOW)


def test_what_goes_on_by_itself_in_a_minute() -> None:
    async def scenario(script: Script, agent: InformantConnection, heard: Heard) -> None:
        assert (await script.ask("POST", "/resume", script.identity))[0] == 200
        before = len(script.bodies_of("/health-check"))
        await asyncio.sleep(60)
        assert len(script.bodies_of("/health-check")) - before == 12
        script.answers["/health-check"] = lambda: (500, b"ill")
        began = asyncio.get_running_loop().time()
        await until_async(lambda: len(script.bodies_of("/register")) == 2)
        assert 5 <= asyncio.get_running_loop().time() - began <= 10.5

    scripted(scenario, Script())


def test_a_guest_monitor_is_an_informant_too(tmp_path: Path) -> None:
    """The program as it is started, with an agent of before the guest monitor."""
    guest = GuestTree(tmp_path, memory=4 * GIB, used=GIB)
    here = {"listen": f"{HOST}:0", "metrics_listen": f"{HOST}:0", "informant": f"{HOST}:0", "root": str(tmp_path)}

    async def scenario() -> None:
        monitor = GuestMonitor(settings_from(here), guest, make_informant)
        ready: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        tasks = [asyncio.create_task(monitor.run(lambda port, metrics: ready.set_result(metrics)))]
        metrics, heard = await ready, Heard()
        assert isinstance(monitor.informant, Informant)
        assert monitor.informant.address is not None
        agent = InformantConnection("vm1", HOST, monitor.informant.address[1], heard, HOST)
        tasks.append(asyncio.create_task(agent.run()))
        await until_async(lambda: agent.status().connected)
        assert agent.chosen == InformantDesc(InformantVersion(4), metrics or 0)
        assert not (await agent.downscale(Resources(250, GIB))).ok
        assert (await agent.downscale(Resources(250, 2 * GIB))).ok
        guest.set_memory(2 * GIB, 1800 * 2**20)
        await until_async(lambda: bool(heard.wishes))
        await agent.upscale(Resources(250, 4 * GIB))
        assert heard.wishes[0] == ResourceFlags(memory=True)
        for task in reversed(tasks):
            task.cancel()
            await asyncio.wait([task])

    run(scenario())


def test_an_informant_needs_gauges_and_a_port_of_its_own() -> None:
    for given, reason in (
        ({"informant": "0.0.0.0:10301"}, "another port"),
        ({"informant": "0.0.0.0:1", "metrics_listen": "off"}, "must not be off"),
        ({"informant": "here"}, "--informant: 'here' is not ADDRESS:PORT"),
    ):
        with pytest.raises(ValueError, match=reason):
            settings_from(given)


class Machine:
    """Whatever else a scaler speaks with: all is permitted, and changes come at once."""

    def __init__(self, port: int) -> None:
        self.has, self.load, self.port = UNIT, 0.0, port
        self.most = UNIT

    def channels(self, scaler: Scaler) -> Channels:
        return Channels(self, self, InformantConnection("vm1", HOST, self.port, scaler, HOST), self)

    async def ask(self, last: Resources | None, target: Resources, metrics: SystemMetrics | None) -> Resources:
        return target

    async def change(self, target: Resources) -> Resources:
        self.has, self.most = target, self.most.most(target)
        return target

    async def look(self) -> Resources:
        return self.has

    async def system(self) -> SystemMetrics:
        return SystemMetrics(self.load * UNIT.cpu / 1000)

    async def lfc(self) -> LfcMetrics:
        raise AssertionError("it is not wanted")


def test_a_machine_with_an_informant_is_scaled_as_one_with_a_monitor() -> None:
    async def scenario() -> None:
        async with World(INFORMANT_VERSIONS) as world:
            machine = Machine(world.port)
            scaler = Scaler(
                "vm1",
                ScalingRules(UNIT),
                ScalingBounds(UNIT, UNIT * 6),
                CONFIG,
                machine.channels,
                ScalerTimeouts(),
                Random(1),
            )
            world.running.append(asyncio.create_task(scaler.run()))
            machine.load = 4
            await until_async(lambda: machine.has == UNIT * 4)
            await until_async(lambda: ("grew", UNIT * 4) in world.guest.done)
            world.guest.least = 3 * GIB
            machine.load = 0
            await until_async(lambda: ("shrink", UNIT * 2) in world.guest.done)
            assert machine.has == UNIT * 3
            world.informant.want(ResourceFlags(memory=True))
            await until_async(lambda: world.guest.done[-1] == ("grew", UNIT * 4))
            world.guest.least = 0
            await until_async(lambda: machine.has == UNIT)
            shrunk = [resources for what, resources in world.guest.done if what == "shrink"]
            assert shrunk[-1] == UNIT
            assert machine.most == UNIT * 4

    run(scenario())
