"""Reading requests about machines: as ``service.request_fields``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from devalloc.api.decode import decode
from devalloc.api.fields import is_label
from devalloc.api.machine_start import MachineDisk
from devalloc.api.meta import DEVALLOC
from devalloc.api.virtual_machine import (
    MAX_CLAIMS,
    MAX_CPUS,
    MachineNic,
    VirtualMachine,
    VirtualMachineSpec,
)
from devalloc_machines.qemu.console import LogName
from devalloc_machines.qemu.spec import MAX_EMULATED_NAME, EmulatedDevice, spec_of
from devalloc_machines.service.spec_messages import content_of
from devalloc_node.model.grant import ClaimRef, shown
from devalloc_node.pb import node_pb2 as pb
from devalloc_node.service.request_fields import BadField, claim_ref, name_of, namespace_of

MAX_MEMORY = 1 << 62
"""Bytes."""


def claim_refs(messages: Iterable[pb.ClaimRef]) -> tuple[ClaimRef, ...]:
    """Several, each once. Raises BadField."""
    refs: dict[tuple[str, str], ClaimRef] = {}
    for i, message in enumerate(messages):
        if i >= MAX_CLAIMS:
            raise BadField("claims", f"must be at most {MAX_CLAIMS}")
        ref = claim_ref(message, f"claims[{i}]")
        if (ref.namespace, ref.name) in refs:
            raise BadField(f"claims[{i}]", f"is there already: {ref}")
        refs[ref.namespace, ref.name] = ref
    return tuple(refs.values())


def machine_key(message: pb.MachineRef) -> str:
    """Read ``namespace/name``. Raises BadField."""
    return f"{namespace_of(message.namespace, 'machine')}/{name_of(message.name, 'machine')}"


_LOGS: dict[int, LogName] = {
    pb.ReadLogRequest.LOG_CONSOLE: "console",
    pb.ReadLogRequest.LOG_QEMU: "qemu",
    pb.ReadLogRequest.LOG_QEMU_PREVIOUS: "qemu-previous",
}


def log_name(log: int) -> LogName:
    """Read which log of a machine is meant. Raises BadField."""
    if log not in _LOGS:
        raise BadField("log", f"must be one of {', '.join(pb.ReadLogRequest.Log.keys())}, not {log}")
    return _LOGS[log]


def machine_to_start(request: pb.CreateMachineRequest, node: str) -> VirtualMachine:
    """Read the VirtualMachine that a request asks for. Raises BadField; paths are those of VirtualMachine.spec."""
    spec = request.spec
    for name in ("cpu", "memory", "start"):
        if not spec.HasField(name):
            raise BadField(f"spec.{name}", "is required")
    _check_node(spec.node_name, "spec.nodeName", node)
    content = content_of(spec, VirtualMachineSpec) | {"nodeName": node}
    _check_numa(spec)
    return _machine(request.machine, content, claim_refs(request.claims))


def _check_numa(spec: pb.MachineSpec) -> None:
    """Raises BadField: what the allocator does for objects, the caller does for a machine of this service."""
    if spec.numa_policy == "single-numa-node" and not spec.start.HasField("numa_node"):
        raise BadField(
            "spec.numaPolicy",
            "is single-numa-node: the caller places a machine of this service, so name its node in spec.start.numaNode",
        )


def machine_to_adopt(request: pb.AdoptMachineRequest, node: str) -> VirtualMachine:
    """Read the VirtualMachine that runs already. Raises BadField; paths are those of VirtualMachine.spec."""
    _check_node(request.node_name, "spec.nodeName", node)
    for name in ("cpu", "memory"):
        if not request.HasField(name):
            raise BadField(f"spec.{name}", "is required: the bounds for scaling")
    content = content_of(request, VirtualMachineSpec)
    content |= {"nodeName": node, "adopt": {"qmpSocket": request.qmp_socket}}
    return _machine(request.machine, content, claim_refs(request.claims))


def _check_node(requested: str, path: str, node: str) -> None:
    if requested not in ("", node):
        raise BadField(path, f"is {shown(requested)}, but this node is {node}: send the request to that node")


def plain_device(request: pb.PlugDeviceRequest) -> EmulatedDevice:
    """The disk or network card that is to be plugged in, held to what CreateMachine holds them to. Raises BadField."""
    name = plain_name(request.name)
    which = request.WhichOneof("device")
    if which is None:
        raise BadField("disk", "is required, or nic: one device to plug in")
    bounds = {"min": 1, "max": 1}
    content: dict[str, Any] = {"nodeName": "node", "cpu": bounds, "memory": {"min": "2Mi", "max": "2Mi"}}
    if which == "disk":
        if request.disk.clone:
            raise BadField("disk.clone", "is only for disks with which a machine is created")
        where, content["start"] = "spec.start.disks[0]", {"disks": [content_of(request.disk, MachineDisk)]}
    else:
        if request.nic.backend == "warm":
            raise BadField("nic.backend", "is warm: only a machine that this plugin starts can use a warm setup")
        if request.nic.bandwidth_bytes_per_second:
            raise BadField("nic.bandwidth", "can only be reserved for cards with which a machine is created")
        where, content["start"] = "spec.nics[0]", {"kernel": "/none"}
        content["nics"] = [content_of(request.nic, MachineNic)]
    try:
        spec = spec_of(_machine(request.machine, content, ()))
    except BadField as error:
        raise BadField(error.path.replace(where, which), error.why) from None
    return EmulatedDevice(name, spec.disks[0] if which == "disk" else spec.nics[0])


def plain_name(text: str) -> str:
    """Read the name of a device that no claim stands for. Raises BadField."""
    if not text:
        raise BadField("name", "is required")
    if len(text) > MAX_EMULATED_NAME or not is_label(text):
        raise BadField(
            "name", f"must be a DNS label in lower case of at most {MAX_EMULATED_NAME} characters, not {shown(text)}"
        )
    if text.startswith("claim-"):
        raise BadField("name", f"is {text}, a name of devices of claims: attach and detach their claim instead")
    return text


def _machine(ref: pb.MachineRef, spec: Mapping[str, Any], claims: tuple[ClaimRef, ...]) -> VirtualMachine:
    namespace, _, name = machine_key(ref).partition("/")
    for i, claim in enumerate(claims):
        if claim.namespace != namespace:
            raise BadField(f"claims[{i}].namespace", f"must be the machine's, {namespace}, not {claim.namespace}")
    manifest = {
        "apiVersion": DEVALLOC,
        "kind": "VirtualMachine",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {**spec, "claims": [claim.name for claim in claims]},
    }
    decoded = decode(manifest)
    if not isinstance(decoded.object, VirtualMachine):
        problem = decoded.error
        raise BadField(
            *(("spec", "is not a machine") if problem is None else (problem.path or "spec", problem.message))
        )
    return decoded.object


def requested_scaling(request: pb.ScaleMachineRequest) -> dict[str, int]:
    """Read what is to be changed: ``vcpus``, ``cpu`` (thousandths of a core), ``memory`` (bytes). Raises BadField."""
    wanted = {}
    for what, name, path, least, most in (
        ("vcpus", "vcpus", "vcpus", 1, MAX_CPUS),
        ("cpu", "cpu_milli", "cpuMilli", 0, MAX_CPUS * 1000),
        ("memory", "memory_bytes", "memoryBytes", 1, MAX_MEMORY),
    ):
        if request.HasField(name):
            amount = getattr(request, name)
            if not least <= amount <= most:
                raise BadField(path, f"must be {least} to {most}, not {amount}")
            wanted[what] = amount
    if not wanted:
        raise BadField("vcpus", "is required, or cpuMilli or memoryBytes: an amount to change")
    return wanted
