"""How devices are: seen, told to listeners and on claims, withheld while they are unwell, and taken back when well."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devalloc.api.decode import decode
from devalloc.controller.reconcile.device_claims import DeviceClaimAllocator
from devalloc.inventory.config import DeviceRecords, InventoryConfig
from devalloc.inventory.discover import discover
from devalloc.inventory.sysfs import Tree
from devalloc.store.sqlite import SQLiteStore
from devalloc_node.binding.binding import BindingConfig, HealthState
from devalloc_node.binding.registry import Bindings
from devalloc_node.claims.journal_content import backing_devices
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.health.conditions import ClaimConditions
from devalloc_node.health.watch import (
    ERROR_SECONDS,
    DeviceHealth,
    HealthWatch,
    ObservedDevice,
    PcieErrorCounter,
    devices_to_observe,
)
from devalloc_node.model.grant import ClaimRef
from devalloc_node.model.step import Prepared, PreparedDevice
from tests.support import pci_cards
from tests.support.fake_host import FakeHost, LocalHost
from tests.support.fake_sysfs import FakeSysfs
from tests.support.fleet_manifests import fill, gpu_claim, gpu_class, gpu_pool
from tests.support.virtual_time import Clock
from tests.support.waiting import in_threads

REF = ClaimRef("default", "a", "uid")
WELL = HealthState("healthy")
SICK = HealthState("unhealthy", "it does not answer")


class Ward:
    """Devices d0, d1 … of pool p, as the test has them."""

    def __init__(self, *states: HealthState | Exception) -> None:
        self.states = list(states)
        self.reported: list[DeviceHealth] = []
        self.clock = Clock(1000.0)
        self.watch = HealthWatch(self.subjects, on_change=self.reported.extend, clock=self.clock)

    def subjects(self) -> Iterator[ObservedDevice]:
        for number, state in enumerate(self.states):
            yield ObservedDevice("p", f"d{number}", self.look(state))

    @staticmethod
    def look(state: HealthState | Exception) -> Callable[[], HealthState]:
        def look() -> HealthState:
            if isinstance(state, Exception):
                raise state
            return state

        return look

    def states_reported(self) -> list[tuple[str, str]]:
        states = [(each.device, each.health.state) for each in self.reported]
        self.reported.clear()
        return states


class TestWatching:
    def test_a_change_of_health_is_reported_once_and_recorded_with_its_time(self) -> None:
        ward = Ward(WELL, SICK)
        ward.watch.look()
        assert ward.states_reported() == [("d0", "healthy"), ("d1", "unhealthy")]
        first = ward.watch.snapshot()
        ward.clock.now += 5
        ward.watch.look()
        again = ward.watch.snapshot()
        assert (ward.states_reported(), again.version) == ([], first.version)
        assert [(each.device, each.seen) for each in again.devices] == [("d0", 1005.0), ("d1", 1005.0)]
        seen = ward.watch.observed("p", "d1")
        assert seen is not None
        assert (seen.since, seen.seen) == (1000.0, 1005.0)

    def test_the_unwell_are_withheld_until_they_are_well(self) -> None:
        ward = Ward(SICK, Failed("NoAnswer", "no answer"), OSError("no entry"))
        ward.watch.look()
        assert ward.watch.unhealthy() == {"d0": "unhealthy: it does not answer"}, "the unknown are not"
        assert ward.states_reported() == [("d0", "unhealthy"), ("d1", "unknown"), ("d2", "unknown")]
        ward.states[0] = WELL
        ward.watch.look()
        assert (ward.watch.unhealthy(), ward.states_reported()) == ({}, [("d0", "healthy")])

    def test_another_message_is_news_too(self) -> None:
        ward = Ward(SICK)
        ward.watch.look()
        before = ward.watch.snapshot().version
        ward.states[0] = HealthState("unhealthy", "it is gone")
        ward.watch.look()
        assert ward.watch.snapshot().version > before

    def test_a_device_that_goes_is_reported_unknown_and_forgotten(self) -> None:
        ward = Ward(WELL, SICK)
        ward.watch.look()
        ward.states_reported()
        ward.states.pop()
        ward.watch.look()
        assert ward.states_reported() == [("d1", "unknown")]
        assert [each.device for each in ward.watch.snapshot().devices] == ["d0"]
        assert ward.watch.unhealthy() == {}

    def test_only_a_change_wakes_a_waiter(self) -> None:
        ward = Ward(WELL)
        ward.watch.look()
        version = ward.watch.snapshot().version
        assert not ward.watch.wait(version, 0.01)
        woken: list[bool] = []
        listener = threading.Thread(target=lambda: woken.append(ward.watch.wait(version, 30)))
        listener.start()
        ward.states[0] = SICK
        ward.watch.look()
        listener.join(60)
        assert woken == [True]

    def test_the_loop_looks_when_it_is_poked_and_survives_what_it_meets(self) -> None:
        looks = threading.Semaphore(0)
        fail = threading.Event()

        def look_at_all() -> list[ObservedDevice]:
            looks.release()
            if fail.is_set():
                raise RuntimeError("no journal")
            return [ObservedDevice("p", "d0", lambda: WELL)]

        def fail_always(changed: object) -> None:
            raise RuntimeError("no listener")

        watch = HealthWatch(look_at_all, interval=1000, on_change=fail_always)
        with in_threads(watch.run):
            assert looks.acquire(timeout=30)
            fail.set()
            for _ in range(2):
                watch.poke()
                assert looks.acquire(timeout=30)
        assert [each.health for each in watch.snapshot().devices] == [WELL]


NIC = "0000:41:00.0"
VF = "0000:41:10.0"


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    fake = FakeHost(tmp_path)
    fake.add(pci_cards.nic(NIC, vfs=2))
    return fake


class Node:
    """What looks at a host's devices, and the pools it publishes."""

    def __init__(self, host: FakeHost, *prepared: Prepared) -> None:
        self.host = host
        self.prepared = list(prepared)
        self.clock = Clock(1000.0)
        self.errors = PcieErrorCounter(self.clock)
        self.bindings = Bindings(LocalHost(host), BindingConfig(node_name="n"))
        self.pools = discover(host.root, node_name="n").pools
        self.watch = HealthWatch(self.subjects)

    def subjects(self) -> Iterator[ObservedDevice]:
        return devices_to_observe(
            lambda: Tree(self.host.root), self.bindings.observe, self.prepared, self.pools, self.errors
        )

    def states(self) -> dict[str, str]:
        self.watch.look()
        return {each.device: each.health.state for each in self.watch.snapshot().devices}

    def unhealthy(self) -> dict[str, str]:
        self.watch.look()
        return self.watch.unhealthy()


def bound(host: FakeSysfs, address: str = VF) -> Prepared:
    """The VF, bound to VFIO, as a claim has it."""
    driver = host.driver_of(address)
    if driver:
        host.unbind(driver, address)
    host.set_override(address, "vfio-pci")
    host.probe(address)
    name = address.replace(":", "-").replace(".", "-")
    node = f"/dev/vfio/{host.functions[address].group}"
    return Prepared(REF, (PreparedDevice(("0",), "n-0000-41-00", name, "vfio", (address,), nodes=(node,)),))


class TestDevicesOfAHost:
    def test_all_published_devices_are_well_at_first(self, host: FakeHost) -> None:
        node = Node(host)
        states = node.states()
        assert set(states) == {device.name for pool in node.pools for device in pool.spec.devices}
        assert set(states.values()) == {"healthy"}

    def test_a_prepared_device_that_changes_driver_is_unwell_and_recovers(self, host: FakeHost) -> None:
        node = Node(host, bound(host))
        assert node.unhealthy() == {}
        host.unbind("vfio-pci", VF)
        assert node.unhealthy() == {"0000-41-10-0": f"unhealthy: {VF} has the driver none now, not a VFIO driver"}
        host.probe(VF)
        assert node.unhealthy() == {}

    def test_a_vanished_device_is_unhealthy_though_no_pool_has_it(self, host: FakeHost) -> None:
        node = Node(host, bound(host))
        host.unbind("vfio-pci", VF)
        host.set_numvfs(NIC, 0)
        node.pools = discover(host.root, node_name="n").pools
        assert node.unhealthy()["0000-41-10-0"] == f"unhealthy: {VF} no longer exists"

    def test_a_device_that_fell_off_the_bus_is_unhealthy_prepared_or_not(self, host: FakeHost) -> None:
        node = Node(host)
        host.config(host.path(VF), host.functions[VF].spec, gone=True)
        assert node.unhealthy() == {
            "0000-41-10-0": f"unhealthy: {VF} does not respond: its configuration space reads as all ones"
        }

    def test_vfs_to_be_created_are_as_well_as_their_port(self, tmp_path: Path) -> None:
        host = FakeHost(tmp_path / "none")
        host.add(pci_cards.nic(NIC))
        node = Node(host)
        assert set(node.states().values()) == {"healthy"}
        host.config(host.path(NIC), host.functions[NIC].spec, gone=True)
        assert set(node.states().values()) == {"unhealthy"}

    def test_vfs_that_went_with_their_last_user_are_as_well_as_their_port(self, host: FakeHost) -> None:
        node = Node(host)
        assert VF in {a.value for pool in node.pools for device in pool.spec.devices for a in device.attributes}
        host.set_numvfs(NIC, 0)
        assert node.unhealthy() == {}, "they can be created again, also before that is published"
        host.config(host.path(NIC), host.functions[NIC].spec, gone=True)
        assert set(node.states().values()) == {"unhealthy"}

    def test_a_fatal_error_of_the_link_counts_for_a_while(self, host: FakeHost) -> None:
        node = Node(host, bound(host))

        def count(errors: int) -> None:
            host.write(f"{host.path(VF)}/aer_dev_fatal", f"Undefined 0\nDLP {errors}\nTOTAL_ERR_FATAL {errors}\n")

        count(3)
        assert node.unhealthy() == {}, "the time of it is unknown"
        count(4)
        assert "fatal errors on its link" in node.unhealthy()["0000-41-10-0"]
        node.clock.now += ERROR_SECONDS
        assert node.unhealthy() == {}

    def test_an_unhealthy_device_is_not_offered(self, host: FakeHost) -> None:
        node = Node(host, bound(host))
        host.unbind("vfio-pci", VF)
        made = frozenset({"0000-41-00-0"})
        devices = DeviceRecords(frozenset({"0000-41-10-0"}), backing_devices(node.prepared), node.unhealthy(), made)
        (pool,) = discover(host.root, node_name="n", config=InventoryConfig(records=devices)).pools
        withheld = [d.name for d in pool.spec.devices if any(a.name == "devalloc.io/unavailable" for a in d.attributes)]
        assert withheld == ["0000-41-10-0"]


def test_what_stands_behind_a_device_is_called_as_the_inventory_calls_it() -> None:
    uuid = "aa618089-8b16-4d01-a136-25a0f3c73123"
    devices = (
        PreparedDevice(("0",), "p", "0000-08-00-4-nvidia-746", "mdev", ("0000:08:00.5",), mdev_uuid=uuid),
        PreparedDevice(("0",), "p", "0000-26-00-4", "none", ("0000:26:00.4",), admin=True),
    )
    assert backing_devices([Prepared(REF, devices)]) == {
        "0000-08-00-4-nvidia-746": frozenset({"0000-08-00-5", f"mdev-{uuid}"})
    }


class TestClaims:
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[SQLiteStore]:
        with closing(SQLiteStore(tmp_path / "devalloc.db")) as opened:
            fill(opened, gpu_pool(devices=1), gpu_class(), gpu_claim("a"))
            DeviceClaimAllocator(opened).round()
            yield opened

    def conditions(self, store: SQLiteStore) -> dict[str, tuple[str, str]]:
        statuses = store.get("DeviceClaim", "default", "a")["status"].get("deviceStatuses", [])
        return {c["type"]: (c["status"], c["message"]) for each in statuses for c in each["conditions"]}

    def test_say_how_their_devices_are_while_they_are_prepared(self, store: SQLiteStore) -> None:
        ref = ClaimRef("default", "a", store.get("DeviceClaim", "default", "a")["metadata"]["uid"])
        prepared = [Prepared(ref, (PreparedDevice(("0",), "p", "d0", "vfio", (VF,)),))]
        ward, statuses = Ward(WELL), ClaimConditions(store, "n")
        ward.watch.look()
        statuses.update(prepared, ward.watch.snapshot())
        assert self.conditions(store) == {"Ready": ("True", f"vfio: {VF}"), "Healthy": ("True", "")}
        before = store.list()
        statuses.update(prepared, ward.watch.snapshot())
        assert store.list() == before
        ward.states[0] = SICK
        ward.watch.look()
        statuses.update(prepared, ward.watch.snapshot())
        assert self.conditions(store)["Healthy"] == ("False", "it does not answer")
        statuses.update([], ward.watch.snapshot())
        assert self.conditions(store)["Ready"] == ("False", "")

    @pytest.mark.parametrize(
        ("error", "writes"), [(Denied("ClaimNotFound", "gone"), 1), (Failed("StoreUnavailable", "down"), 2)]
    )
    def test_are_not_written_again_where_there_is_no_object_to_write_to(
        self, error: NodeError, writes: int, store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A claim that is gone gets none; a store that does not answer gets them later."""
        prepared = [Prepared(ClaimRef("default", "b", "uid"), (PreparedDevice(("0",), "p", "d0", "vfio", (VF,)),))]
        calls: list[ClaimRef] = []

        def refuse(store: object, ref: ClaimRef, *conditions: object) -> None:
            calls.append(ref)
            raise error

        monkeypatch.setattr("devalloc_node.health.conditions.set_device_statuses", refuse)
        ward, statuses = Ward(WELL), ClaimConditions(store, "n")
        for _ in range(2):
            statuses.update(prepared, ward.watch.snapshot())
        assert len(calls) == writes

    def test_do_not_stay_ready_when_a_reboot_or_another_instance_undid_it(self, store: SQLiteStore) -> None:
        ref = ClaimRef("default", "a", store.get("DeviceClaim", "default", "a")["metadata"]["uid"])
        prepared = [Prepared(ref, (PreparedDevice(("0",), "p", "d0", "vfio", (VF,)),))]
        ward = Ward(SICK)
        ward.watch.look()
        ClaimConditions(store, "n").update(prepared, ward.watch.snapshot())
        before = store.list()
        ClaimConditions(store, "another").update([], ward.watch.snapshot())
        ClaimConditions(store, "n").update(prepared, ward.watch.snapshot())
        assert store.list() == before
        ClaimConditions(store, "n").update([], ward.watch.snapshot())
        assert self.conditions(store) == {"Ready": ("False", ""), "Healthy": ("Unknown", "")}

    def status(self, store: SQLiteStore) -> dict[str, Any]:
        (only,) = store.get("DeviceClaim", "default", "a")["status"]["deviceStatuses"]
        return {name: value for name, value in only.items() if name != "conditions"}

    def test_say_what_they_are_on_the_host_until_they_are_unprepared(self, store: SQLiteStore) -> None:
        claim = store.get("DeviceClaim", "default", "a")
        amount = [{"name": "memory", "allocation": "2Gi"}, {"name": "slots", "allocation": "1"}]
        entry = {"devicePoolName": "p", "deviceName": "d0"}
        shares = [{**entry, "allocations": amount}, {**entry, "allocations": amount[:1]}]
        store.replace_status({**claim, "status": {**claim["status"], "allocations": shares}})
        vf = PreparedDevice(
            ("0",),
            "p",
            "d0",
            "vfio",
            (VF,),
            nodes=("/dev/vfio/15",),
            attributes={"mac": "02:00:00:12:34:57", "vlan": 7, "resource.kubernetes.io/numaNode": 1},
            share="0",
        )
        ref = ClaimRef("default", "a", claim["metadata"]["uid"])
        prepared, checkup = [Prepared(ref, (vf, replace(vf, share="1")))], Ward().watch.snapshot()
        ClaimConditions(store, "n").update(prepared, checkup)
        info = {
            "binding": "vfio",
            "functions": [VF],
            "nodes": ["/dev/vfio/15"],
            "iommuGroups": [15],
            "vlan": 7,
            "attributes": {"resource.kubernetes.io/numaNode": 1},
            "hardwareAddress": "02:00:00:12:34:57",
        }
        named = {"devicePoolName": "p", "deviceName": "d0"}
        assert self.status(store) == named | {
            "deviceInfo": [{"share": "0", **info}, {"share": "1", **info}],
            "allocations": [{"name": "memory", "allocation": "4Gi"}, {"name": "slots", "allocation": "1"}],
        }
        assert not [each for each in decode(store.get("DeviceClaim", "default", "a")).problems if each.is_error]
        # A network's addresses stay beside it, also for an instance that starts anew and finds nothing to write.
        claim = store.get("DeviceClaim", "default", "a")
        (device,) = claim["status"]["deviceStatuses"]
        written = {**device, "deviceIP": "10.0.0.7", "deviceIPs": [{"ip": "10.0.0.7"}]}
        store.replace_status({**claim, "status": {**claim["status"], "deviceStatuses": [written]}})
        before, statuses = store.list(), ClaimConditions(store, "n")
        statuses.update(prepared, checkup)
        assert store.list() == before
        ward = Ward(SICK)
        ward.watch.look()
        statuses.update(prepared, ward.watch.snapshot())
        assert self.status(store)["deviceIPs"] == [{"ip": "10.0.0.7"}]
        statuses.update([], checkup)
        assert self.status(store) == named

    def test_what_an_older_version_left_out_is_added(self, store: SQLiteStore) -> None:
        ref = ClaimRef("default", "a", store.get("DeviceClaim", "default", "a")["metadata"]["uid"])
        prepared = [Prepared(ref, (PreparedDevice(("0",), "p", "d0", "vfio", (VF,)),))]
        ClaimConditions(store, "n").update(prepared, Ward().watch.snapshot())
        claim = store.get("DeviceClaim", "default", "a")
        (device,) = claim["status"]["deviceStatuses"]
        older = {name: value for name, value in device.items() if name != "deviceInfo"}
        store.replace_status({**claim, "status": {**claim["status"], "deviceStatuses": [older]}})
        ClaimConditions(store, "n").update(prepared, Ward().watch.snapshot())
        assert self.status(store)["deviceInfo"] == [{"binding": "vfio", "functions": [VF]}]
        # And what is left of a claim that a reboot unprepared goes.
        ClaimConditions(store, "n").update([], Ward().watch.snapshot())
        assert "deviceInfo" not in self.status(store)

    def test_admin_access_has_nothing_behind_it(self, store: SQLiteStore) -> None:
        ref = ClaimRef("default", "a", store.get("DeviceClaim", "default", "a")["metadata"]["uid"])
        device = PreparedDevice(("0",), "p", "d0", "none", admin=True)
        ClaimConditions(store, "n").update([Prepared(ref, (device,))], Ward().watch.snapshot())
        assert self.status(store) == {"devicePoolName": "p", "deviceName": "d0"}

    def test_that_are_gone_or_of_another_dialect_are_passed_over(self, store: SQLiteStore) -> None:
        before = store.list()
        strangers = [Prepared(ClaimRef("default", name, "x"), ()) for name in ("a", "nobody")]
        statuses, checkup = ClaimConditions(store, "n"), Ward().watch.snapshot()
        statuses.update(strangers, checkup)
        statuses.update([], checkup)
        assert store.list() == before
