"""What the agent shows of itself: metrics for Prometheus, and its state at a port of this host."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from devalloc.scaling.health import ScalingReport
from devalloc.scaling.state import ScalingRules
from devalloc_machines.agent import metrics as agent_metrics
from devalloc_machines.agent.agent import Agent, ScalingTarget, agent_dump_served
from devalloc_machines.agent.metrics import REQUESTS, RESULTS, ScalingMetrics
from devalloc_node.errors import Denied, Failed, Unknown
from tests.support.ports import free_ports
from tests.support.scaler_fakes import BOUNDS, ScalerFakes
from tests.support.scaling_world import CONFIG, UNIT
from tests.support.virtual_time import run


class Shown:
    """An agent and its metrics, in virtual time."""

    def __init__(self, **arounds: ScalerFakes) -> None:
        self._arounds = arounds
        self.registry = CollectorRegistry()
        self._agent: Agent | None = None
        self.metrics = ScalingMetrics(self.registry, self._reports)

    def _reports(self) -> list[ScalingReport]:
        agent = self._agent
        return [] if agent is None else [each for key in agent.keys if (each := agent.report(key)) is not None]

    def sample(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"devalloc_node_{name}", labels) or 0

    def after(self, seconds: float, then: Callable[[Agent], Awaitable[None]], *, sockets: bool = False) -> None:
        async def main() -> None:
            self._agent = agent = Agent(ScalingRules(UNIT), None, random.Random(1), self.metrics)
            for name, around in self._arounds.items():
                await agent.scale(ScalingTarget(name, "run-1", BOUNDS, CONFIG, around.channels))
            await asyncio.sleep(seconds)
            await then(agent)
            await agent.close()

        run(main(), sockets=sockets)


def failing(channel: str, error: Exception) -> ScalerFakes:
    around = ScalerFakes(UNIT * 4 if channel == "downscale" else UNIT, load=2)
    around.failing[channel] = error
    return around


class TestMetrics:
    def test_goals_permits_and_amounts_are_summed_over_all_machines(self) -> None:
        short = ScalerFakes(UNIT, load=6)
        short.room = UNIT * 2
        shown = Shown(a=ScalerFakes(UNIT, load=3), b=short)

        async def look(agent: Agent) -> None:
            assert shown.sample("scaled_machines") == 2
            cpus = {name: shown.sample("scaled_cpus", amount=name) for name in ("wanted", "permitted", "applied")}
            assert cpus == {"wanted": 2.25, "permitted": 1.25, "applied": 1.25}
            assert shown.sample("scaled_memory_bytes", amount="wanted") == 9 << 30
            assert shown.sample("scaling_waits", reason="PermitShort") == 1
            assert shown.sample("scaling_stuck", reason="PermitShort") == 1

        shown.after(60, look)

    @pytest.mark.parametrize(
        ("request_", "call", "error", "result"),
        [
            ("permit", "ask", Failed("PermitFailed", "no"), "failed"),
            ("permit", "ask", Denied("PermitRefused", "no"), "denied"),
            ("permit", "ask", Unknown("NoAnswer", "?"), "unknown"),
            ("change", "change", Failed("ItBroke", "no"), "failed"),
            ("look", "look", Failed("ItBroke", "no"), "failed"),
            ("upscale", "upscale", Failed("ItBroke", "no"), "failed"),
            ("downscale", "downscale", Unknown("ItBroke", "?"), "unknown"),
            ("metrics", "measure", Failed("MetricsUnavailable", "no"), "failed"),
        ],
    )
    def test_each_request_is_counted_by_how_it_ended(
        self, request_: str, call: str, error: Exception, result: str
    ) -> None:
        around = failing(call, error)
        shown = Shown(a=around)

        async def look(agent: Agent) -> None:
            count = around.did.count(call if call != "change" else "change 2")
            assert count
            assert shown.sample("scaling_requests_total", request=request_, result=result) == count
            assert shown.sample("scaling_requests_total", request=request_, result="done") == 0

        shown.after(30, look)

    def test_looks_that_fail_later_are_counted_as_well(self) -> None:
        around = ScalerFakes(UNIT, load=2)
        around.failing["change"] = Unknown("NoAnswer", "?")  # what the machine has now is in doubt
        shown = Shown(a=around)

        async def look(agent: Agent) -> None:
            around.failing["look"] = Failed("ItBroke", "no")
            before = around.did.count("look")
            assert before
            await asyncio.sleep(60)
            failed = around.did.count("look") - before
            assert failed
            assert shown.sample("scaling_requests_total", request="look", result="failed") == failed

        shown.after(30, look)

    def test_what_falls_short_is_no_failure(self) -> None:
        around = ScalerFakes(UNIT * 4, load=2)
        around.agrees = False
        shown = Shown(a=around)

        async def look(agent: Agent) -> None:
            assert shown.sample("scaling_requests_total", request="downscale", result="short") > 2
            assert shown.sample("scaling_waits", reason="GuestMonitorFailed") == 0

        shown.after(30, look)

    def test_the_metrics_show_seconds_of_decisions(self) -> None:
        around = ScalerFakes(UNIT, load=1)
        shown = Shown(a=around)

        async def look(agent: Agent) -> None:
            around.room, around.load = UNIT * 2, 4
            await asyncio.sleep(20)
            around.room = UNIT * 100
            await asyncio.sleep(20)
            assert shown.sample("scaling_seconds_count") == 1
            assert 10 < shown.sample("scaling_seconds_sum") < 30

        shown.after(10, look)

    def test_labels_have_few_values_and_no_machines_name(self) -> None:
        shown = Shown(**{f"secret-{number}": ScalerFakes(UNIT, load=3) for number in range(5)})

        async def look(agent: Agent) -> None:
            samples = [sample for family in shown.registry.collect() for sample in family.samples]
            assert not any("secret" in value for sample in samples for value in sample.labels.values())
            requests = [each for each in samples if each.name == "devalloc_node_scaling_requests_total"]
            assert {each.labels["request"] for each in requests} <= set(REQUESTS)
            assert {each.labels["result"] for each in requests} <= set(RESULTS)

        shown.after(30, look)

    def test_the_table_in_the_module_has_each_metric_and_no_other(self) -> None:
        shown = Shown(a=ScalerFakes(UNIT, load=3))

        async def look(agent: Agent) -> None:
            there = {
                family.name + ("_total" if family.type == "counter" else "") for family in shown.registry.collect()
            }
            rows = (agent_metrics.__doc__ or "").splitlines()
            assert there == {row.split("``")[1] for row in rows if row.startswith("| ``")}

        shown.after(20, look)


async def got(port: int, method: str = "GET", path: str = "/", body: str | None = None) -> tuple[int, str]:
    def get() -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request(method, path, body)
        answer = connection.getresponse()
        reply = answer.status, answer.read().decode()
        connection.close()
        return reply

    return await asyncio.get_running_loop().run_in_executor(None, get)


class TestDump:
    def test_all_that_is_known_of_each_machine_is_at_the_port(self) -> None:
        shown, port = Shown(a=ScalerFakes(UNIT, load=3), b=failing("look", Failed("ItBroke", "no"))), free_ports(1)[0]

        async def look(agent: Agent) -> None:
            async with agent_dump_served(agent, port):
                await asyncio.sleep(1)
                status, text = await got(port)
                dump = json.loads(text)
                assert status == 200
                assert dump["a"]["report"]["wanted"] == {"cpus": "750m", "memory": "3Gi"}
                assert dump["a"]["state"]["bounds"]["max"] == {"cpus": "1500m", "memory": "6Gi"}
                assert dump["b"] == {"state": None, "report": None, "errors": {"machine": "no"}}
                assert (await got(port, path="/metrics"))[0] == 404
                assert (await got(port, "POST"))[0] == 405
                assert (await got(port, "GET", body="x" * 100))[0] == 413

        shown.after(30, look, sockets=True)

    def test_a_dump_port_in_use_holds_up_no_machine_and_opens_when_it_is_free(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        shown = Shown(a=ScalerFakes(UNIT, load=3))

        async def look(agent: Agent) -> None:
            with socket.create_server(("127.0.0.1", 0)) as door:
                port = int(door.getsockname()[1])
                shown_at = agent_dump_served(agent, port)
                await shown_at.__aenter__()
                await asyncio.sleep(100)
            await asyncio.sleep(60)
            assert (await got(port))[0] == 200
            await shown_at.__aexit__(None, None, None)
            with pytest.raises(ConnectionRefusedError):
                await got(port)

        shown.after(5, look, sockets=True)
        assert caplog.text.count("--dump-port") == 1

    def test_at_a_socket_only_its_user_can_have_it_and_it_goes_with_the_agent(self, tmp_path: Path) -> None:
        shown, path = Shown(a=ScalerFakes(UNIT, load=3)), tmp_path / "node-agent.sock"

        async def look(agent: Agent) -> None:
            async with agent_dump_served(agent, path):
                await asyncio.sleep(1)
                assert stat.S_IMODE(path.stat().st_mode) == 0o600
                reader, writer = await asyncio.open_unix_connection(path)
                writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                answer = await reader.read()
                writer.close()
                assert answer.startswith(b"HTTP/1.1 200 ")
                assert list(json.loads(answer.partition(b"\r\n\r\n")[2])) == ["a"]
            assert not path.exists()

        shown.after(30, look, sockets=True)

    def test_without_a_port_nothing_listens(self) -> None:
        shown = Shown(a=ScalerFakes(UNIT, load=3))

        async def look(agent: Agent) -> None:
            before = len(asyncio.all_tasks())
            async with agent_dump_served(agent, None):
                assert len(asyncio.all_tasks()) == before

        shown.after(5, look)
