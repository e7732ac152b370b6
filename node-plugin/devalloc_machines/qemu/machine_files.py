"""The files of machines: where they are, and what QEMU and the guest have written there.

A machine's own files are the lock that QEMU holds while it runs, and the logs of QEMU and the guest: these are read
and emptied with care.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from devalloc.file_lock import FileLock
from devalloc.inventory.capacity.cpus import CpuTopology, read_cpus
from devalloc.inventory.pci import BarSizes
from devalloc.inventory.sysfs import Tree
from devalloc_machines.qemu.process import Process, process, with_removed_file
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Failed, Unknown

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


def file_state(path: str) -> tuple[int, ...]:
    """Something else as soon as a file comes, goes, is another one or is written to."""
    try:
        info = os.stat(path)
    except OSError as error:
        return (error.errno or 0,)
    except ValueError:  # no path at all
        return ()
    return info.st_dev, info.st_ino, info.st_mode, info.st_uid, info.st_size, info.st_mtime_ns


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
