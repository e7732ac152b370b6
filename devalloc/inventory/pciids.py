"""Names for PCI IDs: short vendor names of ours, model names from the pci.ids database (``data/pci.ids.gz``).

The data file is the database of 2026-10-24 without subsystems and classes, under its own licence (3-clause BSD or GPL,
the notice is at its top). Only the IDs that are wanted are looked for, so the first lookup costs the decompression, a
few milliseconds, and those of a host that is looked at again and again cost nothing.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable
from functools import lru_cache
from importlib import resources

_VENDORS = {
    0x1002: "amd", 0x1022: "amd", 0x10DE: "nvidia", 0x8086: "intel", 0x15B3: "mellanox", 0x14E4: "broadcom",
    0x1077: "qlogic", 0x1425: "chelsio", 0x1924: "solarflare", 0x10EC: "realtek", 0x177D: "cavium", 0x11AB: "marvell",
    0x1B4B: "marvell", 0x1DD8: "pensando", 0x19EE: "netronome", 0x1D6A: "aquantia", 0x1FC9: "tehuti",
    0x10EE: "xilinx", 0x1172: "altera", 0x1DA3: "habana", 0x1E52: "tenstorrent", 0x1BCF: "nec", 0x1ED5: "moore-threads",
    0x1AE0: "google", 0x1D0F: "amazon", 0x1414: "microsoft", 0x15AD: "vmware", 0x19E5: "huawei", 0x1D94: "hygon",
    0x1AF4: "virtio", 0x1B36: "qemu", 0x1234: "qemu", 0x1A03: "aspeed", 0x102B: "matrox",
    0x144D: "samsung", 0x1344: "micron", 0xC0A9: "micron", 0x1E0F: "kioxia", 0x1179: "toshiba", 0x15B7: "sandisk",
    0x1C5C: "sk-hynix", 0x1BB1: "seagate", 0x1C58: "hgst", 0x2646: "kingston", 0x126F: "silicon-motion",
}  # fmt: skip


_NOT_INDENTED = re.compile(rb"\n(?!\t)")


def vendor_name(vendor: int) -> str:
    """The vendor's short lower-case name, else its ID (``0x1d78``)."""
    return _VENDORS.get(vendor) or hex_id(vendor)


def hex_id(value: int) -> str:
    """A 16-bit ID as published: ``0x10de``."""
    return f"0x{value:04x}"


def model_names(wanted: Iterable[tuple[int, int]]) -> dict[tuple[int, int], str]:
    """The database's names of (vendor, device) pairs; unknown pairs are absent."""
    names = {(vendor, device): _model(vendor, device) for vendor, device in set(wanted)}
    return {pair: name for pair, name in names.items() if name}


@lru_cache(maxsize=1024)
def _model(vendor: int, device: int) -> str:
    return _line(_section(vendor), b"\n\t%04x  " % device)


@lru_cache(maxsize=1)
def _database() -> bytes:
    packed = resources.files("devalloc.inventory").joinpath("data", "pci.ids.gz").read_bytes()
    return b"\n" + gzip.decompress(packed)


@lru_cache(maxsize=32)
def _section(vendor: int) -> bytes:
    """A vendor's line and the indented lines below it."""
    text = _database()
    start = text.find(b"\n%04x  " % vendor)
    if start < 0:
        return b""
    end = _NOT_INDENTED.search(text, start + 1)
    return text[start : end.start() if end else len(text)]


def _line(section: bytes, head: bytes) -> str:
    start = section.find(head)
    if start < 0:
        return ""
    start += len(head)
    end = section.find(b"\n", start)
    return section[start : end if end >= 0 else len(section)].decode("utf-8", "replace").strip()
