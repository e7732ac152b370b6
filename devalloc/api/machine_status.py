"""The status of a VirtualMachine: its node, and the amounts that are reserved, permitted and actual."""

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
    Unit,
    unique_by,
)
from devalloc.api.machine_start import MAX_NUMA_NODES
from devalloc.api.meta import Condition


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
