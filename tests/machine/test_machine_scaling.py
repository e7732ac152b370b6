"""Must show: CPUs, memory and devices of a real machine come and go, and its guest says so after each step."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from devalloc_machines.qemu import confinement, hotplug, pci, preflight
from devalloc_machines.qemu.lifecycle import MachineLifecycle
from devalloc_machines.qemu.process import open_nodes
from devalloc_machines.qemu.settings import AllowedFolder, MachineConfig
from devalloc_node.errors import Denied
from tests.support.cli_shell import Shell, devalloc
from tests.support.deadlines import soon
from tests.support.guest import Guest
from tests.support.images import Image
from tests.support.machines import (
    MIB,
    MICRO_APPEND,
    config,
    ended,
    plugin,
    running,
    short_folder,
    tap_interface,
    view,
    virtual_machine,
)
from tests.support.node_errors import raises
from tests.support.node_service import serving
from tests.support.waiting import until

__all__ = ["devalloc"]
GIB = 1 << 30
KEY = "default/m"
EJECT_THE_LAST_CARD = """
for slot in /sys/bus/pci/slots/*; do
  ls -d /sys/bus/pci/devices/$(cat $slot/address).0/virtio*/net > /dev/null 2>&1 && echo 0 > $slot/power
done; true
"""


@pytest.fixture
def settings(micro: Image) -> Iterator[MachineConfig]:
    with short_folder() as folder:
        made = config(micro, folder, folders=(AllowedFolder(micro.folder, "any"), AllowedFolder(folder, "any")))
        with ended(made):
            yield made


@pytest.fixture
def machines(settings: MachineConfig) -> Iterator[MachineLifecycle]:
    with plugin(settings) as made:
        yield made


def booted(machines: MachineLifecycle) -> Guest:
    machines.resume(KEY, soon())
    return Guest(machines.config.folder(machines.record_for(KEY).spec.id) / "agent")


def memory_of(guest: Guest) -> int:
    """Bytes, rounded to what its kernel keeps to itself: compared with a tenth of tolerance."""
    return int(guest.check("awk '/MemTotal/ {print $2}' /proc/meminfo")) * 1024


def meanwhile(work: Callable[[], object]) -> Callable[[], None]:
    """Do it in a thread; the returned function waits for its end and raises what it raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def join() -> None:
        thread.join()
        if raised:
            raise raised[0]

    return join


def test_cpus_memory_and_devices_come_and_go_at_once_and_the_guest_says_so(
    machines: MachineLifecycle, micro: Image, devalloc: Shell, tmp_path: Path
) -> None:
    machines.start(virtual_machine("m", micro, pciSlots=9), soon())
    record = machines.record_for(KEY)
    # A disk and two network cards by the command, one of them before the machine's first instruction.
    image = machines.config.folders[-1].path / "data"
    image.write_bytes(b"a disk that came later".ljust(MIB))
    with ExitStack() as stack:
        socket = stack.enter_context(serving(tmp_path, machines))
        net = ("--tap", stack.enter_context(tap_interface())) if os.geteuid() == 0 else ("--user-net",)

        def vm(verb: str, *args: str | Path) -> str:
            done = devalloc("vm", verb, *args, "--timeout", "5m", "--socket", socket)
            assert done.code == 0, done.err
            return done.out

        vm("plug", "m", "early", *net, "--mac", "52:54:00:00:00:01")
        guest = booted(machines)
        assert guest.check("cat /sys/class/net/eth0/address").strip() == "52:54:00:00:00:01", "there from the start"
        assert guest.check("cat /sys/devices/system/cpu/online") == "0"

        # 1 -> 4 CPUs and 512 MiB -> 2 GiB, while a card of three functions and the others are plugged in.
        several = pci.PciDevice("card", ({"driver": "virtio-rng-pci"},) * 3)
        with machines.line(record) as line:
            cpus = meanwhile(lambda: machines.scale(KEY, "vcpus", 4, soon()))
            memory = meanwhile(lambda: machines.scale(KEY, "memory", 2 * GIB, soon()))
            hotplug.plug_device(line, KEY, several, soon())
            vm("plug", "m", "data", "--disk", image, "--format", "raw")
            vm("plug", "m", "late", "--user-net")
            cpus()
            guest.until("[ $(cat /sys/devices/system/cpu/online) = 0-3 ]")
            guest.until("[ $(cat /sys/bus/pci/devices/*/device | grep -c 0x1044) = 3 ]")
            address = pci.guest_addresses(line, soon())["card.f2"]
            assert guest.check(f"cat /sys/bus/pci/devices/{address}/device") == "0x1044"
            assert machines.guest_addresses(KEY)["card"] == address.replace(".2", ".0")
            assert guest.until("cat /sys/block/vda/serial") == "data"
            assert guest.check("head -c 22 /dev/vda") == "a disk that came later"
            guest.check("echo written by the guest | dd of=/dev/vda conv=notrunc,fsync 2>&1")
            assert image.read_bytes().startswith(b"written by the guest")
            guest.until("[ -e /sys/class/net/eth1 ]")
            shown = vm("get", "m", "-o", "wide")
            assert f"data: {image} (raw, virtio); early: " in shown
            assert all(word in shown for word in net[1:]), "the interface"
            refused = devalloc("vm", "plug", "m", "other", "--disk", image, "--format", "raw", "--socket", socket)
            assert (refused.code, "[DiskInUse]" in refused.err) == (1, True)
            memory()
            assert 1.8 * GIB < memory_of(guest) < 2 * GIB
            seen = view(machines)
            assert (seen.observed.vcpus, seen.observed.memory_bytes) == (4, 2 * GIB)

            # And back, while all of them leave, one of them by the guest's own doing.
            memory = meanwhile(lambda: machines.scale(KEY, "memory", 512 * MIB, soon()))
            hotplug.unplug_device(line, KEY, "card", soon())
            assert vm("unplug", "m", "early", "data").count("unplugged") == 2
            guest.check(EJECT_THE_LAST_CARD)
            until(lambda: vm("get", "m", "-o", "json").count("plug-") == 0, "QEMU has let it go too")
            assert vm("unplug", "m", "late") == "late unplugged from m\n", "what it stood on was there still"
            assert vm("unplug", "m", "late") == "late is not in m\n"
            guest.until("[ $(cat /sys/bus/pci/devices/*/device | grep -c 0x1044) = 0 ] && [ ! -e /dev/vda ]")
            assert guest.run("ls -d /sys/class/net/eth*").status != 0
            memory()
            assert memory_of(guest) < 512 * MIB
        assert open_nodes(seen.pid, [str(image), "/dev/net/tun"]) == [], "they are free for others"
    seen = view(machines)
    assert seen.observed.memory_bytes == 512 * MIB
    assert (seen.applied.vcpus, seen.applied.memory_bytes) == (4, 512 * MIB)

    guest.close()


def test_a_machine_of_a_numa_node_runs_on_its_cpus_only(
    machines: MachineLifecycle, micro: Image, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those of vCPUs that come later as well. This host has one node: it is said to have one CPU of this host's."""
    last = max(os.sched_getaffinity(0))
    (tmp_path / "node0").mkdir()
    (tmp_path / "node0" / "cpulist").write_text(f"{last}\n")
    monkeypatch.setattr(preflight, "NODES", tmp_path)
    start = virtual_machine("m", micro).to_manifest()["spec"]["start"] | {"numaNode": 0}
    machines.start(virtual_machine("m", micro, start=start), soon())
    machines.resume("default/m", soon())
    machines.scale("default/m", "vcpus", 3, soon())
    (seen,) = machines.list()
    threads = [int(path.name) for path in Path(f"/proc/{seen.pid}/task").iterdir()]
    assert len(threads) > 3
    assert {tuple(os.sched_getaffinity(thread)) for thread in threads} == {(last,)}


def test_memory_in_dimms_of_a_numa_node_a_part_of_a_cpu_and_an_iommu(machines: MachineLifecycle, micro: Image) -> None:
    memory = {"min": "512Mi", "max": "1Gi", "method": "dimm", "slotSize": "256Mi", "use": "768Mi"}
    cpu = {"min": "500m", "max": "2", "use": "1500m" if os.geteuid() == 0 else "2"}  # root makes cgroups
    start = {"kernel": str(micro.kernel), "initrd": str(micro.initrd), "append": MICRO_APPEND}
    start |= {"iommu": True, "numaNode": 0}
    machines.start(virtual_machine("m", micro, memory=memory, cpu=cpu, start=start), soon())
    seen = view(machines)
    assert (seen.observed.vcpus, seen.observed.memory_bytes) == (2, 768 * MIB)
    group = confinement.group_of(machines.config.cgroups, seen.pid)
    if group is not None:  # where this host's cgroups can be written
        assert (seen.observed.cpu_milli, confinement.limit_of(group)) == (1500, 1500)
        machines.scale(KEY, "cpu", 500, soon())
        assert confinement.limit_of(group) == 500
        machines.scale(KEY, "cpu", 2000, soon())
        assert confinement.limit_of(group) is None, "whole CPUs are bounded by being so many"
        machines.scale(KEY, "cpu", 1000, soon())
        assert confinement.limit_of(group) == 1000, "they are two, and may use the time of one"
        machines.scale(KEY, "cpu", 0, soon())
        assert confinement.limit_of(group) is None
    guest = booted(machines)
    assert guest.check("cat /sys/devices/system/cpu/online") == "0-1"
    assert memory_of(guest) > 512 * MIB, "a DIMM that was there from the start"
    assert guest.check("ls /sys/firmware/acpi/tables/DMAR"), "how a guest learns of its IOMMU"
    bound = [line for line in Path(f"/proc/{seen.pid}/numa_maps").read_text().splitlines() if " bind:0 " in line]
    assert len(bound) == 2, "its first memory and the DIMM"
    machines.scale(KEY, "memory", GIB, soon())
    guest.until("[ $(awk '/MemTotal/ {print $2}' /proc/meminfo) -gt 800000 ]")
    machines.scale(KEY, "memory", 512 * MIB, soon())
    guest.until("[ $(awk '/MemTotal/ {print $2}' /proc/meminfo) -lt 512000 ]")
    with raises(Denied, "OutOfBounds"):
        machines.scale(KEY, "memory", 2 * GIB, soon())
    guest.close()


def test_memory_that_is_in_use_and_cpus_that_stay(machines: MachineLifecycle, micro: Image) -> None:
    memory = {"min": "256Mi", "max": "512Mi", "use": "512Mi"}
    machines.start(virtual_machine("m", micro, cpu={"min": "1", "max": "3", "use": "2"}, memory=memory), soon())
    guest = booted(machines)
    assert guest.check("cat /sys/devices/system/cpu/online") == "0-1"

    # A guest that keeps what it has gets no request beyond the reported one.
    guest.until("[ $(awk '/MemTotal/ {print $2}' /proc/meminfo) -gt 400000 ]")
    # Pages that leave the plugged memory move to the zone that the guest's kernel allocates from. They must leave
    # 64 MiB of it: a kernel without memory for page tables hangs, and the shell answers no command.
    guest.check("echo 256 4 32 0 > /proc/sys/vm/lowmem_reserve_ratio")
    guest.check("mkdir -p /mnt && mount -t tmpfs -o size=400m tmpfs /mnt")
    guest.check("dd if=/dev/zero of=/mnt/full bs=1M count=280 2>&1")
    with raises(Denied, "GuestRefused", retryable=True, match="virtio-mem"):
        machines.scale(KEY, "memory", 256 * MIB, soon(1.5))
    with machines.line(machines.record_for(KEY)) as line:
        virtio_mem = line.execute("query-memory-devices", deadline=soon())[0]["data"]
    assert 0 < virtio_mem["size"] == virtio_mem["requested-size"]
    seen = view(machines)
    assert seen.observed.memory_bytes == 256 * MIB + virtio_mem["size"]
    guest.check("rm /mnt/full")
    machines.scale(KEY, "memory", 256 * MIB, soon())

    machines.scale(KEY, "vcpus", 3, soon())
    guest.until("[ $(cat /sys/devices/system/cpu/online) = 0-2 ]")
    with raises(Denied, "CpusEmulated", match=r"emulated .* QEMU 7\.2"):
        machines.scale(KEY, "vcpus", 1, soon())
    seen = view(machines)
    assert seen.observed.vcpus == 3
    with raises(Denied, "OutOfBounds"):
        machines.scale(KEY, "vcpus", 4, soon())
    guest.close()


def test_cpus_leave_while_devices_come_and_go(settings: MachineConfig, micro: Image, sriov: Image) -> None:
    """With QEMU 10: emulated machines of 7.2 do not survive it. Its guest is the older one, which knows such CPUs."""
    settings = replace(settings, binary=str(sriov.qemu))
    with plugin(settings) as machines:
        machines.start(virtual_machine("m", micro, pciSlots=2), soon())
        guest = booted(machines)
        with machines.line(machines.record_for(KEY)) as line:
            for vcpus, online in ((4, "0-3"), (2, "0-1"), (1, "0")):
                card = pci.PciDevice(f"card{vcpus}", ({"driver": "virtio-rng-pci"},))
                hotplug.plug_device(line, KEY, card, soon())
                machines.scale(KEY, "vcpus", vcpus, soon())
                guest.until(f"[ $(cat /sys/devices/system/cpu/online) = {online} ]")
                hotplug.unplug_device(line, KEY, card.id, soon())
        guest.close()
    with plugin(settings) as machines:
        with pytest.raises(Denied, match="vCPUs may have been unplugged") as denied:
            machines.scale(KEY, "vcpus", 2, soon())
        assert denied.value.code == "CpusEmulated", "the next plugin knows too"
        machines.scale(KEY, "cpu", 2000, soon())  # as who scales it does before there are more of them
        with pytest.raises(Denied):
            machines.scale(KEY, "vcpus", 2, soon())
        seen = running(machines)
        assert (seen.observed.vcpus, seen.applied.vcpus) == (1, 1)
        assert seen.applied.usable.cpu_milli == seen.observed.cpu_milli == 1000, "time that no CPU can use counts not"
