"""What QEMU of a machine may take of its host, and what it sees of it.

A machine's share of its host, by the kernel's cgroups in either of their versions: a part of a CPU (T19), and bounds
of memory and of threads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from devalloc.api.virtual_machine import GIB
from devalloc.inventory.pci import BarSizes
from devalloc_machines.qemu.spec import MachineSpec, cpus_text, whole_cpus
from devalloc_node.errors import Failed

PERIOD = 100_000
"""Microseconds."""
LEAST = 10
"""Thousandths of a CPU: the kernel takes no quota below a millisecond."""
OURS = "devalloc"
_BOUNDS = (("memory", "memory.limit_in_bytes", "memory.max"), ("pids", "pids.max", "pids.max"))
"""Controllers, with the file of their bound in either version."""
HUGE_PAGES = "hugetlb"
"""The controller of huge pages, which has files for each size of them."""
_CPU = ("cpu", "cpu,cpuacct", "cpuacct,cpu")
"""What the controller of CPU time may be called in version 1."""
_ALL = ("", *_CPU, *(controller for controller, _, _ in _BOUNDS), HUGE_PAGES)


@dataclass(frozen=True, slots=True)
class CpuGroup:
    """One cgroup of the cpu controller."""

    version: Literal[1, 2]
    folder: Path

    @property
    def procs(self) -> Path:
        """Where a process is written to be in it."""
        return self.folder / "cgroup.procs"


def make_group(root: Path, name: str) -> CpuGroup:
    """The cgroup of a machine, made if it is not there. ``root``: the folder where cgroups are mounted.

    Raises Failed (``CgroupUnavailable``).
    """
    try:
        if _is_second(root):
            return CpuGroup(2, _folder_of(root, "cpu", name))
        controller = next((each for each in _CPU if (root / each / "cgroup.procs").exists()), None)
        if controller is None:
            raise Failed("CgroupUnavailable", f"no cpu controller below {root}", retryable=False)
        return CpuGroup(1, _folder_of(root, controller, name))
    except OSError as error:
        raise Failed("CgroupUnavailable", f"no cgroup for machine {name} below {root}: {error}") from None


def set_bounds(root: Path, name: str, limits: QemuLimits) -> tuple[list[Path], list[str]]:
    """Limit what all processes in a machine's cgroups take.

    Where a process is written to be in them, and, for people, what cannot be bounded on this host, with the reason; of
    huge pages only for a machine that has any.
    """
    procs, missing = [], list[str]()
    is_second = _is_second(root)
    for (controller, first, second), most in zip(_BOUNDS, (limits.memory, limits.tasks), strict=True):
        try:
            folder = _folder_of(root, controller, name)
            _write(folder / (second if is_second else first), str(most))
            procs.append(folder / "cgroup.procs")
        except OSError as error:
            missing.append(f"{controller}: {error}")
    try:
        folder = _folder_of(root, HUGE_PAGES, name)
        _bound_huge_pages(folder, limits, "max" if is_second else "limit_in_bytes")
        procs.append(folder / "cgroup.procs")
    except OSError as error:
        if limits.huge_page_bytes:
            missing.append(f"{HUGE_PAGES}: {error}")
    return list(dict.fromkeys(procs)), missing


def memory_bound(root: Path, pid: int, name: str, unit: str, proc: Path = Path("/proc")) -> Path | None:
    """The file with the bound of memory of a process, if it is in a machine's own cgroup: ``name`` of ours, or that of
    the service ``unit``. None if it is elsewhere, such as in the plugin's own."""
    for controllers, path in _cgroups_of(pid, proc):
        if path.parts[-2:] != (OURS, name) and path.name != unit:
            continue
        if "memory" in controllers:
            return root / "memory" / path / "memory.limit_in_bytes"
        if not any(controllers) and (file := root / path / "memory.max").exists():
            return file
    return None


def raise_memory_bound(file: Path, least: int) -> bool:
    """Have a cgroup allow at least so many bytes; whether it had less. Raises OSError, ValueError."""
    now = file.read_text().strip()
    if now == "max" or int(now) >= least:
        return False
    _write(file, str(least))
    return True


def _is_second(root: Path) -> bool:
    return (root / "cgroup.controllers").exists()


def _folder_of(root: Path, controller: str, name: str) -> Path:
    """A machine's cgroup of a controller, made if it is not there. Raises OSError."""
    if not _is_second(root):
        (root / controller / "cgroup.procs").stat()
        folder = root / controller / OURS / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    if controller not in (root / "cgroup.controllers").read_text().split():
        raise OSError("the kernel does not offer that controller there")
    for folder in (root, root / OURS):
        folder.mkdir(exist_ok=True)
        control = folder / "cgroup.subtree_control"
        if controller not in control.read_text().split():
            _write(control, f"+{controller}")
    folder = root / OURS / name
    folder.mkdir(exist_ok=True)
    return folder


def _bound_huge_pages(folder: Path, limits: QemuLimits, file: str) -> None:
    """Of the size that the machine has, as many as it may have; of each other size, none. Those that are only reserved
    count as well: nothing else could have them. Raises OSError."""
    for path in sorted(folder.glob(f"{HUGE_PAGES}.*.{file}")):
        size = path.name.split(".")[1]
        most = limits.huge_pages if size == _page_text(limits.huge_page_bytes) else 0
        _write(path, str(most))


def _page_text(size: int | None) -> str:
    """A size as the files of the kernel have it: ``2MB``."""
    if size is None:
        return ""
    return f"{size >> 30}GB" if size >= GIB else f"{size >> 20}MB"


def remove_bounds(root: Path, name: str) -> None:
    """Take away what ``set_bounds`` made."""
    for controller in ("", *(controller for controller, _, _ in _BOUNDS), HUGE_PAGES):
        with suppress(OSError):
            (root / controller / OURS / name).rmdir()


def exists(root: Path, name: str) -> bool:
    """Whether there is a cgroup of that machine. None is made."""
    return any((root / controller / OURS / name).exists() for controller in _ALL)


def limit(cgroup: CpuGroup, thousandths: int | None) -> None:
    """Give it so many thousandths of a CPU's time, or as much as there is (None), and read back that it is so.

    Raises Failed (``CgroupUnavailable``).
    """
    wanted = None if thousandths is None else max(LEAST, thousandths)
    if limit_of(cgroup) == wanted:
        return
    quota = None if wanted is None else wanted * PERIOD // 1000
    try:
        if cgroup.version == 2:
            _write(cgroup.folder / "cpu.max", f"{'max' if quota is None else quota} {PERIOD}")
        else:
            _write(cgroup.folder / "cpu.cfs_period_us", str(PERIOD))
            _write(cgroup.folder / "cpu.cfs_quota_us", str(-1 if quota is None else quota))
    except OSError as error:
        raise Failed("CgroupUnavailable", f"cannot set the CPU limit of {cgroup.folder}: {error}") from None
    if (now := limit_of(cgroup)) != wanted:
        raise Failed("CgroupUnavailable", f"{cgroup.folder} has {_text(now)} although {_text(wanted)} was written")


def limit_of(cgroup: CpuGroup) -> int | None:
    """Thousandths of a CPU; None if there is no limit. Raises Failed (``CgroupUnavailable``)."""
    try:
        if cgroup.version == 2:
            quota, period = (cgroup.folder / "cpu.max").read_text().split()
        else:
            quota = (cgroup.folder / "cpu.cfs_quota_us").read_text().strip()
            period = (cgroup.folder / "cpu.cfs_period_us").read_text().strip()
        return None if quota in ("max", "-1") else int(quota) * 1000 // int(period)
    except (OSError, ValueError) as error:
        raise Failed("CgroupUnavailable", f"cannot read the CPU limit of {cgroup.folder}: {error}") from None


def group_of(root: Path, pid: int, proc: Path = Path("/proc")) -> CpuGroup | None:
    """The cgroup that a process is in; None if it is in none that can be limited alone (the root)."""
    for controllers, path in _cgroups_of(pid, proc):
        if "cpu" in controllers:
            folder = root / ",".join(controllers) / path
            return CpuGroup(1, folder if folder.exists() else root / "cpu" / path)
        if not any(controllers) and (root / path / "cpu.max").exists():
            return CpuGroup(2, root / path)
    return None


def _cgroups_of(pid: int, proc: Path) -> Iterator[tuple[Sequence[str], PurePosixPath]]:
    """The cgroups that a process is in, but for the root and those outside of this namespace: the controllers of each
    (one empty text for version 2), and its path below where they are mounted."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, text = line.split(":", 2)
        path = PurePosixPath(text.lstrip("/"))
        if path.parts and ".." not in path.parts:
            yield controllers.split(","), path


def remove(cgroup: CpuGroup) -> None:
    """Take it away if nothing is in it; it is no error that it is gone, or that something still ends in it."""
    with suppress(OSError):
        cgroup.folder.rmdir()


def _text(thousandths: int | None) -> str:
    return "no bound" if thousandths is None else f"a limit of {cpus_text(thousandths)} CPUs"


def _write(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC)  # never made: the kernel makes these files
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
"""Where programs, their libraries and firmware lie."""
_LINKER = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives")
_KERNEL = ("/dev", "/proc", "/sys")
"""As they are: devices come and go while a machine runs, VFIO's among them."""
PathAccess = Literal["read", "write", "as-is"]
_TPM_BYTES, _TPM_TASKS = 64 << 20, 8
"""Of the process that is a machine's TPM; it needs a sixth of that."""


@dataclass(frozen=True, slots=True)
class QemuLimits:
    """Of all that runs as a machine's QEMU."""

    memory: int
    """Bytes."""
    tasks: int
    """Threads and processes."""
    huge_page_bytes: int | None = None
    """The size of the huge pages that it may have; None: it may have none."""
    huge_pages: int = 0
    """Bytes of these."""


_TABLE = 512
"""A page table has 8 bytes for each page of 4 KiB that it maps. The kernel charges tables to the machine's cgroup."""
_BAR_TABLES = 4
"""Page tables of the memory of a passed-through device: QEMU's, KVM's and the IOMMU's, and as much to spare."""
_UNKNOWN_BARS = 256 * GIB
"""What a device is taken for that is not known yet: more than any GPU of today has."""
_NIC_BYTES = 64 << 20
"""Of a network card: what QEMU and vhost keep for its queues."""


def qemu_limits(spec: MachineSpec, accel: str, slack: int = GIB, devices: BarSizes | None = None) -> QemuLimits:
    """Far above what QEMU ever needs, so that only a compromised one meets them: all memory that the
    guest can have, page tables of that and of the devices that it can have, what QEMU keeps for each vCPU and network
    card, ``slack`` for firmware and QEMU itself, and the translated code of an emulated CPU.

    ``devices``: the most memory of its own that a device has that can be plugged in; None or nothing: unknown.
    """
    vcpus = whole_cpus(spec.cpus.most)
    # The guest's memory is in the tables of QEMU, of KVM, and of each IOMMU domain that can reach it.
    domains = 0 if not spec.pci_slots else spec.pci_slots if spec.iommu else 1
    memory = spec.memory.most + spec.memory.most * (2 + domains) // _TABLE + vcpus * (16 << 20) + slack
    bars = devices.total if devices is not None and devices.total else _UNKNOWN_BARS
    memory += spec.pci_slots * bars * _BAR_TABLES // _TABLE + len(spec.nics) * _NIC_BYTES
    memory += (GIB if accel == "tcg" else 0) + (_TPM_BYTES if spec.tpm else 0)
    tasks = 256 + 2 * vcpus + (_TPM_TASKS if spec.tpm else 0)
    return QemuLimits(memory, tasks, spec.huge_page_bytes, spec.memory.most if spec.huge_page_bytes else 0)


def seen_by_program(
    binary: str, files: Sequence[str], folder: Path, more: Sequence[Path] = ()
) -> list[tuple[str, PathAccess]]:
    """Paths that QEMU, or the TPM, needs, and no others: ``files`` are those that it opens itself, ``folder`` is the
    one in which it writes.

    Those of a program outside of the system's folders are in the folder that it was unpacked or installed in.
    """
    seen: dict[str, PathAccess] = dict.fromkeys((*_SYSTEM, *_LINKER), "read")
    for program in {os.path.abspath(binary), os.path.realpath(binary)}:
        own = os.path.dirname(program)
        own = os.path.dirname(own) if os.path.basename(own) in ("bin", "sbin") else own
        if own != "/" and not any(Path(own).is_relative_to(system) for system in _SYSTEM):
            seen[own] = "read"
    # Option ROMs are opened by paths without links.
    seen |= {str(path): "as-is" for named in more for path in (named, named.resolve())}
    seen |= dict.fromkeys(files, "read")
    seen |= dict.fromkeys(_KERNEL, "as-is")
    seen[str(folder)] = "write"
    return [(path, seen[path]) for path in sorted(seen) if os.path.lexists(path)]
