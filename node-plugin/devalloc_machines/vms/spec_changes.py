"""What of a machine's object applies only to its next run, and whether that run is to begin now. Pure."""

from __future__ import annotations

from devalloc.api.meta import RESTART
from devalloc.api.virtual_machine import VirtualMachine
from devalloc.store import Object
from devalloc_machines.qemu.records import MachineView
from devalloc_machines.qemu.spec import spec_of
from devalloc_machines.vms.objects import Outcome

_MAX_LISTED = 5
"""Changes of a spec that a message names."""


def is_to_restart(vm: VirtualMachine, machine: MachineView) -> bool:
    """Whether the run of a machine is to be ended and another one begun: it was started with another request for that,
    or with none."""
    request = vm.metadata.annotations.get(RESTART)
    if request is None or not machine.runs or machine.is_paused or machine.adopted or machine.created_as is None:
        return False
    return request != machine.created_as.metadata.annotations.get(RESTART)


def with_numa_node(vm: VirtualMachine, held: Object) -> VirtualMachine:
    """With its memory from the NUMA node that it was placed on."""
    start, numa = vm.spec.start, (held.get("status") or {}).get("numaNode")
    if start is None or start.numa_node is not None or not isinstance(numa, int):
        return vm
    spec = vm.spec.model_copy(update={"start": start.model_copy(update={"numa_node": numa})})
    return vm.model_copy(update={"spec": spec})


def pending_changes(vm: VirtualMachine, machine: MachineView) -> list[Outcome]:
    """What of the spec cannot change while the machine runs, and has."""
    now, then = spec_of(vm), machine.started
    if then is None or not machine.runs:
        return []
    pairs = {
        "start.kernel": (now.kernel, then.kernel),
        "start.initrd": (now.initrd, then.initrd),
        "start.append": (now.append, then.append),
        "start.disks": (now.disks, then.disks),
        "start.cloudInit": (now.cloud_init, then.cloud_init),
        "start.iommu": (now.iommu, then.iommu),
        "start.firmware": ((now.firmware, now.secure_boot), (then.firmware, then.secure_boot)),
        "start.tpm": (now.tpm, then.tpm),
        "start.numaNode": (now.numa_node, then.numa_node),
        "start.pinned": (now.pinned, then.pinned),
        "start.pciWindow": (now.pci_window, then.pci_window),
        "guestReports": (now.guest_reports, then.guest_reports),
        "adopt": (now.adopt, then.adopt),
        "nics": (now.nics, then.nics),
        "cpu.min": (now.cpus.least, then.cpus.least),
        "cpu.max": (now.cpus.most, then.cpus.most),
        "memory.min": (now.memory.least, then.memory.least),
        "memory.max": (now.memory.most, then.memory.most),
        "memory.slotSize": (now.dimm_bytes, then.dimm_bytes),
        "memory.hugePages": (now.huge_page_bytes, then.huge_page_bytes),
        # If the spec does not say how many, there are spare ones, whatever claims come and go.
        "pciSlots": (then.pci_slots if vm.spec.pci_slots is None else vm.spec.pci_slots, then.pci_slots),
    }
    changed = [name for name, (wanted, has) in pairs.items() if wanted != has]
    if not changed:
        return []
    listed = ", ".join(changed[:_MAX_LISTED]) + (
        f" and {len(changed) - _MAX_LISTED} more" * (len(changed) > _MAX_LISTED)
    )
    advice = f"devalloc restart vm/{vm.metadata.name}"
    return [Outcome("RestartNeeded", f"changes of {listed} in its spec apply at its next start: {advice}")]
