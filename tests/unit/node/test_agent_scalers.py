"""The agent between threads: it scales what it must, reports name their run, and no failure ends it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from devalloc.scaling.config import ScalingConfig
from devalloc.scaling.state import ScalingRules
from devalloc_machines.agent.agent import Agent, ScalingTarget
from devalloc_machines.agent.agent_thread import AgentThread, ChannelFactory
from devalloc_machines.agent.channels import Channels, ScaledMachine
from devalloc_machines.agent.scaler import Scaler
from devalloc_machines.agent.settings import ScalingSettings
from devalloc_machines.service.operations import MachineOperations
from devalloc_node.errors import Denied, Failed
from tests.support.node_errors import raises
from tests.support.scaler_fakes import BOUNDS, ScalerFakes
from tests.support.scaling_world import CONFIG, UNIT
from tests.support.virtual_time import run


def scaled(key: str = "ns/vm", run: str = "run-1", uid: str = "uid", at: str = "", since: str = "") -> ScaledMachine:
    """``at``: the address of its guest, where several machines are to have the same one."""
    return ScaledMachine(key, uid, run, BOUNDS, ScalingConfig(), at or f"guest of {key}", 1, 2, since=since)


def test_an_address_is_that_of_the_oldest_machine_that_names_it() -> None:
    news: list[str] = []
    scalers = AgentThread(
        ChannelFactory(cast(MachineOperations, None), ScalingSettings(compute_unit=UNIT)), changed=news.append
    )
    young = scaled("a/young", at="10.0.0.5", since="2026-02")
    old = scaled("b/old", at="10.0.0.5", since="2026-01")
    scalers.keep(young)
    scalers.keep(old)  # after a restart of the plugin they may come in any order
    assert news == ["a/young"]
    with raises(Denied, "GuestAddressInUse", match="belongs to another machine of this node") as denied:
        scalers.keep(young)
    assert "b/old" not in denied.value.message, "who that is, is no business of another namespace"
    scalers.keep(old)
    scalers.keep(scaled("a/young", at="10.0.0.6"))
    scalers.keep(scaled("b/old", at="10.0.0.7", since="2026-01"))
    scalers.keep(young)
    scalers.drop("a/young")
    scalers.keep(scaled("c/later", at="10.0.0.5", since="2026-03"))


class Served:
    """Scalers in one loop with its test, on a clock that jumps. ``arounds``: by ``key run``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, arounds: dict[str, ScalerFakes]) -> None:
        self.arounds, self.news = arounds, list[str]()
        settings = ScalingSettings(compute_unit=UNIT)
        self.scalers = AgentThread(ChannelFactory(cast(MachineOperations, None), settings), changed=self.hear)

        def channels(wiring: ChannelFactory, scaled: ScaledMachine, scaler: Scaler, **more: object) -> Channels:
            return self.arounds[f"{scaled.key} {scaled.run}"].channels(scaler)

        monkeypatch.setattr(ChannelFactory, "channels", channels)

    def hear(self, key: str) -> None:
        self.news.append(key)

    def run(self, then: Callable[[AgentThread], Awaitable[None]]) -> None:
        async def main() -> None:
            stop = threading.Event()
            serving = asyncio.create_task(self.scalers.serve(stop))
            await asyncio.sleep(0.1)
            await then(self.scalers)
            assert not serving.done()
            stop.set()
            await serving

        run(main())


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    return Served(monkeypatch, {"ns/vm run-1": ScalerFakes(UNIT, load=3), "ns/vm run-2": ScalerFakes(UNIT, load=2)})


def test_listed_machines_are_scaled_and_each_change_is_reported(served: Served) -> None:
    async def then(scalers: AgentThread) -> None:
        scalers.keep(scaled())
        await asyncio.sleep(30)
        report = scalers.report("ns/vm")
        assert report is not None
        assert report.applied == UNIT * 3
        assert set(served.news) == {"ns/vm"}
        news_count = len(served.news)
        await asyncio.sleep(60)
        assert len(served.news) == news_count, "that its load was told again is no news"
        now = scalers.report("ns/vm")
        assert now is not None
        assert now.load is not None
        scalers.drop("ns/vm")
        assert scalers.report("ns/vm") is None
        assert scalers.reports() == []
        await asyncio.sleep(2)
        did = len(served.arounds["ns/vm run-1"].did)
        await asyncio.sleep(60)
        assert len(served.arounds["ns/vm run-1"].did) == did
        assert "cache" not in served.arounds["ns/vm run-1"].did, "its metrics are not wanted"

    served.run(then)


@pytest.mark.parametrize("again", [scaled(run="run-2"), scaled(run="run-2", uid="another")])
def test_another_run_has_no_report_before_it_was_seen(served: Served, again: ScaledMachine) -> None:
    """Be it the same machine or another of its name."""
    served.arounds["ns/vm run-2"].failing["look"] = Failed("ItBroke", "not yet")

    async def then(scalers: AgentThread) -> None:
        scalers.keep(scaled())
        await asyncio.sleep(30)
        assert scalers.report("ns/vm") is not None
        scalers.keep(again)
        for _ in range(20):
            assert scalers.report("ns/vm") is None
            await asyncio.sleep(0.5)
        served.arounds["ns/vm run-2"].failing.clear()
        await asyncio.sleep(30)
        report = scalers.report("ns/vm")
        assert report is not None
        assert report.applied == UNIT * 2

    served.run(then)


def test_a_machine_that_nothing_can_be_made_for_ends_neither_the_agent_nor_others(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    async def then(scalers: AgentThread) -> None:
        scalers.keep(scaled("ns/bad"))  # no channels for it: a bug of ours
        scalers.keep(scaled())
        await asyncio.sleep(30)
        assert scalers.report("ns/bad") is None
        report = scalers.report("ns/vm")
        assert report is not None
        assert report.applied == UNIT * 3
        served.arounds["ns/bad run-1"] = ScalerFakes(UNIT, load=2)
        await asyncio.sleep(30)
        report = scalers.report("ns/bad")
        assert report is not None
        assert report.applied == UNIT * 2

    served.run(then)
    assert "ns/bad: the scaler ended; it restarts" in caplog.text


def test_a_listener_that_fails_does_not_end_the_reports(
    served: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(key: str) -> None:
        served.hear(key)
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(served.scalers, "_changed", fails)

    served.arounds["ns/other run-1"] = ScalerFakes(UNIT, load=2)

    async def then(scalers: AgentThread) -> None:
        scalers.keep(scaled())
        scalers.keep(scaled("ns/other"))
        await asyncio.sleep(30)
        for key, units in (("ns/vm", 3), ("ns/other", 2)):
            report = scalers.report(key)
            assert report is not None
            assert report.applied == UNIT * units
        assert set(served.news) == {"ns/vm", "ns/other"}, "one's news are not kept back by the other's"

    served.run(then)
    assert "ns/other: cannot report its changes" in caplog.text


class Clinging(ScalerFakes):
    """A guest whose connection takes its time to end."""

    async def run(self) -> None:  # type: ignore[override]
        try:
            await super().run()
        finally:
            self.did.append("lets go")
            await asyncio.sleep(10)
            self.did.append("has let go")


def test_guests_that_do_not_let_go_hold_up_only_the_next_run_of_their_machine() -> None:
    clinging, others = [Clinging(UNIT, load=2) for _ in range(50)], [ScalerFakes(UNIT, load=2) for _ in range(50)]
    again = ScalerFakes(UNIT, load=3)

    async def main() -> None:
        agent = Agent(ScalingRules(UNIT))
        for number, around in enumerate(clinging):
            await agent.scale(ScalingTarget(f"vm-{number}", "run-1", BOUNDS, CONFIG, around.channels))
        await asyncio.sleep(20)
        for number, around in enumerate(others):
            agent.drop(f"vm-{number}")
            await agent.scale(ScalingTarget(f"other-{number}", "run-1", BOUNDS, CONFIG, around.channels))
        for later in ("run-2", "run-3"):  # the one in between never begins
            await agent.scale(ScalingTarget("vm-0", later, BOUNDS, CONFIG, again.channels))
        await asyncio.sleep(5)
        assert all(around.did for around in others)
        assert again.did == []
        await asyncio.sleep(10)
        assert clinging[0].did[-1] == "has let go"
        assert again.did.count("change 3") == 1
        await agent.leave("vm-0")
        did = len(again.did)
        await agent.close()
        await asyncio.sleep(60)
        assert len(again.did) == did
        assert len(asyncio.all_tasks()) == 1

    run(main(), sockets=False)
