"""What the plugin knows, as messages of ``devalloc.node.v1``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from devalloc.api.pool import AttributeValue, DevicePool, unavailability
from devalloc.api.virtual_machine import VirtualMachine
from devalloc.scaling.health import ScalingReport
from devalloc.scaling.resources import Resources
from devalloc_node.binding.binding import HealthState
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.journal import ClaimState, StepRecord
from devalloc_node.machine.guest_report import GuestReport
from devalloc_node.machine.pci import function_id
from devalloc_node.machine.records import MachineAmounts, MachineView
from devalloc_node.machine.spec import Disk, EmulatedDevice, Nic
from devalloc_node.model.grant import ClaimRef
from devalloc_node.model.step import PluggedDevice, PreparedDevice, Step
from devalloc_node.operations.claim_registry import HeldClaim
from devalloc_node.pb import node_pb2 as pb
from devalloc_node.service.spec_messages import fill

_STATES = {
    ClaimState.PREPARING: pb.Claim.PREPARING,
    ClaimState.PREPARED: pb.Claim.PREPARED,
    ClaimState.UNPREPARING: pb.Claim.UNPREPARING,
}
_HEALTH = {
    "healthy": pb.Device.HEALTHY,
    "unhealthy": pb.Device.UNHEALTHY,
    "unknown": pb.Device.UNKNOWN,
}
MESSAGE = 4096
"""Maximum characters of a message; a longer one is cut."""


def done() -> pb.Result:
    return pb.Result(outcome=pb.Result.DONE)


def result(error: NodeError) -> pb.Result:
    """What became of it: denied and failed are sure, everything else is not."""
    outcome = pb.Result.UNKNOWN
    if isinstance(error, Denied):
        outcome = pb.Result.DENIED
    elif isinstance(error, Failed):
        outcome = pb.Result.FAILED
    return pb.Result(outcome=outcome, code=error.code, message=_cut(error.message), retryable=error.retryable)


def ref(claim: ClaimRef) -> pb.ClaimRef:
    return pb.ClaimRef(namespace=claim.namespace, name=claim.name, uid=claim.uid)


def machine_ref(key: str) -> pb.MachineRef:
    namespace, _, name = key.partition("/")
    return pb.MachineRef(namespace=namespace, name=name)


def step(one: Step, *, is_done: bool = False, problem: str = "") -> pb.Step:
    return pb.Step(
        kind=one.kind,
        target=one.target,
        before=_json(one.before),
        after=_json(one.after),
        shared=one.shared or "",
        done=is_done,
        problem=_cut(problem),
    )


def step_of_record(one: StepRecord) -> pb.Step:
    return step(one.step, is_done=one.state == "done", problem=one.problem)


def claim(held: HeldClaim, *, steps: bool) -> pb.Claim:
    record = held.record
    problems = [one.problem for one in held.steps if one.state == "stuck"]
    prepared = held.prepared
    return pb.Claim(
        claim=ref(record.ref),
        state=pb.Claim.STUCK if problems else _STATES[record.state],
        devices=[] if prepared is None else [_device(one, prepared.cdi_ids) for one in prepared.devices],
        steps=[step_of_record(one) for one in held.steps] if steps else [],
        machines=sorted({plug.machine for plug in held.plugs}),
        message=_cut("; ".join(problems)),
    )


def _device(device: PreparedDevice, cdi_ids: Mapping[str, tuple[str, ...]]) -> pb.PreparedDevice:
    return pb.PreparedDevice(
        requests=device.requests,
        pool=device.pool,
        device=device.device,
        binding=device.binding,
        functions=device.functions,
        mdev_uuid=device.mdev_uuid or "",
        sysfsdev=device.sysfsdev or "",
        nodes=device.nodes,
        attributes={name: str(value) for name, value in device.attributes.items()},
        admin=device.admin,
        share=device.share or "",
        cdi_ids=cdi_ids.get(device.key, ()),
    )


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
    """None if nothing is known."""
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
        permitted=amounts(of.permitted if report is None else _of(report.permitted)),
        applied=amounts(of.applied.usable),
        observed=amounts(of.observed),
        reason=of.reason,
        message=_cut(of.message),
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
        message=_cut("; ".join(dict.fromkeys(each.message for each in why))),
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


def devices(
    pools: Iterable[DevicePool], held: Iterable[HeldClaim], health: Mapping[tuple[str, str], HealthState]
) -> dict[tuple[str, str], pb.Device]:
    """The devices of pools by pool and name, with who holds them."""
    by_name: dict[tuple[str, str], pb.Device] = {}
    for pool in sorted(pools, key=lambda one: one.metadata.name):
        for device, attributes in sorted(pool.spec.effective_attributes.items()):
            key = (pool.metadata.name, device)
            by_name[key] = _published(key, attributes, health.get(key))
    for one in held:
        for prepared in one.prepared.devices if one.prepared is not None else ():
            at = by_name.get((prepared.pool, prepared.device))
            if at is not None:
                at.claims.append(ref(one.record.ref))
                at.machines.extend(sorted({plug.machine for plug in one.plugs if plug.device == prepared.name}))
    return by_name


def _published(key: tuple[str, str], effective: Mapping[str, AttributeValue], health: HealthState | None) -> pb.Device:
    attributes = {name: str(value) for name, value in effective.items()}
    return pb.Device(
        pool=key[0],
        device=key[1],
        kind=attributes.get("kind", ""),
        function=attributes.get("function", ""),
        address=attributes.get("pciBusID", ""),
        driver=attributes.get("driver", ""),
        state=attributes.get("state", ""),
        unavailable=unavailability(effective) or "",
        health=pb.Device.UNKNOWN if health is None else _HEALTH[health.state],
        health_message="" if health is None else _cut(health.message),
    )


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _cut(text: str) -> str:
    return text if len(text) <= MESSAGE else text[: MESSAGE - 1] + "…"
