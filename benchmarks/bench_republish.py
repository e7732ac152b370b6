"""How long after a card appears or goes the store says so: `devalloc up` on a real kernel with udev, emulated."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Row, benchmark
from tests.support import sriov_host, sriov_image
from tests.support.host_commands import LONG, HostCommands
from tests.support.qemu import Machine

CARDS = {"hot0": "0000:44:00.0", "hot1": "0000:84:00.0"}
"""Where a card in a hot-plug port shows."""


@benchmark(
    "republish",
    "From a card that appears or goes until the store says so",
    method="`devalloc up`, its node plugin included, on the host in a machine of the tests (Linux 6.12, udev, one CPU "
    "that is emulated, so several times as slow as a host). A network card with seven VFs is plugged into it and taken "
    "out. From when its folder is below /sys, or is gone, until its pool is stored, or deleted; by the host's clock. "
    "Included is what the kernel and udev do meanwhile, and what `up` waits for more events: 0.2 s after the last, 2 s "
    "at the most.",
    packages=("pyudev",),
)
def republish(runs: int) -> Iterator[Row]:
    image = sriov_image.image()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        project = sriov_host.project_disk(image, folder / "project")
        state = sriov_host.state_disk(image, folder / "state")
        with Machine(image, folder, sriov_host.arguments(image, project, state), seconds=300) as host:
            commands = HostCommands(host.guest)
            up = commands.start("devalloc up")
            host.guest.until("[ -S /run/devalloc/node.sock ]", seconds=LONG)
            pairs = [_once(host, commands, port, up) for _ in range(runs + 1) for port in CARDS][len(CARDS) :]
    for number, what in enumerate(("appears", "goes")):
        yield Row({"a card": what}, tuple(delays[number] for delays in pairs))


def _once(host: Machine, commands: HostCommands, port: str, up: str) -> tuple[float, float]:
    address = CARDS[port]
    folder, pool = f"/sys/bus/pci/devices/{address}", f"guest-{address[:-2].replace(':', '-')}"
    appears = commands.watching(folder, up, f"created.*{pool}")
    host.monitor.execute("device_add", driver="igb", id=f"card-{port}", bus=port)
    appeared = appears()
    goes = commands.watching(folder, up, f"deleted.*{pool}")
    host.monitor.execute("device_del", id=f"card-{port}")
    return appeared, goes()
