"""``devalloc vm``: plug devices into running machines, and unplug them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devalloc.cli.command import BadInput, verb
from devalloc.cli.node_client import (
    ask_for_each,
    claim_ref,
    connect_plugin,
    force_option,
    machine_ref,
    print_result,
    socket_option,
    timeout_option,
)
from devalloc.cli.options.common import namespace_option, settings_options
from devalloc.cli.render.host import plugged_device_text
from devalloc.settings import setting

if TYPE_CHECKING:
    from devalloc_node.pb.node_pb2 import Result
    from devalloc_node.pb.node_pb2_grpc import NodeStub


@verb("attach")
@click.argument("machine", metavar="MACHINE")
@click.argument("claims", nargs=-1, required=True, metavar="CLAIM...")
@namespace_option
@socket_option
@timeout_option
def attach(machine: str, claims: tuple[str, ...], namespace: str, socket: Path, timeout: float) -> int:
    """Plug the devices of claims into a running machine: for each claim all of its devices, or none.

    \b
    devalloc vm attach web train
    """
    from devalloc_node.pb.node_pb2 import AttachClaimRequest

    def ask(node: NodeStub, claim: str) -> tuple[str, Result]:
        request = AttachClaimRequest(claim=claim_ref(claim, namespace), machine=machine_ref(machine, namespace))
        reply = node.AttachClaim(request, timeout=timeout)
        devices = ", ".join(f"{device.pool}/{device.device}" for device in reply.devices)
        return f"attached to {machine}: {devices}", reply.result

    return ask_for_each(claims, socket, ask)


@verb("detach")
@click.argument("machine", metavar="MACHINE")
@click.argument("claims", nargs=-1, required=True, metavar="CLAIM...")
@force_option
@namespace_option
@socket_option
@timeout_option
def detach(machine: str, claims: tuple[str, ...], force: bool, namespace: str, socket: Path, timeout: float) -> int:
    """Unplug the devices of claims from a machine. The claims stay prepared until `devalloc vm unprepare`.

    \b
    devalloc vm detach web train
    """
    from devalloc_node.pb.node_pb2 import DetachClaimRequest

    def ask(node: NodeStub, claim: str) -> tuple[str, Result]:
        claim_of, machine_of = claim_ref(claim, namespace), machine_ref(machine, namespace)
        reply = node.DetachClaim(DetachClaimRequest(claim=claim_of, machine=machine_of, force=force), timeout=timeout)
        done = f"detached from {machine}" + (", which was killed" if reply.ended_machine else "")
        return done if reply.found else f"is not in {machine}", reply.result

    return ask_for_each(claims, socket, ask)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """The disk or network card to plug in."""

    disk: Path | None = setting("A disk: an image or block device.", type=click.Path(path_type=Path), metavar="PATH")
    format: str | None = setting("Format of the image; it is never guessed.", type=click.Choice(["raw", "qcow2"]))
    read_only: bool = setting("Do not let the guest write to the disk.", default=False)
    nvme: bool = setting("Use an NVMe controller instead of virtio.", default=False)
    tap: str | None = setting("A network card on this existing TAP interface.", metavar="INTERFACE")
    user_net: bool = setting("A network card on the host's own sockets.", default=False)
    mac: str | None = setting("The network card's MAC address.")


@verb("plug")
@click.argument("machine", metavar="MACHINE")
@click.argument("name", metavar="NAME")
@settings_options(DeviceOptions, "device")
@namespace_option
@socket_option
@timeout_option
def plug(machine: str, name: str, device: DeviceOptions, namespace: str, socket: Path, timeout: float) -> int:
    """Plug a disk or a network card into a running machine, until it is unplugged or the machine ends.

    The guest sees NAME as the serial number of a disk. For devices of claims, use `devalloc vm attach`.

    \b
    devalloc vm plug web data --disk /images/data.qcow2 --format qcow2
    devalloc vm plug web lan --tap tap0
    """
    from devalloc_node.pb import node_pb2 as pb

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


@verb("unplug")
@click.argument("machine", metavar="MACHINE")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@namespace_option
@socket_option
@timeout_option
def unplug(machine: str, names: tuple[str, ...], namespace: str, socket: Path, timeout: float) -> int:
    """Unplug what `devalloc vm plug` plugged in. The guest must release it within --timeout.

    \b
    devalloc vm unplug web data
    """
    from devalloc_node.pb.node_pb2 import UnplugDeviceRequest

    def ask(node: NodeStub, name: str) -> tuple[str, Result]:
        request = UnplugDeviceRequest(machine=machine_ref(machine, namespace), name=name)
        reply = node.UnplugDevice(request, timeout=timeout)
        return f"unplugged from {machine}" if reply.found else f"is not in {machine}", reply.result

    return ask_for_each(names, socket, ask)


@verb("unprepare")
@click.argument("claims", nargs=-1, required=True, metavar="CLAIM...")
@click.option("--uid", default="", metavar="UID", help="UID of the claim, if several prepared claims have this name.")
@force_option
@namespace_option
@socket_option
@timeout_option
def unprepare(claims: tuple[str, ...], uid: str, force: bool, namespace: str, socket: Path, timeout: float) -> int:
    """Return the devices of claims to this host in their original state. The claims stay allocated.

    Unplugs them from their machine first.

    \b
    devalloc vm unprepare train && devalloc release train
    """
    if uid and len(claims) > 1:
        raise BadInput("--uid needs exactly one claim")
    from devalloc_node.pb.node_pb2 import UnprepareClaimRequest

    def ask(node: NodeStub, claim: str) -> tuple[str, Result]:
        request = UnprepareClaimRequest(claim=claim_ref(claim, namespace, uid), force=force)
        reply = node.UnprepareClaim(request, timeout=timeout)
        ended = f"; {', '.join(reply.ended_machines)} was killed for it" if reply.ended_machines else ""
        return f"unprepared{ended}" if reply.found else "is not prepared here", reply.result

    return ask_for_each(claims, socket, ask)
