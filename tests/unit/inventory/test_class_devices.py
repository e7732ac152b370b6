"""What hangs below a card counts, wherever it hangs: interfaces, disks, and nodes that processes have open (T3)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from devalloc.inventory.kfd import KfdTopology
from devalloc.inventory.pci import scan_functions
from devalloc.inventory.sysfs import Tree
from tests.support import pci_cards
from tests.support.discovery_view import DiscoveredPools
from tests.support.fake_sysfs import FakeSysfs
from tests.unit.inventory.test_unavailability import hold_open

PLACES = {
    "net/eth7": "directly",
    "mlx5_core.sf.2/net/eth7": "a subfunction, which is an auxiliary device",
    "vdpa0/virtio7/net/eth7": "virtio on vDPA",
    "virtio3/net/eth7": "virtio",
    "usb3/3-1/3-1.4/3-1.4:2.0/net/eth7": "a USB adapter behind a hub",
    "habanalabs_en.0/net/eth7": "a port of an accelerator",
    "i2c-3/3-0050/net/eth7": "any other child",
    "0000:81:00.0:pcie-card/eth.1/net/eth7": "a platform device with a port",
}
CARDS = {
    "gpu": pci_cards.gpu("0000:41:00.0"),
    "nic": pci_cards.plain_nic("0000:41:00.0", netdev=None),
    "accelerator": pci_cards.accelerator("0000:41:00.0"),
}
DEVICE = "0000-41-00-0"


def reason(host: FakeSysfs, **settings: object) -> str | None:
    return DiscoveredPools.on(host.root, **settings).unavailable(DEVICE)


def interface(host: FakeSysfs, card: str, place: str) -> None:
    """A card with an interface below it, as the kernel shows it in this namespace."""
    host.add(CARDS[card])
    path = host.path("0000:41:00.0", place)
    host.write(f"{path}/address", "02:25:f2:8d:a2:4c")
    host.link(f"{path}/subsystem", "class/net")
    host.link(f"class/net/{path.rpartition('/')[2]}", path)


class TestInterfaces:
    @pytest.mark.parametrize("card", CARDS)
    @pytest.mark.parametrize("place", PLACES)
    @pytest.mark.parametrize(
        ("use", "expected"),
        [
            (lambda host: None, None),
            (lambda host: host.default_route("eth7"), "reserved: default route"),
            (
                lambda host: host.proc("net/if_inet6", "fd00000000000000fc0000fffe000001 04 40 00 80     eth7\n"),
                "reserved: address on eth7",
            ),
            (lambda host: host.enslave("eth7", "br0"), "reserved: member of br0"),
            (lambda host: host.write("class/net/eth7/upper_eth7.5/x", ""), "reserved: carries eth7.5"),
        ],
        ids=["idle", "route", "address", "bridge", "vlan"],
    )
    def test_one_in_use_keeps_its_card(
        self, host: FakeSysfs, card: str, place: str, use: Callable[[FakeSysfs], None], expected: str | None
    ) -> None:
        interface(host, card, place)
        use(host)
        assert reason(host) == expected

    @pytest.mark.parametrize("card", CARDS)
    @pytest.mark.parametrize("place", PLACES)
    def test_one_in_another_namespace_leaves_an_empty_folder(self, host: FakeSysfs, card: str, place: str) -> None:
        host.add(CARDS[card])
        (host.sys / host.path("0000:41:00.0", place)).parent.mkdir(parents=True)
        assert reason(host) == "in use: its interface is in another network namespace"

    @pytest.mark.parametrize(
        ("folder", "expected"),
        [
            ("infiniband", "in use: its RDMA device is in another network namespace"),
            ("ieee80211", "in use: its wireless device is in another network namespace"),
            ("statistics", None),
        ],
    )
    def test_so_do_other_devices_of_namespaces(self, host: FakeSysfs, folder: str, expected: str | None) -> None:
        interface(host, "nic", "net/eth7")
        (host.sys / host.path("0000:41:00.0", f"rdma.0/{folder}")).mkdir(parents=True)
        assert reason(host) == expected

    def test_that_of_a_subfunction_is_not_the_cards_own(self, host: FakeSysfs) -> None:
        interface(host, "nic", "mlx5_core.sf.2/net/eth7")
        assert "mac" not in DiscoveredPools.on(host.root).attributes(DEVICE)

    def test_what_hangs_below_another_card_does_not_count(self, host: FakeSysfs) -> None:
        interface(host, "gpu", "usb3/3-1/3-1:1.0/net/eth7")
        host.add(pci_cards.gpu("0000:42:00.0", drm="card1"))
        host.default_route("eth7")
        assert DiscoveredPools.on(host.root).unavailable("0000-42-00-0") is None


class TestDisks:
    @pytest.mark.parametrize(
        "place",
        [
            "usb3/3-1/3-1:1.0/host6/target6:0:0/6:0:0:0/block/sdb",
            "ata1/host0/target0:0:0/0:0:0:0/block/sdb",
            "virtio2/block/sdb",
        ],
    )
    def test_one_below_any_card_keeps_it(self, host: FakeSysfs, place: str) -> None:
        host.add(CARDS["accelerator"])
        path = host.path("0000:41:00.0", place)
        host.write(f"{path}/dev", "8:16")
        host.link(f"{path}/subsystem", "class/block")
        host.write(f"{path}/sdb1/dev", "8:17")
        host.link("class/block/sdb", path)
        assert reason(host) is None
        host.mount("sdb1")
        assert reason(host) == "reserved: sdb1 is mounted"

    def test_a_disk_with_several_paths_is_below_none_of_them(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nvme("0000:41:00.0", nvme=None))
        host.write(host.path("0000:41:00.0", "nvme/nvme3/nvme0c3n1/size"), "1")
        head = "devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1"
        host.write(f"{head}/dev", "259:0")
        host.write(f"{head}/nvme0n1p2/dev", "259:2")
        host.link("class/block/nvme0n1", head)
        host.proc("self/mountinfo", "22 1 259:2 / / rw - ext4 /dev/root rw\n")
        assert reason(host, erase_policy=True) == "reserved: nvme0n1p2 is mounted"


NODES = {
    "infiniband_verbs/uverbs2": "infiniband/uverbs2",
    "mlx5_core.sf.2/infiniband_verbs/uverbs2": "infiniband/uverbs2",
    "drm/renderD131": "dri/renderD131",
    "accel/accel0": "accel/accel0",
    "fpga_region/region0/dfl-port.0": "dfl-port.0",
    "fpga_region/region0/dfl-fme.0/dfl-fme.0": "dfl-fme.0",
    "sound/card1/controlC1": "snd/controlC1",
    "tty/ttyS4": "ttyS4",
    "0000:41:00.0:0/0000:41:00.0:0.0/tty/ttyS4": "ttyS4",
    "usb3/3-1/3-1:1.0/ttyUSB0/tty/ttyUSB0": "ttyUSB0",
    "usb3/3-1/3-1:1.0/usbmisc/cdc-wdm0": "cdc-wdm0",
    "dsa0/wq0.0": "dsa/wq0.0",
    "ptp/ptp1": "ptp1",
    "vdpa0/vhost-vdpa-0": "vhost-vdpa-0",
    "misc/xclmgmt": "xclmgmt",
    "ata1/host0/target0:0:0/0:0:0:0/scsi_generic/sg3": "sg3",
}


class TestNodes:
    @pytest.mark.parametrize("place", NODES)
    def test_a_process_that_has_one_open_uses_the_card(self, host: FakeSysfs, place: str) -> None:
        for card in CARDS:
            own = FakeSysfs(host.root / card)
            own.add(CARDS[card])
            path = own.path("0000:41:00.0", place)
            own.write(f"{path}/uevent", f"MAJOR=1\nMINOR=5\nDEVNAME={NODES[place]}\n")
            own.write(f"{path}/dev", "1:5")
            assert reason(own) is None
            hold_open(own, f"/dev/{NODES[place]}", comm="worker")
            assert reason(own) == "in use: worker 4711"

    def test_its_number_counts_and_not_its_name(self, host: FakeSysfs, tmp_path: Path) -> None:
        """A container has the second GPU under the name of the first one: docker run --device A:B."""
        for bus, name, number in (("41", "renderD128", "1:3"), ("42", "renderD129", "1:5")):
            host.add(pci_cards.gpu(f"0000:{bus}:00.0", drm=None))
            path = host.path(f"0000:{bus}:00.0", f"drm/{name}")
            host.write(f"{path}/uevent", f"DEVNAME=dri/{name}\n")
            host.write(f"{path}/dev", number)
        renamed = tmp_path / "container/dev/dri/renderD128"
        renamed.parent.mkdir(parents=True)
        renamed.symlink_to("/dev/zero")  # 1:5
        hold_open(host, str(renamed), comm="ffmpeg")
        inventory = DiscoveredPools.on(host.root)
        assert inventory.unavailable("0000-41-00-0") is None
        assert inventory.unavailable("0000-42-00-0") == "in use: ffmpeg 4711"

    def test_a_disk_and_another_device_of_its_number_are_two(self, host: FakeSysfs) -> None:
        host.add(CARDS["accelerator"])
        path = host.path("0000:41:00.0", "virtio2/block/vdz")
        host.write(f"{path}/dev", "1:5")
        host.link(f"{path}/subsystem", "class/block")
        hold_open(host, "/dev/zero", comm="dd")
        assert reason(host) is None

    def test_a_serial_card_that_the_host_writes_its_messages_to(self, host: FakeSysfs) -> None:
        host.add(CARDS["accelerator"])
        host.write(host.path("0000:41:00.0", "tty/ttyS4/dev"), "4:68")
        host.write("class/tty/console/active", "tty0 ttyS4")
        assert reason(host) == "reserved: console"

    def test_more_than_is_looked_at_is_reserved(self, host: FakeSysfs, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("devalloc.inventory.class_devices._MOST", 3)
        host.add(CARDS["accelerator"])
        for number in range(4):
            host.write(host.path("0000:41:00.0", f"wq{number}/x"), "")
        assert reason(host) == "reserved: not all that hangs below it can be seen"


class TestPartitionsOfAmd:
    """An Instinct in CPX mode: only the first partition hangs below the card."""

    CARD = "0000:05:00.0"

    @pytest.fixture(params=["in the top bits", "in the function"])
    def host(self, tmp_path: Path, request: pytest.FixtureRequest) -> FakeSysfs:
        host = FakeSysfs(tmp_path)
        for bus in ("05", "15"):
            host.add(pci_cards.amd_gpu(f"0000:{bus}:00.0", drm=None, sriov=None))
        for number in range(16):
            card, partition = divmod(number, 8)
            first = host.path(("0000:05:00.0", "0000:15:00.0")[card])
            place = first if partition == 0 else f"devices/platform/amdgpu_xcp.{number}"
            name = f"renderD{128 + number}"
            host.write(f"{place}/drm/{name}/uevent", f"MAJOR=226\nMINOR={128 + number}\nDEVNAME=dri/{name}\n")
            host.write(f"{place}/drm/{name}/dev", f"226:{128 + number}")
            host.link(f"{place}/drm/{name}/subsystem", "class/drm")
            host.link(f"class/drm/{name}", f"{place}/drm/{name}")
            location = (0x0500, 0x1500)[card] + (partition if request.param == "in the function" else partition << 28)
            node = f"devices/virtual/kfd/kfd/topology/nodes/{number + 1}"
            host.write(f"{node}/gpu_id", str(1000 + number))
            host.write(
                f"{node}/properties",
                f"simd_count 152\nlocation_id {location}\ndomain 0\ndrm_render_minor {128 + number}\n",
            )
        host.write("devices/virtual/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 96\ndrm_render_minor 0\n")
        host.write("devices/virtual/kfd/kfd/dev", "234:0")
        host.link("class/kfd/kfd", "devices/virtual/kfd/kfd")
        return host

    def both(self, host: FakeSysfs) -> tuple[str | None, str | None]:
        inventory = DiscoveredPools.on(host.root)
        return inventory.unavailable("0000-05-00-0"), inventory.unavailable("0000-15-00-0")

    @pytest.mark.parametrize("minor", [128, 129, 135])
    def test_a_job_on_any_of_them_uses_the_card(self, host: FakeSysfs, minor: int) -> None:
        assert self.both(host) == (None, None)
        hold_open(host, f"/dev/dri/renderD{minor}", comm="python3")
        assert self.both(host) == ("in use: python3 4711", None)
        hold_open(host, f"/dev/dri/renderD{minor + 8}", comm="train", pid=99)
        assert self.both(host) == ("in use: python3 4711", "in use: train 99")

    def test_of_a_job_of_the_compute_driver_the_cards_count_that_it_uses(self, host: FakeSysfs) -> None:
        hold_open(host, "/dev/kfd", comm="python3")
        process = "class/kfd/kfd/proc/4711"
        host.write(f"{process}/vram_1003", "0")
        host.write(f"{process}/vram_1011", "4096")
        assert self.both(host) == (None, "in use: python3 4711")
        host.write(f"{process}/queues/0/gpuid", "1003")
        assert self.both(host) == ("in use: python3 4711", "in use: python3 4711")

    def test_a_job_that_the_driver_does_not_list_may_use_any_device(self, host: FakeSysfs) -> None:
        hold_open(host, "/dev/kfd", comm="python3")
        assert self.both(host) == ("in use: python3 4711", "in use: python3 4711")

    def test_a_gpu_that_is_no_first_function_has_its_own_processes(self, host: FakeSysfs) -> None:
        """Two GPUs on one card, by the driver's account: each is the function that the topology names."""
        host.add(pci_cards.amd_gpu("0000:25:00.0", drm=None, sriov=None))
        host.add(pci_cards.amd_gpu("0000:25:00.1", drm=None, sriov=None))
        for function in (0, 1):
            node = f"devices/virtual/kfd/kfd/topology/nodes/{function + 40}"
            host.write(f"{node}/gpu_id", str(40 + function))
            host.write(
                f"{node}/properties", f"location_id {0x2500 + function}\ndomain 0\ndrm_render_minor 16{function}\n"
            )
        tree = Tree(host.root)
        topology, functions = KfdTopology.read(tree), scan_functions(tree)
        of = {str(address): [gpu.gpu_id for gpu in topology.of(function)] for address, function in functions.items()}
        of = {address: gpus for address, gpus in of.items() if address.startswith("0000:25:")}
        assert of == {"0000:25:00.0": [40], "0000:25:00.1": [41]}
