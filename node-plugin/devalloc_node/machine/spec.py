"""What a machine is to be, in the units of this room: the input of every function that starts or scales one."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from devalloc.api.quantity import NANO, Format, Quantity

DiskFormat = Literal["raw", "qcow2"]
DiskDevice = Literal["virtio", "nvme"]
NicModel = Literal["virtio", "e1000e"]

MIB = 1 << 20
CPU = 1000
"""Thousandths in one CPU: amounts of CPU are integers of these."""


_LOCKED_A_SECOND = 1 << 30
"""Bytes of memory that the kernel gives out, zeroed, and locks: several times as many on a host with nothing else to
do."""
PLAIN = "plug-"
"""How the ids of plain devices begin in QEMU; those of claims are others."""
MAX_PLAIN_NAME = 20
"""As many characters as the serial number of a disk has, by which its guest finds it. QEMU's block nodes have 31."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """An amount that changes while the machine runs: thousandths of a CPU, or bytes."""

    least: int
    most: int
    use: int


@dataclass(frozen=True, slots=True)
class Disk:
    path: str
    format: DiskFormat
    read_only: bool = False
    device: DiskDevice = "virtio"

    @property
    def host(self) -> str:
        """What of the host it stands on."""
        return self.path


@dataclass(frozen=True, slots=True)
class Nic:
    model: NicModel = "virtio"
    interface: str | None = None
    """A TAP interface of the host that exists; None: through QEMU's own sockets."""
    mac: str | None = None
    warm: bool = False
    """The interface is in the home that its machine is given (``home``), and not of the host."""

    @property
    def host(self) -> str:
        """What of the host it stands on; empty where that is nothing of its own."""
        return self.interface or ""


@dataclass(frozen=True, slots=True)
class PlainDevice:
    """A disk or a network card without hardware behind it, plugged into a machine that runs already."""

    name: str
    """A DNS label of at most MAX_PLAIN_NAME characters."""
    what: Disk | Nic

    @property
    def id(self) -> str:
        """What it is called in QEMU; all that it stands on there begins with this and a dot."""
        return f"{PLAIN}{self.name}"


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """A machine to start, or (``adopt``) one that runs already."""

    namespace: str
    name: str
    uid: str
    """Of the VirtualMachine object: the same name with another UID is another machine. Empty: it has no object."""
    cpus: Bounds
    memory: Bounds
    dimm_bytes: int | None = None
    """The size of the DIMMs that memory is added by; None: virtio-mem."""
    kernel: str | None = None
    initrd: str | None = None
    append: str = ""
    disks: tuple[Disk, ...] = ()
    adopt: str | None = None
    """The QMP socket of the machine to adopt."""
    nics: tuple[Nic, ...] = ()
    claims: tuple[str, ...] = ()
    pci_slots: int = 0
    """Root ports that devices can be plugged into."""
    pci_window: int | None = None
    """Bytes of 64-bit prefetchable addresses that each of them reserves; None: as much as the node's devices need."""
    iommu: bool = False
    """An IOMMU in the guest, so that it can pass devices on to machines of its own."""
    numa_node: int | None = None
    """The host's NUMA node that its memory comes from."""
    pinned: bool = False
    """Its CPUs run on those of the host that its home names."""
    running: bool = True
    restart: Literal["Always", "Never"] = "Always"
    powerdown_seconds: float = 30.0
    node: str = ""

    @property
    def key(self) -> str:
        """``namespace/name``, how people and the other rooms call it."""
        return f"{self.namespace}/{self.name}"

    @property
    def owner(self) -> str:
        """What no machine of any node shares with it, in all of its runs."""
        return self.uid or f"{self.node}/{self.key}"

    @property
    def wants_home(self) -> bool:
        """Whether it is to live in a place of its own of the host's."""
        return any(nic.warm for nic in self.nics)

    @property
    def id(self) -> str:
        """What its files and its cgroup are called: short, one path component, readable."""
        return machine_id(self.key)

    @property
    def locking_seconds(self) -> float:
        """How long it may take to lock all of its memory, as VFIO does with the first device; 0 without claims."""
        return locking_seconds(self.memory.use) if self.claims else 0.0

    @property
    def hot_memory(self) -> int:
        """Bytes that come and go."""
        return self.memory.most - self.memory.least


@lru_cache(maxsize=4096)
def machine_id(key: str) -> str:
    """The name of a machine's files. Names are at most 316 characters and a socket's path 107: hence a hash."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c == "-") else "-" for c in key.partition("/")[2])
    return f"{plain[:24].strip('-') or 'machine'}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"


def locking_seconds(memory_bytes: int) -> float:
    """How long the kernel may take to lock so much memory."""
    return memory_bytes / _LOCKED_A_SECOND


def own_mac(owner: str, nic: str) -> str:
    """The address of a network card for which none was said, always the same for it: QEMU would give the first card of
    every machine the same one."""
    return ":".join(("52", *(f"{byte:02x}" for byte in hashlib.sha256(f"{owner}\0{nic}".encode()).digest()[:5])))


def whole_cpus(thousandths: int) -> int:
    """How many vCPUs an amount of CPU needs; at least one."""
    return max(1, -(-thousandths // CPU))


def cpus_text(thousandths: int) -> str:
    """As manifests have it: ``1500m``, ``2``."""
    return str(Quantity(thousandths * (NANO // CPU)))


def memory_text(size: int) -> str:
    """As manifests have it: ``512Mi``, ``2Gi``; an odd number of bytes as such."""
    return f"{size} bytes" if size % 1024 or not size else str(Quantity(size * NANO, Format.BINARY_SI))
