"""No call of the plugin can fail, and no instruction be its last, so that anything is left half-way (settled T18).

Every fault point of the short scenarios is tried here; of the others a part, drawn by a seed: of machines mostly those
that no other scenario has (commands to QEMU, its process, cgroup, nodes and records). `make faults` tries and counts
all, and fails every call of every binding in all ways.
"""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest

from devalloc_machines.qemu import hotplug
from devalloc_node.claims.steps import StepRunner, UndoResult
from tests.support import machine_scenarios
from tests.support.deadlines import soon
from tests.support.examples import IS_FUZZ, examples
from tests.support.fake_tree import memory_folder
from tests.support.fault_points import FaultPoint, FaultPoints
from tests.support.fault_scenarios import SCENARIOS
from tests.support.machine_faults import OF_MACHINES, MachineFaults, MachinePlugin
from tests.support.machine_scenarios import SCENARIOS as MACHINES
from tools import fault_points as command

MOST_OF_BINDINGS = examples(2, 0.01)
MOST = examples(1, 0.0075)
"""Points of a scenario with bindings, and with machines, that are tried here; the longer ones have more."""
ONCE_EACH = ("fail", "after")
"""What is killed before a call has come as far as what is killed after the one before it: `make faults` tries both."""


@pytest.mark.parametrize("name", SCENARIOS)
def test_whatever_fails_or_dies_all_of_it_is_done_or_nothing(name: str) -> None:
    with memory_folder() as folder:
        faults = FaultPoints(SCENARIOS[name], Path(folder))
        points = faults.points(ONCE_EACH)
        calls = {point.call.partition(".")[0] for point in points}
        assert {"journal", "host", "store", "qmp"} <= calls
        assert len(points) > 15 * len(ONCE_EACH)
        faults.check(FaultPoint("prepare", 1, "before"))
        for point in random.Random(name).sample(points, min(len(points), MOST_OF_BINDINGS)):
            faults.check(point)


@pytest.mark.parametrize("how", ["late", "down"])
def test_nor_is_it_left_where_a_failure_is_no_failure_or_stays(how: str) -> None:
    with memory_folder() as folder:
        faults = FaultPoints(SCENARIOS["vf-with-settings"], Path(folder))
        points = faults.points([how])
        for point in random.Random(how).sample(points, min(len(points), MOST_OF_BINDINGS)):
            faults.check(point)


@pytest.mark.parametrize("name", MACHINES)
def test_whatever_fails_or_dies_with_machines_they_and_the_host_are_as_they_should_be(name: str) -> None:
    with memory_folder() as folder, MachineFaults(MACHINES[name], Path(folder)) as faults:
        points = faults.points()
        of_machines = [point for point in points if point.call.startswith(OF_MACHINES)]
        assert {point.call.partition(".")[0] for point in of_machines} >= {"qmp", "journal"}
        others = [point for point in points if point not in of_machines]
        draw = random.Random(name)
        drawn = draw.sample(of_machines, min(len(of_machines), MOST))
        for point in drawn + draw.sample(others, min(len(others), MOST)):
            faults.check(point)


def unprepare_soon(plugin: MachinePlugin, uid: str) -> None:
    """As ``unprepare``, with a second for each request: it waits in vain until no process has the device."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine_scenarios, "soon", partial(soon, 1.0))
        plugin.scenario.back(plugin)  # type: ignore[attr-defined]


def test_the_harness_notices_a_device_that_stays_plugged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness, and with it `make faults`, sees it when the plugin believes a device to be out that is not."""
    with memory_folder() as folder, MachineFaults(MACHINES["machine-attach-gpu"], Path(folder)) as faults:
        (point,) = (p for p in faults.points() if (p.act, p.how) == ("prepare", "after") and "device_add" in p.call
                    and "01:00.0" in p.call)  # fmt: skip
        monkeypatch.setattr(hotplug, "unplug_device", lambda *arguments: None)
        monkeypatch.setattr(MachinePlugin, "unprepare", unprepare_soon)
        with pytest.raises(Exception, match=r"still holds|has the device|is in use|in a machine|machines differs"):
            faults.check(point)


def test_make_faults_fails_where_a_point_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(StepRunner, "undo", lambda *arguments, **options: UndoResult())
    assert command.main(["vgpu"]) == 1
    assert "1 scenarios wrong" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["vfio-with-audio", "vf-to-be-created"])
def test_killed_again_while_it_recovers_it_recovers_all_the_same(name: str) -> None:
    with memory_folder() as folder:
        faults = FaultPoints(SCENARIOS[name], Path(folder))
        points = faults.points(["after"])
        assert sum(faults.check_twice(point) for point in points[:: 14 if IS_FUZZ else 28]) > (6 if IS_FUZZ else 3)
