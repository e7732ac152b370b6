"""What is never taken from the host, for any caller and under any name (T4, T8)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from devalloc.device_kinds import ALLOWABLE
from devalloc.inventory.class_devices import DeviceNode
from devalloc.inventory.sysfs import Tree
from devalloc_node.binding import checks
from devalloc_node.errors import Denied
from tests.support import pci_cards
from tests.support.binding_runner import BindingRunner, refusal
from tests.support.discovery_view import DiscoveredPools
from tests.support.fake_host import FakeHost
from tests.support.node_errors import raises

GPU = "0000:01:00.0"
AUDIO = "0000:01:00.1"
GPU_DEVICE = "0000-01-00-0"
NIC_DEVICE = "0000-05-00-0"
DISK_DEVICE = "0000-42-00-0"
ALL = frozenset(ALLOWABLE)


class TestWhatTheAdminAllows:
    @pytest.mark.parametrize(
        ("card", "device", "kind"),
        [
            (pci_cards.plain_nic(), NIC_DEVICE, "nic"),
            (pci_cards.accelerator(), "0000-71-00-0", "accelerator"),
            (pci_cards.nvme(), DISK_DEVICE, "storage"),
        ],
    )
    def test_whole_cards_other_than_gpus_must_be_named(
        self, host: FakeHost, card: pci_cards.Function, device: str, kind: str
    ) -> None:
        host.add(card)
        assert refusal(host, device) == "KindNotAllowed"
        allowed = frozenset({"gpu", kind})
        if kind == "storage":
            assert refusal(host, device, allowed=allowed) == "ErasePolicyMissing"
        hand = BindingRunner.on(host, allowed=allowed, erase_policy=True)
        hand.prepare(device)
        assert host.driver_of(card.address) == "vfio-pci"

    def test_even_gpus_may_be_kept(self, host: FakeHost) -> None:
        host.add(pci_cards.gpu())
        assert refusal(host, GPU_DEVICE, allowed=frozenset({"vf"})) == "KindNotAllowed"


def root_disk(host: FakeHost) -> str:
    host.add(pci_cards.nvme())
    host.mount("nvme0n1", "/")
    return DISK_DEVICE


def disk_on_the_usb_of_a_gpu(host: FakeHost) -> str:
    host.add(pci_cards.gpu(iommu_group=7))
    host.add(pci_cards.Function("0000:01:00.2", 0x10DE, 0x1AD8, 0x0C0330, "xhci_hcd", iommu_group=7))
    disk = f"{host.path('0000:01:00.2')}/usb3/3-1/3-1:1.0/host0/target0:0:0/0:0:0:0/block/sda"
    for path in (disk, f"{disk}/sda1"):
        host.write(f"{path}/size", "7501476528")
        host.link(f"class/block/{path.rpartition('/')[2]}", path)
    host.mount("sda1", "/")
    return GPU_DEVICE


def swap(host: FakeHost) -> str:
    host.add(pci_cards.nvme())
    host.swap("nvme0n1")
    return DISK_DEVICE


def in_lvm(host: FakeHost) -> str:
    host.add(pci_cards.nvme())
    host.hold("nvme0n1")
    return DISK_DEVICE


def uplink(host: FakeHost) -> str:
    host.add(pci_cards.plain_nic())
    host.default_route("eth9")
    return NIC_DEVICE


def bridged(host: FakeHost) -> str:
    host.add(pci_cards.plain_nic())
    host.enslave("eth9")
    return NIC_DEVICE


def addressed(host: FakeHost) -> str:
    host.add(pci_cards.plain_nic())
    host.proc("net/if_inet6", "fd00000000000000fc0000fffe000001 04 40 00 80     eth9\n")
    return NIC_DEVICE


def of_another_network(host: FakeHost) -> str:
    """A pod without the host's network: the names of interfaces are the host's, the routes that it sees are its own."""
    host.add(pci_cards.plain_nic())
    host.default_route("eth0")
    for pid, namespace in (("1", "net:[4026531840]"), ("self", "net:[4026532700]")):
        os.symlink(namespace, host.root / f"proc/{pid}/ns/net")
    return NIC_DEVICE


def boot_vga(host: FakeHost) -> str:
    host.add(pci_cards.gpu(boot_vga=True))
    return GPU_DEVICE


def console(host: FakeHost) -> str:
    host.add(pci_cards.gpu())
    host.write(f"{host.path(GPU)}/graphics/fb0/name", "nvidiadrmfb")
    return GPU_DEVICE


def bmc(host: FakeHost) -> str:
    host.add(pci_cards.bmc_vga())
    return "0000-04-00-0"


class TestWhatTheHostNeeds:
    """Refused whatever else the admin allows (T4)."""

    @pytest.mark.parametrize(
        "need",
        [
            root_disk, disk_on_the_usb_of_a_gpu, swap, in_lvm, uplink, bridged, addressed, of_another_network,
            boot_vga, console, bmc,
        ],
        ids=lambda f: f.__name__,
    )  # fmt: skip
    def test_reserved(self, host: FakeHost, need: Callable[[FakeHost], str]) -> None:
        device = need(host)
        settings = {"allowed": ALL, "erase_policy": True, "allow_shared_groups": True}
        assert refusal(host, device, **settings) == "DeviceReserved"

    @pytest.mark.parametrize(("error", "code"), [(errno.EBUSY, "DeviceReserved"), (errno.EACCES, "InUseUnknown")])
    def test_a_disk_that_the_kernel_keeps_for_itself(
        self, host: FakeHost, monkeypatch: pytest.MonkeyPatch, error: int, code: str
    ) -> None:
        """As a disk of a file system of several: no list of mounts names it."""
        host.add(pci_cards.nvme())
        settings = {"allowed": ALL, "erase_policy": True}
        node, opened = str(host.root / "dev/nvme0n1"), os.open

        def exclusively(path: Any, flags: int, *more: Any, **options: Any) -> int:
            if str(path) == node:
                assert flags & os.O_EXCL
                raise OSError(error, os.strerror(error), node)
            return opened(path, flags, *more, **options)

        monkeypatch.setattr(os, "open", exclusively)
        assert refusal(host, DISK_DEVICE, **settings) == code

    def test_a_disk_whose_node_is_not_here(self, host: FakeHost) -> None:
        """In a container with a /dev of its own the kernel cannot be asked who keeps it."""
        host.add(pci_cards.nvme())
        (host.root / "dev/nvme0n1").unlink()
        assert refusal(host, DISK_DEVICE, allowed=ALL, erase_policy=True) == "InUseUnknown"

    def test_not_by_its_neighbour_in_the_slot_either(self, host: FakeHost) -> None:
        host.add(pci_cards.gpu(boot_vga=True, iommu_group=7))
        host.add(pci_cards.gpu_audio(iommu_group=7))
        assert refusal(host, "0000-01-00-1", allowed=ALL) == "DeviceUnknown"

    def test_nor_by_a_peer_of_a_shared_group(self, host: FakeHost) -> None:
        host.add(pci_cards.accelerator("0000:00:02.0", iommu_group=7, driver=None))
        uplink_nic = pci_cards.plain_nic(iommu_group=7)
        host.add(uplink_nic)
        host.default_route("eth9")
        assert refusal(host, "0000-00-02-0", allowed=ALL, allow_shared_groups=True) == "GroupShared"

    def test_nor_where_a_machine_may_have_a_peer_of_its_group(self, host: FakeHost) -> None:
        """A peer on VFIO counts as free only if all processes can be seen."""
        host.add(pci_cards.accelerator("0000:00:02.0", iommu_group=7, driver=None))
        host.add(pci_cards.plain_nic(iommu_group=7, driver="vfio-pci"))
        settings = {"allowed": ALL, "allow_shared_groups": True}
        host.blind()
        assert refusal(host, "0000-00-02-0", **settings) == "InUseUnknown"

    def test_a_device_of_unknown_use_is_refused(self, host: FakeHost) -> None:
        host.add(pci_cards.plain_nic())
        host.add(pci_cards.nvme())
        settings = {"allowed": ALL, "erase_policy": True}
        (host.root / "proc/net/route").unlink()
        assert refusal(host, NIC_DEVICE, **settings) == "InUseUnknown"
        (host.root / "proc/mounts").unlink()
        assert refusal(host, DISK_DEVICE, **settings) == "InUseUnknown"

    def test_a_network_card_where_the_hosts_processes_and_so_its_network_cannot_be_seen(self, host: FakeHost) -> None:
        host.add(pci_cards.plain_nic())
        host.blind()
        assert refusal(host, NIC_DEVICE, allowed=ALL) == "InUseUnknown"


class TestWhatIsInUse:
    def test_by_a_process(self, gpu: FakeHost) -> None:
        gpu.process(812, "python3", opens=("/dev/dri/card0",))
        assert refusal(gpu, GPU_DEVICE) == "DeviceInUse"

    def test_monitors_count_when_their_driver_would_have_to_leave(self, gpu: FakeHost) -> None:
        gpu.proc(f"driver/nvidia/gpus/{GPU}/information", "Device Minor: \t 0\n")
        gpu.process(812, "nvidia-persiste", opens=("/dev/nvidia0",))
        assert refusal(gpu, GPU_DEVICE) == "DeviceInUse"
        with pytest.raises(Denied) as caught:
            BindingRunner.on(gpu).prepare(GPU_DEVICE)
        reason = DiscoveredPools.on(gpu.root).unavailable(GPU_DEVICE)
        assert caught.value.message == f"{GPU} is {reason}"

    def test_on_vfio_already_with_another_machine(self, gpu: FakeHost) -> None:
        hand = BindingRunner.on(gpu)
        gpu.process(4711, opens=hand.prepare(GPU_DEVICE).nodes)
        assert refusal(gpu, GPU_DEVICE) == "DeviceInUse"

    def test_the_check_waits_for_udev_and_for_no_other_process(
        self, gpu: FakeHost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It opens a node that has just appeared, also when the driver is bound for a claim."""
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 3:
                gpu.end_process(342)

        monkeypatch.setattr(checks.time, "sleep", pause)
        gpu.process(342, "(udev-worker)", opens=("/dev/vfio/7",))
        checks.refuse_open(Tree(gpu.root), [DeviceNode("/dev/vfio/7", None)], GPU, certain=True)
        assert len(pauses) == 3

        gpu.process(342, "(udev-worker)", opens=("/dev/vfio/7",))
        gpu.process(812, "python3", opens=("/dev/vfio/8",))
        nodes = [DeviceNode("/dev/vfio/7", None), DeviceNode("/dev/vfio/8", None)]
        with pytest.raises(Denied, match=f"{GPU} is in use: python3 812 has /dev/vfio/8 open"):
            checks.refuse_open(Tree(gpu.root), nodes, GPU, certain=True)
        assert len(pauses) == 3

    def test_udev_that_looks_at_the_node_of_a_host_driver_is_waited_for(
        self, gpu: FakeHost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It opens it when a device has just returned to that driver."""
        gpu.process(342, "(udev-worker)", opens=("/dev/dri/card0",))
        monkeypatch.setattr(checks.time, "sleep", lambda seconds: gpu.end_process(342))
        BindingRunner.on(gpu).prepare(GPU_DEVICE)
        assert gpu.driver_of(GPU) == "vfio-pci"

    def test_a_process_that_calls_itself_udev_keeps_what_it_uses(
        self, gpu: FakeHost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(checks, "_UDEV_SECONDS", 0.1)
        gpu.process(812, "(udev-worker)", opens=("/dev/dri/card0",))
        assert DiscoveredPools.on(gpu.root).unavailable(GPU_DEVICE) == "in use: (udev-worker) 812"
        assert refusal(gpu, GPU_DEVICE) == "DeviceInUse"

    def test_udev_that_hangs_counts_as_a_user(self, gpu: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(checks, "_UDEV_SECONDS", 0.1)
        gpu.process(342, "systemd-udevd", opens=("/dev/vfio/7",))
        with pytest.raises(Denied, match="systemd-udevd 342 has /dev/vfio/7 open"):
            checks.refuse_open(Tree(gpu.root), [DeviceNode("/dev/vfio/7", None)], GPU, certain=True)

    @pytest.mark.parametrize(
        ("file", "node"),
        [
            ("uio/uio0", "/dev/uio0"),
            ("ptp/ptp0", "/dev/ptp0"),
            ("infiniband_mad/umad0", "/dev/infiniband/umad0"),
            ("vdpa0/vhost-vdpa-0", "/dev/vhost-vdpa-0"),
            ("accel/accel0", "/dev/accel/accel0"),
            ("infiniband_verbs/uverbs0", "/dev/infiniband/uverbs0"),
        ],
    )
    def test_by_a_program_that_has_no_interface(self, host: FakeHost, file: str, node: str) -> None:
        """Such as DPDK, or the clock that the host is set by."""
        host.add(pci_cards.plain_nic())
        host.write(f"{host.path('0000:05:00.0')}/{file}/dev", "240:0")
        host.process(812, "dpdk-testpmd", opens=(node,))
        assert refusal(host, NIC_DEVICE, allowed=ALL) == "DeviceInUse"

    @pytest.mark.parametrize(
        ("folder", "node"),
        [("habanalabs/hl0", "hl0"), ("tenstorrent/tenstorrent!0", "tenstorrent/0"), ("ve/veslot0", "veslot0")],
    )
    def test_by_a_program_that_computes_on_an_accelerator(self, host: FakeHost, folder: str, node: str) -> None:
        """Each vendor has a class of devices of its own."""
        host.add(pci_cards.accelerator())
        host.write(f"{host.path('0000:71:00.0')}/{folder}/uevent", f"MAJOR=240\nMINOR=0\nDEVNAME={node}\n")
        host.process(812, "python3", opens=(f"/dev/{node}",))
        assert DiscoveredPools.on(host.root).unavailable("0000-71-00-0") == "in use: python3 812"
        assert refusal(host, "0000-71-00-0", allowed=ALL) == "DeviceInUse"

    def test_by_a_program_that_sends_a_drive_its_commands_itself(self, host: FakeHost) -> None:
        host.add(pci_cards.nvme())
        host.write(f"{host.path('0000:42:00.0')}/nvme/nvme0/ng0n1/dev", "241:0")
        host.process(812, "fio", opens=("/dev/ng0n1",))
        assert refusal(host, DISK_DEVICE, allowed=ALL, erase_policy=True) == "DeviceInUse"

    def test_a_device_that_vfio_serves_without_an_iommu_is_refused(self, gpu: FakeHost) -> None:
        """Its group is none, and its node has another name (T5)."""
        hand = BindingRunner.on(gpu)
        hand.prepare(GPU_DEVICE)
        gpu.write("kernel/iommu_groups/7/name", "vfio-noiommu")
        gpu.process(812, "dpdk-testpmd", opens=("/dev/vfio/noiommu-7",))
        assert refusal(gpu, GPU_DEVICE) == "NoIommuGroup"

    def test_unknown_use_counts_as_in_use(self, gpu: FakeHost) -> None:
        gpu.blind()
        assert refusal(gpu, GPU_DEVICE) == "InUseUnknown"

    def test_an_interface_in_another_namespace(self, host: FakeHost) -> None:
        host.add(pci_cards.plain_nic(netdev=None))
        (host.sys / host.path("0000:05:00.0", "net")).mkdir()
        assert refusal(host, NIC_DEVICE, allowed=ALL) == "DeviceInUse"

    def test_a_function_beside_the_nic_that_runs_something_else(self, host: FakeHost) -> None:
        host.add(pci_cards.plain_nic(iommu_group=7))
        host.add(replace(pci_cards.gpu_audio("0000:05:00.1", iommu_group=7), class_code=0x0C0330, native="xhci_hcd"))
        assert refusal(host, NIC_DEVICE, allowed=ALL) == "DeviceInUse"

    def test_a_card_with_vfs(self, host: FakeHost) -> None:
        host.add(pci_cards.amd_gpu(vfs=2))
        assert refusal(host, "0000-03-00-0") == "VfsEnabled"

    def test_a_card_with_a_vgpu(self, host: FakeHost) -> None:
        card = host.add(pci_cards.t4_vgpu_card())
        host.vgpu.create(card, "nvidia-226", "6d2f8f4e-0000-4000-8000-000000000001")
        assert refusal(host, "0000-3b-00-0") == "DeviceInUse"


class TestNames:
    def test_hostile_or_wrong_ones_are_no_devices(self, gpu: FakeHost) -> None:
        for device in (
            "", ".", "../../etc", "0000-01-00-9", "0000-01-00-0\0", "0000-01-00", "x" * 10_000, "0000-1-00-0",
            "mdev-..", "0000-01-00-0-nvidia-../..", "0000-01-20-0", "0000-01-00-0-", "0000-01-00-0\n",
        ):  # fmt: skip
            with pytest.raises(Denied) as caught:
                BindingRunner.on(gpu).prepare(device, "node-a-0000-01-00")
            assert caught.value.code in ("DeviceUnknown", "DeviceGone")
            assert len(caught.value.message) < 400

    def test_the_pool_is_the_cards_own(self, gpu: FakeHost) -> None:
        gpu.add(pci_cards.plain_nic())
        for pool in (
            "node-b-0000-01-00", "node-a-0000-05-00", "0000-01-00", "", "node-a", "../node-a", "node-a-0000-01-00-0",
            "node-a-0000-01-00\n", "x" * 10_000,
        ):  # fmt: skip
            with raises(Denied, "DeviceUnknown"):
                BindingRunner.on(gpu).prepare(GPU_DEVICE, pool)
        assert gpu.driver_of(GPU) == "nvidia"

    def test_a_device_that_was_pulled_out(self, gpu: FakeHost) -> None:
        for address in (GPU, AUDIO):
            gpu.remove_function(address)
        assert refusal(gpu, GPU_DEVICE) == "DeviceGone"
