"""What the guest monitor reads from its kernel, and what it brings online."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from devalloc_node.guest import memory, system
from devalloc_node.guest.memory import (
    GuestMemory,
    MemoryPolicy,
    cgroup_anonymous,
    cgroup_file,
    memory_measure,
    read_memory,
)
from devalloc_node.guest.metrics_http import gauges
from devalloc_node.guest.system import GuestSystem
from tests.support.fake_guest_tree import GIB, MIB, GuestTree


def test_lists_of_cpus() -> None:
    lists = {
        "0-1": [0, 1],
        "0": [0],
        "0-1,3-5, 9": [0, 1, 3, 4, 5, 9],
        "0,1,2,3": [0, 1, 2, 3],
        "": [],
        "2,1-2\n": [1, 2],
    }
    assert {text: system.parse_cpus(text) for text in lists} == lists
    for text in ("x", "1-", "-1", "3-1", "0-9999999999", "1,,2", "0x1", "1 2"):
        with pytest.raises(ValueError, match="CPU"):
            system.parse_cpus(text)


def test_cpus_go_online_from_the_lowest_and_offline_from_the_highest(tmp_path: Path) -> None:
    guest = GuestTree(tmp_path, cpus=4, online=1)
    for count, online in ((3, {0, 1, 2}), (2, {0, 1}), (4, {0, 1, 2, 3}), (1, {0}), (0, {0}), (99, {0, 1, 2, 3})):
        assert system.scale_cpus(guest, count) == []
        assert guest.online_cpus == online == set(system.online_cpus(guest))
    assert not any("cpu0" in name for name, _ in guest.written), "the first CPU is never touched"


def test_the_first_cpu_stays_online_where_it_could_be_switched_off_too(tmp_path: Path) -> None:
    guest = GuestTree(tmp_path, cpus=2, online=2)
    guest.put("sys/devices/system/cpu/cpu0/online", "1\n")  # as on ARM
    for count in (1, 0):
        system.scale_cpus(guest, count)
        assert guest.online_cpus == {0}


def test_what_is_online_stays_where_it_is_enough(tmp_path: Path) -> None:
    guest = GuestTree(tmp_path, cpus=4, online=1)
    guest.write("sys/devices/system/cpu/cpu3/online", "1")
    system.scale_cpus(guest, 2)
    assert guest.online_cpus == {0, 3}


def test_a_cpu_that_is_plugged_later_is_brought_online(tmp_path: Path) -> None:
    guest = GuestTree(tmp_path, cpus=1)
    assert system.scale_cpus(guest, None) == []
    guest.plug_cpu(5)
    assert system.scale_cpus(guest, None) == []
    assert guest.online_cpus == {0, 5}
    assert (system.present_cpus(guest), system.online_cpus(guest)) == ([0, 5], [0, 5])


def test_a_cpu_that_the_kernel_refuses_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    guest = GuestTree(tmp_path, cpus=4)
    guest.refuses["sys/devices/system/cpu/cpu1/online"] = errno.EIO
    (failure,) = system.scale_cpus(guest, None)
    assert failure.startswith("CPU 1 cannot be brought online")
    assert guest.online_cpus == {0, 2, 3}


def test_blocks_of_memory_go_where_the_policy_says(tmp_path: Path) -> None:
    for policy, value in (("movable", "online_movable"), ("kernel", "online_kernel"), ("auto", "online")):
        guest = GuestTree(tmp_path / policy)
        for number in (8, 9):
            guest.plug_block(number)
        assert memory.bring_online(guest, policy) == []
        assert [written for _, written in guest.written] == [value, value]
        assert guest.states() == {8: "online", 9: "online"}
        assert memory.bring_online(guest, policy) == []
        assert len(guest.written) == 2, "what is online is left alone"


def test_a_block_that_cannot_go_online_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    guest = GuestTree(tmp_path)
    for number in (8, 9):
        guest.plug_block(number)
    guest.refuses["sys/devices/system/memory/memory8/state"] = errno.ENOMEM
    (failure,) = memory.bring_online(guest, "movable")
    assert failure.startswith("memory block 8 cannot be brought online")
    assert guest.states() == {8: "offline", 9: "online"}


def test_a_block_that_is_unplugged_while_it_is_brought_online_is_no_failure(tmp_path: Path) -> None:
    class Unplugging(GuestTree):
        def write(self, name: str, value: str) -> None:
            (self.folder / name).unlink()
            raise OSError(errno.ENODEV, "No such device", self.path(name))

    guest = Unplugging(tmp_path)
    guest.plug_block(8)
    assert memory.bring_online(guest, "movable") == []


def test_the_kernel_is_told_what_to_do_with_memory_to_come(tmp_path: Path) -> None:
    guest = GuestTree(tmp_path)
    automatic = "sys/devices/system/memory/auto_online_blocks"
    parameters = "sys/module/memory_hotplug/parameters"
    guest.put(automatic, "offline\n")
    assert memory.set_policy(guest, "movable", 8) == ("movable", [])
    assert guest.read(automatic) == "online_movable"
    policy, (problem,) = memory.set_policy(guest, "auto", 8)
    assert policy == "movable", "an old kernel"
    assert "does not support a ratio" in problem
    guest.put(f"{parameters}/auto_movable_ratio", "301\n")
    guest.put(f"{parameters}/online_policy", "contig-zones\n")
    assert memory.set_policy(guest, "auto", 8) == ("auto", [])
    assert guest.read(f"{parameters}/auto_movable_ratio").strip() == "801"
    assert guest.read(f"{parameters}/online_policy").strip() == "auto-movable"
    assert guest.read(automatic).startswith("online")
    guest.refuses[automatic] = errno.EACCES
    _, (problem,) = memory.set_policy(guest, "kernel", 8)
    assert "cannot write online_kernel" in problem


def test_memory_of_the_whole_guest(tmp_path: Path) -> None:
    guest = GuestTree(tmp_path, memory=4 * GIB, used=512 * MIB)
    assert read_memory(guest) == GuestMemory(total=4 * GIB, available=3584 * MIB, cached=512 * MIB, anonymous=512 * MIB)
    guest.put("proc/meminfo", "MemTotal: 1 kB\n")
    with pytest.raises(ValueError, match="has no MemAvailable"):
        read_memory(guest)


def test_memory_of_a_cgroup_of_either_version(tmp_path: Path) -> None:
    guest = GuestTree(tmp_path)
    guest.put("sys/fs/cgroup/memory/work/memory.stat",
              "active_anon 1\ninactive_anon 2\ntotal_active_anon 30\ntotal_inactive_anon 12\n")  # fmt: skip
    assert cgroup_anonymous(guest, cgroup_file(guest, "work")) == 42, "version 1, with what is below it"
    guest.put("sys/fs/cgroup/unified/work/memory.stat", "anon 9\nactive_anon 5\ninactive_anon 4\n")
    assert cgroup_anonymous(guest, cgroup_file(guest, "/work/")) == 9, "version 2 beside version 1"
    guest.put("sys/fs/cgroup/work/memory.stat", "anon 8\nactive_anon 5\ninactive_anon 3\n")
    measure = memory_measure(guest, "cgroup:work")
    assert measure is not None
    assert measure() == 8, "version 2"
    guest.put("sys/fs/cgroup/work/memory.stat", "anon 8\n")
    with pytest.raises(ValueError, match="has no active_anon"):
        measure()


@pytest.mark.parametrize("group", ["..", "a/../../etc", "a//b", ".", "a\0b", ""])
def test_the_name_of_a_cgroup_never_leads_elsewhere(tmp_path: Path, group: str) -> None:
    guest = GuestTree(tmp_path)
    guest.put("memory.stat", "active_anon 1\ninactive_anon 2\n")
    with pytest.raises(ValueError, match="invalid cgroup name"):
        cgroup_file(guest, group)


def test_a_cgroup_that_is_not_there_is_told_with_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no cgroup 'work'.*sys/fs/cgroup/unified/work/memory.stat"):
        memory_measure(GuestTree(tmp_path), "cgroup:work")


def test_what_to_measure() -> None:
    assert memory_measure(GuestSystem(), "none") is None
    for text in ("cgroup:", "all", "", "cgroup"):
        with pytest.raises(ValueError, match="is not `system`, `cgroup:NAME` or `none`"):
            memory_measure(GuestSystem(), text)


def test_gauges_are_what_agents_read(tmp_path: Path) -> None:
    guest = GuestTree(tmp_path, cpus=4, online=2, memory=4 * GIB, used=512 * MIB)
    guard = MemoryPolicy(memory_measure(guest, "system"), 4 * GIB, None)
    guard.sample(0)
    lines = gauges(guest, guard, is_connected=True).splitlines()
    values = dict(line.split(" ") for line in lines if not line.startswith("#"))
    assert values == {
        "host_load1": "0.25",
        "host_load5": "0.50",
        "host_memory_total_bytes": str(4 * GIB),
        "host_memory_available_bytes": str(3584 * MIB),
        "host_memory_cached_bytes": str(512 * MIB),
        "devalloc_guest_cpus_online": "2",
        "devalloc_guest_cpus_present": "4",
        "devalloc_guest_memory_used_bytes": str(512 * MIB),
        "devalloc_guest_memory_threshold_bytes": str((4 * GIB - 100 * MIB) * 85 // 100),
        "devalloc_guest_agent_connected": "1",
    }
    assert all(f"# TYPE {name} gauge" in lines for name in values)


def test_this_machines_own_kernel_is_read_as_well() -> None:
    guest = GuestSystem()
    now = read_memory(guest)
    assert 0 < now.anonymous < now.total
    assert 0 < now.available <= now.total
    assert 0 in system.online_cpus(guest)
    assert set(system.online_cpus(guest)) <= set(system.present_cpus(guest))
    guard = MemoryPolicy(memory_measure(guest, "system"), now.total, None)
    assert "host_load1 " in gauges(guest, guard, is_connected=False)
