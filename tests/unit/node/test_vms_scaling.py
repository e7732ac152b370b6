"""Machines that are scaled by their load: the agent gets their settings, and its reports are written to objects."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devalloc.api.virtual_machine import MEMORY_BLOCK
from devalloc.scaling.config import ANNOTATION
from devalloc.scaling.health import ScalingReport, StuckReason
from devalloc.scaling.metrics import GuestReport
from devalloc.scaling.resources import Resources, ScalingBounds
from devalloc.scaling.versions import ProtocolEra
from devalloc.store.sqlite import SQLiteStore
from devalloc_machines.agent import actuator
from devalloc_machines.agent.actuator import MachineActuator, MachineExecutors, memory_rounded_down, scaling_steps
from devalloc_machines.agent.channels import ChangeRefused, ScaledMachine
from devalloc_machines.agent.settings import ScalingSettings
from devalloc_machines.qemu.records import MachineAmounts, MachineView, State
from devalloc_machines.qemu.spec import spec_of
from devalloc_machines.vms import MachineControls
from devalloc_machines.vms.scaling import scaled_machine
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed
from devalloc_node.host.linux import Route
from tests.support.node_errors import raises
from tests.support.node_service import ToyLoop
from tests.support.toy_machines import machine_of, vm

GIB = 1 << 30
HERE = {"address": "10.0.0.5"}
KEY = "default/web"
MEMORY = {"min": "512Mi", "max": "2Gi"}
BY_METHOD = {
    "virtio-mem": spec_of(machine_of(vm(memory=MEMORY))),
    "dimm": spec_of(machine_of(vm(memory={**MEMORY, "method": "dimm", "slotSize": "256Mi"}))),
}


@dataclass
class FakeScalers:
    """In place of the agent: it records its calls, and reports what a test says."""

    settings: ScalingSettings = field(default_factory=lambda: ScalingSettings(guests=(ip_network("10.0.0.0/8"),)))
    way: Route = field(default_factory=lambda: Route("eth0", by_gateway=True))
    by_key: dict[str, ScaledMachine] = field(default_factory=dict)
    reports: dict[str, ScalingReport] = field(default_factory=dict)

    def keep(self, scaled: ScaledMachine) -> None:
        self.by_key[scaled.key] = scaled

    def drop(self, key: str) -> None:
        self.by_key.pop(key, None)
        self.reports.pop(key, None)

    def report(self, key: str) -> ScalingReport | None:
        return self.reports.get(key)

    def way_to(self, address: str) -> Route:
        return self.way


class World(ToyLoop):
    def __init__(self, folder: Path, store: SQLiteStore) -> None:
        self.scalers = FakeScalers()
        super().__init__(folder, store, MachineControls(self.scalers))

    def apply(self, **spec: Any) -> None:
        old = self.store.get("VirtualMachine", "default", "web")
        new = vm("web", scaling=HERE, **spec)
        self.store.replace({**new, "metadata": {**old["metadata"], **new["metadata"]}})


@pytest.fixture
def world(tmp_path: Path, store: SQLiteStore) -> World:
    made = World(tmp_path, store)
    store.create(vm("web", scaling=HERE))
    made.round()
    return made


def report(wanted: Resources, reason: StuckReason | None = None) -> ScalingReport:
    return ScalingReport(wanted, Resources(2000, GIB), Resources(2000, GIB), None, reason)


def test_the_scaler_gets_the_bounds_and_the_address_of_the_guest(world: World) -> None:
    scaled = world.scalers.by_key[KEY]
    assert scaled.bounds == ScalingBounds(Resources(1000, GIB // 2), Resources(4000, 2 * GIB))
    assert (scaled.address, scaled.monitor_port, scaled.metrics_port) == ("10.0.0.5", 10301, 9100)
    assert scaled.run == world.status()["machineID"]


def test_what_the_spec_says_of_use_does_not_count_any_more(world: World) -> None:
    world.apply(cpu={"min": 1, "max": 4, "use": 3})
    world.round()
    assert "scale default/web" not in world.machines.calls
    assert world.status()["observed"]["cpus"] == "2"


def test_its_own_targets_are_taken_in_place_of_the_nodes(world: World) -> None:
    targets = {"loadAverageFractionTarget": "1500m", "memoryUsageFractionTarget": "0.5"}
    old = world.store.get("VirtualMachine", "default", "web")
    world.store.replace({**old, "spec": {**old["spec"], "scaling": {**HERE, **targets}}})
    world.round()
    config = world.scalers.by_key[KEY].config
    assert (config.load_average_fraction_target, config.memory_usage_fraction_target) == (1.5, 0.5)
    assert config.memory_total_fraction_target == ScalingSettings().config.memory_total_fraction_target


def rescaled(world: World, annotation: str | None = None, **scaling: Any) -> None:
    old = world.store.get("VirtualMachine", "default", "web")
    annotations = {**old["metadata"].get("annotations", {})} | ({} if annotation is None else {ANNOTATION: annotation})
    metadata = {**old["metadata"], "annotations": annotations}
    world.store.replace({**old, "metadata": metadata, "spec": {**old["spec"], "scaling": {**HERE, **scaling}}})
    world.round()


def test_all_parameters_of_goals_are_its_own_by_its_spec_or_its_annotation(world: World) -> None:
    annotation = '{"loadAverageFractionTarget": 1.25, "enableLFCMetrics": true, "cpuStableZoneRatio": 0.5}'
    rescaled(world, annotation, loadAverageFractionTarget="1500m", lfcWindowSizeMinutes=4, lfcUseLargestWindow=True)
    assert world.scalers.by_key[KEY].config == replace(
        ScalingSettings().config,
        load_average_fraction_target=1.5,  # the spec counts where both say something
        enable_lfc_metrics=True,
        cpu_stable_zone_ratio=0.5,
        lfc_window_size_minutes=4,
        lfc_use_largest_window=True,
    )


@pytest.mark.parametrize(
    ("annotation", "scaling", "words"),
    [
        ("{", {}, r"metadata.annotations\[autoscaling.neon.tech/config\] is not valid JSON"),
        (
            '{"loadAverageFractionTarget": -1, "enableLFCMetrics": 1}',
            {},
            "loadAverageFractionTarget must be a number above 0 and below 2, not -1; .*enableLFCMetrics must be true",
        ),
        (
            '{"lfcMinWaitBeforeDownscaleMinutes": 3}',
            {"lfcWindowSizeMinutes": 4},
            "spec.scaling.lfcMinWaitBeforeDownscaleMinutes must be at least lfcWindowSizeMinutes, which is 4, not 3",
        ),
        (
            '{"lfcMinWaitBeforeDownscaleMinutes": 3}',
            {},
            r"metadata.annotations\[.*\].lfcMinWaitBeforeDownscaleMinutes must be at least lfcWindowSizeMinutes, which",
        ),
        (None, {"lfcWindowSizeMinutes": 6}, "at least lfcWindowSizeMinutes, which is 6, not 5"),
    ],
)
def test_a_machine_with_an_invalid_scaling_config_stays_as_it_is_with_a_reason(
    world: World, annotation: str | None, scaling: dict[str, Any], words: str
) -> None:
    rescaled(world, annotation, **scaling)
    assert not world.scalers.by_key
    assert world.status()["reason"] == "ScalingConfigInvalid"
    assert re.search(words, world.status()["message"]), world.status()["message"]
    rescaled(world, "{}")
    assert KEY in world.scalers.by_key
    assert "reason" not in world.status()


def test_an_older_agents_annotation_is_read_as_that_agent_reads_it(world: World) -> None:
    world.scalers.settings = replace(world.scalers.settings, compat=ProtocolEra.V0_31)
    rescaled(world, '{"loadAverageFractionTarget": 0.5, "lfcToMemoryRatio": 0}')
    assert world.scalers.by_key[KEY].config.load_average_fraction_target == 0.5
    assert "reason" not in world.status(), "it does not know the ratio"


def test_the_scaler_gets_protocol_and_ports_and_begins_anew_with_others(world: World) -> None:
    before = world.scalers.by_key[KEY]
    assert (before.protocol, before.lfc_port) == ("monitor", 9499)
    rescaled(world, protocol="informant", monitorPort=10302, lfcMetricsPort=9500)
    after = world.scalers.by_key[KEY]
    assert (after.protocol, after.monitor_port, after.lfc_port) == ("informant", 10302, 9500)
    assert after.identity != before.identity


class TestStartedAgain:
    """A machine that ended and is brought back: what others got meanwhile is theirs."""

    def again(self, world: World, permitted: dict[str, str]) -> tuple[str, str]:
        """Its machine ends, with this permit in its status; what the next run begins with."""
        old = world.store.get("VirtualMachine", "default", "web")
        world.store.replace_status({**old, "status": {**old["status"], "permitted": permitted}})
        world.machines.end(KEY)
        world.round()
        seen = world.status()["observed"]
        assert world.status()["machineID"] != old["status"]["machineID"]
        return seen["cpus"], seen["memory"]

    def test_it_begins_with_no_more_than_it_was_permitted(self, world: World) -> None:
        permit = {"cpus": "1250m", "memory": "768Mi", "givenBy": "server"}
        assert self.again(world, permit) == ("1250m", "768Mi")
        assert world.scalers.by_key[KEY].bounds == ScalingBounds(Resources(1000, GIB // 2), Resources(4000, 2 * GIB))

    def test_and_with_no_more_than_its_spec_says_and_no_less_than_its_least(self, world: World) -> None:
        assert self.again(world, {"cpus": "4", "memory": "2Gi", "givenBy": "server"}) == ("2", "1Gi")
        assert self.again(world, {"cpus": "10m", "memory": "2Mi", "givenBy": "server"}) == ("1", "512Mi")

    def test_in_whole_blocks(self, world: World) -> None:
        assert self.again(world, {"cpus": "2", "memory": "769Mi", "givenBy": "server"})[1] == "768Mi"

    @pytest.mark.parametrize(
        "permitted",
        [
            {"cpus": "1", "memory": "512Mi"},  # no server has given it
            {"givenBy": "server"},
        ],
    )
    def test_what_is_no_permit_changes_nothing(self, world: World, permitted: dict[str, str]) -> None:
        assert self.again(world, permitted) == ("2", "1Gi")


def test_bounds_are_those_that_it_was_started_with_room_for(world: World) -> None:
    world.apply(cpu={"min": "500m", "max": 8}, memory={"min": "512Mi", "max": "1Gi"})
    world.round()
    assert world.scalers.by_key[KEY].bounds == ScalingBounds(Resources(1000, GIB // 2), Resources(4000, GIB))
    assert world.status()["reason"] == "RestartNeeded"


def test_what_it_should_have_and_why_it_has_not_stands_in_its_status(world: World) -> None:
    world.scalers.reports[KEY] = report(Resources(2500, 2 * GIB), StuckReason("PermitShort", "the node has no room"))
    world.round()
    status = world.status()
    assert (status["wanted"], status["observed"]) == (
        {"cpus": "2500m", "memory": "2Gi"},
        {"cpus": "2", "memory": "1Gi"},
    )
    assert (status["reason"], status["message"]) == ("PermitShort", "the node has no room")
    assert "permitted" not in status, "the server of permits writes that"
    world.scalers.reports[KEY] = report(Resources(2000, GIB))
    world.round()
    assert "reason" not in world.status()


SERVER = "http://10.0.0.3:10299/"


def asks_another_program(world: World) -> None:
    """Permits are another program's from now on."""
    world.scalers.settings = replace(world.scalers.settings, permits=SERVER)


def test_what_another_programs_server_permits_is_written_by_the_agents_node(world: World) -> None:
    asks_another_program(world)
    run = world.status()["machineID"]
    world.scalers.reports[KEY] = report(Resources(2500, 2 * GIB))
    world.round()
    given = {"cpus": "2", "memory": "1Gi", "givenBy": SERVER, "machineID": run}
    assert world.status()["permitted"] == given
    world.scalers.reports[KEY] = replace(report(Resources(2500, 2 * GIB)), permitted=Resources(2500, 2 * GIB))
    world.round()
    assert world.status()["permitted"] == {**given, "cpus": "2500m", "memory": "2Gi"}
    # An agent that begins anew knows no permit yet: the last one holds.
    world.scalers.reports[KEY] = replace(report(Resources(2500, 2 * GIB)), permitted=None)
    world.round()
    assert world.status()["permitted"] == {**given, "cpus": "2500m", "memory": "2Gi"}


def test_a_permit_that_a_server_wrote_itself_stays_the_servers(world: World) -> None:
    asks_another_program(world)
    old = world.store.get("VirtualMachine", "default", "web")
    own = {"cpus": "3", "memory": "2Gi", "givenBy": "s-1", "machineID": world.status()["machineID"]}
    world.store.replace_status({**old, "status": {**old["status"], "permitted": own}})
    world.scalers.reports[KEY] = report(Resources(2500, 2 * GIB))
    world.round()
    assert world.status()["permitted"] == own


def test_the_agent_learns_by_which_pod_others_know_the_machine(world: World) -> None:
    assert world.scalers.by_key[KEY].runner_pod == ""
    before = world.scalers.by_key[KEY].identity
    for name, pod in (("web-x7k2p", "web-x7k2p"), ("elsewhere/web-x7k2p", "")):
        old = world.store.get("VirtualMachine", "default", "web")
        world.store.replace_status({**old, "status": {**old["status"], "runnerPod": name}})
        world.round()
        assert world.scalers.by_key[KEY].runner_pod == pod
        assert world.status()["runnerPod"] == name, "another process writes it"
        assert (world.scalers.by_key[KEY].identity == before) is (pod == "")


@pytest.mark.parametrize(
    ("says", "expected"),
    [
        (GuestReport(2, 2000 * 2**20), {"cpus": "2", "memory": "2000Mi"}),
        (GuestReport(None, GIB), {"memory": "1Gi"}),
        (None, None),
    ],
)
def test_what_its_guest_says_stands_beside_what_it_has(
    world: World, says: GuestReport | None, expected: dict[str, str] | None
) -> None:
    world.scalers.reports[KEY] = replace(report(Resources(2000, GIB)), guest=GuestReport(1, GIB))
    world.round()
    world.scalers.reports[KEY] = replace(report(Resources(2000, GIB)), guest=says)
    world.round()
    assert world.status().get("guestObserved") == expected
    world.apply(running=False)
    world.round()
    assert "guestObserved" not in world.status(), "nothing is reported of a guest that is gone"


def test_a_new_report_is_written_at_once_though_nothing_else_changed(world: World) -> None:
    world.now -= 399.0  # no round is due by its time
    world.scalers.reports[KEY] = report(Resources(3000, GIB))
    world.round()
    assert world.status()["wanted"]["cpus"] == "3"


def test_a_qemu_that_is_silent_for_a_moment_is_scaled_on(world: World) -> None:
    there = world.machines.views[KEY]
    world.machines.views[KEY] = replace(there, state=State.SILENT, reason="MonitorSilent")
    world.round()
    assert KEY in world.scalers.by_key
    world.machines.views[KEY] = there
    world.round()
    assert KEY in world.scalers.by_key


@pytest.mark.parametrize("how", ["stopped", "ended", "not scaled", "deleted", "of another node"])
def test_it_is_left_as_soon_as_it_is_not_to_be_scaled(world: World, how: str) -> None:
    old = world.store.get("VirtualMachine", "default", "web")
    match how:
        case "stopped":
            world.apply(running=False)
        case "ended":
            world.machines.end(KEY)
            world.machines.fail.add("start")
        case "not scaled":
            world.store.replace({**old, "spec": {k: v for k, v in old["spec"].items() if k != "scaling"}})
        case "deleted":
            world.store.delete("VirtualMachine", "default", "web")
        case _:
            world.apply(nodeName="node-b")
    world.round()
    assert not world.scalers.by_key


def test_no_scaler_connects_to_an_address_that_no_guest_can_have(world: World) -> None:
    world.scalers.settings = replace(ScalingSettings(), guests=(ip_network("192.168.7.0/24"),))
    world.round()
    assert not world.scalers.by_key
    assert world.status()["reason"] == "GuestElsewhere"
    assert "nor in a network of this node's guests (192.168.7.0/24)" in world.status()["message"]


@pytest.mark.parametrize(
    ("way", "guests", "words"),
    [
        (Route("tap9", is_tap=True), (), None),
        (Route("tap9", is_tap=True, by_gateway=True), (), "not behind a TAP interface of the machine"),
        (Route("tap8", is_tap=True), ("10.0.0.0/8",), "is behind the TAP interface of another machine"),
        (Route("eth0"), (), "not behind a TAP interface of the machine"),
        (Route("eth0"), ("10.0.0.0/8",), None),
        (Route("lo", is_own=True), ("10.0.0.0/8",), "belongs to this node, not to a guest"),
        (Route(None), (), r"\(none\)"),
    ],
)
def test_the_plugin_is_sent_to_guests_of_its_own_node_only(
    world: World, way: Route, guests: tuple[str, ...], words: str | None
) -> None:
    world.scalers.way = way
    world.scalers.settings = ScalingSettings(guests=tuple(ip_network(each) for each in guests))
    vm_of = machine_of(vm("web", scaling=HERE, nics=[{"backend": "tap", "interface": "tap9"}, {"backend": "warm"}]))
    assert vm_of.spec.scaling is not None
    machine = MachineView("default/web", "uid", State.RUNNING, started=spec_of(vm_of))
    if words is None:
        assert scaled_machine(vm_of, vm_of.spec.scaling, machine, world.scalers).address == "10.0.0.5"
        return
    with raises(Denied, "GuestElsewhere", retryable=False, match=words):
        scaled_machine(vm_of, vm_of.spec.scaling, machine, world.scalers)


def test_the_guest_of_a_warm_setup_is_where_the_network_of_setups_has_it(world: World) -> None:
    world.scalers.way, world.scalers.settings = Route("devalloc0"), ScalingSettings()
    machine = MachineView("default/web", "uid", State.RUNNING, network_address="10.88.0.2")

    def address(scaling: dict[str, object], machine: MachineView) -> str:
        vm_of = machine_of(vm("web", scaling=scaling, nics=[{"backend": "warm"}]))
        assert vm_of.spec.scaling is not None
        return scaled_machine(vm_of, vm_of.spec.scaling, machine, world.scalers).address

    assert address({}, machine) == address({"address": "10.88.0.2"}, machine) == "10.88.0.2"
    with pytest.raises(Denied, match=r"10\.88\.0\.3 is not behind a TAP interface of the machine"):
        address({"address": "10.88.0.3"}, machine)  # of another setup
    with raises(Denied, "GuestElsewhere", retryable=True, match=r"scaling.address is missing.*--warm-network"):
        address({}, replace(machine, network_address=""))

    def fail(address: str) -> Route:
        raise OSError(105, "No buffer space available")

    world.scalers.way_to = fail  # type: ignore[method-assign]
    with raises(
        Denied, "GuestElsewhere", retryable=True, match=r"cannot find the route to scaling\.address.*No buffer space"
    ):
        address({"address": "10.88.0.3"}, machine)


def test_the_tap_interface_of_a_warm_setup_is_not_the_one_of_its_name_on_the_host(world: World) -> None:
    world.scalers.way, world.scalers.settings = Route("tap0", is_tap=True), ScalingSettings()
    vm_of = machine_of(vm("web", scaling=HERE, nics=[{"backend": "warm"}]))
    assert vm_of.spec.scaling is not None
    machine = MachineView("default/web", "uid", State.RUNNING, started=spec_of(vm_of))
    with pytest.raises(Denied, match="of another machine"):
        scaled_machine(vm_of, vm_of.spec.scaling, machine, world.scalers)


def test_ipv4_in_other_words_is_in_no_network() -> None:
    everywhere = ScalingSettings(guests=(ip_network("::/0"), ip_network("0.0.0.0/0")))
    assert everywhere.reaches("10.0.0.1")
    assert not everywhere.reaches("::ffff:10.0.0.1")
    assert not ScalingSettings().reaches("10.0.0.1"), "there are no guest networks by default"


def _permit(world: World, cpus: str, memory: str) -> None:
    """Stands where the server of permits is."""
    old = world.store.get("VirtualMachine", "default", "web")
    permit = {"cpus": cpus, "memory": memory, "givenBy": "server", "machineID": old["status"]["machineID"]}
    world.store.replace_status({**old, "status": {**old["status"], "permitted": permit}})


def test_without_a_scaler_it_gets_no_more_than_its_last_permit(world: World) -> None:
    world.loop = world.new_loop()
    _permit(world, "3", "1Gi")
    world.apply(cpu={"min": 1, "max": 4, "use": 4}, memory={"min": "512Mi", "max": "2Gi", "use": "2Gi"})
    world.round()
    assert world.status()["observed"] == {"cpus": "3", "memory": "1Gi"}
    assert world.status()["reason"] == "ScalingOff"


def test_and_what_it_does_not_use_of_its_permit_is_given_back(world: World) -> None:
    assert world.status()["observed"] == {"cpus": "2", "memory": "1Gi"}
    _permit(world, "4", "2Gi")
    world.round()
    assert world.status()["permitted"]["cpus"] == "4", "who scales it gives it back"
    world.loop = world.new_loop()
    world.round()
    assert {**world.status()["permitted"], "machineID": ""} == {
        "cpus": "2",
        "memory": "1Gi",
        "givenBy": "server",
        "machineID": "",
    }


def test_cpu_time_beyond_what_its_cpus_can_use_is_nothing_that_it_was_given(world: World) -> None:
    there = world.machines.views[KEY]
    world.machines.views[KEY] = replace(there, applied=replace(there.applied, cpu_milli=4000))
    world.round()
    assert world.status()["applied"]["cpus"] == "2"


def test_without_a_scaler_it_has_what_its_spec_says_with_a_reason(world: World) -> None:
    world.loop = world.new_loop()
    world.apply(cpu={"min": 1, "max": 4, "use": 3})
    world.round()
    assert world.status()["observed"]["cpus"] == "3"
    assert world.status()["reason"] == "ScalingOff"


class TestBody:
    @pytest.mark.parametrize(
        ("has", "target", "expected"),
        [
            (MachineAmounts(1000, 1, GIB), Resources(1000, GIB), []),
            (
                MachineAmounts(1000, 1, GIB),
                Resources(2000, 2 * GIB),
                [("memory", 2 * GIB), ("cpu", 2000), ("vcpus", 2)],
            ),
            (MachineAmounts(1000, 1, GIB), Resources(1250, GIB), [("cpu", 1250), ("vcpus", 2)]),
            (MachineAmounts(2000, 2, 2 * GIB), Resources(1000, GIB), [("memory", GIB), ("cpu", 1000), ("vcpus", 1)]),
            (MachineAmounts(1250, 2, GIB), Resources(2000, GIB), [("cpu", 2000)]),
            (MachineAmounts(1500, 2, GIB), Resources(1250, GIB), [("cpu", 1250)]),
        ],
    )
    def test_memory_first_then_the_bound_of_its_time_and_then_its_cpus(
        self, has: MachineAmounts, target: Resources, expected: list[tuple[str, int]]
    ) -> None:
        assert list(scaling_steps(has, target, spec_of(machine_of(vm())))) == expected

    @given(st.integers(0, 4 * GIB), st.sampled_from(sorted(BY_METHOD)))
    def test_memory_is_the_most_that_can_be_made_and_is_not_more(self, amount: int, method: str) -> None:
        spec = BY_METHOD[method]
        made, block = memory_rounded_down(amount, spec), spec.dimm_bytes or MEMORY_BLOCK
        assert (made - GIB // 2) % block == 0
        assert made == GIB // 2 or amount - block < made <= amount

    def change(self, world: World, target: Resources) -> Resources:
        came = asyncio.run(self.body(world).change(target))
        return came.reached if isinstance(came, ChangeRefused) else came

    def body(self, world: World, **changed: str) -> MachineActuator:
        uid = world.store.get("VirtualMachine", "default", "web")["metadata"]["uid"]
        names = {"owner": uid, "run": world.machines.views[KEY].id, **changed}
        return MachineActuator(world.operations, KEY, executors=self.executors, **names)

    @pytest.fixture(autouse=True)
    def with_lanes(self) -> Iterator[None]:
        self.executors = MachineExecutors(2)
        yield
        self.executors.close()

    def test_it_never_changes_another_run_of_the_machine(self, world: World) -> None:
        body = self.body(world, run="run-before")
        with pytest.raises(Denied, match="machine default/web has been restarted"):
            asyncio.run(body.change(Resources(3000, GIB)))
        with pytest.raises(Denied):
            asyncio.run(body.look())
        assert "scale default/web" not in world.machines.calls

    def test_nor_does_it_go_on_with_another_run(self, world: World) -> None:
        body, scale = self.body(world), world.machines.scale

        def restarts(key: str, what: str, amount: int, deadline: Deadline) -> None:
            scale(key, what, amount, deadline)
            world.machines.views[KEY] = replace(world.machines.views[KEY], id="another run")

        world.machines.scale = restarts  # type: ignore[method-assign]
        with pytest.raises(Denied):
            asyncio.run(body.change(Resources(3000, 2 * GIB)))
        assert world.machines.calls.count("scale default/web") == 1

    def test_a_machine_is_changed_with_the_slow_ones_after_a_slow_change_until_one_is_quick(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        body, change, slow = self.body(world), self.executors.change, list[bool]()

        async def noted(key: str, work: Callable[[], Any], **how: bool) -> Any:
            slow.append(how["slow"])
            return await change(key, work, slow=how["slow"])

        monkeypatch.setattr(self.executors, "change", noted)
        for limit in (60.0, -1.0, 60.0, 60.0):
            monkeypatch.setattr(actuator, "SLOW_SECONDS", limit)
            asyncio.run(body.change(Resources(3000, 2 * GIB)))
        assert slow == [False, False, True, False]

    def test_a_look_does_not_wait_and_no_further_step_begins(self, world: World) -> None:
        body, scale = self.body(world), world.machines.scale
        going, go_on = threading.Event(), threading.Event()

        def slow(key: str, what: str, amount: int, deadline: Deadline) -> None:
            going.set()
            assert go_on.wait(60)
            scale(key, what, amount, deadline)

        world.machines.scale = slow  # type: ignore[method-assign]

        async def main() -> Resources:
            changing = asyncio.create_task(body.change(Resources(3000, 2 * GIB)))
            await asyncio.to_thread(going.wait, 30)
            changing.cancel()
            await asyncio.gather(changing, return_exceptions=True)
            looking = asyncio.create_task(self.body(world).look())
            await asyncio.sleep(0.05)
            assert not looking.done(), "what it has is not known before the change has ended"
            go_on.set()
            return await looking

        assert asyncio.run(main()) == Resources(2000, 2 * GIB)
        assert world.machines.calls.count("scale default/web") == 1

    def test_what_it_has_then_is_read_back(self, world: World) -> None:
        assert self.change(world, Resources(3000, 2 * GIB)) == Resources(3000, 2 * GIB)
        assert world.machines.views[KEY].observed.memory_bytes == 2 * GIB

    def test_a_guest_that_refuses_is_no_failure(self, world: World) -> None:
        world.machines.stubborn.add(KEY)
        assert self.change(world, Resources(1000, GIB // 2)) == Resources(2000, GIB)

    def test_a_machine_without_its_own_cgroup_has_whole_cpus_within_its_permit(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scale = world.machines.scale

        def without_cgroup(key: str, what: str, amount: int, deadline: Deadline) -> None:
            if what == "cpu":
                raise Denied("CgroupShared", "it has no cgroup of its own")
            scale(key, what, amount, deadline)

        monkeypatch.setattr(world.machines, "scale", without_cgroup)
        assert self.change(world, Resources(3250, GIB)) == Resources(3000, GIB)
        assert self.change(world, Resources(1750, GIB)) == Resources(1000, GIB)

    @pytest.mark.parametrize(
        ("amount", "code", "retryable", "most_cpu"),
        [
            ("vcpus", "CpusEmulated", False, 2000),
            ("vcpus", "CpuSlotsExhausted", False, 2000),
            ("vcpus", "HostFull", True, None),
            ("memory", "GuestRefused", True, None),
        ],
    )
    def test_a_change_that_fell_short_has_its_cause_and_whether_it_is_permanent(
        self,
        world: World,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        amount: str,
        code: str,
        retryable: bool,
        most_cpu: int | None,
    ) -> None:
        scale = world.machines.scale

        def refuses(key: str, what: str, goal: int, deadline: Deadline) -> None:
            if what == amount:
                raise Denied(code, "there is a cause", retryable=retryable)
            if what != "cpu":  # time that its CPUs cannot use is not seen
                scale(key, what, goal, deadline)

        monkeypatch.setattr(world.machines, "scale", refuses)
        body = self.body(world)
        for _ in range(3):
            came = asyncio.run(body.change(Resources(3000, 2 * GIB)))
        assert isinstance(came, ChangeRefused)
        assert (came.code, came.why, came.max_cpu) == (code, "there is a cause", most_cpu)
        assert caplog.text.count("there is a cause") == 1

    def test_a_change_that_failed_raises(self, world: World) -> None:
        world.machines.fail.add("scale")
        with pytest.raises(Failed, match="cannot scale"):
            self.change(world, Resources(3000, GIB))

    def test_it_never_changes_another_machine_of_the_same_name(self, world: World) -> None:
        world.machines.views[KEY] = replace(world.machines.views[KEY], uid="another")
        with pytest.raises(Denied):
            self.change(world, Resources(3000, GIB))

    def test_what_qemu_was_asked_for_and_has_not_got_yet_counts(self, world: World) -> None:
        there = world.machines.views[KEY]
        world.machines.views[KEY] = replace(there, applied=replace(there.applied, memory_bytes=2 * GIB))
        assert asyncio.run(self.body(world).look()) == Resources(2000, 2 * GIB)
