"""Agents and the server of permits over the wire: machines that compete for a full node, and a server that restarts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

from devalloc.machines.permits import Settings as ServerSettings
from devalloc.scaling.health import ScalingReport
from devalloc.scaling.messages.permits import PodName
from devalloc.scaling.resources import Resources, ScalingBounds
from devalloc.scaling.state import ScalingRules, ScalingTiming
from devalloc.store.sqlite import SQLiteStore
from devalloc_machines.agent.agent import Agent, ScalingTarget
from devalloc_machines.agent.channels import Channels
from devalloc_machines.agent.http_client import new_session
from devalloc_machines.agent.permit_client import HttpPermits, StaticEndpoint
from devalloc_machines.agent.scaler import Scaler, ScalerTimeouts
from tests.support.fake_tree import memory_folder
from tests.support.permit_bench import machine, node_of, running, serving
from tests.support.scaler_fakes import ScalerFakes
from tests.support.scaling_world import CONFIG, UNIT

ROOM = 10
QUICK = ScalingTiming(
    plugin_tick=300, plugin_retry=50, plugin_denied_retry=50, machine_retry=50, monitor_retry=50, monitor_denied=100
)
OFTEN = ScalerTimeouts(metrics_interval=20, look_interval=50)
PORTS = ServerSettings(port=0, dump_port=None)


def test_permits_over_the_wire_never_exceed_the_node_and_follow_the_load() -> None:
    arounds = {name: ScalerFakes(UNIT, load=1) for name in ("a", "b", "c")}
    with memory_folder() as folder:
        path = Path(folder) / "store.db"
        with closing(SQLiteStore(path)) as store:
            for name in arounds:
                running(store, machine(name, least=UNIT, most=UNIT * 6))
        with serving(path, node_of(UNIT * ROOM), PORTS) as bench:
            asyncio.run(_with_agent(arounds, bench.addresses.requests, _compete))
        # Another agent and another server: what was written down still holds.
        with serving(path, node_of(UNIT * ROOM), PORTS) as bench:
            asyncio.run(_with_agent(arounds, bench.addresses.requests, _go_on))


Arounds = dict[str, ScalerFakes]


async def _compete(agent: Agent, arounds: Arounds) -> None:
    await _until(agent, lambda reports: all(report.reason is None for report in reports))
    # Together they want more than there is.
    for around in arounds.values():
        around.load = 6
    await _until(agent, lambda reports: _sum(reports) == UNIT * ROOM)
    await _until(
        agent, lambda reports: any(report.reason and report.reason.code == "PermitShort" for report in reports)
    )
    arounds["a"].load = arounds["b"].load = 1
    await _until(agent, lambda reports: [report.applied for report in reports] == [UNIT, UNIT, UNIT * 6])


async def _go_on(agent: Agent, arounds: Arounds) -> None:
    arounds["a"].load = 5
    # There is room for three; the third machine still has six.
    await _until(agent, lambda reports: [report.applied for report in reports] == [UNIT * 3, UNIT, UNIT * 6])
    arounds["c"].load = 2
    await _until(agent, lambda reports: [report.applied for report in reports] == [UNIT * 5, UNIT, UNIT * 2])
    await _until(agent, lambda reports: all(report.reason is None for report in reports))


async def _with_agent(
    arounds: Arounds, server: tuple[str, int], course: Callable[[Agent, Arounds], Awaitable[None]]
) -> None:
    host, port = server
    agent = Agent(ScalingRules(UNIT, QUICK), OFTEN, random.Random(1))
    async with asyncio.timeout(60), new_session() as session:
        for name, around in arounds.items():

            def channels(scaler: Scaler, name: str = name, around: ScalerFakes = around) -> Channels:
                around.scaler = scaler
                permits = HttpPermits(session, StaticEndpoint(f"http://{host}:{port}/"), PodName("default", name), UNIT)
                return Channels(permits, around, around, around)

            await agent.scale(ScalingTarget(name, "run-1", ScalingBounds(UNIT, UNIT * 6), CONFIG, channels))
        await course(agent, arounds)
        await agent.close()


def agent_reports(agent: Agent) -> list[ScalingReport]:
    reports = [agent.report(key) for key in agent.keys]
    return [report for report in reports if report is not None]


def _sum(reports: list[ScalingReport]) -> Resources:
    return sum((report.permitted or UNIT for report in reports), Resources(0, 0))


async def _until(agent: Agent, holds: Callable[[list[ScalingReport]], bool]) -> None:
    """Until it holds of all machines; what is permitted is looked at all the while."""
    while True:
        reports = agent_reports(agent)
        assert not _sum(reports).exceeds(UNIT * ROOM)
        assert all(report.permitted is None or not report.applied.exceeds(report.permitted) for report in reports)
        if len(reports) == 3 and holds(reports):
            return
        await asyncio.sleep(0.01)
