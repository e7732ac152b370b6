"""From the VirtualMachine object that users write to what this room works with."""

from __future__ import annotations

from devalloc.api.machinestart import MachineNic
from devalloc.api.virtualmachine import VirtualMachine
from devalloc_node.machine.home import TAP
from devalloc_node.machine.spec import Bounds, Disk, MachineSpec, Nic


def spec_of(machine: VirtualMachine) -> MachineSpec:
    """The API object in the units of this room."""
    namespace, name = machine.key
    spec = machine.spec
    start = spec.start
    return MachineSpec(
        namespace=namespace,
        name=name,
        uid=machine.metadata.uid or "",
        cpus=Bounds(*(_thousandths(amount.nano) for amount in (spec.cpu.min, spec.cpu.max, spec.cpu.wanted))),
        memory=Bounds(*(amount.nano // 10**9 for amount in (spec.memory.min, spec.memory.max, spec.memory.wanted))),
        dimm_bytes=None if spec.memory.slot_size is None else spec.memory.slot_size.nano // 10**9,
        kernel=start.kernel if start else None,
        initrd=start.initrd if start else None,
        append=start.append if start else "",
        disks=tuple(Disk(d.path, d.format, d.read_only, d.device) for d in start.disks) if start else (),
        adopt=spec.adopt.qmp_socket if spec.adopt else None,
        nics=tuple(map(_nic, spec.nics)),
        claims=tuple(spec.claims),
        pci_slots=spec.slots,
        pci_window=start.pci_window.nano // 10**9 if start and start.pci_window else None,
        iommu=start.iommu if start else False,
        numa_node=start.numa_node if start else None,
        pinned=start.pinned if start else False,
        running=spec.running,
        restart=spec.restart_policy,
        powerdown_seconds=float(spec.powerdown_seconds),
        node=machine.node or "",
    )


def _nic(nic: MachineNic) -> Nic:
    is_warm = nic.backend == "warm"
    return Nic(nic.model, TAP if is_warm else nic.interface, str(nic.mac) if nic.mac else None, is_warm)


def _thousandths(nano: int) -> int:
    return -(-nano // 10**6)
