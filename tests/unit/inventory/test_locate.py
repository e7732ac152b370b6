"""From a device's name to the thing itself, by reading its card and no other."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from devalloc.inventory.device_users import visibility_problem
from devalloc.inventory.locate import (
    DeviceGone,
    DeviceUnknown,
    InstanceDevice,
    PortDevice,
    ProfileDevice,
    VfDevice,
    existing_vf,
    group_members,
    locate,
)
from devalloc.inventory.pci import scan_functions
from devalloc.inventory.sysfs import Tree
from tests.support import pci_cards
from tests.support.discovery_view import DiscoveredPools
from tests.support.fake_host import FakeHost
from tests.support.pci_cards import Vgpu, VgpuType

A2_TYPES = tuple(kind for kind in pci_cards.A2_TYPES if kind.id in {"nvidia-742", "nvidia-746"})
UUID = "6d2f8f4e-0000-4000-8000-000000000001"


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return server(tmp_path)


def server(folder: Path) -> FakeHost:
    host = FakeHost(folder)
    for card in (
        pci_cards.gpu(iommu_group=7),
        pci_cards.gpu_audio(iommu_group=7),
        pci_cards.nic(),
        pci_cards.connectx(vfs=7),
        pci_cards.connectx("0000:61:00.1", netdev="ens1f1np1", infiniband="mlx5_1", sriov=None),
        pci_cards.a2_vgpu_card(vfs=12, vgpu=Vgpu("mdev", 16384, A2_TYPES)),
        pci_cards.t4_vgpu_card(),
        pci_cards.l40s_vgpu_card(vfs=2),
    ):
        host.add(card)
    host.vgpu.create("0000:08:00.6", "nvidia-746", UUID)
    return host


def at(host: FakeHost, device: str, slot: str) -> object:
    return locate(Tree(host.root), "node-a", f"node-a-{slot}", device)


def test_a_card_and_its_functions(host: FakeHost) -> None:
    device = at(host, "0000-01-00-0", "0000-01-00")
    assert isinstance(device, PortDevice)
    assert [str(member.address) for member in device.port.members] == ["0000:01:00.0", "0000:01:00.1"]
    assert [str(member.address) for member in group_members(Tree(host.root), device.port.function)] == [
        "0000:01:00.0", "0000:01:00.1",
    ]  # fmt: skip


def test_one_of_several_ports(host: FakeHost) -> None:
    device = at(host, "0000-61-00-1", "0000-61-00")
    assert isinstance(device, PortDevice)
    assert [str(member.address) for member in device.port.members] == ["0000:61:00.1"]


def test_a_vf_that_is_to_be_created(host: FakeHost) -> None:
    device = at(host, "0000-41-10-4", "0000-41-00")
    assert isinstance(device, VfDevice)
    assert (str(device.vf.pf.address), device.vf.index, device.vf.function) == ("0000:41:00.0", 2, None)


def test_a_vf_that_exists(host: FakeHost) -> None:
    device = at(host, "0000-61-01-0", "0000-61-00")
    assert isinstance(device, VfDevice)
    assert device.vf.function is not None
    assert (device.vf.index, device.vf.function.driver) == (6, "mlx5_core")


def test_an_existing_vf_is_recognised_by_its_own_folder(host: FakeHost) -> None:
    """Of all functions there are, those that the whole card's look tells as VFs, and no others."""
    tree = Tree(host.root)
    functions = scan_functions(tree)
    for address, function in functions.items():
        slot = (function.physfn or address).slot_name
        expected = None
        with suppress(DeviceGone, DeviceUnknown):
            located = locate(tree, "node-a", f"node-a-{slot}", address.device_name)
            expected = located.vf.function if isinstance(located, VfDevice) else None
        assert existing_vf(tree, address.device_name) == expected, str(address)
    assert any(function.physfn for function in functions.values())
    for other in ("0000-41-10-4", f"mdev-{UUID}", "0000-08-00-4-nvidia-746", "00000-61-01-0", "../61-01-0", ""):
        assert existing_vf(tree, other) is None


@pytest.mark.parametrize(
    ("device", "slot", "parent", "profile"),
    [
        ("0000-08-00-4-nvidia-746", "0000-08-00", "0000:08:00.4", "nvidia-746"),
        ("0000-08-01-7-nvidia-742", "0000-08-00", "0000:08:01.7", "nvidia-742"),
        ("0000-3b-00-0-nvidia-226", "0000-3b-00", "0000:3b:00.0", "nvidia-226"),
        ("0000-3b-00-0-nvidia-226-3", "0000-3b-00", "0000:3b:00.0", "nvidia-226"),
        ("0000-26-00-4-nvidia-1148", "0000-26-00", "0000:26:00.4", "nvidia-1148"),
        ("0000-26-00-4-nvidia-4711", "0000-26-00", "0000:26:00.4", "nvidia-4711"),  # not in the list at the moment
    ],
)
def test_a_profile_on_a_function(host: FakeHost, device: str, slot: str, parent: str, profile: str) -> None:
    located = at(host, device, slot)
    assert isinstance(located, ProfileDevice)
    assert (str(located.parent.address), located.profile_id) == (parent, profile)


def test_a_mediated_device(host: FakeHost) -> None:
    device = at(host, f"mdev-{UUID}", "0000-08-00")
    assert isinstance(device, InstanceDevice)
    assert (str(device.parent.address), device.profile_id) == ("0000:08:00.6", "nvidia-746")
    host.vgpu.remove(UUID)
    with pytest.raises(DeviceGone):
        at(host, f"mdev-{UUID}", "0000-08-00")


def test_a_vanished_device_has_its_cause(host: FakeHost) -> None:
    host.set_numvfs("0000:41:00.0", 1)
    with pytest.raises(DeviceGone, match=r"0000:41:00\.0 has 1 VFs now"):
        at(host, "0000-41-10-4", "0000-41-00")
    host.unbind("nvidia", "0000:08:00.4")
    with pytest.raises(DeviceGone, match="offers no vGPUs at present"):
        at(host, "0000-08-00-4-nvidia-746", "0000-08-00")
    with pytest.raises(DeviceGone, match="no card in slot"):
        at(host, "0000-99-00-0", "0000-99-00")


def test_a_function_that_is_no_device_is_not_gone(host: FakeHost) -> None:
    host.add(pci_cards.bridge("0000:98:00.0"))
    with pytest.raises(DeviceUnknown, match=r"0000:98:00\.0 is of a kind that is not published"):
        at(host, "0000-98-00-0", "0000-98-00")
    with pytest.raises(DeviceGone, match="no card in slot"):
        at(host, "0000-98-00-1", "0000-98-00")


def test_no_other_card_is_read_nor_a_vf_that_was_not_asked_for(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    read: set[str] = set()
    really = os.open

    def recorded(path: str, flags: int, *rest: int) -> int:
        if not flags & os.O_PATH:
            read.update(part for part in str(path).split("/") if part.count(":") == 2)
        return really(path, flags, *rest)

    monkeypatch.setattr(os, "open", recorded)
    at(host, "0000-61-01-0", "0000-61-00")
    in_slot = {f"0000:61:00.{number}" for number in range(8)}
    bridge = {"0000:00:0c.1"}
    assert read - bridge <= in_slot | {"0000:61:01.0"}


class TestSight:
    """Whether others' descriptors can be seen is proven, not hoped (T8)."""

    def test_on_a_host_they_can(self, host: FakeHost) -> None:
        assert visibility_problem(Tree(host.root)) is None

    def test_in_a_container_they_cannot(self, host: FakeHost) -> None:
        host.blind()
        assert "only the processes of this container" in (visibility_problem(Tree(host.root)) or "")

    def test_nor_without_process_1(self, host: FakeHost) -> None:
        host.end_process(1)
        assert "process 1 cannot be seen" in (visibility_problem(Tree(host.root)) or "")

    def test_nor_without_the_right_to_look(self, host: FakeHost) -> None:
        for descriptor in (host.root / "proc/1/fd").iterdir():
            descriptor.unlink()
        assert "cannot be read" in (visibility_problem(Tree(host.root)) or "")

    def test_nor_in_a_recording(self, tmp_path: Path) -> None:
        (tmp_path / "only/sys").mkdir(parents=True)
        assert visibility_problem(Tree(tmp_path / "only")) == "there is no /proc"


def test_of_two_profiles_whose_names_would_be_one_the_published_one_is_found(host: FakeHost) -> None:
    types = (VgpuType("x_1", "first", 128, 1), VgpuType("X-1", "second", 64, 1))
    host.add(pci_cards.intel_gpu("0000:0e:00.0", sriov=None, vgpu=Vgpu("mdev", 512, types)))
    inventory = DiscoveredPools.on(host.root)
    located = locate(Tree(host.root), "node-a", "node-a-0000-0e-00", "0000-0e-00-0-x-1")
    assert isinstance(located, ProfileDevice)
    assert located.profile_id == inventory.attributes("0000-0e-00-0-x-1")["profileID"]
