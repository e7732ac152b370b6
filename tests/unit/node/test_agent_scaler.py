"""One machine and its scaler in virtual time: its reports, when it counts as stuck, and what is left alone."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from devalloc.scaling.health import ScalingReport, StuckReason
from devalloc.scaling.metrics import GuestReport, SystemMetrics
from devalloc.scaling.resources import ResourceFlags, Resources, ScalingBounds
from devalloc.scaling.state import ScalingRules
from devalloc_machines.agent.agent import Agent, ScalingTarget
from devalloc_machines.agent.channels import ChangeRefused
from devalloc_machines.agent.metrics import ScalingMetrics
from devalloc_machines.agent.scaler import Scaler, ScalerTimeouts
from devalloc_node.errors import Denied, Failed
from tests.support.scaler_fakes import BOUNDS, ScalerFakes
from tests.support.scaling_world import CONFIG, UNIT
from tests.support.virtual_time import run


async def _after(
    around: ScalerFakes, seconds: float, bounds: ScalingBounds = BOUNDS, waits: ScalerTimeouts | None = None
) -> ScalingReport:
    scaler = Scaler("ns/vm", ScalingRules(UNIT), bounds, CONFIG, around.channels, waits, random.Random(1))
    task = asyncio.create_task(scaler.run())
    await asyncio.sleep(seconds)
    assert not task.done(), task
    report = scaler.report()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert report is not None
    return report


@asynccontextmanager
async def _scaling(around: ScalerFakes) -> AsyncIterator[Scaler]:
    """A scaler at work, with the shipped waits."""
    scaler = Scaler("ns/vm", ScalingRules(UNIT), BOUNDS, CONFIG, around.channels, None, random.Random(1))
    task = asyncio.create_task(scaler.run())
    try:
        yield scaler
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _code(scaler: Scaler) -> str:
    report = scaler.report()
    assert report is not None
    assert report.reason is not None
    return report.reason.code


def reason_codes(
    around: ScalerFakes, seconds: float = 30.0, bounds: ScalingBounds = BOUNDS
) -> tuple[str | None, list[str]]:
    """The reason's code and those of being stuck, after some seconds."""
    report = run(_after(around, seconds, bounds), sockets=False)
    return report.reason and report.reason.code, [reason.code for reason in report.stuck]


def test_a_machine_that_has_what_it_should_have_has_no_reason() -> None:
    report = run(_after(ScalerFakes(UNIT, load=3), 30.0), sockets=False)
    assert {report.wanted, report.permitted, report.applied, report.observed} == {UNIT * 3}
    assert (report.reason, report.stuck) == (None, ())


def _full() -> ScalerFakes:
    around = ScalerFakes(load=4)
    around.room = UNIT * 2
    return around


def _failing(channel: str, error: Exception, load: float = 4, has: Resources = UNIT) -> ScalerFakes:
    around = ScalerFakes(has, load)
    around.failing[channel] = error
    return around


def _refusing() -> ScalerFakes:
    around = ScalerFakes(UNIT * 4, load=2)
    around.agrees = False
    return around


def _alone() -> ScalerFakes:
    around = ScalerFakes(UNIT * 4, load=2)
    around.connects = False
    return around


NO = Failed("ItBroke", "it broke")


@pytest.mark.parametrize(
    ("around", "reason", "stuck"),
    [
        (_full, "PermitShort", ["PermitShort"]),
        (lambda: _failing("ask", NO), "PermitFailed", ["PermitFailing"]),
        (lambda: _failing("change", NO), "MachineFailed", ["MachineFailing"]),
        (lambda: _failing("upscale", NO), None, []),
        (lambda: _failing("downscale", NO, 2, UNIT * 4), "GuestMonitorFailed", []),
        (lambda: _failing("measure", NO), None, ["MetricsMissing"]),
        # A guest that refuses is not stuck: what it keeps is what it should have.
        (_refusing, None, []),
        (_alone, "GuestMonitorMissing", ["GuestMonitorQuiet"]),
    ],
)
def test_each_way_to_get_nowhere_has_its_reason(
    around: Callable[[], ScalerFakes], reason: str | None, stuck: list[str]
) -> None:
    assert reason_codes(around()) == (reason, stuck)


@pytest.mark.parametrize("around", [_full, lambda: _failing("ask", NO)], ids=["short", "failing"])
def test_a_request_that_only_repeats_the_last_one_changes_nothing_in_the_report(
    around: Callable[[], ScalerFakes],
) -> None:
    """Each change of it is a write of the machine's object."""

    async def main() -> tuple[set[str], int]:
        slow = around()
        answer = slow.ask

        async def ask(last: Resources | None, target: Resources, metrics: SystemMetrics | None) -> Resources:
            await asyncio.sleep(1.0)  # as long as Neon's plugin takes for what it does not grant in full
            return await answer(last, target, metrics)

        slow.ask = ask  # type: ignore[method-assign]
        reasons, count = set(), 0
        async with _scaling(slow) as scaler:
            await asyncio.sleep(60.0)
            before = slow.did.count("ask")
            for _ in range(300):
                await asyncio.sleep(0.1)
                report = scaler.report()
                assert report is not None
                assert report.reason is not None
                reasons.add(f"{report.reason.code} {report.reason.message} {report.permitted} {report.wanted}")
            count = slow.did.count("ask") - before
        return reasons, count

    reasons, count = run(main(), sockets=False)
    assert count >= 5
    assert len(reasons) == 1, reasons


def test_more_than_what_fell_short_is_news() -> None:
    async def main() -> list[str]:
        around = ScalerFakes(UNIT, load=3)
        around.room = UNIT * 2
        codes = []
        async with _scaling(around) as scaler:
            await asyncio.sleep(20.0)
            codes.append(_code(scaler))
            around.load = 5
            answer = around.ask

            async def ask(last: Resources | None, target: Resources, metrics: SystemMetrics | None) -> Resources:
                await asyncio.sleep(1.0)
                return await answer(last, target, metrics)

            around.ask = ask  # type: ignore[method-assign]
            for _ in range(200):
                await asyncio.sleep(0.1)
                codes += [code] if (code := _code(scaler)) != codes[-1] else []
        return codes

    assert run(main(), sockets=False) == ["PermitShort", "PermitPending", "PermitShort"]


def test_a_change_that_fell_short_is_reported_and_tried_again_later() -> None:
    around = ScalerFakes(load=4)
    around.falls_short = lambda target: Resources(target.cpu, target.memory - UNIT.memory)
    report = run(_after(around, 14.0), sockets=False)
    assert report.applied == report.observed == Resources(1000, 3 * 2**30)
    assert report.permitted == UNIT * 4
    assert report.reason is not None
    assert report.reason.code == "MachineFailed"
    assert "3Gi, not to 1 CPU and 4Gi" in report.reason.message
    changes = [what for what in around.did if what.startswith("change")]
    assert 2 <= len(changes) <= 3  # every five seconds


def test_no_permit_is_held_for_cpus_that_cannot_come_before_the_next_start() -> None:
    around = ScalerFakes(UNIT * 2, load=5)
    around.refuses = lambda target: ChangeRefused(around.has, "CpusEmulated", "its QEMU would crash", around.has.cpu)
    report = run(_after(around, 120.0), sockets=False)
    assert report.wanted == UNIT * 5
    assert report.permitted == report.applied == report.observed == Resources(UNIT.cpu * 2, UNIT.memory * 5)
    assert report.reason == StuckReason("CpusEmulated", "its QEMU would crash")
    assert report.stuck == ()
    assert sum(what.startswith("change") for what in around.did) == 2, "its CPUs once, and then its memory"


def test_a_machine_that_has_more_than_it_could_may_have_more_again() -> None:
    around = ScalerFakes(UNIT * 2, load=5)
    around.refuses = lambda target: ChangeRefused(around.has, "CpusEmulated", "its QEMU would crash", around.has.cpu)

    async def main() -> ScalingReport:
        scaler = Scaler("ns/vm", ScalingRules(UNIT), BOUNDS, CONFIG, around.channels, None, random.Random(1))
        task = asyncio.create_task(scaler.run())
        await asyncio.sleep(60)
        around.has, around.refuses = Resources(UNIT.cpu * 3, around.has.memory), None
        await asyncio.sleep(60)
        report = scaler.report()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert report is not None
        return report

    report = run(main(), sockets=False)
    assert report.applied == report.permitted == UNIT * 5
    assert report.reason is None


def test_a_change_that_fell_short_has_its_cause_and_ever_longer_pauses() -> None:
    around = ScalerFakes(load=4)
    around.refuses = lambda target: ChangeRefused(UNIT, "GuestRefused", "its guest keeps it")
    report = run(_after(around, 300.0), sockets=False)
    assert report.reason is not None
    assert report.reason.message.endswith("its guest keeps it")
    assert 10 <= sum(what.startswith("change") for what in around.did) <= 14, "three times soon, then every 30 s"


def test_a_change_that_failed_but_was_made_is_found_by_looking() -> None:
    around = ScalerFakes(load=4)

    def breaks(target: Resources) -> Resources:
        around.has = target
        around.falls_short = lambda target: target
        raise Failed("ItBroke", "it timed out")

    around.falls_short = breaks
    report = run(_after(around, 30.0), sockets=False)
    assert report.observed == report.applied == UNIT * 4
    assert report.reason is None
    assert sum(what.startswith("change") for what in around.did) == 1


def test_a_machine_that_cannot_be_seen_is_not_changed() -> None:
    around = ScalerFakes(load=4)
    around.failing["look"] = NO

    async def main() -> ScalingReport | None:
        scaler = Scaler("ns/vm", ScalingRules(UNIT), BOUNDS, CONFIG, around.channels, None, random.Random(1))
        task = asyncio.create_task(scaler.run())
        await asyncio.sleep(30)
        assert scaler.report() is None
        assert set(around.did) == {"look"}
        del around.failing["look"]
        await asyncio.sleep(30)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return scaler.report()

    report = run(main(), sockets=False)
    assert report is not None
    assert report.applied == UNIT * 4


@pytest.mark.parametrize("around", [_refusing, _alone])
def test_a_guest_keeps_what_is_above_the_maximum_only_for_a_time(around: Callable[[], ScalerFakes]) -> None:
    lower, waits = ScalingBounds(UNIT, UNIT * 3), ScalerTimeouts(patience=60_000)
    before = run(_after(around(), 55.0, lower, waits), sockets=False)
    assert before.applied == UNIT * 4
    after = run(_after(around(), 75.0, lower, waits), sockets=False)
    assert after.applied == after.permitted == UNIT * 3


def test_a_guest_that_always_asks_for_more_gets_its_maximum_and_no_more() -> None:
    around = ScalerFakes()

    async def main() -> ScalingReport:
        scaler = Scaler("ns/vm", ScalingRules(UNIT), BOUNDS, CONFIG, around.channels, None, random.Random(1))
        task = asyncio.create_task(scaler.run())
        for _ in range(600):
            await asyncio.sleep(0.5)
            scaler.upscale_requested(ResourceFlags(cpu=True, memory=True))
        report = scaler.report()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert report is not None
        return report

    assert run(main(), sockets=False).applied == UNIT * 6
    # Asking costs nothing: no request of ours follows from it once the machine has its maximum.
    assert len(around.did) < 200


def test_bounds_that_change_are_taken_over_in_the_state_of_the_machine() -> None:
    around = ScalerFakes(load=5)

    async def main() -> list[Resources]:
        agent = Agent(ScalingRules(UNIT), rng=random.Random(1))
        machine = ScalingTarget("ns/vm", "run-1", BOUNDS, CONFIG, around.channels)
        await agent.scale(machine)
        seen = []
        for most in (6, 2, 4):
            await agent.scale(replace(machine, bounds=ScalingBounds(UNIT, UNIT * most)))
            await asyncio.sleep(60)
            report = agent.report("ns/vm")
            assert report is not None
            seen.append(report.applied)
        assert agent.keys == ["ns/vm"]
        await agent.close()
        assert agent.keys == []
        assert agent.report("ns/vm") is None
        return seen

    assert run(main(), sockets=False) == [UNIT * 5, UNIT * 2, UNIT * 4]


def test_a_fault_of_ours_in_one_machine_reaches_no_other_and_is_begun_anew(caplog: pytest.LogCaptureFixture) -> None:
    good, bad = ScalerFakes(load=3), ScalerFakes(load=3)
    bad.failing["ask"] = ZeroDivisionError("a bug")

    async def main() -> tuple[ScalingReport | None, ScalingReport | None]:
        agent = Agent(ScalingRules(UNIT), rng=random.Random(1))
        for name, around in (("good", good), ("bad", bad)):
            await agent.scale(ScalingTarget(name, "run-1", BOUNDS, CONFIG, around.channels))
        await asyncio.sleep(30)
        assert 3 <= bad.did.count("ask") <= 7  # every five to ten seconds
        bad.failing.clear()
        await asyncio.sleep(40)
        reports = agent.report("good"), agent.report("bad")
        await agent.close()
        return reports

    for report in run(main(), sockets=False):
        assert report is not None
        assert report.applied == UNIT * 3
    assert "bad: the scaler ended" in caplog.text
    assert good.did.count("look") < 5


def test_another_run_of_a_machine_is_begun_with_nothing_known() -> None:
    first, second = ScalerFakes(UNIT * 4, load=4), ScalerFakes(UNIT, load=2)

    async def main() -> ScalingReport | None:
        agent = Agent(ScalingRules(UNIT), rng=random.Random(1))
        await agent.scale(ScalingTarget("vm", "run-1", BOUNDS, CONFIG, first.channels))
        await asyncio.sleep(20)
        await agent.scale(ScalingTarget("vm", "run-2", BOUNDS, CONFIG, second.channels))
        done = len(first.did)
        await asyncio.sleep(20)
        assert len(first.did) == done
        report = agent.report("vm")
        await agent.close()
        return report

    report = run(main(), sockets=False)
    assert report is not None
    assert report.applied == second.has == UNIT * 2


def test_the_refusal_of_a_machine_is_reported_in_its_words() -> None:
    around = _failing("change", Denied("GuestRefused", "the guest keeps its memory", retryable=True))
    report = run(_after(around, 20.0), sockets=False)
    assert report.reason is not None
    assert (report.reason.code, report.reason.message) == ("MachineFailed", "the guest keeps its memory")


class DecisionTimes(ScalingMetrics):
    """How long decisions took, in milliseconds."""

    def __init__(self) -> None:
        super().__init__(CollectorRegistry(), list)
        self.took: list[int] = []

    def came_through(self, milliseconds: int) -> None:
        self.took.append(milliseconds)


def test_the_agent_reports_how_long_a_decision_took() -> None:
    around, meter = ScalerFakes(load=1), DecisionTimes()

    async def main() -> None:
        agent = Agent(ScalingRules(UNIT), ScalerTimeouts(metrics_interval=1000), random.Random(1), meter)
        await agent.scale(ScalingTarget("vm", "run-1", BOUNDS, CONFIG, around.channels))
        await asyncio.sleep(10)
        around.room, around.load = UNIT * 2, 4
        await asyncio.sleep(20)
        around.room = UNIT * 100
        await asyncio.sleep(20)
        await agent.close()

    run(main(), sockets=False)
    [milliseconds] = meter.took
    assert 19_000 <= milliseconds <= 23_000  # until there was room


def test_a_machine_never_has_two_scalers() -> None:
    arounds = [ScalerFakes(UNIT, load=2) for _ in range(6)]

    async def main() -> None:
        agent = Agent(ScalingRules(UNIT), rng=random.Random(1))
        await agent.scale(ScalingTarget("vm", "run-0", BOUNDS, CONFIG, arounds[0].channels))
        await asyncio.sleep(10)
        runs = [ScalingTarget("vm", f"run-{i}", BOUNDS, CONFIG, around.channels) for i, around in enumerate(arounds)]
        await asyncio.gather(*(agent.scale(machine) for machine in runs), agent.scale(runs[3]))
        before = [len(around.did) for around in arounds]
        await asyncio.sleep(30)
        assert sum(len(around.did) > done for around, done in zip(arounds, before, strict=True)) == 1
        await agent.close()
        after = [len(around.did) for around in arounds]
        await asyncio.sleep(30)
        assert [len(around.did) for around in arounds] == after

    run(main(), sockets=False)


class RecordingAround(ScalerFakes):
    """Notes the totals that are asked for."""

    def __init__(self, has: Resources, load: float) -> None:
        super().__init__(has, load)
        self.requested: list[Resources] = []

    async def ask(self, last: Resources | None, target: Resources, metrics: SystemMetrics | None) -> Resources:
        self.requested.append(target)
        return await super().ask(last, target, metrics)


@pytest.mark.parametrize("has", [2, 4, 6])
def test_an_agent_that_begins_with_a_machine_that_runs_asks_for_what_it_has_and_takes_nothing(has: int) -> None:
    """Whatever went on when the last agent ended. Its guest's load is not known, nor does its monitor listen yet."""
    around = RecordingAround(UNIT * has, load=1)
    around.connects = False
    around.failing["measure"] = NO
    report = run(_after(around, 60.0), sockets=False)
    assert set(around.requested) == {UNIT * has}
    assert report.applied == report.permitted == around.has == UNIT * has
    assert not [what for what in around.did if what.startswith("change")]


def test_a_monitor_that_connects_hears_what_its_machine_has() -> None:
    """It may have grown while the monitor was not there; and one that knows it already learns nothing new."""

    class Notifying(ScalerFakes):
        def __init__(self) -> None:
            super().__init__(load=1)
            self.connects = False
            self.upscales: list[Resources] = []

        async def upscale(self, granted: Resources) -> None:
            self.upscales.append(granted)

    around = Notifying()

    async def course() -> None:
        task = asyncio.create_task(_after(around, 100.0))
        await asyncio.sleep(1)
        around.load = 3
        await asyncio.sleep(30)
        assert (around.has, around.upscales) == (UNIT * 3, []), "no monitor is there to hear it"
        assert around.scaler is not None
        for again in (1, 2):
            around.scaler.monitor_connected()
            await asyncio.sleep(20)
            assert around.upscales == [UNIT * 3] * again
            around.scaler.monitor_disconnected("lost")
        await task

    run(course(), sockets=False)


def test_it_takes_only_what_its_guest_agrees_to_before_the_first_load() -> None:
    around = RecordingAround(UNIT * 6, load=1)
    around.agrees = False
    report = run(_after(around, 60.0), sockets=False)
    assert "downscale" in around.did
    assert report.applied == around.has == UNIT * 6
    assert set(around.requested) == {UNIT * 6}


def test_the_dump_shows_the_whole_state_as_json() -> None:
    around, unseen = _full(), ScalerFakes()
    unseen.failing["look"] = NO

    async def main() -> str:
        agent = Agent(ScalingRules(UNIT), rng=random.Random(1))
        for name, each in (("a", around), ("b", unseen)):
            await agent.scale(ScalingTarget(name, "run-1", BOUNDS, CONFIG, each.channels))
        await asyncio.sleep(30)
        text = json.dumps({key: agent.dump(key) for key in agent.keys}, allow_nan=False)
        await agent.close()
        return text

    dump = json.loads(run(main(), sockets=False))
    permits = dump["a"]["state"]["permits"]
    assert permits["permit"] == {"cpus": "500m", "memory": "2Gi"}
    assert (permits["last"]["resources"], permits["failedSecondsAgo"]) == ({"cpus": 1, "memory": "4Gi"}, None)
    assert 0 <= permits["last"]["secondsAgo"] <= 2, "less was permitted than was asked for: asked again every 2 s"
    assert dump["a"]["state"]["rules"]["timing"]["machineRetrySeconds"] == 5.0
    assert "enableLFCMetrics" in dump["a"]["state"]["config"]
    assert "memoryUsageBytes" in dump["a"]["state"]["system"]
    assert dump["a"]["report"]["wanted"] == {"cpus": 1, "memory": "4Gi"}
    assert dump["a"]["report"]["reason"]["code"] == "PermitShort"
    assert dump["b"] == {"state": None, "report": None, "errors": {"machine": "it broke"}}


class TestGuestObserved:
    """T15: what the guest's gauges say, beside what its machine has."""

    def lagging(self, cpus: int = 1, memory: int = 2**30) -> ScalerFakes:
        around = ScalerFakes(UNIT * 6, load=6)
        around.guest = GuestReport(cpus, memory)
        return around

    def test_the_report_has_what_the_guest_says(self) -> None:
        around = self.lagging(2, 6 * 2**30 - 2**27)
        report = run(_after(around, 300.0), sockets=False)
        assert (report.guest, report.reason) == (GuestReport(2, 6 * 2**30 - 2**27), None)

    @pytest.mark.parametrize(("cpus", "memory"), [(1, 6 * 2**30), (2, 5 * 2**30)])
    def test_a_guest_that_brings_nothing_online_in_time_is_behind(self, cpus: int, memory: int) -> None:
        assert run(_after(self.lagging(cpus, memory), 55.0), sockets=False).reason is None
        reason = run(_after(self.lagging(cpus, memory), 75.0), sockets=False).reason
        assert reason is not None
        assert reason.code == "GuestBehind"
        assert f"{cpus} CPUs and {memory >> 20}Mi of memory" in reason.message
        assert "2 CPUs (1500m of CPU time) and 6Gi" in reason.message

    def test_its_time_begins_again_when_the_machine_has_something_else(self) -> None:
        around = self.lagging()

        async def main() -> list[str | None]:
            scaler = Scaler("ns/vm", ScalingRules(UNIT), BOUNDS, CONFIG, around.channels, None, random.Random(1))
            task = asyncio.create_task(scaler.run())
            codes = []
            for seconds, load in ((50, 4), (50, 4), (60, 4)):
                await asyncio.sleep(seconds)
                around.load = load
                report = scaler.report()
                assert report is not None
                codes.append(report.reason and report.reason.code)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return codes

        assert run(main(), sockets=False) == [None, None, "GuestBehind"]

    def test_an_old_report_of_a_guest_is_left_out(self) -> None:
        around = self.lagging()

        async def main() -> ScalingReport | None:
            scaler = Scaler("ns/vm", ScalingRules(UNIT), BOUNDS, CONFIG, around.channels, None, random.Random(1))
            task = asyncio.create_task(scaler.run())
            await asyncio.sleep(80)
            around.failing["measure"] = NO
            await asyncio.sleep(30)
            report = scaler.report()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return report

        report = run(main(), sockets=False)
        assert report is not None
        assert (report.guest, report.reason) == (None, None)
        assert [reason.code for reason in report.stuck] == ["MetricsMissing"]


@pytest.mark.parametrize(
    ("around", "message"),
    [
        (_alone, "no answer from the monitor for more than 20 s: the port is closed"),
        (
            lambda: _failing("measure", NO),
            "no metrics from the guest for more than 20 s: it broke",
        ),
    ],
)
def test_a_silent_guest_has_its_cause_in_the_report(around: Callable[[], ScalerFakes], message: str) -> None:
    report = run(_after(around(), 30.0), sockets=False)
    assert [reason.message for reason in report.stuck] == [message]


@pytest.mark.parametrize(
    ("call", "which"), [("measure", "metrics of the guest"), ("cache", "metrics of the guest's cache")]
)
def test_metrics_that_return_are_logged_like_their_loss(
    call: str, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    around, config = _failing(call, NO), replace(CONFIG, enable_lfc_metrics=True)

    async def main() -> None:
        scaler = Scaler("ns/vm", ScalingRules(UNIT), BOUNDS, config, around.channels, None, random.Random(1))
        task = asyncio.create_task(scaler.run())
        await asyncio.sleep(30)
        around.failing.clear()
        await asyncio.sleep(30)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with caplog.at_level("WARNING"):
        run(main(), sockets=False)
    lost, recovered = [record.message for record in caplog.records]
    assert f"the {which} are missing: " in lost
    assert f"the {which} are available again" in recovered
