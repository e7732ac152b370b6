"""What a scaler of this node speaks with, as its machine's object says: a monitor, or an informant."""

from __future__ import annotations

import asyncio
from random import Random
from typing import cast

import pytest
from aiohttp import ClientSession, web

from devalloc.scaling.config import ScalingConfig
from devalloc.scaling.resources import ScalingBounds
from devalloc.scaling.state import ScalingRules
from devalloc_machines.agent.actuator import MachineExecutors
from devalloc_machines.agent.agent_thread import ChannelFactory
from devalloc_machines.agent.channels import Channels, ScaledMachine
from devalloc_machines.agent.guest_monitor_client import MonitorConnection
from devalloc_machines.agent.http_client import new_session
from devalloc_machines.agent.scaler import Scaler
from devalloc_machines.agent.settings import ScalingSettings
from devalloc_machines.service.operations import MachineOperations
from devalloc_neon.informant import Informant
from devalloc_neon.informant_client import InformantConnection, informant_channel, local_address_to
from devalloc_neon.informant_messages import INFORMANT_VERSIONS
from devalloc_node.errors import Failed
from tests.support.scaling_world import UNIT
from tests.support.virtual_time import run
from tests.support.waiting import until_async
from tests.unit.neon.test_informant import Guest
from tests.unit.node.test_agent_clients import METRICS, answering

HOST = "127.0.0.1"
NEW_METRICS = "host_load5", "host_memory_cached_bytes"
"""What guests of an older release do not have."""
OLDER_METRICS = "".join(line for line in METRICS.splitlines(True) if not any(name in line for name in NEW_METRICS))


def scaled(**changed: object) -> ScaledMachine:
    made = ScaledMachine("ns/vm", "uid", "run-1", ScalingBounds(UNIT, UNIT * 4), ScalingConfig(), HOST, 1, 2)
    for name, value in changed.items():
        object.__setattr__(made, name, value)
    return made


async def wired(what: ScaledMachine) -> Channels:
    """The channels of a machine; nothing is asked of its platform."""
    async with new_session() as session:
        return made_for(what, session)


def made_for(what: ScaledMachine, session: ClientSession, settings: ScalingSettings | None = None) -> Channels:
    wiring = ChannelFactory(
        cast(MachineOperations, None), settings or ScalingSettings(), protocols={"informant": informant_channel}
    )
    made: list[Channels] = []

    def channels(scaler: Scaler) -> Channels:
        made.append(wiring.channels(what, scaler, MachineExecutors(1), session, session))
        return made[0]

    Scaler("vm", ScalingRules(UNIT), what.bounds, what.config, channels, None, Random(1))
    return made[0]


@pytest.mark.parametrize(("protocol", "kind"), [("monitor", MonitorConnection), ("informant", InformantConnection)])
def test_it_speaks_what_the_guest_speaks(protocol: str, kind: type) -> None:
    assert isinstance(run(wired(scaled(protocol=protocol))).guest, kind)


def test_guests_of_an_older_release_are_asked_for_the_gauges_that_they_have() -> None:
    async def gauges(request: web.Request) -> web.StreamResponse:
        return web.Response(text=OLDER_METRICS)

    async def scenario() -> None:
        async with answering(gauges) as port, new_session() as session:
            guest = scaled(metrics_port=port)
            old = made_for(guest, session, ScalingSettings(compat="v0.31"))
            assert (await old.metrics.system()).load1 == 0.3
            with pytest.raises(Failed, match="host_load5 is missing; host_memory_cached_bytes is missing"):
                await made_for(guest, session).metrics.system()

    run(scenario())


def test_the_address_for_an_informant_is_the_local_one_on_the_route_to_it() -> None:
    assert local_address_to("127.0.0.7") == HOST
    with pytest.raises(OSError, match=r".*"):
        local_address_to("no address")


def test_an_informant_is_registered_with_and_its_gauges_asked_for_where_it_says() -> None:
    """With no address said where informants call back."""

    async def gauges(request: web.Request) -> web.StreamResponse:
        return web.Response(text=METRICS)

    async def scenario() -> None:
        async with answering(gauges) as gauges_port, new_session() as session:
            informant = Informant(Guest(), gauges_port, versions=INFORMANT_VERSIONS)
            _, port = await informant.listen(HOST, 0)
            served = asyncio.create_task(informant.run())
            speaks = made_for(scaled(protocol="informant", monitor_port=port, metrics_port=1), session)
            guest_task = asyncio.create_task(speaks.guest.run())
            await until_async(lambda: speaks.guest.status().connected)
            assert (await speaks.metrics.system()).load1 == 0.3
            assert (await speaks.guest.downscale(UNIT)).ok
            for task in (guest_task, served):
                task.cancel()
            await asyncio.gather(guest_task, served, return_exceptions=True)
            await informant.close()

    run(scenario())
