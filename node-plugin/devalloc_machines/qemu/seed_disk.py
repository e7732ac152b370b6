"""The seed disk of a machine: what cloud-init in its guest reads at the first start (data source NoCloud).

It is a floppy's worth of FAT12 with the label CIDATA and the files ``user-data``, ``meta-data`` and ``network-config``.
It is made anew at each start, and is the same bytes for the same spec on each node.
"""

from __future__ import annotations

import json
import struct

from devalloc.api.machine_start import MachineCloudInit
from devalloc_machines.qemu import machine_files
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_machines.qemu.spec import MachineSpec
from devalloc_node.errors import Failed

LABEL = b"CIDATA     "
_SECTOR, _SECTORS, _FAT_SECTORS, _ROOT_ENTRIES = 512, 2880, 9, 224
_ROOT_BEGIN = 1 + 2 * _FAT_SECTORS
_DATA_BEGIN = _ROOT_BEGIN + _ROOT_ENTRIES * 32 // _SECTOR
_LAST = 0xFFF
"""In the table: the last cluster of a file."""
_LABEL_ENTRY, _FILE_ENTRY, _LONG_NAME = 0x08, 0x20, 0x0F
_JANUARY_1980 = 0x21
_SHORT_NAMES = {"user-data": b"USER-D~1   ", "meta-data": b"META-D~1   ", "network-config": b"NETWOR~1   "}


def make(spec: MachineSpec, config: MachineConfig) -> None:
    """Write the seed disk of a machine that is about to start; nothing to do for one without. Raises Failed."""
    if spec.cloud_init is None:
        return
    path = config.seed(spec.id)
    new = path.with_name(f"{path.name}.new")
    try:
        machine_files.write_synced(new, image(files_of(spec, spec.cloud_init)))
        new.replace(path)
    except OSError as error:
        raise Failed(
            "MachineDidNotStart", f"cannot write the seed disk of machine {spec.key}: {error.strerror}"
        ) from error


def files_of(spec: MachineSpec, cloud_init: MachineCloudInit) -> dict[str, bytes]:
    """What cloud-init reads, by name. The instance is the object: its guest is set up once, however often it starts."""
    meta = {"instance-id": spec.owner, "local-hostname": spec.name}
    files = {"user-data": cloud_init.user_data, "meta-data": json.dumps(meta)}  # JSON is YAML
    if cloud_init.network_data:
        files["network-config"] = cloud_init.network_data
    return {name: text.encode() for name, text in files.items()}


def image(files: dict[str, bytes]) -> bytes:
    """A file system with these files. They fit: the API limits their sizes."""
    table = bytearray(_FAT_SECTORS * _SECTOR)
    root = bytearray(_entry(LABEL, _LABEL_ENTRY))
    data = bytearray()
    _set(table, 0, 0xFF0)
    _set(table, 1, _LAST)
    cluster = 2
    for name, content in files.items():
        count = -(-len(content) // _SECTOR)
        for number in range(count):
            _set(table, cluster + number, _LAST if number == count - 1 else cluster + number + 1)
        root += _long_name(name, _SHORT_NAMES[name])
        root += _entry(_SHORT_NAMES[name], _FILE_ENTRY, cluster if count else 0, len(content))
        data += content.ljust(count * _SECTOR, b"\0")
        cluster += count
    disk = bytearray(_SECTORS * _SECTOR)
    tables = ((1, table), (1 + _FAT_SECTORS, table))
    for begin, part in ((0, _boot_sector()), *tables, (_ROOT_BEGIN, root), (_DATA_BEGIN, data)):
        disk[begin * _SECTOR : begin * _SECTOR + len(part)] = part
    return bytes(disk)


def _boot_sector() -> bytes:
    head = b"\xeb\x3c\x90" + b"devalloc"
    geometry = struct.pack("<HBHBHHBHHHII", _SECTOR, 1, 1, 2, _ROOT_ENTRIES, _SECTORS, 0xF0, _FAT_SECTORS, 18, 2, 0, 0)
    extended = struct.pack("<BBBI11s8s", 0, 0, 0x29, 0x1DA7A, LABEL, b"FAT12   ")
    return (head + geometry + extended).ljust(_SECTOR - 2, b"\0") + b"\x55\xaa"


def _set(table: bytearray, cluster: int, value: int) -> None:
    """Two entries of 12 bits lie in three bytes."""
    at = cluster * 3 // 2
    if cluster % 2:
        table[at] = (table[at] & 0x0F) | (value & 0x0F) << 4
        table[at + 1] = value >> 4
    else:
        table[at] = value & 0xFF
        table[at + 1] = (table[at + 1] & 0xF0) | value >> 8


def _entry(short: bytes, attributes: int, cluster: int = 0, size: int = 0) -> bytes:
    day = _JANUARY_1980
    return struct.pack("<11sBBBHHHHHHHI", short, attributes, 0, 0, 0, day, day, 0, 0, day, cluster, size)


def _long_name(name: str, short: bytes) -> bytes:
    """The entries of 13 characters each that give a file its real name, the last part first."""
    checksum = 0
    for byte in short:
        checksum = ((checksum & 1) << 7 | checksum >> 1) + byte & 0xFF
    text = name.encode("utf-16-le")
    parts = [text[i : i + 26] for i in range(0, len(text), 26)]
    entries = []
    for number, part in enumerate(parts, 1):
        if len(part) < 26:
            part = (part + b"\0\0").ljust(26, b"\xff")
        order = number | (0x40 if number == len(parts) else 0)
        words = (order, part[:10], _LONG_NAME, 0, checksum, part[10:22], 0, part[22:])
        entries.append(struct.pack("<B10sBBB12sH4s", *words))
    return b"".join(reversed(entries))
