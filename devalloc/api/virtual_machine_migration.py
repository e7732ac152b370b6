"""VirtualMachineMigration: move a machine to another node while it runs."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from devalloc.api.fields import (
    RELATED,
    AmountField,
    ApiModel,
    PlainName,
    SubdomainName,
    Text,
    Unit,
    pattern_schema,
    quote_value,
    raise_faults,
    unique_by,
)
from devalloc.api.meta import DEVALLOC
from devalloc.api.object_meta import Condition, ObjectMeta, Timestamp
from devalloc.api.virtual_machine import MAX_CPUS, OwnAddress, Port

MAX_SIZE = 2**62 - 1
MAX_QUEUES = 1024
MAX_CELLS = 64
MAX_ROOT_PORTS = 256
MAX_FLAGS = 1024
MAX_CERTIFICATE = 4096
"""Maximum characters of a certificate."""

_MACHINE_TYPE = re.compile(r"pc-q35-[0-9]{1,3}\.[0-9]{1,3}(\.[0-9]{1,3})?", re.ASCII)
_FLAG = re.compile(r"[a-z0-9_]{1,32}", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_RUN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


def _machine_type(value: object) -> object:
    if not isinstance(value, str) or _MACHINE_TYPE.fullmatch(value) is None:
        raise ValueError(f"must be a machine type with a version, such as pc-q35-7.2, not {quote_value(value)}")
    return value


def _flag(value: object) -> object:
    if not isinstance(value, str) or _FLAG.fullmatch(value) is None:
        raise ValueError(f"must be a CPU flag such as avx2, not {quote_value(value)}")
    return value


def _digest(value: object) -> object:
    if not isinstance(value, str) or _DIGEST.fullmatch(value) is None:
        raise ValueError(f"must be a SHA-256 digest of 64 hexadecimal digits, not {quote_value(value)}")
    return value


def _run(value: object) -> object:
    if not isinstance(value, str) or _RUN.fullmatch(value) is None:
        raise ValueError(f"must be a UUID in lower case, not {quote_value(value)}")
    return value


Size = Annotated[int, Field(ge=0, le=MAX_SIZE)]
Bytes = Annotated[Size, Unit("bytes")]
Run = Annotated[str, BeforeValidator(_run), pattern_schema(_RUN.pattern, "must be a UUID", maxLength=36)]
Digest = Annotated[
    str, BeforeValidator(_digest), pattern_schema(_DIGEST.pattern, "must be a SHA-256 digest", maxLength=64)
]
MachineType = Annotated[
    str,
    BeforeValidator(_machine_type),
    pattern_schema(_MACHINE_TYPE.pattern, "must be a machine type such as pc-q35-7.2", maxLength=32),
]
CpuFlag = Annotated[str, BeforeValidator(_flag), pattern_schema(_FLAG.pattern, "must be a CPU flag", maxLength=32)]
Certificate = Annotated[str, Field(max_length=MAX_CERTIFICATE)]


class MigrationRootPort(ApiModel):
    """The address windows of a PCI root port; 0: what its firmware gives."""

    prefetchable: Bytes = 0
    """The 64-bit prefetchable window."""
    memory: Bytes = 0
    """The window below 4 GiB."""


class MigrationQueues(ApiModel):
    """The queues of a network card."""

    nic: Annotated[int, Field(ge=0, le=7)]
    """Its index in spec.nics of the machine."""
    count: Annotated[int, Field(ge=1, le=MAX_QUEUES)]
    """Its pairs of queues."""


class MigrationCell(ApiModel):
    """What is reserved for a NUMA node of the guest."""

    cpu_milli: Annotated[int, Field(ge=0, le=MAX_CPUS * 1000), Unit("thousandths of a CPU")]
    """CPU time."""
    memory: Bytes
    """Memory."""


class MigrationFirmware(ApiModel):
    """The UEFI firmware with which the machine runs."""

    code_digest: Digest
    """The SHA-256 digest of its code."""
    variables_size: Bytes
    """The size of its variables."""


class MigrationPlatform(ApiModel):
    """What the guest sees that follows from the source, and must be the same on the target."""

    machine_type: MachineType
    """QEMU's machine type, with its version."""
    root_ports: list[MigrationRootPort] = Field(default_factory=list, max_length=MAX_ROOT_PORTS)
    """The root ports of all buses, the first one first."""
    queues: list[MigrationQueues] = Field(default_factory=list, max_length=8)
    """The network cards that have several pairs of queues."""
    cells: list[MigrationCell] = Field(default_factory=list, max_length=MAX_CELLS)
    """The NUMA nodes of the guest, in its order; empty if it sees one."""
    distances: list[Annotated[int, Field(ge=1, le=254)]] = Field(default_factory=list, max_length=MAX_CELLS**2)
    """The distances between these nodes, row by row."""
    address_bits: Annotated[int, Field(ge=32, le=64)] | None = None
    """Physical address bits of its CPUs, if known."""
    cpu_flags: list[CpuFlag] = Field(default_factory=list, max_length=MAX_FLAGS)
    """Features of its CPUs, where they are those of the source's host."""
    firmware: MigrationFirmware | None = None
    """Its UEFI firmware, if it has that."""

    @model_validator(mode="after")
    def _square(self) -> MigrationPlatform:
        size = len(self.cells) ** 2
        if self.distances and len(self.distances) != size:
            what = f"must have {size} entries, one for each pair of cells, but has {len(self.distances)}"
            raise_faults([(("distances",), what)], RELATED)
        return self


class MigrationDevice(ApiModel):
    """A device of a claim that is passed through."""

    claim: PlainName
    """The UID of the claim."""
    index: Annotated[int, Field(ge=0, le=255)]
    """Which of the claim's devices: its place among those that the claim has."""
    port: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9._-]{0,62}$", max_length=63)]
    """The root port in QEMU that it is on, and must be on there, too."""
    functions: list[Annotated[str, Field(pattern=r"^[ -~]+$", max_length=253)]] = Field(min_length=1, max_length=8)
    """Which hardware its functions are, and which VFIO driver they have: the target must have the same."""


class MigrationAmounts(ApiModel):
    """What the machine has at the moment."""

    cpu_milli: Annotated[int, Field(ge=0, le=MAX_CPUS * 1000), Unit("thousandths of a CPU")] | None = None
    """CPU time."""
    vcpus: Annotated[int, Field(ge=1, le=MAX_CPUS)] | None = None
    """CPUs that the guest sees."""
    memory_bytes: Bytes | None = None
    """Memory that the guest is asked to have."""


class MigrationOffer(ApiModel):
    """What the source says of the machine."""

    run: Run
    """The run of the machine, which goes on."""
    accel: Literal["kvm", "tcg"]
    """How QEMU runs its CPUs."""
    platform: MigrationPlatform
    amounts: MigrationAmounts
    devices: list[MigrationDevice] = Field(default_factory=list, max_length=MAX_ROOT_PORTS)
    """The devices of its claims."""
    certificate: Certificate
    """The certificate of the source's own authority for this migration, as PEM."""
    restart_digest: Digest | None = None
    """Of the annotation devalloc.io/restart with which this run was started: if the machine has another one by now, its
    target starts it again."""


class MigrationDestination(ApiModel):
    """Where the target waits for the machine."""

    address: OwnAddress
    """An address of the target."""
    port: Port
    """The port at that address."""
    certificate: Certificate
    """The certificate of the target's own authority for this migration, as PEM."""
    firmware_stored: bool = False
    """Whether the target has stored the UEFI variables and the TPM that came with the machine. The source hands a
    machine that has any over only then."""


class MigrationProgress(ApiModel):
    """How much of the machine's memory has been sent."""

    transferred: Bytes = 0
    """Sent so far; memory that the guest changes is sent again."""
    remaining: Bytes = 0
    """Still to be sent."""
    total: Bytes = 0
    """The memory of the guest."""
    downtime_seconds: Annotated[AmountField, Unit("seconds")] | None = None
    """For how long the guest stood still, once everything is sent."""


MigrationPhase = Literal["Pending", "Scheduled", "PreparingTarget", "TargetReady", "Running", "Succeeded", "Failed"]


class VirtualMachineMigrationStatus(ApiModel):
    """How far the migration is."""

    phase: MigrationPhase = "Pending"
    """``Pending``: it has no target yet. ``Scheduled``: the target's capacity is reserved. ``PreparingTarget``: the
    source has described the machine. ``TargetReady``: the target waits for it. ``Running``: its memory is being sent.
    ``Succeeded``: it runs on the target. ``Failed``: it stays on the source."""
    reason: Text = ""
    """A code for why it waits or failed."""
    message: Annotated[str, Field(max_length=32768)] = ""
    """The same as a sentence."""
    source_node: PlainName | None = None
    """The node that the machine leaves."""
    target_node: PlainName | None = None
    """The node to which it moves."""
    start_time: Timestamp | None = None
    """When its target was chosen; RFC 3339."""
    completion_time: Timestamp | None = None
    """When it succeeded or failed; RFC 3339."""
    offer: MigrationOffer | None = None
    destination: MigrationDestination | None = None
    progress: MigrationProgress | None = None
    conditions: Annotated[list[Condition], Field(max_length=16), AfterValidator(unique_by("type"))] = Field(
        default_factory=list
    )
    """Ready: whether the machine has moved, and the reason and message of why not; Stalled: True if the migration
    failed."""


class VirtualMachineMigrationSpec(ApiModel):
    """Which machine moves. It cannot be changed."""

    vm_name: SubdomainName
    """The machine, in the namespace of the migration."""
    target_node: PlainName | None = None
    """The node to which it moves. By default devalloc chooses a node with room for it that reaches all it needs."""


class VirtualMachineMigration(ApiModel):
    """One move of a running machine to another node. Deleting it withdraws it, unless the machine has moved already.
    Namespaced."""

    api_version: Literal["devalloc.io/v1alpha1"] = DEVALLOC
    kind: Literal["VirtualMachineMigration"] = "VirtualMachineMigration"
    metadata: ObjectMeta
    spec: VirtualMachineMigrationSpec
    status: VirtualMachineMigrationStatus | None = None
