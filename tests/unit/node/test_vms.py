"""VirtualMachine objects become machines: with all of their claims or not at all, scaled, stopped, undone."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from devalloc.api import meta, views
from devalloc.api.meta import parse_time
from devalloc.api.views import MachineView
from devalloc.api.virtual_machine import VirtualMachine, VirtualMachineStatus
from devalloc.controller.reconcile.loop import AllocatorSettings
from devalloc.controller.reconcile.release import release_claim
from devalloc.inventory.capacity import host_pool_name
from devalloc.store import Event, Key, NotFound, Object, Store, Unavailable
from devalloc.store.sqlite import SQLiteStore
from devalloc.store.watcher import Listed
from devalloc_machines.qemu.process import qemu_uuid
from devalloc_machines.qemu.records import MachineAmounts, State
from devalloc_machines.qemu.spec import RateLimits, spec_of
from devalloc_machines.vms import LoopExecution, LoopSettings, VirtualMachineLoop, objects, start_refusals, steps
from devalloc_machines.vms.machine_claims import due_unprepares, unprepare
from devalloc_machines.vms.situation import read_situation
from devalloc_machines.vms.start_refusals import CHANGE_SECONDS, FAILURES, RETRY_SECONDS, SOON_SECONDS, StartRefusals
from devalloc_machines.vms.status import permitted_on
from devalloc_machines.vms.steps import step_for
from devalloc_node.claims.store_grants import StoreGrants
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError, Unknown
from devalloc_node.operations.change_feed import DEVICES, ChangeNotifier, machine_change
from devalloc_node.operations.claim_registry import ClaimRegistry
from devalloc_solver import solve_manifests
from tests.support.host_pools import host
from tests.support.machine_allocator import machine_allocator
from tests.support.node_errors import raises
from tests.support.node_service import platform_of, toy_bench
from tests.support.toy_host import EngineBench
from tests.support.toy_machines import ToyMachines, machine_of, vm
from tests.support.vm_rounds import full_round
from tests.support.waiting import LONG, in_threads, until

NODE = "node-a"


@dataclass
class World:
    """A store, and a node's loop that is driven by hand."""

    folder: Path
    store: SQLiteStore
    machines: ToyMachines
    bench: EngineBench
    loop: VirtualMachineLoop
    now: float = 0.0
    notifier: ChangeNotifier = field(default_factory=ChangeNotifier)
    """Of a loop that runs by itself."""

    def restart(self) -> None:
        """As after kill -9."""
        self.bench.restart()
        self.loop = self.new_loop()

    def new_loop(self, node: str = NODE, *, workers: int = 8) -> VirtualMachineLoop:
        operations = platform_of(self.bench, self.machines)
        operations.node_name = node
        return VirtualMachineLoop(
            self.store,
            operations,
            ChangeNotifier(),
            settings=LoopSettings(resync=5, grace=300, workers=workers),
            execution=LoopExecution(lambda: self.now, lambda work: work()),
        )

    @contextmanager
    def running(self, labels: Store | None = None) -> Iterator[None]:
        """Inside, loop and allocator run by themselves, and look at nothing again before an hour is over. ``labels``: a
        cluster's store, on which the allocator also writes the nodes' labels."""
        hour = 3600.0
        loop = VirtualMachineLoop(
            self.store,
            platform_of(self.bench, self.machines),
            self.notifier,
            settings=LoopSettings(resync=hour, retry=hour, most=hour),
        )
        settings = AllocatorSettings(resync=hour, labels_nodes=labels is not None)
        allocator = machine_allocator(labels or self.store, solve=solve_manifests, settings=settings)
        with in_threads(loop.run, allocator.run):
            yield

    def round(self, *, times: int = 1, pause: float = 400.0) -> None:
        for _ in range(times):
            self.now += pause
            full_round(self.loop)

    def apply(self, manifest: Object) -> Object:
        key = Key.of(manifest)
        try:
            old = self.store.get(*key)
        except NotFound:
            return self.store.create(manifest)
        metadata = {**old["metadata"], **manifest["metadata"]}
        return self.store.replace({**manifest, "metadata": metadata})

    def claim(self, name: str, *devices: str, node: str = NODE) -> Object:
        """A DeviceClaim, allocated if devices (``pool/device``) are given."""
        made = self.store.create(
            {
                "apiVersion": meta.DEVMGMT,
                "kind": "DeviceClaim",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"claims": [{"deviceClass": "toy"}]},
            }
        )
        return self.allocate(name, *devices, node=node) if devices else made

    def allocate(self, name: str, *devices: str, node: str = NODE) -> Object:
        claim = self.store.get("DeviceClaim", "default", name)
        annotations = {**claim["metadata"].get("annotations", {}), meta.ALLOCATED_NODE: node}
        claim = self.store.replace({**claim, "metadata": {**claim["metadata"], "annotations": annotations}})
        pairs = [device.split("/") for device in devices]
        allocations = [{"devicePoolName": pool, "deviceName": device} for pool, device in pairs]
        return self.store.replace_status({**claim, "status": {"allocations": allocations}})

    def annotate(self, kind: str, name: str, annotation: str, value: str) -> None:
        obj = self.store.get(kind, "default", name)
        annotations = {**obj["metadata"].get("annotations", {}), annotation: value}
        self.store.replace({**obj, "metadata": {**obj["metadata"], "annotations": annotations}})

    def status(self, name: str = "web") -> Any:
        content = self.store.get("VirtualMachine", "default", name)["status"]
        VirtualMachineStatus.model_validate(content)
        return content

    def reason(self) -> str:
        """Why the machine does not run, as it or its conditions say."""
        status = self.store.get("VirtualMachine", "default", "web").get("status") or {}
        reasons = [one["reason"] for one in status.get("conditions", []) if one["status"] == "False"]
        return str(status.get("reason") or next(iter(reasons), ""))

    def phase(self, name: str = "web") -> str:
        return str((self.store.get("VirtualMachine", "default", name).get("status") or {}).get("phase"))

    def replace_pool(self, pool: Object) -> None:
        old = self.store.get("DevicePool", None, pool["metadata"]["name"])
        self.store.replace({**old, "spec": pool["spec"]})

    def is_free(self, name: str) -> bool:
        """Whether no object counts as owner of the claim."""
        claim = self.store.get("DeviceClaim", "default", name)
        return "finalizers" not in claim["metadata"] and "podNames" not in claim["status"]

    def exists(self, kind: str, name: str) -> bool:
        try:
            self.store.get(kind, "default", name)
        except NotFound:
            return False
        return True


@pytest.fixture
def world(tmp_path: Path, store: SQLiteStore) -> World:
    machines = ToyMachines()
    bench = toy_bench(tmp_path, machines)
    bench.grants = StoreGrants(store, NODE)  # type: ignore[assignment]
    bench.start()
    made = World(tmp_path, store, machines, bench, None)  # type: ignore[arg-type]
    made.loop = made.new_loop()
    return made


TOY_CLASS = {
    "apiVersion": meta.DEVMGMT,
    "kind": "DeviceClass",
    "metadata": {"name": "toy"},
    "spec": {"driver": "toy"},
}
TOY_POOL = {
    "apiVersion": meta.DEVMGMT,
    "kind": "DevicePool",
    "metadata": {"name": "a"},
    "spec": {"driver": "toy", "nodeName": NODE, "devices": [{"name": "slot-0"}]},
}


@dataclass(frozen=True)
class Wait:
    """A machine with a claim: what is there before it is created, why it waits, and what comes then."""

    before: Callable[[World], object]
    reason: str
    then: Callable[[World], object]


def with_claim(*others: Callable[[World], object]) -> Callable[[World], object]:
    """There is the machine's claim with its device, and what ``others`` do."""
    return lambda world: [step(world) for step in (lambda world: world.claim("c", "a/slot-0"), *others)]


def failing(code: str) -> Callable[[World], object]:
    return lambda world: world.machines.refuse.update(start=Denied(code, "as things are"))


def no_more(world: World) -> None:
    world.machines.refuse.clear()


WAITS = {
    "a claim": Wait(lambda world: None, "ClaimNotFound", lambda world: world.claim("c", "a/slot-0")),
    "the devices of a claim": Wait(
        lambda world: world.claim("c"), "ClaimNotAllocated", lambda world: world.allocate("c", "a/slot-0")
    ),
    "the class of a claim": Wait(
        lambda world: (world.claim("c"), world.store.create(TOY_POOL)),
        "ClaimNotAllocated",
        lambda world: world.store.create(TOY_CLASS),
    ),
    "the pool of a claim": Wait(
        lambda world: (world.claim("c"), world.store.create(TOY_CLASS)),
        "ClaimNotAllocated",
        lambda world: world.store.create(TOY_POOL),
    ),
    "room on its node": Wait(
        with_claim(lambda world: world.store.create(host(NODE, cpus=1, numa=1))),
        "NodesTooSmall",
        lambda world: world.replace_pool(host(NODE, cpus=8, numa=1)),
    ),
    "its node to say no more what it has": Wait(
        with_claim(lambda world: world.store.create(host(NODE, cpus=1, numa=1))),
        "NodesTooSmall",
        lambda world: world.store.delete("DevicePool", None, host_pool_name(NODE)),
    ),
    "another change of it": Wait(with_claim(failing("MachineBusy")), "MachineBusy", no_more),
    "a lock of the host": Wait(with_claim(failing("LockUnavailable")), "LockUnavailable", no_more),
    "an image that another machine has open": Wait(with_claim(failing("DiskInUse")), "DiskInUse", no_more),
    "an image": Wait(
        with_claim(failing("PathMissing")),
        "PathMissing",
        lambda world: (no_more(world), setattr(world.machines, "files", 1)),
    ),
    "an image that can be used": Wait(
        with_claim(failing("DiskFormat")),
        "DiskFormat",
        lambda world: (no_more(world), setattr(world.machines, "files", 1)),
    ),
    "a device of the host": Wait(
        with_claim(failing("DeviceNotThere")),
        "DeviceNotThere",
        lambda world: (no_more(world), world.notifier.beat(DEVICES)),
    ),
}


class TestWaiting:
    @pytest.mark.parametrize("what", WAITS)
    def test_a_machine_goes_on_as_soon_as_what_it_waits_for_is_there(
        self, world: World, what: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(objects, "BUSY_SECONDS", 0.3)
        wait = WAITS[what]
        wait.before(world)
        with world.running():
            world.store.create(vm("web", claims=["c"], cpu={"min": "2", "max": "4"}))
            until(lambda: world.reason() == wait.reason, f"it waits for {what}", 30)
            wait.then(world)
            until(lambda: world.phase() == "Running", f"it goes on with {what}", 30)


class TestPluginEnds:
    def test_a_plugin_that_ends_lets_go_of_machines_that_never_ran(self, world: World) -> None:
        """No other plugin may come after it: its node may be labelled otherwise."""
        world.machines.fail.add("start")
        world.apply(vm())
        world.round()
        assert world.store.get("VirtualMachine", "default", "web")["metadata"]["finalizers"] == [meta.NODE_FINALIZER]
        world.loop.leave_idle()
        world.store.delete("VirtualMachine", "default", "web")
        assert not world.exists("VirtualMachine", "web")

    def test_a_plugin_that_ends_does_not_release_machines_that_run_or_may_run(self, world: World) -> None:
        world.apply(vm())
        world.round()
        world.loop.leave_idle()
        assert world.store.get("VirtualMachine", "default", "web")["metadata"]["finalizers"] == [meta.NODE_FINALIZER]

    def test_a_plugin_that_ends_releases_its_idle_machines_by_itself(self, world: World) -> None:
        world.machines.fail.add("start")
        world.apply(vm())
        world.round()
        stop = threading.Event()
        stop.set()
        world.loop.run(stop)
        assert "finalizers" not in world.store.get("VirtualMachine", "default", "web")["metadata"]


class TestStart:
    def test_a_machine_waits_for_its_claims_and_starts_with_their_devices(self, world: World) -> None:
        world.claim("gpu", "a/slot-0")
        world.claim("nic")
        world.apply(vm("web", "gpu", "nic"))
        world.round(times=2)
        assert (world.status()["phase"], world.status()["reason"]) == ("Pending", "ClaimNotAllocated")
        assert "default/nic has no devices yet" in world.status()["message"]
        assert world.machines.calls == []
        world.allocate("nic", "b/slot-1")
        world.round(times=2)
        status = world.status()
        assert status["phase"] == "Running"
        assert "reason" not in status
        assert [(d["claim"], d["pool"], d["device"]) for d in status["devices"]] == [
            ("gpu", "a", "slot-0"),
            ("nic", "b", "slot-1"),
        ]
        assert [d["address"] for d in status["devices"]] == ["0000:01:00.0", "0000:02:00.0"]
        assert status["wanted"] == status["permitted"] == {"cpus": "2", "memory": "1Gi"}
        assert status["observed"]["memory"] == "1Gi"
        assert world.store.get("DeviceClaim", "default", "gpu")["status"]["podNames"] == ["default/web"]

    def test_a_permit_stays_as_long_as_it_is_for_this_run(self, world: World) -> None:
        world.apply(vm("web"))
        world.round(times=2)
        run = world.status()["machineID"]
        given = {"cpus": "3", "memory": "2Gi", "givenBy": "server", "machineID": run, "kept": {"cpus": "4"}}
        for permitted, stays in ((given, True), ({**given, "machineID": "another"}, False)):
            stored = world.store.get("VirtualMachine", "default", "web")
            status = {**stored["status"], "permitted": permitted, "runnerPod": "pod"}
            world.store.replace_status({**stored, "status": status})
            world.round(times=2)
            assert (world.status()["permitted"] == permitted) is stays
            counts = {"default/web": MachineAmounts(4000, None, 2 * 2**30)} if stays else {}
            assert permitted_on(world.store, NODE) == counts
            assert world.status()["runnerPod"] == "pod"
        assert world.status()["permitted"] == world.status()["wanted"]

    @pytest.mark.parametrize(
        ("prepare", "reason"),
        [
            (lambda w: None, "ClaimNotFound"),
            (lambda w: w.claim("gpu", "a/slot-0", node="node-b"), "ClaimElsewhere"),
            (
                lambda w: (w.claim("gpu", "a/slot-0"), w.annotate("DeviceClaim", "gpu", meta.RELEASE, "true")),
                "ClaimReleased",
            ),
        ],
    )
    def test_the_status_names_what_a_machine_waits_for(
        self, world: World, prepare: Callable[[World], object], reason: str
    ) -> None:
        prepare(world)
        world.apply(vm("web", "gpu"))
        world.round(times=2)
        assert (world.status()["phase"], world.status()["reason"]) == ("Pending", reason)
        assert world.machines.calls == []

    def test_a_machine_that_the_journal_lost_runs_on_and_belongs_to_its_object(self, world: World) -> None:
        world.apply(vm("web"))
        world.round(times=2)
        before = world.status()
        world.machines.forgotten["default/web"] = world.machines.views.pop("default/web")
        world.machines.calls.clear()
        world.round(times=2)
        assert world.machines.calls == ["take_up default/web"]
        assert world.status() == before

    def test_nothing_is_left_of_a_deleted_machine_that_the_journal_lost(self, world: World) -> None:
        world.apply(vm("web"))
        world.round(times=2)
        world.machines.views.clear()
        world.machines.remains.add("default/web")
        world.store.delete("VirtualMachine", "default", "web")
        world.round(times=2)
        assert (world.exists("VirtualMachine", "web"), world.machines.remains) == (False, set())

    def test_a_machine_that_the_journal_lost_is_on_the_numa_node_that_it_was_placed_on(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world.apply(vm("web"))
        world.round(times=2)
        placed = world.store.get("VirtualMachine", "default", "web")
        world.store.replace_status({**placed, "status": {**placed["status"], "numaNode": 1}})
        taken_up: list[VirtualMachine] = []
        take_up = world.machines.take_up

        def noted(key: str, machine: VirtualMachine, run: str, deadline: Deadline) -> None:
            taken_up.append(machine)
            take_up(key, machine, run, deadline)

        monkeypatch.setattr(world.machines, "take_up", noted)
        world.machines.forgotten["default/web"] = world.machines.views.pop("default/web")
        world.round(times=2)
        assert taken_up
        assert spec_of(taken_up[0]).numa_node == 1

    @pytest.mark.parametrize("is_recorded", [False, True])
    @pytest.mark.parametrize("is_held", [False, True])
    def test_a_machine_that_a_plugin_with_another_state_folder_started_is_not_started_again(
        self, world: World, is_recorded: bool, is_held: bool
    ) -> None:
        """``is_held`` False: a user removed the node's finalizer by hand."""
        world.apply(vm("web", restartPolicy="Never"))
        world.round(times=2)
        obj = world.store.get("VirtualMachine", "default", "web")
        run = "e66bd69c-983c-4fcf-b546-1b352acf6dca"
        if is_recorded:  # from when it last ran on this plugin
            world.machines.end("default/web")
        else:
            world.machines.views.clear()
        world.machines.calls.clear()
        sleeping = [sys.executable, "-c", "import time; time.sleep(600)", "-uuid", run]
        with subprocess.Popen(sleeping) as qemu:
            try:
                _until(lambda: qemu_uuid(qemu.pid) == run)
                obj = {**obj, "status": {**obj["status"], "machineID": run, "pid": qemu.pid}}
                obj = world.store.replace_status(obj)
                if not is_held:
                    world.store.replace({**obj, "metadata": {**obj["metadata"], "finalizers": []}})
                world.restart()
                world.round(times=3)
                status = world.status()
                assert (status["reason"], status["machineID"], status["pid"]) == ("MachineRuns", run, qemu.pid)
                assert status["phase"] == "Unknown", "a machine that shows Stopped is one that has ended"
                assert not MachineView(world.store.get("VirtualMachine", "default", "web")).has_ended
                assert f"process {qemu.pid}, which a plugin with another state folder started" in status["message"]
                there = read_situation(world.store, world.loop._operations, obj)
                with raises(Denied, "MachineRuns", retryable=True):
                    step_for(there.whose, there.state)(world.loop._keeper, there)
                world.loop.leave_idle()
                world.store.delete("VirtualMachine", "default", "web")
                world.round(times=2)
                assert world.exists("VirtualMachine", "web"), "it stays until that process has ended"
                assert not any("start" in call for call in world.machines.calls)
            finally:
                qemu.kill()
        world.round(times=3)
        assert not world.exists("VirtualMachine", "web")

    def test_a_lost_machine_that_cannot_be_taken_up_yet_is_not_shown_as_one_that_does_not_run(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world.apply(vm("web"))
        world.round(times=2)
        obj, run = world.store.get("VirtualMachine", "default", "web"), "e66bd69c-983c-4fcf-b546-1b352acf6dca"

        def silent(*args: object) -> None:
            raise Unknown("QemuSilent", "QEMU does not answer")

        monkeypatch.setattr(world.machines, "take_up", silent)
        sleeping = [sys.executable, "-c", "import time; time.sleep(600)", "-uuid", run]
        with subprocess.Popen(sleeping) as qemu:
            try:
                _until(lambda: qemu_uuid(qemu.pid) == run)
                world.store.replace_status({**obj, "status": {**obj["status"], "machineID": run, "pid": qemu.pid}})
                world.machines.forgotten["default/web"] = replace(world.machines.views.pop("default/web"), id=run)
                world.restart()
                world.round(times=2)
                assert (world.status()["reason"], world.status()["machineID"]) == ("QemuSilent", run)
                assert world.status()["phase"] == "Unknown"
            finally:
                qemu.kill()

    def test_a_deleted_object_stays_while_what_may_be_its_machine_runs(self, world: World) -> None:
        world.apply(vm("web"))
        world.round(times=2)
        run = world.status()["machineID"]
        lost = world.machines.forgotten["default/web"] = replace(world.machines.views.pop("default/web"), id="later")
        world.store.delete("VirtualMachine", "default", "web")
        world.round(times=2)
        assert (world.status()["reason"], world.status()["machineID"]) == ("MachineRuns", run)
        world.machines.forgotten["default/web"] = replace(lost, id=run)
        world.round(times=2)
        assert not world.exists("VirtualMachine", "web")
        assert world.machines.forgotten == world.machines.views == {}

    def test_a_start_that_fails_leaves_nothing_and_is_tried_again_after_growing_pauses(self, world: World) -> None:
        world.claim("gpu", "a/slot-0", "b/slot-1")
        world.apply(vm("web", "gpu"))
        world.machines.fail.add("b/slot-1")
        world.round()
        assert world.status()["reason"] == "QemuRefused"
        assert world.machines.views == {}
        assert world.bench.host.state == {}
        assert world.is_free("gpu")
        tries = world.machines.calls.count("start default/web")
        world.round(pause=0.5)
        assert world.machines.calls.count("start default/web") == tries
        world.round(pause=1)
        assert world.machines.calls.count("start default/web") == tries + 1
        world.round(pause=1.5)
        assert world.machines.calls.count("start default/web") == tries + 1
        world.machines.fail.clear()
        world.round(pause=1)
        world.round()
        assert world.status()["phase"] == "Running"

    def test_an_invalid_object_gets_a_reason_and_harms_no_other(self, world: World) -> None:
        wrong = vm("wrong")
        wrong["spec"]["cpu"]["max"] = "many"
        world.apply(wrong)
        world.apply(vm("web"))
        world.round(times=2)
        assert world.status("wrong")["reason"] == "MachineInvalid"
        assert "spec.cpu.max" in world.status("wrong")["message"]
        assert world.status("web")["phase"] == "Running"
        world.store.delete("VirtualMachine", "default", "wrong")
        world.round(times=2)
        assert not world.exists("VirtualMachine", "wrong")

    def test_a_node_leaves_machines_of_other_nodes_alone(self, world: World) -> None:
        world.apply(vm("web", nodeName="node-b"))
        world.round()
        assert world.machines.calls == []
        assert "finalizers" not in world.store.get("VirtualMachine", "default", "web")["metadata"]

    def test_a_machine_whose_object_was_taken_from_this_node_by_hand_ends_here(self, world: World) -> None:
        world.claim("gpu", "a/slot-0")
        world.apply(vm("web", "gpu"))
        world.round(times=2)
        obj = world.store.get("VirtualMachine", "default", "web")
        metadata = {name: obj["metadata"][name] for name in ("name", "namespace", "uid", "resourceVersion")}
        spec = {**obj["spec"], "nodeName": "node-b"}
        world.store.replace({**obj, "metadata": {**metadata, "finalizers": [], "annotations": {}}, "spec": spec})
        world.round(times=2)
        assert world.machines.views == {}, "or it runs on both nodes"
        assert world.is_free("gpu")

    def test_a_name_that_another_machine_has_is_refused(self, world: World) -> None:
        world.apply(vm("web"))
        world.round()
        machines = world.machines.views
        machines["default/web"] = replace(machines["default/web"], uid="")
        world.round()
        assert world.status()["reason"] == "MachineExists"
        world.store.delete("VirtualMachine", "default", "web")
        machines["default/web"] = replace(machines["default/web"], state=State.UNREADABLE, started=None)
        world.round()
        assert world.exists("VirtualMachine", "web"), "a record that cannot be read may be of its machine"
        machines["default/web"] = replace(
            machines["default/web"], state=State.RUNNING, started=spec_of(machine_of(vm("web")))
        )
        world.round()
        assert not world.exists("VirtualMachine", "web"), "nothing of it is here"
        assert machines["default/web"].runs

    def test_the_loop_adopts_a_qemu_that_runs_already(self, world: World) -> None:
        world.claim("gpu", "a/slot-0")
        world.apply(vm("web", "gpu", adopt={"qmpSocket": "/run/vms/web.qmp"}))
        world.round(times=2)
        assert world.machines.calls == ["adopt default/web"]
        assert len(world.status()["devices"]) == 1
        world.store.delete("VirtualMachine", "default", "web")
        world.round(times=2)
        assert world.machines.calls == ["adopt default/web", "forget default/web"]
        assert world.is_free("gpu")


class TestChange:
    def test_a_claim_that_could_not_be_plugged_in_is_free_when_its_machine_no_longer_names_it(
        self, world: World
    ) -> None:
        world.apply(vm("web"))
        world.round(times=2)
        world.claim("gpu", "a/slot-0")
        world.machines.fail.add("a/slot-0")
        world.apply(vm("web", "gpu"))
        world.round(times=2)
        assert world.status()["reason"] == "QemuRefused"
        world.apply(vm("web"))
        world.round(times=2)
        assert world.is_free("gpu")

    def test_a_device_that_the_guest_released_by_itself_is_plugged_in_again(self, world: World) -> None:
        world.claim("gpu", "a/slot-0", "a/slot-1")
        world.apply(vm("web", "gpu"))
        world.round(times=2)
        before = dict(world.machines.devices)
        assert len(before) == 2
        world.machines.devices.popitem()
        world.round(times=2)
        assert world.machines.devices == before
        assert "reason" not in world.status()

    def test_the_status_of_a_running_machine_shows_whether_it_can_move(self, world: World) -> None:
        def condition() -> Object | None:
            stored = world.store.get("VirtualMachine", "default", "web")["status"].get("conditions", [])
            return next((one for one in stored if one["type"] == "LiveMigratable"), None)

        world.apply(vm("web"))
        world.round()
        assert (first := condition()) is not None
        assert (first["status"], first["reason"]) == ("True", "Movable")
        version = world.store.get("VirtualMachine", "default", "web")["metadata"]["resourceVersion"]
        world.round(times=8)
        assert world.store.get("VirtualMachine", "default", "web")["metadata"]["resourceVersion"] == version

        for words in ("QEMU cannot move it: a card", None):  # QEMU is silent: what it said last stays
            world.machines.fixed["default/web"] = words
            world.round(times=8)
            assert (no := condition()) is not None
            assert (no["status"], no["reason"]) == ("False", "MachineNotMovable")
            assert no["message"] == "QEMU cannot move it: a card"

        world.machines.fixed.clear()
        changed = vm("web")
        changed["spec"]["pciSlots"] = 9
        world.apply(changed)
        world.round(times=2)
        assert (pending := condition()) is not None
        assert (pending["status"], pending["message"][:19]) == ("False", "changes of pciSlots")
        world.apply(vm("web", running=False))
        world.round(times=2)
        assert condition() is None

    def test_a_machine_scales_when_its_load_changes(self, world: World) -> None:
        world.apply(vm("web"))
        world.round()
        changed = vm("web")
        changed["spec"]["cpu"]["use"], changed["spec"]["memory"]["use"] = "1500m", "2Gi"
        world.apply(changed)
        world.round(times=2)
        have = world.machines.views["default/web"].observed
        assert (have.vcpus, have.cpu_milli, have.memory_bytes) == (2, 1500, 2 << 30)
        assert world.status()["observed"] == {"cpus": "1500m", "memory": "2Gi"}
        assert world.status()["wanted"] == {"cpus": "1500m", "memory": "2Gi"}

    def test_rates_follow_the_object_while_it_runs_also_those_of_an_earlier_plugin(self, world: World) -> None:
        def limited(disk_io: str | None, bandwidth: str | None, model: str = "virtio") -> Object:
            nic = {"model": model, "backend": "tap", "interface": "tap1"}
            spec = {"nics": [nic | ({"bandwidth": bandwidth} if bandwidth else {})]}
            return vm("web", **spec, **({"diskIO": disk_io} if disk_io else {}))

        def has() -> RateLimits:
            return world.machines.views["default/web"].rates

        world.apply(limited(None, None))
        world.round()
        assert has() == RateLimits(None, (None,))
        world.apply(limited("20M", "12500k"))
        world.round()
        assert has() == RateLimits(20_000_000, (12_500_000,))
        assert "reason" not in world.status(), "it needs no restart"
        world.restart()
        world.apply(limited("20M", "1k", model="e1000e"))
        world.round()
        assert has() == RateLimits(20_000_000, (12_500_000,)), "another card begins with the next start"
        assert world.status()["reason"] == "RestartNeeded"
        world.machines.unenforced = ["the bandwidth of TAP tap1 is not limited"]
        world.apply(limited(None, "1k"))
        world.round()
        assert has() == RateLimits(None, (1000,))
        status = world.status()
        assert (status["phase"], status["reason"]) == ("Running", "LimitNotEnforced")
        assert status["message"] == "the bandwidth of TAP tap1 is not limited"

    def test_the_status_shows_what_the_guest_refuses_and_the_rest_is_done(self, world: World) -> None:
        world.apply(vm("web"))
        world.round()
        world.machines.stubborn.add("default/web")
        world.claim("gpu", "a/slot-0")
        changed = vm("web", "gpu")
        changed["spec"]["memory"]["use"] = "512Mi"
        world.apply(changed)
        world.round(times=2)
        status = world.status()
        assert (status["phase"], status["reason"]) == ("Running", "GuestRefused")
        assert status["wanted"]["memory"] == "512Mi"
        assert status["observed"]["memory"] == "1Gi"
        assert len(status["devices"]) == 1

    def test_claims_come_and_go_while_it_runs(self, world: World) -> None:
        world.claim("gpu", "a/slot-0")
        world.claim("nic", "b/slot-1")
        world.apply(vm("web", "gpu"))
        world.round()
        world.apply(vm("web", "nic"))
        world.round(times=2)
        assert [device["claim"] for device in world.status()["devices"]] == ["nic"]
        assert world.is_free("gpu")
        assert world.machines.calls.count("start default/web") == 1

    def test_a_claim_that_is_being_allocated_with_others_does_not_count_yet(self, world: World) -> None:
        """On a cluster, where that is several writes: it may be put back."""
        world.claim("gpu", "a/slot-0")
        obj = vm("web", "gpu")
        world.apply(obj)
        stored = world.store.get("DeviceClaim", "default", "gpu")
        annotations = stored["metadata"].get("annotations", {})
        mark = {**annotations, meta.TRANSACTION: "devalloc-transaction-0"}
        stored = world.store.replace({**stored, "metadata": {**stored["metadata"], "annotations": mark}})
        world.round(times=2)
        assert (world.status()["phase"], world.status()["reason"]) == ("Pending", "ClaimNotAllocated")
        assert "being allocated" in world.status()["message"]
        world.store.replace({**stored, "metadata": {**stored["metadata"], "annotations": annotations}})
        world.round(times=2, pause=0.0)  # that the mark goes is news: it waits for no turn
        assert world.status()["phase"] == "Running"

    def test_a_machine_starts_when_its_placement_is_complete(self, world: World) -> None:
        placed = {**vm("web"), "status": {"nodeName": NODE}}
        del placed["spec"]["nodeName"]
        unsettled = {**placed, "metadata": {**placed["metadata"], "annotations": {meta.TRANSACTION: "t"}}}
        held = {**unsettled, "metadata": {**unsettled["metadata"], "finalizers": [meta.NODE_FINALIZER]}}
        assert [views.MachineView(obj).node for obj in (placed, unsettled, held)] == [NODE, None, NODE]

    def test_a_claim_that_is_not_allocated_yet_does_not_stop_a_machine_that_runs(self, world: World) -> None:
        world.apply(vm("web"))
        world.round()
        world.claim("gpu")
        world.apply(vm("web", "gpu"))
        world.round()
        assert (world.status()["phase"], world.status()["reason"]) == ("Running", "ClaimNotAllocated")
        world.allocate("gpu", "a/slot-0")
        world.round(times=2)
        assert len(world.status()["devices"]) == 1

    def test_a_guest_that_keeps_a_device_keeps_its_claim(self, world: World) -> None:
        world.claim("gpu", "a/slot-0")
        world.apply(vm("web", "gpu"))
        world.round()
        world.machines.stubborn.add("default/web")
        world.apply(vm("web"))
        world.round(times=2)
        assert world.status()["reason"] == "GuestRefused"
        assert not world.is_free("gpu")
        world.machines.stubborn.clear()
        world.round(times=2)
        assert "reason" not in world.status()
        assert world.is_free("gpu")

    def test_nothing_is_written_when_nothing_changes(self, world: World) -> None:
        world.claim("gpu", "a/slot-0")
        world.apply(vm("web", "gpu"))
        world.round(times=3)
        before, calls = world.store.list().resource_version, list(world.machines.calls)
        world.round(times=3)
        assert world.store.list().resource_version == before
        assert world.machines.calls == calls


class TestEnd:
    def test_stopping_gives_its_claims_back_and_starting_takes_them_again(self, world: World) -> None:
        world.claim("gpu", "a/slot-0")
        world.apply(vm("web", "gpu"))
        world.round()
        world.apply(vm("web", "gpu", running=False))
        world.round(times=2)
        assert world.status()["phase"] == "Stopped"
        assert world.is_free("gpu")
        assert world.bench.host.state == {}
        world.apply(vm("web", "gpu"))
        world.round(times=2)
        assert world.status()["phase"] == "Running"
        assert len(world.machines.devices) == 1

    def test_a_deleted_machine_stops_and_is_removed_before_its_object(self, world: World) -> None:
        world.claim("gpu", "a/slot-0")
        world.apply(vm("web", "gpu"))
        world.round()
        world.store.delete("VirtualMachine", "default", "web")
        assert world.exists("VirtualMachine", "web")
        world.round(times=2)
        assert not world.exists("VirtualMachine", "web")
        assert world.machines.views == {}
        assert world.is_free("gpu")
        assert world.bench.host.state == {}

    @pytest.mark.parametrize("ran", [False, True])
    def test_a_claim_that_a_start_had_prepared_when_the_plugin_was_killed_is_given_back(
        self, world: World, ran: bool
    ) -> None:
        """Also after a machine that ran: what was to give it back may have failed once it was out of the machine."""
        claim = world.claim("gpu", "a/slot-0")
        world.apply(vm("web", "gpu", running=ran))
        world.round()
        world.apply(vm("web", "gpu", running=False))
        world.round(times=2)
        assert world.is_free("gpu")
        operations = world.loop._operations
        operations.claims.prepare(operations.claims.named(_ref(claim), prepared=False), _due())
        world.restart()
        world.round(times=2)
        assert world.is_free("gpu")

    @pytest.mark.parametrize("why", ["deleted", "moved", "rests"])
    def test_a_machine_is_stopping_while_its_guest_powers_down(self, world: World, why: str) -> None:
        world.apply(vm("web"))
        world.round()
        seen = []
        world.machines.stopping = lambda: seen.append(world.status())
        if why == "deleted":
            world.store.delete("VirtualMachine", "default", "web")
        else:
            world.apply(vm("web", running=False) if why == "rests" else vm("web", nodeName="node-b"))
        world.round(times=2)
        ((phase, observed),) = [(status["phase"], "observed" in status) for status in seen]
        assert (phase, observed) == ("Stopping", True)
        assert world.machines.get("default/web") is None or world.status()["phase"] == "Stopped"

    def test_a_machine_stops_even_if_its_status_cannot_be_written(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world.apply(vm("web"))
        world.round()
        world.store.delete("VirtualMachine", "default", "web")

        def refused(self: object, *args: object) -> Object:
            raise Unavailable("no room")

        with monkeypatch.context() as patched:
            patched.setattr(SQLiteStore, "replace_status", refused)
            world.round()
        assert world.machines.views == {}

    def test_a_machine_that_cannot_be_stopped_keeps_its_object(self, world: World) -> None:
        world.apply(vm("web"))
        world.round()
        world.machines.fail.add("stop")
        world.store.delete("VirtualMachine", "default", "web")
        world.round(times=2)
        assert world.status()["reason"] == "QemuFailed"
        world.machines.fail.clear()
        world.round()
        assert not world.exists("VirtualMachine", "web")

    def test_a_machine_starts_on_another_node_only_after_it_ended_here(self, world: World) -> None:
        world.apply(vm("web"))
        world.round()
        world.apply(vm("web", nodeName="node-b"))
        here, world.loop = world.loop, world.new_loop("node-b")
        world.machines.calls.clear()
        world.round()
        assert world.machines.calls == []
        world.loop = here
        world.round()
        assert world.machines.views == {}
        status = world.status()
        assert (status["phase"], status.get("pid"), status.get("machineID")) == ("Pending", None, None), "of this node"
        world.loop = world.new_loop("node-b")
        world.round(times=2)
        assert world.status()["phase"] == "Running"

    def test_a_machine_is_removed_even_if_a_user_removed_the_name_of_its_node(self, world: World) -> None:
        world.claim("gpu", "a/slot-0")
        world.apply(vm("web", "gpu"))
        world.round()
        for last in (False, True):
            obj = world.store.get("VirtualMachine", "default", "web")
            world.store.replace({**obj, "metadata": {**obj["metadata"], "annotations": {}}})
            if last:
                world.store.delete("VirtualMachine", "default", "web")
            world.round()
        assert not world.exists("VirtualMachine", "web")
        assert world.bench.host.state == {}

    def test_a_machine_that_ended_by_itself_starts_again_with_its_devices(self, world: World) -> None:
        world.claim("gpu", "a/slot-0")
        world.apply(vm("web", "gpu"))
        world.round()
        world.machines.end("default/web")
        assert world.machines.devices == {}
        world.round(times=2)
        assert world.status()["phase"] == "Running"
        assert len(world.machines.devices) == 1

    def test_a_machine_that_its_policy_left_stopped_starts_after_running_was_false_for_a_while(
        self, world: World
    ) -> None:
        world.apply(vm("web", restartPolicy="Never"))
        world.round()
        world.machines.end("default/web")
        machines = world.machines.views
        machines["default/web"] = replace(machines["default/web"], reason="MachineEnded", message="it ended: panic")
        for running in (False, True):
            world.apply(vm("web", restartPolicy="Never", running=running))
            world.round(times=2)
        assert world.status()["phase"] == "Running"

    def test_a_machine_whose_claims_have_more_devices_than_it_has_slots_does_not_start(self, world: World) -> None:
        world.claim("gpu", "a/slot-0", "a/slot-1")
        world.apply(vm("web", "gpu", pciSlots=1))
        world.round(times=2)
        assert (world.status()["phase"], world.status()["reason"]) == ("Pending", "TooFewPciSlots")
        assert "start default/web" not in world.machines.calls
        assert world.bench.host.state == {}
        world.apply(vm("web", "gpu", pciSlots=2))
        world.round(times=2)
        assert world.status()["phase"] == "Running"

    def test_a_device_without_a_window_is_plugged_in_again_only_in_another_run(self, world: World) -> None:
        world.claim("gpu", "a/slot-0")
        world.claim("nic", "b/slot-0")
        world.apply(vm("web"))
        world.round(times=2)
        world.machines.no_window.add("a/slot-0")
        world.apply(vm("web", "gpu"))
        world.round(times=5)
        assert (world.status()["phase"], world.status()["reason"]) == ("Running", "NoPciWindow")
        assert world.machines.calls.count("no window a/slot-0") == 1
        world.restart()
        world.round(times=2)
        assert world.status()["reason"] == "NoPciWindow"
        assert world.machines.calls.count("no window a/slot-0") == 2, "another plugin has not seen it"
        world.apply(vm("web", "gpu", "nic"))
        world.round(times=2)
        assert len(world.machines.devices) == 1, "the other claim's"
        world.machines.no_window.clear()
        world.machines.end("default/web")
        world.round(times=3)
        assert "reason" not in world.status()
        assert len(world.machines.devices) == 2

    def test_a_machine_whose_disk_failed_says_so_and_goes_on(self, world: World) -> None:
        world.apply(vm("web"))
        world.round()
        machines = world.machines.views
        machines["default/web"] = replace(machines["default/web"], reason="DiskFailed", message="the disk is full")
        world.machines.fail.add("resume")
        world.round(times=2)
        assert (world.status()["phase"], world.status()["reason"]) == ("Running", "DiskFailed")
        world.machines.fail.clear()
        world.round(times=2)
        assert "reason" not in world.status()

    def test_a_machine_whose_cpus_a_user_stopped_says_so_and_stays_stopped(self, world: World) -> None:
        world.apply(vm("web"))
        world.round()
        machines = world.machines.views
        machines["default/web"] = replace(machines["default/web"], reason="CpusStopped", message="paused")
        world.machines.calls.clear()
        world.round(times=2)
        assert world.status()["reason"] == "CpusStopped"
        assert world.machines.calls == []

    def test_a_large_machine_with_devices_has_the_time_to_lock_its_memory(self, world: World) -> None:
        memory = {"min": "512Gi", "max": "512Gi"}
        world.apply(vm("none", memory=memory))
        world.apply(vm("one", "gpu", memory=memory))
        world.claim("gpu", "a/slot-0")
        world.round(times=2)
        assert world.machines.given["default/none"] < 60
        assert world.machines.given["default/one"] > 500

    def test_a_machine_that_ended_by_itself_stays_stopped_if_its_policy_says_so(self, world: World) -> None:
        world.apply(vm("web", restartPolicy="Never"))
        world.round()
        world.machines.end("default/web")
        machines = world.machines.views
        machines["default/web"] = replace(machines["default/web"], reason="MachineEnded", message="it ended: panic")
        world.round(times=2)
        assert (world.status()["phase"], world.status()["reason"]) == ("Stopped", "MachineEnded")
        assert world.machines.calls.count("start default/web") == 1

    def test_a_machine_that_ends_again_and_again_starts_after_growing_pauses(self, world: World) -> None:
        world.apply(vm("web"))
        starts = []
        for _ in range(600):
            world.round(pause=1)
            if (machine := world.machines.views.get("default/web")) is not None and machine.runs:
                starts.append(world.now)
                world.machines.end("default/web")
        pauses = [later - earlier for earlier, later in itertools.pairwise(starts)]
        assert pauses[0] < 5
        assert len(starts) < 15
        assert max(pauses) > 50

    def test_a_machine_that_cannot_be_started_again_is_tried_after_growing_pauses(self, world: World) -> None:
        """Each try is another run of it, and none of them is news."""
        world.claim("gpu", "a/slot-0")
        world.apply(vm("web", "gpu"))
        world.round(times=2)
        world.machines.end("default/web")
        world.machines.fail.add("resume")
        before = world.machines.calls.count("start default/web")
        for _ in range(120):
            world.round(pause=1)
        assert world.machines.calls.count("start default/web") - before < 10


class TestClaims:
    def test_a_deleted_claim_goes_when_its_machine_lets_it_go(self, world: World) -> None:
        world.claim("gpu", "a/slot-0")
        world.apply(vm("web", "gpu"))
        world.round()
        world.store.delete("DeviceClaim", "default", "gpu")
        world.round(times=3)
        assert world.exists("DeviceClaim", "gpu")
        assert len(world.machines.devices) == 1
        world.apply(vm("web"))
        world.round(times=2)
        assert not world.exists("DeviceClaim", "gpu")
        assert world.bench.host.state == {}

    def test_a_deleted_claim_in_no_machine_is_unprepared_at_once(self, world: World) -> None:
        claim = world.claim("gpu", "a/slot-0")
        world.loop._operations.claims.prepare(
            world.loop._operations.claims.named(_ref(claim), prepared=False), _due(), caller="test"
        )
        assert not world.is_free("gpu")
        world.store.delete("DeviceClaim", "default", "gpu")
        world.round()
        assert not world.exists("DeviceClaim", "gpu")

    def test_a_claim_that_it_holds_is_seen_without_its_label(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A node that watches what has its label does not list it then."""
        claim = world.claim("gpu", "a/slot-0")
        world.loop._operations.claims.prepare(world.loop._operations.claims.named(_ref(claim), prepared=False), _due())
        world.store.delete("DeviceClaim", "default", "gpu")
        world.restart()
        listed = world.loop._store.list

        def labelled(*kinds: Any) -> Any:
            result = listed(*kinds)
            return result._replace(objects=[obj for obj in result.objects if obj["kind"] != "DeviceClaim"])

        monkeypatch.setattr(world.loop._store, "list", labelled)
        world.round()
        assert world.bench.claims.prepared() == []
        assert not world.exists("DeviceClaim", "gpu")

    def test_a_claim_that_is_reclaimed_is_taken_from_its_machine(self, world: World) -> None:
        world.claim("gpu", "a/slot-0")
        world.apply(vm("web", "gpu"))
        world.round()
        world.machines.stubborn.add("default/web")
        world.annotate("DeviceClaim", "gpu", meta.RELEASE, "true")
        world.round(times=2)
        assert world.bench.host.state == {}
        assert world.machines.devices == {}
        assert (world.status()["phase"], world.status()["reason"]) == ("Stopped", "ClaimReleased")

    def test_the_next_plugin_unprepares_what_a_killed_plugin_did_not(self, world: World) -> None:
        world.claim("gpu", "a/slot-0")
        world.apply(vm("web", "gpu"))
        world.round(times=2)
        (plug,) = world.loop._operations.claims.plugs("default/web")
        world.apply(vm("web"))
        world.loop._operations.detach(plug.ref, "default/web", _due(), owner=world.machines.views["default/web"].uid)
        world.restart()  # killed between detach and unprepare
        assert not world.is_free("gpu")
        world.round(times=2)
        assert world.is_free("gpu")

    @pytest.mark.parametrize("marked", [True, False])
    def test_a_claim_whose_devices_were_given_away_is_unprepared(self, world: World, marked: bool) -> None:
        claim = world.claim("gpu", "a/slot-0")
        world.loop._operations.claims.prepare(world.loop._operations.claims.named(_ref(claim), prepared=False), _due())
        if marked:
            world.store.replace_status({**world.store.get("DeviceClaim", "default", "gpu"), "status": {}})
        else:
            release_claim(world.store, "default", "gpu", abandon=True)
        world.round()
        assert world.bench.claims.prepared() == []
        assert world.bench.host.state == {}
        assert "finalizers" not in world.store.get("DeviceClaim", "default", "gpu")["metadata"]

    @pytest.mark.parametrize(
        ("annotations", "is_held"),
        [({}, False), ({meta.RELEASE: "true"}, True), ({meta.FENCED_FROM: NODE, meta.PREPARED_ON: "node-b"}, True)],
    )
    def test_a_claim_that_has_changed_in_the_store_by_then_stays_prepared(
        self, world: World, annotations: Mapping[str, str], is_held: bool
    ) -> None:
        """It was prepared again for a machine after the node heard that it was given away, wanted back, or taken away
        from this node."""
        world.claim("gpu", "a/slot-0")
        world.apply(vm("web", "gpu"))
        world.round(times=2)
        now = world.store.get("DeviceClaim", "default", "gpu")
        heard = {**now["metadata"], "annotations": {**now["metadata"]["annotations"], **annotations}}
        stale = {**now, "metadata": heard, "status": now["status"] if is_held else {}}
        (held,) = world.loop._operations.claims.held()
        (one,) = due_unprepares([stale], [], [replace(held, plugs=())], NODE, lambda key: False)
        assert unprepare(world.store, world.loop._operations, one)
        assert len(world.bench.claims.prepared()) == 1
        assert world.machines.devices, "its guest has the device"

    def test_a_claim_that_a_user_prepared_by_hand_stays_prepared(self, world: World) -> None:
        claim = world.claim("gpu", "a/slot-0")
        world.loop._operations.claims.prepare(world.loop._operations.claims.named(_ref(claim), prepared=False), _due())
        world.round(times=3)
        assert len(world.bench.claims.prepared()) == 1

    def test_a_claim_that_a_user_detached_by_hand_stays_prepared_for_the_next_machine(self, world: World) -> None:
        ref = _ref(world.claim("gpu", "a/slot-0"))
        operations = world.loop._operations
        for name in ("web", "db"):
            operations.create(VirtualMachine.model_validate(vm(name)), [], _due())
        operations.attach(ref, "default/web", _due())
        world.round()
        assert world.store.get("DeviceClaim", "default", "gpu")["status"]["podNames"] == ["default/web"]
        operations.detach(ref, "default/web", _due())
        world.round(times=3)
        assert len(world.bench.claims.prepared()) == 1
        operations.attach(ref, "default/db", _due())
        world.round()
        assert world.store.get("DeviceClaim", "default", "gpu")["status"]["podNames"] == ["default/db"]


class TestCrash:
    def test_after_a_kill_at_any_change_the_next_rounds_finish_the_work(self, world: World) -> None:
        """Killed in the place of each change of the host and of QEMU in turn, on the way up and on the way down."""

        class Killed(BaseException):
            pass

        kills = 0
        for direction in ("up", "down"):
            for at in range(100):
                world.machines.views.clear()
                name = f"gpu-{direction}-{at}"
                world.claim(name, "a/slot-0", "b/slot-1")
                world.apply(vm("web", name))
                if direction == "down":
                    world.round(times=2)
                    assert world.status()["phase"] == "Running"
                    world.store.delete("VirtualMachine", "default", "web")
                killed = _killed_at(world, at, Killed)
                world.restart()
                world.round(times=4)
                if direction == "up":
                    assert world.status()["phase"] == "Running"
                    assert len(world.machines.devices) == 2
                    world.store.delete("VirtualMachine", "default", "web")
                    world.round(times=4)
                assert not world.exists("VirtualMachine", "web")
                assert (world.machines.views, world.machines.devices, world.bench.host.state) == ({}, {}, {})
                assert world.is_free(name)
                assert not world.bench.journal.claims()
                world.store.delete("DeviceClaim", "default", name)
                kills += killed
                if not killed:
                    break
        print(f"{kills} places to be killed in")
        assert kills > 25

    def test_a_machine_whose_object_vanished_stays_for_the_grace_period(self, world: World) -> None:
        world.apply(vm("web"))
        world.round(times=2)
        _vanish(world)
        world.round(pause=10)
        world.round(pause=200)
        assert world.machines.views["default/web"].runs
        world.round(pause=200)
        assert world.machines.views == {}

    def test_a_machine_whose_object_vanished_is_counted_once_as_removed(self, world: World) -> None:
        world.apply(vm("web"))
        world.round(times=2)
        _vanish(world)
        removed = list[str]()
        world.loop._removed = removed.append
        world.round(pause=10)
        world.round()
        for _ in range(3):
            world.now += 10
            world.loop.worker.round()
        assert world.machines.views == {}
        assert removed == ["machine"]

    def test_another_store_at_the_same_place_ends_no_machine(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        world.apply(vm("web"))
        world.round(times=2)
        with closing(SQLiteStore(world.folder / "other.db")) as other:
            world.store = other
            world.loop = world.new_loop()
            world.round(times=5)
            assert world.machines.views["default/web"].runs
            assert caplog.text.count("default/web have no object in it") == 1
            operations = world.loop._operations
            operations.delete("default/web", None, Deadline.after(60), caller="a user by hand")
            caplog.clear()
            world.loop = world.new_loop()
            world.apply(vm("other"))
            world.round(times=2)
            assert "another store" not in caplog.text, "nothing of the former one is left"
            with pytest.raises(Denied, match="follows its VirtualMachine"):
                world.loop._operations.delete("default/other", None, Deadline.after(60))
            _vanish(world, "other")
            world.round(times=2)
            assert world.machines.views == {}, "it is the store that counts now"


class TestNextStart:
    def test_the_status_shows_what_applies_at_the_next_start(self, world: World) -> None:
        world.apply(vm("web"))
        world.round(times=2)
        assert "reason" not in world.status()
        start = {"kernel": "/images/vmlinuz", "append": "console=ttyS0 debug"}
        world.apply(vm("web", start=start, nics=[{}], powerdownSeconds=7))
        world.round(times=2)
        status = world.status()
        assert (status["phase"], status["reason"]) == ("Running", "RestartNeeded")
        assert (
            status["message"]
            == "changes of start.append, nics in its spec apply at its next start: devalloc restart vm/web"
        )
        world.machines.end("default/web")
        world.round(times=2)
        assert (world.status()["phase"], "reason" in world.status()) == ("Running", False)

    def test_changes_of_claims_and_amounts_apply_at_once(self, world: World) -> None:
        world.apply(vm("web"))
        world.round(times=2)
        world.claim("gpu", "a/slot-0")
        world.apply(vm("web", "gpu", cpu={"min": 1, "max": 4, "use": 4}))
        world.round(times=2)
        assert "reason" not in world.status()

    def test_a_guest_gets_the_time_to_power_down_that_the_spec_says_now(self, world: World) -> None:
        world.apply(vm("web"))
        world.round(times=2)
        world.apply(vm("web", powerdownSeconds=7, running=False))
        world.round(times=2)
        assert world.machines.patience == {"default/web": 7}


class TestLoop:
    def test_a_machine_that_is_gone_is_never_due_again(self, world: World) -> None:
        world.claim("gpu", "a/slot-0")
        world.apply(vm("web", "gpu"))
        world.round(times=2)
        world.store.delete("VirtualMachine", "default", "web")
        world.round(times=3)
        assert not world.exists("VirtualMachine", "web")
        world.now += 1000
        assert full_round(world.loop) is None

    def test_a_machine_that_waits_for_a_worker_is_not_looked_at_until_one_is_free(self, world: World) -> None:
        begun: list[Callable[[], None]] = []
        operations = platform_of(world.bench, world.machines)
        settings = LoopSettings(resync=5, workers=1)
        loop = VirtualMachineLoop(
            world.store,
            operations,
            ChangeNotifier(),
            settings=settings,
            execution=LoopExecution(lambda: world.now, begun.append),
        )
        for name in ("web", "db"):
            world.apply(vm(name))
        assert full_round(loop) is None
        assert len(begun) == 1
        begun[0]()
        full_round(loop)
        assert len(begun) == 2

    def test_guests_that_power_down_slowly_delay_no_other_machine(self, world: World) -> None:
        """The writer of a machine chooses how long its guest may take."""
        stop, over, slow = threading.Event(), threading.Event(), 0
        loop = VirtualMachineLoop(
            world.store,
            platform_of(world.bench, world.machines, world.notifier),
            world.notifier,
            settings=LoopSettings(resync=3600, workers=2),
        )
        thread = threading.Thread(target=loop.run, args=(stop,))
        thread.start()
        try:
            for name in ("slow-1", "slow-2", "slow-3"):
                world.apply(vm(name, powerdownSeconds=3600))
            until(lambda: all(world.phase(f"slow-{n}") == "Running" for n in (1, 2, 3)), "they run")

            def stopping() -> None:
                nonlocal slow
                slow += 1
                assert over.wait(120)

            world.machines.stopping = stopping
            world.store.delete("VirtualMachine", "default", "slow-1")
            for name in ("slow-2", "slow-3"):
                obj = world.store.get("VirtualMachine", "default", name)
                world.store.replace({**obj, "spec": {**obj["spec"], "running": False}})
            until(lambda: slow == 3, "all three guests power down")
            world.apply(vm("web"))
            until(lambda: world.phase("web") == "Running", "another machine starts meanwhile")
            over.set()
            until(lambda: not world.exists("VirtualMachine", "slow-1"), "it is gone")
            until(lambda: {world.phase("slow-2"), world.phase("slow-3")} == {"Stopped"}, "they are stopped")
            assert loop.worker.drain(LONG)
        finally:
            over.set()
            stop.set()
            world.notifier.beat()
            thread.join()

    def test_disks_that_fail_delay_no_other_machine(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """One full file system stops the CPUs of many machines at once, and each is tried again by a worker."""
        world.loop = world.new_loop(workers=1)
        world.apply(vm("web"))
        world.round()
        machines = world.machines.views
        machines["default/web"] = replace(machines["default/web"], reason="DiskFailed", message="the disk is full")
        begun: list[bool] = []

        def sleep(seconds: float) -> None:
            world.apply(vm("other"))
            full_round(world.loop)
            begun.append("default/other" in machines)

        monkeypatch.setattr(steps, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
        world.round(times=2)
        assert begun == [True], "it counts as no worker"

    def test_a_machine_that_waits_for_a_worker_comes_before_those_that_are_due_later(self, world: World) -> None:
        begun: list[Callable[[], None]] = []
        operations = platform_of(world.bench, world.machines)
        settings = LoopSettings(resync=5, workers=2)
        loop = VirtualMachineLoop(
            world.store,
            operations,
            ChangeNotifier(),
            settings=settings,
            execution=LoopExecution(lambda: world.now, begun.append),
        )
        names = [f"a{number}" for number in range(4)] + ["z"]
        for name in names:
            world.apply(vm(name))
        for _ in range(3):  # those in front are due again each time
            full_round(loop)
            works, begun[:] = begun[:], []
            for work in works:
                work()
            world.now += 5
        assert set(world.machines.views) == {f"default/{name}" for name in names}

    def test_a_round_looks_only_at_what_changed(self, world: World) -> None:
        notifier, looked = ChangeNotifier(), []
        operations = platform_of(world.bench, world.machines, notifier)
        loop = VirtualMachineLoop(
            world.store,
            operations,
            notifier,
            settings=LoopSettings(resync=1000),
            execution=LoopExecution(lambda: world.now, lambda work: work()),
        )
        for name in ("a", "b", "c"):
            world.apply(vm(name))
        for _ in range(3):
            full_round(loop)
        get, lists = world.machines.get, world.store.list
        world.machines.get = lambda key: (looked.append(key), get(key))[1]  # type: ignore[method-assign, func-returns-value]
        world.store.list = lambda *kinds, **more: pytest.fail("listed")  # type: ignore[method-assign, assignment]
        try:
            loop.worker.round()
            assert looked == []
            notifier.beat(machine_change("default/b"))
            loop.worker.round()
        finally:
            world.store.list = lists  # type: ignore[method-assign]
        assert set(looked) == {"default/b"}

    def test_a_change_on_the_node_while_the_store_fails_counts_when_it_answers_again(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        notifier = ChangeNotifier()
        loop = VirtualMachineLoop(
            world.store,
            platform_of(world.bench, world.machines, notifier),
            notifier,
            settings=LoopSettings(resync=1000),
            execution=LoopExecution(lambda: world.now, lambda work: work()),
        )
        world.apply(vm("web"))
        for _ in range(3):
            full_round(loop)
        world.machines.end("default/web")
        notifier.beat(machine_change("default/web"))
        with monkeypatch.context() as patch:
            patch.setattr(world.store, "list", failed)
            with pytest.raises(Unavailable):
                full_round(loop)
        loop.worker.round()
        assert world.phase() != "Running", "it was seen to have ended"

    @pytest.mark.parametrize("limit", [1, 4, 100])
    def test_changes_that_wait_are_bounded_and_none_of_them_is_missed(
        self, world: World, monkeypatch: pytest.MonkeyPatch, limit: int
    ) -> None:
        monkeypatch.setattr("devalloc.worker.MAX_MESSAGES", limit)
        notifier, names = ChangeNotifier(), ("a", "b", "c")
        loop = VirtualMachineLoop(
            world.store,
            platform_of(world.bench, world.machines, notifier),
            notifier,
            settings=LoopSettings(resync=1000),
            execution=LoopExecution(lambda: world.now, lambda work: work()),
        )
        for name in names:
            world.apply(vm(name))
        for _ in range(3):
            full_round(loop)
        for name in names:
            world.machines.end(f"default/{name}")

        def beat() -> None:
            notifier.beat(*(machine_change(f"default/{name}") for name in names), *[DEVICES] * 10)

        def failed_meanwhile(*kinds: object) -> None:
            beat()
            raise Unavailable("no answer")

        beat()
        with monkeypatch.context() as patch:
            patch.setattr(world.store, "list", failed_meanwhile)
            with pytest.raises(Unavailable):
                full_round(loop)
        loop.worker.round()
        assert {world.phase(name) for name in names}.isdisjoint({"Running"}), "each was seen to have ended"

    @pytest.mark.parametrize("work", ["vm added", "vm due", "host due"])
    def test_work_that_got_no_thread_is_done_when_there_is_one(self, world: World, work: str) -> None:
        done: list[str] = []
        refusals = [work]

        def spawn(what: Callable[[], None]) -> None:
            key, why = what.args  # type: ignore[attr-defined]
            name = f"{key.split()[0]} {why.value}"
            if name in refusals:
                refusals.remove(name)
                raise RuntimeError("can't start new thread")
            done.append(name)
            what()

        operations = platform_of(world.bench, world.machines)
        loop = VirtualMachineLoop(
            world.store,
            operations,
            ChangeNotifier(),
            settings=LoopSettings(resync=5),
            execution=LoopExecution(lambda: world.now, spawn),
        )
        world.apply(vm("web"))
        loop.worker.add("host", 0.0)
        errors = 0
        for _ in range(8):
            world.now += 10
            try:
                full_round(loop)
            except RuntimeError:
                errors += 1
        assert errors == 1
        assert work in done
        assert world.phase("web") == "Running"

    def test_a_machine_that_cannot_be_asked_stops_no_later_glance(self, world: World) -> None:
        world.apply(vm("web"))
        world.round(times=3, pause=10)
        keys, is_as_seen = list[str](), world.machines.is_as_seen

        def fails_once(key: str) -> bool:
            keys.append(key)
            if len(keys) == 1:
                raise ZeroDivisionError
            return is_as_seen(key)

        world.machines.is_as_seen = fails_once  # type: ignore[method-assign]
        world.round(times=10, pause=30)
        assert len(keys) > 1

    def test_what_other_nodes_publish_does_not_wake_it(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        notifier, stop = ChangeNotifier(), threading.Event()
        loop = VirtualMachineLoop(world.store, platform_of(world.bench, world.machines, notifier), notifier)
        heard: list[str] = []

        def tell(*changes: Listed | Event | str) -> None:
            heard.extend(one.object["metadata"]["name"] for one in changes if isinstance(one, Event))

        monkeypatch.setattr(loop.worker, "tell", tell)
        watching, watch = threading.Event(), world.store.watch
        monkeypatch.setattr(world.store, "watch", lambda *of, **more: (watching.set(), watch(*of, **more))[1])
        thread = threading.Thread(target=loop.run, args=(stop,))
        thread.start()
        try:
            _until(watching.is_set)  # from a version of before the pools
            world.store.create(host("node-b"))
            world.store.create(host(NODE))
            _until(lambda: heard)
        finally:
            stop.set()
            notifier.beat()
            thread.join(60)
        assert heard == [host_pool_name(NODE)]

    def test_a_machine_that_is_settled_is_only_glanced_at_when_its_time_comes(self, world: World) -> None:
        world.apply(vm("web"))
        world.machines.as_seen.add("default/web")
        world.round(times=2)
        looked: list[str] = []
        get = world.machines.get
        world.machines.get = lambda key: (looked.append(key), get(key))[1]  # type: ignore[method-assign, func-returns-value]
        world.round(times=4)
        assert looked == []
        assert world.machines.glances.count("default/web") >= 4
        world.machines.as_seen.clear()
        world.machines.end("default/web")  # and no event said so
        world.round(times=2)
        assert get("default/web").runs, "it was seen to have ended, and started again"  # type: ignore[union-attr]

    def test_a_listing_reads_the_journal_once_for_all_machines_and_claims(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(3):
            world.apply(vm(f"here-{number}"))
            world.machines.as_seen.add(f"default/here-{number}")
            world.apply(vm(f"elsewhere-{number}", nodeName="node-b"))
            world.claim(f"used-{number}", "pool/toy0", node="node-b")
            used = world.store.get("DeviceClaim", "default", f"used-{number}")
            users = {"podNames": [f"default/elsewhere-{number}"]}
            world.store.replace_status({**used, "status": {**used["status"], **users}})
        world.round(times=2)
        read: list[object] = []
        held = ClaimRegistry.held
        monkeypatch.setattr(world.machines, "owner", read.append)
        monkeypatch.setattr(ClaimRegistry, "held", lambda self, uid=None: read.append(uid) or held(self, uid))
        world.round(pause=30)
        assert world.machines.glances, "they are settled"
        assert set(read) == {None}, "all at once, and none by itself"

    @pytest.mark.parametrize(
        "wrong", [{"phase": "Unknown", "reason": "MonitorUnreachable", "pid": 1}, {"message": "of another"}, None]
    )
    def test_a_status_that_another_writer_changed_is_right_again_after_a_resync(
        self, world: World, wrong: dict[str, Any] | None
    ) -> None:
        world.apply(vm("web"))
        world.machines.as_seen.add("default/web")
        world.round(times=4, pause=10)
        assert world.machines.glances, "its machine is settled"
        obj = world.store.get("VirtualMachine", "default", "web")
        world.store.replace_status({**obj, "status": {} if wrong is None else {**obj["status"], **wrong}})
        world.round(pause=5)

        def shown(status: dict[str, Any]) -> dict[str, Any]:
            conditions = {one["type"]: one["status"] for one in status["conditions"]}
            return {**status, "conditions": conditions}

        assert shown(world.status("web")) == shown(obj["status"])
        before = len(world.machines.glances)
        world.round(times=6, pause=20)
        assert len(world.machines.glances) > before, "it is settled again"

    def test_a_machine_that_failed_for_lack_of_room_starts_as_soon_as_another_gives_it_back(self, world: World) -> None:
        world.apply(vm("db"))
        world.round(times=2)
        world.machines.fail.add("start")
        world.apply(vm("web"))
        for pause in (0, 2, 4, 8, 16, 32):
            world.round(pause=pause)
        tries = world.machines.calls.count("start default/web")
        world.machines.fail.clear()
        world.round(pause=2)
        assert world.machines.calls.count("start default/web") == tries, "its pause is not over"
        world.store.delete("VirtualMachine", "default", "db")
        world.round(times=3, pause=0)
        assert world.status("web")["phase"] == "Running"

    def test_a_machine_from_another_node_starts_as_soon_as_that_node_releases_it(self, world: World) -> None:
        world.apply(vm("web"))
        obj = world.store.get("VirtualMachine", "default", "web")
        metadata = {
            **obj["metadata"],
            "finalizers": [meta.NODE_FINALIZER],
            "annotations": {meta.PREPARED_ON: "node-b"},
        }
        obj = world.store.replace({**obj, "metadata": metadata})
        for pause in (0, 2, 4, 8, 16, 32):
            world.round(pause=pause)
        assert world.machines.views == {}
        world.store.replace({**obj, "metadata": {**obj["metadata"], "finalizers": [], "annotations": {}}})
        world.round(times=2, pause=0)
        assert world.status()["phase"] == "Running"

    def test_a_machine_that_ended_again_and_again_starts_at_once_by_another_spec(self, world: World) -> None:
        world.apply(vm("web", restartPolicy="Always"))
        world.round(times=2, pause=0)
        for _ in range(6):
            world.machines.end("default/web")
            world.round(times=2, pause=10)
        world.machines.end("default/web")
        world.round(pause=0.1)
        assert not world.machines.views["default/web"].runs, "its pause is not over"
        world.apply(vm("web", restartPolicy="Always", powerdownSeconds=7))
        world.round(times=2, pause=0)
        assert world.machines.views["default/web"].runs

    def test_the_loop_runs_by_itself_and_stops(self, world: World) -> None:
        notifier, stop = ChangeNotifier(), threading.Event()
        operations = platform_of(world.bench, world.machines, notifier)
        loop = VirtualMachineLoop(world.store, operations, notifier)
        thread = threading.Thread(target=loop.run, args=(stop,))
        thread.start()
        try:
            world.claim("gpu", "a/slot-0")
            world.apply(vm("web", "gpu"))
            _until(lambda: world.store.get("VirtualMachine", "default", "web").get("status", {}).get("devices"))
            world.store.delete("VirtualMachine", "default", "web")
            _until(lambda: not world.exists("VirtualMachine", "web"))
        finally:
            stop.set()
            notifier.beat()
            thread.join(60)
        assert not thread.is_alive()


def _killed_at(world: World, at: int, error: type[BaseException]) -> bool:
    """Run rounds with the process gone at the change of that number; whether it came so far."""
    left = at

    def count(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise error

    world.bench.host.refuse = count
    world.machines.touched = count
    try:
        world.round(times=3)
    except error:
        return True
    finally:
        world.bench.host.refuse = lambda target, value: None
        world.machines.touched = lambda: None
    return False


def failed(*of: object, **more: object) -> Any:
    raise Unavailable("the store does not answer")


def _vanish(world: World, name: str = "web") -> None:
    """The object goes without its finalizer having been removed by us: a user removed it by hand."""
    obj = world.store.get("VirtualMachine", "default", name)
    metadata = {key: value for key, value in obj["metadata"].items() if key != "finalizers"}
    world.store.replace({**obj, "metadata": metadata})
    world.store.delete("VirtualMachine", "default", name)


def _ref(claim: Object) -> Any:
    from devalloc_node.claims.store_grants import claim_ref

    return claim_ref(claim)


def _due() -> Any:
    from devalloc_node.deadline import Deadline

    return Deadline.after(10)


def _until(true: Callable[[], object]) -> None:
    until(true, "it comes to that")


class TestPlaced:
    """On a node that says what it has for machines; the allocator decides, and is driven by hand."""

    def allocate(self, world: World) -> None:
        machine_allocator(world.store, solve=solve_manifests).round()

    def free(self, **spec: Any) -> Object:
        """A machine that names no node."""
        made = vm("web", **spec)
        del made["spec"]["nodeName"]
        return made

    def test_a_machine_starts_only_when_a_node_is_chosen_and_there(self, world: World) -> None:
        world.store.create(host(NODE))
        world.apply(self.free())
        world.round(times=2)
        assert "status" not in world.store.get("VirtualMachine", "default", "web"), "no node begins anything"
        self.allocate(world)
        world.round()
        assert (world.status()["phase"], world.status()["nodeName"]) == ("Running", NODE)
        assert world.status()["allocations"]

    def test_a_machine_that_names_its_node_waits_for_room_there(self, world: World) -> None:
        world.store.create(host(NODE, cpus=2, numa=1))
        world.apply(vm("web", cpu={"min": "3", "max": "4"}))
        for _ in range(3):
            self.allocate(world)
            world.round()
        assert (world.status()["phase"], world.status()["reason"]) == ("Pending", "NodesTooSmall")
        assert world.machines.views == {}
        pool = world.store.get("DevicePool", None, f"{NODE}-host")
        world.store.replace({**host(NODE, cpus=4, numa=1), "metadata": pool["metadata"]})
        self.allocate(world)
        world.round()
        assert world.status()["phase"] == "Running"
        assert "reason" not in world.status()

    def test_a_stopped_machine_gives_back_its_room_and_claims_until_it_starts(self, world: World) -> None:
        world.store.create(host(NODE))
        world.claim("gpu", "a/slot-0")
        world.apply(vm("web", "gpu"))
        self.allocate(world)
        world.round()
        assert world.status()["allocations"]
        world.apply(vm("web", "gpu", running=False))
        world.round()
        assert (world.status()["phase"], world.status().get("allocations")) == ("Stopped", None)
        world.apply(vm("web", "gpu"))
        world.round(times=2)
        assert (world.status()["phase"], world.status()["reason"]) == ("Stopped", "NotPlaced")
        self.allocate(world)
        world.round()
        assert world.status()["phase"] == "Running"

    def test_a_machine_that_ended_for_good_keeps_nothing(self, world: World) -> None:
        world.store.create(host(NODE))
        world.apply(vm("web", restartPolicy="Never"))
        self.allocate(world)
        world.round()
        world.machines.end("default/web")
        machines = world.machines.views
        machines["default/web"] = replace(machines["default/web"], reason="MachineEnded", message="it ended: panic")
        for _ in range(3):
            world.round()
            self.allocate(world)
        assert (world.status()["reason"], world.status().get("allocations")) == ("MachineEnded", None)

    def test_a_machine_that_starts_again_keeps_what_it_had(self, world: World) -> None:
        world.store.create(host(NODE))
        world.apply(vm("web"))
        self.allocate(world)
        world.round()
        before = world.status()["allocations"]
        world.machines.end("default/web")
        world.round()
        assert world.status()["allocations"] == before

    def use(self, cpus: str, memory: str = "1Gi") -> Object:
        return vm(
            "web", cpu={"min": "1", "max": "4", "use": cpus}, memory={"min": "512Mi", "max": "2Gi", "use": memory}
        )

    def test_a_machine_grows_only_when_its_node_reserves_the_room(self, world: World) -> None:
        world.store.create(host(NODE, cpus=3, numa=1))
        world.apply(self.use("2"))
        self.allocate(world)
        world.round()
        world.apply(self.use("4", "512Mi"))
        for _ in range(2):
            world.round()
            observed = world.machines.views["default/web"].observed
            assert (observed.vcpus, observed.memory_bytes) == (2, 512 << 20), "what there is room for is done"
            assert (world.status()["phase"], world.status()["reason"]) == ("Running", "NoRoomToGrow")
            assert world.status()["permitted"] == {"cpus": "2", "memory": "512Mi"}
            self.allocate(world)
        assert "1 of 3 CPU free, 2 more wanted" in world.status()["message"]
        pool = world.store.get("DevicePool", None, f"{NODE}-host")
        world.store.replace({**host(NODE, cpus=4, numa=1), "metadata": pool["metadata"]})
        self.allocate(world)
        world.round()
        assert world.machines.views["default/web"].observed.vcpus == 4
        assert "reason" not in world.status()
        world.apply(self.use("1", "512Mi"))
        world.round()
        self.allocate(world)
        assert [one["allocations"][0]["allocation"] for one in world.status()["allocations"]] == ["1"]

    def test_a_machine_keeps_its_rate_and_says_so_if_its_node_has_no_bandwidth(self, world: World) -> None:
        world.store.create(host(NODE, network=1000))
        world.apply(vm("web"))
        self.allocate(world)
        world.round()
        world.apply(vm("web", nics=[{"bandwidth": "2000"}]))
        self.allocate(world)
        world.round()
        assert (world.status()["phase"], world.status()["reason"]) == ("Running", "NoRoomToGrow")
        assert "1k/s bandwidth, 2k/s more wanted" in world.status()["message"]

    def test_what_a_machine_is_about_to_get_counts_before_it_gets_it(self, world: World) -> None:
        """Lowered again while it is being raised: what its node was about to give it goes to no other."""
        world.store.create(host(NODE, cpus=4, numa=1))
        world.apply(self.use("1"))
        self.allocate(world)
        world.round()
        world.apply(self.use("3"))
        self.allocate(world)
        scale = world.machines.scale

        def lowered(key: str, what: str, amount: int, deadline: Deadline) -> None:
            if amount == 3:
                world.apply(self.use("1"))
                other = vm("other", cpu={"min": "2", "max": "4"})
                world.apply(other)
                self.allocate(world)
                assert world.status("other")["reason"] in ("NoRoom", "LostToCompetition", "NodesTooSmall")
                assert not world.status("other").get("allocations")
            scale(key, what, amount, deadline)

        world.machines.scale = lowered  # type: ignore[method-assign]
        world.round()
        world.machines.scale = scale  # type: ignore[method-assign]
        assert world.machines.views["default/web"].observed.vcpus == 3
        self.allocate(world)
        assert not world.status("other").get("allocations")
        world.round()
        self.allocate(world)
        assert world.machines.views["default/web"].observed.vcpus == 1
        assert world.status("other").get("allocations")

    def test_a_machine_does_not_start_with_more_than_its_reservation(self, world: World) -> None:
        world.store.create(host(NODE, cpus=3, numa=1))
        world.apply(self.use("1"))
        self.allocate(world)
        world.apply(self.use("4"))
        world.round()
        assert world.machines.views == {}, "it was placed with 1 CPU"
        for _ in range(2):
            self.allocate(world)
            world.round()
        assert (world.status()["phase"], world.status()["reason"]) == ("Pending", "NodesTooSmall")
        assert not world.status().get("allocations")
        world.apply(self.use("3"))
        self.allocate(world)
        world.round()
        assert world.machines.views["default/web"].observed.vcpus == 3

    def test_a_machine_that_never_started_is_placed_again_when_it_asks_for_more(self, world: World) -> None:
        world.store.create(host("node-b", cpus=2, numa=1))
        world.apply(self.free(cpu={"min": "1", "max": "4"}))
        self.allocate(world)
        world.store.create(host(NODE, cpus=4, numa=1))
        world.apply(self.free(cpu={"min": "4", "max": "4"}))
        for _ in range(2):
            self.allocate(world)
        world.round()
        assert (world.status()["phase"], world.status()["nodeName"]) == ("Running", NODE)

    def test_a_machine_that_ended_does_not_start_with_more_than_its_node_has(self, world: World) -> None:
        world.store.create(host(NODE, cpus=2, numa=1))
        world.apply(self.use("1"))
        self.allocate(world)
        world.round()
        world.apply(self.use("4"))
        self.allocate(world)
        world.round()
        world.machines.end("default/web")
        world.round(times=2)
        assert (world.status()["phase"], world.status()["reason"]) == ("Stopped", "NotPlaced")
        assert "2 CPU, 3 more wanted" in world.status()["message"]

    def test_a_running_machine_stays_as_it_is_if_a_new_claim_gets_nothing(self, world: World) -> None:
        world.store.create(host(NODE))
        world.apply(vm("web"))
        self.allocate(world)
        world.round()
        world.claim("gpu")
        world.apply(vm("web", "gpu"))
        self.allocate(world)
        world.round()
        assert (world.status()["phase"], world.status()["reason"]) == ("Running", "ClaimNotAllocated")
        assert world.machines.calls.count("start default/web") == 1

    def test_the_memory_of_a_machine_comes_from_the_chosen_numa_node(self, world: World) -> None:
        world.store.create(host(NODE))
        world.apply(self.free(numaPolicy="single-numa-node"))
        self.allocate(world)
        world.round()
        started = world.machines.views["default/web"].started
        assert started is not None
        assert started.numa_node == world.status()["numaNode"] == 0

    def test_a_running_machine_goes_on_and_counts_when_its_node_begins_to_publish_its_capacity(
        self, world: World
    ) -> None:
        world.apply(vm("web"))
        world.round()
        world.store.create(host(NODE))
        world.round()
        self.allocate(world)
        world.round()
        assert world.status()["phase"] == "Running"
        assert world.status()["allocations"]
        assert world.machines.calls.count("start default/web") == 1

    def test_a_plugin_that_was_killed_between_placing_and_starting_starts_it(self, world: World) -> None:
        world.store.create(host(NODE))
        world.apply(self.free())
        self.allocate(world)
        world.restart()
        world.round()
        self.allocate(world)
        assert world.status()["phase"] == "Running"
        assert len(world.status()["allocations"]) == 1

    def test_a_machine_gives_its_room_back_before_it_starts_elsewhere(self, world: World) -> None:
        for node in (NODE, "node-b"):
            world.store.create(host(node))
        world.apply(vm("web"))
        self.allocate(world)
        world.round()
        world.apply(vm("web", nodeName="node-b"))
        self.allocate(world)
        assert world.status()["nodeName"] == NODE, "it runs there still"
        world.round()
        assert world.status().get("allocations") is None
        self.allocate(world)
        assert world.status()["nodeName"] == "node-b"


BROKEN = ("PathMissing", "PathNotAllowed", "DiskFormat", "TapMissing", "TapNotAllowed", "FirmwareMissing")


class TestCannotStart:
    """A machine that its node cannot start gives its room back, so that it is there for others."""

    def allocate(self, world: World) -> None:
        machine_allocator(world.store, solve=solve_manifests).round()

    def both(self, world: World, times: int = 3, pause: float = 1.0) -> None:
        for _ in range(times):
            self.allocate(world)
            world.round(pause=pause)

    def apply(self, world: World, name: str, **spec: Any) -> None:
        made = vm(name, **spec)
        del made["spec"]["nodeName"]
        world.apply(made)

    def refused(self, world: World, error: Exception, name: str = "web") -> None:
        """A machine that was placed, and that its node cannot start because of the error."""
        world.store.create(host(NODE, cpus=4, numa=1))
        world.machines.refuse[f"start default/{name}"] = error
        self.apply(world, name)
        self.both(world)

    def starts(self, world: World, name: str = "web") -> int:
        return world.machines.calls.count(f"start default/{name}")

    def test_six_broken_machines_do_not_fill_a_node(self, world: World) -> None:
        world.store.create(host(NODE, cpus=12, memory=12, numa=1))
        for number, code in enumerate(BROKEN):
            world.machines.refuse[f"start default/broken-{number}"] = Denied(code, "as things are")
            self.apply(world, f"broken-{number}")
        self.both(world)
        for number in range(6):
            self.apply(world, f"good-{number}")
        self.both(world)
        assert [world.phase(f"good-{number}") for number in range(6)] == ["Running"] * 6
        for number, code in enumerate(BROKEN):
            status = world.status(f"broken-{number}")
            assert (status["phase"], status["reason"], status.get("allocations")) == ("Pending", code, None)
            assert "nothing is reserved for it" in status["message"]
            conditions = {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}
            assert conditions == {
                "Placed": ("False", "StartRefused"),
                "Ready": ("False", code),
                "Startable": ("False", code),
            }
        version = world.store.list().resource_version
        self.both(world)
        assert world.store.list().resource_version == version

    def test_it_is_left_alone_after_that(self, world: World) -> None:
        self.refused(world, Denied("PathNotAllowed", "no"))
        tries, version = self.starts(world), world.store.list().resource_version
        self.both(world, times=10, pause=50.0)
        assert tries == self.starts(world) == 1
        assert world.store.list().resource_version == version, "no one writes anything"

    @pytest.mark.parametrize("ending", ["killed", "stopped"])
    def test_a_plugin_that_starts_anew_tries_it_again(
        self, world: World, ending: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Perhaps with the option that the refusal asked for, of which no file shows anything."""
        monkeypatch.setattr(start_refusals, "CHANGE_SECONDS", 0.3)
        self.refused(world, Denied("PathNotAllowed", "not below a folder of --image-folder"))
        if ending == "stopped":
            world.loop.leave_idle()
        world.restart()
        world.machines.refuse.clear()
        until(lambda: self.both(world, times=1) or world.phase() == "Running", "it starts", 30)

    def test_a_plugin_and_an_allocator_that_start_again_and_again_leave_it_alone(self, world: World) -> None:
        self.refused(world, Denied("PathNotAllowed", "no"))
        version = world.store.list().resource_version
        world.restart()
        self.both(world)
        assert self.starts(world) == 1
        assert world.store.list().resource_version == version

    def test_it_starts_when_its_spec_is_corrected(self, world: World) -> None:
        self.refused(world, Denied("PathNotAllowed", "no"))
        world.machines.refuse.clear()
        self.apply(world, "web", cpu={"min": "1", "max": "2"})
        self.both(world)
        assert world.phase() == "Running"
        assert [one["type"] for one in world.status()["conditions"] if one["status"] == "False"] == []

    @pytest.mark.parametrize("is_restarted", [False, True])
    def test_it_starts_when_what_it_needs_is_there(
        self, world: World, is_restarted: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(start_refusals, "CHANGE_SECONDS", 0.3)
        self.refused(world, Denied("PathMissing", "no image"))
        if is_restarted:
            world.restart()
            self.both(world, times=1)
        world.machines.refuse.clear()
        world.machines.files += 1
        until(lambda: self.both(world, times=1) or world.phase() == "Running", "it starts", 30)

    def test_it_starts_when_a_device_is_there_again(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(start_refusals, "CHANGE_SECONDS", 0.3)
        self.refused(world, Denied("DeviceNotThere", "no card"))
        world.machines.refuse.clear()
        world.loop.worker.tell(DEVICES)
        until(lambda: self.both(world, times=1) or world.phase() == "Running", "it starts", 30)

    def test_what_may_pass_gives_the_room_back_after_five_tries(self, world: World) -> None:
        self.refused(world, Failed("QemuFailed", "QEMU ended"))
        for tried in range(self.starts(world), 5):
            assert (tried, bool(world.status().get("allocations"))) == (self.starts(world), True)
            world.round()
            self.allocate(world)
        assert world.status().get("allocations") is None
        self.both(world, pause=50.0)
        assert self.starts(world) == 5

    @pytest.mark.parametrize(
        "error", [Unknown("QemuSilent", "no answer"), Denied("MachineBusy", "soon", retryable=True)]
    )
    def test_room_is_kept_where_something_may_run(self, world: World, error: NodeError) -> None:
        self.refused(world, error)
        limit = 5 if isinstance(error, Unknown) else 1
        for _ in range(limit):
            world.round()
        assert world.status()["allocations"]

    def test_room_is_kept_where_a_machine_runs_all_the_same(self, world: World) -> None:
        self.refused(world, Denied("MachineBusy", "soon", retryable=True))
        world.machines.refuse["start default/web"] = Denied("PathNotAllowed", "no")
        obj = world.store.get("VirtualMachine", "default", "web")
        lost = world.machines._new(machine_of(vm("web", uid=obj["metadata"]["uid"])), is_paused=False)
        world.machines.forgotten["default/web"] = lost
        world.machines.refuse["take_up"] = Failed("MachineUnknown", "its QEMU does not answer")
        world.round(times=8)
        assert world.status()["allocations"]

    def test_others_read_that_the_holder_does_not_run_and_why(self, world: World) -> None:
        world.store.create(host(NODE, cpus=2, numa=1))
        world.machines.refuse["start default/broken"] = Denied("DiskInUse", "another machine has it", retryable=True)
        self.apply(world, "broken", cpu={"min": "2", "max": "2"})
        self.both(world, times=1)
        self.apply(world, "web", cpu={"min": "2", "max": "2"})
        self.allocate(world)
        message = world.status()["message"]
        assert message.endswith("; stop machine default/broken (not running: DiskInUse)")


class TestStartRefusals:
    CONDITION: ClassVar = {"lastTransitionTime": "2026-01-31T12:00:00Z", "observedGeneration": 1}

    def pause(self, code: str, *, retryable: bool, after: float, host: str = "as it was") -> float:
        now = parse_time("2026-01-31T12:00:00Z").timestamp() + after
        refusals = StartRefusals(lambda: now)
        refusals.gives_back("k", 1, Denied(code, "no", retryable=retryable), "as it was")
        return refusals.pause("k", self.CONDITION, host)

    def test_it_asks_for_room_again_after_a_while(self) -> None:
        assert self.pause("PathNotAllowed", retryable=False, after=10) == RETRY_SECONDS - 10
        assert self.pause("PathNotAllowed", retryable=False, after=RETRY_SECONDS) == 0
        assert self.pause("DiskInUse", retryable=False, after=10) == SOON_SECONDS - 10, "no file shows when it is free"
        assert self.pause("QemuFailed", retryable=True, after=SOON_SECONDS) == 0

    def test_a_file_that_changes_all_the_time_does_not_keep_it_trying(self) -> None:
        assert self.pause("PathMissing", retryable=False, after=1, host="other") == CHANGE_SECONDS - 1
        assert self.pause("PathMissing", retryable=False, after=CHANGE_SECONDS, host="other") == 0

    def test_a_clock_that_was_set_back_delays_it_by_no_more_than_one_pause(self) -> None:
        assert self.pause("PathNotAllowed", retryable=False, after=-(10**6)) == RETRY_SECONDS

    def test_one_of_another_run_of_the_plugin_is_tried_when_this_one_starts_and_gives_back_at_once(self) -> None:
        """This run may have the option that the refusal asked for, such as --image-folder."""
        now = parse_time("2026-01-31T12:00:00Z").timestamp()
        refusals = StartRefusals(lambda: now)
        assert refusals.pause("k", self.CONDITION, "host") == CHANGE_SECONDS, "a plugin that starts again and again"
        now += CHANGE_SECONDS
        assert refusals.pause("k", self.CONDITION, "host") == 0
        assert refusals.gives_back("k", 1, Failed("QemuFailed", "no"), "host")
        assert refusals.pause("k", self.CONDITION, "host") == SOON_SECONDS - CHANGE_SECONDS, "this run has tried"

    @pytest.mark.parametrize("error", [Denied("MachineRuns", "it runs"), Unknown("QemuSilent", "no answer")])
    def test_what_may_run_gives_nothing_back(self, error: NodeError) -> None:
        refusals = StartRefusals()
        assert not any(refusals.gives_back("k", 1, error, "") for _ in range(3 * FAILURES))

    def test_a_failure_that_may_pass_is_counted_by_spec(self) -> None:
        refusals, error = StartRefusals(), Failed("QemuFailed", "no")
        assert [refusals.gives_back("k", 1, error, "") for _ in range(FAILURES)] == [False] * (FAILURES - 1) + [True]
        assert not refusals.gives_back("k", 2, error, "")
        refusals.forget("k")
        assert not refusals.gives_back("k", 1, error, "")
