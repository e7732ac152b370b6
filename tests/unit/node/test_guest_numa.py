"""A guest's NUMA nodes: QEMU's options, and the vCPUs and bytes of each node as the machine grows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devalloc.api.virtual_machine import VirtualMachineStatus
from devalloc.inventory.capacity import NumaNode
from devalloc.inventory.capacity.cpus import CpuTopology
from devalloc_machines.qemu import guest_numa, preflight
from devalloc_machines.qemu.command_line import StartContext, dimm, qemu_arguments
from devalloc_machines.qemu.cpu_pinning import CpuHolder, NotEnoughCpus
from devalloc_machines.qemu.records import MachineRecord, MachineView, State, content_of, record_of
from devalloc_machines.qemu.resources import free_cpus
from devalloc_machines.qemu.spec import MIB, AmountBounds, MachineSpec, NumaCell, spec_of
from devalloc_machines.vms.status import status_of
from tests.support.machines import virtual_machine

GIB = 1 << 30
CELLS = (NumaCell(1, 2000, 2 * GIB), NumaCell(0, 1000, GIB))
SPEC = MachineSpec(
    "default", "m", "uid", AmountBounds(2000, 6000, 3000), AmountBounds(3 * GIB, 6 * GIB, 3 * GIB), kernel="/k",
    numa_cells=CELLS,
)  # fmt: skip
START = StartContext("/usr/bin/qemu", "tcg", "0-0", "/k", distances=((10, 21), (21, 10)))


def options(spec: MachineSpec, name: str) -> list[str]:
    words = qemu_arguments(spec, START)
    return [words[i + 1] for i, word in enumerate(words) if word == name]


def test_each_guest_node_has_vcpus_and_memory_of_the_host_node_that_it_stands_for() -> None:
    assert options(SPEC, "-smp") == ["cpus=2,maxcpus=6,sockets=6,cores=1,threads=1"]
    assert options(SPEC, "-numa") == [
        "node,nodeid=0,memdev=ram0",
        "node,nodeid=1,memdev=ram1",
        *(f"cpu,node-id={node},socket-id={socket}" for socket, node in enumerate((0, 0, 1, 0, 0, 1))),
        *(f"dist,src={i},dst={j},val={10 if i == j else 21}" for i in (0, 1) for j in (0, 1)),
    ]
    objects = {one["id"]: one for one in map(json.loads, options(SPEC, "-object"))}
    sizes = {name: (one["size"] >> 30, one["host-nodes"], one["policy"]) for name, one in objects.items()}
    assert sizes == {
        "ram0": (2, [1], "bind"),
        "vmem0-ram": (2, [1], "bind"),
        "ram1": (1, [0], "bind"),
        "vmem1-ram": (1, [0], "bind"),
    }
    devices = [json.loads(word) for word in options(SPEC, "-device")]
    assert [(one["id"], one["memdev"], one["node"]) for one in devices if one["driver"] == "virtio-mem-pci"] == [
        ("vmem0", "vmem0-ram", 0),
        ("vmem1", "vmem1-ram", 1),
    ]
    cpus = [(one["id"], one["socket-id"], one["core-id"]) for one in devices if "-cpu" in one["driver"]]
    assert cpus == [("cpu2", 2, 0)], "the first two are built in, and the third is the other node's"


def test_a_machine_on_one_node_is_started_as_ever() -> None:
    alone = replace(SPEC, numa_cells=(), numa_node=1)
    start = replace(START, distances=())
    assert [word for word in qemu_arguments(alone, start) if "nodeid" in word] == ["node,nodeid=0,memdev=ram0"]
    assert "cpus=2,maxcpus=6,sockets=1,cores=6,threads=1" in qemu_arguments(alone, start)


def test_a_node_without_memory_has_cpus_and_one_without_cpus_has_memory() -> None:
    spec = replace(SPEC, numa_cells=(NumaCell(0, 3000, 0), NumaCell(2, 0, 3 * GIB)))
    assert [word for word in options(spec, "-numa") if word.startswith("node")] == [
        "node,nodeid=0",
        "node,nodeid=1,memdev=ram1",
    ]
    assert [word for word in options(spec, "-numa") if word.startswith("cpu")] == [
        f"cpu,node-id=0,socket-id={socket}" for socket in range(6)
    ]


@given(
    cells=st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 9)), min_size=2, max_size=4),
    sizes=st.lists(st.integers(4, 40), min_size=2, max_size=2),
    dimms=st.booleans(),
)
def test_no_node_gives_anything_back_while_the_machine_grows(
    cells: list[tuple[int, int]], sizes: list[int], dimms: bool
) -> None:
    parts = tuple(NumaCell(node, cpus + 1, memory * GIB + GIB) for node, (cpus, memory) in enumerate(cells))
    least, most = (size * 256 * MIB for size in (min(sizes), max(sizes)))
    unit = 256 * MIB if dimms else 2 * MIB
    spec = replace(SPEC, numa_cells=parts, memory=AmountBounds(least, most, least), dimm_bytes=unit if dimms else None)
    before = guest_numa.memory_by_cell(spec, least)
    for number, size in enumerate(range(least + 256 * MIB, most + 1, 256 * MIB)):
        now = guest_numa.memory_by_cell(spec, size)
        assert sum(now) == size
        assert all(new >= old for old, new in zip(before, now, strict=True))
        if dimms:
            grown = [place for place, (old, new) in enumerate(zip(before, now, strict=True)) if new > old]
            backend, device = dimm(spec, number)
            assert ([device["node"]], backend["host-nodes"]) == (grown, [parts[grown[0]].host_node])
        before = now


def test_vcpus_run_on_the_cpus_of_the_node_that_their_guest_node_stands_for_or_on_their_own() -> None:
    usable = {0: (0, 1), 1: (2, 3)}
    places = guest_numa.cpu_places(SPEC, (), usable)
    assert places == {(socket, 0): (0, 1) if socket in (2, 5) else (2, 3) for socket in range(6)}
    own = guest_numa.cpu_places(SPEC, range(10, 16), {})
    assert own == {(socket, 0): [10 + socket] for socket in range(6)}
    assert guest_numa.cpu_places(replace(SPEC, numa_cells=()), (), {}) == {}


def test_a_device_of_the_host_is_near_the_guest_node_that_stands_for_its_own() -> None:
    assert [guest_numa.guest_node(SPEC, node) for node in (0, 1, 2, None, "1")] == [1, 0, None, None, None]
    assert guest_numa.guest_node(replace(SPEC, numa_cells=()), 0) is None


def test_a_pinned_machine_on_two_nodes_has_cpus_of_both() -> None:
    nodes = (NumaNode(0, frozenset(range(4)), 0), NumaNode(1, frozenset(range(4, 9)), 0))
    host = CpuTopology(9, frozenset(range(9)), frozenset(), nodes)
    assert free_cpus(SPEC, host, {0: [CpuHolder("default/a")]}, {5: "default/b"}) == [4, 6, 1, 7, 8, 2]
    with pytest.raises(NotEnoughCpus, match="for 4 vCPUs; available: 3 on node 1"):
        free_cpus(SPEC, host, {}, {5: "default/b", 6: "default/b"})


def test_huge_pages_are_looked_for_on_each_node(tmp_path: Path) -> None:
    for node, pages in ((0, 512), (1, 1024)):
        folder = tmp_path / f"sys/devices/system/node/node{node}/hugepages/hugepages-2048kB"
        folder.mkdir(parents=True)
        (folder / "free_hugepages").write_text(f"{pages}\n")
    spec = replace(SPEC, huge_page_bytes=2 * MIB)
    preflight.check_huge_pages(spec, 0, 3 * GIB, tmp_path)
    preflight.check_huge_pages(spec, 3 * GIB, 6 * GIB, tmp_path)
    with pytest.raises(Exception, match="needs 1026 huge pages of 2Mi, but NUMA node 1 of this host has 1024 free"):
        preflight.check_huge_pages(spec, 0, 3 * GIB + 4 * MIB, tmp_path)


@pytest.mark.parametrize(
    ("texts", "rows"),
    [
        (("10 21 31", "21 10 41", "31 41 10"), [[10, 31], [31, 10]]),
        (("10 21 31", "21 10 41", "31 41 11"), []),
        (("10 21 255", "21 10 41", "255 41 10"), []),
        (("10", "21 10 41", "31 41 10"), []),
        (("x y z", "21 10 41", "31 41 10"), []),
    ],
)
def test_distances_are_the_hosts_or_none(tmp_path: Path, texts: tuple[str, ...], rows: list[list[int]]) -> None:
    """Of nodes 0, 2 and 3, of which the machine has the first and the last."""
    for node, text in zip((0, 2, 3), texts, strict=True):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "distance").write_text(f"{text}\n")
    cells = (NumaCell(0, 1, 1), NumaCell(3, 1, 1))
    assert guest_numa.read_distances(cells, tmp_path) == rows
    assert guest_numa.read_distances((*cells, NumaCell(7, 1, 1)), tmp_path) == []


def test_a_machine_has_the_nodes_of_its_reservation_unless_its_spec_names_one() -> None:
    def entries(**amounts: tuple[str, str]) -> VirtualMachineStatus:
        return VirtualMachineStatus.model_validate({"allocations": [
            {"devicePoolName": "n-host", "deviceName": name,
             "allocations": [{"name": "cpu", "allocation": cpu}, {"name": memory, "allocation": "1Gi"}]}
            for name, (cpu, memory) in amounts.items()
        ]})  # fmt: skip

    machine = virtual_machine("m")
    both = machine.model_copy(update={"status": entries(numa0=("500m", "memory"), numa3=("1", "hugepages-2Mi"))})
    assert spec_of(both).numa_cells == (NumaCell(3, 1000, GIB), NumaCell(0, 500, GIB))
    for one in (entries(numa0=("1", "memory"), io=("1", "x")), entries(compute=("1", "memory")), None):
        assert spec_of(machine.model_copy(update={"status": one})).numa_cells == ()
    named = virtual_machine("m", start={"kernel": "/k", "numaNode": 0}).model_copy(update={"status": both.status})
    assert (spec_of(named).numa_cells, spec_of(named).host_nodes) == ((), (0,))


def test_a_machine_takes_the_huge_pages_that_are_reserved_for_it_and_others_only_if_there_are_no_more() -> None:
    amounts = [{"name": "cpu", "allocation": "1"}, {"name": "hugepages-2Mi", "allocation": "1Gi"}]
    entry = {"devicePoolName": "n-host", "deviceName": "numa1", "allocations": amounts}
    status = VirtualMachineStatus.model_validate({"allocations": [entry]})
    for memory, first in (({"hugePages": "2Mi"}, {"host-nodes": [1], "policy": "preferred"}), ({}, {})):
        machine = virtual_machine("m", memory={"min": "1Gi", "max": "2Gi", **memory})
        spec = spec_of(machine.model_copy(update={"status": status}))
        assert spec.host_nodes == ()
        for backend in map(json.loads, options(spec, "-object")):
            assert {name: backend[name] for name in ("host-nodes", "policy") if name in backend} == first
    named = virtual_machine("m", start={"kernel": "/k", "numaNode": 0}, memory={"min": "1Gi", "max": "2Gi"})
    assert spec_of(named.model_copy(update={"status": status})).page_node is None


def test_the_status_tells_the_nodes_of_a_guest_that_has_several_while_it_runs() -> None:
    view = MachineView(
        "default/m", "uid", State.RUNNING, started=replace(SPEC, numa_cells=(NumaCell(2, 500, 0), *CELLS))
    )
    shown = status_of(None, view, [], "", "")["numaNodes"]
    assert shown == [
        {"hostNode": 2, "cpus": "500m", "memory": "0"},
        {"hostNode": 1, "cpus": "2", "memory": "2Gi"},
        {"hostNode": 0, "cpus": "1", "memory": "1Gi"},
    ]
    VirtualMachineStatus.model_validate({"numaNodes": shown})
    for other in (replace(view, state=State.STOPPED), replace(view, started=replace(SPEC, numa_cells=()))):
        assert "numaNodes" not in status_of(None, other, [], "", "")


def test_a_machine_that_an_earlier_version_started_has_one_guest_node_however_its_reservation_is_spread() -> None:
    entries = [
        {"devicePoolName": "n-host", "deviceName": name,
         "allocations": [{"name": "cpu", "allocation": "1"}, {"name": "memory", "allocation": "1Gi"}]}
        for name in ("numa0", "numa1")
    ]  # fmt: skip
    status = VirtualMachineStatus.model_validate({"allocations": entries})
    machine = virtual_machine("m").model_copy(update={"status": status})
    record = MachineRecord(machine.to_manifest(), "running", "run")
    assert record.spec.numa_cells == (NumaCell(0, 1000, GIB), NumaCell(1, 1000, GIB))
    content = content_of(record)
    assert record_of("default/m", content) == record
    del content["numa_cells"]
    earlier = record_of("default/m", content)
    assert earlier.spec.numa_cells == ()
    assert record_of("default/m", content_of(earlier)).spec.numa_cells == (), "also after it was written again"
    named = replace(record, numa_cells=CELLS)
    assert record_of("default/m", content_of(named)).spec.numa_cells == CELLS
