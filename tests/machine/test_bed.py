"""The test bed itself: a machine made from packages boots, obeys its monitor, and its shell tells the truth."""

from __future__ import annotations

import pytest

from tests.support.guest import GuestGone
from tests.support.qemu import Machine


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
