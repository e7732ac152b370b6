"""Must show: a machine whose CPUs and memory come from two NUMA nodes of its host has a guest that sees these two.

Its devices are near the nodes there that they are near on the host.

The host is played as far as it says that it has two nodes (``played_nodes``); the cards are QEMU's ``ivshmem-plain``.
The threads, the binding, the firmware and the guest are real.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devalloc.api.virtual_machine import VirtualMachine
from devalloc.inventory.pci import BarSizes
from devalloc_machines.qemu import attachment
from devalloc_machines.qemu.attachment import AttachmentKind
from devalloc_machines.qemu.firmware import FirmwareFiles
from devalloc_machines.qemu.lifecycle import MachineLifecycle
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_node.model.step import NUMA_NODE, PreparedDevice
from tests.support import played_nodes
from tests.support.deadlines import soon
from tests.support.guest import Guest
from tests.support.images import Image
from tests.support.large_cards import card, each_card
from tests.support.machines import (
    MIB,
    NoDeviceOwner,
    config,
    ended,
    open_folder,
    plugin,
    running,
    short_folder,
    virtual_machine,
)
from tests.support.played_nodes import FIRST, SECOND

KEY = "default/m"
GIB = 1 << 30
LARGE = BarSizes(16 * GIB, 1 << 20)
"""Of the memory that the played cards have of their own."""


@pytest.fixture
def settings(micro: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MachineConfig]:
    played_nodes.play(tmp_path, monkeypatch)
    with short_folder() as folder:
        made = config(micro, folder, devices=lambda: LARGE)
        with ended(made):
            yield made


def placed(image: Image, **start: Any) -> VirtualMachine:
    memory = {"min": "384Mi", "use": "384Mi", "max": "768Mi"}
    machine = virtual_machine("m", image, cpu={"min": "2", "max": "3"}, memory=memory)
    return played_nodes.placed(_started(machine, start))


def _started(machine: VirtualMachine, start: Mapping[str, Any]) -> VirtualMachine:
    manifest = machine.to_manifest()
    manifest["spec"]["start"] |= start
    return VirtualMachine.model_validate(manifest)


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


# Devices.


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """What attachments plug in are cards of 16 GiB."""
    monkeypatch.setattr(attachment.pci, "passthrough_device", lambda name, device: card(name, 16 * GIB))
    monkeypatch.setattr(attachment.adoption, "check_memlock", lambda *_: None)


def attach(machines: MachineLifecycle, name: str, host_node: int | None) -> None:
    """As a step of a claim does, whose device is near that node of the host."""
    attributes = {} if host_node is None else {NUMA_NODE: host_node}
    device = PreparedDevice((), "pool", name, "vfio", ("0000:41:00.0",), attributes=attributes)
    kind = AttachmentKind(machines, NoDeviceOwner(), lambda functions: LARGE)
    kind.apply(f"{KEY}/claim-{name}", attachment.value_of(device), soon())


def detach(machines: MachineLifecycle, name: str) -> None:
    AttachmentKind(machines, NoDeviceOwner()).apply(f"{KEY}/claim-{name}", None, soon())


def cards_of(guest: Guest) -> dict[str, tuple[int, int]]:
    """By the bus that a card is on: its NUMA node, and the size of its second BAR as the guest's kernel assigned it."""
    lines = each_card(guest, "echo ${f%device} $(cat ${f%device}numa_node) $(sed -n 3p ${f%device}resource)")
    result = {}
    for folder, node, first, last, _ in map(str.split, lines):
        result[folder.rstrip("/").rpartition("/")[2]] = (int(node), int(last, 16) - int(first, 16) + 1)
    return result


def check_devices(machines: MachineLifecycle, guest: Guest) -> None:
    """Cold ones of both nodes and of none are in it. Another one comes and goes."""
    before = cards_of(guest)
    assert sorted(before.values()) == [(-1, 16 * GIB), (0, 16 * GIB), (1, 16 * GIB)]
    buses = guest.check(
        "for d in /sys/devices/pci0000:*; do echo $(basename $d) $(cat $d/pci_bus/*/cpulistaffinity); done"
    )
    assert [line.split()[1:] for line in buses.splitlines()[1:]] == [["0"], ["1"]], "each root bus is near its CPU"
    attach(machines, "hot", 0)
    (new,) = set(cards_of(guest)) - set(before)
    assert cards_of(guest)[new] == (0, 16 * GIB)
    detach(machines, "hot")
    assert cards_of(guest) == before


@pytest.mark.parametrize("firmware", ["bios", "uefi"])
def test_a_device_hangs_below_the_bus_of_its_node_cold_and_hot(
    settings: MachineConfig, micro: Image, platform: Image, cards: None, firmware: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    ovmf = platform.folder / "root/usr/share/OVMF"
    files = FirmwareFiles(ovmf / "OVMF_CODE_4M.fd", ovmf / "OVMF_VARS_4M.fd")
    folders = (*settings.folders, open_folder(platform.folder))
    image, start = (micro, {}) if firmware == "bios" else (platform, {"firmware": {"type": "uefi"}})
    with plugin(replace(settings, uefi=files, folders=folders)) as machines:
        machines.start(placed(image, **start), soon())
        for name, node in (("first", 1), ("second", 0), ("third", None)):
            attach(machines, name, node)
        machines.resume(KEY, soon(420))
        assert machines.record_for(KEY).node_ports == 4
        with closing(Guest(settings.folder(machines.record_for(KEY).spec.id) / "agent", seconds=420)) as guest:
            check_devices(machines, guest)
    assert "NUMA node" not in caplog.text, "none went elsewhere"
