"""What a host has for machines: CPUs, memory, disk, network, and who tells."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devalloc.inventory.capacity import (
    AmountError,
    CapacityConfig,
    CapacityError,
    HostCapacity,
    NumaNode,
    discover_capacity,
    parse_bandwidth,
    parse_size,
    read_capacity,
)
from devalloc.inventory.capacity.cpus import format_cpu_list, free_huge_pages, parse_cpu_list
from devalloc.inventory.capacity.machines import DefaultRates, default_rates
from devalloc.inventory.sysfs import Tree
from tests.support.examples import examples

GIB = 2**30


class Host:
    """Files of a host below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "sys").mkdir()
        self.write("proc/cpuinfo", cpuinfo(range(32), siblings=16, sockets=2))
        self.write("proc/meminfo", f"MemTotal: {96 * 2**20} kB\n")

    def write(self, path: str, text: str) -> Host:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return self

    def numa(self, lists: list[str], gib: list[int]) -> Host:
        """Interleaved as real servers are: no range holds a node's CPUs."""
        for number, (cpus, size) in enumerate(zip(lists, gib, strict=True)):
            self.write(f"sys/devices/system/node/node{number}/cpulist", cpus)
            self.write(f"sys/devices/system/node/node{number}/meminfo", f"Node {number} MemTotal: {size * 2**20} kB\n")
        return self

    def uplink(self, speed: str, name: str = "eno1") -> Host:
        route = f"Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n{name} 0000A8C0 0 1 0 0 0 00FFFFFF\n"
        self.write("proc/net/route", route + f"{name}\t00000000\t0100A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n")
        return self.write(f"sys/class/net/{name}/speed", speed)

    def discover(self, **settings: object) -> HostCapacity:
        return discover_capacity(self.root, CapacityConfig(**settings))  # type: ignore[arg-type]


def cpuinfo(numbers: range, siblings: int, sockets: int) -> str:
    each = len(numbers) // sockets
    return "\n".join(f"processor\t: {n}\nphysical id\t: {n // each}\nsiblings\t: {siblings}\n" for n in numbers)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def messages(capacity: HostCapacity, path: str) -> str:
    return " ".join(problem.message for problem in capacity.problems if problem.path == path)


def test_nodes_have_the_cpus_that_the_kernel_lists_interleaved_or_not(host: Host) -> None:
    capacity = host.numa(["0-7,16-23", "8-15,24-31"], [48, 48]).discover()
    first, second = frozenset(range(8)) | frozenset(range(16, 24)), frozenset(range(8, 16)) | frozenset(range(24, 32))
    assert capacity.nodes == (NumaNode(0, first, 48 * GIB), NumaNode(1, second, 48 * GIB))
    assert capacity.cpus == first | second
    assert (capacity.cpu.capacity, capacity.cpu.effective_limit, capacity.cpu.source) == (32_000, 128_000, "detected")
    assert messages(capacity, "cpu") == ""


def test_huge_pages_of_the_nodes_are_taken_off_the_memory_and_free_ones_are_counted_apart(host: Host) -> None:
    host.numa(["0-7", "8-15"], [48, 48]).write("proc/meminfo", f"MemTotal: {96 << 20} kB\n")
    for node, size, count, free in ((0, 2048, 512, 12), (1, 2048, 1024, 0), (1, 1048576, 4, 3), (1, 64, 16, 16)):
        folder = f"sys/devices/system/node/node{node}/hugepages/hugepages-{size}kB"
        host.write(f"{folder}/nr_hugepages", f"{count}\n").write(f"{folder}/free_hugepages", f"{free}\n")
    capacity = host.discover()
    assert [(one.resource, one.effective_limit) for one in capacity.huge_pages] == [
        ("hugepages-2Mi", 3 * GIB),
        ("hugepages-1Gi", 4 * GIB),
    ]
    assert (capacity.of("hugepages-1Gi").capacity, capacity.of("memory").capacity) == (4 * GIB, 89 * GIB - (1 << 20))
    assert [node.ordinary_memory for node in capacity.nodes] == [47 * GIB, 42 * GIB - (1 << 20)]
    assert "1048576 bytes of memory are in huge pages of 65536 bytes" in messages(capacity, "memory")
    tree = Tree(host.root)
    assert [free_huge_pages(tree, 2 << 20, node) for node in (0, 1, 2)] == [24 << 20, 0, 0]
    host.write("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "13\n")
    assert (free_huge_pages(tree, 2 << 20), free_huge_pages(tree, 1 << 30)) == (26 << 20, 0)


@pytest.mark.parametrize("count", ["-1", "x", str(1 << 50), "0"])
def test_a_number_of_huge_pages_that_makes_no_sense_is_none(host: Host, count: str) -> None:
    host.numa(["0-7"], [48]).write(
        "sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages", f"{count}\n"
    )
    assert (host.discover().huge_pages, host.discover().nodes[0].huge_pages) == ((), {})


def test_a_node_may_have_memory_alone_and_numbers_may_have_gaps(host: Host) -> None:
    host.numa(["0-31"], [64]).write("sys/devices/system/node/node8/cpulist", "\n")
    host.write("sys/devices/system/node/node8/meminfo", "Node 8 MemTotal: 33554432 kB\n")
    assert [(node.id, len(node.cpus), node.memory) for node in host.discover().nodes] == [
        (0, 32, 64 * GIB),
        (8, 0, 32 * GIB),
    ]


def test_cpus_that_are_offline_are_none_although_cpuinfo_takes_all_sockets_for_equal(host: Host) -> None:
    host.write("sys/devices/system/cpu/online", "0-29,31\n").write("sys/devices/system/cpu/present", "0-31\n")
    host.write("sys/devices/system/cpu/offline", "30,32-127\n")
    capacity = host.discover()
    assert (capacity.cpu.capacity, 30 in capacity.cpus) == (31_000, False)
    assert "1 CPUs are offline: 30" in messages(capacity, "cpu")
    assert "/proc/cpuinfo would make it 32 CPUs" in messages(capacity, "cpu")


def test_machines_get_no_cpus_and_memory_that_this_process_may_not_use(host: Host) -> None:
    host.numa(["0-7,16-23", "8-15,24-31"], [48, 48]).write("sys/devices/system/cpu/online", "0-31\n")
    host.write("proc/self/status", "Name: x\nCpus_allowed_list:\t0-3,8\nMems_allowed_list:\t0\n")
    capacity = host.discover()
    assert (capacity.cpu.capacity, capacity.cpus) == (5_000, frozenset({0, 1, 2, 3, 8}))
    assert [node.cpus for node in capacity.nodes] == [frozenset(range(4)), frozenset({8})]
    assert (capacity.memory.capacity, capacity.nodes[1].memory) == (48 * GIB, 0)
    assert "may use 5 of the 32 CPUs online" in messages(capacity, "cpu")
    assert "may use" in messages(capacity, "memory")


@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_limits_of_the_own_cgroup_and_its_parents_are_reported_and_not_counted(host: Host, layout: str) -> None:
    if layout == "v1":
        host.write("proc/self/cgroup", "4:memory:/pod\n2:cpu,cpuacct:/pod/app\n")
        host.write("sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us", "150000\n")
        host.write("sys/fs/cgroup/cpu/pod/cpu.cfs_period_us", "100000\n")
        host.write("sys/fs/cgroup/cpu/pod/app/cpu.cfs_quota_us", "-1\n")
        host.write("sys/fs/cgroup/memory/pod/memory.limit_in_bytes", f"{4 * GIB}\n")
        host.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    else:
        host.write("proc/self/cgroup", "0::/pod/app\n")
        host.write("sys/fs/cgroup/pod/cpu.max", "150000 100000\n").write(
            "sys/fs/cgroup/pod/app/cpu.max", "max 100000\n"
        )
        host.write("sys/fs/cgroup/pod/memory.max", f"{4 * GIB}\n")
    capacity = host.discover()
    assert "quota of 1.5 CPUs" in messages(capacity, "cpu")
    assert f"{4 * GIB} bytes" in messages(capacity, "memory")
    assert (capacity.cpu.capacity, capacity.memory.capacity) == (32_000, 96 * GIB)


def test_capacity_of_a_recording_without_proc_comes_from_its_numa_nodes(tmp_path: Path) -> None:
    host = Host(tmp_path).numa(["0-3", "4-7"], [2, 2])
    (tmp_path / "proc/cpuinfo").unlink()
    (tmp_path / "proc/meminfo").unlink()
    capacity = host.discover()
    assert (capacity.cpu.capacity, capacity.memory.capacity) == (8_000, 4 * GIB)


@pytest.mark.parametrize(
    ("file", "text", "error"),
    [
        ("proc/cpuinfo", None, "discover CPU: neither /sys nor /proc"),
        ("proc/meminfo", None, "discover memory: .* no readable /proc/meminfo"),
        ("proc/meminfo", "MemFree: 12 kB\n", "discover memory: MemTotal not found in /proc/meminfo"),
        ("proc/meminfo", "MemTotal: many kB\n", "discover memory: parse MemTotal: 'many'"),
        ("proc/self/status", "Cpus_allowed_list:\t64-65\n", "discover CPU: .* may use 0 of the 32"),
    ],
)
def test_without_cpus_or_memory_a_host_is_of_no_use(host: Host, file: str, text: str | None, error: str) -> None:
    if text is None:
        (host.root / file).unlink()
    else:
        host.write(file, text)
    with pytest.raises(CapacityError, match=error):
        host.discover()


@pytest.mark.parametrize(
    ("speed", "bandwidth"),
    [("10000\n", 1_250_000_000), ("100\n", 12_500_000), ("-1\n", 0), ("0\n", 0), ("4294967295", 0), ("fast\n", 0)],
)
def test_the_network_is_as_fast_as_the_interface_of_the_default_route(host: Host, speed: str, bandwidth: int) -> None:
    capacity = host.uplink(speed).discover()
    assert (capacity.uplink, capacity.network.capacity, capacity.network.effective_limit) == (
        "eno1",
        bandwidth,
        2 * bandwidth,
    )
    assert capacity.network.source == ("detected" if bandwidth else "unknown")
    assert ("configure a limit" in messages(capacity, "network")) == (not bandwidth)


def test_a_default_route_that_leads_nowhere_is_none(host: Host) -> None:
    host.uplink("1000")
    route = (host.root / "proc/net/route").read_text()
    refusing = "*\t00000000\t00000000\t0201\t0\t0\t50\t00000000\t0\t0\t0\n"
    host.write("proc/net/route", route.replace("\n", f"\n{refusing}", 1))
    assert (host.discover().uplink, host.discover().network.capacity) == ("eno1", 125_000_000)


def test_an_uplink_or_a_limit_that_is_configured_wins(host: Host) -> None:
    host.uplink("10000").write("sys/class/net/eno2/speed", "25000\n")
    assert host.discover(uplink="eno2").network.capacity == 3_125_000_000
    capacity = host.discover(network=125_000_000)
    assert (capacity.network.capacity, capacity.network.source) == (125_000_000, "configured")
    assert "no interface eno7" in messages(host.discover(uplink="eno7"), "network")


@pytest.mark.parametrize("name", ["..", "../../bus", "a b", "x" * 16, "eno1\x00"])
def test_a_name_that_is_no_interface_is_no_path(host: Host, name: str) -> None:
    assert "invalid interface name" in messages(host.discover(uplink=name), "network")


def test_the_disk_is_the_whole_file_system_of_a_folder_that_need_not_be_there_yet(host: Host, tmp_path: Path) -> None:
    file_system = os.statvfs(tmp_path)
    assert host.discover(data_dir=tmp_path / "not" / "yet").disk.capacity == file_system.f_blocks * file_system.f_frsize
    limited = host.discover(disk=1000 * GIB, data_dir=tmp_path, image_fraction=Fraction(1, 10))
    assert (limited.disk.capacity, limited.disk.source, limited.image_limit) == (1000 * GIB, "configured", 100 * GIB)
    assert host.discover(disk=5).image_limit == 1
    unknown = host.discover()
    assert (unknown.disk.capacity, unknown.disk.source, unknown.image_limit) == (0, "unknown", 0)


def test_disk_io_is_assumed_until_it_is_configured(host: Host) -> None:
    assert (host.discover().disk_io.capacity, host.discover().disk_io.source) == (10**9, "assumed")
    assert host.discover(disk_io=7).disk_io.source == "configured"


def test_this_very_host_has_capacities_and_nothing_about_it_is_an_error() -> None:
    capacity = discover_capacity(config=CapacityConfig(data_dir=Path.cwd()))
    assert capacity.cpus <= frozenset(range(4096))
    assert capacity.cpu.capacity == 1000 * len(os.sched_getaffinity(0))
    assert capacity.memory.capacity > 0 < capacity.disk.capacity
    assert not any(problem.is_error for problem in capacity.problems)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0-2,5", {0, 1, 2, 5}),
        ("", set()),
        ("7\n", {7}),
        ("3-1", None),
        ("a", None),
        ("0-99999999", None),
        ("0-65535," * 1000, None),
        ("-1", None),
    ],
)
def test_lists_of_cpus(text: str, numbers: set[int] | None) -> None:
    cpus = parse_cpu_list(text)
    assert cpus == numbers
    if numbers:
        assert cpus is not None
        assert parse_cpu_list(format_cpu_list(cpus)) == numbers


@given(st.text(alphabet="0123456789 +-.bBpPsS/kKmMgGiItT\u0661\u00bd", max_size=12))
@settings(max_examples=examples(45, 0.375), deadline=None)
def test_any_text_is_an_amount_or_an_error_that_shows_it(text: str) -> None:
    for parse in (parse_bandwidth, parse_size):
        complaint = repr(text)
        try:
            amount = parse(text)
        except AmountError as error:
            amount, complaint = 0, str(error)
        assert 0 <= amount < 2**63
        assert repr(text.strip())[1:-1] in complaint


RATES = {
    "a quarter of the CPUs": (8000, (10**9 // 4, 10**8 // 4)),
    "half a CPU": (500, (10**9 // 64, 10**8 // 64)),
    "more than the host has": (64000, (10**9, 10**8)),
    "none": (0, (0, 0)),
}


@pytest.mark.parametrize("machine", RATES)
def test_default_rates_are_parts_of_what_there_is_and_not_of_what_may_be_promised(tmp_path: Path, machine: str) -> None:
    """hypeman#238: parts of the limit, which a ratio makes larger, are together more than the host has."""
    cpus, expected = RATES[machine]
    (tmp_path / "host").mkdir()
    host = discover_capacity(
        Host(tmp_path / "host").root,
        CapacityConfig(
            oversub_cpu=Fraction(4),
            oversub_network=Fraction(2),
            oversub_disk_io=Fraction(2),
            network=10**9,
            disk_io=10**8,
            data_dir=tmp_path,
        ),
    )
    rates = default_rates(host, cpus)
    assert host.network.effective_limit == 2 * 10**9
    assert (rates.network, rates.disk_io) == expected


def test_a_host_whose_cpus_are_not_known_has_no_default_rates(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    assert default_rates(read_capacity(tmp_path, CapacityConfig(network=10**9)), 1000) == DefaultRates(0, 0)


def test_lists_of_cpus_are_in_the_order_of_their_numbers() -> None:
    assert format_cpu_list(frozenset({64, 8, 1, 9, 0, 33})) == "0-1,8-9,33,64"
    assert format_cpu_list(frozenset()) == ""
