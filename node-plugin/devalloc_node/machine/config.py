"""Where machines live on this host, and what they may name: the admin's words."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from devalloc.inventory.bars import BarSizes

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
    users: range | None = field(default=USERS)
    """User ids, one for each machine, where the plugin is root. None: QEMU runs as the plugin's own user."""
    visible: tuple[Path, ...] = ()
    """Folders that QEMU sees, as they are, beside what it needs by its nature."""
    cgroups: Path = Path("/sys/fs/cgroup")
    systemd: bool | None = None
    """Whether machines are services of systemd; None: where systemd runs this host."""
    start_seconds: float = 20.0
    """How long QEMU may take until its monitor answers."""
    command_seconds: float = 10.0
    """How long one command to QEMU may take, but for those that may take as long as their caller waits."""
    memlock_slack: int = 1 << 30
    """Bytes that a machine may lock beyond its memory: VFIO maps the registers of devices too."""
    memory_slack: int = 1 << 30
    """Bytes that QEMU itself may take, beyond its guest's memory and what grows with it."""
    log_bytes: int = 8 << 20
    """A guest's log is emptied when it is longer."""

    devices: Callable[[], BarSizes] = BarSizes
    """The most memory of its own that any device of this host has, asked for when a machine is started: its root ports
    reserve addresses for as much."""
    dry_run: bool = False
    """Machines are looked at, and each change of one is refused."""

    def folder(self, machine_id: str) -> Path:
        """What lies in it: ``qmp``, ``console`` and ``agent`` (sockets), ``console.log``, ``qemu.log``, and
        ``qemu.log.1`` of an earlier run."""
        return self.run / machine_id

    def group(self, machine_id: str) -> str:
        """What its cgroup is called on this host, where a plugin with another state folder may have one of its name."""
        if self.state == type(self)().state:
            return machine_id
        return f"{machine_id}-{hashlib.sha256(bytes(self.state.absolute())).hexdigest()[:8]}"

    def unit(self, machine_id: str) -> str:
        """Its service, where systemd runs this host."""
        return f"devalloc-{self.group(machine_id)}.service"

    def plan(self, machine_id: str) -> Path:
        """What its start was told; it stays as long as the machine lives."""
        return self.state / f"{machine_id}.start"

    def life(self, machine_id: str) -> Path:
        """The file that a machine's QEMU holds locked as long as it lives; its text is the process."""
        return self.state / f"{machine_id}.life"
