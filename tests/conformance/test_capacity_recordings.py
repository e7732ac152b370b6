"""Recorded machines: what they have for machines, and what of their GPUs is really left."""

from __future__ import annotations

from pathlib import Path

import pytest

from devalloc.inventory.capacity import CapacityConfig, CapacityError, discover_capacity, parse_size
from devalloc.inventory.capacity.cpus import count_cpus, format_cpu_list
from devalloc.inventory.capacity.gpus import gpu_status
from devalloc.inventory.capacity.status import host_status
from devalloc.inventory.discover import discover
from tests.support import recorded_host
from tests.support.recordings import unpack


def test_a_server_of_two_sockets_has_interleaved_nodes(tmp_path: Path) -> None:
    root = unpack("hwloc-32intel64-2p8co2t-8ve", tmp_path)
    capacity = discover_capacity(root, CapacityConfig(disk=parse_size("1TB"), uplink="enp96s0f0"))
    assert count_cpus((root / "proc/cpuinfo").read_text()) == 32
    assert (capacity.cpu.capacity, capacity.cpu.effective_limit) == (32_000, 128_000)
    assert capacity.memory.capacity == 97445600 * 1024 - 8 * 2**30, "8 GiB are set aside in huge pages"
    assert [(one.resource, one.capacity) for one in capacity.huge_pages] == [("hugepages-2Mi", 8 * 2**30)]
    assert [node.huge_pages for node in capacity.nodes] == [{2 << 20: 4 << 30}] * 2
    assert [(node.id, format_cpu_list(node.cpus), node.memory) for node in capacity.nodes] == [
        (0, "0-7,16-23", 47925628 * 1024),
        (1, "8-15,24-31", 49519964 * 1024),
    ]
    assert (capacity.network.capacity, capacity.network.source) == (125_000_000, "detected")
    assert capacity.problems == ()
    assert discover_capacity(root / "sys", CapacityConfig(disk=1, uplink="enp96s0f0")).nodes == capacity.nodes


def test_capacity_of_a_guest_without_process_files_comes_from_its_numa_nodes(tmp_path: Path) -> None:
    capacity = discover_capacity(unpack("igb-guest", tmp_path))
    assert (capacity.cpu.capacity, capacity.memory.capacity) == (2_000, (1958776 + 2061092) * 1024)
    assert [format_cpu_list(node.cpus) for node in capacity.nodes] == ["0", "1"]


def test_a_recording_that_tells_of_no_cpus_is_no_host(tmp_path: Path) -> None:
    with pytest.raises(CapacityError, match="discover CPU: neither /sys nor /proc lists any"):
        discover_capacity(unpack("harvester-vgpu-node", tmp_path, only=("0000:08:0",)))


def test_one_more_vgpu_fits_beside_the_three_on_the_a2_and_not_one_on_each_of_its_13_free_functions(
    tmp_path: Path,
) -> None:
    root = recorded_host.recorded_a2(tmp_path).root
    gpus = gpu_status(discover(root, node_name="node-a").pools)
    assert gpus is not None
    assert (gpus.mode, gpus.total, gpus.used, gpus.allocatable) == ("vgpu", 16, 3, 1)
    left = {profile.name: profile.available for profile in gpus.profiles}
    assert len(left) == 15
    assert {name: count for name, count in left.items() if count} == {
        "NVIDIA A2-4A": 1,
        "NVIDIA A2-4C": 1,
        "NVIDIA A2-4Q": 1,
    }


def test_a_card_around_the_recorded_vf_gives_what_48_gib_hold(tmp_path: Path) -> None:
    root = recorded_host.recorded_l40s(tmp_path).root
    pools = discover(root, node_name="node-a").pools
    capacity = discover_capacity(unpack("igb-guest", tmp_path / "guest"))
    gpu = host_status(capacity, gpus=lambda: gpu_status(pools)).to_dict()["gpu"]
    assert (gpu["mode"], gpu["total_slots"], gpu["used_slots"]) == ("vgpu", 32, 0)
    left = {profile["name"]: (profile["framebuffer_mb"], profile["available"]) for profile in gpu["profiles"]}
    assert len(left) == 23
    assert (left["NVIDIA L40S-2Q"], left["NVIDIA L40S-48Q"]) == ((2048, 24), (49152, 1))
