"""Whole devices to VFIO: groups taken whole, the right driver, resets, everything put back (T5, T7, T8)."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from devalloc.device_kinds import ALLOWABLE
from devalloc.inventory.locate import read_function
from devalloc.inventory.pci import Address, PciFunction
from devalloc.inventory.resets import has_own_reset, hot_reset
from devalloc.inventory.sysfs import Tree
from devalloc_machines.qemu import allowed_paths, pci
from devalloc_node.binding.registry import step_kinds
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError, Unknown
from devalloc_node.host.boundary import DryRun
from tests.support import pci_cards
from tests.support.binding_runner import BindingRunner, config, pci_location, refusal
from tests.support.deadlines import soon
from tests.support.fake_host import FakeHost, LocalHost
from tests.support.node_errors import raises

GPU = "0000:01:00.0"
AUDIO = "0000:01:00.1"
L40S = "0000-26-00-4-nvidia-1148"
GPU_DEVICE = "0000-01-00-0"


class TestHandingOver:
    def test_all_functions_of_the_group_go_and_come_back(self, gpu: FakeHost) -> None:
        before = gpu.snapshot()
        hand = BindingRunner.on(gpu)
        prepared = hand.prepare(GPU_DEVICE)
        assert (gpu.driver_of(GPU), gpu.driver_of(AUDIO)) == ("vfio-pci", "vfio-pci")
        assert prepared.functions == (GPU, AUDIO)
        assert (prepared.binding, prepared.nodes) == ("vfio", ("/dev/vfio/7",))
        assert prepared.attributes == pci_location(GPU)
        assert hand.keys[GPU_DEVICE] == (f"pci/{GPU}", f"pci/{AUDIO}")
        hand.unprepare(GPU_DEVICE)
        assert (gpu.driver_of(GPU), gpu.driver_of(AUDIO)) == ("nvidia", "snd_hda_intel")
        assert gpu.snapshot() == before

    def test_first_all_are_unbound_then_all_are_bound(self, gpu: FakeHost) -> None:
        gpu.events.clear()
        BindingRunner.on(gpu).prepare(GPU_DEVICE)
        moves = [(event.action, event.path[-7:]) for event in gpu.events if event.action in ("bind", "unbind")]
        assert moves == [("unbind", "01:00.0"), ("unbind", "01:00.1"), ("bind", "01:00.0"), ("bind", "01:00.1")]

    def test_undoing_does_it_in_two_passes_too(self, gpu: FakeHost) -> None:
        hand = BindingRunner.on(gpu)
        hand.prepare(GPU_DEVICE)
        gpu.events.clear()
        hand.unprepare(GPU_DEVICE)
        moves = [event.action for event in gpu.events if event.action in ("bind", "unbind")]
        assert moves == ["unbind", "unbind", "bind", "bind"]

    def test_a_function_without_a_driver_goes_along(self, gpu: FakeHost) -> None:
        gpu.unbind("snd_hda_intel", AUDIO)
        before = gpu.snapshot()
        hand = BindingRunner.on(gpu)
        hand.prepare(GPU_DEVICE)
        assert gpu.driver_of(AUDIO) == "vfio-pci"
        hand.unprepare(GPU_DEVICE)
        assert gpu.snapshot() == before

    def test_a_device_on_vfio_before_is_adopted_and_left_there(self, gpu: FakeHost) -> None:
        for address in (GPU, AUDIO):
            gpu.unbind(gpu.driver_of(address) or "", address)
            gpu.set_override(address, "vfio-pci")
            gpu.probe(address)
        before = gpu.snapshot()
        hand = BindingRunner.on(gpu)
        hand.prepare(GPU_DEVICE)
        assert hand.kinds_of(GPU_DEVICE) == ["reset", "reset"]
        hand.unprepare(GPU_DEVICE)
        assert gpu.snapshot() == before

    def test_an_override_of_the_admins_is_put_back(self, gpu: FakeHost) -> None:
        gpu.set_override(AUDIO, "snd_hda_intel")
        before = gpu.snapshot()
        hand = BindingRunner.on(gpu)
        hand.prepare(GPU_DEVICE)
        hand.unprepare(GPU_DEVICE)
        assert gpu.snapshot() == before

    def test_groups_of_their_own_are_two_nodes(self, host: FakeHost) -> None:
        host.add(pci_cards.gpu(iommu_group=7))
        host.add(pci_cards.gpu_audio(iommu_group=8))
        assert BindingRunner.on(host).prepare(GPU_DEVICE).nodes == ("/dev/vfio/7", "/dev/vfio/8")

    def test_a_step_that_failed_half_way_is_undone(self, gpu: FakeHost) -> None:
        before = gpu.snapshot()
        write = gpu.store

        def second_bind_fails(path: str | Path, text: str) -> None:
            if path == "bus/pci/drivers_probe" and text == AUDIO and gpu.functions[AUDIO].override == "vfio-pci":
                return  # as a driver whose probe fails: no error is reported
            write(path, text)

        gpu.store = second_bind_fails  # type: ignore[method-assign]
        with pytest.raises(Failed, match=r"0000:01:00\.1 has the driver None, not vfio-pci"):
            BindingRunner.on(gpu).prepare(GPU_DEVICE)
        assert gpu.snapshot() == before

    def test_a_machine_that_still_has_it_open_is_not_robbed(self, gpu: FakeHost) -> None:
        hand = BindingRunner.on(gpu)
        gpu.process(4711, opens=hand.prepare(GPU_DEVICE).nodes)
        before = gpu.snapshot()
        with raises(Denied, "DeviceInUse", retryable=True, match="qemu-system-x86 4711 has /dev/vfio/7 open"):
            hand.unprepare(GPU_DEVICE)
        assert gpu.snapshot() == before
        gpu.end_process(4711)
        hand.unprepare(GPU_DEVICE)
        assert gpu.driver_of(GPU) == "nvidia"

    def test_a_device_that_was_pulled_out_has_nothing_to_undo(self, gpu: FakeHost) -> None:
        hand = BindingRunner.on(gpu)
        hand.prepare(GPU_DEVICE)
        gpu.remove_function(AUDIO)
        with raises(Denied, "DeviceGone"):
            hand.unprepare(GPU_DEVICE)


def test_a_device_stays_with_vfio_until_its_own_driver_is_there(host: FakeHost) -> None:
    nic = host.add(pci_cards.plain_nic())
    hand = BindingRunner.on(host, allowed={"nic"})
    hand.prepare("0000-05-00-0")
    host.remove("bus/pci/drivers/r8169")
    with pytest.raises(Failed, match="is its module loaded") as caught:
        hand.unprepare("0000-05-00-0")
    assert (caught.value.code, host.driver_of(nic)) == ("DriverNotBound", "vfio-pci")
    host.load_driver("r8169")
    hand.unprepare("0000-05-00-0")
    assert host.driver_of(nic) == "r8169"


def test_nor_is_a_part_of_it_without_any(gpu: FakeHost) -> None:
    """A GPU and its audio function are parted from their drivers together, and get them back together."""
    before = gpu.snapshot()
    hand = BindingRunner.on(gpu)
    hand.prepare(GPU_DEVICE)
    gpu.remove("bus/pci/drivers/nvidia")
    with pytest.raises(Failed, match="is its module loaded"):
        hand.unprepare(GPU_DEVICE)
    assert {gpu.driver_of(function) for function in (GPU, AUDIO)} == {"vfio-pci"}
    gpu.load_driver("nvidia")
    hand.unprepare(GPU_DEVICE)
    assert gpu.snapshot() == before


class TestVariants:
    ALIASES = (
        "alias pci:v000010DEd000027B8sv*sd*bc03sc*i* nvidia\n"
        "alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci\n"
        "alias vfio_pci:v000010DEd000027B8sv*sd*bc03sc*i* nvgrace_gpu_vfio_pci\n"
        "alias vfio_pci:v000010DEd*sv*sd*bc03sc*i* other_vfio_pci\n"
    )

    @pytest.fixture
    def aliased(self, gpu: FakeHost) -> FakeHost:
        gpu.proc("sys/kernel/osrelease", "6.12.0-test\n")
        folder = gpu.root / "lib/modules/6.12.0-test"
        folder.mkdir(parents=True)
        (folder / "modules.alias").write_text(self.ALIASES)
        return gpu

    @pytest.mark.parametrize("spelling", ["nvgrace_gpu_vfio_pci", "nvgrace-gpu-vfio-pci"])
    def test_the_most_particular_one_wins_however_it_is_spelt(self, aliased: FakeHost, spelling: str) -> None:
        aliased.load_driver(spelling)
        before = aliased.snapshot()
        hand = BindingRunner.on(aliased)
        hand.prepare(GPU_DEVICE)
        assert (aliased.driver_of(GPU), aliased.driver_of(AUDIO)) == (spelling, "vfio-pci")
        hand.unprepare(GPU_DEVICE)
        assert aliased.snapshot() == before

    def test_a_newer_list_of_modules_is_heeded(self, aliased: FakeHost) -> None:
        assert refusal(aliased, GPU_DEVICE) == "DriverMissing"
        listing = aliased.root / "lib/modules/6.12.0-test/modules.alias"
        listing.write_text(self.ALIASES.replace("nvgrace_gpu_vfio_pci", "renamed_vfio_pci"))
        aliased.load_driver("renamed_vfio_pci")
        BindingRunner.on(aliased).prepare(GPU_DEVICE)
        assert aliased.driver_of(GPU) == "renamed_vfio_pci"

    def test_a_lesser_one_is_never_taken_instead(self, aliased: FakeHost) -> None:
        with raises(Denied, "DriverMissing", match="modprobe nvgrace_gpu_vfio_pci"):
            BindingRunner.on(aliased).prepare(GPU_DEVICE)
        assert aliased.driver_of(GPU) == "nvidia"

    def test_without_the_list_of_modules_the_driver_is_unknown(self, aliased: FakeHost) -> None:
        """As in a container without the host's /lib/modules. A kernel that has all built in needs no list."""
        shutil.rmtree(aliased.root / "lib")
        aliased.write("module/vfio_pci/initstate", "live")
        assert refusal(aliased, GPU_DEVICE) == "DriverUnknown"
        aliased.remove("module/vfio_pci")
        BindingRunner.on(aliased).prepare(GPU_DEVICE)

    def test_without_vfio_pci_nothing_is_begun(self, tmp_path: Path) -> None:
        host = FakeHost(tmp_path, drivers=())
        host.add(pci_cards.gpu())
        assert refusal(host, GPU_DEVICE) == "DriverMissing"


def function(host: FakeHost, address: str = GPU) -> PciFunction:
    """A function as the host has it now."""
    parsed = Address.parse(address)
    read = read_function(Tree(host.root), parsed) if parsed is not None else None
    assert read is not None
    return read


class TestReset:
    """Between owners (T7)."""

    def test_it_happens_before_and_after_each_owner_while_vfio_has_the_device(self, gpu: FakeHost) -> None:
        hand = BindingRunner.on(gpu)
        hand.prepare(GPU_DEVICE)
        assert gpu.resets == [GPU, AUDIO]
        hand.unprepare(GPU_DEVICE)
        assert gpu.resets == [GPU, AUDIO, AUDIO, GPU]

    @pytest.mark.parametrize("how", ["refused", "silent", "changed"])
    def test_a_device_that_cannot_be_reset_has_no_next_owner(
        self, gpu: FakeHost, monkeypatch: pytest.MonkeyPatch, how: str
    ) -> None:
        spec, path = gpu.functions[GPU].spec, gpu.path(GPU)

        def reset(address: str) -> None:
            if address == GPU:
                gpu.config(path, replace(spec, device=0x1234) if how == "changed" else spec, gone=how == "silent")

        if how == "refused":
            gpu.stuck.add(GPU)
        else:
            monkeypatch.setattr(gpu, "reset", reset)
        hand = BindingRunner.on(gpu)
        with raises(Failed, "ResetFailed") as caught:
            hand.prepare(GPU_DEVICE)
        assert {"refused": "ENOTTY", "silent": "does not respond", "changed": "another vendor and device"}[
            how
        ] in caught.value.message
        assert gpu.driver_of(GPU) == "vfio-pci", "no other driver gets it until it is clean"

    def test_a_device_without_a_reset_is_refused_unless_the_admin_allows_it(self, host: FakeHost) -> None:
        host.add(pci_cards.gpu(iommu_group=7, files={"reset_method": ""}))
        assert refusal(host, GPU_DEVICE) == "NoReset"
        hand = BindingRunner.on(host, allow_no_reset=True)
        hand.prepare(GPU_DEVICE)
        assert "reset" not in hand.kinds_of(GPU_DEVICE)
        hand.unprepare(GPU_DEVICE)
        assert (host.resets, host.driver_of(GPU)) == ([], "nvidia")

    def test_a_reset_of_the_bus_counts_only_for_a_card_that_is_alone_on_it(self, host: FakeHost) -> None:
        """Linux lists it for the function that it discovers first, and refuses it when the others are there."""
        host.add(pci_cards.gpu(iommu_group=7, files={"reset_method": "bus"}))
        assert has_own_reset(function(host))
        host.add(pci_cards.plain_nic("0000:01:01.0", ports=pci_cards.ports_above(GPU)))
        assert not has_own_reset(function(host))
        assert refusal(host, GPU_DEVICE) == "NoReset"
        host.remove_function("0000:01:01.0")
        host.add(pci_cards.gpu_audio(iommu_group=7, files={"reset_method": ""}))
        assert not has_own_reset(function(host))
        (bridge,) = pci_cards.ports_above(GPU)[-1:]
        host.touch(host.path(bridge, "reset_subordinate"))
        BindingRunner.on(host).prepare(GPU_DEVICE)
        assert host.resets == [GPU, AUDIO]

    def test_a_vf_without_a_reset_is_refused_too(self, host: FakeHost) -> None:
        host.add(pci_cards.nic(vfs=7))
        vf = next(address for address, function in host.functions.items() if function.pf)
        host.remove(host.path(vf, "reset"))
        host.remove(host.path(vf, "reset_method"))
        before = host.snapshot()
        with pytest.raises(Denied) as caught:
            BindingRunner.on(host).prepare(vf.replace(":", "-").replace(".", "-"), "node-a-0000-41-00")
        assert (caught.value.code, host.snapshot()) == ("NoReset", before)

    @pytest.mark.parametrize("how", ["refused", "impossible", "silent"])
    def test_a_device_that_cannot_be_reset_is_refused_with_its_code(self, gpu: FakeHost, how: str) -> None:
        hand = BindingRunner.on(gpu)
        hand.prepare(GPU_DEVICE)
        match how:
            case "refused":
                gpu.stuck.add(GPU)
            case "impossible":
                gpu.remove(gpu.path(GPU, "reset"))
            case "silent":
                gpu.config(gpu.path(GPU), gpu.functions[GPU].spec, gone=True)
        with raises(Failed, "ResetFailed") as caught:
            hand.unprepare(GPU_DEVICE)
        assert GPU in caught.value.message
        assert gpu.driver_of(GPU) == "vfio-pci"

    def test_an_audio_function_without_a_reset_of_its_own_goes_with_the_slot(self, host: FakeHost) -> None:
        host.add(pci_cards.gpu(iommu_group=7))
        host.add(pci_cards.gpu_audio(iommu_group=7, files={"reset_method": ""}))
        hand = BindingRunner.on(host)
        hand.prepare(GPU_DEVICE)
        hand.unprepare(GPU_DEVICE)
        assert host.resets == [GPU, GPU]


class TestResetOfTheSlot:
    """Of a GPU without a function level reset, which its audio function keeps from being reset by its bus."""

    @pytest.fixture
    def released(self, host: FakeHost) -> tuple[FakeHost, BindingRunner]:
        host.add(pci_cards.gpu(iommu_group=7, files={"reset_method": ""}))
        host.add(pci_cards.gpu_audio(iommu_group=7, files={"reset_method": ""}))
        (bridge,) = pci_cards.ports_above(GPU)[-1:]
        host.touch(host.path(bridge, "reset_subordinate"))
        hand = BindingRunner.on(host)
        hand.prepare(GPU_DEVICE)
        assert host.resets == [GPU, AUDIO]
        host.resets.clear()
        return host, hand

    def test_the_bridge_above_does_it(self, released: tuple[FakeHost, BindingRunner]) -> None:
        host, hand = released
        hand.unprepare(GPU_DEVICE)
        assert host.resets == [GPU, AUDIO]
        assert (host.driver_of(GPU), host.driver_of(AUDIO)) == ("nvidia", "snd_hda_intel")

    def test_no_reset_while_another_driver_has_a_part_of_it(self, released: tuple[FakeHost, BindingRunner]) -> None:
        host, hand = released
        host.unbind("vfio-pci", AUDIO)
        host.set_override(AUDIO, "")
        host.probe(AUDIO)
        with pytest.raises(Failed, match="has the driver snd_hda_intel") as caught:
            hand.unprepare(GPU_DEVICE)
        assert (caught.value.code, host.resets) == ("ResetFailed", [])
        assert caught.value.retryable

    def test_not_where_other_slots_are_below_it(self, released: tuple[FakeHost, BindingRunner]) -> None:
        host, hand = released
        host.add(pci_cards.plain_nic("0000:01:01.0", ports=pci_cards.ports_above(GPU)))
        with pytest.raises(Failed, match="other slots share its bridge") as caught:
            hand.unprepare(GPU_DEVICE)
        assert (caught.value.code, host.resets) == ("ResetFailed", [])
        assert not caught.value.retryable


class TestResetByVfio:
    """Of the same GPU before Linux 6.13, whose bridges do not reset all that is below them."""

    @pytest.fixture(params=[7, 8], ids=["one group", "two groups"])
    def released(self, request: pytest.FixtureRequest, host: FakeHost) -> tuple[FakeHost, BindingRunner]:
        host.add(pci_cards.gpu(iommu_group=7, files={"reset_method": "bus"}))
        host.add(pci_cards.gpu_audio(iommu_group=request.param, files={"reset_method": ""}))
        hand = BindingRunner.on(host)
        hand.prepare(GPU_DEVICE)
        assert host.resets == [GPU, AUDIO]
        host.resets.clear()
        return host, hand

    def test_all_of_the_card_is_reset_before_and_after_each_owner(
        self, released: tuple[FakeHost, BindingRunner]
    ) -> None:
        host, hand = released
        hand.unprepare(GPU_DEVICE)
        assert host.resets == [GPU, AUDIO]
        assert (host.driver_of(GPU), host.driver_of(AUDIO)) == ("nvidia", "snd_hda_intel")

    def test_no_reset_while_another_driver_has_a_part_of_it(self, released: tuple[FakeHost, BindingRunner]) -> None:
        host, hand = released
        host.unbind("vfio-pci", AUDIO)
        with pytest.raises(Failed, match=f"{AUDIO} has no driver, not a VFIO driver"):
            hand.unprepare(GPU_DEVICE)
        host.set_override(AUDIO, "")
        host.probe(AUDIO)
        with pytest.raises(Failed, match=f"{AUDIO} has the driver snd_hda_intel, not a VFIO driver") as caught:
            hand.unprepare(GPU_DEVICE)
        assert (caught.value.code, host.resets) == ("ResetFailed", [])

    def test_the_bridge_does_it_where_vfio_cannot(self, released: tuple[FakeHost, BindingRunner]) -> None:
        host, hand = released
        (bridge,) = pci_cards.ports_above(GPU)[-1:]
        host.touch(host.path(bridge, "reset_subordinate"))
        host.unbind("vfio-pci", AUDIO)
        hand.unprepare(GPU_DEVICE)
        assert host.resets == [GPU, AUDIO]

    def test_no_reset_while_a_process_has_a_part_of_it_open(self, released: tuple[FakeHost, BindingRunner]) -> None:
        host, hand = released
        host.process(4711, opens=(f"/dev/vfio/{host.functions[AUDIO].group}",))
        with pytest.raises(NodeError, match="qemu-system-x86") as caught:
            hand.unprepare(GPU_DEVICE)
        is_own = host.functions[AUDIO].group == host.functions[GPU].group
        assert caught.value.code == ("DeviceInUse" if is_own else "ResetFailed")
        assert (caught.value.retryable, host.resets) == (True, [])
        host.end_process(4711)
        hand.unprepare(GPU_DEVICE)
        assert host.resets == [GPU, AUDIO]

    def test_not_where_another_card_has_come_to_its_bus(self, released: tuple[FakeHost, BindingRunner]) -> None:
        host, hand = released
        host.add(pci_cards.plain_nic("0000:01:01.0", ports=pci_cards.ports_above(GPU)))
        with pytest.raises(Failed, match="the kernel has no reset method for it") as caught:
            hand.unprepare(GPU_DEVICE)
        assert (caught.value.code, host.resets) == ("ResetFailed", [])
        assert not caught.value.retryable

    def test_what_the_kernel_refuses_keeps_the_device(self, released: tuple[FakeHost, BindingRunner]) -> None:
        host, hand = released
        host.stuck.add(AUDIO)
        with raises(Failed, "ResetFailed", match=f"the kernel refused a reset of {GPU}, {AUDIO} by VFIO"):
            hand.unprepare(GPU_DEVICE)
        assert host.driver_of(GPU) == "vfio-pci"

    def test_a_dry_run_resets_nothing(self, host: FakeHost) -> None:
        reported: list[str] = []
        with pytest.raises(Denied) as caught:
            DryRun(LocalHost(host), reported.append).hot_reset(GPU, [7], [AUDIO, GPU], soon())
        assert (caught.value.code, reported) == ("DryRun", [f"would reset {GPU}, {AUDIO} with their bus"])


@pytest.mark.parametrize("methods", ["", "cxl_bus"])
def test_a_kernel_that_knows_no_reset_of_the_bus_is_not_asked_for_one(host: FakeHost, methods: str) -> None:
    host.add(pci_cards.gpu(iommu_group=7, files={"reset_method": methods}))
    host.add(pci_cards.gpu_audio(iommu_group=7, files={"reset_method": ""}))
    assert hot_reset(function(host)) == ()
    assert refusal(host, GPU_DEVICE) == "NoReset"


class TestGroups:
    def test_without_an_iommu_nothing_goes(self, host: FakeHost) -> None:
        host.add(pci_cards.gpu(iommu_group=None))
        assert refusal(host, GPU_DEVICE) == "NoIommuGroup"

    def test_another_slot_in_the_group(self, host: FakeHost) -> None:
        host.add(pci_cards.gpu(iommu_group=7))
        host.add(pci_cards.accelerator("0000:02:00.0", iommu_group=7))
        assert refusal(host, GPU_DEVICE) == "GroupShared"
        # Nor where the admin lets groups be shared: the other one is the host's at present.
        assert refusal(host, GPU_DEVICE, allow_shared_groups=True) == "GroupShared"
        host.unbind("habanalabs", "0000:02:00.0")
        assert refusal(host, GPU_DEVICE) == "GroupShared"
        hand = BindingRunner.on(host, allow_shared_groups=True)
        hand.prepare(GPU_DEVICE)
        assert host.driver_of("0000:02:00.0") is None
        assert hand.keys[GPU_DEVICE] == (f"pci/{GPU}", "pci/0000:02:00.0")  # it goes to no other claim meanwhile

    def test_a_peer_that_a_machine_has_keeps_the_group(self, host: FakeHost) -> None:
        host.add(pci_cards.gpu(iommu_group=7))
        host.add(pci_cards.accelerator("0000:02:00.0", iommu_group=7, driver=None))
        host.set_override("0000:02:00.0", "vfio-pci")
        host.probe("0000:02:00.0")
        host.process(4711, opens=("/dev/vfio/7",))
        assert refusal(host, GPU_DEVICE, allow_shared_groups=True) == "DeviceInUse"
        host.end_process(4711)
        BindingRunner.on(host, allow_shared_groups=True).prepare(GPU_DEVICE)

    def test_the_bridge_above_may_be_in_the_group(self, host: FakeHost) -> None:
        host.add(pci_cards.bridge("0000:00:00.1", iommu_group=7))
        host.add(pci_cards.gpu(iommu_group=7, ports=("0000:00:00.1",)))
        hand = BindingRunner.on(host)
        hand.prepare(GPU_DEVICE)
        assert host.driver_of("0000:00:00.1") == "pcieport"
        assert hand.keys[GPU_DEVICE] == (f"pci/{GPU}",)


class TestHealth:
    def test_a_prepared_device_is_healthy_until_something_happens_to_it(self, gpu: FakeHost) -> None:
        hand = BindingRunner.on(gpu)
        prepared = hand.prepare(GPU_DEVICE)
        spec = gpu.functions[GPU].spec

        def health() -> tuple[str, str]:
            observed = hand.bindings.observe(prepared)
            return observed.state, observed.message

        assert health() == ("healthy", "")
        gpu.config(gpu.path(GPU), spec, gone=True)
        assert health() == ("unhealthy", f"{GPU} does not respond: its configuration space reads as all ones")
        gpu.config(gpu.path(GPU), spec)
        assert health() == ("healthy", "")
        gpu.unbind("vfio-pci", AUDIO)
        assert health() == ("unhealthy", f"{AUDIO} has the driver none now, not a VFIO driver")
        gpu.probe(AUDIO)
        assert health() == ("healthy", "")
        gpu.remove_function(AUDIO)
        assert health() == ("unhealthy", f"{AUDIO} no longer exists")

    def test_a_group_that_has_changed(self, gpu: FakeHost) -> None:
        hand = BindingRunner.on(gpu)
        prepared = replace(hand.prepare(GPU_DEVICE), nodes=("/dev/vfio/9",))
        health = hand.bindings.observe(prepared)
        assert (health.state, health.message) == (
            "unhealthy", "the IOMMU group has changed: /dev/vfio/9 became /dev/vfio/7",
        )  # fmt: skip

    def test_a_binding_of_a_later_version_is_unknown(self, gpu: FakeHost) -> None:
        hand = BindingRunner.on(gpu)
        assert hand.bindings.observe(replace(hand.prepare(GPU_DEVICE), binding="cxl")).state == "unknown"


def test_admins_look_without_touching(gpu: FakeHost) -> None:
    gpu.process(812, "python3", opens=("/dev/dri/card0",))
    before = gpu.snapshot()
    hand = BindingRunner.on(gpu)
    prepared = hand.prepare(GPU_DEVICE, admin=True)
    assert (prepared.binding, prepared.functions, prepared.admin, prepared.nodes) == ("none", (GPU,), True, ())
    assert hand.keys[GPU_DEVICE] == ()
    assert hand.bindings.observe(prepared).state == "healthy"
    assert gpu.snapshot() == before


def test_an_unbind_that_blocks_is_neither_waited_for_nor_forgotten(gpu: FakeHost) -> None:
    """A process opens the group between the look and the write: it may happen any time, so nothing counts as undone."""
    hand = BindingRunner.on(gpu)
    hand.prepare(GPU_DEVICE)
    gpu.process(4711, opens=("/dev/vfio/7",))
    with pytest.raises(Unknown):
        LocalHost(gpu).write("bus/pci/drivers/vfio-pci/unbind", GPU, Deadline.after(0))
    bound = {"driver": "vfio-pci", "override": "vfio-pci"}
    kind = step_kinds(LocalHost(gpu))["driver"]
    assert kind.read(GPU) == bound
    with pytest.raises(Unknown, match="not completed an earlier write for 0000:01:00"):
        kind.apply(GPU, bound, Deadline.after(5))
    gpu.end_process(4711)
    assert gpu.driver_of(GPU) is None
    kind.apply(GPU, bound, Deadline.after(5))
    assert gpu.driver_of(GPU) == "vfio-pci"
    hand.unprepare(GPU_DEVICE)
    assert gpu.driver_of(GPU) == "nvidia"


class TestOptionRom:
    """``romFile`` of a VfioConfig: for classes only, and for functions only."""

    ROM = config("VfioConfig", romFile="/roms/gpu.rom")

    def test_the_main_function_gets_the_one_of_its_class(self, gpu: FakeHost) -> None:
        hand = BindingRunner.on(gpu)
        prepared = hand.prepare(GPU_DEVICE, class_configs=(config("VfioConfig"), self.ROM))
        assert prepared.rom_file == "/roms/gpu.rom"
        first, second = pci.passthrough_device("d", prepared).functions
        assert (first["romfile"], "romfile" in second) == ("/roms/gpu.rom", False)
        assert pci.passthrough_device("d", replace(prepared, rom_file=None)).functions[0].keys() == {"driver", "host"}

    def test_a_claim_must_not_name_one(self, gpu: FakeHost) -> None:
        before = gpu.snapshot()
        with pytest.raises(Denied) as caught:
            BindingRunner.on(gpu).prepare(GPU_DEVICE, claim_configs=(self.ROM,))
        assert (caught.value.code, gpu.snapshot()) == ("ConfigForbidden", before)

    @pytest.mark.parametrize(("device", "pool"), [("mtty-mtty-1", "node-a-mdev-mtty"), (L40S, "node-a-0000-26-00")])
    def test_a_vgpu_has_none(self, host: FakeHost, device: str, pool: str) -> None:
        host.vgpu.add_parent("mtty", pci_cards.MTTY)
        host.add(pci_cards.l40s_vgpu_card(vfs=2))
        with raises(Denied, "ConfigUnsupported"):
            BindingRunner.on(host, allowed=frozenset(ALLOWABLE)).prepare(device, pool, class_configs=(self.ROM,))

    @pytest.mark.parametrize(
        ("name", "content", "mode", "code"),
        [
            ("gpu.rom", b"\x55\xaa\x01", 0o644, None),
            ("gpu.rom", b"\x7fELF", 0o644, "RomInvalid"),
            ("gpu.rom", b"", 0o644, "RomInvalid"),
            ("gpu.rom", b"\x55\xaa".ljust((16 << 20) + 1), 0o644, "RomInvalid"),
            ("gpu.rom", b"\x55\xaa\x01", 0o600, "RomInvalid"),
            ("other.rom", b"\x55\xaa\x01", 0o644, "PathMissing"),
            ("../gpu.rom", b"\x55\xaa\x01", 0o644, "PathNotAllowed"),
            ("link.rom", b"\x55\xaa\x01", 0o644, "PathNotAllowed"),
            ("folder.rom", b"\x55\xaa\x01", 0o644, "RomInvalid"),
            ("pipe.rom", b"\x55\xaa\x01", 0o644, "RomInvalid"),
        ],
    )
    def test_the_file_must_be_one_in_an_allowed_folder(
        self, tmp_path: Path, name: str, content: bytes, mode: int, code: str | None
    ) -> None:
        roms = tmp_path / "roms"
        (roms / "folder.rom").mkdir(parents=True)
        os.mkfifo(roms / "pipe.rom")
        (tmp_path / "gpu.rom").write_bytes(content)
        (roms / "link.rom").symlink_to(tmp_path / "gpu.rom")
        (roms / "gpu.rom").write_bytes(content)
        (roms / "gpu.rom").chmod(mode)
        if code is None:
            assert allowed_paths.rom_file(f"{roms}/{name}", [roms]) == roms / name
            with pytest.raises(Denied, match="--rom-folder"):
                allowed_paths.rom_file(f"{roms}/{name}", [])
            return
        with raises(Denied, code):
            allowed_paths.rom_file(f"{roms}/{name}", [roms])
