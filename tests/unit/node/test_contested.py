"""What others do to a device that a claim has: it stays as they made it, nothing of theirs is removed (T4, T8)."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from devalloc.inventory.sysfs import Tree
from devalloc_node.binding.checks import current_nodes
from devalloc_node.claims.journal_content import inventory_facts
from devalloc_node.claims.steps import ClaimWork
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, NodeError
from devalloc_node.model.grant import GrantedDevice
from devalloc_node.model.step import Step
from tests.support.binding_runner import BindingRunner
from tests.support.discovery_view import DiscoveredPools
from tests.support.fake_host import FakeHost
from tests.support.fake_tree import memory_folder
from tests.support.fault_points import FaultPoints, PluginLife
from tests.support.fault_scenarios import SCENARIOS
from tests.support.node_errors import raises
from tests.support.toy_host import EngineBench

PF, VF = "0000:41:00.0", "0000:41:10.0"
L40S_VF = "0000:26:00.4"


@contextmanager
def on(scenario: str) -> Iterator[tuple[FakeHost, PluginLife, FaultPoints]]:
    """A plugin with all bindings on the host of a scenario, whose claim is not prepared yet."""
    with memory_folder() as folder:
        faults = FaultPoints(SCENARIOS[scenario], Path(folder))
        with faults.life() as plugin:
            yield faults.outside.host, plugin, faults


def unclaimed(plugin: PluginLife) -> bool:
    return plugin.claims.describe() == {"claims": [], "shared": [], "withheld": []}


class TestDrivers:
    def test_a_card_that_the_host_took_back_is_not_taken_from_it_again(self) -> None:
        with on("whole-nic") as (host, plugin, faults):
            plugin.prepare(faults.uid)
            host.unbind("vfio-pci", PF)
            host.set_override(PF, "")
            host.probe(PF)
            host.default_route("eth0")
            host.events.clear()
            plugin.unprepare(faults.uid)
            assert host.driver_of(PF) == "igb"
            assert [event for event in host.events if event.action == "unbind"] == []
            assert unclaimed(plugin)

    def test_a_device_that_was_unbound_by_hand_is_still_reset_before_it_goes_back(self) -> None:
        with on("whole-nic") as (host, plugin, faults):
            before = host.snapshot()
            plugin.prepare(faults.uid)
            host.unbind("vfio-pci", PF)
            host.resets.clear()
            plugin.unprepare(faults.uid)
            assert host.resets == [PF]
            assert host.snapshot() == before

    def test_a_driver_that_was_chosen_since_stays(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "devalloc.audit")
        with on("whole-nic") as (host, plugin, faults):
            plugin.prepare(faults.uid)
            host.load_driver("uio_pci_generic")
            host.unbind("vfio-pci", PF)
            host.set_override(PF, "uio_pci_generic")
            host.probe(PF)
            plugin.unprepare(faults.uid)
            assert host.driver_of(PF) == "uio_pci_generic"
            assert unclaimed(plugin)
            events = [json.loads(record.getMessage()) for record in caplog.records if record.name == "devalloc.audit"]
            assert [event["kind"] for event in events if event["event"] == "left"] == ["driver"]

    @pytest.mark.parametrize("scenario", ["whole-nic", "vfio-with-audio", "vf-that-was-there", "vf-to-be-created"])
    def test_a_probe_of_all_devices_takes_none_in_between(self, scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
        with on(scenario) as (host, plugin, faults):
            before, unbind = host.snapshot(), host.unbind

            def and_probe(driver: str, address: str) -> None:
                unbind(driver, address)
                host.probe(address)

            monkeypatch.setattr(host, "unbind", and_probe)
            prepared = plugin.prepare(faults.uid)
            assert {host.driver_of(address) for each in prepared.devices for address in each.functions} == {"vfio-pci"}
            plugin.unprepare(faults.uid)
            assert host.snapshot() == before


class TestVfs:
    def test_removed_vfs_are_not_created_again(self) -> None:
        with on("vf-that-was-there") as (host, plugin, faults):
            plugin.prepare(faults.uid)
            host.set_numvfs(PF, 0)
            plugin.unprepare(faults.uid)
            assert host.functions[PF].vfs == []
            assert unclaimed(plugin)

    def test_vfs_that_others_created_since_stay(self) -> None:
        with on("vf-to-be-created") as (host, plugin, faults):
            plugin.prepare(faults.uid)
            host.set_numvfs(PF, 0)
            host.set_numvfs(PF, 4)
            plugin.unprepare(faults.uid)
            assert len(host.functions[PF].vfs) == 4
            assert unclaimed(plugin)

    def test_fewer_than_were_asked_for_are_removed_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A driver that gives up half-way made those for us."""
        with on("vf-to-be-created") as (host, plugin, faults):
            before, make = host.snapshot(), host.set_numvfs
            monkeypatch.setattr(host, "set_numvfs", lambda address, count: make(address, min(count, 3)))
            with pytest.raises(NodeError, match="has 3 VFs although 7 were requested"):
                plugin.prepare(faults.uid)
            assert host.snapshot() == before
            assert unclaimed(plugin)

    def test_settings_that_cannot_be_put_back_yet_withhold_the_vf_and_not_its_claim(self) -> None:
        """igb refuses to set a rate while the cable is out, and deleting a pod must not wait for a cable."""
        with on("vf-with-settings") as (host, plugin, faults):
            before = host.snapshot()
            (device,) = plugin.prepare(faults.uid).devices
            host.no_link.add("eth0")
            plugin.unprepare(faults.uid)
            assert plugin.claims.prepared() == []
            ((name, why),) = plugin.claims.withheld().items()
            assert name == f"{device.pool}/{device.device}"
            assert "setting maxTxRate to 0 of VF 1 of eth0 (a rate cannot exceed the link speed" in why
            with raises(Denied, "DeviceWithheld"):
                plugin.prepare(faults.uid)
            host.no_link.clear()
            plugin.reconciler.reconcile()
            assert plugin.claims.withheld() == {}
            assert host.snapshot() == before

    def test_the_number_of_a_group_that_went_is_not_the_claims_any_more(self) -> None:
        """Another device has it now, and its machine is no user of the claim's."""
        with on("vf-to-be-created") as (host, plugin, faults):
            (device,) = plugin.prepare(faults.uid).devices
            assert {node.path for node in current_nodes(Tree(host.root), device)} == set(device.nodes)
            host.set_numvfs(PF, 0)
            assert current_nodes(Tree(host.root), device) == set()

    def test_a_pf_whose_driver_went_has_nothing_left_to_undo(self) -> None:
        with on("vf-with-settings") as (host, plugin, faults):
            plugin.prepare(faults.uid)
            host.unbind("igb", PF)
            plugin.unprepare(faults.uid)
            assert host.driver_of(PF) is None
            assert unclaimed(plugin)

    def test_vfs_that_went_since_they_were_seen_are_not_made_as_a_side_effect(self) -> None:
        """The last user of the card let them go, while this claim had seen them and was no user yet."""
        with on("vf-that-was-there") as (host, plugin, _faults):
            hand = BindingRunner.on(host)
            granted = GrantedDevice((), "node-a-0000-41-00", "0000-41-10-0")
            binding = hand.bindings.choose(granted)
            steps = binding.prepare(granted, binding.keys(granted, "uid", ()), Deadline.after(5))
            shared = [next(steps)]
            assert [step.kind for step in shared] == ["vf-count"]
            host.set_numvfs(PF, 0)
            before = host.snapshot()
            with raises(Denied, "SharedDiffers", retryable=True, match="was 7 and is now 0"):
                plugin.claims.steps.perform(ClaimWork("uid"), "d", shared, Deadline.after(5))
            assert host.snapshot() == before
            assert unclaimed(plugin)

    def test_whether_new_vfs_get_drivers_is_nothing_to_who_has_one(self) -> None:
        """An admin has said so since the first claim of the card was prepared; both are prepared all the same."""
        with on("vf-beside-another-claim") as (host, plugin, faults):
            host.set_autoprobe(PF, True)
            plugin.prepare(faults.uid)
            plugin.unprepare(faults.uid)
            plugin.unprepare("0")
            assert unclaimed(plugin)
            assert host.read(host.path(PF, "sriov_numvfs")) == "0"

    def test_nor_is_a_vf_taken_from_a_driver_that_it_got_since_it_was_seen(self) -> None:
        with on("vf-that-was-there") as (host, plugin, _faults):
            hand = BindingRunner.on(host)
            granted = GrantedDevice((), "node-a-0000-41-00", "0000-41-10-0")
            binding = hand.bindings.choose(granted)
            steps = list(islice(binding.prepare(granted, binding.keys(granted, "uid", ()), Deadline.after(5)), 3))
            assert [step.kind for step in steps] == ["vf-count", "vf-settings", "driver"]
            host.unbind("igbvf", VF)
            before = host.snapshot()
            with raises(Denied, "SharedDiffers", retryable=True, match=r"driver of 0000:41:10\.0 was"):
                plugin.claims.steps.perform(ClaimWork("uid"), "d", steps, Deadline.after(5))
            assert host.snapshot() == before
            assert unclaimed(plugin)

    def test_they_are_made_for_the_claim_that_finds_them_gone_and_go_with_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with on("vf-that-was-there") as (host, plugin, faults):
            lock = plugin.claims.locks.shared

            def gone_meanwhile(name: str, deadline: Deadline, work: str) -> Any:
                monkeypatch.undo()
                host.set_numvfs(PF, 0)
                return lock(name, deadline, work)

            monkeypatch.setattr(plugin.claims.locks, "shared", gone_meanwhile)
            plugin.prepare(faults.uid)
            assert len(host.functions[PF].vfs) == 7
            plugin.unprepare(faults.uid)
            assert host.functions[PF].vfs == []
            assert unclaimed(plugin)


class TestVgpus:
    def test_a_vgpu_that_others_created_just_before_is_not_removed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with on("vgpu") as (host, plugin, faults):
            store = host.store
            theirs: list[str] = []

            def just_before(path: Any, text: str) -> None:
                if str(path).endswith("current_vgpu_type") and not theirs:
                    theirs.append("1150")
                    store(path, "1150")
                store(path, text)

            monkeypatch.setattr(host, "store", just_before)
            with pytest.raises(NodeError, match="EPERM"):
                plugin.prepare(faults.uid)
            assert theirs
            assert host.vgpu.current[L40S_VF].id == "1150"
            assert unclaimed(plugin)


def test_a_shared_step_that_is_done_anew_leaves_those_below_it(tmp_path: Path) -> None:
    bench = EngineBench(tmp_path / "node")
    ref = bench.add("a/slot-0")
    bench.claims.prepare(ref)
    for name, value in (("low", 1), ("high", 2), ("high", 3)):
        bench.claims.add(ref, Step("property", f"b-{name}", None, value, "card/b"))
    assert (bench.host.get("b-low"), bench.host.get("b-high")) == (1, 3)
    bench.claims.unprepare(ref)
    assert bench.is_initial()


class TestCardsOfVfs:
    """A card is offered whole only where its VFs go with the claims that have them."""

    @staticmethod
    def why_not(host: FakeHost, plugin: PluginLife) -> str | None:
        entries = inventory_facts(plugin.claims.journal)
        return DiscoveredPools.on(host.root, "n", made=entries.made, withheld=entries.withheld).unavailable(
            "0000-41-00-0"
        )

    def test_the_vfs_were_made_for_a_claim(self) -> None:
        with on("vf-to-be-created") as (host, plugin, faults):
            assert self.why_not(host, plugin) is None
            plugin.prepare(faults.uid)
            assert len(host.functions[PF].vfs) == 7
            assert self.why_not(host, plugin) is None, "and pool resources exclude it as long as the claim has one"

    def test_the_vfs_were_there(self) -> None:
        with on("vf-that-was-there") as (host, plugin, faults):
            plugin.prepare(faults.uid)
            assert self.why_not(host, plugin) == "in use: it has 7 VFs that were not made for a claim"

    def test_the_vfs_stay_because_one_could_not_be_reset(self) -> None:
        with on("vf-to-be-created") as (host, plugin, faults):
            plugin.prepare(faults.uid)
            host.stuck.add(VF)
            plugin.unprepare(faults.uid)
            assert self.why_not(host, plugin) is not None
            host.stuck.clear()
            plugin.reconciler.reconcile()
            assert self.why_not(host, plugin) is None

    def test_the_vfs_stay_because_one_is_in_use(self) -> None:
        with on("vf-to-be-created") as (host, plugin, faults):
            plugin.prepare(faults.uid)
            other = host.functions[PF].vfs[1]
            host.set_override(other, "vfio-pci")
            host.probe(other)
            plugin.unprepare(faults.uid)
            assert self.why_not(host, plugin) is not None
