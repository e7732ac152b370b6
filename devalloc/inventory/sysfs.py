"""The one way this package reads a host: files below a root folder, never outside it.

A ``Folder`` is a place that is proven to lie inside the root: links are followed and the result is checked once, then
the files in it are opened without following a link. Names are single path components. Whatever cannot be read is a
value (None or nothing) and, unless the file simply is not there, a ``ReadFault`` of the tree, so that one bad file
never costs more than itself.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
import stat
import struct
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from devalloc.device_kinds import DeviceKind

MAX_BYTES = 8 << 20
"""Most bytes read of one file; the largest that matter here (mountinfo of a host with hundreds of containers, 1 KiB
for each of their layered file systems) stay below."""

_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_READ_CHUNK = 1 << 16
"""Most bytes of one read; files of /proc/sys refuse one of 4 MiB."""
_PAGE = 4096
"""Most that sysfs gives at a time."""

# What the kernel answers for an attribute that has no value at the moment, or whose device has just gone.
_ABSENT = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO, errno.EINVAL, errno.EOPNOTSUPP, errno.ESRCH}
)
_SIOCGIFADDR = 0x8915
_NUMBER = re.compile(rb"-?[0-9]{1,18}|0x[0-9a-fA-F]{1,15}")
_BLANKS = b" \t\r\n\0"


@dataclass(frozen=True, slots=True)
class ReadFault:
    """A file or folder that is there and cannot be used: its path below the root, and why."""

    path: str
    reason: str


@dataclass(slots=True)
class Tree:
    """A host's files below ``root``: the folder that holds ``sys``, or that ``sys`` folder itself."""

    root: Path
    faults: list[ReadFault] = field(default_factory=list)
    fault_count: int = field(init=False, default=0)
    """How often something could not be used, also what ``faults`` has already. If it is the same after a look as
    before, the look has seen all that is there."""
    kinds: tuple[DeviceKind, ...] = ()
    """Kinds of devices that the admin adds (``read_added_kinds``)."""
    sys: Folder | None = field(init=False, default=None)
    """None when there is no sysfs below the root."""
    proc: Folder | None = field(init=False, default=None)
    """None in a recording that holds no process files."""
    _top: str = field(init=False, default="")
    _seen: set[ReadFault] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        top = _real_path(os.fspath(self.root))
        if not os.path.isdir(f"{top}/sys") and any(
            os.path.isdir(f"{top}/{name}") for name in ("bus", "devices", "class")
        ):
            above, _, name = top.rpartition("/")
            top = (above or "/") if name == "sys" else top
            self.sys = Folder(self, f"{top}/sys") if os.path.isdir(f"{top}/sys") else Folder(self, top)
        self._top = top
        holder = Folder(self, self._top)
        self.sys = self.sys or holder.folder("sys")
        self.proc = holder.folder("proc")

    def again(self) -> Tree:
        """The same tree for another look, with faults of its own. Where it lies is not looked for once more, unless
        there was nothing."""
        if self.sys is None or self.proc is None:
            return Tree(self.root, kinds=self.kinds)
        other = object.__new__(Tree)
        other.root, other._top, other.faults, other._seen = self.root, self._top, [], set()
        other.kinds, other.fault_count = self.kinds, 0
        other.sys, other.proc = Folder(other, self.sys.path), Folder(other, self.proc.path)
        return other

    @property
    def is_host(self) -> bool:
        """True when the root is this machine's own."""
        return self._top == "/"

    def folder(self, *names: str) -> Folder | None:
        """A folder of the host outside sys and proc, such as ``lib/modules``; None when absent."""
        return Folder(self, self._top).folder(*names)

    def holds(self, path: str) -> bool:
        """True when a path without links lies inside the root."""
        return path == self._top or path.startswith(self._top.rstrip("/") + "/")

    def fault(self, path: str, reason: str) -> None:
        """Note what cannot be used."""
        self.fault_count += 1
        shown = path[len(self._top) :] if self.holds(path) and self._top != "/" else path
        entry = ReadFault(shown, reason)
        if entry not in self._seen:
            self._seen.add(entry)
            self.faults.append(entry)


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder inside the root, by its path without links."""

    tree: Tree
    path: str

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def folder(self, *names: str) -> Folder | None:
        """The folder that a chain of names leads to, links followed; None when absent or outside the root."""
        path = "/".join((self.path.rstrip("/"), *map(_component, names)))
        try:
            # Most that is asked for is not there, or no link.
            if len(names) == 1 and stat.S_ISDIR(os.lstat(path).st_mode):
                return Folder(self.tree, path)
            whole = _real_folder(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:
            whole = None
        if whole is not None and self.tree.holds(whole):
            return Folder(self.tree, whole)
        return self._followed(names)

    def _followed(self, names: Collection[str]) -> Folder | None:
        """As ``folder``, one link after the other: to tell what is the matter with them."""
        path = self.path
        for name in names:
            path = f"{path.rstrip('/')}/{name}"
            try:
                mode = os.lstat(path).st_mode
                if stat.S_ISLNK(mode):
                    path = os.path.realpath(path)
                    mode = os.lstat(path).st_mode
            except OSError as error:
                self._report(path, error)
                return None
            if not self.tree.holds(path):
                self.tree.fault(f"{self.path}/{name}", "leads out of the root folder")
                return None
            if not stat.S_ISDIR(mode):
                return None
        return Folder(self.tree, path)

    def names(self, *names: str) -> list[str]:
        """What is in this folder, or in the one that the names lead to: sorted, empty when it cannot be listed."""
        place = self.folder(*names) if names else self
        if place is None:
            return []
        try:
            return sorted(os.listdir(place.path))
        except OSError as error:
            self._report(place.path, error)
            return []

    def has(self, name: str) -> bool:
        """Whether there is something of that name in this folder."""
        return os.path.lexists(f"{self.path}/{_component(name)}")

    def listing(self) -> tuple[list[str], list[str]]:
        """The names of all in this folder, and those of the folders among them (links left out), both sorted."""
        names: list[str] = []
        folders: list[str] = []
        try:
            with os.scandir(self.path) as scanned:
                entries = [*scanned]
            names = sorted([entry.name for entry in entries])
            folders = sorted([entry.name for entry in entries if entry.is_dir(follow_symlinks=False)])
        except OSError as error:
            self._report(self.path, error)
        return names, folders

    def link(self, name: str, *, may_be_denied: bool = False) -> str | None:
        """The last component of where a link points, whether or not that exists (such as the name of a driver).

        ``may_be_denied``: it is no fault that this process may not read it."""
        path = f"{self.path}/{_component(name)}"
        try:
            target = os.readlink(path)
        except OSError as error:
            if not (may_be_denied and isinstance(error, PermissionError)):
                self._report(path, error)
            return None
        return target.rstrip("/").rpartition("/")[2] or None

    def raw(self, name: str, limit: int = MAX_BYTES) -> bytes | None:
        """The bytes of a file in this folder; longer than ``limit`` is a fault."""
        path = f"{self.path}/{_component(name)}"
        try:
            descriptor = self._opened(path)
            if descriptor is None:
                return None
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    self.tree.fault(path, "is no file")
                    return None
                content = os.read(descriptor, min(limit + 1, _READ_CHUNK))
                # Files of /proc have no size and come in parts; what has one and comes short of a page has come whole.
                if not status.st_size or (len(content) >= _PAGE and len(content) != status.st_size):
                    content = _read_rest(descriptor, content, limit)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._report(path, error)
            return None
        if len(content) > limit:
            self.tree.fault(path, f"is longer than {limit} bytes")
            return None
        return content

    def head(self, name: str, length: int) -> bytes | None:
        """The first bytes of a file in this folder; None when absent or unreadable."""
        path = f"{self.path}/{_component(name)}"
        try:
            descriptor = self._opened(path)
            if descriptor is None:
                return None
            try:
                return os.read(descriptor, length)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._report(path, error)
            return None

    def _opened(self, path: str) -> int | None:
        # Not blocking and not through a link: whatever stands in for the file cannot stall or divert the reader.
        try:
            return os.open(path, _READING)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
        real = os.path.realpath(path)  # rare: /proc/mounts is a link
        if not self.tree.holds(real):
            self.tree.fault(path, "leads out of the root folder")
            return None
        return os.open(real, _READING)

    def text(self, name: str) -> str | None:
        """The text of a file without blanks around it; None when absent, unreadable or empty."""
        content = self.raw(name)
        return content.strip(_BLANKS).decode("utf-8", "replace") or None if content is not None else None

    def number(self, name: str) -> int | None:
        """The whole number in a file, decimal or 0x…, within 64 bits with sign; None when absent or unreadable."""
        content = self.raw(name)
        digits = content.strip(_BLANKS) if content is not None else None
        if not digits:
            return None
        if _NUMBER.fullmatch(digits) is None:
            self.tree.fault(f"{self.path}/{name}", f"is not a number: {digits[:40].decode('utf-8', 'replace')!r}")
            return None
        return int(digits, 16 if digits.startswith(b"0x") else 10)

    def _report(self, path: str, error: OSError) -> None:
        if error.errno not in _ABSENT:
            self.tree.fault(path, f"cannot be read: {error.strerror or error}")


def _read_rest(descriptor: int, begun: bytes, limit: int) -> bytes:
    parts = bytearray(begun)
    while len(parts) <= limit and (part := os.read(descriptor, min(limit + 1 - len(parts), _READ_CHUNK))):
        parts += part
    return bytes(parts)


def _real_path(path: str) -> str:
    """The path without links. The kernel knows it at once; ``realpath`` asks it for each component."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return os.path.realpath(path)
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return os.path.realpath(path)
    finally:
        os.close(descriptor)


def _real_folder(path: str) -> str | None:
    """As ``_real_path``, of a folder; None where it cannot be told so quickly. Raises OSError where it is none."""
    descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return None
    finally:
        os.close(descriptor)


@lru_cache(maxsize=4096)
def _component(name: str) -> str:
    if not name or name in (".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"is not a file name: {name!r}")
    return name


def ipv4_interfaces(tree: Tree) -> set[str]:
    """Interfaces with an IPv4 address, asked of the kernel; nothing for a tree that is not this host's own."""
    if not tree.is_host:
        return set()
    names = set()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # EADDRNOTAVAIL: no address
                fcntl.ioctl(control, _SIOCGIFADDR, struct.pack("256s", os.fsencode(name)[:15]))
                names.add(name)
    return names
