"""The condition Ready of a machine: what its guest says, of this run, and across a restart of the plugin."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from devalloc.api.meta import PREPARED_ON
from devalloc.store.sqlite import SQLiteStore
from devalloc_machines.qemu.guest_report import GuestReport, GuestStatus
from devalloc_machines.qemu.records import State
from devalloc_machines.vms import LoopExecution, LoopSettings, MachineControls, VirtualMachineLoop
from devalloc_machines.vms.status import with_readiness
from devalloc_node.claims.store_grants import StoreGrants
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied
from devalloc_node.operations.change_feed import ChangeNotifier, machine_change
from tests.support.node_service import platform_of, toy_bench
from tests.support.toy_machines import ToyMachines, vm
from tests.support.vm_rounds import full_round

KEY = "default/web"
MIGRATING = {"type": "Migrating", "status": "False", "reason": "Done", "message": "", "lastTransitionTime": "x"}


@dataclass
class ToyReports:
    reports: dict[tuple[str, str], GuestReport] = field(default_factory=dict)
    restored: list[tuple[str, str, str]] = field(default_factory=list)

    def report(self, key: str, run: str) -> GuestReport | None:
        return self.reports.get((key, run))

    def restore(self, key: str, run: str, message: str) -> None:
        self.restored.append((key, run, message))


class World:
    """A store, a node's loop that is driven by hand, and what a guest says."""

    def __init__(self, folder: Path, store: SQLiteStore) -> None:
        self.store, self.machines, self.reports, self.now = store, ToyMachines(), ToyReports(), 0.0
        self.bench = toy_bench(folder, self.machines)
        self.bench.grants = StoreGrants(store, "node-a")  # type: ignore[assignment]
        self.bench.start()
        self.restart()

    def restart(self) -> None:
        """As after kill -9: what was read is forgotten."""
        self.reports.reports.clear()
        self.notifier = ChangeNotifier()
        self.operations = platform_of(self.bench, self.machines)
        self.operations.node_name = "node-a"
        self.loop = VirtualMachineLoop(
            self.store,
            self.operations,
            self.notifier,
            settings=LoopSettings(resync=5, grace=300),
            execution=LoopExecution(lambda: self.now, lambda work: work()),
            controls=MachineControls(reports=self.reports),
        )

    def round(self, seconds: float = 400.0) -> None:
        self.now += seconds
        full_round(self.loop)

    def say(self, status: GuestStatus, message: str = "") -> None:
        """The guest reports, and the reader says so, as it does."""
        self.reports.reports[KEY, self.machines.views[KEY].id] = GuestReport(status, message)
        self.notifier.beat(machine_change(KEY))
        self.loop.worker.round()

    def conditions(self) -> dict[str, Any]:
        status = self.store.get("VirtualMachine", "default", "web").get("status") or {}
        return {one["type"]: one for one in status.get("conditions", ())}

    def ready(self) -> tuple[str, str] | None:
        one = self.conditions().get("Ready")
        return None if one is None else (one["status"], one["reason"])


@pytest.fixture
def world(tmp_path: Path, store: SQLiteStore) -> World:
    return World(tmp_path, store)


def begin(world: World, **spec: Any) -> None:
    world.store.create(vm("web", **{"guestReports": True, **spec}))
    world.round()
    assert world.machines.views[KEY].phase == "Running"


def test_a_machine_that_does_not_report_is_ready_while_it_runs(world: World) -> None:
    begin(world, guestReports=False)
    assert world.ready() == ("True", "MachineRunning")


def test_a_machine_that_is_stopped_on_request_has_no_such_condition(world: World) -> None:
    """For kstatus it is as it should be then."""
    begin(world, guestReports=False)
    assert world.ready() == ("True", "MachineRunning")
    obj = world.store.get("VirtualMachine", "default", "web")
    world.store.replace({**obj, "spec": {**obj["spec"], "running": False}})
    world.round()
    world.round()
    assert world.machines.views[KEY].phase == "Stopped"
    assert world.ready() is None


def test_a_machine_that_does_not_start_is_not_ready_for_the_same_reason(world: World) -> None:
    world.machines.refuse[f"start {KEY}"] = Denied("PathMissing", "there is no such disk")
    world.store.create(vm("web"))
    world.round()
    status = world.store.get("VirtualMachine", "default", "web")["status"]
    assert world.ready() == ("False", status["reason"]) == ("False", "PathMissing")
    assert world.conditions()["Ready"]["message"] == status["message"]


def test_its_conditions_name_the_generation_that_the_node_has_seen(world: World) -> None:
    begin(world, guestReports=False)
    assert world.conditions()["Ready"]["observedGeneration"] == 1
    obj = world.store.get("VirtualMachine", "default", "web")
    world.store.replace({**obj, "spec": {**obj["spec"], "powerdownSeconds": 7}})
    world.round()
    assert world.conditions()["Ready"]["observedGeneration"] == 2
    version = world.store.list().resource_version
    world.round()
    assert world.store.list().resource_version == version


def test_ready_is_what_the_guest_says(world: World) -> None:
    begin(world)
    assert world.ready() == ("False", "GuestNotReported")
    world.say("ready", "listening on 80")
    assert world.ready() == ("True", "GuestReady")
    assert world.conditions()["Ready"]["message"] == "its guest reports that it is ready: listening on 80"
    world.say("not-ready")
    assert world.ready() == ("False", "GuestUnready")
    world.say("finished")
    assert world.ready() == ("False", "GuestFinished")


def test_conditions_of_others_stay_and_nothing_is_written_without_a_change(world: World) -> None:
    begin(world)
    obj = world.store.get("VirtualMachine", "default", "web")
    world.store.replace_status({**obj, "status": {**obj["status"], "conditions": [MIGRATING]}})
    world.say("ready")
    assert world.conditions()["Migrating"] == MIGRATING
    version = world.store.get("VirtualMachine", "default", "web")["metadata"]["resourceVersion"]
    world.say("ready")
    world.round()
    assert world.store.get("VirtualMachine", "default", "web")["metadata"]["resourceVersion"] == version


def test_a_restarted_plugin_takes_nothing_back_and_hears_of_changes_again(world: World) -> None:
    begin(world)
    world.say("ready")
    world.restart()
    world.round()
    assert world.ready() == ("True", "GuestReady")
    world.say("not-ready")
    assert world.ready() == ("False", "GuestUnready")


def test_another_run_has_reported_nothing(world: World) -> None:
    begin(world)
    world.say("ready")
    run = world.machines.views[KEY].id
    world.machines.end(KEY)
    world.machines.views[KEY] = replace(world.machines.views[KEY], reason="MachineEnded")
    world.round()
    assert world.machines.views[KEY].id != run
    assert world.ready() == ("False", "GuestNotReported")


def test_a_machine_that_does_not_run_is_not_ready(world: World) -> None:
    begin(world)
    world.say("ready")
    obj = world.store.get("VirtualMachine", "default", "web")
    world.store.replace({**obj, "spec": {**obj["spec"], "running": False}})
    world.round()
    assert world.ready() == ("False", "MachineNotRunning")


@pytest.mark.parametrize(("policy", "over"), [("Never", True), ("Always", False)])
def test_its_restart_policy_decides_what_comes_after_it_has_finished(world: World, policy: str, over: bool) -> None:
    begin(world, restartPolicy=policy)
    run = world.machines.views[KEY].id
    world.say("finished", "42 pages")
    world.operations.finish(KEY, run, "42 pages", Deadline.after(10))
    for _ in range(3):
        world.round()
    status = world.store.get("VirtualMachine", "default", "web")["status"]
    if over:
        assert (status["phase"], status["reason"], status["message"]) == ("Stopped", "GuestFinished", "42 pages")
        assert world.ready() == ("False", "MachineNotRunning")
    else:
        assert status["phase"] == "Running"
        assert world.machines.views[KEY].id != run


def test_a_guest_that_finishes_at_once_is_restarted_ever_more_slowly(world: World) -> None:
    begin(world, restartPolicy="Always")
    runs = set()
    for _ in range(360):
        world.round(10.0)
        machine = world.machines.views[KEY]
        if machine.runs:
            runs.add(machine.id)
            world.say("finished")
            world.operations.finish(KEY, machine.id, "", Deadline.after(10))
    assert 12 <= len(runs) <= 25, "in an hour, for the pauses grow to 5 minutes"


def test_the_next_plugin_ends_a_machine_whose_guest_has_finished(world: World) -> None:
    begin(world)
    world.say("ready", "up")
    world.restart()
    world.round()
    assert world.reports.restored == []
    world.say("finished", "42 pages")
    run = world.machines.views[KEY].id
    world.restart()
    world.round()
    assert set(world.reports.restored) == {(KEY, run, "42 pages")}
    world.machines.end(KEY)
    world.machines.views[KEY] = replace(world.machines.views[KEY], reason="MachineEnded")
    world.reports.restored.clear()
    world.notifier.beat(machine_change(KEY))
    world.round()
    assert world.machines.views[KEY].id != run
    assert world.reports.restored == [], "its next run has not finished"


def test_a_guest_that_flaps_does_not_have_what_fails_tried_like_new(world: World) -> None:
    begin(world, restartPolicy="Always")
    world.machines.fail.add("scale")
    obj = world.store.get("VirtualMachine", "default", "web")
    spec = {**obj["spec"], "memory": {**obj["spec"]["memory"], "use": "512Mi"}}
    world.store.replace({**obj, "spec": spec})
    world.round(1.0)
    name, worker = f"vm {obj['metadata']['uid']}", world.loop.worker
    failures = [worker.failures(name)]
    for number in range(4):
        world.now += 5.0
        world.say(("ready", "not-ready")[number % 2])
        failures.append(worker.failures(name))
    assert failures == sorted(set(failures)), "each is one more"


def test_what_a_guest_reports_while_it_moves_is_shown_and_nothing_else_is_written(world: World) -> None:
    begin(world)
    world.say("ready")
    obj = world.store.get("VirtualMachine", "default", "web")
    booked = {"migrationName": "move", "migrationUID": "m", "sourceNode": "node-a", "targetNode": "node-b"}
    world.store.replace_status({**obj, "status": {**obj["status"], "migrationState": booked, "pid": 7}})
    world.machines.views[KEY] = replace(world.machines.views[KEY], is_moving=True, state=State.SILENT)
    world.say("not-ready")
    status = world.store.get("VirtualMachine", "default", "web")["status"]
    assert (world.ready(), status["pid"], status["phase"]) == (("False", "GuestUnready"), 7, "Running")
    assert status["migrationState"] == booked
    world.reports.reports.clear()  # the plugin came back
    world.round()
    assert world.ready() == ("False", "GuestUnready")
    world.say("finished", "42 pages")
    assert world.ready() == ("False", "GuestFinished"), "so that the target ends it"


@pytest.mark.parametrize("handed_over", [True, False])
def test_a_node_that_does_not_hold_a_machine_that_moves_says_nothing_of_it(world: World, handed_over: bool) -> None:
    begin(world)
    world.say("ready")
    world.machines.views[KEY] = replace(world.machines.views[KEY], is_moving=True)
    obj = world.store.get("VirtualMachine", "default", "web")
    if handed_over:
        metadata = {**obj["metadata"], "annotations": {**obj["metadata"]["annotations"], PREPARED_ON: "node-b"}}
        world.store.replace({**obj, "metadata": metadata})
    else:
        world.store.replace_status({**obj, "status": {**obj["status"], "machineID": "another run"}})
    world.say("not-ready")
    assert world.ready() == ("True", "GuestReady")


def test_another_run_is_not_ended(world: World) -> None:
    begin(world)
    world.operations.finish(KEY, "an earlier run", "", Deadline.after(10))
    assert world.machines.views[KEY].phase == "Running"


def test_its_time_changes_with_its_status_only() -> None:
    ready = {"type": "Ready", "status": "False", "reason": "GuestUnready", "message": ""}
    first = with_readiness({}, "r", ready)
    second = with_readiness({"conditions": first}, "r", {**ready, "message": "wait"})
    assert second[0]["lastTransitionTime"] == first[0]["lastTransitionTime"]
    old = {"conditions": [{**first[0], "lastTransitionTime": "2026-01-31T12:00:00Z"}]}
    (third,) = with_readiness(old, "r", {**ready, "status": "True"})
    assert third["lastTransitionTime"] != "2026-01-31T12:00:00Z"
