"""Names for PCI IDs: short vendor names of ours, and models from the PCI ID database, pci.ids.

The packed database, ``data/pci.ids.gz``, is that of 2026-10-24 without subsystems and classes, under its own licence
(3-clause BSD or GPL, the notice is at its top). A host that has a newer one (Debian package pci.ids, hwdata elsewhere)
gives its cards the names of that. Only the IDs that are wanted are looked up, so the first lookup costs the
decompression, a few milliseconds, and those of a host that is looked at again and again cost nothing.
"""

from __future__ import annotations

import gzip
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path

_VENDORS = {
    0x1002: "amd", 0x1022: "amd", 0x10DE: "nvidia", 0x8086: "intel", 0x15B3: "mellanox", 0x14E4: "broadcom",
    0x1077: "qlogic", 0x1425: "chelsio", 0x1924: "solarflare", 0x10EC: "realtek", 0x177D: "cavium", 0x11AB: "marvell",
    0x1B4B: "marvell", 0x1DD8: "pensando", 0x19EE: "netronome", 0x1D6A: "aquantia", 0x1FC9: "tehuti",
    0x10EE: "xilinx", 0x1172: "altera", 0x1DA3: "habana", 0x1E52: "tenstorrent", 0x1BCF: "nec", 0x1ED5: "moore-threads",
    0x9999: "metax",
    0x1AE0: "google", 0x1D0F: "amazon", 0x1414: "microsoft", 0x15AD: "vmware", 0x19E5: "huawei", 0x1D94: "hygon",
    0x1AF4: "virtio", 0x1B36: "qemu", 0x1234: "qemu", 0x1A03: "aspeed", 0x102B: "matrox",
    0x144D: "samsung", 0x1344: "micron", 0xC0A9: "micron", 0x1E0F: "kioxia", 0x1179: "toshiba", 0x15B7: "sandisk",
    0x1C5C: "sk-hynix", 0x1BB1: "seagate", 0x1C58: "hgst", 0x2646: "kingston", 0x126F: "silicon-motion",
}  # fmt: skip


HOST_DATABASES = ("usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids")
"""Where a host keeps its database, below its root."""
MAX_BYTES = 16 << 20
"""Of a host's database; that of 2026 has 1.7 MB."""
MAX_NAME = 256
"""Of a name, in characters; the longest of 2026 has 150."""

_BOARDS = {(0x10DE, 0x25B6): {(0x10DE, 0x14A9): "A16", (0x10DE, 0x157E): "A2"}}
"""Products that share one device ID, by the IDs of their subsystem. From a comment of the database at this device."""

_NOT_INDENTED = re.compile(rb"\n(?!\t)")
_VERSION = re.compile(rb"^#\s*Version:\s*(\d{4})\.(\d{2})\.(\d{2})\s*$", re.MULTILINE)
_PRODUCT = re.compile(r"\[([^\[\]]+)\]$")
_HAVE_PRODUCTS = {0x10DE, 0x1002, 0x15B3, 0x1DA3}
"""NVIDIA, AMD, Mellanox and Habana: the database has their products in brackets, after the chip. What it has there of
others are code names, modes and ``VF``, but for Intel's GPUs."""
_INTEL, _INTEL_GPU = 0x8086, re.compile(r"\b(Graphics|GPU|Arc)\b")
_PLACEHOLDER = re.compile(r"Reserved|Initial|INT SKU|mode$", re.IGNORECASE)
"""What stands there of a device that is not sold, or not a product."""


@dataclass(frozen=True)
class DeviceModel:
    """What a device is called."""

    name: str
    """As people write it: ``L40S``. The product that the database has in brackets at the end of its name; without one
    all of that name."""
    pci_name: str
    """The database's name, which begins with the chip: ``AD102GL [L40S]``."""

    @classmethod
    def of(cls, vendor: int, pci_name: str) -> DeviceModel:
        """The model of a vendor with that name in the database."""
        match = _PRODUCT.search(pci_name)
        product = match[1].strip() if match else ""
        is_product = vendor in _HAVE_PRODUCTS or (vendor == _INTEL and _INTEL_GPU.search(product))
        if not product or not is_product or _PLACEHOLDER.search(product):
            product = pci_name
        return cls(product, pci_name)


@dataclass(frozen=True, eq=False)
class PciIdDatabase:
    """A PCI ID database."""

    text: bytes
    """Lines, of which the first is empty."""
    version: tuple[int, ...]
    """Year, month and day; empty if it does not say."""


def vendor_name(vendor: int) -> str:
    """The vendor's short lower-case name, else its ID (``0x1d78``)."""
    return _VENDORS.get(vendor) or hex_id(vendor)


def hex_id(value: int) -> str:
    """A 16-bit ID as published: ``0x10de``."""
    return f"0x{value:04x}"


def device_models(wanted: Iterable[tuple[int, int]], root: Path | None = None) -> dict[tuple[int, int], DeviceModel]:
    """The models of (vendor, device) pairs; unknown pairs are absent. ``root``: of the host whose database is asked if
    it is newer than the packed one."""
    database = _newest_database(root)
    names = {(vendor, device): _name(database, vendor, device) for vendor, device in set(wanted)}
    return {pair: DeviceModel.of(pair[0], name) for pair, name in names.items() if name}


def board_models(
    by_ids: Mapping[tuple[int, int], DeviceModel], subsystems: Iterable[tuple[tuple[int, int], tuple[int, int]]]
) -> dict[tuple[int, int], DeviceModel]:
    """The models that the subsystems of a card tell apart. ``subsystems``: pairs of a function's (vendor, device) and
    its (subsystem vendor, subsystem device)."""
    return {
        pair: DeviceModel(_BOARDS[pair][subsystem], by_ids[pair].pci_name)
        for pair, subsystem in subsystems
        if pair in by_ids and subsystem in _BOARDS.get(pair, {})
    }


def shares_device_id(vendor: int, device: int | None) -> bool:
    """Whether products share this device ID, so that the subsystem is worth reading."""
    return (vendor, device) in _BOARDS


def _newest_database(root: Path | None) -> PciIdDatabase:
    databases = [_packed_database()]
    for path in HOST_DATABASES if root is not None else ():
        assert root is not None
        if (of_host := _host_database(root, path)) is not None:
            databases.append(of_host)
    return max(databases, key=lambda each: each.version)  # the first of equals, so the packed one


def _host_database(root: Path, path: str) -> PciIdDatabase | None:
    """The database in that file; None if there is none that can be read. It is read again only when it changes."""
    try:
        file = (root / path).resolve()
        if not file.is_relative_to(root.resolve()):
            return None  # a link of a recorded tree must not lead out of it
        status = file.stat()
    except (OSError, RuntimeError):  # RuntimeError: links in a circle
        return None
    if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
        return None
    return _read(str(file), status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=8)
def _read(file: str, changed_ns: int, size: int) -> PciIdDatabase | None:
    try:
        with open(file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as content:
            return _parsed(content.read(size))
    except OSError:
        return None


@lru_cache(maxsize=1)
def _packed_database() -> PciIdDatabase:
    packed = resources.files("devalloc.inventory").joinpath("data", "pci.ids.gz").read_bytes()
    return _parsed(gzip.decompress(packed))


def _parsed(text: bytes) -> PciIdDatabase:
    version = _VERSION.search(text[:4096])
    return PciIdDatabase(b"\n" + text, tuple(map(int, version.groups())) if version else ())


@lru_cache(maxsize=1024)
def _name(database: PciIdDatabase, vendor: int, device: int) -> str:
    return _line(_section(database, vendor), b"\n\t%04x  " % device)


@lru_cache(maxsize=32)
def _section(database: PciIdDatabase, vendor: int) -> bytes:
    """A vendor's line and the indented lines below it."""
    text = database.text
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
    return section[start : end if end >= 0 else len(section)].decode("utf-8", "replace").strip()[:MAX_NAME]
