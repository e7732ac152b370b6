"""The fake kernel keeps to what real kernels showed: the recordings where they are there, and the documented errnos."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support import pci_cards
from tests.support.fake_sysfs import FakeSysfs
from tests.support.fake_tree import memory_folder
from tests.support.recordings import unpack

PF, VF0 = "0000:41:00.0", "0000:41:10.0"
A2, A2_VFS = "0000:08:00.0", ["0000:08:00.4", "0000:08:00.5", "0000:08:00.6", "0000:08:00.7"]
REFUSALS = ("ENOENT", "ENODEV", "EBUSY", "ERANGE", "ENOSPC", "EEXIST", "EPERM", "EACCES")
UUIDS = [f"f715f63c-0d00-4007-9c5a-b07b0c6c05d{i}" for i in range(8)]


def refusal(act: Callable[[], None]) -> str:
    """The name of the errno with which an operation is refused."""
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the errno is what the caller compares
        act()
    assert caught.value.errno is not None
    return errno.errorcode[caught.value.errno]


def dangling(host: FakeSysfs) -> list[str]:
    links = (os.path.join(folder, name) for folder, dirs, files in os.walk(host.sys) for name in dirs + files)
    return [link for link in links if os.path.islink(link) and not os.path.exists(link)]


@pytest.fixture
def host() -> Iterator[FakeSysfs]:
    with memory_folder() as folder:
        yield FakeSysfs(Path(folder))


class TestLayout:
    def test_devices_stand_below_their_root_port_and_bus_links_lead_there(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nic(PF))
        link = host.sys / "bus/pci/devices" / PF
        assert os.readlink(link) == "../../../devices/pci0000:00/0000:00:08.1/0000:41:00.0"
        assert (link / "driver").resolve().name == "igb"
        assert (link / "iommu_group").resolve().parent.name == "iommu_groups"
        assert (host.sys / "class/net/eth0/device").resolve() == link.resolve()

    def test_a_32_bit_domain_and_an_own_root(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nvme("10000:01:00.0"))
        host.add(pci_cards.gpu("0000:82:00.0", ports=("0000:80:01.0",)))
        assert host.path("10000:01:00.0") == "devices/pci10000:00/10000:00:00.1/10000:01:00.0"
        assert host.path("0000:82:00.0") == "devices/pci0000:80/0000:80:01.0/0000:82:00.0"

    def test_every_preset_plugs_in_and_leaves_again(self, host: FakeSysfs) -> None:
        presets = [
            pci_cards.gpu(),
            pci_cards.gpu_audio(),
            pci_cards.amd_gpu(),
            pci_cards.nic(),
            pci_cards.connectx(),
            pci_cards.plain_nic(),
            pci_cards.nvme(),
            pci_cards.accelerator(),
            pci_cards.bmc_vga(),
            pci_cards.a2_vgpu_card(vfs=16),
            pci_cards.t4_vgpu_card(),
            pci_cards.l40s_vgpu_card(vfs=32),
        ]
        for card in presets:
            host.add(card)
        assert dangling(host) == []
        for card in presets:
            host.remove_function(card.address)
        ports = [f for f in host.functions.values() if f.spec.native != "pcieport"]
        assert (ports, dangling(host)) == ([], [])

    def test_names_and_contents_are_those_of_the_recorded_igb(self, host: FakeSysfs, tmp_path: Path) -> None:
        recorded = unpack("igb-guest", tmp_path / "recorded", whole=True)
        host.add(
            pci_cards.nic(
                PF,
                ports=("0000:40:00.0",),
                vfs=3,
                netdev="eth1",
                link=("2.5 GT/s PCIe", 1),
                files={"reset_method": "flr pm bus", "revision": "0x01"},
            )
        )
        path = Path(host.path(PF))
        own, theirs = host.sys / path, recorded / "sys" / path
        assert {p.name for p in own.iterdir()} <= {p.name for p in theirs.iterdir()}
        same = [
            "vendor",
            "device",
            "class",
            "subsystem_vendor",
            "modalias",
            "numa_node",
            "driver_override",
            "revision",
            "sriov_totalvfs",
            "sriov_numvfs",
            "sriov_offset",
            "sriov_stride",
            "sriov_vf_device",
            "reset_method",
            "current_link_speed",
            "current_link_width",
            "net/eth1/type",
            "net/eth1/mtu",
        ]
        assert {n: (own / n).read_text() for n in same} == {n: (theirs / n).read_text() for n in same}
        assert set((own / "uevent").read_text().split()) <= set((theirs / "uevent").read_text().split())
        links = ["driver", "subsystem", "virtfn0", "virtfn1", "virtfn2", "../0000:41:10.0/physfn"]
        assert [os.readlink(own / n) for n in links] == [os.readlink(theirs / n) for n in links]


class TestDrivers:
    def test_override_and_probe_move_a_function_to_vfio_pci_and_back(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nic(PF))
        device = f"bus/pci/devices/{PF}"
        host.store(f"{device}/driver_override", "vfio-pci")
        host.store("bus/pci/drivers_probe", PF)
        assert host.driver_of(PF) == "igb"  # a probe leaves a bound device alone
        host.store(f"{device}/driver/unbind", PF)
        assert not (host.sys / "class/net/eth0").exists()
        host.probe(PF)
        group = (host.sys / device / "iommu_group").resolve().name
        assert (host.driver_of(PF), (host.sys / "class/vfio" / group).exists()) == ("vfio-pci", True)
        host.store(f"{device}/driver/unbind", PF)
        host.store(f"{device}/driver_override", "\n")
        assert host.read(f"{device}/driver_override") == "(null)"
        host.probe(PF)
        assert (host.driver_of(PF), (host.sys / "class/vfio" / group).exists()) == ("igb", False)
        assert (host.sys / "class/net/eth0").exists()

    def test_refusals(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nic(PF))
        assert refusal(lambda: host.bind("igb", PF)) == "EBUSY"
        assert refusal(lambda: host.bind("vfio-pci", PF)) == "ENODEV"  # without an override it does not match
        assert refusal(lambda: host.unbind("vfio-pci", PF)) == "ENODEV"
        assert refusal(lambda: host.unbind("igb", "0000:99:00.0")) == "ENODEV"

    def test_vfio_pci_does_not_take_a_function_without_a_group(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nic(PF, driver=None, iommu_group=None))
        host.set_override(PF, "vfio-pci")
        assert refusal(lambda: host.bind("vfio-pci", PF)) == "EINVAL"


class TestSriov:
    def test_vfs_appear_at_offset_and_stride(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nic(PF))
        host.events.clear()
        host.store(f"bus/pci/devices/{PF}/sriov_numvfs", "3")
        assert host.vf_addresses(PF)[:3] == ["0000:41:10.0", "0000:41:10.2", "0000:41:10.4"] == host.functions[PF].vfs
        assert (host.sys / host.path(VF0, "physfn")).resolve() == (host.sys / host.path(PF)).resolve()
        assert host.read(host.path(VF0, "device")) == "0x10ca"
        assert [e.action for e in host.events if e.subsystem == "pci"].count("add") == 3

    def test_vfs_that_do_not_fit_on_the_bus_go_to_the_next(self, host: FakeSysfs) -> None:
        host.add(
            pci_cards.nic(PF, sriov=pci_cards.Sriov(64, offset=250, stride=4, vf_device=0x10CA, vf_driver="igbvf"))
        )
        assert host.vf_addresses(PF)[1:3] == ["0000:41:1f.6", "0000:42:00.2"]

    def test_the_count_changes_only_through_zero(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nic(PF, vfs=3))
        host.set_numvfs(PF, 3)
        assert refusal(lambda: host.set_numvfs(PF, 5)) == "EBUSY"
        assert refusal(lambda: host.set_numvfs(PF, 99)) == "ERANGE"
        assert refusal(lambda: host.store(f"bus/pci/devices/{PF}/sriov_numvfs", "many")) == "EINVAL"
        host.events.clear()
        host.set_numvfs(PF, 0)
        assert {e.action for e in host.events if e.subsystem == "pci"} == {"unbind", "remove"}
        assert (host.functions[PF].vfs, VF0 in host.functions, dangling(host)) == ([], False, [])

    def test_only_the_driver_of_the_pf_makes_vfs(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nic(PF, driver="vfio-pci"))
        assert refusal(lambda: host.set_numvfs(PF, 1)) == "ENOENT"

    def test_without_autoprobe_vfs_have_no_driver(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nic(PF))
        host.store(f"bus/pci/devices/{PF}/sriov_drivers_autoprobe", "0")
        host.set_numvfs(PF, 1)
        assert host.driver_of(VF0) is None


class TestVgpu:
    def available(self, host: FakeSysfs, parent: str) -> dict[str, tuple[str, str]]:
        folder = host.sys / "class/mdev_bus" / parent / "mdev_supported_types"
        return {
            t.name: (t.joinpath("name").read_text().strip(), t.joinpath("available_instances").read_text().strip())
            for t in folder.iterdir()
        }

    def test_with_three_live_4c_a_free_vf_of_the_a2_shows_the_recorded_numbers(
        self, host: FakeSysfs, tmp_path: Path
    ) -> None:
        host.add(pci_cards.a2_vgpu_card(A2, vfs=16))
        for vf, uuid in zip(A2_VFS, UUIDS[:3], strict=False):
            host.store(f"class/mdev_bus/{vf}/mdev_supported_types/nvidia-754/create", uuid)
        recording = unpack("harvester-pcidevices", tmp_path / "r")
        types = recording / "sys/class/mdev_bus/0000:08:01.7/mdev_supported_types"
        recorded = {
            t.name: ((t / "name").read_text().strip(), (t / "available_instances").read_text().strip())
            for t in types.iterdir()
        }
        assert self.available(host, "0000:08:01.7") == recorded

    def test_one_instance_a_vf_and_none_over_the_framebuffer(self, host: FakeSysfs) -> None:
        host.add(pci_cards.a2_vgpu_card(A2, vfs=16))
        host.vgpu.create(A2_VFS[0], "nvidia-747", UUIDS[0])
        assert refusal(lambda: host.vgpu.create(A2_VFS[0], "nvidia-747", UUIDS[1])) == "ENOSPC"
        assert refusal(lambda: host.vgpu.create(A2_VFS[1], "nvidia-746", UUIDS[1])) == "ENOSPC"  # another size
        host.vgpu.create(A2_VFS[1], "nvidia-747", UUIDS[1])
        assert refusal(lambda: host.vgpu.create(A2_VFS[2], "nvidia-747", UUIDS[2])) == "ENOSPC"
        assert refusal(lambda: host.vgpu.create(A2_VFS[2], "nvidia-747", UUIDS[1])) == "EEXIST"
        host.store(f"bus/mdev/devices/{UUIDS[0]}/remove", "1")
        assert self.available(host, A2_VFS[3])["nvidia-755"] == ("NVIDIA A2-8C", "1")
        assert dangling(host) == []

    def test_a_card_without_sriov_offers_its_profiles_itself(self, host: FakeSysfs) -> None:
        t4 = host.add(pci_cards.t4_vgpu_card())
        assert self.available(host, t4)["nvidia-226"] == ("GRID T4-4Q", "4")
        host.vgpu.create(t4, "nvidia-226", UUIDS[0])
        assert self.available(host, t4)["nvidia-226"][1] == "3"

    def test_the_vendor_layout_shrinks_its_lists(self, host: FakeSysfs) -> None:
        host.add(pci_cards.l40s_vgpu_card(vfs=2))
        first, second = (f"bus/pci/devices/{vf}/nvidia" for vf in ("0000:26:00.4", "0000:26:00.5"))
        assert host.read(f"{first}/creatable_vgpu_types").startswith("ID    : vGPU Name\n1145  : NVIDIA L40S-1B\n")
        host.store(f"{first}/current_vgpu_type", "1155")  # 24Q: half of the card
        assert host.read(f"{first}/current_vgpu_type") == "1155"
        assert host.read(f"{first}/creatable_vgpu_types") == "ID    : vGPU Name"
        assert "L40S-24Q" in host.read(f"{second}/creatable_vgpu_types")
        assert "L40S-48Q" not in host.read(f"{second}/creatable_vgpu_types")
        assert refusal(lambda: host.store(f"{first}/current_vgpu_type", "1145")) == "EPERM"
        host.store(f"{first}/current_vgpu_type", "0")
        assert "L40S-48Q" in host.read(f"{second}/creatable_vgpu_types")

    def test_an_empty_l40s_lists_what_the_recorded_one_lists(self, host: FakeSysfs, tmp_path: Path) -> None:
        host.add(pci_cards.l40s_vgpu_card(vfs=1))
        name = "bus/pci/devices/0000:26:00.4/nvidia/creatable_vgpu_types"
        recorded = (unpack("harvester-pcidevices", tmp_path / "r") / "sys" / name).read_text()
        assert (host.sys / name).read_text().split() == recorded.split()

    def test_instances_go_with_their_driver(self, host: FakeSysfs) -> None:
        host.add(pci_cards.a2_vgpu_card(A2, vfs=16))
        host.vgpu.create(A2_VFS[0], "nvidia-748", UUIDS[0])
        host.unbind("nvidia", A2_VFS[0])
        assert (host.vgpu.mdevs, self.available(host, A2_VFS[1])["nvidia-748"][1]) == ({}, "1")


class AnyOperations(RuleBasedStateMachine):
    """Whatever is done, in whatever order: refused with an errno or done whole."""

    FUNCTIONS = (PF, A2, "0000:42:00.0", VF0, A2_VFS[0], A2_VFS[1], "0000:26:00.0", "0000:26:00.4")

    @initialize()
    def start(self) -> None:
        self.folder = memory_folder()
        self.host = FakeSysfs(Path(self.folder.name))
        small = pci_cards.Sriov(3, vf_device=0x25B6, vf_driver="nvidia")
        for card in (
            pci_cards.nic(PF),
            pci_cards.a2_vgpu_card(A2, sriov=small),
            pci_cards.nvme(),
            pci_cards.l40s_vgpu_card(sriov=small),
        ):
            self.host.add(card)

    def teardown(self) -> None:
        self.folder.cleanup()

    def try_to(self, path: str, text: str) -> None:
        try:
            self.host.store(path, text)
        except OSError as error:
            if errno.errorcode[error.errno or 0] not in REFUSALS:
                raise

    @rule(address=st.sampled_from(FUNCTIONS), count=st.integers(0, 5))
    def numvfs(self, address: str, count: int) -> None:
        self.try_to(f"bus/pci/devices/{address}/sriov_numvfs", str(count))

    @rule(address=st.sampled_from(FUNCTIONS), driver=st.sampled_from(["vfio-pci", ""]))
    def rebind(self, address: str, driver: str) -> None:
        self.try_to(f"bus/pci/devices/{address}/driver/unbind", address)
        self.try_to(f"bus/pci/devices/{address}/driver_override", driver)
        self.try_to("bus/pci/drivers_probe", address)

    @rule(vf=st.sampled_from(A2_VFS), kind=st.sampled_from(["nvidia-746", "nvidia-748"]), uuid=st.sampled_from(UUIDS))
    def create_mdev(self, vf: str, kind: str, uuid: str) -> None:
        self.try_to(f"bus/pci/devices/{vf}/mdev_supported_types/{kind}/create", uuid)

    @rule(uuid=st.sampled_from(UUIDS))
    def remove_mdev(self, uuid: str) -> None:
        self.try_to(f"bus/mdev/devices/{uuid}/remove", "1")

    @rule(vf=st.sampled_from(["0000:26:00.4", "0000:26:00.5"]), kind=st.sampled_from(["0", "1155", "1156"]))
    def set_type(self, vf: str, kind: str) -> None:
        self.try_to(f"bus/pci/devices/{vf}/nvidia/current_vgpu_type", kind)

    @rule(address=st.sampled_from(FUNCTIONS))
    def pull(self, address: str) -> None:
        if self.host.functions.get(address) and self.host.functions[address].pf is None:
            spec = self.host.functions[address].spec
            self.try_to(f"bus/pci/devices/{address}/remove", "1")
            self.host.add(spec)

    @invariant()
    def no_link_dangles_and_state_is_what_the_files_say(self) -> None:
        host = self.host
        assert dangling(host) == []
        assert set(os.listdir(host.sys / "bus/pci/devices")) == set(host.functions)
        for address, function in host.functions.items():
            driver = host.sys / function.path / "driver"
            assert (os.path.basename(os.readlink(driver)) if driver.is_symlink() else None) == function.driver
            if function.spec.sriov:
                assert host.read(f"{function.path}/sriov_numvfs") == str(len(function.vfs)), address
        mdevs = host.sys / "bus/mdev/devices"
        assert set(os.listdir(mdevs) if mdevs.exists() else ()) == set(host.vgpu.mdevs)


TestAnyOperations = AnyOperations.TestCase
TestAnyOperations.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)
