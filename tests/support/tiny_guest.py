"""A kernel of a few hundred bytes that does what a guest's kernel does when a PCI device comes or is to go.

A Linux takes minutes to boot in a machine that is emulated inside an emulated machine; this is up as soon as the
firmware is. Eighteen times a second it looks through the hot-plug registers of QEMU's q35 (I/O ports 0xcc0 to 0xcd7, as
the ACPI tables tell a real kernel), gives what was plugged in addresses (BARs of up to 64 KiB), and ejects what QEMU
asks for, so that device_del is followed by DEVICE_DELETED. It obeys the power button, and says ``K`` on the first
serial port when it is up.

The file is a multiboot image: ``-kernel`` takes it. See "QEMU<->ACPI BIOS PCI hotplug interface" in QEMU's docs/specs.
"""

from __future__ import annotations

import struct
from pathlib import Path

BASE = 0x100000
"""Where in memory the image is loaded."""
STACK = BASE + 0x8000
HEADER = 32
"""Bytes of the multiboot header, with which the image begins."""

CODE = (
    ("fa", "cli"),
    ("0f0115 {gdtr}", "lgdt: flat segments of our own"),
    ("ea {flat} 0800", "jump into the code segment"),
    ("b810000000 8ed8 8ed0", "flat: ds, ss = the data segment"),
    ("bc {stack}", "esp"),
    ("0f011d {idtr}", "lidt: one interrupt, the timer's"),
    ("b011 e620  b020 e621  b004 e621  b001 e621", "first interrupt controller: numbers from 0x20"),
    ("b0fe e621  b0ff e6a1", "only the timer"),
    ("ba02060000 66b80001 66ef", "enable the power button: PM1 enable, bit 8"),
    ("baf8030000 b04b ee", "say K on the first serial port"),
    # look, every tick:
    ("ba00060000 66ed", "dx = PM1 status; in ax"),
    ("f6c401 7408", "power button not pressed: to buses"),
    ("b204 66b80020 66ef", "PM1 control: sleep state 5, that is, off"),
    ("31f6", "buses: esi = 0"),
    ("bad00c0000 89f0 ef", "bus: select bus esi"),
    ("b2c0 ed", "read what was plugged in, which acknowledges it"),
    ("85c0 7405 e815000000", "if anything was: call place"),
    ("b2c4 ed", "eax = slots that are to be emptied"),
    ("85c0 7403", "none: to next"),
    ("b2c8 {eject}", "eject the lowest of them"),
    ("46 83fe20 72dc", "next: 32 buses"),
    ("fb f4 fa", "sleep until the timer ticks"),
    ("ebc1", "to look"),
    # place: give what is behind root ports addresses, one BAR after the other from the beginning of the port's window.
    ("60 bb00000080", "all registers are kept; ebx = function 0 of bus 0, for each of its 256 functions:"),
    ("89d8 e896000000 3d361b0c00 757b", "port: no root port of QEMU's: to other"),
    ("8d4318 e887000000 0fb6cc c1e110", "ecx = the bus behind it"),
    ("8d4320 e879000000 25f0ff0000 c1e010 89c7", "edi = where its window begins"),
    ("8da900000080 89e8 e862000000 40 744b", "nothing on that bus: to other"),
    ("83c510 89e8 e855000000 c1e804 753c", "its first BAR has an address: to other"),
    ("6a06 59", "ecx = 6 BARs"),
    ("89e8 e846000000 89c6 89f8 ef", "bar: write the address; esi = what it was, which tells its kind"),
    ("81c700000100 83c504 83e606 83fe04 750e", "64 KiB further; a BAR of 32 bits: to one"),
    ("89e8 e829000000 31c0 ef 83c504 49", "the upper half of one of 64 bits is 0"),
    ("49 7fd2", "one: to bar"),
    ("8d45dc e817000000 0c06 ef", "switch the function on: its memory, and the bus for it"),
    ("81c300010000 81fb00000180 0f8265ffffff 61 c3", "other: to port; return"),
    ("baf80c0000 ef b2fc ed c3", "read: eax = the register of configuration space that eax names"),
    # the timer's interrupt:
    ("50 b020 e620 58 cf", "tick: end of interrupt"),
)


def image(*, ejects: bool = True) -> bytes:
    """The kernel. ``ejects=False``: one that ignores what it is asked, as a guest does that needs its device."""
    code = " ".join(text for text, _ in CODE)
    at = {"gdtr": 0, "idtr": 0, "flat": 0}
    for _ in range(2):  # the first pass finds out where things are, the second says it
        words = {name: struct.pack("<I", place).hex() for name, place in at.items()}
        text = code.format(**words, stack=struct.pack("<I", STACK).hex(), eject="ef" if ejects else "90")
        body = bytes.fromhex(text)
        start = BASE + HEADER
        at["flat"] = start + body.index(bytes.fromhex("b810000000"))
        tick = start + len(body) - 7
        tables = start + len(body) + -(start + len(body)) % 8
        at["gdtr"], at["idtr"] = tables + 24, tables + 30
    gdt = struct.pack("<3Q", 0, 0x00CF9A000000FFFF, 0x00CF92000000FFFF)
    idt = tables + 40
    gate = struct.pack("<HHBBH", tick & 0xFFFF, 8, 0, 0x8E, tick >> 16)
    descriptors = struct.pack("<HI", len(gdt) - 1, tables) + struct.pack("<HI", 0x21 * 8 - 1, idt)
    whole = body.ljust(tables - start, b"\0") + gdt + descriptors.ljust(16, b"\0") + bytes(0x20 * 8) + gate
    magic, flags, end = 0x1BADB002, 1 << 16, BASE + HEADER + len(whole)
    header = struct.pack("<8I", magic, flags, -(magic + flags) & 0xFFFFFFFF, BASE, BASE, end, end, start)
    return header + whole


def write(path: Path, *, ejects: bool = True) -> Path:
    path.write_bytes(image(ejects=ejects))
    return path
