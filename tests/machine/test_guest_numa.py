"""Must show: a machine whose CPUs and memory come from two NUMA nodes of its host has a guest that sees these two.

The host is played as far as it says that it has two nodes, each with one of this host's CPUs; what QEMU asks of the
second one's memory, this kernel gives from its only node. The threads, the binding and the guest are real.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from devalloc.api.virtual_machine import VirtualMachine, VirtualMachineStatus
from devalloc_node.machine import command_line, preflight
from devalloc_node.machine.machine_files import MachineConfig
from tests.support.deadlines import soon
from tests.support.guest import Guest
from tests.support.images import Image
from tests.support.machines import MIB, config, ended, plugin, running, short_folder, virtual_machine

KEY = "default/m"
CPUS = sorted(os.sched_getaffinity(0))
FIRST, SECOND = CPUS[0], CPUS[-1]


@pytest.fixture
def settings(micro: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MachineConfig]:
    for number, (cpu, distances) in enumerate(((FIRST, "10 17"), (SECOND, "17 10"))):
        node = tmp_path / f"node{number}"
        node.mkdir()
        (node / "cpulist").write_text(f"{cpu}\n")
        (node / "distance").write_text(f"{distances}\n")
    monkeypatch.setattr(preflight, "NODES", tmp_path)
    monkeypatch.setattr(preflight.check_host_limits, "__defaults__", (Path("/proc"), tmp_path))
    real = command_line.ram_backend

    def of_the_only_node(*arguments: Any) -> dict[str, Any]:
        backend = real(*arguments)
        assert backend["host-nodes"] in ([0], [1])
        return backend | {"host-nodes": [0]}

    monkeypatch.setattr(command_line, "ram_backend", of_the_only_node)
    with short_folder() as folder:
        made = config(micro, folder)
        with ended(made):
            yield made


def placed(image: Image) -> VirtualMachine:
    """Two thirds of its memory are reserved on node 1 of the host, and one of two CPUs."""
    memory = {"min": "384Mi", "use": "384Mi", "max": "768Mi"}
    machine = virtual_machine("m", image, cpu={"min": "2", "max": "3"}, memory=memory)
    amounts = {"numa0": ("1", "128Mi"), "numa1": ("1", "256Mi")}
    entries = [
        {
            "devicePoolName": "here-host",
            "deviceName": name,
            "allocations": [{"name": "cpu", "allocation": cpu}, {"name": "memory", "allocation": size}],
        }
        for name, (cpu, size) in amounts.items()
    ]
    return machine.model_copy(update={"status": VirtualMachineStatus.model_validate({"allocations": entries})})


def nodes(guest: Guest, what: str) -> list[str]:
    return guest.check(f"cat /sys/devices/system/node/node[0-9]*/{what}").splitlines()


def cpus_of_nodes(guest: Guest) -> list[int]:
    """How many CPUs are online on each."""
    return [int(guest.check(f"ls -d /sys/devices/system/node/node{node}/cpu[0-9]* | wc -l")) for node in (0, 1)]


def memory_of_nodes(guest: Guest) -> list[int]:
    """MiB, as the guest's kernel has them: without what it keeps to itself."""
    lines = guest.check("grep -h MemTotal /sys/devices/system/node/node[0-9]*/meminfo").splitlines()
    return [int(line.split()[3]) >> 10 for line in lines]


def threads(pid: int) -> dict[int, set[int]]:
    """Where the thread of each vCPU may run, by QEMU's number of it."""
    names = {int(task.name): (task / "comm").read_text() for task in Path(f"/proc/{pid}/task").iterdir()}
    return {
        int(name.split("/")[0].removeprefix("CPU ")): set(os.sched_getaffinity(thread))
        for thread, name in names.items()
        if name.startswith("CPU ")
    }


def test_the_guest_sees_the_nodes_that_its_cpus_and_memory_come_from_and_grows_on_them(
    settings: MachineConfig, micro: Image
) -> None:
    with plugin(settings) as machines:
        machines.start(placed(micro), soon())
        machines.resume(KEY, soon())
        pid = running(machines).pid
        assert " bind:0" in Path(f"/proc/{pid}/numa_maps").read_text()
        with closing(Guest(settings.folder(machines.record_for(KEY).spec.id) / "agent")) as guest:
            guest.until("[ $(nproc) = 2 ]")
            assert nodes(guest, "distance") == ["10 17", "17 10"]
            assert cpus_of_nodes(guest) == [1, 1]
            before = memory_of_nodes(guest)
            assert len(before) == 2
            assert before[0] < 128 < before[1] <= 256
            assert sorted(map(sorted, threads(pid).values())) == sorted([[FIRST], [SECOND]])

            machines.scale(KEY, "vcpus", 3, soon())
            machines.scale(KEY, "memory", 768 * MIB, soon())
            guest.until("[ $(nproc) = 3 ]")
            assert cpus_of_nodes(guest) == [2, 1]
            assert sorted(map(sorted, threads(pid).values())) == sorted([[FIRST], [FIRST], [SECOND]])
            guest.until(f"[ $(awk '/MemTotal/ {{print $2}}' /proc/meminfo) -gt {(sum(before) + 370) << 10} ]")
            assert [after - size for after, size in zip(memory_of_nodes(guest), before, strict=True)] == [128, 256]

            machines.scale(KEY, "memory", 384 * MIB, soon())
            guest.until(f"[ $(awk '/MemTotal/ {{print $2}}' /proc/meminfo) -lt {(sum(before) + 16) << 10} ]")
            assert memory_of_nodes(guest) == before
