"""The files of machines: where they are, who may write them, and what QEMU and the guest have written there.

A machine's own files are the lock that QEMU holds while it runs, and the logs of QEMU and the guest: these are read
and emptied with care.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from devalloc.file_lock import FileLock
from devalloc.inventory.capacity.cpus import CpuTopology, read_cpus
from devalloc.inventory.pci import BarSizes
from devalloc.inventory.storage_use import is_used_by_host
from devalloc.inventory.sysfs import Tree
from devalloc_machines.qemu.process import Process, process, with_removed_file
from devalloc_machines.qemu.spec import Disk
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, Unknown

MAX_SOCKET_PATH = 107
"""Bytes of a path that a socket can be bound to."""


USERS = range(2_146_435_072, 2_146_436_072)
"""Far above those of people, of directories and of what containers are given (which begin at 65536)."""
FolderSharing = Literal["own", "shared", "any"]


@dataclass(frozen=True, slots=True)
class AllowedFolder:
    """A folder of the host in which machines may have files or sockets."""

    path: Path
    sharing: FolderSharing = "own"
    """``own``: each namespace has the folder below it that is called like the namespace, and nothing else. ``shared``:
    all namespaces may read all of it. ``any``: all namespaces may use all of it."""


def host_cpus() -> CpuTopology:
    """The CPUs of this host that this process, and so its machines, may use."""
    return read_cpus(Tree(Path("/")))


@dataclass(frozen=True, slots=True)
class FirmwareFiles:
    """UEFI firmware, as plain images of a flash chip."""

    code: Path
    variables: Path
    """The template: each machine has a copy of its own."""


@dataclass(frozen=True, slots=True)
class MachineConfig:
    state: Path = Path("/var/lib/devalloc/node/machines")
    """Locks and verdicts; only the plugin's user reads and writes it."""
    run: Path = Path("/run/devalloc/machines")
    """A folder for each machine with its sockets and logs."""
    binary: str = "qemu-system-x86_64"
    folders: tuple[AllowedFolder, ...] = ()
    """Where kernels and disks may lie (T13). Empty: no machine can be started."""
    socket_folders: tuple[AllowedFolder, ...] = ()
    """Where the QMP sockets of machines to adopt may lie. Empty: none can be adopted."""
    taps: tuple[str, ...] = ()
    """Which TAP interfaces machines may use beside those that are named for their namespace: patterns such as
    ``vm*``, or ``NAMESPACE:PATTERN`` for one namespace alone."""
    user_net: bool = False
    """Network cards with backend user reach the host, its loopback too, and what the host reaches."""
    lent: Path | None = None
    """Where those of machines lie that were given away by this node and may be adopted by it, too. There each is of a
    user of its own. None: there are none."""
    accel: Literal["auto", "kvm", "tcg"] = "auto"
    uefi: FirmwareFiles | None = None
    """Firmware of machines with UEFI; None: what the host's packages say."""
    secure_boot: FirmwareFiles | None = None
    """The same of machines with Secure Boot: its template has keys."""
    swtpm: str = "swtpm"
    """The program that is the TPM of a machine."""
    users: range | None = field(default=USERS)
    """User ids, one for each machine, if the plugin is root. None: QEMU runs as the plugin's own user."""
    visible: tuple[Path, ...] = ()
    """Folders that QEMU sees, as they are, beside what it needs by its nature."""
    rom_folders: tuple[Path, ...] = ()
    """Where the option ROMs of passed-through devices may lie, which QEMU sees too. Empty: none can be used."""
    cgroups: Path = Path("/sys/fs/cgroup")
    systemd: bool | None = None
    """Whether machines are services of systemd; None: if systemd runs this host."""
    start_seconds: float = 20.0
    """How long QEMU may take until its monitor answers."""
    command_seconds: float = 10.0
    """How long one command to QEMU may take, but for those that may take as long as their caller waits."""
    memlock_slack: int = 1 << 30
    """Bytes that a machine may lock beyond its memory: VFIO maps the registers of devices too."""
    memory_slack: int = 1 << 30
    """Bytes that QEMU itself may take, beyond its guest's memory and what grows with it and with its devices."""
    log_bytes: int = 8 << 20
    """A guest's log is emptied when it is longer."""

    devices: Callable[[], BarSizes] = BarSizes
    """The most memory of its own that any device of this host has, asked for when a machine is started: its root ports
    reserve addresses for as much."""
    topology: Callable[[], CpuTopology] = host_cpus
    """The CPUs of this host and their NUMA nodes, asked for when some are chosen: they come and go."""
    dry_run: bool = False
    """Machines are looked at, and each change of one is refused."""

    def folder(self, machine_id: str) -> Path:
        """What lies in it: ``qmp``, ``events``, ``console`` and ``agent`` (sockets), ``console.log``, ``qemu.log``,
        and ``qemu.log.1`` of an earlier run."""
        return self.run / machine_id

    def firmware(self, machine_id: str) -> Path:
        """A folder with the UEFI variables of a machine: root's, and kept until the machine is deleted."""
        return self.state / f"{machine_id}.firmware"

    def tpm(self, machine_id: str) -> Path:
        """A folder with the content of a machine's TPM, of the user that its TPM runs as. That process holds it
        locked."""
        return self.state / f"{machine_id}.tpm"

    def group(self, machine_id: str) -> str:
        """What its cgroup is called on this host, if a plugin with another state folder may have one of its name."""
        if self.state == type(self)().state:
            return machine_id
        return f"{machine_id}-{hashlib.sha256(bytes(self.state.absolute())).hexdigest()[:8]}"

    def unit(self, machine_id: str) -> str:
        """Its service, if systemd runs this host."""
        return f"devalloc-{self.group(machine_id)}.service"

    def disks(self, machine_id: str) -> Path:
        """A folder with the disks that a machine has of its own: root's, and kept until the machine is deleted."""
        return self.state / f"{machine_id}.disks"

    def seed(self, machine_id: str) -> Path:
        """The seed disk for cloud-init in its guest: root's, and made anew at each start."""
        return self.state / f"{machine_id}.seed"

    def plan(self, machine_id: str) -> Path:
        """What its start was told; it stays as long as the machine lives."""
        return self.state / f"{machine_id}.start"

    def life(self, machine_id: str) -> Path:
        """The file that a machine's QEMU holds locked as long as it lives; its text is the process."""
        return self.state / f"{machine_id}.life"


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


def file_state(path: str) -> tuple[int, ...]:
    """Something else as soon as a file comes, goes, is another one or is written to."""
    try:
        info = os.stat(path)
    except OSError as error:
        return (error.errno or 0,)
    except ValueError:  # no path at all
        return ()
    return info.st_dev, info.st_ino, info.st_mode, info.st_uid, info.st_size, info.st_mtime_ns


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


_POLL_SECONDS = 0.05
_ENDING_SECONDS = 0.2
"""For a process that has given up all it had to be gone."""


def process_of(machine_id: str, config: MachineConfig, seconds: float = 2.0) -> Process | None:
    """The process of a machine that runs; None if none does.

    Its lock of its life file proves that it lives. Without the lock it may still be ending, and holds devices until
    the kernel is done with them: it has ended when its process has.

    Raises Unknown if it lives and its process cannot be told within ``seconds``: it is only just being started;
    Failed if nothing can be told.
    """
    try:
        life = FileLock.existing(config.life(machine_id))
    except FileNotFoundError:  # it was never started, or the file was removed
        return with_removed_file(config.life(machine_id), f"\0guest={machine_id},".encode())
    except OSError as error:
        raise Failed("HostUnreadable", f"cannot check whether machine {machine_id} lives: {error}") from None
    with life:
        deadline = Deadline.after(seconds)
        ending = deadline.capped(_ENDING_SECONDS)
        while True:
            is_locked = life.is_locked_elsewhere()
            words = life.read(64).split() if is_locked or _is_of_this_boot(life) else ()
            if len(words) == 2 and (qemu := process(int(words[0]))) == Process(int(words[0]), int(words[1])):
                if is_locked or ending.passed:
                    return qemu
            elif not is_locked:
                return None
            if deadline.passed:
                raise Unknown("MachineUnclear", f"machine {machine_id} lives, but its process is unknown")
            time.sleep(_POLL_SECONDS)


def machine_ids(config: MachineConfig) -> set[str]:
    """The machines, by id, that have a life file."""
    return {path.name.removesuffix(".life") for path in config.state.glob("*.life")}


def _is_of_this_boot(life: FileLock) -> bool:
    """Whether a file was written since the host was started: the numbers of processes mean nothing after that."""
    return os.fstat(life.fileno()).st_mtime >= time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


_TAIL_BYTES = 2000


@contextmanager
def opened_log(path: Path) -> Iterator[int]:
    """A log, which its QEMU's user can replace: no link is followed, and nothing but a file is read. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(0, "it is not a file")
        yield file
    finally:
        os.close(file)


def last_words(config: MachineConfig, machine_id: str, name: str = "qemu.log") -> str:
    """The end of a log of the machine, as one line; empty if it cannot be read."""
    try:
        with opened_log(config.folder(machine_id) / name) as file:
            begin = max(0, os.fstat(file).st_size - _TAIL_BYTES)
            text = os.pread(file, _TAIL_BYTES, begin).decode(errors="replace")
    except OSError:
        return ""
    return " / ".join(line for line in "".join(c if c.isprintable() else "\n" for c in text).split("\n") if line)


def trim(config: MachineConfig, machine_id: str) -> None:
    """Empty logs that a guest has filled; QEMU appends, so it goes on at the start."""
    folder = str(config.folder(machine_id))
    for name in ("console.log", "qemu.log"):
        path = f"{folder}/{name}"
        with suppress(OSError):
            if os.lstat(path).st_size <= config.log_bytes:  # nearly always: this is done for all, again and again
                continue
            fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                info = os.fstat(fd)
                if stat.S_ISREG(info.st_mode) and info.st_size > config.log_bytes:
                    os.ftruncate(fd, 0)
            finally:
                os.close(fd)


def write_synced(path: Path, content: bytes) -> None:
    """Write a file that is the plugin's own user's alone, and have it on the disk. Raises OSError."""
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600)) as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())


def sync_folder(folder: Path) -> None:
    """Have on the disk what a folder contains. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove_folder(folder: Path) -> None:
    """Remove a folder of a machine that is deleted; it may be gone. Raises Failed (``HostRefused``)."""
    try:
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)
    except OSError as error:
        raise Failed("HostRefused", f"cannot remove {folder} of a deleted machine: {error.strerror}") from None
