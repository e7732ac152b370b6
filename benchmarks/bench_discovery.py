"""How long a discovery takes, by the number of PCI functions below /sys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.harness import Row, benchmark, timed
from devalloc.inventory.discover import discover
from tests.support import pci_cards
from tests.support.fake_sysfs import FakeSysfs
from tests.support.fake_tree import memory_folder

SIZES = (8, 64, 256, 1024)
BUSES = 200
"""Cards of one PCI domain; each stands on a bus of its own."""


@benchmark(
    "discovery",
    "Discovery time by size of the host",
    method="One `discover()` of a fake /sys in memory: half of the physical functions are NICs with 7 possible VFs, 3 "
    "of them created, a quarter GPUs, a quarter NVMe drives; one card in 64 is an A2 with 16 VFs and 15 vGPU profiles. "
    "The last row is the real /sys of the machine.",
    packages=("pydantic",),
)
def discovery(runs: int) -> Iterator[Row]:
    with memory_folder() as folder:
        for size in SIZES:
            host = FakeSysfs(Path(folder) / str(size))
            fill(host, size)
            yield _row(f"{size} physical functions", host.root, runs)
    yield _row("this machine", Path("/"), runs)


def fill(host: FakeSysfs, size: int) -> None:
    """Plug in `size` physical functions, each on its own bus below its own root port."""
    for number in range(size):
        domain, bus = divmod(number, BUSES)
        address, node = f"{domain:04x}:{bus + 8:02x}:00.0", number % 2
        if number % 64 == 6:
            host.add(replace(pci_cards.a2_vgpu_card(address, vfs=16, numa=node), ports=None))
        elif number % 2 == 0:
            host.add(pci_cards.nic(address, vfs=3, numa=node, netdev=f"eth{number}"))
        elif number % 4 == 1:
            host.add(pci_cards.gpu(address, numa=node, drm=f"card{number}"))
        else:
            host.add(pci_cards.nvme(address, numa=node, nvme=f"nvme{number}"))


def _row(host: str, root: Path, runs: int) -> Row:
    inventory = discover(root, node_name="bench")
    what: dict[str, str | int] = {
        "host": host,
        "with VFs and bridges": len(list((root / "sys/bus/pci/devices").iterdir())),
        "pools": len(inventory.pools),
        "devices": sum(len(pool.spec.devices) for pool in inventory.pools),
    }
    return Row(what, timed(lambda: discover(root, node_name="bench"), runs))
