"""A machine in a test host that only the test knows of: a QEMU with devices by VFIO, whose CPUs do not run.

Without a guest no device is ever let go: only the end of the QEMU gives them back.
"""

from __future__ import annotations

from tests.support.guest import Guest

PID = "/run/second.pid"
COMMAND = (
    "qemu-system-x86_64 -S -machine q35 -m 64 -display none -nodefaults -no-user-config"
    f" -qmp unix:/run/second.qmp,server=on,wait=off -pidfile {PID} -daemonize"
)


def start(guest: Guest, *devices: str) -> None:
    """``devices``: options of ``vfio-pci``, such as ``host=0000:41:10.0``."""
    guest.check(" ".join([COMMAND, *(f"-device vfio-pci,{device}" for device in devices)]), seconds=300)


def end(guest: Guest) -> None:
    """Killed, and everything that it had open is closed."""
    guest.check(f"kill -9 $(cat {PID}); while [ -e /proc/$(cat {PID}) ]; do sleep 0.1; done")
