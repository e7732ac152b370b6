"""A node plugin is killed in the middle of a change, and one of another version takes its journal up: this version that
of the release before, and the other way round."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from devalloc_node.model.step import Step
from tests.support import fault_scenarios as bindings
from tests.support import machine_scenarios as machines
from tests.support.fake_tree import memory_folder
from tests.support.fault_gates import KILLS
from tests.support.fault_points import FaultPoints, assert_same, is_prepared
from tests.support.machine_faults import MachineFaults, MachineScenario
from tests.support.previous import PRESENT, Version, previous
from tests.support.versioned_plugin import SCENARIOS, PluginLives, plugin_lives

TRIES = 5
"""Taking back waits for others a little and then goes on without them, so that a change may not be reached."""
POINTS_WANTED = int(os.environ.get("DEVALLOC_UPGRADE_POINTS", "0"))
"""So many points of each act, of every scenario: as `make faults` asks."""
TREE = os.environ.get("DEVALLOC_UPGRADE_TREE", "")
"""A checkout to upgrade from, and go back to, in place of the release before: it is run with its own harness."""
NEW = frozenset({"mdev-without-a-card", "machine-restarted"})
"""What the release before does not support, or its harness has not."""
NEW_ATTRIBUTES = frozenset({"vlan", "mdevType", "vgpuType", "numaNode"})
"""What it does not say about devices that it prepared, or put into machines."""
SHARED = tuple(name for name in bindings.SCENARIOS if name not in NEW)
BINDINGS = SHARED if POINTS_WANTED else ("vfio-with-audio", "vf-with-settings", "vgpu")
MACHINES = (
    tuple(
        name
        for name, scenario in machines.SCENARIOS.items()
        # 0.1.0 knows no firmware; the processes of other versions have this host's NUMA nodes.
        if name not in NEW and not scenario.has_object and not scenario.on_two_nodes and (TREE or not scenario.start)
    )
    if POINTS_WANTED
    else ("machine-attach-vf",)
)
POINTS = POINTS_WANTED or 2
POINTS_WITH_MACHINES = POINTS_WANTED or 1


@pytest.fixture(scope="module")
def versions() -> Iterator[tuple[PluginLives, PluginLives]]:
    """The release before, or the tree, and this version."""
    before = Version("the tree before", Path(TREE)) if TREE else previous()
    with plugin_lives(before) as old, plugin_lives(PRESENT) as now:
        yield old, now


def drawn(calls: list[str], count: int) -> list[tuple[int, str]]:
    """So many of the changes, evenly, and whether it is killed before or after them."""
    return list(zip(range(len(calls), 0, -max(1, len(calls) // count)), cycle(KILLS), strict=False))[:count]


def killed(faults: FaultPoints, plugin: PluginLives, act: str, number: int, how: str) -> None:
    for _ in range(TRIES):
        if act == "unprepare":
            plugin.go(faults, "prepare")
        if plugin.live(faults, act, number, how).calls is None:
            return
    raise AssertionError(f"{act}, change {number}: was not reached")


def assert_alike(state: dict[str, Any], wanted: dict[str, Any], when: str) -> None:
    """The same but for new attributes, and users of machines: each version takes them from a range of its own."""
    assert_same(_comparable(_without_users(state)), _comparable(_without_users(wanted)), when)


def _comparable(content: Any) -> Any:
    """Without the attributes of devices that only this version has."""
    if isinstance(content, dict):
        return {name: _comparable(value) for name, value in content.items() if name not in NEW_ATTRIBUTES}
    if isinstance(content, Step):
        return replace(content, before=_comparable(content.before), after=_comparable(content.after))
    if isinstance(content, (list, tuple)) and not hasattr(content, "_fields"):
        return type(content)(map(_comparable, content))
    return content


def _without_users(state: dict[str, Any]) -> dict[str, Any]:
    host = {
        what: "a machine's user" if what.startswith("owner ") and value != str((0, 0)) else value
        for what, value in state["host"].items()
    }
    machines = {name: {**machine, "user": bool(machine["user"])} for name, machine in state.get("machines", {}).items()}
    return {**state, "host": host, **({"machines": machines} if machines else {})}


def taken_up(faults: FaultPoints, gone: PluginLives, other: PluginLives, count: int) -> None:
    """Prepared by the one and put back by the other; then the one is killed at so many points of each act, the other
    goes on, and the one puts back what the other did."""
    prepared, unprepared = (gone.live(faults, act).calls for act in ("prepare", "unprepare"))
    gone.go(faults, "prepare")
    assert_alike(faults.state(), faults.prepared, "prepared by the one")
    assert other.go(faults, "recover") == []
    assert_alike(faults.state(), faults.prepared, "taken up by the other")
    other.go(faults, "unprepare")
    assert_alike(faults.state(), faults.initial, "put back by it")
    for act, calls in (("prepare", prepared), ("unprepare", unprepared)):
        assert calls is not None
        for number, how in drawn(calls, count):
            when = f"{act}, {calls[number - 1]}, {how}"
            killed(faults, gone, act, number, how)
            assert other.go(faults, "recover") == [], when
            if isinstance(faults, MachineFaults):
                faults.sound(when)
            else:
                if is_prepared(faults.state(), faults.uid):
                    other.go(faults, "prepare")  # it may not be known to be attached: its platform asks again
                wanted = faults.prepared if is_prepared(faults.state(), faults.uid) else faults.initial
                assert_alike(faults.state(), wanted, when)
            # Killed after a change a machine is given up, as in `MachineFaults.check`: what it did is done.
            if act == "prepare" and not (isinstance(faults, MachineFaults) and how == "after"):
                other.go(faults, "prepare")
                assert_alike(faults.state(), faults.prepared, f"{when}: asked again")
            gone.go(faults, "unprepare")
            assert_alike(faults.state(), faults.initial, f"{when}: put back by the one that was killed")


@pytest.mark.parametrize("name", BINDINGS)
def test_what_a_killed_plugin_left_is_finished_or_undone_by_the_other_version(
    name: str, versions: tuple[PluginLives, PluginLives]
) -> None:
    before, now = versions
    with memory_folder() as folder:
        faults = FaultPoints(SCENARIOS[name], Path(folder))
        taken_up(faults, before, now, POINTS)
        taken_up(faults, now, before, POINTS)


@pytest.mark.parametrize("name", MACHINES)
def test_machines_run_on_under_the_other_version(name: str, versions: tuple[PluginLives, PluginLives]) -> None:
    before, now = versions
    scenario = SCENARIOS[name]
    assert isinstance(scenario, MachineScenario)
    with memory_folder() as folder, MachineFaults(scenario, Path(folder)) as faults:
        taken_up(faults, before, now, POINTS_WITH_MACHINES)
        taken_up(faults, now, before, POINTS_WITH_MACHINES)
