"""VirtualMachine: a machine on one node, with what it is to be and what it is."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from devalloc.api.fields import RELATED, ApiModel, Fault, PlainName, SubdomainName, refuse
from devalloc.api.machinebounds import CpuBounds, MemoryBounds, PositiveAmount
from devalloc.api.machinescaling import MachineRunner, MachineScaling
from devalloc.api.machinestart import MachineAdopt, MachineNic, MachineStart
from devalloc.api.machinestatus import VirtualMachineStatus
from devalloc.api.meta import DEVALLOC, ObjectMeta
from devalloc.api.quantity import Quantity

MAX_CLAIMS = 32
MAX_PCI_SLOTS = 64
SPARE_PCI_SLOTS = 4
"""Root ports beyond those of the claims, where ``pciSlots`` does not say how many there are."""


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
