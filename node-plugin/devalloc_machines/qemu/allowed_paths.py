"""What machines of a namespace may name of the host: option ROMs, kernels, images of disks, TAP interfaces.

Each is proven to be what it is taken for, and images not to be in use, before anything is started with it.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from devalloc.inventory.storage_use import is_used_by_host
from devalloc_machines.qemu.settings import AllowedFolder
from devalloc_machines.qemu.spec import Disk
from devalloc_node.errors import Denied

_QCOW2 = b"QFI\xfb"
_MULTI_QUEUE = 0x100
"""Of tun_flags (IFF_MULTI_QUEUE)."""
_EXTERNAL_DATA = 1 << 2
_FLOCK = struct.Struct("hhqqi4x")
"""As fcntl(2) has it where pointers have 64 bits."""
_READS, _WRITES, _READS_ALONE, _NO_OTHER_WRITES = 100, 101, 200, 201
"""Bytes of an image that QEMU locks: it reads, it writes, bears no other reader, bears no other writer."""


def resolve_allowed(
    path: str,
    folders: Sequence[AllowedFolder],
    namespace: str,
    what: str,
    *,
    writes: bool = False,
    option: str = "--image-folder",
) -> Path:
    """``path`` without its links, proven to lie where machines of the namespace may have it; what it is is not looked
    at. ``writes``: it is to be changed.

    Raises Denied: ``PathNotAllowed``, also for what does not exist outside of that; ``PathMissing``.
    """
    if not path.startswith("/") or "\0" in path or "\n" in path or ".." in path.split("/"):
        raise Denied("PathNotAllowed", f"{what} {path!r} must be an absolute path without '..'")
    missing: OSError | None = None
    try:
        real = Path(os.path.realpath(path, strict=True))
    except OSError as error:
        # Where it would be: one that may never be named is not to be waited for, nor told to be absent.
        missing, real = error, Path(os.path.realpath(path))
    _check_owner(path, real, folders, namespace, what, writes, option)
    if missing is not None:
        raise Denied("PathMissing", f"{what} {path}: {missing.strerror}")
    return real


def _check_owner(
    path: str, real: Path, folders: Sequence[AllowedFolder], namespace: str, what: str, writes: bool, option: str
) -> None:
    """That a namespace may use a path that has no links any more. Of folders that lie in each other the innermost
    counts: a shared one opens no folder in it that belongs to namespaces. Raises Denied."""
    around = [(folder, Path(os.path.realpath(folder.path))) for folder in folders]
    around = [(folder, base) for folder, base in around if real.is_relative_to(base)]
    where = f", which is {real}," if str(real) != path else ""
    if not around:
        allowed = ", ".join(str(folder.path) for folder in folders) or "none"
        raise Denied(
            "PathNotAllowed",
            f"{what} {path}{where} is not below a folder that machines of this node may use ({allowed}; set them "
            f"with {option} of `devalloc node` and `devalloc up`)",
        )
    depth = max(len(base.parts) for _, base in around)
    inner = [folder for folder, base in around if len(base.parts) == depth]
    if any(_may_use(real, folder, namespace, writes) for folder in inner):
        return
    own = next((folder.path / namespace for folder in (*inner, *folders) if folder.sharing == "own"), None)
    put = "" if own is None else f"put it below {own}, or "
    if any(folder.sharing == "shared" for folder in inner):
        raise Denied(
            "PathNotAllowed",
            f"{what} {path}{where} is in a folder that all namespaces share, where machines must not write: {put}set "
            "readOnly: true",
        )
    shared = "" if option == "--qmp-folder" else f"{option} {inner[0].path}:shared lets all namespaces read it, "
    raise Denied(
        "PathNotAllowed",
        f"{what} {path}{where} does not belong to namespace {namespace}, whose machines may use what is below "
        f"{inner[0].path / namespace}: {put}ask the admin of this node ({shared}{option} {inner[0].path}:any lets them "
        "use it)",
    )


def _may_use(real: Path, folder: AllowedFolder, namespace: str, writes: bool) -> bool:
    if folder.sharing == "any" or (folder.sharing == "shared" and not writes):
        return True
    if folder.sharing == "shared" or namespace in ("", ".", "..") or "/" in namespace:
        return False
    own = Path(os.path.realpath(folder.path)) / namespace
    return real.is_relative_to(os.path.realpath(own)) and real != own


MAX_ROM_BYTES = 16 << 20
"""More no BAR of an option ROM holds."""
_ROM_SIGNATURE = b"\x55\xaa"


def rom_file(path: str, folders: Sequence[Path]) -> Path:
    """An option ROM without links in its path, which every user of the host may read: each QEMU has one of its own.

    Raises Denied: ``PathNotAllowed``, ``PathMissing``, ``RomInvalid``.
    """
    allowed = [AllowedFolder(folder, "shared") for folder in folders]
    real = resolve_allowed(path, allowed, "", "option ROM", option="--rom-folder")
    try:
        descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            info = os.fstat(descriptor)
            head = file.read(len(_ROM_SIGNATURE)) if stat.S_ISREG(info.st_mode) else b""
    except OSError as error:
        raise Denied("RomInvalid", f"option ROM {path} cannot be read: {error.strerror}") from error
    if head != _ROM_SIGNATURE or info.st_size > MAX_ROM_BYTES:
        raise Denied("RomInvalid", f"{path} is not an option ROM of at most {MAX_ROM_BYTES >> 20} MiB (55 AA …)")
    if not info.st_mode & stat.S_IROTH:
        raise Denied("RomInvalid", f"option ROM {path} is not readable for all users: run `chmod o+r {path}`")
    return real


def boot_image(path: str, folders: Sequence[AllowedFolder], namespace: str, what: str) -> Path:
    """A file that is read whole: a kernel or an initrd. Raises Denied, also ``PathNotFile``."""
    real = resolve_allowed(path, folders, namespace, what)
    if not stat.S_ISREG(real.stat().st_mode):
        raise Denied("PathNotFile", f"{what} {path} is not a file")
    return real


def disk_image(disk: Disk, folders: Sequence[AllowedFolder], namespace: str) -> Path:
    """The file or block device of a disk.

    Raises Denied: as ``boot_image``; ``DeviceReserved`` for a block device that the host uses in whole or in part,
    ``InUseUnknown`` if that cannot be told; ``DiskFormat`` for a format that is not raw or qcow2, or that the file
    does not have; ``DiskNamesOthers`` for a qcow2 whose header names another file, which was not checked.
    """
    if disk.format not in ("raw", "qcow2"):
        raise Denied("DiskFormat", f"disk {disk.path}: its format must be raw or qcow2, not {disk.format!r}")
    real = resolve_allowed(disk.path, folders, namespace, "disk", writes=not (disk.read_only or disk.clone))
    mode = real.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISBLK(mode)):
        raise Denied("PathNotFile", f"disk {disk.path} is neither a file nor a block device")
    if disk.clone and not stat.S_ISREG(mode):
        raise Denied("PathNotFile", f"disk {disk.path} is not a file: a block device cannot be cloned")
    if stat.S_ISBLK(mode):
        _refuse_host_disk(disk.path, real)
    if disk.format == "qcow2":
        _check_qcow2(disk.path, real)
    return real


def _refuse_host_disk(path: str, real: Path) -> None:
    try:
        is_kept = is_used_by_host(real)
    except OSError as error:
        raise Denied("InUseUnknown", f"cannot check whether the host needs disk {path}: {error.strerror}") from None
    if is_kept:
        raise Denied(
            "DeviceReserved",
            f"disk {path} is reserved for the host: it or a part of it is mounted, is swap, or is in a volume",
        )


class ImageInUse(Denied):
    """Another QEMU has an image open that does not get along with this one."""

    def __init__(self, path: str, by: str = "another machine, or by a tool of QEMU") -> None:
        super().__init__("DiskInUse", f"disk {path} is in use by {by}")
        self.path = path


def check_image_free(fd: int, path: str, *, writable: bool) -> None:
    """That no other QEMU has an image open that does not get along with this one. Raises ImageInUse.

    QEMU would refuse too, and tells it by the same locks; but some versions keep an image open whose disk they refused.
    """
    for byte in (_READS_ALONE, _WRITES, *([_NO_OTHER_WRITES] if writable else [])):
        query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        try:
            kind, *_ = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, query))
        except OSError:  # the file system has no locks, and QEMU goes without them
            return
        if kind != fcntl.F_UNLCK:
            raise ImageInUse(path)


def check_image_held(fd: int, path: str, *, writable: bool) -> None:
    """That a QEMU has an image open, and writes to it if it may: the proof that a machine of another node has the
    same image under the same path. Raises Denied (``DiskNotShared``).
    """
    query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _WRITES if writable else _READS, 1, 0)
    try:
        kind, *_ = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, query))
    except OSError as error:
        why = f"its file system has no locks ({error.strerror})"
    else:
        if kind != fcntl.F_UNLCK:
            return
        why = "the lock of the other node's QEMU is not seen here"
    raise Denied(
        "DiskNotShared",
        f"disk {path} is not proven to be the same file on both nodes, because {why}; put it on a file system with "
        "locks that both nodes share, under the same path",
    )


def checked_tap(interface: str, patterns: Sequence[str], namespace: str) -> str:
    """A TAP interface that is there and that machines of the namespace may use.

    Raises Denied (``TapNotAllowed``, ``TapMissing``).
    """
    if not may_use_tap(interface, patterns, namespace):
        raise Denied(
            "TapNotAllowed",
            f"TAP {interface} does not belong to namespace {namespace}, whose machines may use those called "
            f"{namespace}.NAME: rename it, or ask the admin of this node (--tap {namespace}:{interface} lets them use "
            "it)",
        )
    if "/" in interface or not Path(f"/sys/class/net/{interface}/tun_flags").exists():
        raise Denied("TapMissing", f"no TAP interface {interface!r} on this host")
    return interface


def may_use_tap(interface: str, patterns: Sequence[str], namespace: str) -> bool:
    """Whether machines of a namespace may use an interface of that name."""
    return _is_own_tap(interface, namespace) or any(_names(each, interface, namespace) for each in patterns)


def has_queues(interface: str) -> bool:
    """Whether a TAP interface can have several queues, as who made it decides."""
    try:
        flags = int(Path(f"/sys/class/net/{interface}/tun_flags").read_text(), 16)
    except (OSError, ValueError):
        return False
    return bool(flags & _MULTI_QUEUE)


def _is_own_tap(interface: str, namespace: str) -> bool:
    """A namespace has no dot in its name, so that no other one has this interface too."""
    owner, dot, _ = interface.partition(".")
    return bool(dot and owner) and owner == namespace


def _names(pattern: str, interface: str, namespace: str) -> bool:
    """Whether a pattern of --tap lets machines of a namespace use an interface."""
    only, colon, names = pattern.rpartition(":")
    return (not colon or only == namespace) and fnmatchcase(interface, names)


def _check_qcow2(path: str, real: Path) -> None:
    with real.open("rb") as file:
        header = file.read(80).ljust(80, b"\0")
    if not header.startswith(_QCOW2):
        raise Denied("DiskFormat", f"disk {path} is not qcow2, although its spec says so")
    version, backing = struct.unpack_from(">IQ", header, 4)
    (incompatible,) = struct.unpack_from(">Q", header, 72)
    if backing or (version >= 3 and incompatible & _EXTERNAL_DATA):
        raise Denied(
            "DiskNamesOthers",
            f"disk {path} names another file as its backing or data file, which could be any file of this host; make "
            "a standalone image (qemu-img convert)",
        )
