"""Must show: CPUs, memory and devices of a real machine come and go, and its guest says so after each step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devalloc_node.errors import Denied
from devalloc_node.machine import cgroup, devices, pci
from devalloc_node.machine.config import MachineConfig
from devalloc_node.machine.machines import Machines
from tests.support.guest import Guest
from tests.support.images import Image
from tests.support.machines import MIB, MICRO_APPEND, config, ended, plugin, short_folder, soon, virtual_machine

GIB = 1 << 30
KEY = "default/m"


@pytest.fixture
def settings(micro: Image) -> Iterator[MachineConfig]:
    with short_folder() as folder:
        made = config(micro, folder)
        with ended(made):
            yield made


@pytest.fixture
def machines(settings: MachineConfig) -> Iterator[Machines]:
    with plugin(settings) as made:
        yield made


def booted(machines: Machines) -> Guest:
    machines.resume(KEY, soon())
    return Guest(machines.config.folder(machines.known(KEY).spec.id) / "agent")


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


def test_cpus_memory_and_devices_come_and_go_at_once_and_the_guest_says_so(machines: Machines, micro: Image) -> None:
    machines.start(virtual_machine("m", micro, pciSlots=9), soon())
    record = machines.known(KEY)
    card = pci.plain_nic("early", mac="52:54:00:00:00:01")
    with machines.line(record) as line:
        devices.plug(line, KEY, card, soon())
    guest = booted(machines)
    assert guest.check("cat /sys/class/net/eth0/address").strip() == "52:54:00:00:00:01", "it was there from the start"
    assert guest.check("cat /sys/devices/system/cpu/online") == "0"

    # 1 -> 4 CPUs and 512 MiB -> 2 GiB, while a card of three functions is plugged in.
    several = pci.PciDevice("card", ({"driver": "virtio-rng-pci"},) * 3)
    with machines.line(record) as line:
        cpus = meanwhile(lambda: machines.scale(KEY, "vcpus", 4, soon()))
        memory = meanwhile(lambda: machines.scale(KEY, "memory", 2 * GIB, soon(60)))
        devices.plug(line, KEY, several, soon())
        cpus()
        guest.until("[ $(cat /sys/devices/system/cpu/online) = 0-3 ]")
        guest.until("[ $(cat /sys/bus/pci/devices/*/device | grep -c 0x1044) = 3 ]")
        address = pci.guest_address(line, "card.f2", soon())
        assert guest.check(f"cat /sys/bus/pci/devices/{address}/device") == "0x1044"
        memory()
        assert 1.8 * GIB < memory_of(guest) < 2 * GIB
        seen = machines.get(KEY)
        assert seen is not None
        assert (seen.observed.vcpus, seen.observed.memory_bytes) == (4, 2 * GIB)

        # And back, while both cards leave.
        memory = meanwhile(lambda: machines.scale(KEY, "memory", 512 * MIB, soon(60)))
        devices.unplug(line, KEY, "card", soon())
        devices.unplug(line, KEY, "early", soon())
        devices.remove_backends(line, card, soon())
        guest.until("[ $(cat /sys/bus/pci/devices/*/device | grep -c 0x1044) = 0 ] && [ ! -e /sys/class/net/eth0 ]")
        memory()
        assert memory_of(guest) < 512 * MIB
    seen = machines.get(KEY)
    assert seen is not None
    assert seen.observed.memory_bytes == 512 * MIB
    assert (seen.applied.vcpus, seen.applied.memory_bytes) == (4, 512 * MIB)

    guest.close()


def test_memory_in_dimms_of_a_numa_node_a_part_of_a_cpu_and_an_iommu(machines: Machines, micro: Image) -> None:
    memory = {"min": "512Mi", "max": "1Gi", "method": "dimm", "slotSize": "256Mi", "use": "768Mi"}
    cpu = {"min": "500m", "max": "2", "use": "1500m"}
    start = {"kernel": str(micro.kernel), "initrd": str(micro.initrd), "append": MICRO_APPEND}
    start |= {"iommu": True, "numaNode": 0}
    machines.start(virtual_machine("m", micro, memory=memory, cpu=cpu, start=start), soon())
    seen = machines.get(KEY)
    assert seen is not None
    assert (seen.observed.vcpus, seen.observed.memory_bytes) == (2, 768 * MIB)
    group = cgroup.group_of(machines.config.cgroups, seen.pid)
    if group is not None:  # where this host's cgroups can be written
        assert (seen.observed.cpu_milli, cgroup.limit_of(group)) == (1500, 1500)
        machines.scale(KEY, "cpu", 500, soon())
        assert cgroup.limit_of(group) == 500
        machines.scale(KEY, "cpu", 2000, soon())
        assert cgroup.limit_of(group) is None, "whole CPUs are bounded by being so many"
    guest = booted(machines)
    assert guest.check("cat /sys/devices/system/cpu/online") == "0-1"
    assert memory_of(guest) > 512 * MIB, "a DIMM that was there from the start"
    assert guest.check("ls /sys/firmware/acpi/tables/DMAR"), "how a guest is told of its IOMMU"
    bound = [line for line in Path(f"/proc/{seen.pid}/numa_maps").read_text().splitlines() if " bind:0 " in line]
    assert len(bound) == 2, "its first memory and the DIMM"
    machines.scale(KEY, "memory", GIB, soon())
    guest.until("[ $(awk '/MemTotal/ {print $2}' /proc/meminfo) -gt 800000 ]")
    machines.scale(KEY, "memory", 512 * MIB, soon())
    guest.until("[ $(awk '/MemTotal/ {print $2}' /proc/meminfo) -lt 512000 ]")
    with pytest.raises(Denied) as denied:
        machines.scale(KEY, "memory", 2 * GIB, soon())
    assert denied.value.code == "OutOfBounds"
    guest.close()


def test_memory_that_is_in_use_and_cpus_that_leave(machines: Machines, micro: Image) -> None:
    """CPUs last: emulated machines are not at their best after one has left."""
    memory = {"min": "256Mi", "max": "512Mi", "use": "512Mi"}
    machines.start(virtual_machine("m", micro, cpu={"min": "1", "max": "3", "use": "2"}, memory=memory), soon())
    guest = booted(machines)
    assert guest.check("cat /sys/devices/system/cpu/online") == "0-1"

    # A guest that keeps what it has is asked for no more than what is told.
    guest.until("[ $(awk '/MemTotal/ {print $2}' /proc/meminfo) -gt 400000 ]")
    guest.check("mkdir -p /mnt && mount -t tmpfs -o size=400m tmpfs /mnt")
    guest.check("dd if=/dev/zero of=/mnt/full bs=1M count=280 2>&1")
    with pytest.raises(Denied, match="virtio-mem") as denied:
        machines.scale(KEY, "memory", 256 * MIB, soon(1.5))
    assert (denied.value.code, denied.value.retryable) == ("GuestRefused", True)
    with machines.line(machines.known(KEY)) as line:
        asked = line.execute("query-memory-devices", deadline=soon())[0]["data"]
    assert 0 < asked["size"] == asked["requested-size"]
    seen = machines.get(KEY)
    assert seen is not None
    assert seen.observed.memory_bytes == 256 * MIB + asked["size"]
    guest.check("rm /mnt/full")
    machines.scale(KEY, "memory", 256 * MIB, soon(60))

    machines.scale(KEY, "vcpus", 3, soon())
    guest.until("[ $(cat /sys/devices/system/cpu/online) = 0-2 ]")
    machines.scale(KEY, "vcpus", 1, soon())
    guest.until("[ $(cat /sys/devices/system/cpu/online) = 0 ]")
    seen = machines.get(KEY)
    assert seen is not None
    assert seen.observed.vcpus == 1
    with pytest.raises(Denied) as denied:
        machines.scale(KEY, "vcpus", 4, soon())
    assert denied.value.code == "OutOfBounds"
    guest.close()
