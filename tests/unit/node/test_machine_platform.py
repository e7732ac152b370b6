"""Claims in machines whose monitor is real: what the platform says is what QEMU shows."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from devalloc.api.virtual_machine import VirtualMachine
from devalloc.inventory.pci import NO_BARS, BarSizes
from devalloc_machines.qemu import adoption, attachment, hotplug, launch, lifecycle, rates, registry, spec, user_ids
from devalloc_machines.qemu.attachment import AttachmentKind
from devalloc_machines.qemu.lifecycle import MachineLifecycle
from devalloc_machines.qemu.pci import function_id
from devalloc_machines.qemu.process import process
from devalloc_machines.qemu.records import (
    MACHINES,
    MachineAmounts,
    MachineMigration,
    MachineObservation,
    MachineRecord,
    content_of,
)
from devalloc_machines.qemu.registry import machine_view
from devalloc_machines.qemu.settings import AllowedFolder, MachineConfig
from devalloc_machines.qemu.spec import Disk, EmulatedDevice, NumaCell, RateLimits, machine_id
from devalloc_machines.service import operations as node_operations
from devalloc_machines.service.operations import MachineOperations
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.host import traffic
from devalloc_node.journal import open_journal
from devalloc_node.journal.audit_log import to_file
from devalloc_node.model.grant import ClaimRef
from tests.support.fake_qmp import FakeQemu
from tests.support.machines import virtual_machine
from tests.support.node_errors import raises
from tests.support.node_service import platform_of
from tests.support.repository import REPO
from tests.support.toy_host import EngineBench
from tests.support.vm_rounds import to_begin
from tests.support.waiting import until

KEY = "default/m"
GIB = 1 << 30


class Owners:
    def own(self, node: str, uid: int, gid: int) -> None:
        raise AssertionError("a toy device has no nodes")


class World:
    def __init__(self, folder: Path) -> None:
        self.qemu = FakeQemu(folder / "qmp")
        config = MachineConfig(
            state=folder / "state",
            run=folder / "run",
            binary="/bin/true",
            folders=(AllowedFolder(folder, "any"),),
            socket_folders=(AllowedFolder(folder, "any"),),
            accel="tcg",
            users=None,
            systemd=False,
            cgroups=folder,
        )
        self.machines = MachineLifecycle(config, open_journal(folder / "records"))
        self.sizes: BarSizes | None = None
        """What is known of the devices' own memory."""
        self.kind = AttachmentKind(self.machines, Owners(), lambda functions: self.sizes)
        self.bench = EngineBench(folder / "plugin", extra={"kinds": {"attachment": self.kind}})
        self.bench_again()

    def bench_again(self) -> None:
        """After another plugin has opened the journal."""
        self.operations: MachineOperations = platform_of(self.bench, self.machines, attachments=self.kind)

    def adopted(self) -> None:
        machine = virtual_machine("m", start=None, adopt={"qmpSocket": str(self.qemu.path)})
        self.operations.create(machine, (), due())

    def close(self) -> None:
        self.machines.close()
        self.qemu.close()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(adoption, "memlock", lambda pid: None)
    monkeypatch.setattr(hotplug, "SETTLE_SECONDS", 0.3)
    made = World(tmp_path)
    yield made
    made.close()


def due() -> Deadline:
    return Deadline.after(60)


def test_a_machine_that_ended_and_is_stopped_is_not_started_again(world: World) -> None:
    record = MachineRecord(virtual_machine("m").to_manifest(), "running", "a run before the host was restarted")
    world.machines.records.put(MACHINES, KEY, content_of(record))
    assert [machine.key for machine in to_begin(world.machines)] == [("default", "m")]
    assert world.operations.stop(KEY, None, due()).reason == "StoppedOnRequest"
    assert to_begin(world.machines) == []


def test_a_machine_of_an_object_is_left_to_the_loop_over_objects(world: World) -> None:
    manifest = virtual_machine("m").to_manifest()
    owned = {**manifest, "metadata": {**manifest["metadata"], "uid": "vm-1"}}
    for content, expected in ((manifest, [("default", "m")]), (owned, [])):
        world.machines.records.put(MACHINES, KEY, content_of(MachineRecord(content, "running", "an earlier run")))
        assert [machine.key for machine in to_begin(world.machines)] == expected


def test_a_machine_that_is_to_stop_is_kept_when_it_is_created_anew(world: World) -> None:
    world.adopted()
    with pytest.raises(Denied):
        world.machines.stop(KEY, 0.01, False, due())
    assert world.operations.machine(KEY).reason == "StopWanted"
    world.adopted()
    assert world.operations.machine(KEY).reason == ""


@pytest.mark.parametrize("again", [False, True])
def test_the_end_of_a_machine_is_reported_even_if_it_restarts_at_once(
    world: World, again: bool, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    ends: list[str] = []
    world.machines._settling._ended = lambda: ends.append(KEY)
    record = MachineRecord(virtual_machine("m").to_manifest(), "running", "its last run")
    world.machines.records.put(MACHINES, KEY, content_of(record))
    folder = world.machines.config.folder(machine_id(KEY))
    folder.mkdir(parents=True)
    (folder / "qemu.log").write_text("its last words\n")
    with to_file(tmp_path / "audit.log"):
        if again:
            with pytest.raises(Denied, match="/none"):  # there is no such kernel any more
                world.machines.start(virtual_machine("m"), due())
        world.machines.recover()
    assert "default/m: it ended: its last words" in caplog.text
    assert ends == [KEY]
    (line,) = (tmp_path / "audit.log").read_text().splitlines()
    assert json.loads(line).items() >= {"machine": KEY, "done": "ended", "reason": "MachineEnded"}.items()


def test_a_device_that_the_guest_let_go_unasked_is_missing_and_comes_back(world: World) -> None:
    world.adopted()
    ref = world.bench.add("a/slot-0")
    world.operations.attach(ref, KEY, due())
    (name,) = world.qemu.devices
    assert world.operations.attached.is_in(ref, KEY)
    world.qemu.let_go(name)
    assert not world.operations.attached.is_in(ref, KEY)
    assert [function_id(plug.name, 0) for plug in world.operations.attach(ref, KEY, due())] == [name]
    assert set(world.qemu.devices) == {name}
    assert world.operations.attached.is_in(ref, KEY)
    world.qemu.let_go(name)
    world.operations.claims.unprepare(ref, due())
    assert world.bench.is_initial()


def test_a_device_is_in_when_the_guest_has_given_each_bar_an_address_and_not_before(world: World) -> None:
    world.adopted()
    world.qemu.bar_sizes["a/0"] = 16 * GIB
    world.qemu.windows["port2"] = 32 * GIB
    world.sizes = BarSizes(16 * GIB)
    world.qemu.gives_addresses = False
    ref = world.bench.add("a/slot-0")
    done = threading.Event()

    def attach() -> None:
        world.operations.attach(ref, KEY, due())
        done.set()

    thread = threading.Thread(target=attach)
    thread.start()
    until(lambda: world.qemu.devices, "QEMU has it")
    assert not world.operations.attached.is_in(ref, KEY)
    assert not done.is_set()
    world.qemu.gives_addresses = True
    thread.join(30)
    assert done.is_set()
    assert world.operations.attached.is_in(ref, KEY)
    assert [device["bus"] for device in world.qemu.devices.values()] == ["port2"], "the slot with a window for it"


def test_a_device_that_needs_no_window_leaves_the_large_ones_free(world: World) -> None:
    world.adopted()
    world.qemu.windows |= {"port0": 32 * GIB, "port1": 64 * GIB}
    world.sizes = NO_BARS
    world.operations.attach(world.bench.add("a/slot-0"), KEY, due())
    assert [device["bus"] for device in world.qemu.devices.values()] == ["port2"]


def test_a_device_for_which_the_guest_has_no_window_is_refused_and_nothing_of_it_is_left(world: World) -> None:
    world.adopted()
    world.qemu.bar_sizes["a/0"] = 16 * GIB
    ref = world.bench.add("a/slot-0")
    with raises(
        Denied,
        "NoPciWindow",
        retryable=False,
        match=r"BAR 1 \(16Gi, 64-bit prefetchable\).*window of 2Mi.*pciWindow to 32Gi",
    ):
        world.operations.attach(ref, KEY, due())
    assert world.qemu.devices == {}
    assert world.bench.is_initial(), "it is not prepared any more, for it was not before"
    assert world.operations.machine(KEY).phase == "Running"


def test_of_a_claim_with_a_device_that_finds_no_window_none_goes_in(world: World) -> None:
    world.adopted()
    world.qemu.bar_sizes["b/1"] = 16 * GIB
    ref = world.bench.add("a/slot-0", "b/slot-1")
    world.operations.claims.prepare(ref, due())
    with pytest.raises(Denied, match="BAR 1"):
        world.operations.attach(ref, KEY, due())
    assert world.qemu.devices == {}
    assert not world.operations.claims.plugs_of(ref)
    assert [one.ref for one in world.bench.claims.prepared()] == [ref], "it was prepared before, and stays so"


def test_a_guest_without_addresses_has_another_code_than_one_without_a_window(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_operations, "UNDO_SECONDS", 0.5)
    world.adopted()
    world.qemu.gives_addresses = False
    ref = world.bench.add("a/slot-0")
    with raises(Denied, "GuestNotReady", retryable=True, match="a/0 got no addresses"):
        world.operations.attach(ref, KEY, Deadline.after(2))
    assert (world.qemu.devices, world.bench.is_initial()) == ({}, True)


def test_nothing_is_plugged_into_a_machine_whose_cpus_stand_still(world: World) -> None:
    world.adopted()
    world.qemu.status = "paused"
    with raises(Denied, "GuestNotReady", match="'paused'"):
        world.operations.attach(world.bench.add("a/slot-0"), KEY, due())
    assert [command for command, _ in world.qemu.commands if command == "device_add"] == []


@pytest.mark.parametrize("fits", [True, False])
def test_what_was_plugged_in_as_the_plugin_was_killed_is_judged_anew_by_the_next(world: World, fits: bool) -> None:
    world.adopted()
    world.qemu.bar_sizes["a/0"] = 16 * GIB
    if fits:
        world.qemu.windows["port3"] = 32 * GIB
    ref = world.bench.add("a/slot-0")
    prepared = world.bench.claims.prepare(ref, due(), kind="DeviceClaim")
    ((device, step),) = world.kind.attachments(KEY, prepared, due())
    with pytest.MonkeyPatch.context() as patch:  # the process ends between the guest's addresses and the journal

        def killed(*_: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(hotplug, "await_addresses", killed)
        with pytest.raises(KeyboardInterrupt):
            world.bench.claims.add(ref, step, due(), device=device)
    assert set(world.qemu.devices) == {next(iter(world.qemu.devices))}
    assert not world.operations.attached.is_in(ref, KEY), "its addresses were never seen"
    world.bench.restart()
    world.bench_again()
    if fits:
        assert len(world.operations.attach(ref, KEY, due())) == 1
        assert world.operations.attached.is_in(ref, KEY)
    else:
        with raises(Denied, "NoPciWindow"):
            world.operations.attach(ref, KEY, due())
        assert world.qemu.devices == {}


def test_create_is_refused_for_a_machine_that_runs_with_another_spec(world: World) -> None:
    world.adopted()
    world.adopted()  # again is success
    others = [
        virtual_machine("m"),
        virtual_machine("m", start=None, adopt={"qmpSocket": f"{world.qemu.path}2"}),
        virtual_machine("m", start=None, adopt={"qmpSocket": str(world.qemu.path)}, cpu={"min": "2", "max": "2"}),
    ]
    for other, what in zip(others, ("kernel", "adopt", "cpus"), strict=True):
        with raises(Denied, "MachineExists", match=what):
            world.operations.create(other, (), due())
    assert [machine.adopted for machine in world.machines.list()] == [True]


@pytest.mark.parametrize("policy", ["Always", "Never"])
def test_a_machine_whose_start_was_cut_off_shows_what_it_is_started_with(tmp_path: Path, policy: str) -> None:
    machine = virtual_machine("m", cpu={"min": 1, "max": 4}, restartPolicy=policy)
    record = MachineRecord(machine.to_manifest(), "starting", OTHER_RUN, requested=MachineAmounts(vcpus=3))
    config = MachineConfig(state=tmp_path / "state", run=tmp_path / "run")
    assert machine_view(record, None, MachineObservation(), config).wanted.vcpus == 3
    stopped = record.become("stopped", "StoppedOnRequest")
    assert machine_view(stopped, None, MachineObservation(), config).wanted.vcpus == 1, "as its next request says"


def test_what_was_wanted_of_an_earlier_run_is_not_wanted_of_the_next(world: World) -> None:
    world.adopted()
    world.operations.scale(KEY, "vcpus", 3, due())
    assert world.operations.machine(KEY).wanted.vcpus == 3
    content = dict(world.machines.records.record(MACHINES, KEY) or {})
    world.machines.records.put(MACHINES, KEY, {**content, "boot": "another"})  # its process is gone
    world.qemu.cpus = {0: "/machine/unattached/device[0]"}
    world.adopted()
    assert world.operations.machine(KEY).wanted.vcpus == 1


def test_a_machine_that_the_journal_lost_is_not_ended_when_it_is_to_be_started(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    config = world.machines.config
    with living(config) as lost:
        kernel = config.state / "kernel"
        kernel.touch()
        with pytest.raises(Denied, match=f"process {lost.pid}") as denied:
            world.operations.create(virtual_machine("m", start={"kernel": str(kernel)}), (), due())
        assert (denied.value.code, denied.value.retryable, lost.poll()) == ("MachineRuns", True, None)
        world.machines.recover()
        assert f"process {lost.pid}" in caplog.text
        assert world.machines.list() == []


def test_a_machine_that_the_journal_lost_is_listed_and_not_gone(world: World) -> None:
    config = world.machines.config
    with living(config) as lives:
        assert world.operations.all_machines() == [], "its name is unknown"
        config.plan(machine_id(KEY)).write_text(json.dumps({"key": KEY}))
        (there,) = world.operations.all_machines()
        assert (there.key, there.phase, there.reason, there.pid) == (KEY, "Unknown", "MachineLost", lives.pid)
        assert world.operations.seen(KEY) == there
        for change in (
            lambda: world.operations.delete(KEY, None, due()),
            lambda: world.operations.stop(KEY, None, due(), force=True),
            lambda: world.operations.scale(KEY, "vcpus", 2, due()),
        ):
            with raises(Denied, "MachineLost"):
                change()
        config.plan(machine_id(KEY)).write_text(json.dumps({"key": "default/other"}))
        assert world.operations.all_machines() == [], "a plan is not believed that is of another one"
        assert lives.poll() is None
    assert world.operations.all_machines() == []
    assert not world.operations.delete(KEY, None, due())


@contextmanager
def living(config: MachineConfig, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is the machine, by its life file."""
    config.state.mkdir()
    life = config.life(machine_id(KEY))
    script = "import fcntl,os,sys,time;f=open(sys.argv[1]);fcntl.flock(f,2);print(1,flush=True);time.sleep(600)"
    life.touch()
    with subprocess.Popen([sys.executable, "-c", script, str(life), *words], stdout=-1) as lives:
        try:
            assert lives.stdout is not None
            assert lives.stdout.readline() == b"1\n"
            there = process(lives.pid)
            assert there is not None
            life.write_text(f"{there.pid} {there.started}\n")
            yield lives
        finally:
            lives.kill()


@pytest.mark.parametrize(("status", "state"), [("running", "running"), ("prelaunch", "starting")])
def test_a_machine_that_the_journal_lost_is_taken_up_if_its_object_tells_of_this_very_run(
    world: World, status: str, state: str
) -> None:
    config, machine = world.machines.config, virtual_machine("m")
    with living(config), memory_qemu(config) as qemu:
        qemu.status = status
        for planned, wrong in ((None, qemu.uuid), (qemu.uuid, ""), (qemu.uuid, OTHER_RUN), (OTHER_RUN, OTHER_RUN)):
            if planned is not None:
                write_plan(config, MachineRecord(machine.to_manifest(), "starting", planned))
            with pytest.raises(Denied) as denied:
                world.machines.take_up(KEY, machine, wrong, due())
            assert (denied.value.code, world.machines.get(KEY)) == ("MachineRuns", None)
        write_plan(config, MachineRecord(machine.to_manifest(), "starting", qemu.uuid))
        world.machines.take_up(KEY, machine, qemu.uuid, due())
        record = world.machines.record_for(KEY)
        assert (record.state, record.run, record.machine) == (state, qemu.uuid, machine)
        world.machines.take_up(KEY, machine, "another", due())  # it is not lost any more
        assert world.machines.record_for(KEY) == record
        assert qemu.commands == [], "nothing is done to it"


def write_plan(config: MachineConfig, record: MachineRecord) -> None:
    """What a start leaves for the plugins that come later."""
    config.plan(machine_id(KEY)).write_text(json.dumps({"key": KEY, "record": content_of(record)}))


OTHER_RUN = "6a8f0b3e-0000-4000-8000-000000000002"
CELLS = (NumaCell(1, 3000, 3 << 30), NumaCell(0, 1000, 1 << 30))


@pytest.mark.parametrize("is_lost", [True, False])
@pytest.mark.parametrize("has_record", [True, False])
def test_cpus_and_numa_nodes_of_a_run_that_the_journal_does_not_know_are_those_it_was_started_with(
    world: World, is_lost: bool, has_record: bool
) -> None:
    """Plans of before 0.2.0 tell the same in members of their own."""
    config, machine = world.machines.config, virtual_machine("m", start={"kernel": "/none", "pinned": True})
    with memory_qemu(config) as qemu, living(config, "-uuid", qemu.uuid):
        begun = MachineRecord(
            machine.to_manifest(), "starting", qemu.uuid, cpus=(9, 4, 8, 7), numa_cells=CELLS, began=5.0, restarts=2
        )
        write_plan(config, begun)
        if not has_record:
            members = {"cpus": begun.cpus, "numa_cells": [asdict(each) for each in CELLS]}
            plan = {"key": KEY, "argv": ["qemu", "-uuid", qemu.uuid], "uid": None, **members}
            config.plan(machine_id(KEY)).write_text(json.dumps(plan))
        if is_lost:
            world.machines.take_up(KEY, machine, qemu.uuid, due())
        else:
            old = MachineRecord(
                machine.to_manifest(), "running", "an earlier run", rates=RateLimits(5), cpus=(0, 1, 2, 3),
                tap_limits=(("", "tap1"),),
            )  # fmt: skip
            world.machines.put(old)
            world.machines.recover()
        record = world.machines.record_for(KEY)
        assert (record.run, record.cpus, record.rates, record.cpus_left) == (qemu.uuid, (9, 4, 8, 7), None, None)
        assert record.spec.numa_cells == CELLS
        assert (record.began, record.restarts) == ((5.0, 2) if has_record else (None, 0))
        assert record.tap_limits == (() if is_lost else (("", "tap1"),)), "its interface may be limited still"


def test_a_machine_that_the_release_before_started_is_taken_up_by_its_plan(world: World) -> None:
    """As recorded from 0.1.0, which wrote no record into it, and gave no guest NUMA nodes."""
    config = world.machines.config
    machine = virtual_machine("m", start={"kernel": "/none", "pinned": True}, nics=[{"backend": "warm"}])
    recorded = (REPO / "tests/upgrade/start-plan-0.1.0.json").read_text()
    with memory_qemu(config) as qemu, living(config, "-uuid", qemu.uuid):
        config.plan(machine_id(KEY)).write_text(recorded)
        assert [each.key for each in world.operations.all_machines()] == [KEY]
        world.machines.take_up(KEY, machine, qemu.uuid, due())
        record = world.machines.record_for(KEY)
        assert (record.run, record.user, record.cpus, record.spec.numa_cells) == (qemu.uuid, None, (9, 4, 8, 7), ())


def test_a_machine_is_taken_up_as_it_was_launched_and_not_as_its_object_is_by_now(world: World) -> None:
    config, changed = world.machines.config, virtual_machine("m", pciSlots=9)
    with memory_qemu(config) as qemu, living(config, "-uuid", qemu.uuid):
        write_plan(config, MachineRecord(virtual_machine("m").to_manifest(), "starting", qemu.uuid))
        world.machines.take_up(KEY, changed, qemu.uuid, due())
        assert world.machines.record_for(KEY).machine == virtual_machine("m")


def test_a_machine_that_came_from_another_node_moves_no_more_when_it_is_taken_up(world: World) -> None:
    config, machine = world.machines.config, virtual_machine("m")
    with memory_qemu(config) as qemu, living(config, "-uuid", qemu.uuid):
        came = MachineMigration("u", "target")
        write_plan(config, MachineRecord(machine.to_manifest(), "incoming", qemu.uuid, migration=came))
        world.machines.take_up(KEY, machine, qemu.uuid, due())
        record = world.machines.record_for(KEY)
        assert (record.state, record.migration) == ("running", None)


def test_a_machine_of_a_restored_store_is_taken_up_for_the_object_that_has_it_now(world: World) -> None:
    config, manifest = world.machines.config, virtual_machine("m").to_manifest()
    before, after = ({**manifest, "metadata": manifest["metadata"] | {"uid": uid}} for uid in ("u1", "u2"))
    with memory_qemu(config) as qemu, living(config, "-uuid", qemu.uuid):
        write_plan(config, MachineRecord(before, "starting", qemu.uuid))
        world.machines.take_up(KEY, VirtualMachine.model_validate(after), qemu.uuid, due())
        assert world.machines.owner(KEY) == "u2"


def test_a_later_run_that_an_older_journal_takes_for_another_objects_is_left_to_its_own_object(world: World) -> None:
    """The object of then is gone, and its machine would be removed with it."""
    config, machine = world.machines.config, virtual_machine("m")
    with memory_qemu(config) as qemu, living(config, "-uuid", qemu.uuid):
        write_plan(config, MachineRecord(machine.to_manifest(), "starting", qemu.uuid))
        for run, keys in ((qemu.uuid, [KEY]), ("an earlier run", [])):
            manifest = machine.to_manifest()
            manifest["metadata"]["uid"] = "of then"
            world.machines.records.put(MACHINES, KEY, content_of(MachineRecord(manifest, "running", run)))
            world.machines.recover()
            assert [each.key for each in world.machines.list()] == keys
        world.machines.take_up(KEY, machine, qemu.uuid, due())
        assert world.machines.record_for(KEY).machine == machine


def test_a_later_run_that_an_older_journal_takes_for_an_earlier_one_is_known_as_itself(world: World) -> None:
    config = world.machines.config
    with memory_qemu(config) as qemu, living(config, "-uuid", qemu.uuid):
        write_plan(config, MachineRecord(virtual_machine("m").to_manifest(), "starting", qemu.uuid))
        for state in ("running", "stopping", "starting"):
            old = MachineRecord(
                virtual_machine("m").to_manifest(), state, "an earlier run", applied=MachineAmounts(vcpus=9)
            )
            world.machines.put(old)
            world.machines.recover()
            record = world.machines.record_for(KEY)
            assert (record.state, record.run, record.applied) == ("running", qemu.uuid, MachineAmounts())


def test_a_machine_whose_start_was_cut_off_is_started_again_and_no_other_that_lives(world: World) -> None:
    config, machine = world.machines.config, virtual_machine("m")
    with living(config), memory_qemu(config) as qemu:
        for qemu.status, due_again in (("prelaunch", [machine]), ("running", [])):
            world.machines.records.put(
                MACHINES, KEY, content_of(MachineRecord(machine.to_manifest(), "starting", qemu.uuid))
            )
            world.machines.recover()
            assert to_begin(world.machines) == due_again


def test_a_deleted_machine_that_the_journal_lost_leaves_no_tpm_to_the_next_of_its_name(world: World) -> None:
    config, name = world.machines.config, machine_id(KEY)

    def leave() -> list[Path]:
        folders = [config.firmware(name), config.tpm(name)]
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "content").touch()
        return folders

    world.machines.put(MachineRecord(virtual_machine("m").to_manifest(), "stopped", "run"))
    folders = leave()
    world.machines.remove_remains(KEY, due())
    assert all(folder.exists() for folder in folders), "it is known"
    world.machines.records.drop(MACHINES, KEY)
    world.machines.remove_remains(KEY, due())
    assert not any(folder.exists() for folder in folders)
    world.machines.remove_remains(KEY, due())


def test_a_lost_machine_that_lives_loses_nothing(world: World) -> None:
    config = world.machines.config
    with living(config):
        config.tpm(machine_id(KEY)).mkdir()
        world.machines.remove_remains(KEY, due())
        assert config.tpm(machine_id(KEY)).exists()


def test_a_machine_whose_digest_is_that_of_another_gets_nothing_of_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant can search for such a name: it is one in 2^48. Here all names of files are the same."""
    for module in (spec, lifecycle, registry, user_ids):
        monkeypatch.setattr(module, "machine_id", lambda key: "m-1")
    config, content = world.machines.config, virtual_machine("n").to_manifest()
    forged = VirtualMachine.model_validate({**content, "metadata": {**content["metadata"], "namespace": "evil"}})
    world.machines.put(MachineRecord(virtual_machine("m").to_manifest(), "stopped", "run"))
    folders = [folder("m-1") for folder in (config.firmware, config.tpm, config.disks)]
    for folder in folders:
        folder.mkdir(parents=True)
    with raises(Denied, "MachineExists", match="the files of machine evil/n") as refused:
        world.machines.start(forged, due())
    assert "default/m" not in refused.value.message, "it names no machine of others"
    world.machines.remove_remains("evil/n", due())
    assert all(folder.exists() for folder in folders)
    assert world.machines.records.record(MACHINES, "evil/n") is None
    world.machines.forget(KEY, due())
    assert not any(folder.exists() for folder in folders), "their machine removes them"


def test_a_machine_starts_also_where_its_limits_cannot_be_enforced(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def enforce(*_: object) -> None:
        raise Failed("MachineBusy", "another limit is being set")

    monkeypatch.setattr(rates, "enforce", enforce)
    with living(world.machines.config), memory_qemu(world.machines.config) as qemu:
        record = MachineRecord(virtual_machine("m", diskIO="20M").to_manifest(), "starting", qemu.uuid)
        world.machines.put(record)
        world.machines.come_up(record, due())
        assert world.machines.record_for(KEY).applied.vcpus == 1
    assert "another limit is being set" in caplog.text


def test_a_start_that_fails_after_an_interface_was_limited_takes_the_limit_away(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def come_up(record: MachineRecord, deadline: Deadline) -> None:
        world.machines.put(replace(record, tap_limits=(("", "tap1"),)))
        raise Failed("DeviceNotThere", "QEMU accepted the rate of its disks, but does not have it")

    unlimited: list[str] = []
    for name in ("check", "launch"):
        monkeypatch.setattr(launch, name, lambda *_: None)
    monkeypatch.setattr(world.machines, "come_up", come_up)
    monkeypatch.setattr(traffic, "set_rates", lambda namespace, tap, rate: unlimited.append(tap))
    with pytest.raises(Failed, match="accepted the rate"):
        world.machines.start(virtual_machine("m"), due())
    record = world.machines.record_for(KEY)
    assert (unlimited, record.state, record.reason, record.tap_limits) == (["tap1"], "failed", "DeviceNotThere", ())


def test_a_machine_that_could_not_be_ended_runs_on_in_the_record(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(*_: object) -> str:
        raise Failed("HostUnreadable", "out of descriptors")

    config = world.machines.config
    with living(config), memory_qemu(config):
        record = MachineRecord(virtual_machine("m", powerdownSeconds=0).to_manifest(), "running", "its run")
        world.machines.records.put(MACHINES, KEY, content_of(record))
        monkeypatch.setattr(launch, "end", end)
        with pytest.raises(Failed):
            world.machines.stop(KEY, 0, True, due())
        assert world.machines.record_for(KEY).state == "running"


def test_a_machine_that_an_older_journal_has_as_stopped_is_seen_to_run(world: World) -> None:
    config = world.machines.config
    with living(config) as lives, memory_qemu(config) as qemu:
        old = MachineRecord(virtual_machine("m").to_manifest(), "failed", "an older run", reason="StartUndone")
        write_plan(config, replace(old.become("starting"), run=qemu.uuid))
        world.machines.records.put(MACHINES, KEY, content_of(old))
        world.machines.recover()
        machine = world.operations.machine(KEY)
        assert (machine.phase, machine.id, machine.reason, machine.pid) == ("Running", qemu.uuid, "", lives.pid)


@contextmanager
def memory_qemu(config: MachineConfig) -> Iterator[FakeQemu]:
    """What answers on the machine's own socket."""
    config.folder(machine_id(KEY)).mkdir(parents=True)
    qemu = FakeQemu(config.folder(machine_id(KEY)) / "qmp")
    qemu.uuid = "6a8f0b3e-0000-4000-8000-000000000001"
    try:
        yield qemu
    finally:
        qemu.close()


def test_a_paused_machine_stands_still_until_it_is_resumed(world: World) -> None:
    world.adopted()
    world.machines.pause(KEY, due())
    assert (world.qemu.status, world.machines.record_for(KEY).reason) == ("paused", "PausedOnRequest")
    world.machines.resume(KEY, due())
    assert (world.qemu.status, world.machines.record_for(KEY).reason) == ("running", "")


def test_that_a_guest_sleeps_is_no_obstacle_for_its_machine(world: World) -> None:
    """It is said how it is woken, and who creates it once more is not refused."""
    world.adopted()
    world.qemu.status = "suspended"
    world.machines.resume(KEY, due())
    machine = world.operations.machine(KEY)
    assert (machine.phase, machine.reason) == ("Running", "CpusStopped")
    assert "sleeps" in machine.message
    assert "create" not in machine.message


@pytest.mark.parametrize(("status", "code"), [("io-error", "DiskFailed"), ("internal-error", "CpusStopped")])
def test_a_machine_with_halted_cpus_has_a_reason_and_goes_on_when_created_again(
    world: World, status: str, code: str
) -> None:
    """QEMU stops them by itself: where the host's disk is full, and where KVM fails."""
    world.adopted()
    world.qemu.status = status
    world.machines._looks.forget(KEY)
    there = world.operations.machine(KEY)
    assert (there.phase, there.reason) == ("Running", code)
    assert status == "io-error" or status in there.message
    world.adopted()  # belongs to another program, which may have stopped it for a reason
    assert world.qemu.status == status
    world.operations.go_on(KEY, due())
    assert (world.operations.machine(KEY).reason, world.qemu.status) == ("", "running")


def test_one_whose_start_was_cut_off_does_not_wait_for_ever_whatever_its_policy(world: World) -> None:
    for policy in ("Always", "Never"):
        machine = virtual_machine("m", restartPolicy=policy)
        world.machines.put(MachineRecord(machine.to_manifest(), "starting", "a run that never began"))
        assert [machine.key for machine in to_begin(world.machines)] == [("default", "m")], policy
    world.machines.recover()  # it does not live: a start that failed, which its caller heard of
    assert to_begin(world.machines) == []
    assert world.operations.machine(KEY).phase == "Failed"


@pytest.mark.parametrize(("status", "is_asked"), [("running", True), ("prelaunch", False)])
def test_a_guest_whose_start_was_cut_off_is_asked_before_its_machine_is_deleted(
    world: World, monkeypatch: pytest.MonkeyPatch, status: str, is_asked: bool
) -> None:
    monkeypatch.setattr(launch, "_QUIT_SECONDS", 0.1)
    with cut_off(world, status) as (lives, qemu):
        if is_asked:
            with raises(Denied, "GuestRefused"):
                world.operations.delete(KEY, 0.3, due())
            assert [command for command, _ in qemu.commands] == ["system_powerdown"]
            assert lives.poll() is None
        assert world.operations.delete(KEY, 0.3, due(), force=is_asked)
        assert ("system_powerdown" in [command for command, _ in qemu.commands]) == is_asked
        assert lives.wait(60)
    assert world.machines.list() == []


def test_a_guest_whose_start_was_cut_off_has_time_to_give_its_devices_addresses(world: World) -> None:
    with cut_off(world, "running") as (lives, qemu):
        ref = plugged_in(world, qemu)
        qemu.gives_addresses = False
        world.machines.recover()
        assert world.operations.machine(KEY).phase == "Starting"
        before = qemu.connections
        with ThreadPoolExecutor(1) as other:
            created = other.submit(world.operations.create, virtual_machine("m"), [ref], due())
            until(lambda: qemu.connections > before + 1, "the guest is waited for", 10)
            qemu.gives_addresses = True
            there = created.result(60)
        assert (there.phase, there.id, there.pid) == ("Running", qemu.uuid, lives.pid)
        assert "quit" not in [command for command, _ in qemu.commands]
        assert world.operations.attached.is_in(ref, KEY)


def test_a_guest_that_ignores_a_stop_before_its_devices_have_addresses_is_not_taken_to_run(world: World) -> None:
    with cut_off(world, "running") as (_, qemu):
        plugged_in(world, qemu)
        qemu.gives_addresses = False
        with raises(Denied, "GuestRefused"):
            world.machines.stop(KEY, 0.01, False, due())
        seen = world.operations.machine(KEY)
        assert (seen.phase, seen.reason) == ("Starting", "StopWanted")
        assert to_begin(world.machines) == [], "it was to stop"
        world.machines.settle()
        assert world.operations.machine(KEY).phase == "Starting"
        qemu.gives_addresses = True
        world.machines.settle()
        seen = world.operations.machine(KEY)
        assert (seen.phase, seen.reason) == ("Running", "StopWanted")


def test_a_guest_that_ends_as_it_was_asked_before_its_start_was_complete_was_stopped(world: World) -> None:
    with cut_off(world, "running") as (lives, qemu):
        plugged_in(world, qemu)
        qemu.gives_addresses = False
        with pytest.raises(Denied):
            world.machines.stop(KEY, 0.01, False, due())
        lives.kill()
        lives.wait(60)
        world.machines.settle()
        seen = world.operations.machine(KEY)
        assert (seen.phase, seen.reason) == ("Stopped", "StoppedOnRequest")


def test_a_guest_whose_start_was_cut_off_is_ended_and_started_again_if_it_gives_no_addresses(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_QUIT_SECONDS", 0.1)
    with cut_off(world, "running") as (lives, qemu):
        ref = plugged_in(world, qemu)
        qemu.bar_sizes["a/0"] = 16 * GIB
        with pytest.raises(Denied, match="kernel /none"):  # nothing can be started here
            world.operations.create(virtual_machine("m"), [ref], due())
        assert lives.wait(60)
        assert "system_powerdown" not in [command for command, _ in qemu.commands]


@pytest.mark.parametrize("status", ["running", "prelaunch"])
def test_a_guest_whose_start_was_cut_off_is_asked_for_the_device_of_a_claim(
    world: World, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    monkeypatch.setattr(launch, "_QUIT_SECONDS", 0.1)
    with cut_off(world, "running") as (lives, qemu):
        ref = plugged_in(world, qemu)
        qemu.status = status
        world.operations.claims.unprepare(ref, due())
        if status == "running":
            assert (lives.poll(), qemu.devices, world.machines.record_for(KEY).state) == (None, {}, "starting")
        else:
            assert lives.wait(60)
        assert world.bench.is_initial()


def test_a_guest_that_has_not_had_the_time_to_give_addresses_is_kept_however_short_its_caller_waits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_QUIT_SECONDS", 0.1)
    with cut_off(world, "running") as (lives, qemu):
        ref = plugged_in(world, qemu)
        qemu.gives_addresses = False
        with raises(Denied, "GuestNotReady", retryable=True):
            world.operations.create(virtual_machine("m"), [ref], Deadline.after(0.4))
        assert (lives.poll(), world.machines.record_for(KEY).state) == (None, "starting")
        assert "quit" not in [command for command, _ in qemu.commands]
        monkeypatch.setattr(node_operations, "FIRMWARE_SECONDS", 0.2)
        with pytest.raises(Denied, match="kernel /none"):  # nothing can be started here
            world.operations.create(virtual_machine("m"), [ref], Deadline.after(1))
        assert lives.wait(60)


@pytest.mark.parametrize("status", ["running", "prelaunch"])
def test_a_qemu_that_is_slower_than_its_caller_waits_is_asked_whether_it_has_a_guest(
    world: World, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    monkeypatch.setattr(launch, "_QUIT_SECONDS", 0.1)
    with cut_off(world, status) as (lives, qemu):
        qemu.trouble["query-status"] = "late"
        if status == "running":
            with raises(Denied, "GuestRefused"):
                world.operations.stop(KEY, None, Deadline.after(0.2))
            assert (lives.poll(), world.machines.record_for(KEY).state) == (None, "starting")
        else:
            assert world.operations.stop(KEY, None, Deadline.after(0.2)).phase == "Stopped"
            assert lives.wait(60)


def test_a_machine_whose_qemu_does_not_answer_may_have_a_guest_and_is_ended_only_by_force(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_QUIT_SECONDS", 0.1)
    for module in (registry, lifecycle, attachment):
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.2)
    with cut_off(world, "running") as (lives, qemu):
        ref = plugged_in(world, qemu)
        qemu.trouble["query-status"] = "hang"
        with pytest.raises(Denied) as denied:
            world.operations.stop(KEY, 0.1, due())
        assert (denied.value.code, lives.poll()) == ("GuestRefused", None)
        assert world.machines.record_for(KEY).reason == "StopWanted", "it may have been asked"
        world.machines.put(MachineRecord(virtual_machine("m").to_manifest(), "starting", qemu.uuid))
        for change in (
            lambda: world.operations.claims.unprepare(ref, due()),
            lambda: world.operations.create(virtual_machine("m"), [ref], due()),
        ):
            with pytest.raises(NodeError):
                change()
            assert (lives.poll(), world.machines.record_for(KEY).state) == (None, "starting")
        assert "quit" not in [command for command, _ in qemu.commands]
        assert world.operations.claims.unprepare(ref, Deadline.after(20), force=True) == [KEY]
        assert lives.wait(60)
        assert world.bench.is_initial()


def test_a_machine_without_a_guest_stays_one_though_its_qemu_did_not_answer_as_it_was_to_stop(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_QUIT_SECONDS", 0.1)
    monkeypatch.setattr(registry, "LOOK_SECONDS", 0.5)
    with cut_off(world, "prelaunch") as (lives, qemu):
        qemu.trouble["query-status"] = "hang"

        def power_down(*_: object) -> bool:
            qemu.trouble.pop("query-status", None)
            return False

        monkeypatch.setattr(launch, "power_down", power_down)
        with pytest.raises(Denied) as denied:
            world.operations.stop(KEY, 0.1, due())
        assert (denied.value.code, world.machines.record_for(KEY).state) == ("GuestRefused", "starting")
        assert world.operations.stop(KEY, 0.1, due()).phase == "Stopped"
        assert lives.wait(60)


def test_a_start_that_failed_just_now_is_undone_though_qemu_does_not_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_QUIT_SECONDS", 0.1)
    for module in (registry, lifecycle, attachment):
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.2)
    with contextlib.ExitStack() as stack:

        def start(machine: VirtualMachine, *_: object, **__: object) -> None:
            lives, qemu = stack.enter_context(cut_off(world, "prelaunch"))
            qemu.trouble |= {"device_add": "hang", "query-status": "hang"}
            started.append(lives)

        started: list[subprocess.Popen[bytes]] = []
        monkeypatch.setattr(world.machines, "start", start)
        ref = world.bench.add("a/slot-0")
        with pytest.raises(NodeError):
            world.operations.create(virtual_machine("m"), [ref], Deadline.after(2))
        assert started[0].wait(60)
        assert (world.machines.list(), world.bench.is_initial()) == ([], True)


def test_what_is_put_in_after_a_start_was_cut_off_needs_a_guest_that_runs(world: World) -> None:
    image = world.machines.config.state.parent / "image"
    image.write_bytes(b"content".ljust(GIB >> 10))
    with cut_off(world, "paused") as (_, qemu):
        for put_in in (
            lambda: world.operations.attach(world.bench.add("a/slot-0"), KEY, due()),
            lambda: world.operations.plug(KEY, EmulatedDevice("d", Disk(str(image), "raw")), due()),
        ):
            with raises(Denied, "GuestNotReady", match="'paused'"):
                put_in()
        assert (qemu.devices, world.bench.is_initial()) == ({}, True)


@contextmanager
def cut_off(world: World, status: str) -> Iterator[tuple[subprocess.Popen[bytes], FakeQemu]]:
    """A machine that lives, and whose start the journal does not know to have ended: the plugin was killed."""
    config = world.machines.config
    with memory_qemu(config) as qemu, living(config, "-uuid", qemu.uuid) as lives:
        qemu.status = status
        world.machines.put(MachineRecord(virtual_machine("m").to_manifest(), "starting", qemu.uuid))
        yield lives, qemu


def plugged_in(world: World, qemu: FakeQemu) -> ClaimRef:
    """A claim whose device was put in before the CPUs were let run; it has no address yet."""
    now, qemu.status = qemu.status, "prelaunch"
    ref = world.bench.add("a/slot-0")
    world.operations.attach(ref, KEY, due())
    qemu.status = now
    return ref
