"""A kernel of a few hundred bytes that does what a guest's kernel does when a PCI device comes or is to go.

A Linux takes minutes to boot in a machine that is emulated inside an emulated machine; this is up as soon as the
firmware is. Eighteen times a second it looks through the hot-plug registers of QEMU's q35 (I/O ports 0xcc0 to 0xcd7, as
the ACPI tables tell a real kernel), gives what was plugged in addresses (BARs of up to 64 KiB), and ejects what QEMU
asks for, so that device_del is followed by DEVICE_DELETED. It obeys the power button, and says ``K`` on the first
serial port when it is up.

One that writes also puts a growing number on its disk, four times a tick, and fills some memory with it. The number
that the disk took last, and whether disk or memory ever failed it, is in memory at ``REPORT``.

The file is a multiboot image: ``-kernel`` takes it. See "QEMU<->ACPI BIOS PCI hotplug interface" in QEMU's docs/specs.
"""

from __future__ import annotations

import struct
from pathlib import Path

from tests.support.qemu import Monitor

BASE = 0x100000
"""Where in memory the image is loaded."""
STACK = BASE + 0x8000
HEADER = 32
"""Bytes of the multiboot header, with which the image begins."""
RING, STATE, DATA, AREA = 0x200000, 0x203000, 0x300000, 0x400000
"""Memory of a guest that writes: the disk's queue, what it remembers, what it reads and writes, what it fills."""
REPORT = STATE + 0x18
"""Three words of 32 bits: the number that the disk took last, the one that fills the memory, how often one failed."""
BLOCKS, BLOCK = 2048, 512
"""Of its disk: block n % BLOCKS is filled with the number n."""

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
    ("{write}", "a guest that writes: call its code"),
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
    ("eb{look}", "to look"),
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


# QEMU 7.2 loses writes of an emulated CPU to pages that are in its TLB while a migration sends them (fixed upstream by
# "physmem: Fix migration dirty bitmap coherency with TCG memory access"). A kernel with processes flushes the TLB all
# the time; this one does so before each request to its disk.
WRITER = (
    ("60 be{state} 837e1400 0f85af000000", "all registers are kept; esi = the state; the disk is set up: to ready"),
    ("bb00000080", "ebx = function 0 of each device of bus 0:"),
    ("89d8 baf80c0000 ef b2fc ed 3df41a0110 740e", "find: a virtio disk: to hit"),
    ("81c300080000 6683fb00 75e2 61 c3", "the next one: to find; none: return"),
    ("8d4310 b2f8 ef b2fc ed 24fc 894614 95", "hit: ebp = where its registers begin, in the space of I/O"),
    ("8d5512 31c0 ee b003 ee", "reset it; there is a driver"),
    ("8d5508 b800020000 ef 8d5512 b007 ee", "its queue is at RING; the driver is ready"),
    ("bf{ring} 8937 c6470810 c7470c01000100", "descriptors: 16 bytes of a request, at the state"),
    ("c74710{data} c7471800001000 c7471c03000200", "1 MiB at DATA, to be written by the disk"),
    ("8d4610 894720 c6472801 c6472c02", "a byte of status"),
    ("e87b000000", "read the whole disk: call submit"),
    ("bb{data} b900080000", "its greatest number is the last one:"),
    ("8b03 3b4618 7603 894618 81c300020000 e2ee", "scan: of each block"),
    ("c7471800020000 c6471c01 ff06", "from here on write blocks"),
    ("8b6e14 6a04 5b", "ready: four times:"),
    ("8b4618 40 bf{data} b980000000 f3ab", "write: fill a block with the next number"),
    ("50 25ff070000 894608 e82e000000 8f4618", "call submit; only now say so"),
    ("4b 75dc", "to write"),
    ("8b461c bf{area} b900400000 f3af 7403 ff4620", "64 KiB of memory have the number of the last tick, or it failed"),
    ("8b4618 89461c bf{area} b900400000 f3ab 61 c3", "fill them with this one; return"),
    ("0f20c0 3500000100 0f22c0", "submit: change CR0.WP, which flushes the TLB: see above"),
    ("b900102000 66ff4102 8d5510 31c0 66ef", "one request more is in the queue; notify the disk"),
    ("668b4102 663b8102100000 75f7", "until it is done"),
    ("0fb64610 094620 c3", "its status, if not 0, is a failure; return"),
)


def image(*, ejects: bool = True, writes: bool = False) -> bytes:
    """The kernel. ``ejects=False``: one that ignores what it is asked, as a guest does that needs its device.
    ``writes``: to its first disk, of 1 MiB, which must be a virtio disk."""
    code = " ".join(text for text, _ in CODE)
    places = {"state": STATE, "ring": RING, "data": DATA, "area": AREA}
    at = {"gdtr": 0, "idtr": 0, "flat": 0, "writer": 0, **places}
    for _ in range(2):  # the first pass finds out where things are, the second says it
        words = {name: struct.pack("<I", place).hex() for name, place in at.items()}
        hook = {"write": f"b8{words['writer']} ffd0", "look": "ba"} if writes else {"write": "", "look": "c1"}
        text = code.format(**words, **hook, stack=struct.pack("<I", STACK).hex(), eject="ef" if ejects else "90")
        body = bytes.fromhex(text)
        start = BASE + HEADER
        at["flat"] = start + body.index(bytes.fromhex("b810000000"))
        tick, at["writer"] = start + len(body) - 7, start + len(body)
        if writes:
            body += bytes.fromhex(" ".join(text for text, _ in WRITER).format(**words))
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


def write(path: Path, *, ejects: bool = True, writes: bool = False) -> Path:
    path.write_bytes(image(ejects=ejects, writes=writes))
    return path


def written_number(monitor: Monitor) -> int:
    """The number that a guest wrote last. AssertionError if its disk or its memory ever failed it."""
    answer = monitor.execute("human-monitor-command", command_line=f"xp /3wx {REPORT:#x}")
    number, in_memory, failures = (int(word, 16) for word in answer.partition(":")[2].split())
    assert not failures, f"the guest's disk or memory failed it {failures} times: it is at {number}, {in_memory}"
    return number


def check_disk(monitor: Monitor, disk: Path) -> int:
    """The disk of a guest that writes has all that the guest reported before it is read, and at most the next one."""
    before, raw, after = written_number(monitor), disk.read_bytes(), written_number(monitor)
    on_disk = [raw[at : at + BLOCK] for at in range(0, BLOCKS * BLOCK, BLOCK)]
    # It may be writing the next number just now, over the oldest one.
    numbers = range(max(1, after + 2 - BLOCKS), before + 1)
    lost = [number for number in numbers if on_disk[number % BLOCKS] != struct.pack("<I", number) * (BLOCK // 4)]
    assert not lost, f"the guest wrote up to {before}; these numbers are lost: {lost}"
    newest = max(int.from_bytes(block[:4], "little") for block in on_disk)
    assert newest <= after + 1, f"the guest is at {after}, but {newest} is on its disk"
    return before
