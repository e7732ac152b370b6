"""What the plugin knows of machines, as messages of ``devalloc.node.v1``."""

from __future__ import annotations

from collections.abc import Iterable

from devalloc.api.virtual_machine import VirtualMachine
from devalloc.scaling.health import ScalingReport
from devalloc.scaling.resources import Resources
from devalloc_machines.qemu.guest_report import GuestReport
from devalloc_machines.qemu.pci import function_id
from devalloc_machines.qemu.records import MachineAmounts, MachineView
from devalloc_machines.qemu.spec import Disk, EmulatedDevice, Nic
from devalloc_machines.service.spec_messages import fill
from devalloc_node.model.step import PluggedDevice
from devalloc_node.pb import node_pb2 as pb
from devalloc_node.service.replies import cut, ref


def machine_ref(key: str) -> pb.MachineRef:
    namespace, _, name = key.partition("/")
    return pb.MachineRef(namespace=namespace, name=name)


def plugged_device(one: PluggedDevice) -> pb.MachineDevice:
    pool, _, device = one.device.rpartition("/")
    return pb.MachineDevice(id=function_id(one.name, 0), claim=ref(one.ref), pool=pool, device=device, host=one.host)


def emulated_device(one: EmulatedDevice) -> pb.MachineDevice:
    what = one.what
    message = pb.MachineDevice(id=function_id(one.id, 0), name=one.name, host=what.host)
    if isinstance(what, Disk):
        message.disk.CopyFrom(_disk(what))
    else:
        message.nic.CopyFrom(_nic(what))
    return message


def amounts(of: MachineAmounts) -> pb.Amounts | None:
    """Write amounts; None if nothing is known."""
    if of == MachineAmounts():
        return None
    return pb.Amounts(cpu_milli=of.cpu_milli, vcpus=of.vcpus, memory_bytes=of.memory_bytes)


def machine(
    of: MachineView,
    plugs: Iterable[PluggedDevice],
    report: ScalingReport | None = None,
    guest: GuestReport | None = None,
) -> pb.Machine:
    """``report``: of one that is scaled by its load. ``guest``: what its guest says about itself."""
    phase = pb.Machine.Phase.DESCRIPTOR.values_by_name.get(of.phase.upper())
    return pb.Machine(
        machine=machine_ref(of.key),
        phase=pb.Machine.UNKNOWN if phase is None else phase.number,
        wanted=amounts(of.wanted),
        permitted=amounts(of.wanted if report is None else _of(report.permitted)),
        applied=amounts(of.applied.usable),
        observed=amounts(of.observed),
        reason=of.reason,
        message=cut(of.message),
        devices=[*(plugged_device(one) for one in plugs), *(emulated_device(one) for one in of.plain)],
        pid=of.pid,
        machine_id=of.id,
        qmp_socket=of.qmp_socket,
        adopted=of.adopted,
        taps=of.taps,
        network_address=of.network_address,
        spec=None if of.created_as is None else spec(of.created_as),
        scaling=None if report is None else _scaling(report),
        guest_report=None if guest is None else pb.GuestReport(status=guest.status or "", message=guest.message),
    )


def _scaling(of: ScalingReport) -> pb.Scaling:
    guest, load = of.guest, of.load
    why = [each for each in (of.reason, *of.stuck) if each is not None]
    return pb.Scaling(
        applied=amounts(_of(of.applied)),
        guest_observed=None if guest is None else pb.Amounts(vcpus=guest.cpus, memory_bytes=guest.memory),
        load1=None if load is None else load.load1,
        memory_used_bytes=None if load is None else round(load.memory_usage),
        reason=why[0].code if why else "",
        message=cut("; ".join(dict.fromkeys(each.message for each in why))),
    )


def _of(resources: Resources | None) -> MachineAmounts:
    return MachineAmounts() if resources is None else MachineAmounts(resources.cpu, None, resources.memory)


def spec(of: VirtualMachine) -> pb.MachineSpec:
    """As CreateMachine takes it, with all defaults. Of an adopted machine its bounds, without what only starts have."""
    message = pb.MachineSpec()
    fill(message, of.spec)
    fill(message.cpu, of.spec.cpu.model_copy(update={"use": of.spec.cpu.wanted}))
    fill(message.memory, of.spec.memory.model_copy(update={"use": of.spec.memory.wanted}))
    if of.spec.adopt is None:
        message.pci_slots = of.spec.slots
    else:
        message.restart_policy = ""
    message.node_name = of.node or ""
    return message


def _disk(disk: Disk) -> pb.Disk:
    return pb.Disk(path=disk.path, format=disk.format, read_only=disk.read_only, device=disk.device)


def _nic(nic: Nic) -> pb.Nic:
    if nic.warm:
        return pb.Nic(model=nic.model, backend="warm", mac=nic.mac)
    backend = "user" if nic.interface is None else "tap"
    return pb.Nic(model=nic.model, backend=backend, interface=nic.interface, mac=nic.mac)
