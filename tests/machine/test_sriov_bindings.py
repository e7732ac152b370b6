"""The bindings on a real kernel: what they do to it, that it is all taken back, and what they do not touch.

What the kernel has then is asked of iproute2 and of sysfs, not of the plugin.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import exceed_limits, kernel_modules, option_rom, second_level, sriov_host, sriov_image, tiny_guest
from tests.support.fault_points import assert_same
from tests.support.guest import Guest
from tests.support.images import Image
from tests.support.inside_plugin import InsidePlugin, PluginRefused
from tests.support.qemu import Machine

pytestmark = pytest.mark.timeout(900)
"""Seconds; a machine that others use as well boots slowly."""

NEAR, FAR = sriov_host.CARDS
CONSOLE = "0000:43:00.0"
FIRST_VF, SECOND_VF = "0000:41:10.0", "0000:41:10.2"
EVERYTHING = ["gpu", "vf", "nic", "storage"]
IP = "/usr/bin/ip"
"""iproute2's; the shell has a smaller one of its own."""
MAC = "52:54:00:aa:bb:cc"


def named(address: str) -> str:
    return address.replace(":", "-").replace(".", "-")


def whole(address: str) -> dict[str, Any]:
    """All of a card, as a claim has it."""
    return {"card": address, "name": named(address)}


def vf(address: str, **configs: Any) -> dict[str, Any]:
    """A VF of the card near node 0."""
    return {"card": NEAR, "name": named(address), **configs}


class Host:
    """The shell of the host."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest

    def fact(self, address: str, name: str) -> str:
        """A file of a PCI device."""
        return self.guest.check(f"cat /sys/bus/pci/devices/{address}/{name}")

    def driver(self, address: str) -> str:
        """Empty where it has none."""
        link = self.guest.run(f"readlink /sys/bus/pci/devices/{address}/driver").output
        return link.rpartition("/")[2]

    def interface(self, address: str) -> str:
        return self.guest.check(f"ls /sys/bus/pci/devices/{address}/net")

    def settings(self, pf: str, index: int) -> dict[str, Any]:
        """Of a VF, as iproute2 says them."""
        (link,) = json.loads(self.guest.check(f"{IP} -j link show {self.interface(pf)}"))
        info = link["vfinfo_list"][index]
        return {
            "mac": info["address"],
            "vlan": info["vlan_list"][0].get("vlan", 0),
            "trust": info["trust"],
            "spoofCheck": info["spoofchk"],
        }


SHARED_BRIDGE = "0000:85:00.0"
"""Above the cards of one group. VFIO lets none of them go while the bridge has this driver of the host."""
UNSET = {"mac": "00:00:00:00:00:00", "vlan": 0, "trust": False, "spoofCheck": True}


@pytest.fixture(scope="module")
def running(host: Machine) -> Iterator[InsidePlugin]:
    # Else udev does it when the card comes back, and there is an interface that was not there before.
    host.guest.check(f"modprobe virtio_net && until [ -e /sys/bus/pci/devices/{sriov_host.PLAIN_NIC}/virtio*/net ]; do"
                     " sleep 0.1; done")  # fmt: skip
    plugin = InsidePlugin.of(host.guest)
    plugin.ask("recover")
    yield plugin
    plugin.kill()


@pytest.fixture(scope="module")
def initial(running: InsidePlugin) -> dict[str, Any]:
    """Host, journal and files before all tests."""
    return running.ask("state")


@pytest.fixture
def plugin(running: InsidePlugin, initial: dict[str, Any]) -> Iterator[InsidePlugin]:
    """A plugin that may take anything. In the end host, journal and files are as they were."""
    running.ask("allow", kinds=EVERYTHING, erase_policy=True)
    yield running
    running.ask("delete", key=KEY)  # what a failed test has left is not to be in the way of the others
    for uid in ("a", "b"):
        running.ask("unprepare", uid=uid)
    assert_same(running.ask("state"), initial, "after the test")


@pytest.fixture
def linux(host: Machine) -> Host:
    return Host(host.guest)


IMAGE, ROM = "/run/images/tiny", "/run/roms/network.rom"
KEY = "default/m"


@pytest.fixture
def image(linux: Host) -> None:
    """A kernel that the plugin may start."""
    linux.guest.check("mkdir -p /run/images /run/roms")
    put(linux.guest, IMAGE, tiny_guest.image())


def put(guest: Guest, path: str, content: bytes) -> None:
    guest.check(f"echo {base64.b64encode(content).decode()} | base64 -d > {path}")


def machine_with(*claims: str, cpus: int = 1, memory: str = "64Mi", **spec: Any) -> dict[str, Any]:
    """A machine with claims."""
    return {
        "apiVersion": "devalloc.io/v1alpha1",
        "kind": "VirtualMachine",
        "metadata": {"namespace": "default", "name": "m"},
        "spec": {
            "nodeName": "guest",
            "cpu": {"min": cpus, "max": cpus},
            "memory": {"min": memory, "max": memory, **spec.pop("pages", {})},
            "start": {"kernel": IMAGE, **spec},
            "claims": [f"claim-{uid}" for uid in claims],
        },
    }


def on_both_nodes(machine: dict[str, Any]) -> dict[str, Any]:
    """One CPU and 64 MiB of it come from each node of its host."""
    amounts = [{"name": "cpu", "allocation": "1"}, {"name": "memory", "allocation": "64Mi"}]
    places = [{"devicePoolName": "guest-host", "deviceName": name} for name in ("numa0", "numa1")]
    return {**machine, "status": {"allocations": [{**place, "allocations": amounts} for place in places]}}


def host_changes(calls: list[str]) -> list[str]:
    """Of all changes, those of the kernel's state."""
    return [call for call in calls if call.startswith(("host.write", "host.set_vf", "host.own"))]


def test_vfs_are_made_from_none_without_drivers_and_go_with_their_last_claim(plugin: InsidePlugin, linux: Host) -> None:
    plugin.ask("allow", kinds=["vf"], max_vfs=3)
    assert linux.fact(NEAR, "sriov_numvfs") == "0"
    settings = {"class": [{"vlan": 7, "trust": True, "spoofCheck": False}], "claim": [{"mac": MAC}]}
    (device,) = plugin.ask("prepare", uid="a", devices=[vf(FIRST_VF, **settings)])["prepared"]["devices"]
    assert device["functions"] == [FIRST_VF]
    assert linux.fact(NEAR, "sriov_numvfs") == "3"
    assert linux.fact(NEAR, "sriov_drivers_autoprobe") == "0"
    assert linux.driver(FIRST_VF) == "vfio-pci"
    assert linux.driver(SECOND_VF) == ""
    assert linux.guest.check(f"stat -c %F {device['nodes'][0]}") == "character special file"
    assert linux.settings(NEAR, 0) == {"mac": MAC, "vlan": 7, "trust": True, "spoofCheck": False}
    assert linux.settings(NEAR, 1) == UNSET

    plugin.ask("prepare", uid="b", devices=[vf(SECOND_VF)])
    assert not any("sriov" in call for call in plugin.calls), "the second claim of a card finds it ready"
    plugin.ask("unprepare", uid="a")
    assert linux.settings(NEAR, 0) == UNSET, "the next owner gets nothing of the last one's"
    assert linux.driver(FIRST_VF) == ""
    assert linux.fact(NEAR, "sriov_numvfs") == "3"
    assert linux.driver(SECOND_VF) == "vfio-pci"

    plugin.ask("unprepare", uid="b")
    assert linux.fact(NEAR, "sriov_numvfs") == "0"
    assert linux.fact(NEAR, "sriov_drivers_autoprobe") == "1"


def test_a_refusal_of_the_kernel_is_reported_and_leaves_nothing(plugin: InsidePlugin, linux: Host) -> None:
    with pytest.raises(PluginRefused, match="maxTxRate") as refused:
        plugin.ask("prepare", uid="a", devices=[vf(FIRST_VF, claim=[{"mac": MAC, "maxTxRate": 4_000_000_000}])])
    assert refused.value.code == "HostRefused"
    assert any("set_vf" in call for call in refused.value.calls), "it was tried"


def test_a_claim_cannot_set_what_only_admins_may(plugin: InsidePlugin) -> None:
    with pytest.raises(PluginRefused, match="a claim must not set trust") as refused:
        plugin.ask("prepare", uid="a", devices=[vf(FIRST_VF, claim=[{"trust": True}])])
    assert refused.value.code == "ConfigForbidden"
    assert host_changes(refused.value.calls) == []


@pytest.mark.parametrize(
    ("address", "driver"),
    [(FAR, "igb"), (sriov_host.NVME, "nvme"), (sriov_host.GPU, ""), (sriov_host.PLAIN_NIC, "virtio-pci")],
    ids=["nic", "nvme", "gpu", "virtio-nic"],
)
def test_a_whole_card_goes_to_vfio_and_back_to_its_driver(
    plugin: InsidePlugin, linux: Host, address: str, driver: str
) -> None:
    assert linux.driver(address) == driver
    (device,) = plugin.ask("prepare", uid="a", devices=[whole(address)])["prepared"]["devices"]
    assert device["functions"] == [address]
    assert linux.driver(address) == "vfio-pci"
    group = linux.guest.check(f"readlink /sys/bus/pci/devices/{address}/iommu_group").rpartition("/")[2]
    assert device["nodes"] == [f"/dev/vfio/{group}"]
    assert linux.guest.check(f"stat -c %F /dev/vfio/{group}") == "character special file"
    assert plugin.ask("health", uid="a") == {named(address): "healthy"}
    plugin.ask("unprepare", uid="a")
    assert f"host.write bus/pci/devices/{address}/reset 1" in plugin.calls
    assert linux.driver(address) == driver


def test_what_the_admin_does_not_allow_is_not_touched(plugin: InsidePlugin) -> None:
    for kinds, erase_policy, address, code in (
        (["gpu", "vf"], False, FAR, "KindNotAllowed"),
        (["vf", "nic"], False, sriov_host.GPU, "KindNotAllowed"),
        (EVERYTHING, False, sriov_host.NVME, "ErasePolicyMissing"),
    ):
        plugin.ask("allow", kinds=kinds, erase_policy=erase_policy)
        with pytest.raises(PluginRefused) as refused:
            plugin.ask("prepare", uid="a", devices=[whole(address)])
        assert (refused.value.code, host_changes(refused.value.calls)) == (code, [])


@pytest.fixture
def uplink(linux: Host) -> Iterator[str]:
    """A card by which the host reaches the world, for as long as a test goes on."""
    name = linux.interface(NEAR)
    linux.guest.check(f"{IP} link set {name} up && {IP} addr add 192.0.2.1/24 dev {name}")
    linux.guest.check(f"{IP} route add default via 192.0.2.254 dev {name}")
    yield NEAR
    linux.guest.check(f"{IP} addr flush dev {name} && {IP} link set {name} down")


@pytest.fixture
def mounted(host: Machine, sriov: Image, tmp_path: Path) -> Iterator[str]:
    """An NVMe card whose file system the host has mounted, for as long as a test goes on."""
    disk = tmp_path / "disk"
    sriov_image.make_disk(sriov.folder / "root", None, disk, "data", mebibytes=8, journal=False)
    host.monitor.execute("blockdev-add", driver="file", node_name="data", filename=str(disk))
    host.monitor.execute("device_add", driver="nvme", id="data", bus="hot1", serial="data", drive="data")
    host.guest.until("mkdir -p /mnt/data && mount /dev/disk/by-label/data /mnt/data")
    block = host.guest.check("readlink -f /dev/disk/by-label/data").rpartition("/")[2]
    yield host.guest.check(f"readlink -f /sys/block/{block}/device/device").rpartition("/")[2]
    host.guest.check("umount /mnt/data")
    host.monitor.execute("device_del", id="data")
    host.monitor.wait_for("DEVICE_DELETED", device="data", seconds=120)
    host.monitor.execute("blockdev-del", node_name="data")


def test_what_the_host_needs_itself_is_refused_in_every_way(
    plugin: InsidePlugin, linux: Host, uplink: str, mounted: str
) -> None:
    offered = plugin.ask("offered")
    for address, need in {uplink: "default route", CONSOLE: "boot VGA", mounted: "is mounted"}.items():
        assert need in offered[named(address)], "published with the reason"
        driver = linux.driver(address)
        for devices in ([whole(address)], [whole(sriov_host.GPU), whole(address)]):
            with pytest.raises(PluginRefused, match=need) as refused:
                plugin.ask("prepare", uid="a", devices=devices)
            assert refused.value.code == "DeviceReserved"
            assert refused.value.denied
            assert [call for call in host_changes(refused.value.calls) if address in call] == []
        assert linux.driver(address) == driver
        plugin.ask("prepare", uid="a", devices=[{**whole(address), "admin": True}])
        assert host_changes(plugin.calls) == [], "access for admins is to look, not to have"
        plugin.ask("unprepare", uid="a")
    # The card stays with the host when a VF of it goes.
    plugin.ask("prepare", uid="a", devices=[vf(FIRST_VF)])
    assert "default" in linux.guest.check(f"{IP} route")
    plugin.ask("unprepare", uid="a")
    assert "default" in linux.guest.check(f"{IP} route")
    # Nor can a machine name such a disk as its own.
    data = "/dev/disk/by-label/data"
    for path in ("/dev/vda", data):
        with pytest.raises(PluginRefused, match="is reserved for the host") as refused:
            plugin.ask("disk", path=path)
        assert (refused.value.code, refused.value.denied) == ("DeviceReserved", True)
    node = linux.guest.check(f"umount /mnt/data && readlink -f {data}").strip()
    assert plugin.ask("disk", path=data)["path"] == node, "nothing is in its way any more"
    linux.guest.check(f"mount {data} /mnt/data")


def test_the_disk_that_the_host_runs_from_is_no_device_at_all(plugin: InsidePlugin, linux: Host) -> None:
    assert "/dev/vda on / " in linux.guest.check("mount")
    address = linux.guest.check("readlink -f /sys/block/vda/device/..").rpartition("/")[2]
    assert named(address) not in plugin.ask("offered")
    with pytest.raises(PluginRefused) as refused:
        plugin.ask("prepare", uid="a", devices=[whole(address)])
    assert (refused.value.code, host_changes(refused.value.calls)) == ("DeviceUnknown", [])


def test_nothing_is_taken_from_a_machine_that_has_it_open(plugin: InsidePlugin, linux: Host) -> None:
    gpu, guest = sriov_host.GPU, linux.guest
    plugin.ask("prepare", uid="a", devices=[vf(FIRST_VF)])
    # The GPU belongs to another program, which devalloc knows nothing of.
    guest.check(f"echo vfio-pci > /sys/bus/pci/devices/{gpu}/driver_override; echo {gpu} > /sys/bus/pci/drivers_probe")
    second_level.start(guest, f"host={FIRST_VF}", f"host={gpu},romfile=")
    try:
        with pytest.raises(PluginRefused, match=r"in use: qemu-system-x86\S* [0-9]+") as refused:
            plugin.ask("prepare", uid="b", devices=[whole(gpu)])
        assert (refused.value.code, host_changes(refused.value.calls)) == ("DeviceInUse", [])
        for _ in range(2):
            with pytest.raises(PluginRefused, match=r"qemu-system-x86\S* [0-9]+ still has device") as refused:
                plugin.ask("unprepare", uid="a")
            assert (refused.value.code, host_changes(refused.value.calls)) == ("DeviceInUse", [])
            assert refused.value.retryable
        assert linux.driver(FIRST_VF) == "vfio-pci"
        assert linux.fact(NEAR, "sriov_numvfs") == "7"
        with pytest.raises(PluginRefused, match="is held by claim") as refused:
            plugin.ask("prepare", uid="b", devices=[vf(FIRST_VF)])
        assert refused.value.code == "DeviceInUse"
    finally:
        second_level.end(guest)
        guest.check(
            f"echo {gpu} > /sys/bus/pci/drivers/vfio-pci/unbind; echo > /sys/bus/pci/devices/{gpu}/driver_override"
        )
    plugin.ask("unprepare", uid="a")
    assert linux.fact(NEAR, "sriov_numvfs") == "0"


def test_cards_of_one_group_go_together_or_not_at_all(
    request: pytest.FixtureRequest, plugin: InsidePlugin, linux: Host, image: None
) -> None:
    """Two cards behind a bridge without ACS; the kernel lists a reset of their bus for the first, and has none."""
    first, second = sriov_host.SHARED_SLOTS
    assert linux.fact(first, "reset_method") == "bus"

    def refused_with(**policy: bool) -> str:
        plugin.ask("allow", kinds=EVERYTHING, **policy)
        with pytest.raises(PluginRefused) as refused:
            plugin.ask("prepare", uid="a", devices=[whole(first)])
        assert host_changes(refused.value.calls) == []
        return refused.value.code

    assert refused_with() == "GroupShared"
    assert refused_with(allow_shared_groups=True) == "GroupShared"
    assert re.search(
        "0000:85:00.0 of its IOMMU group [0-9]+ has the driver shpchp", plugin.ask("offered")[named(first)]
    )
    linux.guest.check(f"echo {SHARED_BRIDGE} > /sys/bus/pci/drivers/shpchp/unbind")
    request.addfinalizer(lambda: linux.guest.check(f"echo {SHARED_BRIDGE} > /sys/bus/pci/drivers/shpchp/bind"))
    assert refused_with(allow_shared_groups=True) == "NoReset"
    assert "no reset method for 0000:86:01.0 but that of its bus (bus)" in plugin.ask("offered")[named(first)]

    plugin.ask("allow", kinds=EVERYTHING, allow_shared_groups=True, allow_no_reset=True)
    offered = plugin.ask("offered")
    assert (offered[named(first)], "goes with 0000:86:01.0" in offered[named(second)]) == ("", True)
    (device,) = plugin.ask("prepare", uid="a", devices=[whole(first)])["prepared"]["devices"]
    with pytest.raises(PluginRefused) as refused:
        plugin.ask("prepare", uid="b", devices=[whole(second)])
    assert refused.value.code in ("GroupShared", "DeviceInUse")
    plugin.ask("create", manifest=machine_with("a"), claims=["a"])
    assert plugin.ask("state")["host"]["nodes"][device["nodes"][0].rpartition("/")[2]]["held_by"] == ["qemu-system-x86"]
    plugin.ask("delete", key=KEY)
    plugin.ask("unprepare", uid="a")


def assert_one_slot(plugin: InsidePlugin) -> dict[str, Any]:
    """Where QEMU has both functions of the machine's card."""
    places = plugin.ask("slots", key=KEY)
    (bus, slot, first), second = sorted(places.values())
    assert (first, second) == (0, [bus, slot, 1]), places
    return places


def test_all_functions_of_a_card_go_into_one_slot_and_outlive_the_plugin(
    plugin: InsidePlugin, linux: Host, image: None
) -> None:
    first, second = sriov_host.TWO_FUNCTIONS
    (device,) = plugin.ask("prepare", uid="a", devices=[whole(first)])["prepared"]["devices"]
    assert device["functions"] == [first, second]
    resets = [call for call in plugin.calls if call.endswith("/reset 1")]
    assert resets == [f"host.write bus/pci/devices/{address}/reset 1" for address in (first, second)]
    assert [linux.driver(address) for address in (first, second)] == ["vfio-pci"] * 2
    machine = plugin.ask("create", manifest=machine_with("a"), claims=["a"])
    places = assert_one_slot(plugin)

    plugin.kill()
    plugin.start()
    plugin.ask("allow", kinds=EVERYTHING, erase_policy=True)
    assert plugin.ask("recover")["stuck"] == []
    assert plugin.ask("prepare", uid="a", devices=[whole(first)])["prepared"]["devices"] == [device]
    assert host_changes(plugin.calls) == []
    assert plugin.ask("slots", key=KEY) == places
    plugin.ask("unprepare", uid="a")
    assert plugin.ask("slots", key=KEY) == {}, "both come out of the guest, which runs on"
    linux.guest.check(f"kill -0 {machine['pid']}")
    plugin.ask("delete", key=KEY)
    assert [linux.driver(address) for address in (first, second)] == ["virtio-pci"] * 2


LED_CONTROL, LED_DEFAULT = 0xE00, 0x602
"""A register of an e1000, and what it has after a reset."""
REGISTER = """
import mmap, os, struct, sys
path, place = "/sys/bus/pci/devices/" + sys.argv[1], int(sys.argv[2])
open(path + "/enable", "w").write("1")
memory = mmap.mmap(os.open(path + "/resource0", os.O_RDWR | os.O_SYNC), 0x20000)
if len(sys.argv) > 3:
    memory[place:place + 4] = struct.pack("<I", int(sys.argv[3]))
print(struct.unpack("<I", memory[place:place + 4])[0])
open(path + "/enable", "w").write("0")
"""


def test_functions_that_can_only_be_reset_together_are_before_and_after_each_owner(
    plugin: InsidePlugin, linux: Host
) -> None:
    """By VFIO, which needs no kernel whose bridges reset all that is below them."""
    functions = first, second = sriov_host.ONLY_TOGETHER
    assert linux.fact(first, "reset_method") == "bus"
    linux.guest.check(f"test ! -e /sys/bus/pci/devices/{second}/reset_method")

    def register(address: str, *value: int) -> int:
        words = " ".join(map(str, (address, LED_CONTROL, *value)))
        return int(linux.guest.check(f"python3 -c {shlex.quote(REGISTER)} {words}"))

    def leave_something() -> None:
        for address in functions:
            assert register(address, 0x0BAD) == 0x0BAD
            assert register(address) == 0x0BAD

    leave_something()
    (device,) = plugin.ask("prepare", uid="a", devices=[whole(first)])["prepared"]["devices"]
    assert device["functions"] == [first, second]
    (reset,) = [call for call in plugin.calls if "reset" in call and call.startswith("host.")]
    assert reset.startswith(f"host.hot_reset {first}")
    second_level.start(linux.guest, f"host={first},addr=5.0,multifunction=on,romfile=",
                       f"host={second},addr=5.1,romfile=")  # fmt: skip
    with pytest.raises(PluginRefused) as refused:
        plugin.ask("unprepare", uid="a")
    assert refused.value.code == "DeviceInUse"
    second_level.end(linux.guest)
    plugin.ask("unprepare", uid="a")
    assert any(call.startswith(f"host.hot_reset {first}") for call in plugin.calls)
    assert [linux.driver(address) for address in functions] == ["", ""]
    assert [register(address) for address in functions] == [LED_DEFAULT] * 2

    leave_something()
    plugin.ask("prepare", uid="a", devices=[whole(first)])
    plugin.kill()  # nothing undoes it
    linux.guest.check(f"for f in {first} {second}; do echo $f > /sys/bus/pci/drivers/vfio-pci/unbind; done")
    assert [register(address) for address in functions] == [LED_DEFAULT] * 2, "the first reset was enough"
    linux.guest.check(f"for f in {first} {second}; do echo $f > /sys/bus/pci/drivers/vfio-pci/bind; done")
    plugin.start()
    plugin.ask("allow", kinds=EVERYTHING, erase_policy=True)
    plugin.ask("recover")
    plugin.ask("unprepare", uid="a")


def test_a_card_with_16_gib_in_a_bar_is_mapped_by_its_machine(plugin: InsidePlugin, linux: Host) -> None:
    """By a QEMU that does not run its guest: this host, which is emulated, takes minutes to map so much for DMA."""
    card = sriov_host.LARGE_BAR
    first, last, _ = (int(word, 16) for word in linux.fact(card, "resource").splitlines()[4].split())
    assert last - first + 1 == 16 << 30
    plugin.ask("prepare", uid="a", devices=[whole(card)])
    second_level.start(linux.guest, f"host={card}")
    sizes = linux.guest.check(f"grep vfio-device /proc/$(cat {second_level.PID})/maps | cut -d' ' -f1").split()
    assert 16 << 30 in [int(end, 16) - int(start, 16) for start, end in (each.split("-") for each in sizes)]
    second_level.end(linux.guest)
    plugin.ask("unprepare", uid="a")
    assert linux.driver(card) == "nvme"


def test_a_card_runs_the_option_rom_of_its_class_below_the_bus_of_its_node(
    plugin: InsidePlugin, linux: Host, image: None
) -> None:
    """The ROM is code of the test, which the machine's firmware runs; it says on which bus it has found the card.

    The machine is on both NUMA nodes of the host; the card is near the second one.
    """
    guest = linux.guest
    put(guest, ROM, option_rom.build(0x8086, 0x10C9))
    plugin.ask("prepare", uid="a", devices=[{**whole(FAR), "class": [{"romFile": ROM}]}])
    machine = plugin.ask("create", manifest=on_both_nodes(machine_with("a", cpus=2, memory="128Mi")), claims=["a"])
    output = guest.until(f"grep 'ROM ....' {machine['folder']}/console.log")  # the whole line, not its beginning
    bus = int(output.split()[-1], 16) >> 8
    words = guest.check(f"tr '\\0' '\\n' < /proc/{machine['pid']}/cmdline").splitlines()
    devices = [json.loads(word) for word in words if word.startswith('{"driver":')]
    first = {each["numa_node"]: each["bus_nr"] for each in devices if each["driver"] == "pxb-pcie"}
    assert first[0] < first[1] < bus <= 255
    maps = guest.check(f"grep bind: /proc/{machine['pid']}/numa_maps")
    assert {line.split()[1] for line in maps.splitlines()} == {"bind:0", "bind:1"}
    pages = [word for line in maps.splitlines() if " bind:1 " in line for word in line.split() if word[0] == "N"]
    assert pages == [f"N1={(64 << 20) >> 12}"], "VFIO has had all of its memory locked, on the second node"
    words = f"QEMU cannot move it: {FAR}: VFIO migration is not supported in kernel"
    assert plugin.ask("obstacle", key=KEY) == {"obstacle": words}
    plugin.ask("delete", key=KEY)
    plugin.ask("unprepare", uid="a")


@pytest.mark.parametrize(("size", "kibibytes", "memory"), [("2Mi", 2048, 128), ("1Gi", 1 << 20, 1024)])
def test_a_machine_has_its_memory_in_huge_pages_of_the_second_node(
    request: pytest.FixtureRequest,
    plugin: InsidePlugin,
    linux: Host,
    image: None,
    size: str,
    kibibytes: int,
    memory: int,
) -> None:
    """Pages of 1 GiB were reserved when the host was booted, and only there."""
    guest, nodes = linux.guest, "/sys/devices/system/node"
    pages, needed = f"{nodes}/node1/hugepages/hugepages-{kibibytes}kB", (memory << 10) // kibibytes
    if size == "2Mi":
        request.addfinalizer(lambda: guest.check(f"echo 0 > {pages}/nr_hugepages"))
        guest.check(f"echo {needed} > {pages}/nr_hugepages")

    def free() -> list[str]:
        return guest.check(f"cat {pages.replace('node1', 'node0')}/free_hugepages {pages}/free_hugepages").split()

    assert free() == ["0", str(needed)]
    huge = machine_with(memory=f"{memory}Mi", pages={"hugePages": size}, numaNode=1)
    machine = plugin.ask("create", manifest=huge, claims=[])
    assert free() == ["0", "0"]
    maps = guest.check(f"grep ' huge ' /proc/{machine['pid']}/numa_maps").splitlines()
    (words,) = [line.split() for line in maps]
    assert words[1] == "bind:1"
    assert {f"N1={needed}", f"kernelpagesize_kB={kibibytes}"} <= set(words)

    huge["metadata"]["name"] = "n"
    with pytest.raises(PluginRefused, match=f"needs {needed} huge pages of {size}, but NUMA node 1 .* has 0 free"):
        plugin.ask("create", manifest=huge, claims=[])
    plugin.ask("delete", key=KEY)
    assert free() == ["0", str(needed)]


@pytest.fixture
def mtty(host: Machine, modules: Path) -> Iterator[str]:
    """The folder of the kernel's sample parent of mediated devices, whose modules are loaded for as long as a test
    goes on."""
    with kernel_modules.loaded(host, modules):
        yield "/sys/class/mdev_bus/mtty"


MDEV = {"pool": "mdev-mtty", "name": "mtty-mtty-2"}


def test_a_mediated_device_is_made_passed_through_withheld_and_destroyed(
    mtty: str, plugin: InsidePlugin, linux: Host
) -> None:
    """By the kernel's own sample driver, which is not known to devalloc."""

    def left() -> list[str]:
        return linux.guest.check(f"cat {mtty}/mdev_supported_types/*/available_instances").split()

    def prepare() -> dict[str, Any]:
        (device,) = plugin.ask("prepare", uid="a", devices=[MDEV])["prepared"]["devices"]
        return dict(device)

    with pytest.raises(PluginRefused, match="devices of kind mdev may not be taken") as refused:
        prepare()
    assert (refused.value.code, left()) == ("KindNotAllowed", ["24", "12"])
    plugin.ask("allow", kinds=["mdev"])
    offered = plugin.ask("offered")
    assert len([name for name, why in offered.items() if name.startswith("mtty-") and not why]) == 24 + 12

    device = prepare()
    folder = f"/sys/bus/mdev/devices/{device['mdev_uuid']}"
    assert linux.guest.check(f"readlink {folder}/mdev_type").endswith("/mtty-2")
    assert left() == ["22", "11"]
    assert plugin.ask("health", uid="a") == {"mtty-mtty-2": "healthy"}
    second_level.start(linux.guest, f"sysfsdev={folder}")

    plugin.kill()
    plugin.start()
    plugin.ask("allow", kinds=["mdev"])
    assert plugin.ask("recover")["stuck"] == []
    assert prepare() == device
    assert host_changes(plugin.calls) == []
    with pytest.raises(PluginRefused, match="qemu-system-x86") as refused:
        plugin.ask("unprepare", uid="a")
    assert (refused.value.code, left()) == ("DeviceInUse", ["22", "11"])
    second_level.end(linux.guest)

    linux.guest.check(f"mount --bind /dev/null {folder}/remove")  # no write to it succeeds now
    plugin.ask("unprepare", uid="a")
    assert left() == ["22", "11"], "it is rid of its owner, and still there"
    assert plugin.ask("offered")["mtty-mtty-2"].startswith("reset failed: the kernel refused writing '1'")
    assert "stays withheld" in str(plugin.ask("recover")["stuck"])
    linux.guest.check(f"umount {folder}/remove")
    assert "is offered again" in str(plugin.ask("recover")["finished"])
    assert (left(), plugin.ask("offered")["mtty-mtty-2"]) == (["24", "12"], "")


def test_a_part_of_a_cpu_is_given_by_the_second_version_of_cgroups(running: InsidePlugin, linux: Host) -> None:
    limited = running.ask("limit_cpu", name="quarter", thousandths=250)
    folder = limited["folder"]
    assert (limited["version"], limited["limit"]) == (2, 250)
    assert linux.guest.check(f"cat {folder}/cpu.max") == "25000 100000"
    busy = f"echo $$ > {folder}/cgroup.procs; exec timeout 1 sh -c 'while :; do :; done'"
    linux.guest.run(f"sh -c {json.dumps(busy)}".replace("$$", r"\$\$"))
    statistics = dict(line.split() for line in linux.guest.check(f"cat {folder}/cpu.stat").splitlines())
    assert int(statistics["nr_throttled"]) > 0, "it holds for who is in it"
    assert running.ask("limit_cpu", name="quarter", thousandths=None)["limit"] is None
    assert linux.guest.check(f"cat {folder}/cpu.max") == "max 100000"
    linux.guest.check(f"rmdir {folder}")


def test_the_second_version_of_cgroups_stops_a_process_beyond_its_bounds(running: InsidePlugin, linux: Host) -> None:
    bounds = {"memory": exceed_limits.MEMORY, "tasks": exceed_limits.TASKS, "pages": exceed_limits.HUGE_PAGES << 21}
    answer = running.ask("bound", name="bounded", **bounds)
    assert answer["missing"] == []
    (procs,) = answer["procs"]
    program = f"python3 -c {shlex.quote(exceed_limits.PROGRAM)}"
    assert linux.guest.run(f"{program} memory {procs}").status == 128 + signal.SIGKILL
    events = dict(line.split() for line in linux.guest.check(f"cat {Path(procs).parent}/memory.events").splitlines())
    assert int(events["oom_kill"]) == 1
    assert linux.guest.check(f"{program} tasks {procs}").strip() == str(exceed_limits.TASKS)
    pages = "/proc/sys/vm/nr_hugepages"
    linux.guest.check(f"echo 5 > {pages}; [ $(cat {pages}) = 5 ]")
    assert linux.guest.check(f"{program} pages {procs}").strip() == str(exceed_limits.HUGE_PAGES)
    linux.guest.check(f"echo 0 > {pages}")
    linux.guest.check(f"rmdir {Path(procs).parent}")
