"""Which processes have device nodes open.

An open node is identified by its number: a container may have it under another name, also under that of another device.
Names count only where the number of a device is unknown, or the tree is a recording whose nodes are not there.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from devalloc.inventory.class_devices import DeviceNode, DeviceNumber
from devalloc.inventory.sysfs import Folder

COMM_LENGTH = 15
"""To which Linux cuts off the names of processes."""
_MOST_OF_NAME = 40


class Process(NamedTuple):
    """A process that has a node open."""

    name: str
    pid: int

    def __str__(self) -> str:
        return f"{self.name} {self.pid}"


def open_device_nodes(proc: Folder | None, nodes: Collection[DeviceNode]) -> dict[str, tuple[Process, ...]]:
    """Which of the nodes processes have open, and who: by the path of the node, in the order of their numbers.

    Processes that this one may not look into do not count; there is no telling what they hold.
    """
    users: dict[str, list[Process]] = {}
    if proc is None or not nodes:
        return {}
    wanted = _Wanted.of(nodes, is_recording=not _is_mounted(proc))
    for pid in sorted(int(name) for name in proc.names() if name.isdecimal()):
        paths = set(_open_paths(f"{proc.path}/{pid}/fd", wanted))
        if paths:
            process = Process(_name(proc.folder(str(pid))), pid)
            for path in paths:
                users.setdefault(path, []).append(process)
    return {path: tuple(processes) for path, processes in users.items()}


def _is_mounted(proc: Folder) -> bool:
    """Whether the kernel shows its processes there; a recording has files on the disk that it lies on."""
    try:
        return os.stat(proc.path).st_dev != os.stat(f"{proc.path}/..").st_dev
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The nodes that are looked for."""

    by_number: Mapping[DeviceNumber, str]
    by_name: Mapping[bytes, str]
    by_name_too: Mapping[bytes, str]
    """Those whose number is unknown; of a recording all: its names may be those of other devices here."""

    @classmethod
    def of(cls, nodes: Collection[DeviceNode], *, is_recording: bool) -> _Wanted:
        return cls(
            {node.number: node.path for node in nodes if node.number is not None},
            {os.fsencode(node.path): node.path for node in nodes},
            {os.fsencode(node.path): node.path for node in nodes if node.number is None or is_recording},
        )


def _open_paths(folder: str, wanted: _Wanted) -> Iterator[str]:
    """Which of the nodes the descriptors in a process's ``fd`` folder are of.

    A host has thousands of descriptors, and taking a device waits for all of them: hence bytes, names from the folder
    on, and one call for each.
    """
    place, answer = os.fsencode(folder), ctypes.create_string_buffer(_SIZE_OF_STATX)
    try:
        descriptors = os.listdir(place)
        opened = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) if descriptors else -1
    except OSError:  # the process has ended, or is another user's
        return
    try:
        for descriptor in descriptors:
            try:
                number = _number(descriptor, opened, answer)
                names = wanted.by_name_too if number is not None else {}
            except OSError:  # closed since, or the node is not there: a recording
                number, names = None, wanted.by_name
            if number is not None and number in wanted.by_number:
                yield wanted.by_number[number]
            elif names:
                try:
                    target = os.readlink(descriptor, dir_fd=opened)
                except OSError:
                    continue
                if target in names:
                    yield names[target]
    finally:
        if opened >= 0:
            os.close(opened)


_STATX = getattr(ctypes.CDLL(None), "statx", None)
_AT_STATX_DONT_SYNC, _STATX_TYPE = 0x4000, 0x1
_RESULT = struct.Struct("=28xH98xII")
"""Of ``struct statx``: stx_mode, stx_rdev_major, stx_rdev_minor."""
_SIZE_OF_STATX = 256
_KIND = 0o170000
"""S_IFMT: the part of a mode that says what a file is."""


def _number(name: bytes, folder: int, answer: ctypes.Array[ctypes.c_char]) -> DeviceNumber | None:
    """The number of the device that a descriptor is of; None for all else. ``answer``: room for that of the kernel.
    Raises OSError.

    The server of a network file system that has such a file is not asked: it may never answer.
    """
    if _STATX is not None and not _STATX(folder, name, _AT_STATX_DONT_SYNC, _STATX_TYPE, answer):
        mode, major, minor = _RESULT.unpack_from(answer)
    else:  # not there, or the kernel or a filter of a container does not know the call
        status = os.stat(name, dir_fd=folder)
        mode, major, minor = status.st_mode, os.major(status.st_rdev), os.minor(status.st_rdev)
    kind = mode & _KIND
    return DeviceNumber(kind == stat.S_IFBLK, major, minor) if kind in (stat.S_IFCHR, stat.S_IFBLK) else None


def _name(process: Folder | None) -> str:
    """The name of a process, in full where its command line begins with it, or its program has it."""
    name = (process.text("comm") if process is not None else None) or "process"
    if process is None or len(name) < COMM_LENGTH:
        return name
    program = (process.raw("cmdline") or b"").split(b"\0")[0].rpartition(b"/")[2]
    for full in (program.decode("utf-8", "replace"), process.link("exe", may_be_denied=True) or ""):
        if full.startswith(name) and len(full) <= _MOST_OF_NAME and full.isprintable():
            return full
    return name
