"""The test bed itself: a machine made from packages boots, obeys its monitor, and its shell tells the truth."""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.support import tiny_guest
from tests.support.guest import GuestGone
from tests.support.images import Image
from tests.support.qemu import TCG, Machine, Monitor
from tests.support.waiting import until


def test_a_machine_of_packages_boots_and_can_be_looked_into(machine: Machine) -> None:
    guest = machine.guest
    assert guest.check("uname -r").startswith("6.1.")
    assert guest.run("echo one; echo two >&2; exit 3") == (3, "one\ntwo")
    assert guest.run("printf 'no newline at the end'") == (0, "no newline at the end")
    assert guest.run("printf 'an empty line\\n\\nand spaces  '") == (0, "an empty line\n\nand spaces  ")

    machine.monitor.execute("netdev_add", type="hubport", id="n0", hubid=0)
    machine.monitor.execute("device_add", driver="virtio-net-pci", id="net0", bus="rp0", netdev="n0")
    guest.until("[ -e /sys/class/net/eth0 ]")
    machine.monitor.execute("device_del", id="net0")
    machine.monitor.wait_for("DEVICE_DELETED", device="net0")
    guest.until("[ ! -e /sys/class/net/eth0 ]")

    slots = machine.monitor.execute("query-hotpluggable-cpus")
    free = min((slot for slot in slots if "qom-path" not in slot), key=lambda slot: slot["props"]["socket-id"])
    machine.monitor.execute("device_add", driver=free["type"], id="cpu1", **free["props"])
    guest.until("[ $(cat /sys/devices/system/cpu/online) = 0-1 ]")

    machine.monitor.execute("qom-set", path="/machine/peripheral/vmem0", property="requested-size", value=256 << 20)
    guest.until("[ $(awk '/MemTotal/ {print $2}' /proc/meminfo) -gt 650000 ]")

    machine.kill()
    with pytest.raises((GuestGone, OSError)):
        guest.run("true")


def tiny_machine(
    image: Image, folder: Path, *more: str, ejects: bool = True, writes: bool = False
) -> tuple[subprocess.Popen[bytes], Monitor]:
    kernel = tiny_guest.write(folder / "kernel", ejects=ejects, writes=writes)
    command = [str(image.qemu), *TCG, "-machine", "q35", "-m", "64", "-display", "none", "-nodefaults"]
    ports = [word for n in range(3) for word in ("-device", f"pcie-root-port,id=rp{n},chassis={n + 1},slot={n + 1}")]
    sockets = ["-qmp", f"unix:{folder / 'qmp'},server=on,wait=off", "-serial", f"file:{folder / 'console'}"]
    process = subprocess.Popen([*command, *ports, *sockets, *more, "-kernel", str(kernel)])
    monitor = Monitor(folder / "qmp")
    until(lambda: (folder / "console").read_bytes() == b"K")
    return process, monitor


def test_the_tiny_guest_lets_go_of_what_is_unplugged_and_obeys_the_power_button(micro: Image, tmp_path: Path) -> None:
    process, monitor = tiny_machine(micro, tmp_path, ejects=True)
    try:
        for number, port in enumerate(("rp0", "rp2", "rp0")):
            monitor.execute("device_add", driver="virtio-rng-pci", id=f"rng{number}", bus=port)
            monitor.execute("device_del", id=f"rng{number}")
            monitor.wait_for("DEVICE_DELETED", device=f"rng{number}")
        monitor.execute("system_powerdown")
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        monitor.close()


def test_the_stubborn_tiny_guest_keeps_what_is_unplugged(micro: Image, tmp_path: Path) -> None:
    process, monitor = tiny_machine(micro, tmp_path, ejects=False)
    try:
        monitor.execute("device_add", driver="virtio-rng-pci", id="rng", bus="rp0")
        monitor.execute("device_del", id="rng")
        with pytest.raises(TimeoutError):
            monitor.wait_for("DEVICE_DELETED", device="rng", seconds=1)
        assert "rng" in [child["name"] for child in monitor.execute("qom-list", path="/machine/peripheral")]
    finally:
        process.kill()
        process.wait()
        monitor.close()


def _has_written_more(monitor: Monitor, than: int) -> bool:
    return tiny_guest.written_number(monitor) > than


def test_the_tiny_guest_that_writes_goes_on_from_its_disk_and_a_lost_block_shows(micro: Image, tmp_path: Path) -> None:
    (disk := tmp_path / "disk").write_bytes(bytes(tiny_guest.BLOCKS * tiny_guest.BLOCK))
    drive = ("-drive", f"if=none,id=d,format=raw,file={disk},file.locking=off", "-device", "virtio-blk-pci,drive=d")
    last = 0
    for _ in range(2):
        process, monitor = tiny_machine(micro, tmp_path, *drive, writes=True)
        try:
            until(partial(_has_written_more, monitor, last + 20), "it writes")
            last = tiny_guest.check_disk(monitor, disk)
            monitor.execute("device_add", driver="virtio-rng-pci", id="rng", bus="rp0")
            monitor.execute("device_del", id="rng")
            monitor.wait_for("DEVICE_DELETED", device="rng")
            monitor.execute("stop")
            place = tiny_guest.BLOCK * (last - 3)
            with disk.open("r+b") as file:
                file.seek(place)
                lost = file.read(4)
                file.seek(place)
                file.write(bytes(4))
                file.flush()
                with pytest.raises(AssertionError, match=rf"these numbers are lost: \[{last - 3}\]"):
                    tiny_guest.check_disk(monitor, disk)
                file.seek(place)
                file.write(lost)
        finally:
            process.kill()
            process.wait()
            monitor.close()
