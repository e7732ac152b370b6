"""VirtualMachine: a machine on one node, how it is started or found, and between which bounds it is scaled."""

from __future__ import annotations

import re
from functools import reduce
from operator import add
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from devalloc.api.claim import DeviceAllocation
from devalloc.api.fields import (
    RELATED,
    AmountField,
    ApiModel,
    Fault,
    Int64,
    Mac,
    PlainName,
    Positive,
    SubdomainName,
    Text,
    pattern_schema,
    refuse,
    shown,
    unique_by,
)
from devalloc.api.machinescaling import MachineRunner, MachineScaling
from devalloc.api.meta import DEVALLOC, Condition, ObjectMeta
from devalloc.api.quantity import NANO, Quantity

MIB = 2**20
MEMORY_BLOCK = 2 * MIB
"""Bytes in which virtio-mem gives and takes memory."""
SLOT_BLOCK = 128 * MIB
"""Bytes in which a guest brings the memory of a DIMM online."""
MAX_SLOTS = 255
"""DIMM slots of a machine."""
MAX_CPUS = 1024
MIN_CPU = NANO // 100
"""The least share of a CPU, in nano: a kernel bounds CPU time in no steps below a millisecond of its 100."""
MAX_NUMA_NODES = 1024
"""That a kernel can tell apart."""
MAX_CLAIMS = 32
MAX_PCI_SLOTS = 64
SPARE_PCI_SLOTS = 4
"""Root ports beyond those of the claims, where ``pciSlots`` does not say how many there are."""
MAX_LINE = 2047
"""Characters of a kernel's command line."""
MAX_SOCKET_PATH = 107
"""Bytes of a path that a socket can be bound to."""

# Components but "." and "..", written so that RE2 reads it too.
_BLANK = r"\x00-\x1f\x7f"
_COMPONENT = rf"([^/.{_BLANK}][^/{_BLANK}]*|\.[^/.{_BLANK}][^/{_BLANK}]*|\.\.[^/{_BLANK}]+)"
_PATH = re.compile(rf"(/{_COMPONENT})+")
_LINE = re.compile(rf"[^{_BLANK}]*")
_INTERFACE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,14}", re.ASCII)


def _path(value: object) -> object:
    if not isinstance(value, str) or len(value) > 4096 or _PATH.fullmatch(value) is None:
        raise ValueError(f"must be an absolute path without '.', '..' and doubled '/', not {shown(value)}")
    return value


def _socket(value: object) -> object:
    if isinstance(value, str) and len(value.encode("utf-8", "replace")) > MAX_SOCKET_PATH:
        raise ValueError(f"must have at most {MAX_SOCKET_PATH} bytes, which is what a socket's path can have")
    return _path(value)


def _line(value: object) -> object:
    if isinstance(value, str) and len(value) > MAX_LINE:
        raise ValueError(f"must have at most {MAX_LINE} characters, and has {len(value)}")
    if isinstance(value, str) and _LINE.fullmatch(value) is None:
        raise ValueError("must be one line without control characters")
    return value


def _interface(value: object) -> object:
    if not isinstance(value, str) or _INTERFACE.fullmatch(value) is None:
        raise ValueError(f"must be the name of a network interface (at most 15 characters), not {shown(value)}")
    return value


_PATH_WORDS = "must be an absolute path without '.', '..' and doubled '/'"
Path = Annotated[
    str,
    BeforeValidator(_path),
    pattern_schema(_PATH.pattern, _PATH_WORDS, maxLength=4096),
]
SocketPath = Annotated[
    str,
    BeforeValidator(_socket),
    pattern_schema(_PATH.pattern, _PATH_WORDS, maxLength=MAX_SOCKET_PATH),
]
CommandLine = Annotated[
    str,
    BeforeValidator(_line),
    pattern_schema(_LINE.pattern, "must be one line without control characters", maxLength=MAX_LINE),
]
InterfaceName = Annotated[
    str,
    BeforeValidator(_interface),
    pattern_schema(_INTERFACE.pattern, "must be the name of a network interface", maxLength=15),
]


def _more_than_nothing(amount: Quantity) -> Quantity:
    if amount.nano <= 0:
        raise ValueError(f"must be more than zero, and is {amount}")
    return amount


PositiveAmount = Annotated[Positive, AfterValidator(_more_than_nothing)]


def _bounds(least: Quantity, most: Quantity, use: Quantity | None) -> list[Fault]:
    """What is wrong with min <= use <= max."""
    if most < least:
        return [(("max",), f"must not be below min ({least}), and is {most}")]
    if use is not None and use < least:
        return [(("use",), f"must not be below min ({least}), and is {use}")]
    if use is not None and most < use:
        return [(("use",), f"must not be above max ({most}), and is {use}")]
    return []


class CpuBounds(ApiModel):
    """CPUs of a machine: the guest sees whole ones, and gets the time of ``use``; fractions such as 500m are fine."""

    min: PositiveAmount
    """What it never has less of, at least 10m."""
    max: PositiveAmount
    """What it never has more of. The machine is started with room for as many CPUs, rounded up."""
    use: PositiveAmount | None = None
    """What it has now; min where nothing is said."""

    @model_validator(mode="after")
    def _ordered(self) -> CpuBounds:
        faults = _bounds(self.min, self.max, self.use)
        if self.min.nano < MIN_CPU:
            faults.append((("min",), f"must be at least 10m, the least that a host can bound, and is {self.min}"))
        if self.max.nano > MAX_CPUS * NANO:
            faults.append((("max",), f"must not be above {MAX_CPUS}, and is {self.max}"))
        refuse(faults, RELATED)
        return self

    @property
    def wanted(self) -> Quantity:
        """``use``, or min."""
        return self.use or self.min

    @property
    def slots(self) -> int:
        """Whole CPUs that there must be room for."""
        return cpus_for(self.max)


def cpus_for(amount: Quantity) -> int:
    """The whole CPUs that a guest needs for an amount."""
    return -(-amount.nano // NANO)


class MemoryBounds(ApiModel):
    """Bytes of memory of a machine. It is started with min, and what is above comes and goes by the method."""

    min: PositiveAmount
    """What it never has less of: a multiple of 2Mi."""
    max: PositiveAmount
    """What it never has more of."""
    use: PositiveAmount | None = None
    """What it has now; min where nothing is said."""
    method: Literal["virtio-mem", "dimm"] = "virtio-mem"
    """How memory is added: in blocks of 2Mi, or in DIMMs of slotSize, which older guests know."""
    slot_size: PositiveAmount | None = None
    """The size of a DIMM, a multiple of 128Mi, with method dimm only."""

    @model_validator(mode="after")
    def _fit(self) -> MemoryBounds:
        faults: list[Fault] = []
        for name, amount in (("min", self.min), ("max", self.max), ("use", self.use)):
            if amount is not None and not _is_multiple(amount, MEMORY_BLOCK):
                faults.append(((name,), f"must be a multiple of 2Mi, and is {amount}"))
        refuse(faults or _bounds(self.min, self.max, self.use) or self._slot_faults(), RELATED)
        return self

    def _slot_faults(self) -> list[Fault]:
        slot = self.slot_size
        if self.method != "dimm":
            return [] if slot is None else [(("slotSize",), "goes with method dimm only")]
        if slot is None:
            return [(("slotSize",), "is required with method dimm")]
        if not _is_multiple(slot, SLOT_BLOCK):
            return [(("slotSize",), f"must be a multiple of 128Mi, and is {slot}")]
        above = [("max", self.max - self.min)] + ([] if self.use is None else [("use", self.use - self.min)])
        faults: list[Fault] = [
            ((name,), f"must be min ({self.min}) and a multiple of slotSize ({slot}) more")
            for name, amount in above
            if amount.nano % slot.nano
        ]
        if above[0][1].nano // slot.nano > MAX_SLOTS:
            faults.append((("max",), f"must be at most {MAX_SLOTS} times slotSize ({slot}) above min ({self.min})"))
        return faults

    @property
    def wanted(self) -> Quantity:
        """``use``, or min."""
        return self.use or self.min

    @property
    def slots(self) -> int:
        """DIMM slots that there must be room for; 0 with virtio-mem."""
        return (self.max - self.min).nano // self.slot_size.nano if self.slot_size is not None else 0


def _is_multiple(amount: Quantity, of: int) -> bool:
    return amount.nano % (of * NANO) == 0


class MachineDisk(ApiModel):
    """A disk image or block device of the host."""

    path: Path
    """Below one of the folders that the node's admin lists."""
    format: Literal["raw", "qcow2"]
    """How the image is read. It is never guessed: a guest can make a raw image look like another one."""
    read_only: bool = False
    device: Literal["virtio", "nvme"] = "virtio"
    """The controller that the guest sees."""


class MachineStart(ApiModel):
    """How the machine is started: with a kernel, from its first disk, or with a kernel and disks."""

    kernel: Path | None = None
    """The kernel's image, below one of the folders that the node's admin lists."""
    initrd: Path | None = None
    append: CommandLine = ""
    """The kernel's command line."""
    iommu: bool = False
    """Gives the guest an IOMMU, so that it can pass devices on to machines of its own."""
    numa_node: Annotated[int, Field(ge=0, lt=MAX_NUMA_NODES)] | None = None
    """The host's NUMA node that its memory comes from; any where nothing is said."""
    pinned: bool = False
    """Its CPUs run on CPUs of the host that are chosen for it when it starts, as many as it can have, and on no others.
    Takes a network card with backend warm, whose setup names them."""
    disks: Annotated[list[MachineDisk], Field(max_length=16), AfterValidator(unique_by("path"))] = Field(
        default_factory=list
    )

    @model_validator(mode="after")
    def _something_to_boot(self) -> MachineStart:
        faults: list[Fault] = []
        if self.kernel is None:
            if not self.disks:
                faults.append((("kernel",), "is required where there are no disks: there is nothing to start"))
            if self.initrd is not None:
                faults.append((("initrd",), "goes with a kernel"))
            if self.append:
                faults.append((("append",), "goes with a kernel"))
        refuse(faults, RELATED)
        return self


class MachineAdopt(ApiModel):
    """A QEMU that runs already."""

    qmp_socket: SocketPath
    """Its QMP socket, below one of the folders that the node's admin lists, and of the plugin's own user."""


class MachineNic(ApiModel):
    """An emulated network card, beside the devices of claims."""

    model: Literal["virtio", "e1000e"] = "virtio"
    backend: Literal["user", "tap", "warm"] = "user"
    """``user``: through the host's own sockets, nothing reaches the guest from outside. ``tap``: an interface.
    ``warm``: the TAP interface of one of the node's warm setups, in whose network namespace the machine lives."""
    interface: InterfaceName | None = None
    """The tap interface, which exists already."""
    bandwidth: PositiveAmount | None = None
    """Bytes per second in each direction that are kept for it of what its node has. Where nothing is said it takes its
    part of what nobody has kept."""
    mac: Mac | None = None
    """A unicast MAC address; where nothing is said one that is made of who the machine is, always the same."""

    @model_validator(mode="after")
    def _interface_of_tap(self) -> MachineNic:
        if self.backend == "tap" and self.interface is None:
            refuse([(("interface",), "is required with backend tap")], RELATED)
        if self.backend != "tap" and self.interface is not None:
            refuse([(("interface",), "goes with backend tap only")], RELATED)
        return self


def _unique(names: list[str]) -> list[str]:
    refuse(
        ((i,), f"is there already: entry [{names.index(name)}]") for i, name in enumerate(names) if name in names[:i]
    )
    return names


class VirtualMachineSpec(ApiModel):
    """What the machine is to be."""

    node_name: PlainName | None = None
    """The node that runs it. Where nothing is said one is chosen that has room for it and for its claims together; that
    needs nodes that publish what they have for machines."""
    numa_policy: Literal["none", "single-numa-node"] = "none"
    """``single-numa-node``: its CPUs, its memory and the devices of its claims come from one NUMA node. Counts on nodes
    that publish what they have for machines."""
    cpu: CpuBounds
    memory: MemoryBounds
    disk: PositiveAmount | None = None
    """Bytes of its node's disk that are kept for its images."""
    disk_io: Annotated[PositiveAmount | None, Field(alias="diskIO")] = None
    """Bytes per second of reading and writing that are kept for it of what its node has."""
    scaling: MachineScaling | None = None
    """Where said, ``use`` of cpu and memory is only what it is started with: from then on its load decides."""
    runner: MachineRunner | None = None
    """Where said, ``use`` of cpu is only how many CPUs it has and what time they begin with: from then on a controller
    decides that. Not beside scaling."""
    start: MachineStart | None = None
    """How it is started. Either this or adopt."""
    adopt: MachineAdopt | None = None
    """Which running machine it is. Either this or start."""
    nics: list[MachineNic] = Field(default_factory=list, max_length=8)
    claims: Annotated[list[SubdomainName], Field(max_length=MAX_CLAIMS), AfterValidator(_unique)] = Field(
        default_factory=list
    )
    """DeviceClaims of the machine's namespace whose devices it gets; they come and go while it runs."""
    pci_slots: Annotated[int, Field(ge=0, le=MAX_PCI_SLOTS)] | None = None
    """Root ports that devices can be plugged into, one for each; the number of claims and 4 where nothing is said."""
    running: bool = True
    """False: it is stopped (powered down by its guest, then ended) and stays so."""
    restart_policy: Literal["Always", "Never"] = "Always"
    """Whether a machine that ended, or whose node was restarted, is started again."""
    powerdown_seconds: Annotated[int, Field(ge=0, le=3600)] = 30
    """How long its guest may take to power down before it is ended."""
    reserve_max: bool = False
    """Its node keeps all of max free for it from its start on, not only min."""

    @model_validator(mode="after")
    def _started_or_adopted(self) -> VirtualMachineSpec:
        faults: list[Fault] = []
        if self.start is None and self.adopt is None:
            faults.append((("start",), "is required, or adopt: how does the machine come about?"))
        elif self.adopt is not None:
            if self.start is not None:
                faults.append((("adopt",), "must not stand next to start; the machine is either started or adopted"))
            if self.nics:
                faults.append((("nics",), "go with start only; an adopted machine has those it was started with"))
            if self.node_name is None:
                faults.append((("nodeName",), "is required with adopt: where does it run?"))
            if self.pci_slots is not None:
                faults.append((("pciSlots",), "goes with start only; an adopted machine has its own"))
        warm = [i for i, nic in enumerate(self.nics) if nic.backend == "warm"]
        faults += [(("nics", i, "backend"), "is warm, and a machine lives in one warm setup") for i in warm[1:]]
        if self.start is not None and self.start.pinned and not warm:
            faults.append((("start", "pinned"), "goes with a network card with backend warm only"))
        if self.runner is not None and self.scaling is not None:
            faults.append((("runner",), "must not stand next to scaling: either its guest decides or a controller"))
        if self.pci_slots is not None and self.pci_slots < len(self.claims):
            faults.append((("pciSlots",), f"must be at least one for each of the {len(self.claims)} claims"))
        refuse(faults, RELATED)
        return self

    @property
    def network(self) -> Quantity | None:
        """Bytes per second that its cards are to have for certain, all together; None where nothing is said."""
        said = [nic.bandwidth for nic in self.nics if nic.bandwidth is not None]
        return reduce(add, said) if said else None

    @property
    def slots(self) -> int:
        """Root ports that a machine is started with."""
        return len(self.claims) + SPARE_PCI_SLOTS if self.pci_slots is None else self.pci_slots


class MachineAmounts(ApiModel):
    """CPUs and bytes of memory, as far as they are known."""

    cpus: AmountField | None = None
    memory: AmountField | None = None


class MachinePermit(MachineAmounts):
    """What the machine may have at most, and who said so. What is permitted to one run is nothing to the next."""

    given_by: Text = ""
    """The server that gave the permit; empty where nobody limits the machine but its own bounds."""
    machine_id: Annotated[Text, Field(alias="machineID")] = ""
    """The run of the machine that it was given to; any where that was not known."""
    kept: MachineAmounts | None = None
    """What it was told before, where that is more and its agent has not said yet that it knows the permit; the machine
    counts for that as well."""


class MachineDevice(ApiModel):
    """A device that is plugged into the machine."""

    claim: SubdomainName
    pool: PlainName
    device: PlainName
    id: Text = ""
    """Its id in QEMU."""
    address: Text = ""
    """Its PCI address in the guest's eyes, such as 0000:01:00.0, as far as it is known."""


MachinePhase = Literal["Pending", "Starting", "Running", "Stopping", "Stopped", "Failed", "Unknown"]


class VirtualMachineStatus(ApiModel):
    """What the machine is, as the node's plugin last saw it."""

    phase: MachinePhase = "Pending"
    node_name: PlainName | None = None
    """The node that it was placed on. It stays there until it is deleted, or its spec names another one."""
    numa_node: Annotated[int, Field(ge=0, lt=MAX_NUMA_NODES)] | None = None
    """The NUMA node of that node, where its policy is to be on one."""
    allocations: list[DeviceAllocation] = Field(default_factory=list, max_length=256)
    """What its node keeps for it, of the pool that has the node's CPUs, memory and bandwidth; nothing while it is
    stopped."""
    wanted: MachineAmounts | None = None
    """What the spec asks for."""
    permitted: MachinePermit | None = None
    """What it may have at most now."""
    applied: MachineAmounts | None = None
    """What QEMU was last told."""
    observed: MachineAmounts | None = None
    """What QEMU says it has."""
    guest_observed: MachineAmounts | None = None
    """What its guest says it has."""
    reason: Text = ""
    """A code for why it is not what the spec wants."""
    message: Annotated[str, Field(max_length=32768)] = ""
    """The same as a sentence."""
    pid: Int64 | None = None
    """QEMU's process on the node."""
    machine_id: Annotated[Text, Field(alias="machineID")] = ""
    """The plugin's name for this run of the machine; another one after it was started anew."""
    runner_pod: Text = ""
    """The pod that runs it, where one does; agents may ask for permits by its name."""
    devices: Annotated[
        list[MachineDevice], Field(max_length=256), AfterValidator(unique_by("claim", "pool", "device"))
    ] = Field(default_factory=list)
    conditions: Annotated[list[Condition], Field(max_length=16), AfterValidator(unique_by("type"))] = Field(
        default_factory=list
    )


class VirtualMachine(ApiModel):
    """A machine whose CPUs, memory and devices change while it runs. Namespaced."""

    api_version: Literal["devalloc.io/v1alpha1"] = DEVALLOC
    kind: Literal["VirtualMachine"] = "VirtualMachine"
    metadata: ObjectMeta
    spec: VirtualMachineSpec
    status: VirtualMachineStatus | None = None

    @property
    def namespace(self) -> str:
        return self.metadata.namespace or "default"

    @property
    def node(self) -> str | None:
        """The node that is to run it: the one its spec names, else the one that was chosen; None before that."""
        return self.spec.node_name or (self.status.node_name if self.status is not None else None)

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name)"""
        return self.namespace, self.metadata.name
