"""What root ports reserve for devices that come later, and how the command line says it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from devalloc.inventory.pci import NO_BARS, BarSizes
from devalloc_machines.qemu.command_line import StartContext, qemu_arguments
from devalloc_machines.qemu.hotplug import AddressWindow
from devalloc_machines.qemu.pci import WindowReserve, port_reserves, uefi_aperture, window_for
from devalloc_machines.qemu.spec import MIB, AmountBounds, MachineSpec
from devalloc_node.errors import Denied
from tests.support.node_errors import raises

GIB = 1 << 30
SPEC = MachineSpec(
    "default",
    "m",
    "uid",
    cpus=AmountBounds(1000, 1000, 1000),
    memory=AmountBounds(GIB, GIB, GIB),
    kernel="/k",
    pci_slots=5,
)
L4 = BarSizes(prefetchable=32 * GIB + 32 * MIB, other=17 * MIB)
"""A GPU: 32 GiB of memory and 32 MiB for its other use, 16 MiB of registers, a ROM."""


def test_every_slot_has_room_for_any_device_of_the_node() -> None:
    assert port_reserves(SPEC, L4, 46) == (WindowReserve(64 * GIB + 64 * MIB, 34 * MIB),) * 5


OLD = BarSizes(prefetchable=0, other=17 * MIB, prefetchable_32=16 * MIB)
"""A card whose memory is prefetchable and of 32 bits."""


def test_a_slot_is_left_without_a_window_for_a_card_with_prefetchable_memory_of_32_bits() -> None:
    """Firmware would put a window of 64 GiB below 4 GiB with it, and end."""
    there = [reserve.prefetchable for reserve in port_reserves(SPEC, L4 | OLD, 46)]
    assert there == [64 * GIB + 64 * MIB] * 4 + [0]
    assert port_reserves(replace(SPEC, pci_slots=1), L4 | OLD, 46)[0].prefetchable > 0, "the larger card comes first"
    requested = port_reserves(replace(SPEC, pci_window=GIB), L4 | OLD, 46)
    assert [reserve.prefetchable for reserve in requested] == [GIB] * 5, "as its spec says"


def test_nothing_is_reserved_if_the_firmware_gives_enough() -> None:
    assert port_reserves(SPEC, NO_BARS, 46) == (WindowReserve(),) * 5
    assert port_reserves(SPEC, BarSizes(MIB, MIB), 46) == (WindowReserve(),) * 5
    assert "reserve" not in " ".join(
        qemu_arguments(SPEC, StartContext("qemu", "tcg", "uuid", reserves=(WindowReserve(),) * 5))
    )


@pytest.mark.parametrize("size", [MIB, 4 * MIB, 256 * MIB, 16 * GIB, 256 * GIB])
def test_a_window_has_room_wherever_firmware_puts_it(size: int) -> None:
    whole = window_for(size) or 2 * MIB
    assert all(AddressWindow(first, first + whole - 1).fits(size) for first in range(0, 2 * size, max(MIB, size // 64)))
    assert not AddressWindow(MIB, MIB + size - 1).fits(size) or size == MIB, "as large as the device is not enough"


def test_what_the_spec_says_counts_and_not_what_the_node_has() -> None:
    assert port_reserves(replace(SPEC, pci_window=128 * GIB), L4, 46)[0].prefetchable == 128 * GIB
    assert port_reserves(replace(SPEC, pci_window=3), L4, 46)[0].prefetchable == MIB


def test_as_many_slots_have_windows_as_the_cpus_have_addresses_for() -> None:
    there = port_reserves(SPEC, BarSizes(128 * GIB), 40)
    assert [reserve.prefetchable for reserve in there] == [256 * GIB] * 3 + [0] * 2
    assert port_reserves(SPEC, BarSizes(128 * GIB), None)[4].prefetchable == 256 * GIB, "unknown here: QEMU says it"
    assert port_reserves(SPEC, BarSizes(1 << 40), 40) == (WindowReserve(),) * 5


def test_registers_below_4_gib_leave_room_for_others() -> None:
    many = port_reserves(replace(SPEC, pci_slots=64), BarSizes(other=17 * MIB), 46)
    assert sum(reserve.memory for reserve in many) <= 512 * MIB
    assert [bool(reserve.memory) for reserve in many] == [True] * 15 + [False] * 49


def test_more_than_the_cpus_can_address_is_refused_with_what_to_change() -> None:
    with raises(Denied, "NoPciWindow", retryable=False, match=r"5 PCI slots with windows of 256Gi.*40 bits.*pciWindow"):
        port_reserves(replace(SPEC, pci_window=256 * GIB), NO_BARS, 40)
    assert len(port_reserves(replace(SPEC, pci_window=256 * GIB, pci_slots=3), NO_BARS, 40)) == 3


def test_memory_that_may_come_takes_addresses_too() -> None:
    large = replace(SPEC, memory=AmountBounds(GIB, 900 * GIB, GIB), pci_window=32 * GIB)
    with pytest.raises(Denied, match="addresses"):
        port_reserves(large, NO_BARS, 40)
    dimms = replace(SPEC, memory=AmountBounds(GIB, 251 * GIB, GIB), dimm_bytes=GIB, pci_window=128 * GIB)
    with pytest.raises(Denied, match="addresses"):
        port_reserves(dimms, NO_BARS, 40)
    assert port_reserves(replace(dimms, dimm_bytes=None), NO_BARS, 40)


UEFI = replace(SPEC, firmware="uefi", pci_slots=2)


@pytest.mark.parametrize(
    ("slots", "window", "devices", "bits", "aperture"),
    [
        (2, None, NO_BARS, 40, 0),  # what OVMF has by itself
        (2, 8 * GIB, NO_BARS, 40, 0),
        (2, 16 * GIB, NO_BARS, 40, 33),
        (2, None, BarSizes(16 * GIB), 40, 65),
        (2, None, L4, 46, 2 * 128 + 1),  # 64 GiB and 64 MiB, as the next power of two
        (3, 96 * GIB, NO_BARS, 46, 3 * 128 + 1),
        (1, 1 * GIB, BarSizes(128 * GIB), 46, 129),  # a device that it starts with needs no window, but addresses
        (1, 1 * GIB, BarSizes(1 << 40), 40, 0),  # more than there is: firmware says it when the device is there
    ],
)
def test_uefi_firmware_gives_devices_as_many_addresses_as_ports_reserve_and_devices_have(
    slots: int, window: int | None, devices: BarSizes, bits: int, aperture: int
) -> None:
    spec = replace(UEFI, pci_slots=slots, pci_window=window)
    size = uefi_aperture(spec, port_reserves(spec, devices, bits), devices, bits)
    assert size == aperture * GIB
    words = qemu_arguments(spec, StartContext("qemu", "tcg", "uuid", aperture=size))
    assert (f"name=opt/ovmf/X-PciMmio64Mb,string={aperture * 1024}" in words) == bool(aperture)
    assert uefi_aperture(replace(spec, firmware="bios"), port_reserves(spec, devices, bits), devices, bits) == 0


@pytest.mark.parametrize("bits", [36, 39, 40, 42, 46, 48, 52])
@pytest.mark.parametrize("memory", [GIB, 100 * GIB, 700 * GIB])
@pytest.mark.parametrize("size", [MIB, 256 * MIB, 16 * GIB, 24 * GIB, 256 * GIB])
def test_what_uefi_firmware_is_to_give_is_below_what_the_cpus_address_wherever_it_begins(
    bits: int, memory: int, size: int
) -> None:
    """By OVMF's own rule: above all memory, at a multiple of the largest power of two in the aperture; each window as
    large as a power of two, at a multiple of that."""
    spec = replace(UEFI, pci_slots=8, memory=AmountBounds(GIB, memory, GIB))
    reserves = port_reserves(spec, BarSizes(size), bits)
    aperture = uefi_aperture(spec, reserves, BarSizes(size), bits) or 32 * GIB
    windows = sorted((1 << (max(each.prefetchable, 2 * MIB) - 1).bit_length() for each in reserves), reverse=True)
    boundary = 1 << (aperture.bit_length() - 1)
    start = -(-(4 * GIB + memory) // boundary) * boundary
    place = start
    for window in windows:
        place = -(-place // window) * window + window
    assert place <= start + aperture
    if any(each.prefetchable for each in reserves):
        assert start + aperture <= 1 << bits
    more = uefi_aperture(replace(spec, pci_slots=1), (), NO_BARS, bits)
    assert more == 0


def test_a_window_that_only_the_bios_has_room_for_is_refused_below_uefi() -> None:
    """With 40 bits, three windows of 256 GiB follow each other; OVMF begins at a multiple of 512 GiB."""
    spec = replace(UEFI, pci_slots=3, pci_window=256 * GIB)
    assert len(port_reserves(replace(spec, firmware="bios"), NO_BARS, 40)) == 3
    with raises(Denied, "NoPciWindow", match=r"3 PCI slots with windows of 256Gi.*40 bits.*pciWindow"):
        port_reserves(spec, NO_BARS, 40)
    there = port_reserves(replace(spec, pci_window=None), BarSizes(128 * GIB), 40)
    assert [reserve.prefetchable for reserve in there] == [256 * GIB, 0, 0]


def test_the_guide_says_how_many_windows_fit() -> None:
    text = (Path(__file__).parents[3] / "docs/machine-devices.md").read_text()
    rows = re.findall(r"^\| (\d+) bits, \S+ TiB[^|]*\| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE)
    assert len(rows) == 3
    for bits, *cells in rows:
        for firmware, cell in zip(("bios", "uefi"), cells, strict=True):
            spec = replace(UEFI, firmware=firmware, pci_slots=64, memory=AmountBounds(GIB, 16 * GIB, GIB))
            fit = [port_reserves(spec, BarSizes(window * GIB // 2), int(bits)) for window in (64, 256, 512)]
            assert [sum(bool(each.prefetchable) for each in windows) for windows in fit] == [
                int(number) for number in cell.split(" / ")
            ]


def test_ports_say_what_they_reserve_and_cpus_reach_as_far_as_the_hosts() -> None:
    words = qemu_arguments(
        SPEC, StartContext("qemu", "kvm", "uuid", reserves=(WindowReserve(64 * GIB, 32 * MIB), WindowReserve(64 * GIB)))
    )
    ports = [json.loads(word) for word in words if "pcie-root-port" in word]
    assert [(port.get("pref64-reserve"), port.get("mem-reserve")) for port in ports] == [
        (64 * GIB, 32 * MIB),
        (64 * GIB, None),
        *[(None, None)] * 3,
    ]
    assert words[words.index("-cpu") + 1] == "host,host-phys-bits=on"
    assert "max" in qemu_arguments(SPEC, StartContext("qemu", "tcg", "uuid")), (
        "an emulated CPU takes no other number than its own"
    )
