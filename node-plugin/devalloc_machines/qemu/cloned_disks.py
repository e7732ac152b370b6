"""Disks that a machine has of its own, made from images that it leaves as they are.

An overlay is an empty qcow2 image over its image; a copy is all of it. They lie in the plugin's state, are the user
root's, outlive runs of the machine and reboots of the host, and go with the machine.

No tool parses an image of a user here: only its header is read. An overlay is a header and three tables (QEMU's
docs/interop/qcow2.txt), written whole and then renamed. QEMU's command line names the image below it and its format;
the names in the overlay are for people.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import struct
import time
from pathlib import Path

from devalloc_machines.qemu import allowed_paths, machine_files
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_machines.qemu.spawn import open_checked
from devalloc_machines.qemu.spec import MIB, Disk, MachineSpec, memory_text
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied

CLUSTER = 1 << 16
"""Bytes of a cluster of an overlay."""
MAX_BYTES = 16 << 40
"""The largest image that can have an overlay: one cluster holds the table of reference counts of one so large."""
_MAX_NAME = 1023
"""Bytes of a backing file's name in a qcow2 image."""
_HEADER = struct.Struct(">4sIQIIQIIQQIIQQQQII")
_FORMAT_OF_BACKING = 0xE2792ACA
_ONE = struct.pack(">H", 1)
_SECTOR = 512
_CHUNK = 32 << 20
_FICLONE = 0x40049409


def clone_path(disk: Disk, folder: Path) -> Path:
    """Where the machine's own disk is. Another image, format or kind of clone is another disk."""
    name = hashlib.sha256(f"{disk.path}\0{disk.format}".encode()).hexdigest()[:16]
    return folder / f"{name}.{disk.clone}"


def folder_of(machine_id: str, config: MachineConfig) -> Path:
    """The folder of a machine's own disks, without links in its path."""
    return Path(os.path.realpath(config.disks(machine_id)))


def guest_bytes(disk: Disk, image: Path) -> int:
    """The size of the disk that the guest sees. Raises Denied (``DiskFormat``), OSError."""
    if disk.format == "raw":
        size = image.stat().st_size
        return -(-size // _SECTOR) * _SECTOR
    with image.open("rb") as file:
        header = file.read(32).ljust(32, b"\0")
    size = int.from_bytes(header[24:32], "big")
    if size % _SECTOR or size >= 1 << 63:
        raise Denied("DiskFormat", f"disk {disk.path}: a qcow2 image cannot have {size} bytes")
    return size


def most_bytes(disk: Disk, image: Path) -> int:
    """The bytes of the host's disk that the machine's own disk can take at most: all that its guest can write, and
    the tables of qcow2. Raises Denied, OSError."""
    size = guest_bytes(disk, image)
    if disk.clone == "copy" and disk.format == "raw":
        return size
    tables = size // 4096 + (1 << 20)
    return max(size + tables, image.stat().st_size if disk.clone == "copy" else 0)


def check(spec: MachineSpec, config: MachineConfig) -> None:
    """Whether the machine can have its own disks, before any is made.

    Raises Denied: ``DiskTooSmall`` if they can outgrow what the spec reserves; ``HostDiskFull`` (retryable) if
    what is still to be copied does not fit; ``ImageChanged``; as ``allowed_paths.disk_image``.
    """
    clones = _clones(spec, config)
    if not clones:
        return
    folder = folder_of(spec.id, config)
    most = sum(most_bytes(disk, image) for disk, image in clones)
    if most > spec.disk_bytes:
        raise Denied(
            "DiskTooSmall",
            f"machine {spec.key}: its own disks ({', '.join(disk.path for disk, _ in clones)}) can take up to {most} "
            f"bytes, but its spec.disk reserves {spec.disk_bytes}: set disk to {memory_text(_rounded(most))} or more",
        )
    missing = 0
    for disk, image in clones:
        if disk.clone == "overlay" and guest_bytes(disk, image) > MAX_BYTES:
            raise Denied("DiskFormat", f"disk {disk.path}: an image with overlays has at most {memory_text(MAX_BYTES)}")
        if len(os.fsencode(image)) > _MAX_NAME:
            raise Denied("PathTooLong", f"the path of disk {disk.path} has more than {_MAX_NAME} bytes")
        if clone_path(disk, folder).exists():
            _check_unchanged(spec, disk, image, folder)
        else:
            missing += CLUSTER * 8 if disk.clone == "overlay" else image.stat().st_blocks * 512
    config.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    room = os.statvfs(config.state)
    free = room.f_bavail * room.f_frsize + sum(_allocated(clone_path(disk, folder)) for disk, _ in clones)
    if missing > free:
        raise Denied(
            "HostDiskFull",
            f"machine {spec.key}: its own disks take {memory_text(_rounded(missing))} at once, but the file system "
            f"of {config.state} has {memory_text(free // MIB * MIB)} free; make room there",
        )


def _rounded(size: int) -> int:
    return -(-size // MIB) * MIB


def _allocated(path: Path) -> int:
    """Bytes that the unfinished file of a disk takes already."""
    try:
        return path.with_suffix(".new").stat().st_blocks * 512
    except OSError:
        return 0


def make(spec: MachineSpec, config: MachineConfig, deadline: Deadline) -> None:
    """Make the own disks that are not there yet, and remove those that the spec names no more. May be done again after
    any crash: a disk has its name once it is whole.

    Raises Denied: ``CopyUnfinished`` (retryable) when the deadline passes in a copy, which goes on next time;
    ``ImageChanged``, ``DiskInUse``. Raises OSError.
    """
    folder, clones = folder_of(spec.id, config), _clones(spec, config)
    if not clones and not folder.exists():
        return
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    names = {clone_path(disk, folder).stem for disk, _ in clones}
    wanted = {clone_path(disk, folder) for disk, _ in clones}
    for path in folder.iterdir():
        if path not in wanted and not (path.stem in names and path.suffix in (".new", ".json")):
            _remove_file(path)
    for disk, image in clones:
        path = clone_path(disk, folder)
        if path.exists():
            _check_unchanged(spec, disk, image, folder)
            continue
        source = open_checked(str(image), False)
        try:
            allowed_paths.check_image_free(source, disk.path, writable=False)
            _make_one(spec, disk, image, source, path, deadline)
        finally:
            os.close(source)


def _make_one(spec: MachineSpec, disk: Disk, image: Path, source: int, path: Path, deadline: Deadline) -> None:
    """The record of the image first, then the disk, then its name."""
    part, record = path.with_suffix(".new"), path.with_suffix(".json")
    state = _state_of(image)
    if _recorded(record) != state or _is_of_earlier_boot(part):  # what was copied before may not be this image's
        _remove_file(part)
        machine_files.write_synced(record.with_suffix(".part"), json.dumps(state).encode())
        record.with_suffix(".part").rename(record)
    if disk.clone == "overlay":
        machine_files.write_synced(part, empty_overlay(guest_bytes(disk, image), os.fsencode(image), disk.format))
    else:
        _copy(spec, disk, source, part, deadline)
        if _state_of(image) != state:
            _remove_file(part)
            raise Denied("DiskInUse", f"disk {disk.path} was changed while it was copied")
    _finish(part, path)


def _is_of_earlier_boot(part: Path) -> bool:
    """Whether an unfinished file may have a length from before a power cut, and not the content."""
    try:
        return part.stat().st_mtime < time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    except FileNotFoundError:
        return False


def _finish(part: Path, path: Path) -> None:
    part.rename(path)
    machine_files.sync_folder(path.parent)


def _copy(spec: MachineSpec, disk: Disk, source: int, part: Path, deadline: Deadline) -> None:
    """Copy what is still missing: at once if the file system can share blocks, else piece by piece; holes stay
    holes. The length of the unfinished file says how far it is."""
    target = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        size, done = os.fstat(source).st_size, os.fstat(target).st_size
        if not done and _shares_blocks(source, target):
            done = size
        while done < size:
            if deadline.passed:
                raise Denied(
                    "CopyUnfinished",
                    f"the copy of disk {disk.path} for machine {spec.key} has {memory_text(_rounded(done))} of "
                    f"{memory_text(_rounded(size))}, and continues at the next start",
                )
            done = _copy_chunk(source, target, done, size)
        os.fsync(target)
    finally:
        os.close(target)


def _shares_blocks(source: int, target: int) -> bool:
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True


def _copy_chunk(source: int, target: int, done: int, size: int) -> int:
    """Copy the next data, at most a chunk; how far it is then. Raises OSError."""
    try:
        begin = os.lseek(source, done, os.SEEK_DATA)
        end = os.lseek(source, begin, os.SEEK_HOLE)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        begin = end = size  # nothing but a hole is left
    end = min(end, begin + _CHUNK, size)
    at = begin
    while at < end:
        data = os.pread(source, min(1 << 20, end - at), at)
        if not data:
            raise OSError(errno.EIO, "the image became shorter while it was copied")
        at += os.pwrite(target, data, at)
    if os.fstat(target).st_size < end:
        os.ftruncate(target, end)
    return end


def empty_overlay(size: int, image: bytes, image_format: str) -> bytes:
    """A qcow2 image of ``size`` bytes in which nothing is written, over ``image``: the file up to its last table.

    Its clusters are the header, the table of reference counts, one block of them, and the L1 table.
    """
    size = -(-size // _SECTOR) * _SECTOR
    l1_entries = max(1, -(-size // (CLUSTER * (CLUSTER // 8))))
    l1_clusters = -(-l1_entries * 8 // CLUSTER)
    word = image_format.encode()
    extensions = struct.pack(">II", _FORMAT_OF_BACKING, len(word)) + word.ljust(-(-len(word) // 8) * 8, b"\0")
    extensions += bytes(8)
    name_at = _HEADER.size + len(extensions)
    header = _HEADER.pack(
        b"QFI\xfb", 3, name_at, len(image), CLUSTER.bit_length() - 1, size, 0, l1_entries, 3 * CLUSTER, CLUSTER,
        1, 0, 0, 0, 0, 0, 4, _HEADER.size,
    )  # fmt: skip
    first = (header + extensions + image).ljust(CLUSTER, b"\0")
    counts_table = struct.pack(">Q", 2 * CLUSTER).ljust(CLUSTER, b"\0")
    counts = (_ONE * (3 + l1_clusters)).ljust(CLUSTER, b"\0")
    return first + counts_table + counts + bytes(l1_clusters * CLUSTER)


def image_of(disk: Disk, spec: MachineSpec, config: MachineConfig) -> Path:
    """The file or block device of a disk's image; of a copy that is whole the copy itself, which needs no image any
    more. Raises Denied, as ``allowed_paths.disk_image``."""
    if disk.clone == "copy" and (own := clone_path(disk, folder_of(spec.id, config))).exists():
        return own
    return allowed_paths.disk_image(disk, config.folders, spec.namespace)


def _clones(spec: MachineSpec, config: MachineConfig) -> list[tuple[Disk, Path]]:
    """The disks that are cloned, with their images."""
    return [(disk, image_of(disk, spec, config)) for disk in spec.disks if disk.clone is not None]


def _state_of(image: Path) -> dict[str, object]:
    info = image.stat()
    return {"path": str(image), "size": info.st_size, "changed": info.st_mtime_ns}


def _recorded(record: Path) -> object:
    try:
        return json.loads(record.read_bytes())
    except (OSError, ValueError):
        return None


def _check_unchanged(spec: MachineSpec, disk: Disk, image: Path, folder: Path) -> None:
    """That an overlay lies over the image that it was made for. Raises Denied (``ImageChanged``)."""
    if disk.clone != "overlay":
        return
    before, now = _recorded(clone_path(disk, folder).with_suffix(".json")), _state_of(image)
    if before != now:
        raise Denied(
            "ImageChanged",
            f"disk {disk.path} was changed or replaced since machine {spec.key} got its overlay, which does not fit it "
            "any more; put the image back with its time of change, or delete the machine. Give a new image a new name",
        )


def _remove_file(path: Path) -> None:
    path.unlink(missing_ok=True)
