"""The files, links and uevents of a fake host, without any kernel behaviour (that is `tests.support.fake_sysfs`)."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Uevent(NamedTuple):
    action: str
    subsystem: str
    path: str
    """Below /sys, such as devices/pci0000:00/0000:00:03.0."""


def fail(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


class MemoryFolder(tempfile.TemporaryDirectory[str]):
    def cleanup(self) -> None:
        with suppress(OSError):  # who still writes to it; then the slower way, which copes
            _empty(self.name)
        super().cleanup()


def written(path: Path) -> str:
    """What was written to a file that can be written only, which only root can read."""
    path.chmod(0o600)
    return path.read_text()


def memory_folder() -> MemoryFolder:
    """A temporary folder in memory where the machine has that: like sysfs, and much faster than a disk to fill."""
    return MemoryFolder(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None, ignore_cleanup_errors=True)


def _empty(folder: str) -> None:
    """Remove all that is in it. Some times faster than shutil, which minds links that are swapped in meanwhile."""
    with os.scandir(folder) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                _empty(entry.path)
                os.rmdir(entry.path)
            else:
                os.unlink(entry.path)


def real(path: str) -> str:
    """The path without links. The kernel knows it at once; `realpath` asks it for each component."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return os.path.realpath(path)
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


class FakeTree:
    """`root` holds `sys` and `proc`; paths are below `sys`."""

    def __init__(self, root: Path, *, nodes: int = 2) -> None:
        self.root = root.resolve()
        self.sys = self.root / "sys"
        self._sys = str(self.sys)
        self.events: list[Uevent] = []
        self._next_group = 0
        for folder in ("pci/devices", "pci/drivers"):
            (self.sys / "bus" / folder).mkdir(parents=True, exist_ok=True)
        for folder in ("kernel/iommu_groups", "class/net", "class/block", "block"):
            (self.sys / folder).mkdir(parents=True, exist_ok=True)
        for file in ("drivers_probe", "rescan"):
            self.touch(f"bus/pci/{file}")
        for node in range(nodes):
            self.write(f"devices/system/node/node{node}/cpulist", f"{8 * node}-{8 * node + 7}")
            self.write(f"devices/system/node/node{node}/meminfo", f"Node {node} MemTotal:       67108864 kB")
        for name in ("mounts", "swaps", "cmdline", "net/route"):
            self.proc(name, "")

    def write(self, path: str, text: str) -> None:
        """Make the file what the kernel would show; this is no user's write (see `store`)."""
        content = (text + "\n" if text and not text.endswith("\n") else text).encode()
        # Over the old content, not after emptying it: who reads sysfs meanwhile never finds nothing.
        descriptor = self._begin(f"{self._sys}/{path}", 0o644)
        try:
            os.pwrite(descriptor, content, 0)
            os.ftruncate(descriptor, len(content))
        finally:
            os.close(descriptor)

    def touch(self, path: str) -> None:
        """A file that can only be written to, such as `remove`."""
        os.close(self._begin(f"{self._sys}/{path}", 0o200))

    def _begin(self, file: str, mode: int) -> int:
        """For writing, with the folders above it. Strings, and one call where they exist: hosts have thousands."""
        try:
            return os.open(file, os.O_WRONLY | os.O_CREAT, mode)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(file), exist_ok=True)
            return os.open(file, os.O_WRONLY | os.O_CREAT, mode)

    def read(self, path: str) -> str:
        return (self.sys / path).read_text().strip()

    def link(self, path: str, target: str) -> None:
        """A relative link, as sysfs has them; both below sys."""
        link = f"{self._sys}/{path}"
        folder = os.path.dirname(link)
        if not path.startswith("devices/"):  # below it the folders are what they are called
            os.makedirs(folder, exist_ok=True)
            folder = real(folder)
        text = os.path.relpath(f"{self._sys}/{target}", folder)
        try:
            os.symlink(text, link)
        except FileNotFoundError:
            os.makedirs(folder, exist_ok=True)
            os.symlink(text, link)

    def remove(self, path: str) -> None:
        target = f"{self._sys}/{path}"
        try:
            os.unlink(target)
        except FileNotFoundError:
            pass
        except (IsADirectoryError, PermissionError):  # what unlink says of a folder
            _empty(target)
            os.rmdir(target)

    def proc(self, name: str, text: str) -> None:
        file = self.root / "proc" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def spoil(self, path: str, how: str) -> None:
        """Make a file unreadable or senseless: "missing", "empty", "garbage", "folder" (EISDIR) or "loop" (ELOOP)."""
        self.remove(path)
        file = self.sys / path
        match how:
            case "missing":
                pass
            case "empty":
                file.write_bytes(b"")
            case "garbage":
                file.write_bytes(b"\xff\xfe\x00 not what you want \x80\n")
            case "folder":
                file.mkdir()
            case "loop":
                file.symlink_to(file.name)
            case _:
                raise ValueError(f"no such way to spoil a file: {how}")

    def emit(self, action: str, subsystem: str, path: str) -> None:
        self.events.append(Uevent(action, subsystem, path))

    def group_of(self, wanted: int | str | None) -> int | None:
        """The IOMMU group number for what a function asks for: its own, a given one, none."""
        if wanted is None:
            return None
        if wanted == "own":
            while os.path.exists(f"{self._sys}/kernel/iommu_groups/{self._next_group}"):
                self._next_group += 1
            wanted = self._next_group
        return int(wanted)

    def join_group(self, group: int, name: str, path: str) -> None:
        base = f"kernel/iommu_groups/{group}"
        if not os.path.exists(f"{self._sys}/{base}"):
            self.write(f"{base}/type", "DMA")
        self.link(f"{base}/devices/{name}", path)
        self.link(f"{path}/iommu_group", base)

    def leave_group(self, group: int, name: str) -> None:
        base = f"kernel/iommu_groups/{group}"
        self.remove(f"{base}/devices/{name}")
        if not any((self.sys / base / "devices").iterdir()):
            self.remove(base)
            self._next_group = min(self._next_group, group)  # the kernel gives the lowest free number, too

    # What the host itself uses.

    def hold(self, disk: str, holder: str = "dm-0") -> None:
        """A block device that LVM, md or device mapper holds."""
        self.write(f"devices/virtual/block/{holder}/dm/name", f"vg-{holder}")
        self.link(f"class/block/{disk}/holders/{holder}", f"devices/virtual/block/{holder}")

    def mount(self, disk: str, folder: str = "/srv") -> None:
        mounts = self.root / "proc/mounts"
        mounts.write_text(mounts.read_text() + f"/dev/{disk} {folder} ext4 rw,relatime 0 0\n")

    def swap(self, disk: str) -> None:
        self.proc("swaps", f"Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n/dev/{disk} partition\t8388604\t0\t-2\n")

    def default_route(self, interface: str) -> None:
        self.proc(
            "net/route",
            (
                "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
                f"{interface}\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
            ),
        )

    def enslave(self, interface: str, master: str = "br0") -> None:
        """Make an interface a port of a bridge."""
        self.write(f"devices/virtual/net/{master}/bridge/bridge_id", "8000.525400123456")
        if not (self.sys / f"class/net/{master}").exists():
            self.link(f"class/net/{master}", f"devices/virtual/net/{master}")
        self.link(f"class/net/{interface}/master", f"devices/virtual/net/{master}")


def one_nic(root: Path) -> Path:
    """A host with one network card, and nothing of it but what names it; the root of the tree."""
    card = root / "sys" / "devices" / "pci0000:00" / "0000:00:03.0"
    card.mkdir(parents=True)
    facts = {"class": "0x020000", "vendor": "0x8086", "device": "0x10c9", "numa_node": "1"}
    for name, content in facts.items():
        (card / name).write_text(content + "\n")
    bus = root / "sys" / "bus" / "pci" / "devices"
    bus.mkdir(parents=True)
    (bus / card.name).symlink_to("../../../devices/pci0000:00/0000:00:03.0")
    return root
