"""The addresses that the root ports of a machine keep for devices that are plugged in later.

A device's memory (its BARs) gets addresses within the windows of the port that it is on, and a guest that runs does not
make these larger. Firmware sizes them for what is there when the machine starts, and for what the port reserves.
"""

from __future__ import annotations

from dataclasses import dataclass

from devalloc.inventory.bars import BarSizes
from devalloc_node.errors import Denied
from devalloc_node.machine.spec import MIB, MachineSpec, memory_text

GIB = 1 << 30
FIRMWARE_WINDOW = 2 * MIB
"""What SeaBIOS gives a port of each kind that reserves nothing."""
_LOW = 512 * MIB
"""Of the addresses below 4 GiB that a guest has for devices, what ports may reserve together: the rest is for devices
that are there from the start."""
_BELOW_4G = 4 * GIB


@dataclass(frozen=True, slots=True, order=True)
class Reserve:
    """Bytes of addresses that one port keeps; 0: what firmware gives it."""

    prefetchable: int = 0
    """Of its prefetchable window of 64 bits."""
    memory: int = 0
    """Of its window below 4 GiB."""


def window_for(size: int) -> int:
    """A window in which so much memory of a device finds room, wherever the window begins: a BAR lies at a multiple of
    its size, and firmware puts a window that nothing is in yet at any MiB. 0: what firmware gives does."""
    return 0 if 2 * size <= FIRMWARE_WINDOW else -(-2 * size // MIB) * MIB


def reserves(spec: MachineSpec, devices: BarSizes, address_bits: int | None) -> tuple[Reserve, ...]:
    """What each root port reserves, the first port first.

    Where its spec says nothing, as much as any of ``devices`` needs, on as many ports as its CPUs, which address memory
    with ``address_bits`` (None: nobody knows), have addresses for. Raises Denied (``NoPciWindow``) where they have not
    enough for what its spec says.
    """
    wide = window_for(devices.prefetchable) if spec.pci_window is None else -(-spec.pci_window // MIB) * MIB
    low = window_for(devices.other)
    room = _room(spec, address_bits)
    fit = spec.pci_slots if room is None or not wide else min(spec.pci_slots, room // wide)
    if spec.pci_window is not None and fit < spec.pci_slots:
        raise Denied(
            "NoPciWindow",
            f"machine {spec.key} is to have {spec.pci_slots} PCI slots with windows of {memory_text(wide)} each, and "
            f"its CPUs, which address memory with {address_bits} bits, have {memory_text((room or 0) // MIB * MIB)} of "
            "addresses for them; lower spec.start.pciWindow or spec.pciSlots",
        )
    fit_low = min(spec.pci_slots, _LOW // low) if low else 0
    return tuple(Reserve(wide if n < fit else 0, low if n < fit_low else 0) for n in range(spec.pci_slots))


def _room(spec: MachineSpec, address_bits: int | None) -> int | None:
    """The addresses that are left above all memory that the machine can have: QEMU keeps a GiB more for each DIMM."""
    if address_bits is None:
        return None
    dimms = spec.hot_memory // spec.dimm_bytes if spec.dimm_bytes else 1
    top = _BELOW_4G + spec.memory.most + (dimms + 1) * GIB
    return max(0, (1 << address_bits) - top - GIB)
