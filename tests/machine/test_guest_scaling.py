"""Must show: what a guest does decides what its machine has, with the project's own parts from end to end.

In the guest the monitor runs; on the host the plugin, its agent and the server of permits, by the command line.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.machine.test_vm_objects import Host, until
from tests.support import python_image, scaled_guest
from tests.support.guest import Guest
from tests.support.images import Image
from tests.support.machines import MICRO_APPEND, short_folder
from tests.support.private_network import HOST, NETWORK, add_tap, private_network

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a network of its own is made by root only")


@pytest.fixture
def host(sriov: Image, python: Image) -> Iterator[Host]:
    with short_folder() as folder, private_network():
        folder.chmod(0o755)
        image = folder / "image"
        image.mkdir()
        # QEMU 10, out of which emulated CPUs can be taken, where the machine's own user can read it.
        subprocess.run(["cp", "-al", str(sriov.folder / "root"), str(image / "root")], check=True)
        launcher = (sriov.folder / "qemu").read_text().replace(str(sriov.folder), str(image))
        (image / "qemu").write_text(launcher)
        (image / "qemu").chmod(0o755)
        (image / "kernel").write_bytes(python.kernel.read_bytes())
        python_image.with_files(python, image / "initrd", scaled_guest.files())
        add_tap("tap0")
        made = Host(folder, Image(image))
        try:
            yield made
        finally:
            for line in made.log().splitlines()[-80:]:
                print(line)
            made.end_machines()


def machine(host: Host, **scaling: Any) -> str:
    image = host.image.folder
    return host.manifest(
        cpu={"min": 1, "max": 2},
        memory={"min": "1Gi", "max": "2Gi"},
        start={"kernel": str(image / "kernel"), "initrd": str(image / "initrd"), "append": MICRO_APPEND},
        nics=[{"backend": "tap", "interface": "tap0"}],
        scaling={"address": scaled_guest.ADDRESS, **scaling},
    )


def status(host: Host, part: str) -> dict[str, Any]:
    found: dict[str, Any] = host.status().get(part) or {}
    return found


def gauges_are_served() -> bool:
    try:
        with urllib.request.urlopen(f"http://{scaled_guest.ADDRESS}:9100/metrics", timeout=2) as answer:
            return b"host_load1" in answer.read()
    except OSError:
        return False


def comes_to(host: Host, seconds: float, **amounts: str) -> None:
    """Wait until QEMU says that it has these; all that is told of it must be in order meanwhile."""
    deadline = time.monotonic() + seconds
    while {name: status(host, "observed").get(name) for name in amounts} != amounts:
        assert time.monotonic() < deadline, f"{amounts} is not reached: {json.dumps(host.status(), indent=1)}"
        time.sleep(0.5)


def test_a_machine_follows_its_guest_up_and_down(host: Host) -> None:
    with host.plugin("--scaling", "--guest-network", NETWORK, "--compute-unit", "1,1Gi"):
        host("apply", "-f", "-", stdin=machine(host, loadAverageFractionTarget="1"))
        until(lambda: status(host, "permitted").get("givenBy"), "it runs and has a permit", host.log)
        (shell,) = (host.folder / "run").glob("*/agent")
        with Guest(shell) as guest:
            guest.check(scaled_guest.start(HOST))
            until(gauges_are_served, "the monitor runs", host.log)
            assert guest.check("cat /sys/devices/system/cpu/online") == "0"

            # Load: a permit is asked for, CPUs and memory are plugged and brought online, and the monitor is told.
            guest.check(
                "(for i in 1 2 3 4 5 6 7 8; do (while [ ! -e /tmp/enough ]; do :; done) & done) > /dev/null 2>&1 &"
            )
            until(lambda: status(host, "wanted").get("cpus") == "2", "more is wanted", host.log)
            guest.check("touch /tmp/enough")
            comes_to(host, 60, cpus="2", memory="2Gi")
            guest.until("[ $(cat /sys/devices/system/cpu/online) = 0-1 ]")
            guest.until("[ $(awk '/MemTotal/ {print $2}' /proc/meminfo) -gt 1800000 ]")
            assert status(host, "permitted")["memory"] == "2Gi"

            # No load, and the memory is in use: all stays.
            guest.check("mkdir -p /fill && mount -t tmpfs -o size=1800m tmpfs /fill")
            guest.check("dd if=/dev/zero of=/fill/file bs=1M count=800 2>&1")
            while float(guest.check("cat /proc/loadavg").split()[0]) > 1.4:  # asking is load too
                time.sleep(4)
            time.sleep(6)
            assert status(host, "observed") == {"cpus": "2", "memory": "2Gi"}

            # Free again: the monitor agrees, both go, and the permit is given back.
            guest.check("rm /fill/file")
            comes_to(host, 90, cpus="1", memory="1Gi")
            guest.until("[ $(cat /sys/devices/system/cpu/online) = 0 ]")
            until(lambda: status(host, "permitted").get("memory") == "1Gi", "the permit is given back", host.log)
