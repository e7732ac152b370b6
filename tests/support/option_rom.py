"""An option ROM that says on the first serial port where the firmware of a machine has found its device.

Firmware runs it only if vendor and device in its header are those of the device, and calls it with the bus (8 bits),
device (5) and function (3) in AX: PCI Firmware Specification, "Device ROM initialization". It prints ``ROM 8800``, say.
See also the Plug and Play BIOS Specification, "Option ROM expansion header".
"""

from __future__ import annotations

import struct

CODE = (
    ("50 53 51 52", "keep ax, bx, cx, dx"),
    ("89c3", "bx = where the device is"),
    ("baf803", "dx = the first serial port"),
    ("b052ee b04fee b04dee b020ee", "say 'ROM '"),
    ("b90400", "four digits:"),
    ("c1c304 88d8 240f", "digit: al = the next four bits"),
    ("3c0a 7202 0427 0430 ee", "as 0 to 9, a to f"),
    ("e2ee", "to digit"),
    ("b00aee", "end of line"),
    ("5a 59 5b 58", "as they were"),
    ("cb", "return to the firmware"),
)
_HEADER, _DATA, _PLUG_AND_PLAY = 0x20, 0x18, 0x20
"""Where the data structure is, its length, and that of the expansion header after it. Without that one firmware takes
it for a ROM of ISA, and does not say where the device is."""
_UNIT = 512
_NETWORK = bytes.fromhex("000002")
"""The class, lowest byte first."""


def build(vendor: int, device: int) -> bytes:
    """For network cards with that vendor and device."""
    code = bytes.fromhex("".join(text for text, _ in CODE).replace(" ", ""))
    begin = _HEADER + _DATA + _PLUG_AND_PLAY
    units = -(-(begin + len(code) + 1) // _UNIT)
    jump = b"\xe9" + struct.pack("<h", begin - 6)
    head = (b"\x55\xaa" + bytes([units]) + jump).ljust(0x18, b"\0") + struct.pack("<2H", _HEADER, _HEADER + _DATA)
    data = b"PCIR" + struct.pack("<4HB", vendor, device, 0, _DATA, 0) + _NETWORK
    data += struct.pack("<2H2BH", units, 1, 0, 0x80, 0)
    expansion = (b"$PnP" + bytes([1, _PLUG_AND_PLAY // 16])).ljust(_PLUG_AND_PLAY, b"\0")
    expansion = expansion[:9] + bytes([-sum(expansion) % 256]) + expansion[10:]
    whole = (head.ljust(_HEADER, b"\0") + data + expansion + code).ljust(units * _UNIT, b"\0")
    return whole[:-1] + bytes([-sum(whole) % 256])
