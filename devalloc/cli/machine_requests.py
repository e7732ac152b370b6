"""Converting a VirtualMachine to a request to the node plugin: the same fields, with amounts as numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from devalloc.api.machine_start import MachineStart
from devalloc.api.quantity import NANO
from devalloc.api.virtual_machine import VirtualMachine
from devalloc.cli.command import BadInput
from devalloc_node.pb import node_pb2 as pb

if TYPE_CHECKING:
    from devalloc.api.machine_bounds import CpuBounds, MemoryBounds


def machine_request(manifest: dict[str, Any]) -> pb.CreateMachineRequest | pb.AdoptMachineRequest:
    """The request that creates or adopts the machine of a valid manifest. Raises BadInput if it should not run."""
    machine = VirtualMachine.model_validate(manifest)
    spec = machine.spec
    if not spec.running:
        raise BadInput("spec.running is false, so there is nothing to create")
    ref = pb.MachineRef(namespace=machine.namespace, name=machine.metadata.name)
    claims = [pb.ClaimRef(namespace=machine.namespace, name=name) for name in spec.claims]
    if spec.adopt is not None:
        return pb.AdoptMachineRequest(
            machine=ref,
            qmp_socket=spec.adopt.qmp_socket,
            cpu=_cpu(spec.cpu),
            memory=_memory(spec.memory),
            claims=claims,
            powerdown_seconds=spec.powerdown_seconds,
            node_name=spec.node_name or "",
        )
    assert spec.start is not None, "a valid machine has start or adopt"
    message = pb.MachineSpec(
        node_name=spec.node_name or "",
        cpu=_cpu(spec.cpu),
        memory=_memory(spec.memory),
        start=_start_message(spec.start),
        nics=[
            pb.Nic(model=nic.model, backend=nic.backend, interface=nic.interface or "", mac=nic.mac or "")
            for nic in spec.nics
        ],
        pci_slots=spec.pci_slots,
        restart_policy=spec.restart_policy,
        powerdown_seconds=spec.powerdown_seconds,
    )
    return pb.CreateMachineRequest(machine=ref, spec=message, claims=claims)


def _start_message(start: MachineStart) -> pb.Start:
    return pb.Start(
        kernel=start.kernel or "",
        initrd=start.initrd or "",
        append=start.append,
        iommu=start.iommu,
        numa_node=start.numa_node,
        pinned=start.pinned,
        pci_window_bytes=start.pci_window.nano // NANO if start.pci_window else None,
        disks=[
            pb.Disk(path=disk.path, format=disk.format, read_only=disk.read_only, device=disk.device)
            for disk in start.disks
        ],
    )


def _cpu(bounds: CpuBounds) -> pb.CpuBounds:
    def milli(nano: int) -> int:
        return -(-nano // (NANO // 1000))

    return pb.CpuBounds(
        min_milli=milli(bounds.min.nano), use_milli=milli(bounds.wanted.nano), max_milli=milli(bounds.max.nano)
    )


def _memory(bounds: MemoryBounds) -> pb.MemoryBounds:
    return pb.MemoryBounds(
        min_bytes=bounds.min.nano // NANO,
        use_bytes=bounds.wanted.nano // NANO,
        max_bytes=bounds.max.nano // NANO,
        method=bounds.method,
        slot_size_bytes=0 if bounds.slot_size is None else bounds.slot_size.nano // NANO,
    )
