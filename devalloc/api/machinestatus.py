"""What a VirtualMachine is now: where it was placed, what is kept for it, what it may have and has."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from devalloc.api.claim import DeviceAllocation
from devalloc.api.fields import (
    AmountField,
    ApiModel,
    Int64,
    PlainName,
    SubdomainName,
    Text,
    unique_by,
)
from devalloc.api.machinestart import MAX_NUMA_NODES
from devalloc.api.meta import Condition


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
