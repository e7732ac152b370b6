"""Cards with much memory of their own, as GPUs have: QEMU's ``ivshmem-plain``, whose memory is its BAR 2."""

from __future__ import annotations

from devalloc_machines.qemu import pci
from tests.support.guest import Guest


def card(name: str, size: int, number: int = 0) -> pci.PciDevice:
    """A card with so many bytes of memory, which take none of the host's until they are written to."""
    memory = f"{name}-ram{number}"
    backend = {"qom-type": "memory-backend-ram", "id": memory, "size": size, "share": True, "reserve": False}
    backends = (pci.QemuBackend(("object-add", backend), ("object-del", {"id": memory})),)
    return pci.PciDevice(name, ({"driver": "ivshmem-plain", "memdev": memory},), backends)


def bars(guest: Guest) -> list[list[int]]:
    """Of each card in the guest: where BAR 2 begins and ends, by its kernel."""
    return [[int(word, 16) for word in line.split()[:2]] for line in each_card(guest, "sed -n 3p ${f%device}resource")]


def each_card(guest: Guest, command: str) -> list[str]:
    """What a command prints for each card in the guest, whose file ``device`` is $f."""
    loop = f"for f in /sys/bus/pci/devices/*/device; do [ $(cat $f) != 0x1110 ] || {command}; done"
    return guest.check(loop).splitlines()
