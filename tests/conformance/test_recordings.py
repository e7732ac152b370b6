"""Recorded machines are discovered with true facts."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from devalloc.api.decode import decode
from devalloc.api.manifests import load
from devalloc.api.pool import DevicePool
from devalloc.api.quantity import Quantity
from devalloc.cli.main import cli
from devalloc.cli.verbs import demo
from devalloc_solver import solve_manifests
from tests.support.discovery_view import DiscoveredPools
from tests.support.recordings import NAMES, unpack

A2_VFS = [f"0000:08:{index // 8:02x}.{index % 8}" for index in range(4, 20)]
LIVE = {
    "mdev-f715f63c-0d00-4007-9c5a-b07b0c6c05de": "0000:08:00.4",
    "mdev-3deab9a4-200a-4c54-99b1-5eb0722d1d81": "0000:08:00.6",
    "mdev-c728e022-f16f-434b-ad2c-9665ee634d3d": "0000:08:02.0",
}


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: unpack(name, tmp_path_factory.mktemp(name)) for name in NAMES}


@pytest.fixture(scope="session")
def merged_a2(recorded: dict[str, Path]) -> DiscoveredPools:
    """A whole A2 server: the types recorded on one of its VFs, on every VF that is free."""
    root = recorded["harvester-vgpu-node"].parent / "merged"
    shutil.copytree(recorded["harvester-vgpu-node"], root, symlinks=True)
    types = recorded["harvester-pcidevices"] / "sys/class/mdev_bus/0000:08:01.7/mdev_supported_types"
    for vf in A2_VFS:
        if vf not in LIVE.values():
            place = (root / "sys/bus/pci/devices" / vf).resolve()
            shutil.copytree(types, place / "mdev_supported_types")
    return DiscoveredPools.on(root)


@pytest.mark.parametrize("name", NAMES)
def test_every_recording_is_valid_and_the_same_each_time(recorded: dict[str, Path], name: str) -> None:
    inventory = DiscoveredPools.on(recorded[name])
    assert inventory.devices
    assert not any(problem.is_error for problem in inventory.problems)
    assert inventory.bytes == DiscoveredPools.on(recorded[name] / "sys").bytes
    for manifest in inventory.manifests:
        assert decode(manifest).problems == []


class TestVgpuServer:
    @pytest.fixture
    def inventory(self, recorded: dict[str, Path]) -> DiscoveredPools:
        return DiscoveredPools.on(recorded["harvester-vgpu-node"])

    def test_cards(self, inventory: DiscoveredPools) -> None:
        assert {pool.metadata.name: pool.spec.driver for pool in inventory.pools} == {
            "node-a-0000-01-00": "display.devalloc.io",
            "node-a-0000-04-00": "nic.devalloc.io",
            "node-a-0000-05-00": "storage.devalloc.io",
            "node-a-0000-08-00": "gpu.devalloc.io",
        }
        assert inventory.problems == []

    def test_the_a2_has_16_vfs_in_numeric_order(self, inventory: DiscoveredPools) -> None:
        card = inventory.attributes("0000-08-00-0")
        assert (card["function"], card["vendor"], card["model"]) == ("whole", "nvidia", "A2")
        assert card["pciModel"] == "GA107GL [A2 / A16]"
        assert (card["numa"], card["iommuGroup"], card["pcieRoot"]) == (0, 38, "pci0000:00")
        vfs = inventory.names(kind="gpu", function="vf")
        assert [inventory.attributes(vf)["pciBusID"] for vf in vfs] == A2_VFS
        assert [inventory.attributes(vf)["vfIndex"] for vf in vfs] == list(range(16))
        assert [inventory.attributes(vf)["iommuGroup"] for vf in vfs] == list(range(90, 106))
        assert {inventory.attributes(vf)["pfPciBusID"] for vf in vfs} == {"0000:08:00.0"}

    def test_three_vgpus_live_on_their_vfs(self, inventory: DiscoveredPools) -> None:
        live = {name: inventory.attributes(name) for name in inventory.names(function="mdev")}
        assert {name: attributes["pciBusID"] for name, attributes in live.items()} == LIVE
        assert sorted(str(attributes["profileID"]) for attributes in live.values()) == [
            "nvidia-746", "nvidia-751", "nvidia-754",
        ]  # fmt: skip
        assert live["mdev-c728e022-f16f-434b-ad2c-9665ee634d3d"]["iommuGroup"] == 107
        for vf in LIVE.values():
            assert (inventory.unavailable(vf.replace(":", "-").replace(".", "-")) or "").startswith("in use: mdev")
        reasons = Counter(inventory.unavailable(vf) for vf in inventory.names(kind="gpu", function="vf"))
        assert reasons["withheld: a VF of an NVIDIA GPU is of no use without a vGPU type; claim a vGPU"] == 13

    def test_two_idle_ports_with_63_possible_vfs_each(self, inventory: DiscoveredPools) -> None:
        ports = inventory.names(function="pf")
        assert ports == ["0000-04-00-0", "0000-04-00-1"]
        for number, port in enumerate(ports):
            attributes = inventory.attributes(port)
            assert (attributes["driver"], attributes["numa"], attributes["iommuGroup"]) == ("ixgbe", 0, 35 + number)
            assert attributes["linkSpeed"] == Quantity.parse("10G")
            vfs = inventory.names(pfPciBusID=f"0000:04:00.{number}")
            assert len(vfs) == 63
            assert vfs[:2] == [f"0000-04-10-{number}", f"0000-04-10-{number + 2}"]
            assert {inventory.attributes(vf)["state"] for vf in vfs} == {"creatable"}
            assert inventory.fits(*vfs)
            assert not inventory.fits(port, vfs[62])
        assert inventory.unavailable(ports[1]) == "reserved: member of mgmt-bo"
        assert inventory.fits(ports[0])

    def test_the_console_is_reserved(self, inventory: DiscoveredPools) -> None:
        assert "reserved: boot VGA" in (inventory.unavailable("0000-01-00-1") or "")


class TestVgpuTypes:
    def test_the_a2_vf_has_15_profiles(self, recorded: dict[str, Path]) -> None:
        inventory = DiscoveredPools.on(recorded["harvester-pcidevices"])
        names = [n for n in inventory.names(function="mdev") if n.startswith("0000-08-01-7-")]
        assert len(names) == 15
        facts = {inventory.attributes(n)["profileID"]: inventory.attributes(n) for n in names}
        assert facts["nvidia-742"]["profile"] == "NVIDIA A2-1B"
        assert facts["nvidia-756"]["framebuffer"] == Quantity.parse("16Gi")

    def test_the_l40s_vf_has_23_profiles(self, recorded: dict[str, Path]) -> None:
        inventory = DiscoveredPools.on(recorded["harvester-pcidevices"])
        names = [n for n in inventory.names(function="mdev") if n.startswith("0000-26-00-4-")]
        assert len(names) == 23
        sizes = {inventory.attributes(n)["profile"]: inventory.attributes(n)["framebuffer"] for n in names}
        assert sizes["NVIDIA L40S-3B"] == Quantity.parse("3Gi")
        assert sizes["NVIDIA L40S-48A"] == Quantity.parse("48Gi")


class TestWholeA2Server:
    def test_the_types_may_be_recorded_below_mdev_bus_only(self, recorded: dict[str, Path]) -> None:
        root = recorded["harvester-vgpu-node"]
        bus = root / "sys/class/mdev_bus"
        types = recorded["harvester-pcidevices"] / "sys/class/mdev_bus/0000:08:01.7/mdev_supported_types"
        shutil.copytree(types, bus / "0000:08:01.7/mdev_supported_types")
        try:
            inventory = DiscoveredPools.on(root)
        finally:
            shutil.rmtree(bus.parent)
        assert len(inventory.names(function="mdev", state="creatable")) == 15
        assert inventory.most(inventory.names(function="mdev", state="creatable")) == 1

    def test_each_free_vf_offers_each_type(self, merged_a2: DiscoveredPools) -> None:
        assert len(merged_a2.names(function="mdev", state="creatable")) == 13 * 15

    def test_one_more_4_gb_profile_fits_not_13(self, merged_a2: DiscoveredPools) -> None:
        four = merged_a2.names(profile="NVIDIA A2-4Q", state="creatable")
        assert len(four) == 13
        assert merged_a2.most(four) == 1
        anything = merged_a2.names(function="mdev", state="creatable")
        assert {merged_a2.attributes(name)["framebuffer"] for name in anything if merged_a2.fits(name)} == {
            Quantity.parse("4Gi")
        }
        assert merged_a2.most(anything) == 1

    def test_the_solver_agrees(self, merged_a2: DiscoveredPools) -> None:
        kinds: list[dict[str, Any]] = [
            {
                "apiVersion": "devmgmtproto.k8s.io/v1alpha1",
                "kind": "DeviceClass",
                "metadata": {"name": "a2-4q"},
                "spec": {"driver": "gpu.devalloc.io", "constraints": "device.profile == 'NVIDIA A2-4Q'"},
            }
        ]
        kinds += [
            {
                "apiVersion": "devmgmtproto.k8s.io/v1alpha1",
                "kind": "DeviceClaim",
                "metadata": {"name": f"vm-{number}", "namespace": "default"},
                "spec": {"claims": [{"deviceClass": "a2-4q"}]},
            }
            for number in range(3)
        ]
        answer = solve_manifests([*merged_a2.manifests, *kinds])
        assert sum(claim["allocated"] for claim in answer["claims"]) == 1


class TestGuest:
    @pytest.fixture
    def inventory(self, recorded: dict[str, Path]) -> DiscoveredPools:
        return DiscoveredPools.on(recorded["igb-guest"])

    def test_vfs_and_their_pfs(self, inventory: DiscoveredPools) -> None:
        assert {
            pf: [inventory.attributes(vf)["pciBusID"] for vf in inventory.names(pfPciBusID=pf)]
            for pf in ("0000:41:00.0", "0000:42:00.0", "0000:81:00.0")
        } == {
            "0000:41:00.0": ["0000:41:10.0", "0000:41:10.2", "0000:41:10.4"],
            "0000:42:00.0": ["0000:42:00.1", "0000:42:00.2", "0000:42:00.3"],
            "0000:81:00.0": ["0000:81:10.0", "0000:81:10.2", "0000:81:10.4"],
        }

    def test_numa_nodes(self, inventory: DiscoveredPools) -> None:
        node = {name: inventory.attributes(name)["numa"] for name in inventory.devices}
        assert {name for name, number in node.items() if number == 1} == {
            "0000-81-00-0", "0000-81-10-0", "0000-81-10-2", "0000-81-10-4", "0000-82-00-0",
        }  # fmt: skip
        assert set(node.values()) == {0, 1}

    def test_what_is_on_vfio(self, inventory: DiscoveredPools) -> None:
        assert inventory.names(driver="vfio-pci") == ["0000-41-10-0", "0000-82-00-0"]
        assert inventory.fits("0000-41-10-0", "0000-41-10-2", "0000-81-10-0")
        assert (inventory.attributes("0000-82-00-0")["kind"], inventory.attributes("0000-82-00-0")["vendor"]) == (
            "gpu",
            "amd",
        )


class TestH100Guest:
    """A real H100 that a hypervisor without a virtual IOMMU has passed to a machine. NVIDIA's driver uses it."""

    @pytest.fixture
    def inventory(self, recorded: dict[str, Path]) -> DiscoveredPools:
        return DiscoveredPools.on(recorded["h100-guest"])

    def test_the_gpu_has_its_facts(self, inventory: DiscoveredPools) -> None:
        gpu = inventory.attributes("0000-00-06-0")
        assert (gpu["kind"], gpu["function"], gpu["vendor"], gpu["driver"]) == ("gpu", "whole", "nvidia", "nvidia")
        assert (gpu["model"], gpu["pciModel"]) == ("H100 SXM5 80GB", "GH100 [H100 SXM5 80GB]")
        assert (gpu["vendorID"], gpu["deviceID"], gpu["pcieRoot"]) == ("0x10de", "0x2330", "pci0000:00")
        assert {"numa", "iommuGroup"} & {*gpu} == set()

    def test_nothing_can_be_passed_on_without_an_iommu(self, inventory: DiscoveredPools) -> None:
        assert inventory.unavailable("0000-00-06-0") == "no IOMMU group for 0000:00:06.0 (is the IOMMU switched on?)"

    def test_disks_sockets_and_bridges_are_no_cards(self, inventory: DiscoveredPools) -> None:
        assert {pool.metadata.name: pool.spec.driver for pool in inventory.pools} == {
            "node-a-0000-00-03": "nic.devalloc.io",
            "node-a-0000-00-06": "gpu.devalloc.io",
        }


class TestAcceleratorServer:
    def test_its_vector_engines(self, recorded: dict[str, Path]) -> None:
        inventory = DiscoveredPools.on(recorded["hwloc-32intel64-2p8co2t-8ve"])
        engines = inventory.names(kind="accelerator")
        assert [inventory.attributes(name)["pciBusID"] for name in engines] == [
            f"0000:{bus}:00.0" for bus in ("1b", "1c", "1d", "1e", "3d", "3f", "40", "41")
        ]
        assert {inventory.attributes(name)["model"] for name in engines} == {"Vector Engine 1.0"}
        assert {inventory.attributes(name)["vendor"] for name in engines} == {"nec"}
        assert {inventory.attributes(name)["pcieRoot"] for name in engines} == {"pci0000:17", "pci0000:3a"}
        assert [inventory.attributes(name)["linkType"] for name in inventory.names(kind="nic")] == [
            "infiniband", "infiniband", "ethernet", "ethernet",
        ]  # fmt: skip

    def test_without_an_iommu_nothing_is_offered(self, recorded: dict[str, Path]) -> None:
        inventory = DiscoveredPools.on(recorded["hwloc-32intel64-2p8co2t-8ve"])
        assert all("no IOMMU group" in (inventory.unavailable(name) or "") for name in inventory.devices)


def test_every_function_of_our_kinds_is_there(recorded: dict[str, Path]) -> None:
    """Against the class files, read by other means than ours."""
    for name in NAMES:
        inventory = DiscoveredPools.on(recorded[name])
        published = {str(inventory.attributes(device)["pciBusID"]) for device in inventory.devices}
        devices = recorded[name] / "sys/bus/pci/devices"
        for address in os.listdir(devices):
            file = devices / address / "class"
            if file.exists() and re.match(r"0x(02|03|12|0108|0b40)", file.read_text()):
                assert address in published, name


@pytest.mark.parametrize(("fleet", "recording"), [("vgpu-server", "harvester-vgpu-node"), ("net-server", "igb-guest")])
def test_the_recorded_machines_of_the_demo_are_what_discovery_finds_in_the_recordings(
    recorded: dict[str, Path], fleet: str, recording: str
) -> None:
    arguments = ["discover", "--sysfs-root", str(recorded[recording]), "--node-name", fleet, "-o", "json"]
    pools = json.loads(CliRunner().invoke(cli, arguments, catch_exceptions=False).stdout)["items"]

    shipped = [document.content for document in load([demo.DATA / f"fleet-{fleet}.yaml"]).documents]
    by_name = {pool["metadata"]["name"]: pool for pool in pools}
    for one in shipped:
        assert facts(one) == facts(by_name[one["metadata"]["name"]])


def facts(content: dict[str, Any]) -> dict[str, Any]:
    """A pool's devices with all their attributes, wherever they are written, and what they draw on."""
    obj = decode(content).object
    assert isinstance(obj, DevicePool)
    shared = {attribute.name: attribute.value for attribute in obj.spec.attributes}
    devices = {
        device.name: (shared | {attribute.name: attribute.value for attribute in device.attributes}, device.requests)
        for device in obj.spec.devices
    }
    return {"devices": devices, "resources": {r.name: (r.capacity, r.block) for r in obj.spec.resources}}
