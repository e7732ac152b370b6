"""Why a device is published but not offered (settled T3-T5, T7, T8)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support import pci_cards
from tests.support.discovery_view import DiscoveredPools
from tests.support.fake_sysfs import FakeSysfs
from tests.support.pci_cards import Function

NIC = "0000:05:00.0"
NIC_DEVICE = "0000-05-00-0"
DISK = "0000:42:00.0"
DISK_DEVICE = "0000-42-00-0"
GPU_DEVICE = "0000-01-00-0"


def reason(host: FakeSysfs, device: str, **settings: object) -> str | None:
    return DiscoveredPools.on(host.root, **settings).unavailable(device)


def hold_open(host: FakeSysfs, node: str, pid: int = 4711, comm: str = "qemu-system-x86") -> None:
    """A process that has a device node open."""
    host.proc(f"{pid}/comm", comm + "\n")
    (host.root / f"proc/{pid}/fd").mkdir()
    os.symlink(node, host.root / f"proc/{pid}/fd/11")


@pytest.fixture
def unlistable(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Has a folder refuse to be listed, as one may for whom its files can be read."""

    def refuse(name: str) -> None:
        def refusing(listing: Callable[[Any], Any]) -> Callable[[Any], Any]:
            def listed(path: Any) -> Any:
                if str(path).endswith(f"/{name}"):
                    raise PermissionError(errno.EACCES, "Permission denied", path)
                return listing(path)

            return listed

        for function in ("listdir", "scandir"):
            monkeypatch.setattr(os, function, refusing(getattr(os, function)))

    return refuse


class TestWhatCannotBeListed:
    def test_what_shares_the_iommu_group_is_still_seen(
        self, host: FakeSysfs, unlistable: Callable[[str], None]
    ) -> None:
        host.add(pci_cards.gpu(iommu_group=40))
        host.add(pci_cards.accelerator("0000:0b:00.0", iommu_group=40))
        unlistable("0000:0b:00.0")
        assert reason(host, GPU_DEVICE) == "IOMMU group 40 is shared with 0000:0b:00.0"

    def test_what_the_host_needs_is_still_seen(self, host: FakeSysfs, unlistable: Callable[[str], None]) -> None:
        host.add(pci_cards.plain_nic())
        host.default_route("eth9")
        unlistable(NIC)
        assert reason(host, NIC_DEVICE) == "reserved: default route"

    @pytest.mark.parametrize("folder", [NIC, "net", "mlx5_core.sf.2"])
    def test_anything_may_hang_below_it(self, host: FakeSysfs, unlistable: Callable[[str], None], folder: str) -> None:
        host.add(pci_cards.plain_nic())
        host.write(f"{host.path(NIC)}/mlx5_core.sf.2/net/eth10/address", "02:25:f2:8d:a2:4c")
        host.default_route("eth10")
        unlistable(folder)
        assert (reason(host, NIC_DEVICE) or "").startswith("reserved: not all that hangs below it can be seen")

    def test_a_folder_that_has_gone_meanwhile_hides_nothing(
        self, host: FakeSysfs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        host.add(pci_cards.plain_nic())
        host.write(f"{host.path(NIC)}/mlx5_core.sf.2/uevent", "")
        scandir = os.scandir

        def listed(path: Any) -> Any:
            if str(path).endswith("/mlx5_core.sf.2"):
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            return scandir(path)

        monkeypatch.setattr(os, "scandir", listed)
        assert reason(host, NIC_DEVICE) is None


POD_OFF = "kubectl label node NODE nvidia.com/gpu.deploy"
LIO = "kernel/config/target/core/iblock_0/disk/info"
MEMBERS = {
    "btrfs": ("fs/btrfs/5e0f/devices/nvme0n1", "part of a btrfs file system"),
    "bcachefs": ("fs/bcachefs/5e0f/dev-0/block", "part of a bcachefs file system"),
    "an external journal of ext4": ("proc/fs/jbd2/nvme0n1/info", "the journal of a file system"),
    "a log of XFS": ("mount xfs /dev/sda1 rw,logbufs=8,logdev=/dev/nvme0n1", "mounted"),
    "a loop device": ("class/block/loop7/loop/backing_file=", "the file of loop7"),
    "nvmet": ("kernel/config/nvmet/subsystems/nqn/namespaces/1/device_path=", "exported by nvmet"),
    "nvmet, with its namespaces": (
        "kernel/config/nvmet/subsystems/nqn/passthru/device_path=/dev/nvme0",
        "exported by nvmet",
    ),
    "LIO": ("kernel/config/target/core/iblock_0/disk/udev_path=", "exported by LIO"),
    "LIO, by a disk that has no path": (f"{LIO}=iBlock device: nvme0n1  UDEV PATH:  readonly: 0", "exported by LIO"),
    "LIO, by a number": (f"{LIO}=Major: 259 Minor: 0  CLAIMED: IBLOCK", "exported by LIO"),
    "LIO, by a file": (f"{LIO}=TCM FILEIO ID: 0        File: /dev/nvme0n1  Size: 1024", "exported by LIO"),
    "a USB gadget": ("kernel/config/usb_gadget/g1/functions/mass_storage.0/lun.0/file=", "exported by a USB gadget"),
}


class TestWhatTheHostNeeds:
    def test_an_idle_nic_is_free(self, host: FakeSysfs) -> None:
        host.add(pci_cards.plain_nic())
        assert reason(host, NIC_DEVICE) is None

    def test_the_nic_of_the_default_route(self, host: FakeSysfs) -> None:
        host.add(pci_cards.plain_nic())
        host.default_route("eth9")
        assert reason(host, NIC_DEVICE) == "reserved: default route"

    def test_the_nic_of_the_ipv6_default_route(self, host: FakeSysfs) -> None:
        host.add(pci_cards.plain_nic())
        none, via = "0" * 32, "fe80" + "0" * 28
        host.proc(
            "net/ipv6_route",
            f"{none} 00 {none} 00 {via} 00000400 00000001 00000000 00000003     eth9\n"
            f"{none} 00 {none} 00 {none} ffffffff 00000001 00000000 00200200       lo\n",
        )
        assert reason(host, NIC_DEVICE) == "reserved: default route"

    def test_a_nic_with_a_route_has_an_address(self, host: FakeSysfs) -> None:
        host.add(pci_cards.plain_nic())
        host.proc("net/route", "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
                               "eth9\t0000A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n")  # fmt: skip
        assert reason(host, NIC_DEVICE) == "reserved: address on eth9"

    @pytest.mark.parametrize(
        ("destination", "length", "expected"),
        [
            ("20010db8" + "0" * 24, "20", "reserved: address on eth9"),
            ("fe80" + "0" * 28, "40", None),
            ("fe80" + "0" * 12 + "022590fffe5bfe2b", "80", None),
            ("ff00" + "0" * 28, "08", None),
        ],
        ids=["by a router's link-local address", "link-local", "its own link-local address", "multicast"],
    )
    def test_a_nic_with_a_route_of_ipv6_and_no_address(
        self, host: FakeSysfs, destination: str, length: str, expected: str | None
    ) -> None:
        """As on hosts of a fabric whose routers speak BGP without numbers; the kernel makes the other routes itself."""
        host.add(pci_cards.plain_nic())
        host.proc("net/if_inet6", "fe80000000000000022590fffe5bfe2b 04 40 20 80     eth9\n")
        none, via = "0" * 32, "fe80" + "0" * 27 + "1"
        row = f"{destination} {length} {none} 00 {via} 00000400 00000001 00000000 00000003     eth9\n"
        host.proc("net/ipv6_route", row)
        assert reason(host, NIC_DEVICE) == expected

    @pytest.mark.parametrize(("scope", "expected"), [("00", "reserved: address on eth9"), ("20", None)])
    def test_a_link_local_address_is_no_use(self, host: FakeSysfs, scope: str, expected: str | None) -> None:
        host.add(pci_cards.plain_nic())
        host.proc("net/if_inet6", f"fd00000000000000fc0000fffe000001 04 40 {scope} 80     eth9\n")
        assert reason(host, NIC_DEVICE) == expected

    def test_a_nic_whose_default_route_goes_by_pppoe(self, host: FakeSysfs) -> None:
        host.add(pci_cards.plain_nic())
        host.default_route("ppp0")
        host.proc("net/pppoe", "Id       Address              Device\n000001A2 00:90:1a:a3:11:22     eth9\n")
        assert reason(host, NIC_DEVICE) == "reserved: carries PPPoE on eth9"

    def test_the_port_of_a_bridge(self, host: FakeSysfs) -> None:
        host.add(pci_cards.plain_nic())
        host.enslave("eth9", "br0")
        assert reason(host, NIC_DEVICE) == "reserved: member of br0"

    def test_a_nic_under_a_vlan(self, host: FakeSysfs) -> None:
        host.add(pci_cards.plain_nic())
        host.write("devices/virtual/net/eth9.100/type", "1")
        host.link("class/net/eth9/upper_eth9.100", "devices/virtual/net/eth9.100")
        assert reason(host, NIC_DEVICE) == "reserved: carries eth9.100"

    def test_the_vfs_of_a_reserved_port_stay_usable(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nic(vfs=3))
        host.default_route("eth0")
        inventory = DiscoveredPools.on(host.root)
        assert (inventory.unavailable("0000-41-00-0") or "").startswith("reserved: default route; in use: it has 3 VFs")
        assert inventory.fits(*inventory.names(function="vf"))

    def test_a_virtio_nic_is_found_below_its_virtio_device(self, host: FakeSysfs) -> None:
        host.add(replace(pci_cards.plain_nic(), vendor=0x1AF4, device=0x1041, netdev=None))
        host.write(f"{host.path(NIC)}/virtio2/net/eth3/address", "02:00:00:00:00:01")
        host.default_route("eth3")
        inventory = DiscoveredPools.on(host.root)
        assert inventory.unavailable(NIC_DEVICE) == "reserved: default route"
        assert inventory.attributes(NIC_DEVICE)["mac"] == "02:00:00:00:00:01"

    @pytest.mark.parametrize(
        ("use", "expected"),
        [
            (lambda host: host.mount("nvme0n1"), "nvme0n1 is mounted"),
            (lambda host: host.proc("self/mountinfo", "22 1 259:0 / / rw - ext4 /dev/root rw\n"), "nvme0n1 is mounted"),
            (lambda host: host.proc("self/mountinfo", "22 1 0:44 / / rw shared:1 - btrfs /dev/nvme0n1 rw\n"),
             "nvme0n1 is mounted"),
            (lambda host: host.swap("nvme0n1"), "swap on nvme0n1"),
            (lambda host: host.hold("nvme0n1", "md127"), "nvme0n1 is held by md127"),
        ],
    )  # fmt: skip
    def test_a_disk_in_use(self, host: FakeSysfs, use: Callable[[FakeSysfs], None], expected: str) -> None:
        host.add(pci_cards.nvme())
        assert reason(host, DISK_DEVICE, erase_policy=True) is None
        use(host)
        assert reason(host, DISK_DEVICE, erase_policy=True) == f"reserved: {expected}"

    @pytest.mark.parametrize("member", MEMBERS)
    def test_a_disk_that_is_a_part_of_something(self, host: FakeSysfs, member: str) -> None:
        """No list of mounts names it, and most have no holder in sysfs."""
        host.add(pci_cards.nvme())
        path, expected = MEMBERS[member]
        if path.startswith("proc/"):
            host.proc(path.removeprefix("proc/"), "")
        elif path.startswith("mount "):
            host.proc("self/mountinfo", f"22 1 8:1 / /data rw - {path.removeprefix('mount ')}\n")
        elif "=" in path:
            file, _, text = path.partition("=")
            host.write(file, f"{text or '/dev/nvme0n1'}\n")
            host.write(f"{host.path(DISK)}/nvme/nvme0/nvme0n1/dev", "259:0\n")
        else:
            host.link(path, "class/block/nvme0n1")
        name = "nvme0" if "passthru" in path else "nvme0n1"
        assert reason(host, DISK_DEVICE, erase_policy=True) == f"reserved: {name} is {expected}"

    def test_a_cache_of_bcache(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nvme())
        host.write(f"{host.path(DISK)}/nvme/nvme0/nvme0n1/bcache/set", "x")
        assert reason(host, DISK_DEVICE, erase_policy=True) == "reserved: nvme0n1 is part of bcache"

    def test_a_disk_exported_by_another_name(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nvme())
        (host.root / "dev/disk/by-id").mkdir(parents=True)
        (host.root / "dev/disk/by-id/nvme-X").symlink_to("../../nvme0n1")
        host.write("kernel/config/nvmet/subsystems/nqn/namespaces/1/device_path", "/dev/disk/by-id/nvme-X\n")
        assert reason(host, DISK_DEVICE, erase_policy=True) == "reserved: nvme0n1 is exported by nvmet"

    @pytest.mark.parametrize(
        ("error", "expected"),
        [
            (errno.EBUSY, "reserved: nvme0n1 is in use"),
            (errno.EACCES, None),
            (errno.EIO, "reserved: it is not known who uses nvme0n1: Input/output error"),
            (errno.ENXIO, "reserved: it is not known who uses nvme0n1: No such device or address"),
        ],
    )
    def test_a_disk_that_the_kernel_keeps_for_itself_as_for_zfs(
        self, host: FakeSysfs, monkeypatch: pytest.MonkeyPatch, error: int, expected: str | None
    ) -> None:
        host.add(pci_cards.nvme())
        node, opened = str(host.root / "dev/nvme0n1"), os.open
        requests: list[int] = []

        def exclusively(path: Any, flags: int, *more: Any, **options: Any) -> int:
            if str(path) == node:
                requests.append(flags & os.O_EXCL)
                raise OSError(error, os.strerror(error), node)
            return opened(path, flags, *more, **options)

        monkeypatch.setattr(os, "open", exclusively)
        assert reason(host, DISK_DEVICE, erase_policy=True) == expected
        assert requests == [os.O_EXCL]
        assert reason(host, DISK_DEVICE) == "withheld: no erase policy for storage is set"
        assert len(requests) == 1, "a drive that is not offered anyway is not opened: a mount could fail by that"

    def test_a_disk_whose_node_is_not_here_cannot_be_asked_about(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nvme())
        (host.root / "dev/nvme0n1").unlink()
        assert "/dev/nvme0n1 is not there" in (reason(host, DISK_DEVICE, erase_policy=True) or "")

    def test_a_partition_counts_for_its_disk(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nvme())
        host.write(f"{host.path(DISK)}/nvme/nvme0/nvme0n1/nvme0n1p2/dev", "259:2")
        host.proc("self/mountinfo", "22 1 259:2 / / rw - ext4 /dev/root rw\n")
        assert reason(host, DISK_DEVICE, erase_policy=True) == "reserved: nvme0n1p2 is mounted"

    def test_with_multipath_the_disk_is_not_below_the_card(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nvme())
        path = host.path(DISK)
        host.remove(f"{path}/nvme/nvme0/nvme0n1")
        host.write(f"{path}/nvme/nvme0/nvme0c0n1/size", "1")
        host.write("devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1/dev", "259:0")
        host.remove("class/block/nvme0n1")
        host.link("class/block/nvme0n1", "devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1")
        host.mount("nvme0n1")
        assert reason(host, DISK_DEVICE, erase_policy=True) == "reserved: nvme0n1 is mounted"

    def test_the_boot_vga(self, host: FakeSysfs) -> None:
        host.add(pci_cards.gpu(boot_vga=True))
        assert reason(host, GPU_DEVICE) == "reserved: boot VGA"

    @pytest.mark.parametrize("place", ["", "/drm/card1"], ids=["function", "card"])
    def test_the_boot_display_that_is_no_vga_device(self, host: FakeSysfs, place: str) -> None:
        host.add(Function("0000:c5:00.0", 0x1002, 0x1586, 0x038000, native="amdgpu", drm="card1"))
        assert reason(host, "0000-c5-00-0") is None
        host.write(f"{host.path('0000:c5:00.0')}{place}/boot_display", "1")
        assert reason(host, "0000-c5-00-0") == "reserved: boot display"

    @pytest.mark.parametrize("driver", ["simpledrm", "efifb", "vesadrm"])
    def test_a_gpu_in_whose_memory_the_firmwares_screen_is(self, host: FakeSysfs, driver: str) -> None:
        """vfio-pci then has it, and a guest cannot use it: its memory is taken."""
        for address in ("0000:c3:00.0", "0000:c5:00.0"):
            host.add(Function(address, 0x1002, 0x1586, 0x038000, driver="vfio-pci"))
        ranges = "00000000-00000fff : Reserved", "2800000000-2fffffffff : PCI Bus 0000:c0"
        drawn = "    2800000000-2801fa3fff : BOOTFB", f"      2800000000-2801fa3fff : {driver}"
        other = "  3000000000-3000ffffff : 0000:c5:00.0", "    3000000000-3000ffffff : vfio-pci"
        host.proc("iomem", "\n".join((*ranges, "  2800000000-2fffffffff : 0000:c3:00.0", *drawn, *other)))
        assert reason(host, "0000-c3-00-0") == f"reserved: boot display, which {driver} draws on"
        assert reason(host, "0000-c5-00-0") is None
        host.proc("iomem", "\n".join((*ranges, "  2800000000-2fffffffff : 0000:c3:00.0", drawn[0], *other)))
        why = "in whose memory the firmware's framebuffer (BOOTFB) still is"
        assert reason(host, "0000-c3-00-0") == f"reserved: boot display, {why}"

    def test_the_console(self, host: FakeSysfs) -> None:
        host.add(pci_cards.gpu())
        host.write(f"{host.path('0000:01:00.0')}/graphics/fb0/name", "nvidiadrmfb")
        assert reason(host, GPU_DEVICE) == "reserved: console"

    def test_a_display_that_is_no_gpu_even_without_a_screen(self, host: FakeSysfs) -> None:
        host.add(pci_cards.bmc_vga(boot_vga=False))
        assert reason(host, "0000-04-00-0") == "reserved: display of the host"

    def test_a_gpu_in_one_slot_with_a_bridge_of_the_chipset(self, host: FakeSysfs) -> None:
        host.add(pci_cards.intel_gpu("0000:00:1f.2", sriov=None))
        host.add(replace(pci_cards.bridge("0000:00:1f.0"), class_code=0x060100))
        assert reason(host, "0000-00-1f-2") == "reserved: the bridge 0000:00:1f.0 is in the same slot"


class TestIommuGroups:
    def test_without_a_group(self, host: FakeSysfs) -> None:
        host.add(pci_cards.gpu(iommu_group=None))
        assert (reason(host, GPU_DEVICE) or "").startswith("no IOMMU group for 0000:01:00.0")

    def test_vfs_of_a_port_without_a_group(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nic(iommu_group=None))
        inventory = DiscoveredPools.on(host.root)
        assert all(inventory.unavailable(device) for device in inventory.devices)

    def test_a_group_with_another_slot(self, host: FakeSysfs) -> None:
        host.add(pci_cards.gpu(iommu_group=7))
        host.add(pci_cards.plain_nic(iommu_group=7))
        assert reason(host, GPU_DEVICE) == "IOMMU group 7 is shared with 0000:05:00.0"
        assert reason(host, NIC_DEVICE) == "IOMMU group 7 is shared with 0000:01:00.0"

    def test_the_bridge_above_may_be_in_the_group(self, host: FakeSysfs) -> None:
        host.add(replace(pci_cards.bridge("0000:00:00.4"), iommu_group=7))
        host.add(pci_cards.gpu(iommu_group=7, ports=("0000:00:00.4",)))
        assert reason(host, GPU_DEVICE) is None

    def test_a_vf_in_the_group_of_its_port(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nic(vfs=1, iommu_group=7))
        host.leave_group(host.functions["0000:41:10.0"].group or 0, "0000:41:10.0")
        host.remove(host.path("0000:41:10.0", "iommu_group"))
        host.join_group(7, "0000:41:10.0", host.path("0000:41:10.0"))
        assert reason(host, "0000-41-10-0") == "IOMMU group 7 is shared with 0000:41:00.0"
        made = frozenset({"0000-41-00-0"})
        assert reason(host, "0000-41-00-0", made=made) is None, "the port goes when its VFs are gone"

    def test_the_admin_may_let_a_shared_group_go_as_one(self, host: FakeSysfs) -> None:
        host.add(pci_cards.gpu(iommu_group=7, driver="vfio-pci"))
        host.add(pci_cards.gpu("0000:02:00.0", iommu_group=7, driver="vfio-pci"))
        inventory = DiscoveredPools.on(host.root, allow_shared_groups=True)
        assert inventory.unavailable(GPU_DEVICE) is None
        assert inventory.unavailable("0000-02-00-0") == "IOMMU group 7 goes with 0000:01:00.0"

    def test_but_never_takes_a_peer_that_the_host_drives(self, host: FakeSysfs) -> None:
        host.add(pci_cards.gpu(iommu_group=7))
        host.add(pci_cards.nvme(iommu_group=7))
        peer = "0000:42:00.0 of its IOMMU group 7 has the driver nvme"
        expected = f"in use: {peer}; bind it to vfio-pci, unless the host needs it"
        assert reason(host, GPU_DEVICE, allow_shared_groups=True) == expected

    def test_nor_one_that_a_process_uses(self, host: FakeSysfs) -> None:
        for address in ("0000:01:00.0", "0000:02:00.0"):
            host.add(pci_cards.gpu(address, iommu_group=7, driver="vfio-pci"))
        hold_open(host, "/dev/vfio/7")
        assert reason(host, GPU_DEVICE, allow_shared_groups=True) == "in use: qemu-system-x86 4711"

    def test_a_controller_beside_a_nic_may_run_the_host(self, host: FakeSysfs) -> None:
        host.add(pci_cards.plain_nic("0000:00:14.3", iommu_group=7))
        host.add(replace(pci_cards.accelerator("0000:00:14.0"), class_code=0x0C0330, native="xhci_hcd", iommu_group=7))
        assert reason(host, "0000-00-14-3") == "in use: 0000:00:14.0 of its IOMMU group has the driver xhci_hcd"


class TestUsers:
    def test_a_device_on_vfio_that_is_not_open_is_free(self, host: FakeSysfs) -> None:
        host.add(pci_cards.gpu(driver="vfio-pci"))
        inventory = DiscoveredPools.on(host.root)
        assert inventory.attributes(GPU_DEVICE)["driver"] == "vfio-pci"
        assert inventory.unavailable(GPU_DEVICE) is None

    def test_a_process_that_has_the_group_open(self, host: FakeSysfs) -> None:
        host.add(pci_cards.gpu(driver="vfio-pci", iommu_group=15))
        hold_open(host, "/dev/vfio/15")
        assert reason(host, GPU_DEVICE) == "in use: qemu-system-x86 4711"

    def test_a_process_that_has_the_device_open(self, host: FakeSysfs) -> None:
        host.add(pci_cards.gpu(driver="vfio-pci"))
        host.write(f"{host.path('0000:01:00.0')}/vfio-dev/vfio0/dev", "511:0")
        hold_open(host, "/dev/vfio/devices/vfio0")
        assert reason(host, GPU_DEVICE) == "in use: qemu-system-x86 4711"

    def test_a_process_that_renders(self, host: FakeSysfs) -> None:
        host.add(pci_cards.gpu())
        hold_open(host, "/dev/dri/card0", comm="Xorg")
        assert reason(host, GPU_DEVICE) == "in use: Xorg 4711"

    def test_a_process_that_computes_on_nvidia(self, host: FakeSysfs) -> None:
        host.add(pci_cards.gpu())
        host.proc("driver/nvidia/gpus/0000:01:00.0/information", "Model: NVIDIA L4\nDevice Minor: \t 3\n")
        hold_open(host, "/dev/nvidia3", comm="python3")
        assert reason(host, GPU_DEVICE) == "in use: python3 4711"

    @pytest.mark.parametrize(
        ("comm", "expected"),
        [
            ("nvidia-persiste", "nvidia-persistenced; stop it (nvidia-smi -i 0000:01:00.0 -pm 0)"),
            ("nv-hostengine", "nv-hostengine; stop it (systemctl stop nvidia-dcgm)"),
            ("dcgm-exporter", "dcgm-exporter; stop it (systemctl stop dcgm-exporter)"),
            ("nvidia-vgpu-mgr", "nvidia-vgpu-mgr; stop it (systemctl stop nvidia-vgpu-mgr)"),
            ("nvidia_gpu_expo", "nvidia_gpu_exporter; stop it (systemctl stop nvidia_gpu_exporter)"),
            ("nvidia-device-p", f"nvidia-device-plugin; stop it ({POD_OFF}.device-plugin=false)"),
            ("gpu-feature-dis", f"gpu-feature-discovery; stop it ({POD_OFF}.gpu-feature-discovery=false)"),
            ("rdcd", "rdcd; stop it (systemctl stop rdc)"),
            ("xpumd", "xpumd; stop it (systemctl stop xpum)"),
        ],
    )
    def test_a_process_that_only_watches_keeps_the_driver_from_leaving(
        self, host: FakeSysfs, comm: str, expected: str
    ) -> None:
        host.add(pci_cards.gpu())
        host.proc("driver/nvidia/gpus/0000:01:00.0/information", "Device Minor: 3\n")
        hold_open(host, "/dev/nvidia3", comm=comm)
        assert reason(host, GPU_DEVICE) == f"in use: {expected}"

    def test_the_full_name_of_a_process_is_its_programs(self, host: FakeSysfs) -> None:
        host.add(pci_cards.gpu())
        hold_open(host, "/dev/dri/card0", comm="acme-gpu-worker")
        host.proc("4711/cmdline", "/usr/bin/acme-gpu-worker-pool\0--all\0")
        assert reason(host, GPU_DEVICE) == "in use: acme-gpu-worker-pool 4711"
        host.proc("4711/cmdline", "/usr/bin/another\0")
        assert reason(host, GPU_DEVICE) == "in use: acme-gpu-worker 4711"
        (host.root / "proc/4711/exe").symlink_to("/opt/acme/acme-gpu-worker-main")
        assert reason(host, GPU_DEVICE) == "in use: acme-gpu-worker-main 4711"

    def test_a_watcher_does_not_hide_a_user(self, host: FakeSysfs) -> None:
        host.add(pci_cards.gpu())
        host.proc("driver/nvidia/gpus/0000:01:00.0/information", "Device Minor: 3\n")
        hold_open(host, "/dev/nvidia3", pid=12, comm="nvidia-persiste")
        hold_open(host, "/dev/nvidia3", pid=4711, comm="python3")
        assert reason(host, GPU_DEVICE) == "in use: python3 4711"

    @pytest.mark.parametrize("order", [1, -1])
    def test_what_a_process_closes_meanwhile_hides_nothing(
        self, host: FakeSysfs, monkeypatch: pytest.MonkeyPatch, order: int
    ) -> None:
        host.add(pci_cards.gpu(driver="vfio-pci", iommu_group=15))
        hold_open(host, "/dev/vfio/15")
        listed = os.listdir
        closed = [b"10", b"12"][::order]
        monkeypatch.setattr(
            os, "listdir", lambda path: [*closed, *listed(path)] if os.fsencode(path).endswith(b"/fd") else listed(path)
        )
        assert reason(host, GPU_DEVICE) == "in use: qemu-system-x86 4711"

    def test_a_used_vf_takes_its_part_from_the_port(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nic(vfs=3))
        host.unbind("igbvf", "0000:41:10.2")
        host.set_override("0000:41:10.2", "vfio-pci")
        host.probe("0000:41:10.2")
        hold_open(host, f"/dev/vfio/{host.functions['0000:41:10.2'].group}")
        inventory = DiscoveredPools.on(host.root)
        assert inventory.unavailable("0000-41-10-2") == "in use: qemu-system-x86 4711"
        assert inventory.unavailable("0000-41-00-0") == "in use: 1 of its VFs and vGPUs"
        assert inventory.fits("0000-41-10-0", "0000-41-10-4")

    def test_the_use_by_the_claim_that_holds_it_is_no_obstacle(self, host: FakeSysfs) -> None:
        host.add(pci_cards.gpu(driver="vfio-pci", iommu_group=15))
        hold_open(host, "/dev/vfio/15")
        assert reason(host, GPU_DEVICE, held=frozenset({GPU_DEVICE})) is None

    def test_an_interface_in_another_network_namespace(self, host: FakeSysfs) -> None:
        host.add(pci_cards.plain_nic())
        host.remove(f"{host.path(NIC)}/net/eth9")
        assert reason(host, NIC_DEVICE) == "in use: its interface is in another network namespace"


@pytest.mark.parametrize(
    ("file", "device"),
    [("net/route", NIC_DEVICE), ("net/ipv6_route", NIC_DEVICE), ("net/if_inet6", NIC_DEVICE),
     ("net/pppoe", NIC_DEVICE), ("iomem", GPU_DEVICE),
     ("self/mountinfo", DISK_DEVICE), ("mounts", DISK_DEVICE), ("swaps", DISK_DEVICE)],
)  # fmt: skip
def test_what_cannot_be_ruled_out_is_reserved(host: FakeSysfs, file: str, device: str) -> None:
    host.add(pci_cards.gpu())
    host.add(pci_cards.plain_nic())
    host.add(pci_cards.nvme())
    (host.root / "proc" / file).unlink(missing_ok=True)
    (host.root / "proc" / file).mkdir(parents=True)
    inventory = DiscoveredPools.on(host.root, erase_policy=True)
    assert inventory.unavailable(device) == f"reserved: {file.rpartition('/')[2]} cannot be read"
    assert [name for name in inventory.devices if inventory.unavailable(name) is None] == [
        name for name in (GPU_DEVICE, NIC_DEVICE, DISK_DEVICE) if name != device
    ]


def test_storage_is_withheld_until_an_erase_policy_is_set(host: FakeSysfs) -> None:
    host.add(pci_cards.nvme())
    assert reason(host, DISK_DEVICE) == "withheld: no erase policy for storage is set"


def test_what_the_node_plugin_may_not_take_is_withheld(host: FakeSysfs) -> None:
    host.add(pci_cards.nic(vfs=2))
    host.add(pci_cards.a2_vgpu_card("0000:08:00.0", vfs=2))
    made = frozenset({"0000-41-00-0", "0000-08-00-0"})
    inventory = DiscoveredPools.on(host.root, allowed=frozenset({"vf"}), made=made)
    assert inventory.unavailable("0000-41-00-0") == "withheld: nic is not allowed on this node (vf is)"
    assert all(inventory.unavailable(vf) is None for vf in inventory.names(function="vf", kind="nic"))
    assert inventory.unavailable("0000-08-00-0") == "withheld: gpu is not allowed on this node (vf is)"
    profiles = inventory.names(function="mdev")
    assert {inventory.unavailable(name) for name in profiles} == {"withheld: vgpu is not allowed on this node (vf is)"}
    assert inventory.fits(*inventory.names(function="vf", kind="nic")), "what is withheld takes nothing from the others"


def test_all_reasons_are_listed(host: FakeSysfs) -> None:
    host.add(pci_cards.plain_nic(iommu_group=None))
    host.default_route("eth9")
    assert (reason(host, NIC_DEVICE) or "").startswith("reserved: default route; no IOMMU group")


def test_a_recording_without_proc_assumes_nothing(host: FakeSysfs) -> None:
    host.add(pci_cards.plain_nic())
    host.add(pci_cards.nvme())
    host.proc("mounts", "/dev/nvme0n1 / ext4 rw 0 0\n")
    host.default_route("eth9")
    (host.root / "proc").rename(host.root / "elsewhere")
    assert reason(host, NIC_DEVICE) is None
    assert reason(host, DISK_DEVICE, erase_policy=True) is None
