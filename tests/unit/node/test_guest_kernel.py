"""What the guest monitor reads from its kernel, and what it brings online."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from devalloc.scaling.messages.monitor import DownscaleResult
from devalloc_machines.guest import memory, system
from devalloc_machines.guest.memory import (
    GuestMemory,
    MemoryPolicy,
    cgroup_file,
    cgroup_used,
    memory_measure,
    read_memory,
)
from devalloc_machines.guest.metrics_http import gauges
from devalloc_machines.guest.monitor import GuestMonitor
from devalloc_machines.guest.settings import settings_from
from devalloc_machines.guest.system import GuestSystem
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


def test_a_cpu_that_the_kernel_refuses_is_reported_and_the_others_go_online(tmp_path: Path) -> None:
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


def test_a_block_that_cannot_go_online_is_reported_and_the_others_do(tmp_path: Path) -> None:
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


def test_the_kernel_gets_a_policy_for_memory_to_come(tmp_path: Path) -> None:
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
    assert read_memory(guest) == GuestMemory(
        total=4 * GIB, available=3584 * MIB, cached=512 * MIB, anonymous=512 * MIB, obtainable=3584 * MIB
    )
    guest.put("proc/meminfo", "MemTotal: 1 kB\n")
    with pytest.raises(ValueError, match="has no MemAvailable"):
        read_memory(guest)


def test_memory_of_a_cgroup_of_either_version(tmp_path: Path) -> None:
    guest = GuestTree(tmp_path)
    guest.put("sys/fs/cgroup/memory/work/memory.stat",
              "active_anon 1\ninactive_anon 2\ntotal_active_anon 30\ntotal_inactive_anon 12\n")  # fmt: skip
    assert cgroup_used(guest, cgroup_file(guest, "work")) == 42, "version 1, with what is below it"
    guest.put("sys/fs/cgroup/unified/work/memory.stat", "anon 9\nactive_anon 5\ninactive_anon 4\n")
    assert cgroup_used(guest, cgroup_file(guest, "/work/")) == 9, "version 2 beside version 1"
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


def test_a_missing_cgroup_is_reported_with_its_path(tmp_path: Path) -> None:
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
    assert 0 < now.anonymous <= now.used < now.total
    assert now.available <= now.obtainable <= now.total
    assert 0 < now.available <= now.total
    assert 0 in system.online_cpus(guest)
    assert set(system.online_cpus(guest)) <= set(system.present_cpus(guest))
    guard = MemoryPolicy(memory_measure(guest, "system"), now.total, None)
    assert "host_load1 " in gauges(guest, guard, is_connected=False)


GUEST_OF_8_GIB = {
    "MemTotal": 8192, "MemFree": 1200, "MemAvailable": 1500, "Cached": 300,
    "Active(anon)": 100, "Inactive(anon)": 100, "Unevictable": 0, "SUnreclaim": 40, "Hugetlb": 0,
}  # fmt: skip
IDLE = {**GUEST_OF_8_GIB, "MemFree": 7700, "MemAvailable": 7800}


def meminfo(mib: dict[str, int], **counts: int) -> str:
    lines = [f"{name}:{amount * 1024:>12} kB\n" for name, amount in mib.items()]
    return "".join([*lines, *(f"{name}:{count:>8}\n" for name, count in counts.items())])


def agreement(guest: GuestTree, memory: int, what: str = "system") -> DownscaleResult:
    """Whether a monitor that measured for half a second agrees to so much memory."""
    monitor = GuestMonitor(settings_from({"root": str(guest.folder), "measure": what}), guest)
    for instant in range(5):
        monitor.guard.sample(instant * 100)
    return asyncio.run(monitor.guard.shrink(memory, 500))


# neondatabase/autoscaling#531 and neondatabase/neon#5606: what a monitor judges by.
@pytest.mark.parametrize(
    "lines",
    [
        {"Active(anon)": 6144},
        {"Inactive(anon)": 6144, "Shmem": 6100},
        {"Unevictable": 6144, "Mlocked": 6144, "AnonPages": 6344},
        {"Unevictable": 6144, "Mlocked": 0},
        {"Hugetlb": 6144},
        {"SUnreclaim": 6144, "Slab": 6200},
        {"PageTables": 3200, "KernelStack": 3000},
        {},
    ],
    ids=["anonymous", "tmpfs", "mlocked", "ramfs", "huge pages", "slab", "page tables and stacks", "no line: pinned"],
)
def test_memory_that_cannot_be_taken_is_in_use(tmp_path: Path, lines: dict[str, int]) -> None:
    guest = GuestTree(tmp_path)
    guest.put("proc/meminfo", meminfo({**GUEST_OF_8_GIB, **lines}))
    assert read_memory(guest).used >= 6144 * MIB
    assert not agreement(guest, 4 * GIB).ok
    if lines:  # by its own line too, whatever the kernel takes for available
        guest.put("proc/meminfo", meminfo({**IDLE, **lines}))
        assert not agreement(guest, 4 * GIB).ok


def test_huge_pages_of_an_old_kernel_are_counted_by_their_number(tmp_path: Path) -> None:
    guest = GuestTree(tmp_path)
    lines = {name: amount for name, amount in IDLE.items() if name != "Hugetlb"}
    guest.put("proc/meminfo", meminfo({**lines, "Hugepagesize": 2}, HugePages_Total=3072, HugePages_Free=3072))
    assert read_memory(guest).used == (200 + 6144) * MIB


@pytest.mark.parametrize(
    "lines",
    [
        {"MemAvailable": 7600, "Active(file)": 3500, "Inactive(file)": 3500, "Cached": 7000},
        {"KReclaimable": 7000, "SReclaimable": 6900, "Slab": 6950},
        {"SReclaimable": 7000},
        {"GPUReclaim": 7000},
    ],
    ids=["page cache", "reclaimable", "reclaimable slab of an old kernel", "pools of a GPU driver"],
)
def test_what_the_kernel_gives_back_is_not_in_use(tmp_path: Path, lines: dict[str, int]) -> None:
    guest = GuestTree(tmp_path)
    guest.put("proc/meminfo", meminfo({**GUEST_OF_8_GIB, "MemFree": 700, "MemAvailable": 700, **lines}))
    assert read_memory(guest).used <= 400 * MIB
    assert agreement(guest, GIB).ok


def test_the_cache_of_zfs_is_not_in_use_as_far_as_it_shrinks(tmp_path: Path) -> None:
    guest = GuestTree(tmp_path)
    guest.put("proc/meminfo", meminfo({**GUEST_OF_8_GIB, "SUnreclaim": 3000}))
    assert not agreement(guest, 2 * GIB).ok
    head = "9 1 0x01 147 39984 5033 49\nname                            type data\n"
    guest.put("proc/spl/kstat/zfs/arcstats", f"{head}hits 4 17\nc_min 4 {256 * MIB}\nsize 4 {6400 * MIB}\n")
    assert read_memory(guest).used == (8192 - 1500 - 6400 + 256 - 100) * MIB
    assert agreement(guest, 2 * GIB).ok
    guest.put("proc/spl/kstat/zfs/arcstats", "this is not a table\nsize 4\n")
    assert not agreement(guest, 2 * GIB).ok, "what cannot be read is not counted as cache"


def test_what_the_kernel_holds_back_at_a_size_is_not_in_use(tmp_path: Path) -> None:
    """A guest of a public report: 8 GB of a cloud, Amazon Linux 6.1; 263 MiB of reserve that a smaller one has not."""
    guest = GuestTree(tmp_path)
    kib = {
        "MemTotal": 7999092, "MemFree": 6641128, "MemAvailable": 7454888, "Cached": 991544, "Active(anon)": 868,
        "Inactive(anon)": 64508, "Active(file)": 269956, "Inactive(file)": 714888, "KReclaimable": 98236,
        "Unevictable": 0, "SUnreclaim": 87148, "KernelStack": 1904, "PageTables": 2272, "Percpu": 888, "Hugetlb": 0,
    }  # fmt: skip
    guest.put("proc/meminfo", "".join(f"{name}: {amount} kB\n" for name, amount in kib.items()))
    assert read_memory(guest).used == (7999092 - 6641128 - 269956 - 714888 - 98236 - 100 * 1024) * 1024


def test_a_cgroup_counts_what_it_locked_and_what_the_kernel_has_for_it(tmp_path: Path) -> None:
    guest = GuestTree(tmp_path)
    name = "sys/fs/cgroup/work/memory.stat"
    lists = f"active_anon {100 * MIB}\ninactive_anon {100 * MIB}\nactive_file {GIB}\nslab_reclaimable {GIB}\n"
    guest.put("proc/meminfo", meminfo(IDLE))
    for line in ("unevictable", "slab_unreclaimable", "kernel_stack", "pagetables", "percpu", "sock"):
        guest.put(name, f"{lists}{line} {6 * GIB}\n")
        assert not agreement(guest, 4 * GIB, "cgroup:work").ok, line
    guest.put(name, lists)
    assert agreement(guest, 4 * GIB, "cgroup:work").ok
    guest.put("sys/fs/cgroup/memory/old/memory.stat",
              f"total_active_anon 0\ntotal_inactive_anon 0\nunevictable 0\ntotal_unevictable {6 * GIB}\n")  # fmt: skip
    assert not agreement(guest, 4 * GIB, "cgroup:old").ok


def test_a_cgroup_that_fits_does_not_take_memory_from_the_rest_of_the_guest(tmp_path: Path) -> None:
    guest = GuestTree(tmp_path)
    guest.put("sys/fs/cgroup/work/memory.stat", "active_anon 0\ninactive_anon 0\n")
    guest.put("proc/meminfo", meminfo({**GUEST_OF_8_GIB, "Hugetlb": 6144}))
    status = "6592 MiB of the whole guest are in use: 3996 MiB would be left"
    assert agreement(guest, 4 * GIB, "cgroup:work") == DownscaleResult(False, status)
    assert agreement(guest, 7 * GIB, "cgroup:work").ok
    assert agreement(guest, 4 * GIB, "none").ok
