"""How machines run on a host, and what of it their manifests may use: what an administrator sets, and what follows."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, cast

from devalloc.inventory.capacity.config import parse_bandwidth, parse_size
from devalloc.settings import FOLDER, OneOf, group, setting

if TYPE_CHECKING:
    from devalloc.inventory.capacity.cpus import CpuTopology
    from devalloc.inventory.pci import BarSizes

ALL_USERS = range(2_146_435_072, 2_146_437_072)
"""Of machines, and in the second half of paused ones: far above those of people, of directories and of what containers
are given (which begin at 65536)."""
USERS = ALL_USERS[: len(ALL_USERS) // 2]
FolderSharing = Literal["own", "shared", "any"]


@dataclass(frozen=True, slots=True)
class AllowedFolder:
    """A folder of the host in which machines may have files or sockets."""

    path: Path
    sharing: FolderSharing = "own"
    """``own``: each namespace has the folder below it that is called like the namespace, and nothing else. ``shared``:
    all namespaces may read all of it. ``any``: all namespaces may use all of it."""


@dataclass(frozen=True, slots=True)
class FirmwareFiles:
    """UEFI firmware, as plain images of a flash chip."""

    code: Path
    variables: Path
    """The template: each machine has a copy of its own."""


_MAX_TAP_PATTERN = 64


def _folder(text: str) -> AllowedFolder:
    """``DIR``, ``DIR:shared`` or ``DIR:any``."""
    path, sharing = text, "own"
    if text.endswith((":shared", ":any")):
        path, _, sharing = text.rpartition(":")
    if not path or Path(path).is_file():
        raise ValueError(f"must be a folder such as /var/lib/devalloc/images, not {text!r}")
    return AllowedFolder(Path(path).absolute(), cast("FolderSharing", sharing))


def _socket_folder(text: str) -> AllowedFolder:
    folder = _folder(text)
    if folder.sharing == "shared":
        raise ValueError(
            f"{text}: read-only access is impossible, a connection to a QMP socket can change the machine; "
            f"use {folder.path}:any"
        )
    return folder


def _tap(text: str) -> str:
    only, colon, names = text.rpartition(":")
    if not names or (colon and not only) or "/" in text or len(names) > _MAX_TAP_PATTERN:
        raise ValueError(f"must be a pattern such as vm* or team-a:vm*, not {text!r}")
    return text


def _shared_folder(text: str) -> str:
    path = Path(text)
    is_plain = path.is_absolute() and ".." not in path.parts and path.parent != path and text.isprintable()
    if not is_plain or ":" in text:  # what separates folders in the pool
        raise ValueError(f"invalid folder {text!r}: write an absolute path below /, without '..' and ':'")
    return str(path)


def _firmware(text: str) -> FirmwareFiles:
    """``CODE:VARS``."""
    code, colon, variables = text.partition(":")
    if not (colon and code.startswith("/") and variables.startswith("/")) or ":" in variables:
        raise ValueError(f"must be two absolute paths, CODE:VARS, not {text!r}")
    return FirmwareFiles(Path(code), Path(variables))


def _users(text: str) -> range:
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal()) or not 0 < int(first) < int(last) < 2**32 - 1:
        raise ValueError(f"must be a range such as {ALL_USERS[0]}-{ALL_USERS[-1]}, not {text!r}")
    return range(int(first), int(last) + 1)


def _address(text: str) -> str:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise ValueError(f"must be an address of IPv4 or IPv6, not {text!r}") from None
    if address.is_unspecified or address.is_multicast:
        raise ValueError(f"must be one address, which other nodes reach, not {text}")
    return address.compressed


def _bandwidth(text: str) -> int:
    if (rate := parse_bandwidth(text)) == 0:
        raise ValueError("must be more than 0")
    return rate


def host_cpus() -> CpuTopology:
    """The CPUs of this host that this process, and so its machines, may use."""
    from devalloc.inventory.capacity.cpus import read_cpus
    from devalloc.inventory.sysfs import Tree

    return read_cpus(Tree(Path("/")))


def _no_devices() -> BarSizes:
    from devalloc.inventory.pci import BarSizes

    return BarSizes()


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessConfig:
    """What of the host the manifests of machines may use."""

    user_net: bool = setting(
        "Let network cards with backend user connect as this host: to its 127.0.0.1, to metadata services of clouds, "
        "and to everything else that the host can reach. Without it they reach nothing.",
        flag="--allow-user-net",
        default=False,
        env="DEVALLOC_ALLOW_USER_NET",
    )
    taps: tuple[str, ...] = setting(
        "Allow machines to use TAP interfaces with such names (tap*); NAMESPACE:PATTERN: only machines of one "
        "namespace. Repeatable.",
        flag="--tap",
        type=_tap,
        default=(),
        metavar="PATTERN",
        env="DEVALLOC_TAP",
        unset="machines of namespace NS may use NS.NAME",
    )
    folders: tuple[AllowedFolder, ...] = setting(
        "Allow machines of namespace NS to use kernels and disks below DIR/NS; DIR:shared: machines of every namespace "
        "may read everything below DIR; DIR:any: they may also write it. Repeatable.",
        flag="--image-folder",
        type=_folder,
        default=(),
        metavar="DIR",
        env="DEVALLOC_IMAGE_FOLDER",
        unset="none",
        usual=True,
    )
    socket_folders: tuple[AllowedFolder, ...] = setting(
        "Allow machines of namespace NS to adopt QMP sockets below DIR/NS; DIR:any: machines of every namespace may "
        "adopt all sockets below DIR. Repeatable.",
        flag="--qmp-folder",
        type=_socket_folder,
        default=(),
        metavar="DIR",
        env="DEVALLOC_QMP_FOLDER",
        unset="none",
    )
    rom_folders: tuple[Path, ...] = setting(
        "Allow classes (`romFile` of a VfioConfig) to use option ROMs below this folder, which all machines can then "
        "read. Repeatable.",
        flag="--rom-folder",
        type=FOLDER,
        default=(),
        metavar="DIR",
        env="DEVALLOC_ROM_FOLDER",
        unset="none",
    )
    shared_storage: tuple[str, ...] = setting(
        "This folder has the same files on every node with the same option (NFS, Ceph, ...): a drained machine whose "
        "disks are below it can start on those nodes. Needs --host-capacity. Repeatable.",
        flag="--shared-storage",
        type=_shared_folder,
        default=(),
        metavar="DIR",
        env="DEVALLOC_SHARED_STORAGE",
        unset="none",
    )


@dataclass(frozen=True, slots=True)
class MigrationSettings:
    """How machines move to other nodes, and from them, while they run."""

    address: str | None = setting(
        "Listen here for machines that move to this node while they run: an address of this node, on ports that the "
        "kernel chooses; other nodes must reach them. Both sides are authenticated and encrypted by TLS. Needs "
        "--host-capacity.",
        flag="--migration-address",
        type=_address,
        metavar="ADDRESS",
        env="DEVALLOC_MIGRATION_ADDRESS",
        unset="it receives no such machines",
    )
    bandwidth: int | None = setting(
        "The highest bandwidth of a machine that leaves this node while it runs, such as 1Gbps (bits, decimal) or "
        "500MB/s (bytes, binary).",
        flag="--migration-bandwidth",
        type=_bandwidth,
        metavar="RATE",
        env="DEVALLOC_MIGRATION_BANDWIDTH",
        unset="that of QEMU, 128MB/s",
    )
    """Bytes per second."""
    timeout: float = 7200.0
    """Seconds after which a machine that has not moved stays where it is, should there be no controller that ends its
    migration earlier."""
    sys: Path = Path("/sys")
    """Where the host's sysfs is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineConfig(AccessConfig):
    """How machines run."""

    machine_dir: Path | None = setting(
        "Folder for the sockets and logs of machines.", type=FOLDER, metavar="DIR", unset="machines beside the socket"
    )
    accel: Literal["auto", "kvm", "tcg"] = setting(
        "Run machines with KVM or emulate them (tcg); auto: with KVM if a small guest boots with it within 10 s.",
        type=OneOf(["auto", "kvm", "tcg"]),
        default="auto",
        env="DEVALLOC_ACCEL",
    )
    machine_users: range | None = setting(
        "User ids of machines, one for each, that nothing else on the host uses; the second half is for paused "
        "machines (--warm-machine). Only for root.",
        type=_users,
        metavar="FIRST-LAST",
        env="DEVALLOC_MACHINE_USERS",
        unset="2146435072-2146437071",
    )
    visible: tuple[Path, ...] = setting(
        "Let QEMU see this folder, too. Repeatable. Otherwise it sees the system's programs and libraries, its own "
        "folder, devices, and the files that its machine names.",
        flag="--qemu-path",
        type=FOLDER,
        default=(),
        metavar="DIR",
        env="DEVALLOC_QEMU_PATH",
    )
    binary: str = setting(
        "The QEMU program that runs machines.", flag="--qemu", default="qemu-system-x86_64", metavar="PROGRAM"
    )
    uefi: FirmwareFiles | None = setting(
        "Firmware of machines with UEFI: the code, and the template of their variables, as raw images.",
        flag="--uefi-firmware",
        type=_firmware,
        metavar="CODE:VARS",
        env="DEVALLOC_UEFI_FIRMWARE",
        unset="the first that fits in /usr/share/qemu/firmware and /etc/qemu/firmware",
    )
    secure_boot: FirmwareFiles | None = setting(
        "The same for machines with Secure Boot: code that needs SMM, and a template with keys.",
        flag="--secure-boot-firmware",
        type=_firmware,
        metavar="CODE:VARS",
        env="DEVALLOC_SECURE_BOOT_FIRMWARE",
        unset="the first that fits in these folders",
    )
    swtpm: str = setting("The program that is the TPM of a machine.", default="swtpm", metavar="PROGRAM")
    memory_slack: int = setting(
        "What QEMU of a machine may take of the host, such as 2GiB, beyond the memory of its guest and the page "
        "tables of guest and devices. The kernel ends a QEMU that takes more than all of these.",
        flag="--machine-memory-overhead",
        type=parse_size,
        default=1 << 30,
        metavar="SIZE",
        env="DEVALLOC_MACHINE_MEMORY_OVERHEAD",
        unset="1GiB",
    )
    migrations: MigrationSettings = group(MigrationSettings, titled=False)
    state: Path = Path("/var/lib/devalloc/node/machines")
    """Locks and verdicts; only the plugin's user reads and writes it."""
    run: Path = Path("/run/devalloc/machines")
    """A folder for each machine with its sockets and logs."""
    users: range | None = USERS
    """User ids, one for each machine, if the plugin is root. None: QEMU runs as the plugin's own user."""
    lent: Path | None = None
    """Where those of machines lie that were given away by this node and may be adopted by it, too. There each is of a
    user of its own. None: there are none."""
    cgroups: Path = Path("/sys/fs/cgroup")
    systemd: bool | None = None
    """Whether machines are services of systemd; None: if systemd runs this host."""
    start_seconds: float = 20.0
    """How long QEMU may take until its monitor answers."""
    command_seconds: float = 10.0
    """How long one command to QEMU may take, but for those that may take as long as their caller waits."""
    memlock_slack: int = 1 << 30
    """Bytes that a machine may lock beyond its memory: VFIO maps the registers of devices too."""
    log_bytes: int = 8 << 20
    """A guest's log is emptied when it is longer."""

    devices: Callable[[], BarSizes] = _no_devices
    """The most memory of its own that any device of this host has, asked for when a machine is started: its root ports
    reserve addresses for as much."""
    topology: Callable[[], CpuTopology] = host_cpus
    """The CPUs of this host and their NUMA nodes, asked for when some are chosen: they come and go."""
    dry_run: bool = False
    """Machines are looked at, and each change of one is refused."""

    def on_host(self, state: Path, run: Path) -> Self:
        """With its folders and users."""
        roms = tuple(folder.absolute() for folder in self.rom_folders)
        visible = (*(folder.absolute() for folder in self.visible), *roms)
        both = self.machine_users or ALL_USERS
        return replace(self, state=state, run=run, users=both[: len(both) // 2], visible=visible, rom_folders=roms)

    @property
    def waiting_users(self) -> range:
        """User ids of paused machines in warm setups."""
        both = self.machine_users or ALL_USERS
        return both[len(both) // 2 :]

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
        from hashlib import sha256

        if self.state == type(self)().state:
            return machine_id
        return f"{machine_id}-{sha256(bytes(self.state.absolute())).hexdigest()[:8]}"

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
