"""VirtualMachine: a machine on one node."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from devalloc.api.claim import DeviceAllocation
from devalloc.api.fields import (
    RELATED,
    AmountField,
    ApiModel,
    FieldFault,
    Int64,
    PlainName,
    SubdomainName,
    Text,
    Unit,
    raise_faults,
    unique_by,
)
from devalloc.api.machine_bounds import Bytes, BytesPerSecond, CpuBounds, MemoryBounds
from devalloc.api.machine_scaling import MachineRunner, MachineScaling
from devalloc.api.machine_start import MAX_NUMA_NODES, MachineAdopt, MachineNic, MachineStart
from devalloc.api.meta import DEVALLOC, Condition, ObjectMeta
from devalloc.api.quantity import Quantity


class MachineAmounts(ApiModel):
    """CPUs and bytes of memory, as far as known."""

    cpus: Annotated[AmountField, Unit("CPUs")] | None = None
    """CPU time, in CPUs."""
    memory: Annotated[AmountField, Unit("bytes")] | None = None
    """Memory."""


class MachinePermit(MachineAmounts):
    """The maximum that the machine may have, and the source of the permit. A permit is for one run of the machine."""

    given_by: Text = ""
    """The server that granted the permit; empty if only the machine's own bounds limit it."""
    machine_id: Annotated[Text, Field(alias="machineID")] = ""
    """The run of the machine to which it was granted; any run if that was not known."""
    kept: MachineAmounts | None = None
    """The previous permit, if it was larger and the agent has not yet confirmed the new one; the machine counts with
    the larger amount until then."""


class MachineDevice(ApiModel):
    """A device that is plugged into the machine."""

    claim: SubdomainName
    """The claim that has it."""
    pool: PlainName
    """Its DevicePool."""
    device: PlainName
    """Its name in that pool."""
    id: Text = ""
    """Its id in QEMU."""
    address: Text = ""
    """Its PCI address in the guest, such as 0000:01:00.0, if known."""


MachinePhase = Literal["Pending", "Starting", "Running", "Stopping", "Stopped", "Failed", "Unknown"]


class VirtualMachineStatus(ApiModel):
    """The state of the machine, as its node's plugin last saw it."""

    phase: MachinePhase = "Pending"
    """What the machine is doing."""
    node_name: PlainName | None = None
    """The node on which it was placed. It stays there until it is deleted or its spec names another node."""
    numa_node: Annotated[int, Field(ge=0, lt=MAX_NUMA_NODES)] | None = None
    """The NUMA node of that node, if its policy is to be on one."""
    allocations: list[DeviceAllocation] = Field(default_factory=list, max_length=256)
    """What its node reserves for it, from the pool with the node's CPUs, memory and bandwidth; empty while it is
    stopped."""
    wanted: MachineAmounts | None = None
    """The amounts that the spec asks for."""
    permitted: MachinePermit | None = None
    """The maximum that it may have now."""
    applied: MachineAmounts | None = None
    """The amounts that were last set in QEMU."""
    observed: MachineAmounts | None = None
    """The amounts that QEMU reports."""
    guest_observed: MachineAmounts | None = None
    """The amounts that the guest reports."""
    reason: Text = ""
    """A code for why it differs from the spec."""
    message: Annotated[str, Field(max_length=32768)] = ""
    """The same as a sentence."""
    pid: Int64 | None = None
    """The process id of QEMU on the node."""
    machine_id: Annotated[Text, Field(alias="machineID")] = ""
    """The plugin's identifier of this run of the machine; it changes when the machine is started again."""
    runner_pod: Text = ""
    """The pod that runs it, if any; agents may use its name to ask for permits."""
    devices: Annotated[
        list[MachineDevice], Field(max_length=256), AfterValidator(unique_by("claim", "pool", "device"))
    ] = Field(default_factory=list)
    """The devices of claims that are plugged in."""
    conditions: Annotated[list[Condition], Field(max_length=16), AfterValidator(unique_by("type"))] = Field(
        default_factory=list
    )
    """Observations of the machine's state."""


MAX_CLAIMS = 32
MAX_PCI_SLOTS = 64
SPARE_PCI_SLOTS = 4
"""Root ports in addition to one per claim, if ``pciSlots`` is not set."""


def _unique(names: list[str]) -> list[str]:
    raise_faults(
        ((i,), f"is a duplicate of entry [{names.index(name)}]") for i, name in enumerate(names) if name in names[:i]
    )
    return names


class VirtualMachineSpec(ApiModel):
    """The desired state of the machine."""

    node_name: PlainName | None = None
    """The node that runs it. By default devalloc chooses a node with room for it together with its claims, among the
    nodes that publish their capacity for machines."""
    numa_policy: Literal["none", "single-numa-node"] = "none"
    """``single-numa-node``: its CPUs, its memory and the devices of its claims come from one NUMA node. Effective on
    nodes that publish their capacity for machines."""
    cpu: CpuBounds
    memory: MemoryBounds
    disk: Bytes | None = None
    """The part of its node's disk that is reserved for its images."""
    disk_io: Annotated[BytesPerSecond | None, Field(alias="diskIO")] = None
    """The rate of reading and writing that its node reserves for it."""
    scaling: MachineScaling | None = None
    """If set, ``use`` of cpu and memory is only the initial amount: from then on its load decides."""
    runner: MachineRunner | None = None
    """If set, ``use`` of cpu is only the number of CPUs and their initial CPU time: from then on a controller decides
    the time. Cannot be combined with scaling."""
    start: MachineStart | None = None
    """How to start it. Either start or adopt is required."""
    adopt: MachineAdopt | None = None
    """The running QEMU to adopt. Either start or adopt is required."""
    nics: list[MachineNic] = Field(default_factory=list, max_length=8)
    """Emulated network cards."""
    claims: Annotated[list[SubdomainName], Field(max_length=MAX_CLAIMS), AfterValidator(_unique)] = Field(
        default_factory=list
    )
    """DeviceClaims of the machine's namespace whose devices it gets; you can add and remove them while it runs."""
    pci_slots: Annotated[int, Field(ge=0, le=MAX_PCI_SLOTS)] | None = None
    """Root ports for devices, one for each device; by default the number of claims plus 4."""
    running: bool = True
    """False: it is stopped (powered down by its guest, then ended) and stays stopped."""
    restart_policy: Literal["Always", "Never"] = "Always"
    """Whether to start the machine again after it ended or its node was restarted."""
    powerdown_seconds: Annotated[int, Field(ge=0, le=3600), Unit("seconds")] = 30
    """How long to wait for its guest to power down before the machine is ended."""
    reserve_max: bool = False
    """Reserve all of max for it from its start on, not only min."""

    @model_validator(mode="after")
    def _started_or_adopted(self) -> VirtualMachineSpec:
        faults: list[FieldFault] = []
        if self.start is None and self.adopt is None:
            faults.append((("start",), "is required, or else adopt"))
        elif self.adopt is not None:
            if self.start is not None:
                faults.append((("adopt",), "cannot be combined with start; the machine is either started or adopted"))
            if self.nics:
                faults.append(
                    (("nics",), "need start; an adopted machine has the network cards with which it was started")
                )
            if self.node_name is None:
                faults.append((("nodeName",), "is required with adopt"))
            if self.pci_slots is not None:
                faults.append((("pciSlots",), "needs start; an adopted machine has its own"))
        warm = [i for i, nic in enumerate(self.nics) if nic.backend == "warm"]
        faults += [(("nics", i, "backend"), "is warm, but a machine can use only one warm setup") for i in warm[1:]]
        if self.start is not None and self.start.pinned and not warm:
            faults.append((("start", "pinned"), "needs a network card with backend warm"))
        if self.runner is not None and self.scaling is not None:
            faults.append((("runner",), "cannot be combined with scaling: either its guest decides or a controller"))
        if self.pci_slots is not None and self.pci_slots < len(self.claims):
            faults.append((("pciSlots",), f"must be at least one for each of the {len(self.claims)} claims"))
        raise_faults(faults, RELATED)
        return self

    @property
    def network(self) -> Quantity | None:
        """Bytes per second that are reserved for all its cards together; None if no card reserves any."""
        bandwidths = [nic.bandwidth for nic in self.nics if nic.bandwidth is not None]
        return reduce(add, bandwidths) if bandwidths else None

    @property
    def slots(self) -> int:
        """Root ports with which the machine starts."""
        return len(self.claims) + SPARE_PCI_SLOTS if self.pci_slots is None else self.pci_slots


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
        """The node that runs it: that of its spec, or else the one that devalloc chose; None before that."""
        return self.spec.node_name or (self.status.node_name if self.status is not None else None)

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name)"""
        return self.namespace, self.metadata.name
