"""What a machine is to be, in the units of this room: the input of every function that starts or scales one.

Namespace, TAP interface and CPUs that a machine runs in, their provider, and how a guest gets the address that it has
there.

From the VirtualMachine object that users write to what this room works with.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from devalloc.api.host_pool_names import CPU as CPU_RESOURCE
from devalloc.api.host_pool_names import MEMORY_RESOURCES
from devalloc.api.machine_start import MachineCloudInit
from devalloc.api.quantity import NANO, Format, Quantity
from devalloc.api.virtual_machine import MachineNic, VirtualMachine
from devalloc.inventory.capacity.config import HUGE_PAGES, resource_named
from devalloc_node.errors import Denied
from devalloc_node.model.network_address import NetworkAddress

if TYPE_CHECKING:
    from devalloc_machines.qemu.cpu_pinning import CpuHolder

DiskFormat = Literal["raw", "qcow2"]
DiskDevice = Literal["virtio", "nvme"]
CloneMode = Literal["overlay", "copy"]
NicModel = Literal["virtio", "e1000e"]
Firmware = Literal["bios", "uefi"]

MIB = 1 << 20
_NUMA_DEVICE = re.compile(r"numa([0-9]{1,4})", re.ASCII)
"""What the node's pool calls the device with the CPUs and memory of a NUMA node."""
CPU = 1000
"""Thousandths in one CPU: amounts of CPU are integers of these."""


_LOCKED_A_SECOND = 1 << 30
"""Bytes of memory that the kernel gives out, zeroed, and locks: several times as many on a host with nothing else to
do."""
EMULATED_PREFIX = "plug-"
"""How the ids of plain devices begin in QEMU; those of claims are others."""
MAX_EMULATED_NAME = 20
"""As many characters as the serial number of a disk has, by which its guest finds it. QEMU's block nodes have 31."""


@dataclass(frozen=True, slots=True)
class AmountBounds:
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
    clone: CloneMode | None = None
    """The guest has a disk of its own that begins as the image; None: the image itself."""

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
    """The interface is in the sandbox of its machine, not of the host."""

    @property
    def host(self) -> str:
        """What of the host it stands on; empty if that is nothing of its own."""
        return self.interface or ""


@dataclass(frozen=True, slots=True)
class RateLimits:
    """Bytes per second that a machine may not exceed; None: no limit. They change while it runs."""

    disk_io: int | None = None
    """Of all its disks together, reading and writing."""
    nics: tuple[int | None, ...] = ()
    """Of each of its network cards, in each direction."""

    @property
    def is_limited(self) -> bool:
        return self.disk_io is not None or any(rate is not None for rate in self.nics)


NO_RATES = RateLimits()


@dataclass(frozen=True, slots=True)
class NumaCell:
    """A NUMA node of the guest, which stands for one of the host."""

    host_node: int
    cpus: int
    """Thousandths of a CPU that are reserved for the machine there: its part of the vCPUs is as large."""
    memory: int
    """Bytes that are reserved there."""


@dataclass(frozen=True, slots=True)
class EmulatedDevice:
    """A disk or a network card without hardware behind it, plugged into a machine that runs already."""

    name: str
    """A DNS label of at most MAX_PLAIN_NAME characters."""
    what: Disk | Nic

    @property
    def id(self) -> str:
        """What it is called in QEMU; all that it stands on there begins with this and a dot."""
        return f"{EMULATED_PREFIX}{self.name}"


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """A machine to start, or (``adopt``) one that runs already."""

    namespace: str
    name: str
    uid: str
    """Of the VirtualMachine object: the same name with another UID is another machine. Empty: it has no object."""
    cpus: AmountBounds
    memory: AmountBounds
    dimm_bytes: int | None = None
    """The size of the DIMMs that memory is added by; None: virtio-mem."""
    huge_page_bytes: int | None = None
    """The size of the huge pages that all of its memory comes from; None: ordinary pages."""
    kernel: str | None = None
    initrd: str | None = None
    append: str = ""
    disks: tuple[Disk, ...] = ()
    adopt: str | None = None
    """The QMP socket of the machine to adopt."""
    nics: tuple[Nic, ...] = ()
    rates: RateLimits = NO_RATES
    disk_bytes: int = 0
    """Bytes of disk that are reserved for it."""
    claims: tuple[str, ...] = ()
    pci_slots: int = 0
    """Root ports that devices can be plugged into."""
    pci_window: int | None = None
    """Bytes of 64-bit prefetchable addresses that each of them reserves; None: as much as the node's devices need."""
    firmware: Firmware = "bios"
    secure_boot: bool = False
    """Its firmware starts only what is signed."""
    tpm: bool = False
    """A TPM 2.0 in the guest."""
    iommu: bool = False
    """An IOMMU in the guest, so that it can pass devices on to machines of its own."""
    numa_node: int | None = None
    """The host's NUMA node that its memory comes from."""
    numa_cells: tuple[NumaCell, ...] = ()
    """Its guest's NUMA nodes, the one with the most CPUs first; none if it is on one NUMA node of the host, or on any.
    They stay as they are while it runs, whatever is reserved for it by then."""
    page_node: int | None = None
    """The host's NUMA node whose huge pages it takes first, because they are reserved for it: others belong to machines
    that must be on another node. None if its memory is bound to nodes, or comes from ordinary pages."""
    pinned: bool = False
    """Its CPUs run on those of the host that are chosen when it starts, each on one of its own."""
    cloud_init: MachineCloudInit | None = None
    guest_reports: bool = False
    """What its guest writes on its second serial port is for this plugin."""
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
    def wants_sandbox(self) -> bool:
        """Whether it is to live in a place of its own of the host's."""
        return any(nic.warm for nic in self.nics)

    @property
    def id(self) -> str:
        """What its files and its cgroup are called: short, one path component, readable."""
        return machine_id(self.key)

    @property
    def locking_seconds(self) -> float:
        """How long it may take to have all of its memory at once: locked, as VFIO does with the first device, or in
        huge pages, which QEMU clears before it answers. 0 if neither is so."""
        return locking_seconds(self.memory.use) if self.claims or self.huge_page_bytes else 0.0

    @property
    def host_nodes(self) -> tuple[int, ...]:
        """The host's NUMA nodes that it is on; none: any."""
        if self.numa_cells:
            return tuple(cell.host_node for cell in self.numa_cells)
        return () if self.numa_node is None else (self.numa_node,)

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


TAP = "tap0"
"""What the TAP interface of a home is called. It is the only one in its namespace, so that each home has one of this
name."""


@dataclass(frozen=True, slots=True)
class MachineSandbox:
    """What a machine finds there."""

    namespace: Path | None = None
    """The file of the network namespace that QEMU lives in and that has the interfaces of its warm cards; None: the
    host's."""
    cpus: tuple[int, ...] = ()
    """CPUs of the host, the only ones that QEMU may run on; none: any."""
    network: NetworkAddress | None = None
    """Who the guest is on its warm card; None: the card is connected to nothing that gives addresses."""


HOST_SANDBOX = MachineSandbox()
"""Of machines that have no place of their own."""


class SandboxProvider:
    """Places for machines to live in. This one, of a node without warm setups, has none to give. Safe for threads, of
    which one at a time asks for a machine."""

    def give(self, spec: MachineSpec, run: str) -> MachineSandbox:
        """A home for one run of a machine; the same again for the same run, and those of its earlier runs are given
        back. Raises Denied (``PoolMissing``; ``TryAgain``, retryable), Failed."""
        raise Denied(
            "PoolMissing",
            f"machine {spec.key} requires a warm setup (backend warm), but this node has none; start its plugin with "
            "--warm, or name another node",
        )

    def choosing_cpus(self) -> AbstractContextManager[Mapping[int, Sequence[CpuHolder]]]:
        """Inside, no home is given CPUs; who has each CPU of the host in a home, once for each vCPU."""
        return nullcontext({})

    def network(self, key: str, run: str) -> NetworkAddress | None:
        """Who the guest of one run of a machine is on its warm card. Raises nothing."""
        return None

    def take_back(self, key: str) -> None:
        """Take back all that a machine has: it has ended. What cannot be taken back now is later."""

    def check_lent(self, spec: MachineSpec) -> None:
        """Whether a machine that is to be adopted has no owner that waits for it. Raises Denied (``SetupNotTaken``)."""


def spec_of(machine: VirtualMachine) -> MachineSpec:
    """The API object in the units of this room."""
    namespace, name = machine.key
    spec = machine.spec
    start = spec.start
    huge_page_bytes = HUGE_PAGES.get(resource_named(spec.memory.resource))
    reserved = _reserved_cells(machine) if start and start.numa_node is None else ()
    is_spread = len(reserved) > 1 and reserved[0].cpus > 0 and any(cell.memory for cell in reserved)
    cells = reserved if is_spread else ()
    page_nodes = [cell.host_node for cell in reserved if cell.memory] if huge_page_bytes and not cells else []
    return MachineSpec(
        namespace=namespace,
        name=name,
        uid=machine.metadata.uid or "",
        cpus=AmountBounds(*(_thousandths(amount.nano) for amount in (spec.cpu.min, spec.cpu.max, spec.cpu.wanted))),
        memory=AmountBounds(
            *(amount.nano // 10**9 for amount in (spec.memory.min, spec.memory.max, spec.memory.wanted))
        ),
        dimm_bytes=None if spec.memory.slot_size is None else spec.memory.slot_size.nano // 10**9,
        huge_page_bytes=huge_page_bytes,
        kernel=start.kernel if start else None,
        initrd=start.initrd if start else None,
        append=start.append if start else "",
        disks=tuple(Disk(d.path, d.format, d.read_only, d.device, d.clone) for d in start.disks) if start else (),
        adopt=spec.adopt.qmp_socket if spec.adopt else None,
        nics=tuple(map(_nic, spec.nics)),
        rates=RateLimits(_whole(spec.disk_io), tuple(_whole(nic.bandwidth) for nic in spec.nics)),
        disk_bytes=_whole(spec.disk) or 0,
        claims=tuple(spec.claims),
        pci_slots=spec.slots,
        pci_window=start.pci_window.nano // 10**9 if start and start.pci_window else None,
        firmware=start.firmware.type if start and start.firmware else "bios",
        secure_boot=start.firmware.secure_boot if start and start.firmware else False,
        tpm=start.tpm if start else False,
        iommu=start.iommu if start else False,
        numa_node=start.numa_node if start else None,
        numa_cells=cells,
        page_node=page_nodes[0] if page_nodes else None,
        pinned=start.pinned if start else False,
        cloud_init=start.cloud_init if start else None,
        guest_reports=spec.guest_reports,
        running=spec.running,
        restart=spec.restart_policy,
        powerdown_seconds=float(spec.powerdown_seconds),
        node=machine.node or "",
    )


def _reserved_cells(machine: VirtualMachine) -> tuple[NumaCell, ...]:
    """What is reserved for it by NUMA node."""
    reserved: dict[int, list[int]] = {}
    for entry in (machine.status.allocations or ()) if machine.status else ():
        match = _NUMA_DEVICE.fullmatch(entry.device_name)
        for amount in (entry.allocations or ()) if match is not None else ():
            sums = reserved.setdefault(int(match[1]), [0, 0]) if match else [0, 0]
            sums[0] += _thousandths(amount.allocation.nano) if amount.name == CPU_RESOURCE else 0
            sums[1] += amount.allocation.nano // NANO if amount.name in MEMORY_RESOURCES else 0
    return tuple(
        sorted((NumaCell(node, *sums) for node, sums in reserved.items()), key=lambda c: (-c.cpus, c.host_node))
    )


def _nic(nic: MachineNic) -> Nic:
    is_warm = nic.backend == "warm"
    return Nic(nic.model, TAP if is_warm else nic.interface, str(nic.mac) if nic.mac else None, is_warm)


def _whole(amount: Quantity | None) -> int | None:
    return None if amount is None else -(-amount.nano // NANO)


def _thousandths(nano: int) -> int:
    return -(-nano // 10**6)


_ARGUMENT = "ip="


def kernel_argument(network: NetworkAddress, device: str = "") -> str:
    """For the guest's kernel, or its initramfs: ``ip=`` as the kernel's admin-guide/nfs/nfsroot.rst describes it.
    ``device``: in the guest; empty: its first network card."""
    mask = ipaddress.IPv4Interface(network.interface).netmask
    parts = [network.address, "", network.gateway, str(mask), "", device, "off", *network.nameservers[:2]]
    return _ARGUMENT + ":".join(parts)


def with_address(spec: MachineSpec, network: NetworkAddress | None) -> MachineSpec:
    """The machine as it is started there: its warm card has the MAC of the network, and its kernel gets the address
    unless its arguments have an ``ip=`` of their own. Raises Denied (``MacNotAllowed``)."""
    if network is None:
        return spec
    nics: list[Nic] = []
    for number, nic in enumerate(spec.nics):
        if nic.warm and nic.mac is not None and nic.mac.lower() != network.mac:
            raise Denied(
                "MacNotAllowed",
                f"machine {spec.key}: nics[{number}].mac is {nic.mac}, but in a warm setup with a network the card has "
                "the MAC of its setup; remove the field",
            )
        nics.append(replace(nic, mac=network.mac) if nic.warm else nic)
    append = spec.append
    if spec.kernel is not None and not any(word.startswith(_ARGUMENT) for word in append.split()):
        number = next(number for number, nic in enumerate(nics) if nic.warm)
        device = "" if len(nics) == 1 else f"eth{number}"
        append = f"{append} {kernel_argument(network, device)}".strip()
    return replace(spec, nics=tuple(nics), append=append)
