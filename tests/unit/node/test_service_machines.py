"""Machines that were created through the service scale by their load and have runners, though they have no object."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from devalloc.scaling.health import ScalingReport, StuckReason
from devalloc.scaling.resources import Resources, ScalingBounds
from devalloc.store.sqlite import SQLiteStore
from devalloc_machines.agent.permit_client import OwnPermits
from devalloc_machines.qemu.guest_report import GuestReport
from devalloc_machines.qemu.preflight import check_numa
from devalloc_machines.qemu.records import State
from devalloc_machines.qemu.spec import RateLimits
from devalloc_machines.service.request_fields import machine_to_start
from devalloc_machines.vms import MachineControls, RequestLoop
from devalloc_machines.vms.steps import MachineReconciler
from devalloc_node.errors import Denied
from devalloc_node.model.grant import ClaimRef
from devalloc_node.model.step import Prepared, PreparedDevice
from devalloc_node.operations.change_feed import machine_change
from devalloc_node.pb import node_pb2 as pb
from tests.support.node_service import Served, served
from tests.support.toy_machines import vm
from tests.support.vm_rounds import look_at_requests
from tests.unit.neon.test_runners import FakeRunners
from tests.unit.node.test_vms_scaling import FakeScalers

GIB = 1 << 30
KEY = "default/web"
DONE, DENIED = pb.Result.DONE, pb.Result.DENIED


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as made:
        yield made


@pytest.fixture
def scalers() -> FakeScalers:
    return FakeScalers()


@pytest.fixture
def runners() -> FakeRunners:
    return FakeRunners()


@pytest.fixture
def created(plugin: Served, scalers: FakeScalers, runners: FakeRunners) -> RequestLoop:
    return loop_of(plugin, scalers, runners)


def loop_of(plugin: Served, scalers: FakeScalers | None, runners: FakeRunners | None) -> RequestLoop:
    requests = RequestLoop(plugin.operations, plugin.notifier, spawn=lambda work: work())
    requests.control(MachineControls(scalers, runners))
    return requests


def creation(**spec: object) -> pb.CreateMachineRequest:
    amounts = {
        "cpu": pb.CpuBounds(min_milli=1000, max_milli=4000),
        "memory": pb.MemoryBounds(min_bytes=GIB, max_bytes=2 * GIB),
        "start": pb.Start(kernel="/images/k"),
    }
    ref = pb.MachineRef(name="web")
    return pb.CreateMachineRequest(machine=ref, spec=pb.MachineSpec(**amounts, **spec))  # type: ignore[arg-type]


SCALED = pb.MachineScaling(address="10.0.0.5", monitor_port=10302, memory_usage_fraction_target=0.5)


def test_it_is_scaled_as_it_was_created_from_its_start_to_its_end(
    plugin: Served, scalers: FakeScalers, created: RequestLoop
) -> None:
    assert plugin.node.CreateMachine(creation(scaling=SCALED)).result.outcome == DONE
    look_at_requests(created)
    scaled = scalers.by_key[KEY]
    assert (scaled.uid, scaled.address, scaled.monitor_port) == ("", "10.0.0.5", 10302)
    assert scaled.bounds == ScalingBounds(Resources(1000, GIB), Resources(4000, 2 * GIB))
    assert scaled.config.memory_usage_fraction_target == 0.5
    look_at_requests(created)
    assert scalers.by_key == {KEY: scaled}
    plugin.node.StopMachine(pb.StopMachineRequest(machine=pb.MachineRef(name="web")))
    look_at_requests(created)
    assert scalers.by_key == {}
    plugin.node.CreateMachine(creation(scaling=SCALED))
    look_at_requests(created)
    assert scalers.by_key[KEY].run != scaled.run
    plugin.node.DeleteMachine(pb.DeleteMachineRequest(machine=pb.MachineRef(name="web"), force=True))
    look_at_requests(created)
    assert scalers.by_key == {}


def test_a_look_at_all_machines_reads_the_journal_once(
    plugin: Served, scalers: FakeScalers, created: RequestLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plugin.node.CreateMachine(creation(scaling=SCALED)).result.outcome == DONE
    read: list[str] = []
    created.worker.round()
    monkeypatch.setattr(plugin.machines, "owner", read.append)
    look_at_requests(created)
    assert read == []
    assert KEY in scalers.by_key


def test_one_whose_record_cannot_be_read_is_scaled_as_before(
    plugin: Served, scalers: FakeScalers, created: RequestLoop
) -> None:
    plugin.node.CreateMachine(creation(scaling=SCALED))
    look_at_requests(created)
    there = plugin.machines.views[KEY]
    plugin.machines.views[KEY] = replace(there, state=State.UNREADABLE, created_as=None)
    look_at_requests(created)
    assert list(scalers.by_key) == [KEY]


def test_the_loop_of_objects_leaves_it_alone(
    plugin: Served, scalers: FakeScalers, created: RequestLoop, store: SQLiteStore
) -> None:
    plugin.node.CreateMachine(creation(scaling=SCALED))
    look_at_requests(created)
    keeper = MachineReconciler(store, plugin.operations, controls=MachineControls(scalers))
    assert keeper.keep(vm("web", uid="gone"), lambda obj: {}) is None
    assert list(scalers.by_key) == [KEY]


def test_a_machine_that_cannot_be_looked_at_does_not_block_the_others(
    plugin: Served, scalers: FakeScalers, created: RequestLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("web", "zeb"):
        request = creation(scaling=SCALED)
        request.machine.name = name
        assert plugin.node.CreateMachine(request).result.outcome == DONE
    get, machines = plugin.operations.machines.get, plugin.operations.machines

    def broken(key: str) -> object:
        if key == KEY:
            raise struct.error("a bug")
        return get(key)

    monkeypatch.setattr(machines, "get", broken)
    look_at_requests(created)
    assert list(scalers.by_key) == ["default/zeb"]


def test_a_plugin_that_starts_again_goes_on(plugin: Served, scalers: FakeScalers, created: RequestLoop) -> None:
    plugin.node.CreateMachine(creation(scaling=SCALED))
    another = FakeScalers()
    look_at_requests(loop_of(plugin, another, None))
    assert another.by_key[KEY].address == "10.0.0.5"


def test_a_machine_that_its_load_does_not_scale_is_permitted_what_is_wanted(plugin: Served) -> None:
    plugin.node.CreateMachine(creation())
    machine = plugin.node.GetMachine(pb.GetMachineRequest(machine=pb.MachineRef(name="web")))
    assert machine.wanted.memory_bytes > 0
    assert machine.permitted == machine.wanted


def test_the_answer_says_what_its_load_wants_and_why_it_has_it_not(
    plugin: Served, scalers: FakeScalers, created: RequestLoop
) -> None:
    plugin.node.CreateMachine(creation(scaling=SCALED))
    small = Resources(1000, GIB)
    why = StuckReason("HostFull", "no room")
    scalers.reports[KEY] = ScalingReport(Resources(3000, 2 * GIB), small, small, None, why)
    look_at_requests(created)
    machine = plugin.node.GetMachine(pb.GetMachineRequest(machine=pb.MachineRef(name="web")))
    assert (machine.wanted.cpu_milli, machine.wanted.memory_bytes) == (3000, 2 * GIB)
    assert (machine.reason, machine.message) == ("HostFull", "no room")
    scalers.reports[KEY] = replace(scalers.reports[KEY], reason=None)
    look_at_requests(created)
    assert plugin.node.GetMachine(pb.GetMachineRequest(machine=pb.MachineRef(name="web"))).reason == ""


def test_what_is_in_the_way_of_scaling_is_not_said_of_a_machine_that_ended(
    plugin: Served, scalers: FakeScalers, created: RequestLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object, **more: object) -> None:
        raise Denied("PathNotAllowed", "it is below no folder that is listed")

    plugin.node.CreateMachine(creation(scaling=pb.MachineScaling(address="192.0.2.5")))
    look_at_requests(created)
    assert created.problem(KEY) is not None
    plugin.machines.end(KEY)
    monkeypatch.setattr(plugin.machines, "start", refuse)
    look_at_requests(created)
    assert created.problem(KEY) is None


def test_a_guest_that_is_elsewhere_is_not_asked(plugin: Served, scalers: FakeScalers, created: RequestLoop) -> None:
    plugin.node.CreateMachine(creation(scaling=pb.MachineScaling(address="192.0.2.5")))
    look_at_requests(created)
    assert scalers.by_key == {}
    machine = plugin.node.GetMachine(pb.GetMachineRequest(machine=pb.MachineRef(name="web")))
    assert machine.reason == "GuestElsewhere"


def test_its_runner_listens_while_it_runs(plugin: Served, runners: FakeRunners, created: RequestLoop) -> None:
    wanted = creation(runner=pb.MachineRunner(address="127.7.0.9", port=25184))
    assert plugin.node.CreateMachine(wanted).result.outcome == DONE
    look_at_requests(created)
    assert (runners.by_key[KEY].address, runners.by_key[KEY].port) == ("127.7.0.9", 25184)
    plugin.node.StopMachine(pb.StopMachineRequest(machine=pb.MachineRef(name="web")))
    look_at_requests(created)
    assert runners.by_key == {}


@pytest.mark.parametrize(
    ("spec", "code"),
    [({"scaling": SCALED}, "ScalingOff"), ({"runner": pb.MachineRunner(address="127.7.0.9")}, "RunnerOff")],
)
def test_a_node_that_does_not_do_that_refuses_it(plugin: Served, spec: dict[str, object], code: str) -> None:
    loop_of(plugin, None, None)
    reply = plugin.node.CreateMachine(creation(**spec))
    assert (reply.result.outcome, reply.result.code) == (DENIED, code)
    assert plugin.machines.calls == []


def test_created_again_it_must_be_the_same(plugin: Served, created: RequestLoop) -> None:
    plugin.node.CreateMachine(creation(scaling=SCALED))
    assert plugin.node.CreateMachine(creation(scaling=SCALED)).result.outcome == DONE
    other = plugin.node.CreateMachine(creation(scaling=SCALED, reserve_max=True)).result
    assert (other.outcome, other.code) == (DENIED, "MachineExists")
    assert "reserve max" in other.message


@pytest.mark.parametrize(("numa", "is_fit"), [(1, True), (0, False), (None, True)])
def test_one_numa_node_means_the_devices_of_its_claims_too(numa: int | None, is_fit: bool) -> None:
    wanted = creation(numa_policy="single-numa-node")
    wanted.spec.start.numa_node = 1
    attributes = {} if numa is None else {"resource.kubernetes.io/numaNode": numa}
    device = PreparedDevice(("0",), "pool", "gpu-0", "vfio", attributes=attributes)
    claims = [Prepared(ClaimRef("default", "a", "uid-a"), (device,))]
    with nullcontext() if is_fit else pytest.raises(Denied, match="gpu-0 is on node 0") as refused:
        check_numa(machine_to_start(wanted, "node-a"), claims)
    assert is_fit or refused.value.code == "NumaNodeMismatch"


def test_it_permits_itself_what_its_bounds_allow() -> None:
    permits = OwnPermits(ScalingBounds(Resources(1000, GIB), Resources(4000, 4 * GIB)))
    for target, permit in (
        (Resources(2000, 2 * GIB), Resources(2000, 2 * GIB)),
        (Resources(9000, GIB), Resources(4000, GIB)),
        (Resources(0, 9 * GIB), Resources(1000, 4 * GIB)),
    ):
        assert asyncio.run(permits.ask(None, target, None)) == permit


def test_its_rates_are_held_and_what_is_not_enforced_is_shown(plugin: Served, created: RequestLoop) -> None:
    nic = pb.Nic(backend="tap", interface="default.a", bandwidth_bytes_per_second=12_500_000)
    plugin.node.CreateMachine(creation(nics=[nic], disk_io_bytes_per_second=20_000_000))
    rates = RateLimits(20_000_000, (12_500_000,))
    assert plugin.machines.views[KEY].rates == rates
    plugin.machines.unenforced = ["the bandwidth of TAP default.a is not limited: Operation not permitted"]
    look_at_requests(created)
    shown = plugin.node.GetMachine(pb.GetMachineRequest(machine=pb.MachineRef(name="web")))
    assert (shown.reason, shown.message) == ("LimitNotEnforced", plugin.machines.unenforced[0])
    plugin.machines.unenforced = ()
    look_at_requests(created)
    shown = plugin.node.GetMachine(pb.GetMachineRequest(machine=pb.MachineRef(name="web")))
    assert shown.reason == ""


def test_what_its_guest_reports_is_shown_of_its_run_and_who_watches_sees_it_change(plugin: Served) -> None:
    reports = {}
    plugin.operations.guest_report = lambda key, run: reports.get((key, run))
    plugin.node.CreateMachine(creation(guest_reports=True))
    request = pb.GetMachineRequest(machine=pb.MachineRef(name="web"))
    machine = plugin.node.GetMachine(request)
    assert machine.spec.guest_reports
    assert not machine.HasField("guest_report"), "it has said nothing yet"
    events = plugin.node.WatchMachines(pb.WatchMachinesRequest())
    assert next(events).machine == machine
    assert next(events).change == pb.CHANGE_SYNCED
    reports[KEY, "another run"] = GuestReport("not-ready")
    reports[KEY, machine.machine_id] = GuestReport("ready", "up", {"queue": 1.0})
    plugin.notifier.beat(machine_change(KEY))
    seen = next(events).machine
    assert (seen.guest_report.status, seen.guest_report.message) == ("ready", "up")
    assert plugin.node.GetMachine(request) == seen
    events.cancel()
