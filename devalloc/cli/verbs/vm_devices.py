"""``devalloc vm``: plug devices into running machines, and unplug them."""

from __future__ import annotations

from pathlib import Path

from devalloc.cli.command import BadInput
from devalloc.cli.node_client import (
    ask_for_each,
    claim_ref,
    connect_plugin,
    machine_ref,
    print_result,
)
from devalloc.cli.options.vm import DeviceOptions
from devalloc.cli.render.host import plugged_device_text
from devalloc_node.pb import node_pb2 as pb
from devalloc_node.pb.node_pb2 import (
    AttachClaimRequest,
    DetachClaimRequest,
    Result,
    UnplugDeviceRequest,
    UnprepareClaimRequest,
)
from devalloc_node.pb.node_pb2_grpc import NodeStub


def attach(machine: str, claims: tuple[str, ...], namespace: str, socket: Path, timeout: float) -> int:
    def ask(node: NodeStub, claim: str) -> tuple[str, Result]:
        request = AttachClaimRequest(claim=claim_ref(claim, namespace), machine=machine_ref(machine, namespace))
        reply = node.AttachClaim(request, timeout=timeout)
        devices = ", ".join(f"{device.pool}/{device.device}" for device in reply.devices)
        return f"attached to {machine}: {devices}", reply.result

    return ask_for_each(claims, socket, ask)


def detach(machine: str, claims: tuple[str, ...], force: bool, namespace: str, socket: Path, timeout: float) -> int:
    def ask(node: NodeStub, claim: str) -> tuple[str, Result]:
        claim_of, machine_of = claim_ref(claim, namespace), machine_ref(machine, namespace)
        reply = node.DetachClaim(DetachClaimRequest(claim=claim_of, machine=machine_of, force=force), timeout=timeout)
        done = f"detached from {machine}" + (", which was killed" if reply.ended_machine else "")
        return done if reply.found else f"is not in {machine}", reply.result

    return ask_for_each(claims, socket, ask)


def plug(machine: str, name: str, device: DeviceOptions, namespace: str, socket: Path, timeout: float) -> int:
    request = pb.PlugDeviceRequest(machine=machine_ref(machine, namespace), name=name)
    if [device.disk is not None, device.tap is not None, device.user_net].count(True) != 1:
        raise BadInput("give one of --disk, --tap and --user-net")
    if device.disk is not None:
        if device.mac is not None:
            raise BadInput("--mac needs --tap or --user-net")
        if device.format is None:
            raise BadInput("give the image's --format, raw or qcow2: a guest can make one look like the other")
        path, driver = str(device.disk.absolute()), "nvme" if device.nvme else "virtio"
        request.disk.CopyFrom(pb.Disk(path=path, format=device.format, read_only=device.read_only, device=driver))
    else:
        if device.format is not None or device.read_only or device.nvme:
            raise BadInput("--format, --read-only and --nvme need --disk")
        backend = "user" if device.tap is None else "tap"
        request.nic.CopyFrom(pb.Nic(backend=backend, interface=device.tap or "", mac=device.mac or ""))
    with connect_plugin(socket) as node:
        reply = node.PlugDevice(request, timeout=timeout)
    return print_result(name, f"plugged into {machine}: {plugged_device_text(reply.device)}", reply.result)


def unplug(machine: str, names: tuple[str, ...], namespace: str, socket: Path, timeout: float) -> int:
    def ask(node: NodeStub, name: str) -> tuple[str, Result]:
        request = UnplugDeviceRequest(machine=machine_ref(machine, namespace), name=name)
        reply = node.UnplugDevice(request, timeout=timeout)
        return f"unplugged from {machine}" if reply.found else f"is not in {machine}", reply.result

    return ask_for_each(names, socket, ask)


def unprepare(claims: tuple[str, ...], uid: str, force: bool, namespace: str, socket: Path, timeout: float) -> int:
    if uid and len(claims) > 1:
        raise BadInput("--uid needs exactly one claim")

    def ask(node: NodeStub, claim: str) -> tuple[str, Result]:
        request = UnprepareClaimRequest(claim=claim_ref(claim, namespace, uid), force=force)
        reply = node.UnprepareClaim(request, timeout=timeout)
        ended = f"; {', '.join(reply.ended_machines)} was killed for it" if reply.ended_machines else ""
        return f"unprepared{ended}" if reply.found else "is not prepared here", reply.result

    return ask_for_each(claims, socket, ask)
