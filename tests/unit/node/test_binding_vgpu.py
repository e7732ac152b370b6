"""vGPUs in both layouts, on the recorded servers: made, told, taken back, and refused with the reason (T2, T8, I4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from devalloc.device_kinds import ALLOWABLE
from devalloc_node.binding.checks import current_nodes
from devalloc_node.binding.registry import step_kinds
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError
from tests.support import pci_cards
from tests.support.binding_runner import BindingRunner, config, pci_location
from tests.support.fake_host import FakeHost
from tests.support.node_errors import raises
from tests.support.recorded_host import (
    A2,
    A2_LIVE,
    A2_VFS,
    L40S_VF,
    build_a2,
    build_l40s,
    recorded_a2,
    recorded_l40s,
    recorded_types,
)

A2_POOL = "node-a-0000-08-00"
A2_4Q = "0000-08-00-5-nvidia-746"
A2_4Q_VF = "0000:08:00.5"
L40S_POOL = "node-a-0000-26-00"
L40S_2Q = "0000-26-00-4-nvidia-1148"


@pytest.fixture(params=["recorded", "built"])
def a2(request: pytest.FixtureRequest, tmp_path: Path) -> FakeHost:
    return recorded_a2(tmp_path) if request.param == "recorded" else build_a2(tmp_path)


@pytest.fixture(params=["recorded", "built"])
def l40s(request: pytest.FixtureRequest, tmp_path: Path) -> FakeHost:
    return recorded_l40s(tmp_path) if request.param == "recorded" else build_l40s(tmp_path)


@pytest.fixture
def plain(tmp_path: Path) -> FakeHost:
    return build_a2(tmp_path)


def refusal(
    host: FakeHost, device: str, pool: str = A2_POOL, grant: dict[str, Any] | None = None, **limits: Any
) -> Denied:
    """Why a vGPU is refused; whatever refuses has not changed the host."""
    before = host.snapshot()
    with pytest.raises(Denied) as caught:
        BindingRunner.on(host, **limits).prepare(device, pool, **(grant or {}))
    assert host.snapshot() == before
    return caught.value


class TestMediatedDevices:
    """Must show 7, the A2: three vGPUs of 4 GiB live there without a claim, so there is room for one more."""

    def test_a_4_gb_profile_is_created_reported_and_removed(self, a2: FakeHost) -> None:
        before = a2.snapshot()
        hand = BindingRunner.on(a2)
        prepared = hand.prepare(A2_4Q, A2_POOL)
        uuid = prepared.mdev_uuid
        assert uuid is not None
        assert a2.vgpu.mdevs[uuid].parent == A2_4Q_VF
        assert a2.vgpu.mdevs[uuid].type.name == "NVIDIA A2-4Q"
        assert prepared.functions == (A2_4Q_VF,)
        assert prepared.sysfsdev == f"bus/mdev/devices/{uuid}"
        group = (a2.sys / "bus/mdev/devices" / uuid / "iommu_group").resolve().name
        assert prepared.nodes == (f"/dev/vfio/{group}",)
        assert prepared.attributes == {
            **pci_location(A2_4Q_VF),
            "mdevUUID": uuid,
            "mdevType": "nvidia-746",
        }
        assert hand.keys[A2_4Q] == (f"pci/{A2_4Q_VF}", f"mdev/{uuid}")
        assert hand.bindings.observe(prepared).state == "healthy"
        hand.unprepare(A2_4Q)
        assert a2.snapshot() == before
        assert sorted(a2.vgpu.mdevs) == sorted(A2_LIVE)

    def test_one_more_than_fits_is_refused_with_the_reason(self, a2: FakeHost) -> None:
        hand = BindingRunner.on(a2)
        hand.prepare(A2_4Q, A2_POOL)
        with raises(Denied, "DeviceExhausted", retryable=True) as caught:
            hand.prepare("0000-08-00-7-nvidia-746", A2_POOL)
        assert caught.value.message == (
            "cannot create nvidia-746: 0000:08:00.7 has no room for it; the driver would create nothing "
            "(the same holds for 15 other functions of the card)"
        )

    def test_another_size_than_the_card_holds(self, plain: FakeHost) -> None:
        refused = refusal(plain, "0000-08-00-5-nvidia-745")
        assert refused.code == "DeviceExhausted"
        assert "would create NVIDIA A2-4Q, NVIDIA A2-4A, NVIDIA A2-4C" in refused.message

    def test_the_named_vf_is_taken_where_another_lives_elsewhere(self, plain: FakeHost) -> None:
        hand = BindingRunner.on(plain)
        prepared = hand.prepare("0000-08-00-4-nvidia-746", A2_POOL)  # 08:00.4 carries one already
        assert prepared.functions == (A2_4Q_VF,)
        assert prepared.attributes["resource.kubernetes.io/pciBusID"] == A2_4Q_VF

    def test_what_another_claim_holds_is_passed_over(self, plain: FakeHost) -> None:
        hand = BindingRunner.on(plain)
        hand.keys["another"] = (f"pci/{A2_4Q_VF}",)
        assert hand.prepare(A2_4Q, A2_POOL).functions == ("0000:08:00.7",)

    def test_the_completed_tree_says_what_was_recorded(self, tmp_path: Path) -> None:
        host = recorded_a2(tmp_path)
        types_folder = "class/mdev_bus/0000:08:01.7/mdev_supported_types"
        for name in ("name", "description", "available_instances", "device_api"):
            recorded = recorded_types(tmp_path, name)
            assert len(recorded) == 15
            assert {kind: host.read(f"{types_folder}/{kind}/{name}") for kind in recorded} == recorded

    def test_the_same_claim_gets_the_same_uuid_and_another_claim_another(self, plain: FakeHost) -> None:
        hand = BindingRunner.on(plain)
        first = hand.prepare(A2_4Q, A2_POOL, owner="uid-1").mdev_uuid
        hand.unprepare(A2_4Q)
        assert hand.prepare(A2_4Q, A2_POOL, owner="uid-1").mdev_uuid == first
        hand.unprepare(A2_4Q)
        assert hand.prepare(A2_4Q, A2_POOL, owner="uid-2").mdev_uuid != first

    def test_a_card_without_vfs_carries_many(self, tmp_path: Path) -> None:
        host = FakeHost(tmp_path)
        card = host.add(pci_cards.t4_vgpu_card())
        before = host.snapshot()
        hand = BindingRunner.on(host)
        names = ["0000-3b-00-0-nvidia-226", *(f"0000-3b-00-0-nvidia-226-{n}" for n in (1, 2, 3))]
        prepared = [hand.prepare(name) for name in names]
        assert len({device.mdev_uuid for device in prepared}) == 4
        assert [hand.keys[name][0] for name in names] == [f"part/{card}/{n}" for n in range(4)]
        with raises(Denied, "DeviceExhausted", match="has no room"):
            hand.prepare("0000-3b-00-0-nvidia-226-4")
        for name in names:
            hand.unprepare(name)
        assert host.snapshot() == before

    def test_one_that_was_there_before_is_used_on_request_and_left(self, plain: FakeHost) -> None:
        (uuid, (vf, _)), *_ = A2_LIVE.items()
        before = plain.snapshot()
        with raises(Denied, "DeviceInUse", match=f"`--adopt mdev-{uuid}` offers it"):
            BindingRunner.on(plain).prepare(f"mdev-{uuid}", A2_POOL)
        hand = BindingRunner.on(plain, adopt=frozenset({f"mdev-{uuid}"}))
        prepared = hand.prepare(f"mdev-{uuid}", A2_POOL)
        assert (prepared.mdev_uuid, prepared.functions) == (uuid, (vf,))
        assert hand.keys[f"mdev-{uuid}"] == (f"mdev/{uuid}",)
        hand.unprepare(f"mdev-{uuid}")
        assert plain.snapshot() == before

    def test_one_of_another_card_is_not_in_this_pool(self, plain: FakeHost) -> None:
        plain.add(pci_cards.l40s_vgpu_card(vfs=1))
        uuid = next(iter(A2_LIVE))
        with raises(Denied, "DeviceUnknown"):
            BindingRunner.on(plain).prepare(f"mdev-{uuid}", L40S_POOL)


class TestVendorLayout:
    """Must show 7, the L40S."""

    def test_a_2q_profile_is_created_reported_and_removed(self, l40s: FakeHost) -> None:
        before = l40s.snapshot()
        hand = BindingRunner.on(l40s)
        prepared = hand.prepare(L40S_2Q, L40S_POOL)
        assert l40s.read(f"bus/pci/devices/{L40S_VF}/nvidia/current_vgpu_type") == "1148"
        assert (prepared.binding, prepared.functions, prepared.mdev_uuid) == ("vgpu", (L40S_VF,), None)
        assert prepared.sysfsdev == f"bus/pci/devices/{L40S_VF}"
        assert prepared.nodes == (f"/dev/vfio/{l40s.functions[L40S_VF].group}",)
        assert prepared.attributes == {**pci_location(L40S_VF), "vgpuType": "nvidia-1148"}
        assert hand.bindings.observe(prepared).state == "healthy"
        hand.unprepare(L40S_2Q)
        after = l40s.snapshot()
        words = {path: (before[path].split(), after[path].split()) for path in before if before[path] != after[path]}
        assert all(one == other for one, other in words.values())  # the recorded list has other blanks
        assert after.keys() == before.keys()

    def test_what_cannot_be_read_is_not_gone(self, l40s: FakeHost) -> None:
        """As long as the driver does not say what lives there, it does not count as empty."""
        hand = BindingRunner.on(l40s)
        prepared = hand.prepare(L40S_2Q, L40S_POOL)
        l40s.write(f"bus/pci/devices/{L40S_VF}/nvidia/current_vgpu_type", "N/A")
        with raises(Failed, "HostUnreadable"):
            hand.unprepare(L40S_2Q)
        assert hand.bindings.observe(prepared).state == "unknown"
        assert BindingRunner.on(l40s).prepare(L40S_2Q, L40S_POOL).functions == ("0000:26:00.5",)
        l40s.write(f"bus/pci/devices/{L40S_VF}/nvidia/current_vgpu_type", "1148")
        hand.unprepare(L40S_2Q)
        assert l40s.read(f"bus/pci/devices/{L40S_VF}/nvidia/current_vgpu_type") == "0"

    def test_as_many_as_the_framebuffer_holds_and_no_more(self, l40s: FakeHost) -> None:
        hand = BindingRunner.on(l40s)
        for vf in range(2):
            hand.prepare(f"0000-26-00-{4 + vf}-nvidia-1155", L40S_POOL)  # 24Q: half of the card
        with raises(Denied, "DeviceExhausted") as caught:
            hand.prepare("0000-26-00-6-nvidia-1148", L40S_POOL)
        assert "has no room for it; the driver would create nothing" in caught.value.message

    def test_a_vf_that_carries_one_is_not_taken(self, l40s: FakeHost) -> None:
        l40s.vgpu.set_type(L40S_VF, "1147")
        assert BindingRunner.on(l40s).prepare(L40S_2Q, L40S_POOL).functions == ("0000:26:00.5",)

    def test_room_that_is_taken_at_the_last_moment_is_a_refusal(self, l40s: FakeHost) -> None:
        """Between the look and the write: refused by the driver's list, not by a write that fails."""
        hand = BindingRunner.on(l40s)
        granted_vf = hand.prepare(L40S_2Q, L40S_POOL)
        hand.unprepare(L40S_2Q)
        l40s.vgpu.set_type("0000:26:00.5", "1156")  # the whole card
        with raises(Denied, "DeviceExhausted", match="has no room for vGPU type 1148"):
            step_kinds(hand.host)["vgpu"].apply(granted_vf.functions[0], 1148, Deadline.after(5))


class TestTakingBack:
    """A machine that loses its vGPU is lost (T8)."""

    @pytest.mark.parametrize(("device", "pool"), [(A2_4Q, A2_POOL), (L40S_2Q, L40S_POOL)])
    def test_not_while_a_machine_has_it(self, plain: FakeHost, device: str, pool: str) -> None:
        plain.add(pci_cards.l40s_vgpu_card(vfs=2))
        hand = BindingRunner.on(plain)
        plain.process(4711, opens=hand.prepare(device, pool).nodes)
        before = plain.snapshot()
        with pytest.raises(Denied, match="qemu-system-x86 4711") as caught:
            hand.unprepare(device)
        assert (caught.value.code, plain.snapshot() == before) == ("DeviceInUse", True)
        plain.end_process(4711)
        hand.unprepare(device)

    def test_nor_while_a_machine_has_it_by_iommufd(self, plain: FakeHost) -> None:
        """Which opens a node of the device itself, and none of its group."""
        hand = BindingRunner.on(plain)
        device = hand.prepare(A2_4Q, A2_POOL)
        plain.write(f"bus/mdev/devices/{device.mdev_uuid}/vfio-dev/vfio3/dev", "511:3")
        plain.process(4711, opens=("/dev/vfio/devices/vfio3",))
        nodes = {node.path for node in current_nodes(hand.host.tree(), device)}
        assert nodes == {*device.nodes, "/dev/vfio/devices/vfio3"}
        with pytest.raises(Denied, match="qemu-system-x86 4711"):
            hand.unprepare(A2_4Q)
        plain.end_process(4711)
        hand.unprepare(A2_4Q)

    @pytest.mark.parametrize(("device", "pool"), [(A2_4Q, A2_POOL), (L40S_2Q, L40S_POOL)])
    def test_nor_where_its_use_cannot_be_seen(self, plain: FakeHost, device: str, pool: str) -> None:
        plain.add(pci_cards.l40s_vgpu_card(vfs=2))
        hand = BindingRunner.on(plain)
        hand.prepare(device, pool)
        plain.blind()
        before = plain.snapshot()
        with pytest.raises(Denied, match="only the processes of this container") as caught:
            hand.unprepare(device)
        assert (caught.value.code, plain.snapshot() == before) == ("InUseUnknown", True)

    def test_one_that_went_with_its_card_is_gone(self, plain: FakeHost) -> None:
        hand = BindingRunner.on(plain)
        plain.add(pci_cards.l40s_vgpu_card(vfs=2))
        hand.prepare(L40S_2Q, L40S_POOL)
        plain.unbind("nvidia", L40S_VF)
        with raises(Denied, "DeviceGone"):
            hand.unprepare(L40S_2Q)


class TestRefusals:
    def test_vgpus_may_be_kept(self, plain: FakeHost) -> None:
        assert refusal(plain, A2_4Q, allowed=frozenset({"gpu"})).code == "KindNotAllowed"

    def test_a_vf_that_is_open(self, plain: FakeHost) -> None:
        plain.write(f"{plain.path(A2_4Q_VF)}/drm/renderD130/dev", "226:130")
        plain.process(812, "python3", opens=("/dev/dri/renderD130",))
        assert refusal(plain, A2_4Q).code == "DeviceInUse"

    @pytest.mark.parametrize("device", [A2_4Q, "0000-08-00-0", "0000-08-00-5", "0000-08-00-0-nvidia-746"])
    def test_the_console_in_every_way_that_it_can_be_asked_for(self, plain: FakeHost, device: str) -> None:
        plain.write(f"{plain.path(A2)}/boot_vga", "1")
        assert refusal(plain, device).code in ("DeviceReserved", "DeviceGone", "VfOfNoUse")
        assert len(plain.vgpu.mdevs) == 3

    def test_a_config_that_asks_for_another_profile(self, plain: FakeHost) -> None:
        grant = {"class_configs": (config("VgpuConfig", profile="NVIDIA A2-8Q"),)}
        assert refusal(plain, A2_4Q, grant=grant).code == "ConfigInvalid"
        for same in ("NVIDIA A2-4Q", "nvidia-746"):
            hand = BindingRunner.on(plain)
            hand.prepare(A2_4Q, A2_POOL, class_configs=(config("VgpuConfig", profile=same),))
            hand.unprepare(A2_4Q)

    def test_a_vf_itself_while_a_vgpu_lives_on_it(self, plain: FakeHost) -> None:
        assert refusal(plain, "0000-08-00-4").code == "DeviceInUse"

    def test_a_vf_of_an_nvidia_gpu_without_a_vgpu(self, plain: FakeHost) -> None:
        everything = frozenset(ALLOWABLE)
        code = refusal(plain, "0000-08-00-5", allowed=everything, creatable_vfs=frozenset({"gpu"})).code
        assert code == "VfOfNoUse"

    def test_the_recorded_servers_own_uplink_and_console(self, tmp_path: Path) -> None:
        host = recorded_a2(tmp_path)
        everything = frozenset(ALLOWABLE)
        for device, pool in (("0000-04-00-1", "node-a-0000-04-00"), ("0000-01-00-1", "node-a-0000-01-00")):
            assert refusal(host, device, pool, allowed=everything, erase_policy=True).code == "DeviceReserved"


class TestHealth:
    def test_vgpus_that_vanish(self, plain: FakeHost) -> None:
        plain.add(pci_cards.l40s_vgpu_card(vfs=2))
        hand = BindingRunner.on(plain)
        mdev, vendor = hand.prepare(A2_4Q, A2_POOL), hand.prepare(L40S_2Q, L40S_POOL)
        plain.vgpu.remove(mdev.mdev_uuid or "")
        plain.vgpu.set_type(L40S_VF, "0")
        assert hand.bindings.observe(mdev).message == f"the mediated device {mdev.mdev_uuid} no longer exists"
        assert hand.bindings.observe(vendor).message == f"{L40S_VF} no longer carries a vGPU"
        plain.unbind("nvidia", L40S_VF)
        assert hand.bindings.observe(vendor).message == f"{L40S_VF} has the driver none, which does not create vGPUs"

    def test_a_type_that_does_not_stick(self, plain: FakeHost) -> None:
        plain.add(pci_cards.l40s_vgpu_card(vfs=2))
        plain.vgpu.set_type = lambda vf, kind: None  # type: ignore[method-assign]
        with raises(Failed, "VgpuMissing", match="carries the vGPU type 0 after 1148 was written"):
            BindingRunner.on(plain).prepare(L40S_2Q, L40S_POOL)


def test_every_vf_of_the_card_can_be_asked_for(plain: FakeHost) -> None:
    """Whatever VF the solver named: exactly one 4 GiB profile fits, and it is made somewhere."""
    for vf in A2_VFS:
        hand = BindingRunner.on(plain)
        name = f"{vf.replace(':', '-').replace('.', '-')}-nvidia-746"
        try:
            hand.prepare(name, A2_POOL)
        except NodeError as error:
            raise AssertionError(f"{name}: {error}") from error
        hand.unprepare(name)


class TestParentsThatAreNoCards:
    """A driver's own parent, such as the kernel's sample ``mtty``; the machine tier has the real one."""

    POOL = "node-a-mdev-mtty"
    EVERYTHING = frozenset(ALLOWABLE)

    @pytest.fixture
    def mtty(self, tmp_path: Path) -> FakeHost:
        host = FakeHost(tmp_path)
        host.vgpu.add_parent("mtty", pci_cards.MTTY)
        return host

    def test_one_is_created_reported_and_removed(self, mtty: FakeHost) -> None:
        before = mtty.snapshot()
        hand = BindingRunner.on(mtty, allowed=self.EVERYTHING)
        prepared = hand.prepare("mtty-mtty-2", self.POOL)
        uuid = prepared.mdev_uuid
        assert uuid is not None
        assert (mtty.vgpu.mdevs[uuid].parent, mtty.vgpu.mdevs[uuid].type.id) == ("mtty", "mtty-2")
        assert (prepared.functions, prepared.sysfsdev) == ((), f"bus/mdev/devices/{uuid}")
        group = (mtty.sys / "bus/mdev/devices" / uuid / "iommu_group").resolve().name
        assert prepared.nodes == (f"/dev/vfio/{group}",)
        assert prepared.attributes == {"mdevUUID": uuid, "mdevType": "mtty-2"}
        assert hand.keys["mtty-mtty-2"] == ("part/mtty/0", f"mdev/{uuid}")
        assert hand.bindings.observe(prepared).state == "healthy"
        assert {node.path for node in current_nodes(hand.host.tree(), prepared)} == {*prepared.nodes}
        hand.unprepare("mtty-mtty-2")
        assert hand.bindings.observe(prepared).state == "unhealthy"
        assert mtty.snapshot() == before

    @pytest.mark.parametrize(("number", "node"), [("1", 1), ("-1", None)])
    def test_it_is_near_the_numa_node_of_its_parent(self, mtty: FakeHost, number: str, node: int | None) -> None:
        ((mtty.sys / "class/mdev_bus/mtty").resolve() / "numa_node").write_text(f"{number}\n")
        prepared = BindingRunner.on(mtty, allowed=self.EVERYTHING).prepare("mtty-mtty-2", self.POOL)
        assert prepared.attributes.get("resource.kubernetes.io/numaNode") == node

    def test_as_many_as_its_driver_creates_and_no_more(self, mtty: FakeHost) -> None:
        hand = BindingRunner.on(mtty, allowed=self.EVERYTHING)
        for number in range(12):
            hand.prepare(f"mtty-mtty-2-{number}" if number else "mtty-mtty-2", self.POOL)
        with raises(Denied, "DeviceExhausted", retryable=True) as caught:
            hand.prepare("mtty-mtty-1", self.POOL)
        assert caught.value.message == (
            "cannot create mtty-1: mtty has no room for it; the driver would create nothing"
        )

    def test_it_needs_the_admins_word(self, mtty: FakeHost) -> None:
        refused = refusal(mtty, "mtty-mtty-1", self.POOL)
        assert (refused.code, "devices of kind mdev" in refused.message) == ("KindNotAllowed", True)

    def test_a_config_that_asks_for_another_type(self, mtty: FakeHost) -> None:
        hand = BindingRunner.on(mtty, allowed=self.EVERYTHING)
        with raises(Denied, "ConfigInvalid"):
            hand.prepare("mtty-mtty-1", self.POOL, class_configs=(config("VgpuConfig", profile="mtty-2"),))
        hand.prepare("mtty-mtty-1", self.POOL, class_configs=(config("VgpuConfig", profile="Single port serial"),))

    def test_one_that_others_made_is_used_only_if_the_admin_names_it(self, mtty: FakeHost) -> None:
        uuid = "5b0f3f4e-8d0c-4e43-9d0e-6f1d1a1d7c55"
        mtty.vgpu.create("mtty", "mtty-1", uuid)
        before = mtty.snapshot()
        assert refusal(mtty, f"mdev-{uuid}", self.POOL, allowed=self.EVERYTHING).code == "DeviceInUse"
        hand = BindingRunner.on(mtty, allowed=self.EVERYTHING, adopt=frozenset({f"mdev-{uuid}"}))
        assert hand.prepare(f"mdev-{uuid}", self.POOL).mdev_uuid == uuid
        hand.unprepare(f"mdev-{uuid}")
        assert mtty.snapshot() == before

    def test_not_while_a_machine_has_it(self, mtty: FakeHost) -> None:
        hand = BindingRunner.on(mtty, allowed=self.EVERYTHING)
        mtty.process(4711, opens=hand.prepare("mtty-mtty-1", self.POOL).nodes)
        with pytest.raises(Denied, match="qemu-system-x86 4711"):
            hand.unprepare("mtty-mtty-1")
        mtty.end_process(4711)
        hand.unprepare("mtty-mtty-1")

    def test_a_parent_whose_driver_went_is_gone(self, mtty: FakeHost) -> None:
        mtty.remove("class/mdev_bus/mtty")
        refused = refusal(mtty, "mtty-mtty-1", self.POOL, allowed=self.EVERYTHING)
        assert (refused.code, refused.retryable) == ("DeviceGone", True)
        with raises(Denied, "DeviceGone"):
            step_kinds(BindingRunner.on(mtty).host)["mdev"].apply(
                "5b0f3f4e-8d0c-4e43-9d0e-6f1d1a1d7c55", {"parent": "mtty", "type": "mtty-1"}, Deadline.after(5)
            )
