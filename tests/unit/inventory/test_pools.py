"""The shape of a pool: one per card, named by node and slot, its devices by bus address (settled I1-I3)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devalloc.api.decode import decode
from devalloc.api.object_meta import ObjectMeta
from devalloc.api.quantity import Quantity
from devalloc.inventory.config import InventoryConfig
from devalloc.inventory.discover import discover
from devalloc.inventory.pci import Address
from devalloc.inventory.pools import pool_name
from tests.support import pci_cards
from tests.support.discovery_view import DiscoveredPools
from tests.support.fake_sysfs import FakeSysfs
from tests.support.pci_cards import Function, Sriov

SLOT = Address(0, 0x08, 0, 0)


def busy_host(root: Path) -> FakeSysfs:
    """A server with a card of every kind."""
    host = FakeSysfs(root)
    for card in (
        pci_cards.gpu(iommu_group=7),
        pci_cards.gpu_audio(iommu_group=7),
        pci_cards.amd_gpu(),
        pci_cards.intel_gpu(),
        pci_cards.nic(vfs=3),
        pci_cards.connectx(),
        pci_cards.connectx("0000:61:00.1", netdev="ens1f1np1", infiniband="mlx5_1", sriov=Sriov(16, offset=17)),
        pci_cards.plain_nic(),
        pci_cards.nvme(),
        pci_cards.accelerator("10000:71:00.0"),
        pci_cards.bmc_vga(),
        pci_cards.a2_vgpu_card(vfs=2),
    ):
        host.add(card)
    return host


def test_a_pool_is_named_by_node_and_slot(host: FakeSysfs) -> None:
    host.add(pci_cards.nic("0000:08:00.0"))
    (pool,) = DiscoveredPools.on(host.root).pools
    assert pool.metadata.name == "node-a-0000-08-00"
    assert (pool.spec.node_name, pool.spec.driver) == ("node-a", "nic.devalloc.io")


@pytest.mark.parametrize(
    ("node", "name"),
    [
        ("node-a", "node-a-0000-08-00"),
        ("node-a.example.com", "node-a.example.com-0000-08-00"),
        ("Node_A", "node-a-0000-08-00"),
        ("..a..-b-..", "a.b-0000-08-00"),
        ("ü", "node-0000-08-00"),
    ],
)
def test_a_node_name_becomes_a_dns_name(node: str, name: str) -> None:
    assert pool_name(node, SLOT) == name


@given(st.text(min_size=1, max_size=300))
def test_any_node_name_makes_a_valid_pool_name(node: str) -> None:
    assert ObjectMeta(name=pool_name(node, SLOT)).name.endswith("-0000-08-00")


def test_long_node_names_stay_apart() -> None:
    assert pool_name("a" * 253, SLOT) != pool_name("a" * 252 + "b", SLOT)


def test_the_node_name_itself_is_kept(host: FakeSysfs) -> None:
    host.add(pci_cards.gpu())
    assert DiscoveredPools.on(host.root, "Node_A").pools[0].spec.node_name == "Node_A"


def test_a_node_needs_a_name(host: FakeSysfs) -> None:
    with pytest.raises(ValueError, match="node_name"):
        discover(host.root, node_name="")


def test_pools_come_in_the_order_of_their_addresses(host: FakeSysfs) -> None:
    for address in ("10000:01:00.0", "0000:0a:00.0", "0000:09:00.0", "0001:00:00.0"):
        host.add(pci_cards.accelerator(address))
    assert [pool.metadata.name for pool in DiscoveredPools.on(host.root).pools] == [
        "node-a-0000-09-00",
        "node-a-0000-0a-00",
        "node-a-0001-00-00",
        "node-a-10000-01-00",
    ]


KINDS = [
    (pci_cards.gpu(), "gpu", "nvidia"),
    (replace(pci_cards.gpu(), class_code=0x030000), "gpu", "nvidia"),
    (pci_cards.amd_gpu(), "gpu", "amd"),
    (replace(pci_cards.accelerator(), vendor=0x1002, device=0x74A1), "gpu", "amd"),
    (pci_cards.intel_gpu(), "gpu", "intel"),
    (pci_cards.bmc_vga(), "display", "aspeed"),
    (replace(pci_cards.bmc_vga(), vendor=0x102B, device=0x0533), "display", "matrox"),
    (replace(pci_cards.bmc_vga(), vendor=0x1234, device=0x1111), "display", "qemu"),
    (replace(pci_cards.bmc_vga(), vendor=0x1AF4, device=0x1050, class_code=0x038000), "display", "virtio"),
    (pci_cards.nic(), "nic", "intel"),
    (replace(pci_cards.connectx(), class_code=0x020700), "nic", "mellanox"),
    (pci_cards.accelerator(), "accelerator", "habana"),
    (replace(pci_cards.accelerator(), vendor=0x8086, device=0x4940, class_code=0x0B4000), "accelerator", "intel"),
    (replace(pci_cards.accelerator(), vendor=0x8086, device=0x7D1D, native="intel_vpu"), "accelerator", "intel"),
    (replace(pci_cards.accelerator(), vendor=0x8086, device=0x0B30, native="dfl-pci"), "accelerator", "intel"),
    (replace(pci_cards.accelerator(), vendor=0x8086, device=0x0BD5, class_code=0x038000), "gpu", "intel"),
    (replace(pci_cards.accelerator(), vendor=0xABCD, device=1), "accelerator", "0xabcd"),
    (pci_cards.nvme(), "storage", "samsung"),
    (pci_cards.gpu_audio(), None, None),
    (pci_cards.bridge("0000:00:1c.0"), None, None),
    (replace(pci_cards.nvme(), class_code=0x010601), None, None),
]


@pytest.mark.parametrize(("card", "kind", "vendor"), KINDS, ids=lambda value: getattr(value, "address", value))
def test_kinds_go_by_class_and_vendor(
    host: FakeSysfs, card: pci_cards.Function, kind: str | None, vendor: str | None
) -> None:
    host.add(card)
    inventory = DiscoveredPools.on(host.root)
    assert [pool.spec.driver for pool in inventory.pools] == ([f"{kind}.devalloc.io"] if kind else [])
    for device in inventory.devices:
        assert inventory.attributes(device)["kind"] == kind
        assert inventory.attributes(device)["vendor"] == vendor


def test_only_the_kinds_that_are_wanted_are_published(tmp_path: Path) -> None:
    host = busy_host(tmp_path)
    inventory = DiscoveredPools.on(host.root, kinds=frozenset({"nic", "storage"}))
    assert {pool.spec.driver for pool in inventory.pools} == {"nic.devalloc.io", "storage.devalloc.io"}


@pytest.mark.parametrize("wrong", [{"kinds": frozenset({"gpus"})}, {"max_vfs": -1}])
def test_settings_without_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"gpus|-1"):
        InventoryConfig(**wrong)


def test_a_gpu_is_published_with_all_its_facts(host: FakeSysfs) -> None:
    host.add(pci_cards.gpu(numa=1, iommu_group=3))
    assert DiscoveredPools.on(host.root).attributes("0000-01-00-0") == {
        "kind": "gpu",
        "function": "whole",
        "state": "exists",
        "vendor": "nvidia",
        "vendorID": "0x10de",
        "model": "L4",
        "pciModel": "AD104GL [L4]",
        "deviceID": "0x27b8",
        "driver": "nvidia",
        "iommuGroup": 3,
        "numa": 1,
        "pciBusID": "0000:01:00.0",
        "pcieRoot": "pci0000:00",
        "resource.kubernetes.io/pciBusID": "0000:01:00.0",
        "resource.kubernetes.io/pcieRoot": "pci0000:00",
        "resource.kubernetes.io/numaNode": 1,
        "subsystemID": "0x10de:0x16ca",
    }


def test_an_unknown_model_has_its_id_for_a_name(host: FakeSysfs) -> None:
    host.add(replace(pci_cards.gpu(), device=0xFFF0))
    assert DiscoveredPools.on(host.root).attributes("0000-01-00-0")["model"] == "0xfff0"


def test_what_the_machine_does_not_say_is_left_out(host: FakeSysfs) -> None:
    host.add(pci_cards.gpu(numa=-1, driver=None))
    names = DiscoveredPools.on(host.root).attributes("0000-01-00-0").keys()
    assert not names & {"numa", "resource.kubernetes.io/numaNode", "driver"}


def test_a_network_port_tells_its_link(host: FakeSysfs) -> None:
    host.add(pci_cards.connectx())
    attributes = DiscoveredPools.on(host.root).attributes("0000-61-00-0")
    assert (attributes["linkType"], attributes["linkSpeed"]) == ("ethernet", Quantity.parse("100G"))
    assert (attributes["mac"], attributes["rdma"]) == ("52:54:00:12:34:56", 1)


def test_a_link_that_is_down_has_no_speed(host: FakeSysfs) -> None:
    host.add(pci_cards.nic(speed=-1))
    assert "linkSpeed" not in DiscoveredPools.on(host.root).attributes("0000-41-00-0")


def test_a_gpu_that_tells_its_memory_has_a_framebuffer(host: FakeSysfs) -> None:
    host.add(pci_cards.amd_gpu(files={"mem_info_vram_total": "68702699520"}))
    assert DiscoveredPools.on(host.root).attributes("0000-03-00-0")["framebuffer"] == Quantity.parse("68702699520")


class TestVirtualFunctions:
    def test_those_that_could_be_are_where_offset_and_stride_put_them(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nic("0000:41:00.0"))
        inventory = DiscoveredPools.on(host.root)
        names = inventory.names(function="vf")
        assert names == ["0000-41-10-0", "0000-41-10-2", "0000-41-10-4", "0000-41-10-6",
                         "0000-41-11-0", "0000-41-11-2", "0000-41-11-4"]  # fmt: skip
        assert [inventory.attributes(name)["vfIndex"] for name in names] == list(range(7))
        assert {inventory.attributes(name)["state"] for name in names} == {"creatable"}
        assert {inventory.attributes(name)["pfPciBusID"] for name in names} == {"0000:41:00.0"}

    def test_a_name_stays_when_the_vf_is_created(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nic())
        before = DiscoveredPools.on(host.root).names(function="vf")
        host.set_numvfs("0000:41:00.0", 7)
        after = DiscoveredPools.on(host.root)
        assert after.names(function="vf") == before == after.names(state="exists", function="vf")

    def test_no_more_can_be_created_beside_those_that_exist(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nic(vfs=3))  # the kernel answers EBUSY until there are none again
        assert len(DiscoveredPools.on(host.root).names(function="vf")) == 3

    def test_only_a_host_driver_creates_them(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nic(driver=None))
        host.add(pci_cards.nic("0000:42:00.0", driver="vfio-pci"))
        assert DiscoveredPools.on(host.root).names(function="vf") == []

    def test_their_number_can_be_capped(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nic())
        host.add(pci_cards.nic("0000:42:00.0", netdev="eth1", vfs=7))
        inventory = DiscoveredPools.on(host.root, max_vfs=2)
        assert len(inventory.names(pfPciBusID="0000:41:00.0")) == 2
        assert len(inventory.names(pfPciBusID="0000:42:00.0")) == 7, "those that exist stay published"

    def test_a_creatable_vf_has_the_attributes_of_its_port(self, host: FakeSysfs) -> None:
        host.add(pci_cards.connectx(numa=1))
        attributes = DiscoveredPools.on(host.root).attributes("0000-61-00-2")
        assert (attributes["numa"], attributes["pcieRoot"], attributes["deviceID"]) == (1, "pci0000:00", "0x101e")
        assert (attributes["linkType"], attributes["linkSpeed"], attributes["rdma"]) == (
            "ethernet",
            Quantity.parse("100G"),
            1,
        )
        assert not attributes.keys() & {"driver", "iommuGroup", "mac"}

    def test_one_given_to_vfio_can_still_do_what_its_port_can(self, host: FakeSysfs) -> None:
        host.add(pci_cards.connectx(vfs=1))
        host.unbind("mlx5_core", "0000:61:00.2")
        host.set_override("0000:61:00.2", "vfio-pci")
        host.probe("0000:61:00.2")
        attributes = DiscoveredPools.on(host.root).attributes("0000-61-00-2")
        assert (attributes["driver"], attributes["rdma"], attributes["linkSpeed"]) == (
            "vfio-pci",
            1,
            Quantity.parse("100G"),
        )

    def test_a_vf_without_a_visible_pf_is_a_card_of_its_own(self, host: FakeSysfs) -> None:
        host.add(replace(pci_cards.nic("0000:41:10.0"), device=0x10CA, sriov=None))  # as a guest sees it
        assert DiscoveredPools.on(host.root).attributes("0000-41-10-0")["function"] == "whole"

    def test_an_address_belongs_to_one_of_them(self, host: FakeSysfs) -> None:
        for function in (0, 1):
            host.add(
                pci_cards.connectx(f"0000:61:00.{function}", netdev=f"e{function}", infiniband=None, sriov=Sriov(4, 2))
            )
        inventory = DiscoveredPools.on(host.root)
        assert len(inventory.names(function="vf")) == 5
        assert "where another function is" in inventory.problems[0].message

    def test_a_vf_that_only_its_pf_lists_is_no_card_of_its_own(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nic(vfs=2))
        host.spoil(host.path("0000:41:10.0", "physfn"), "missing")
        inventory = DiscoveredPools.on(host.root)
        assert inventory.names(pfPciBusID="0000:41:00.0") == ["0000-41-10-0", "0000-41-10-2"]
        assert len(inventory.pools) == 1

    def test_a_vf_that_its_pf_does_not_list_still_belongs_to_it(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nic(vfs=2))
        host.spoil(host.path("0000:41:00.0", "virtfn1"), "missing")
        assert DiscoveredPools.on(host.root).attributes("0000-41-10-2")["vfIndex"] == 1

    def test_none_can_be_created_beside_those_that_only_their_own_links_show(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nic(vfs=2))
        for name in ("virtfn0", "virtfn1", "sriov_numvfs"):
            host.spoil(host.path("0000:41:00.0", name), "missing")
        assert DiscoveredPools.on(host.root).names(state="creatable") == []

    def test_a_port_without_its_vf_layout_is_a_problem(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nic())
        for name in ("sriov_offset", "sriov_stride"):
            host.spoil(host.path("0000:41:00.0", name), "missing")
        inventory = DiscoveredPools.on(host.root)
        assert list(inventory.devices) == ["0000-41-00-0"]
        assert "offset" in inventory.problems[0].message


class TestPorts:
    def test_the_only_port_is_the_card(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nic())
        assert DiscoveredPools.on(host.root).names(function="whole") == ["0000-41-00-0"]

    def test_each_port_of_a_card_with_several_is_a_device(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nic("0000:41:00.0"))
        host.add(pci_cards.nic("0000:41:00.1", netdev="eth1"))
        inventory = DiscoveredPools.on(host.root)
        assert inventory.names(function="pf") == ["0000-41-00-0", "0000-41-00-1"]
        assert len(inventory.pools) == 1

    def test_a_port_without_sriov_is_whole_even_beside_others(self, host: FakeSysfs) -> None:
        for function in (0, 1):
            host.add(pci_cards.plain_nic(f"0000:05:00.{function}", netdev=f"eth{function}"))
        assert DiscoveredPools.on(host.root).names(function="whole") == ["0000-05-00-0", "0000-05-00-1"]

    def test_ports_that_the_iommu_cannot_separate_are_one_device(self, host: FakeSysfs) -> None:
        for function in (0, 1):
            host.add(pci_cards.nic(f"0000:41:00.{function}", netdev=f"eth{function}", iommu_group=5))
        inventory = DiscoveredPools.on(host.root)
        assert inventory.names(function="whole") == ["0000-41-00-0"]
        assert len(inventory.names(function="vf")) == 14
        assert inventory.unavailable("0000-41-00-0") is None

    def test_a_gpu_and_its_audio_function_are_one_device(self, host: FakeSysfs) -> None:
        host.add(pci_cards.gpu(iommu_group=7))
        host.add(pci_cards.gpu_audio(iommu_group=7))
        inventory = DiscoveredPools.on(host.root)
        assert list(inventory.devices) == ["0000-01-00-0"]
        assert inventory.fits("0000-01-00-0")


def test_every_pool_decodes_without_problems(tmp_path: Path) -> None:
    for manifest in DiscoveredPools.on(busy_host(tmp_path).root).manifests:
        decoded = decode(manifest)
        assert decoded.problems == []
        assert decoded.object is not None


def test_the_same_host_gives_the_same_bytes(tmp_path: Path) -> None:
    host = busy_host(tmp_path)
    assert DiscoveredPools.on(host.root).bytes == DiscoveredPools.on(host.root).bytes
    assert DiscoveredPools.on(host.root).bytes == DiscoveredPools.on(host.root / "sys").bytes


def test_nothing_is_written(tmp_path: Path) -> None:
    host = busy_host(tmp_path)
    before = {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")}
    DiscoveredPools.on(host.root)
    assert {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_folder_without_sysfs_is_an_error(tmp_path: Path) -> None:
    answer = discover(tmp_path, node_name="n")
    assert answer.pools == []
    assert [problem.is_error for problem in answer.problems] == [True]


def test_a_host_without_pci_has_no_pools(host: FakeSysfs) -> None:
    host.remove("bus")
    assert discover(host.root, node_name="n").pools == []


def test_attributes_that_all_devices_share_are_once_at_the_pool(host: FakeSysfs) -> None:
    host.add(pci_cards.nic(vfs=2))
    host.add(pci_cards.gpu())
    inventory = DiscoveredPools.on(host.root)
    card, gpu = inventory.homes["0000-41-10-0"].spec, inventory.homes["0000-01-00-0"].spec
    shared = {attribute.name for attribute in card.attributes}
    assert {"kind", "vendor", "numa"} <= shared
    assert not any(attribute.name in shared for device in card.devices for attribute in device.attributes)
    for name in {attribute.name for device in card.devices for attribute in device.attributes}:
        own = [{a.name: a.value for a in device.attributes}.get(name) for device in card.devices]
        assert len(set(own)) > 1, f"{name} is alike on all"
    assert gpu.attributes == [], "a device alone tells all itself"


class TestRoceLag:
    """sriov-network-operator: with both ports in one bond, mlx5 has one RDMA device, below the first port."""

    FIRST, SECOND = "0000:61:00.0", "0000:61:00.1"

    def ports(self, host: FakeSysfs, **second: Any) -> None:
        host.add(pci_cards.connectx(self.FIRST, infiniband="mlx5_bond_0"))
        host.add(pci_cards.connectx(self.SECOND, infiniband=None, **{"netdev": "ens1f1np1", **second}))

    def bond(self, host: FakeSysfs, address: str, interface: str, name: str = "bond0") -> None:
        host.write(f"devices/virtual/net/{name}/ifindex", "9\n")
        host.link(host.path(address, f"net/{interface}/master"), f"devices/virtual/net/{name}")

    def rdma(self, host: FakeSysfs) -> dict[str, set[object]]:
        inventory = DiscoveredPools.on(host.root)
        shown: dict[str, set[object]] = {}
        for device in inventory.devices:
            attributes = inventory.attributes(device)
            shown.setdefault(str(attributes.get("pfPciBusID", attributes["pciBusID"])), set()).add(attributes["rdma"])
        return shown

    def test_the_second_port_of_a_bond_and_its_vfs_can_do_rdma(self, host: FakeSysfs) -> None:
        self.ports(host)
        assert self.rdma(host) == {self.FIRST: {1}, self.SECOND: {0}}
        self.bond(host, self.FIRST, "ens1f0np0")
        assert self.rdma(host) == {self.FIRST: {1}, self.SECOND: {0}}, "one port alone is no LAG"
        self.bond(host, self.SECOND, "ens1f1np1")
        assert self.rdma(host) == {self.FIRST: {1}, self.SECOND: {1}}

    def test_a_port_of_another_bond_cannot(self, host: FakeSysfs) -> None:
        self.ports(host)
        self.bond(host, self.FIRST, "ens1f0np0")
        self.bond(host, self.SECOND, "ens1f1np1", "bond1")
        assert self.rdma(host)[self.SECOND] == {0}

    def test_a_port_with_another_driver_cannot(self, host: FakeSysfs) -> None:
        self.ports(host, native="other_driver")
        self.bond(host, self.FIRST, "ens1f0np0")
        self.bond(host, self.SECOND, "ens1f1np1")
        assert self.rdma(host)[self.SECOND] == {0}


def slots_of(host: FakeSysfs, **addresses: str) -> None:
    for name, address in addresses.items():
        host.write(f"bus/pci/slots/{name}/address", f"{address}\n")


def test_a_card_has_the_name_of_its_slot_and_all_its_parts_have_too(host: FakeSysfs) -> None:
    host.add(pci_cards.nic("0000:41:00.0", vfs=2))
    host.add(pci_cards.gpu())
    slots_of(host, SLOT3="0000:41:00", elsewhere="0000:99:00", broken="nonsense")
    inventory = DiscoveredPools.on(host.root)
    assert [inventory.attributes(name).get("slot") for name in inventory.devices] == [None, "SLOT3", "SLOT3", "SLOT3"]
    assert inventory.problems == []


def serial_capability(number: bytes) -> bytes:
    """A configuration space with a Device Serial Number behind another capability."""
    space = bytearray(4096)
    space[0:4] = bytes.fromhex("8680c910")
    space[0x100:0x104] = (0x0001 | 1 << 16 | 0x140 << 20).to_bytes(4, "little")
    space[0x140:0x14C] = (0x0003 | 1 << 16).to_bytes(4, "little") + number
    return bytes(space)


SERIAL = bytes.fromhex("ac626dffff9196b4")
NUMBERS = {"one": (SERIAL, "b4-96-91-ff-ff-6d-62-ac"), "none": (bytes(8), None), "unreadable": (b"\xff" * 8, None)}


@pytest.mark.parametrize("number", NUMBERS)
def test_a_serial_number_is_read_of_the_configuration_space_as_lspci_shows_it(host: FakeSysfs, number: str) -> None:
    content, serial = NUMBERS[number]
    host.add(pci_cards.nic("0000:41:00.0", vfs=1))
    (host.sys / host.path("0000:41:00.0", "config")).write_bytes(serial_capability(content))
    inventory = DiscoveredPools.on(host.root)
    assert [inventory.attributes(name).get("serial") for name in inventory.devices] == [serial] * 2


def test_a_card_that_sleeps_is_not_woken_for_its_serial_number(host: FakeSysfs) -> None:
    host.add(pci_cards.nic("0000:41:00.0"))
    (host.sys / host.path("0000:41:00.0", "config")).write_bytes(serial_capability(SERIAL))
    host.write(host.path("0000:41:00.0", "power/runtime_status"), "suspended\n")
    assert "serial" not in DiscoveredPools.on(host.root).attributes("0000-41-00-0")


def test_drives_and_gpus_have_the_serial_number_and_uuid_that_their_drivers_show(host: FakeSysfs) -> None:
    host.add(pci_cards.nvme("0000:42:00.0"))
    host.write(host.path("0000:42:00.0", "nvme/nvme0/nvme0n1/wwid"), "eui.36344830525000010025384e00000001\n")
    host.add(pci_cards.gpu())
    uuid = "GPU-5a1c0f1e-0000-4000-8000-0123456789ab"
    host.proc("driver/nvidia/gpus/0000:01:00.0/information", f"Model: \t L4\nGPU UUID: \t {uuid}\nDevice Minor: \t 0\n")
    host.add(pci_cards.amd_gpu())
    host.write(host.path("0000:03:00.0", "unique_id"), "f4b1c0de00112233\n")
    inventory = DiscoveredPools.on(host.root, max_vfs=0)
    shown = {name: inventory.attributes(name) for name in ("0000-42-00-0", "0000-01-00-0", "0000-03-00-0")}
    assert [each.get("serial") for each in shown.values()] == ["S64HNE0R500001", None, "f4b1c0de00112233"]
    assert [each.get("uuid") for each in shown.values()] == ["eui.36344830525000010025384e00000001", uuid, None]


def test_the_functions_of_an_alveo_say_what_they_are_for(host: FakeSysfs) -> None:
    for number, device, driver in ((0, 0x5000, "xclmgmt"), (1, 0x5001, "xocl")):
        host.add(Function(f"0000:3b:00.{number}", 0x10EE, device, 0x120000, native=driver))
    host.add(pci_cards.accelerator())
    seen = DiscoveredPools.on(host.root)
    roles = {device: seen.attributes(device).get("fpgaFunction") for device in seen.devices}
    assert roles == {"0000-3b-00-0": "management", "0000-3b-00-1": "user", "0000-71-00-0": None}
